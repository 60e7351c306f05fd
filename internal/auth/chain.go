package auth

import (
	"fmt"
	"net/http"
	"strings"
)

// identifier is one way to be identified.
type identifier interface {
	Identify(r *http.Request) (Identity, error)
}

// Chain chooses the way by where the request came from: on the Unix socket only
// the kernel's word counts, over TCP the one credential that the request shows.
type Chain struct {
	Peers       *Peers
	Credentials *Credentials // nil where MUNGE is not offered
	Bearers     *Bearers     // nil where tokens are not
}

// Identify returns who sent the request.
func (c *Chain) Identify(r *http.Request) (Identity, error) {
	if p, ok := r.Context().Value(peerKey{}).(peer); ok && p.err == nil {
		return c.Peers.Identify(r)
	}
	headers := r.Header.Values("Authorization")
	var way identifier
	switch {
	case len(headers) > 1:
		return Identity{}, fmt.Errorf("%w: more than one Authorization", ErrRefused)
	case len(headers) == 0:
		return Identity{}, fmt.Errorf("%w: the request shows none", ErrRefused)
	case strings.HasPrefix(headers[0], mungeScheme) && c.Credentials != nil:
		way = c.Credentials
	case strings.HasPrefix(headers[0], bearerScheme) && c.Bearers != nil:
		way = c.Bearers
	default:
		return Identity{}, fmt.Errorf("%w: of a kind that this daemon does not take", ErrRefused)
	}
	return way.Identify(r)
}
