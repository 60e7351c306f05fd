package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"

	"sbench/internal/auth"
	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/store"
	"sbench/internal/web"
)

// callers identifies who calls: the kernel on the Unix socket; over TCP MUNGE or
// a token.
func callers(c Config, users *auth.Users, s *store.Store) *auth.Chain {
	roles := auth.Roles{Self: os.Getuid(), Operators: c.Operators, Admins: c.Admins}
	chain := &auth.Chain{Peers: auth.NewPeers(users, roles)}
	if c.Listen.Address == "" {
		return chain
	}
	remote := roles
	remote.PlainRoot = !c.Listen.TrustRoot
	chain.Credentials = auth.NewCredentials(auth.Munge{Socket: c.Listen.MungeSocket}, users, remote, s)
	chain.Bearers = auth.NewBearers(users, func(ctx context.Context, id int64) (auth.Token, bool, error) {
		t, err := s.Token(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			return auth.Token{}, false, nil
		}
		if err != nil {
			return auth.Token{}, false, err
		}
		scopes := make([]auth.Scope, len(t.Scopes))
		for i, sc := range t.Scopes {
			scopes[i] = auth.Scope(sc)
		}
		return auth.Token{
			ID: t.ID, User: t.UserName, UID: t.UID, Hash: t.SecretHash, Scopes: scopes, Account: t.Account, Expires: t.ExpiresAt, Revoked: t.RevokedAt != nil,
		}, true, nil
	})
	return chain
}

// accounts asks each site's own Slurm who may do what.
func accounts(sites []*site.Site) map[string]web.Accounts {
	out := map[string]web.Accounts{}
	for _, st := range sites {
		out[st.Name] = slurm.New(slurm.Config{BinDir: st.Slurm.Bin, Conf: st.Slurm.Conf, Timeout: st.Slurm.Timeout})
	}
	return out
}

// open listens; the listener is nil where no address is given.
func (l Listen) open(ctx context.Context) (net.Listener, *tls.Config, error) {
	if l.Address == "" {
		return nil, nil, nil
	}
	var secure *tls.Config
	if l.TLSCert != "" {
		cert, err := tls.LoadX509KeyPair(l.TLSCert, l.TLSKey)
		if err != nil {
			return nil, nil, fmt.Errorf("read the certificate: %w", err)
		}
		secure = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", l.Address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	return ln, secure, nil
}
