package auth_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"strings"
	"sync"
	"testing"
	"time"

	"sbench/internal/auth"
	"sbench/internal/mungetest"
)

// memory remembers credentials as the database does.
type memory struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (m *memory) Once(_ context.Context, digest string, _ time.Time) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen == nil {
		m.seen = map[string]bool{}
	}
	first := !m.seen[digest]
	m.seen[digest] = true
	return first, nil
}

func signed(t *testing.T, m auth.Munge, method, uri, body string) string {
	t.Helper()
	header, err := m.Authorization(t.Context(), method, uri, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return header
}

func request(header, method, uri, body string) *http.Request {
	r := httptest.NewRequest(method, uri, strings.NewReader(body))
	r.Header.Set("Authorization", header)
	return r
}

// A credential is good for its own request, once, in its realm; real munged.
func TestCredentials(t *testing.T) {
	t.Parallel()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	key := mungetest.Key(t)
	here, elsewhere, foreign := mungetest.Start(t, key), mungetest.Start(t, key), mungetest.Start(t, mungetest.Key(t))
	replays := &memory{}
	users := auth.NewUsers()
	c := auth.NewCredentials(here, users, auth.Roles{Self: -1}, replays)
	other := auth.NewCredentials(elsewhere, users, auth.Roles{Self: -1}, replays) // a second daemon on another host

	const uri, body = "/v1/sweeps?x=1", `{"file":"a"}`
	header := signed(t, here, http.MethodPost, uri, body)
	r := request(header, http.MethodPost, uri, body)
	id, err := c.Identify(r)
	if err != nil || id.UID != os.Getuid() || id.User != me.Username || id.Via != auth.ViaMunge {
		t.Fatalf("got %+v, %v", id, err)
	}
	if rest, err := io.ReadAll(r.Body); err != nil || string(rest) != body {
		t.Errorf("the body is gone: %q, %v", rest, err)
	}
	if _, err := c.Identify(request(header, http.MethodPost, uri, body)); !errors.Is(err, auth.ErrRefused) {
		t.Errorf("replayed: %v", err)
	}
	if _, err := other.Identify(request(header, http.MethodPost, uri, body)); !errors.Is(err, auth.ErrRefused) {
		t.Errorf("replayed to another daemon: %v", err)
	}
	fresh := func() string { return signed(t, here, http.MethodPost, uri, body) }
	for name, r := range map[string]*http.Request{
		"body swapped":       request(fresh(), http.MethodPost, uri, `{"file":"b"}`),
		"body dropped":       request(fresh(), http.MethodPost, uri, ""),
		"path swapped":       request(fresh(), http.MethodPost, "/v1/actions?x=1", body),
		"query swapped":      request(fresh(), http.MethodPost, "/v1/sweeps?x=2", body),
		"method swapped":     request(fresh(), http.MethodPut, uri, body),
		"another realm":      request(signed(t, foreign, http.MethodPost, uri, body), http.MethodPost, uri, body),
		"forged":             request("Munge MUNGE:AwQFAAC0000=:", http.MethodPost, uri, body),
		"cut":                request(strings.TrimSuffix(fresh(), "AA:"), http.MethodPost, uri, body+" "),
		"no credential":      request("Munge ", http.MethodPost, uri, body),
		"another scheme":     request("Basic cm9vdDpyb290", http.MethodPost, uri, body),
		"options in it":      request("Munge --socket=/dev/null", http.MethodPost, uri, body),
		"two in one":         request(fresh()+"\n"+fresh(), http.MethodPost, uri, body),
		"longer than it can": request("Munge MUNGE:"+strings.Repeat("A", 1<<16)+":", http.MethodPost, uri, body),
	} {
		if id, err := c.Identify(r); !errors.Is(err, auth.ErrRefused) {
			t.Errorf("%s: got %+v, %v", name, id, err)
		}
	}
	// A credential of the other host of the realm is as good.
	if _, err := c.Identify(request(signed(t, elsewhere, http.MethodGet, "/v1/version", ""), http.MethodGet, "/v1/version", "")); err != nil {
		t.Errorf("from another host: %v", err)
	}
}

// A munged that does not answer is no refusal: the caller may try again.
func TestCredentials_Silent(t *testing.T) {
	t.Parallel()
	m := mungetest.Start(t, mungetest.Key(t))
	header := signed(t, m, http.MethodGet, "/v1/version", "")
	c := auth.NewCredentials(auth.Munge{Socket: t.TempDir() + "/none"}, auth.NewUsers(), auth.Roles{}, &memory{})
	if _, err := c.Identify(request(header, http.MethodGet, "/v1/version", "")); err == nil || errors.Is(err, auth.ErrRefused) {
		t.Errorf("got %v", err)
	}
}

func TestBearers(t *testing.T) {
	t.Parallel()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	secret, hash := auth.NewSecret()
	good := auth.Token{ID: 7, User: me.Username, UID: os.Getuid(), Hash: hash, Scopes: []auth.Scope{auth.ScopeRead}, Account: "ml", Expires: time.Now().Add(time.Hour)}
	identify := func(stored auth.Token, text, from string) (auth.Identity, error) {
		b := auth.NewBearers(auth.NewUsers(), func(_ context.Context, id int64) (auth.Token, bool, error) {
			return stored, id == stored.ID, nil
		})
		r := request(auth.BearerAuthorization(text), http.MethodGet, "/v1/version", "")
		r.RemoteAddr = from
		return b.Identify(r)
	}
	const loopback = "127.0.0.1:1"
	id, err := identify(good, auth.TokenText(7, secret), loopback)
	if err != nil || id.User != me.Username || id.Operator || id.Admin || !id.Allows(auth.ScopeRead) || id.Allows(auth.ScopeSubmit) || id.Allows("") || id.Account != "ml" {
		t.Errorf("got %+v, %v", id, err)
	}
	changed := func(change func(*auth.Token)) auth.Token { c := good; change(&c); return c }
	other, _ := auth.NewSecret()
	for name, tc := range map[string]struct {
		stored     auth.Token
		text, from string
	}{
		"over a line that others read": {good, auth.TokenText(7, secret), "10.0.0.9:1"},
		"another secret":               {good, auth.TokenText(7, other), loopback},
		"another number":               {good, auth.TokenText(8, secret), loopback},
		"the hash for the secret":      {good, auth.TokenText(7, strings.Repeat("a", len(secret))), loopback},
		"no token":                     {good, "sbt-7", loopback},
		"empty":                        {good, "", loopback},
		"expired":                      {changed(func(t *auth.Token) { t.Expires = time.Now().Add(-time.Second) }), auth.TokenText(7, secret), loopback},
		"revoked":                      {changed(func(t *auth.Token) { t.Revoked = true }), auth.TokenText(7, secret), loopback},
		"the uid is another's now":     {changed(func(t *auth.Token) { t.User = "gone" }), auth.TokenText(7, secret), loopback},
	} {
		if id, err := identify(tc.stored, tc.text, tc.from); !errors.Is(err, auth.ErrRefused) {
			t.Errorf("%s: got %+v, %v", name, id, err)
		}
	}
}

func TestChain_TakesOneWay(t *testing.T) {
	t.Parallel()
	c := &auth.Chain{Peers: auth.NewPeers(auth.NewUsers(), auth.Roles{})}
	none := httptest.NewRequest(http.MethodGet, "/", nil)
	both := request("Munge a", http.MethodGet, "/", "")
	both.Header.Add("Authorization", "Bearer b")
	for name, r := range map[string]*http.Request{
		"none": none, "two": both, "munge is not offered": request("Munge a", http.MethodGet, "/", ""), "tokens are not": request("Bearer a", http.MethodGet, "/", ""),
	} {
		if _, err := c.Identify(r); !errors.Is(err, auth.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
