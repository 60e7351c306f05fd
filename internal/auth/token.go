package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	bearerScheme = "Bearer "
	tokenPrefix  = "sbt-"
	secretBytes  = 32
)

var secretEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// Token is what is stored of a token: never its text.
type Token struct {
	ID      int64
	User    string
	UID     int
	Hash    []byte // SHA-256 of the secret
	Scopes  []Scope
	Account string // "" is every account of the user
	Expires time.Time
	Revoked bool
}

// NewSecret makes the secret of a token, and its hash.
func NewSecret() (secret string, hash []byte) {
	b := make([]byte, secretBytes)
	_, _ = rand.Read(b) // never fails
	secret = strings.ToLower(secretEncoding.EncodeToString(b))
	return secret, hashOf(secret)
}

func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// TokenText is what the user is shown once: the number finds the row, the secret
// proves it.
func TokenText(id int64, secret string) string {
	return tokenPrefix + strconv.FormatInt(id, 10) + "-" + secret
}

// BearerAuthorization is the header of a request with a token.
func BearerAuthorization(text string) string { return bearerScheme + text }

func parseToken(text string) (id int64, secret string, ok bool) {
	rest, ok := strings.CutPrefix(text, tokenPrefix)
	number, secret, found := strings.Cut(rest, "-")
	id, err := strconv.ParseInt(number, 10, 64)
	if !ok || !found || err != nil || id <= 0 || len(secret) != secretEncoding.EncodedLen(secretBytes) {
		return 0, "", false
	}
	return id, secret, true
}

// Bearers identifies callers by tokens. It is safe for concurrent use.
type Bearers struct {
	users *Users
	now   func() time.Time
	find  func(ctx context.Context, id int64) (t Token, ok bool, err error)
}

// NewBearers returns an identifier of callers with tokens; find looks one up.
func NewBearers(users *Users, find func(ctx context.Context, id int64) (Token, bool, error)) *Bearers {
	return &Bearers{users: users, now: time.Now, find: find}
}

// Identify returns whom the token was made for. The caller is a user at most:
// no role comes with a token.
func (b *Bearers) Identify(r *http.Request) (Identity, error) {
	if r.TLS == nil && !loopback(r.RemoteAddr) {
		return Identity{}, fmt.Errorf("%w: a token on a line that others can read: revoke it, and use TLS", ErrRefused)
	}
	text, ok := strings.CutPrefix(r.Header.Get("Authorization"), bearerScheme)
	if !ok {
		return Identity{}, fmt.Errorf("%w: not a token", ErrRefused)
	}
	id, secret, ok := parseToken(text)
	if !ok {
		return Identity{}, fmt.Errorf("%w: not a token", ErrRefused)
	}
	t, found, err := b.find(r.Context(), id)
	if err != nil {
		return Identity{}, err
	}
	// The hash is compared even where there is no such token: the answer takes as long.
	same := subtle.ConstantTimeCompare(hashOf(secret), t.Hash) == 1
	switch {
	case !found || !same:
		return Identity{}, fmt.Errorf("%w: no such token", ErrRefused)
	case t.Revoked:
		return Identity{}, fmt.Errorf("%w: token %d is revoked", ErrRefused, id)
	case !b.now().Before(t.Expires):
		return Identity{}, fmt.Errorf("%w: token %d has expired", ErrRefused, id)
	}
	name, err := b.users.Name(r.Context(), t.UID)
	if err != nil {
		return Identity{}, err
	}
	if name != t.User {
		return Identity{}, fmt.Errorf("%w: token %d is of %s, whose uid is now another's", ErrRefused, id, t.User)
	}
	return Identity{UID: t.UID, User: t.User, Via: ViaToken, Token: t.ID, Scopes: t.Scopes, Account: t.Account}, nil
}

func loopback(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}
