// Package auth says who is calling. On the daemon's Unix socket the kernel
// vouches for the peer's uid (SO_PEERCRED); over TCP a MUNGE credential does, which
// holds the method, the path and the hash of the body, or a token that an
// earlier caller was given. It promises that an Identity was never chosen by the
// caller, and that no credential counts twice; it refuses callers whose uid has no
// name, and tokens on a line that others can read.
package auth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"

	"golang.org/x/sys/unix"
)

// Via is how a caller was identified.
type Via string

// The ways to be identified.
const (
	ViaPeer  Via = "peer"  // the kernel, on the Unix socket
	ViaMunge Via = "munge" // a MUNGE credential
	ViaToken Via = "token" // a token
)

// Scope is what a token is good for.
type Scope string

// The scopes of tokens. None lets a token act as an operator or an admin.
const (
	ScopeRead   Scope = "read"   // look at what its user may look at
	ScopeSubmit Scope = "submit" // submit sweeps
	ScopeAct    Scope = "act"    // cancel, hold, release and requeue
)

// Scopes lists all of them.
func Scopes() []Scope { return []Scope{ScopeRead, ScopeSubmit, ScopeAct} }

// Identity is a caller that the system vouches for.
type Identity struct {
	UID  int
	User string
	// Operator may act on everybody's sweeps and on sites: root, the daemon's own
	// user, and those whom the configuration names.
	Operator bool
	// Admin may spend the site's money: set rates and quotas, and give rights
	// away. An admin is an operator.
	Admin bool
	Via   Via
	// Token is the number of the token, 0 without one. Scopes are what it is good
	// for, and Account, where it is not "", the only account it may spend for.
	Token   int64
	Scopes  []Scope
	Account string
}

// MayAct reports whether the caller may change or read the private parts of
// what belongs to owner.
func (id Identity) MayAct(owner string) bool {
	return id.Operator || (owner != "" && id.User == owner)
}

// Allows reports whether the caller's credential is good for a scope; "" is what
// no token is good for.
func (id Identity) Allows(s Scope) bool {
	return id.Token == 0 || slices.Contains(id.Scopes, s)
}

// Roles says who is more than a user.
type Roles struct {
	// Self is the daemon's own uid.
	Self              int
	Operators, Admins []string
	// PlainRoot makes root a user like others: a host's root is not the daemon's.
	PlainRoot bool
}

func (r Roles) identity(uid int, name string, via Via) Identity {
	admin := uid == 0 && !r.PlainRoot || uid == r.Self || slices.Contains(r.Admins, name)
	return Identity{UID: uid, User: name, Via: via, Admin: admin, Operator: admin || slices.Contains(r.Operators, name)}
}

// The errors that callers tell apart.
var (
	// ErrNoPeer means that the connection carries no credentials: it is not a Unix
	// socket, or the server was started without ConnContext.
	ErrNoPeer = errors.New("connection has no peer credentials")
	// ErrRefused means that what the caller showed is no credential, or not for
	// this request, or no longer.
	ErrRefused = errors.New("credential refused")
)

type peerKey struct{}

type peer struct {
	uid int
	err error
}

// ConnContext is for http.Server.ConnContext: it stores the credentials that
// the kernel noted when the peer connected.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	uid, err := PeerUID(c)
	return context.WithValue(ctx, peerKey{}, peer{uid, err})
}

// PeerUID returns the uid of the process at the other end of a Unix socket.
func PeerUID(c net.Conn) (int, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return 0, ErrNoPeer
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	if credErr != nil {
		return 0, fmt.Errorf("read peer credentials: %w", credErr)
	}
	return int(cred.Uid), nil
}

// Peers identifies the callers of a Unix socket. It is safe for concurrent use.
type Peers struct {
	users *Users
	roles Roles
}

// NewPeers returns an identifier of the peers of a Unix socket.
func NewPeers(users *Users, roles Roles) *Peers { return &Peers{users: users, roles: roles} }

// Identify returns who sent the request. The server needs ConnContext.
func (p *Peers) Identify(r *http.Request) (Identity, error) {
	c, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		return Identity{}, ErrNoPeer
	}
	if c.err != nil {
		return Identity{}, c.err
	}
	return p.Of(r.Context(), c.uid)
}

// Of returns who a user is now, for work that is done in their name later.
func (p *Peers) Of(ctx context.Context, uid int) (Identity, error) {
	name, err := p.users.Name(ctx, uid)
	if err != nil {
		return Identity{}, err
	}
	return p.roles.identity(uid, name, ViaPeer), nil
}
