// Package auth says who is calling. On the daemon's Unix socket the kernel
// vouches for the peer's uid (SO_PEERCRED), and the user's name is asked from
// the system's name service. It promises that an Identity was never chosen by
// the caller; it refuses callers whose uid has no name.
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

// Identity is a caller that the system vouches for.
type Identity struct {
	UID  int
	User string
	// Operator may act on everybody's sweeps and on sites: root, the daemon's own
	// user, and those whom the configuration names.
	Operator bool
}

// MayAct reports whether the caller may change or read the private parts of
// what belongs to owner.
func (id Identity) MayAct(owner string) bool {
	return id.Operator || (owner != "" && id.User == owner)
}

// ErrNoPeer means that the connection carries no credentials: it is not a Unix
// socket, or the server was started without ConnContext.
var ErrNoPeer = errors.New("connection has no peer credentials")

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
	users     *Users
	self      int
	operators []string
}

// NewPeers returns an identifier that treats root, the uid self and the named
// operators as operators.
func NewPeers(users *Users, self int, operators []string) *Peers {
	return &Peers{users: users, self: self, operators: slices.Clone(operators)}
}

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
	return Identity{
		UID:      uid,
		User:     name,
		Operator: uid == 0 || uid == p.self || slices.Contains(p.operators, name),
	}, nil
}
