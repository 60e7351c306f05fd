package auth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// serve answers over a Unix socket with who is calling.
func serve(t *testing.T, peers *Peers, connContext func(context.Context, net.Conn) context.Context) *http.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := peers.Identify(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, "%d %s %v", id.UID, id.User, id.Operator)
	}))
	srv.Listener.Close()
	srv.Listener = l
	srv.Config.ConnContext = connContext
	srv.Start()
	t.Cleanup(srv.Close)
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
}

func get(t *testing.T, c *http.Client) (int, string) {
	t.Helper()
	resp, err := c.Get("http://sbench/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b [512]byte
	n, _ := resp.Body.Read(b[:])
	return resp.StatusCode, string(b[:n])
}

func fakeUsers(lookup func(int) (string, error)) *Users {
	u := NewUsers()
	u.lookup = func(_ context.Context, uid int) (string, error) { return lookup(uid) }
	return u
}

func TestPeers_IdentifyOverUnixSocket(t *testing.T) {
	t.Parallel()
	uid := os.Getuid()
	users := fakeUsers(func(int) (string, error) { return "ada", nil })
	for name, tc := range map[string]struct {
		self      int
		operators []string
		operator  bool
	}{
		"self":     {self: uid, operator: true},
		"operator": {self: -1, operators: []string{"ada"}, operator: true},
		"other":    {self: -1, operators: []string{"bob"}, operator: uid == 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, NewPeers(users, Roles{Self: tc.self, Operators: tc.operators}), ConnContext)
			status, body := get(t, c)
			if want := fmt.Sprintf("%d ada %v", uid, tc.operator); status != 200 || body != want {
				t.Errorf("got %d %q, want %q", status, body, want)
			}
		})
	}
}

func TestPeers_RefuseWithoutCredentials(t *testing.T) {
	t.Parallel()
	users := fakeUsers(func(int) (string, error) { return "ada", nil })
	c := serve(t, NewPeers(users, Roles{}), nil)
	if status, body := get(t, c); status != http.StatusForbidden {
		t.Errorf("without ConnContext: got %d %q", status, body)
	}
	tcp := httptest.NewRequest(http.MethodGet, "/", nil)
	if _, err := NewPeers(users, Roles{}).Identify(tcp); !errors.Is(err, ErrNoPeer) {
		t.Errorf("bare request: got %v", err)
	}
}

func TestPeerUID_RefusesTCP(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, err := PeerUID(a); !errors.Is(err, ErrNoPeer) {
		t.Errorf("got %v, want ErrNoPeer", err)
	}
}

func TestPeers_RefuseNameless(t *testing.T) {
	t.Parallel()
	c := serve(t, NewPeers(fakeUsers(func(int) (string, error) { return "", ErrUnknownUser }), Roles{}), ConnContext)
	if status, _ := get(t, c); status != http.StatusForbidden {
		t.Errorf("nameless uid: got %d", status)
	}
}

func TestUsers_CacheExpires(t *testing.T) {
	t.Parallel()
	calls := 0
	u := fakeUsers(func(int) (string, error) { calls++; return fmt.Sprint("u", calls), nil })
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	u.now = func() time.Time { return now }
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{0, "u1"}, {nameLifetime - time.Second, "u1"}, {2 * time.Second, "u2"}} {
		now = now.Add(step.after)
		if got, err := u.Name(t.Context(), 7); err != nil || got != step.want {
			t.Errorf("after %v: got %q, %v; want %q", step.after, got, err, step.want)
		}
	}
}

// An outage of the name service locks nobody out who was known, for a while; a
// user who was removed is out at once.
func TestUsers_Outage(t *testing.T) {
	t.Parallel()
	var failure error
	u := fakeUsers(func(int) (string, error) { return "ada", failure })
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	u.now = func() time.Time { return now }
	ask := func(after time.Duration, err error) (string, error) {
		now, failure = now.Add(after), err
		return u.Name(t.Context(), 7)
	}
	if got, err := ask(0, nil); got != "ada" || err != nil {
		t.Fatal(got, err)
	}
	if got, err := ask(2*nameLifetime, context.DeadlineExceeded); got != "ada" || err != nil {
		t.Errorf("in an outage: %q, %v", got, err)
	}
	if _, err := ask(0, ErrUnknownUser); !errors.Is(err, ErrUnknownUser) {
		t.Errorf("removed: %v", err)
	}
	if _, err := ask(staleLifetime, context.DeadlineExceeded); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("in a long outage: %v", err)
	}
}

func TestUsers_RealNameService(t *testing.T) {
	t.Parallel()
	u := NewUsers()
	if got, err := u.Name(t.Context(), 0); err != nil || got != "root" {
		t.Errorf("uid 0: got %q, %v", got, err)
	}
	if _, err := u.Name(t.Context(), 1_987_654_321); !errors.Is(err, ErrUnknownUser) {
		t.Errorf("unknown uid: got %v", err)
	}
}

func TestPasswdName(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"ada:x:12:12::/home/ada:/bin/sh\n": "ada",
		"ada:x:13:12::/home/ada:/bin/sh\n": "",
		"":                                 "",
		":x:12:12":                         "",
	} {
		got, err := passwdName(line, 12)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", line, got, err)
		}
	}
}

func TestIdentity_MayAct(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		id    Identity
		owner string
		want  bool
	}{
		{Identity{User: "ada"}, "ada", true},
		{Identity{User: "ada"}, "bob", false},
		{Identity{User: "ada", Operator: true}, "bob", true},
		{Identity{}, "", false},
	} {
		if got := tc.id.MayAct(tc.owner); got != tc.want {
			t.Errorf("%+v on %q: got %v", tc.id, tc.owner, got)
		}
	}
}

func TestRoles_Root(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		uid   int
		roles Roles
		admin bool
	}{
		{0, Roles{Self: 7}, true},
		{0, Roles{Self: 7, PlainRoot: true}, false},
		{0, Roles{Self: 0, PlainRoot: true}, true}, // the daemon's own user
		{7, Roles{Self: 7, PlainRoot: true}, true},
		{8, Roles{Self: 7, Admins: []string{"ada"}, PlainRoot: true}, true},
		{8, Roles{Self: 7}, false},
	} {
		if id := tc.roles.identity(tc.uid, "ada", ViaMunge); id.Admin != tc.admin || id.Operator != tc.admin {
			t.Errorf("uid %d with %+v: %+v", tc.uid, tc.roles, id)
		}
	}
}
