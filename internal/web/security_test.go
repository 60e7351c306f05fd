package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/mungetest"
	"sbench/internal/pgtest"
	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/store"
	"sbench/internal/web"
)

// bodies are requests that each changing endpoint would carry out for somebody
// with the right to it.
func bodies() map[string]any {
	one := 1.0
	return map[string]any{
		"POST /v1/sweeps":             request("sec"),
		"POST /v1/actions":            api.ActionRequest{Action: api.ActionCancel, Kind: api.KindSweep, IDs: []string{"1"}},
		"POST /v1/sites/{name}/mode":  api.SiteRequest{Mode: store.SitePaused},
		"POST /v1/dead/release":       api.ReleaseRequest{Runs: []int64{1}},
		"POST /v1/rates":              api.RateRequest{MicrosPerGPUHour: 1},
		"POST /v1/quotas":             api.QuotaRequest{Period: "month", GPUHours: &one},
		"POST /v1/tokens":             api.TokenRequest{Name: "ci", Scopes: []string{"read"}, LifetimeS: 3600},
		"POST /v1/tokens/{id}/revoke": struct{}{},
		"POST /v1/references":         api.ReferenceRequest{Site: "lab"},
		"POST /v1/nights/synthetic":   api.SyntheticNights{SweepID: 1, Label: "x"},
	}
}

func path(pattern string) (method, uri string) {
	method, uri, _ = strings.Cut(pattern, " ")
	return method, strings.NewReplacer("{id}", "1", "{name}", "lab", "{act}", "pause", "{digest}", "sha256:"+strings.Repeat("0", 64), "{hash}", strings.Repeat("0", 12)).Replace(uri)
}

// remote is the handlers over TCP with real MUNGE and tokens.
type remote struct {
	*env
	munge auth.Munge
}

func newRemote(t *testing.T) *remote {
	t.Helper()
	e := &env{t: t, store: pgtest.New(t), site: testSite(t)}
	m := mungetest.Start(t, mungetest.Key(t))
	users := auth.NewUsers()
	chain := &auth.Chain{
		Peers: auth.NewPeers(users, auth.Roles{}), Credentials: auth.NewCredentials(m, users, auth.Roles{Self: -1}, e.store),
		Bearers: auth.NewBearers(users, func(ctx context.Context, id int64) (auth.Token, bool, error) {
			k, err := e.store.Token(ctx, id)
			if errors.Is(err, store.ErrNotFound) {
				return auth.Token{}, false, nil
			}
			var scopes []auth.Scope
			for _, s := range k.Scopes {
				scopes = append(scopes, auth.Scope(s))
			}
			return auth.Token{ID: k.ID, User: k.UserName, UID: k.UID, Hash: k.SecretHash, Scopes: scopes, Account: k.Account, Expires: k.ExpiresAt, Revoked: k.RevokedAt != nil}, true, err
		}),
	}
	handler, err := web.New(web.Config{
		Store: e.store, Auth: chain, Sites: []*site.Site{e.site}, Log: slog.New(slog.DiscardHandler), Now: time.Now, Version: "test", UID: os.Getuid(),
		Leader: func() bool { return true }, Poll: time.Millisecond, Pace: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	e.url = srv.URL
	return &remote{e, m}
}

// send sends a request with an Authorization header, "" for none.
func (r *remote) send(header, method, uri string, body []byte) (int, api.Problem) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+uri, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if header != "" {
		req.Header.Set("Authorization", header)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	var p api.Problem
	if resp.StatusCode >= 400 {
		if err := json.Unmarshal(text, &p); err != nil {
			r.t.Fatalf("%s %s: %d %s", method, uri, resp.StatusCode, text)
		}
	}
	return resp.StatusCode, p
}

func (r *remote) sign(method, uri string, body []byte) string {
	r.t.Helper()
	h, err := r.munge.Authorization(r.t.Context(), method, uri, body)
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

// token stores a token of a user who exists.
func (r *remote) token(scopes ...string) string {
	r.t.Helper()
	secret, hash := auth.NewSecret()
	k := store.Token{Name: "ci", SecretHash: hash, UserName: "daemon", UID: 1, Scopes: scopes, CreatedBy: "root", ExpiresAt: time.Now().Add(time.Hour)}
	if err := r.store.CreateToken(r.t.Context(), &k); err != nil {
		r.t.Fatal(err)
	}
	return auth.BearerAuthorization(auth.TokenText(k.ID, secret))
}

// Over TCP every endpoint refuses whoever shows nothing, something forged, a
// credential that was made for another endpoint or another body, or one that was
// used.
func TestEveryEndpoint_RefusesBadCredentials(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	foreign := mungetest.Start(t, mungetest.Key(t))
	for _, pattern := range web.Patterns() {
		method, uri := path(pattern)
		var body []byte
		if b, ok := bodies()[pattern]; ok {
			body, _ = json.Marshal(b)
		} else if method != http.MethodGet {
			body = []byte("{}")
		}
		other, err := foreign.Authorization(t.Context(), method, uri, body)
		if err != nil {
			t.Fatal(err)
		}
		used := r.sign(method, uri, body)
		r.send(used, method, uri, body)
		for name, header := range map[string]string{
			"none": "", "forged": "Munge MUNGE:AwQFAAC0000=:", "a forged token": "Bearer sbt-1-" + strings.Repeat("a", 52), "another realm's": other,
			"for another path": r.sign(method, uri+"/x", body), "for another body": r.sign(method, uri, append(bytes.Clone(body), ' ')), "used": used,
		} {
			if status, p := r.send(header, method, uri, body); status != http.StatusForbidden || p.Code != api.CodeRefused {
				t.Errorf("%s, credential %s: got %d %+v", pattern, name, status, p)
			}
		}
	}
	// What was refused is in the audit log, without a user.
	rows, err := r.store.AuditRows(t.Context(), store.AuditFilter{Asked: true, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	nobody := 0
	for _, row := range rows {
		if row.UserName == "" {
			nobody++
		}
	}
	if nobody == 0 {
		t.Error("no refused credential in the audit log")
	}
}

// A token is good for its scopes and nothing else.
func TestEveryEndpoint_HoldsTokensToTheirScopes(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	r.sweep(1)
	need := map[string]string{
		"POST /v1/sweeps": "submit", "POST /v1/actions": "act", "POST /v1/dead/release": "act", "POST /v1/sweeps/{id}/throttle": "act",
		"POST /v1/compare": "read", "POST /v1/check": "read", "POST /v1/check/confirm": "submit",
	}
	tokens := map[string]string{"read": r.token("read"), "submit": r.token("submit"), "act": r.token("act")}
	all := r.token("read", "submit", "act")
	for _, pattern := range web.Patterns() {
		method, uri := path(pattern)
		body, _ := json.Marshal(bodies()[pattern])
		good := need[pattern]
		if method == http.MethodGet {
			good = "read"
		}
		for scope, header := range tokens {
			status, p := r.send(header, method, uri, body)
			lacks := status == http.StatusForbidden && strings.Contains(p.Message, "not good for this")
			if good != "" && lacks == (scope == good) {
				t.Errorf("%s with scope %s: got %d %s", pattern, scope, status, p.Message)
			}
		}
		if good == "" {
			if status, p := r.send(all, method, uri, body); status != http.StatusForbidden || !strings.Contains(p.Message, "no token is good for this") {
				t.Errorf("%s with every scope: got %d %s", pattern, status, p.Message)
			}
		}
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("a"))
	e.problem(api.CodeRefused, "bob", http.MethodPost, "/v1/actions", api.ActionRequest{Action: api.ActionCancel, Kind: api.KindSweep, IDs: []string{"1"}})
	rows := get[[]api.AuditRow](e, "root", "/v1/audit?asked=1")
	var text []string
	for _, r := range rows {
		text = append(text, fmt.Sprint(r.User, " ", r.Action, " ", r.Outcome, " ", r.Request != nil))
	}
	want := "bob POST /v1/actions refused true\nbob POST /v1/actions asked false\nada POST /v1/sweeps done true\nada POST /v1/sweeps asked false"
	if got := strings.Join(text, "\n"); got != want {
		t.Fatalf("got\n%s", got)
	}
	var detail struct {
		Sweep     int64
		Account   string
		Artefacts []string
	}
	if err := json.Unmarshal(rows[2].Detail, &detail); err != nil || detail.Sweep != 1 || detail.Account != "physics" || len(detail.Artefacts) != 2 {
		t.Errorf("got %s, %v", rows[2].Detail, err)
	}
	if mine := get[[]api.AuditRow](e, "bob", "/v1/audit"); len(mine) != 1 || mine[0].User != "bob" {
		t.Errorf("bob sees %+v", mine)
	}
	// An operator's look into a user's log leaves a trace.
	e.problem(api.CodeNotFound, "root", http.MethodGet, "/v1/runs/1/log?kind=engine", nil)
	if rows := get[[]api.AuditRow](e, "root", "/v1/audit?asked=1&text=log"); len(rows) != 1 || !strings.Contains(string(rows[0].Detail), "ada") {
		t.Errorf("got %+v", rows)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := post[api.NewToken](e, "ada", "/v1/tokens", api.TokenRequest{Name: "ci", Scopes: []string{"read", "submit"}, Account: "physics", LifetimeS: 3600})
	if !strings.HasPrefix(k.Text, fmt.Sprintf("sbt-%d-", k.ID)) || k.User != "ada" || k.ExpiresAt.Before(time.Now()) {
		t.Errorf("got %+v", k)
	}
	stored, err := e.store.Token(t.Context(), k.ID)
	if err != nil || strings.Contains(k.Text, string(stored.SecretHash)) || len(stored.SecretHash) != 32 {
		t.Errorf("got %+v, %v", stored, err)
	}
	for _, bad := range []api.TokenRequest{
		{Name: "", Scopes: []string{"read"}, LifetimeS: 3600},
		{Name: "a", LifetimeS: 3600},
		{Name: "a", Scopes: []string{"admin"}, LifetimeS: 3600},
		{Name: "a", Scopes: []string{"read", "read"}, LifetimeS: 3600},
		{Name: "a", Scopes: []string{"read"}},
		{Name: "a", Scopes: []string{"read"}, LifetimeS: 1 << 40},
	} {
		e.problem(api.CodeInvalid, "ada", http.MethodPost, "/v1/tokens", bad)
	}
	e.problem(api.CodeRefused, "ada", http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "a", User: "bob", Scopes: []string{"read"}, LifetimeS: 3600})
	e.problem(api.CodeRefused, "root", http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "a", Scopes: []string{"read"}, LifetimeS: 3600})
	if got := post[api.Token](e, "ada", "/v1/tokens/1/revoke", struct{}{}); got.RevokedAt == nil || got.RevokedBy != "ada" {
		t.Errorf("got %+v", got)
	}
	first := get[[]api.Token](e, "ada", "/v1/tokens")[0].RevokedAt
	if got := post[api.Token](e, "root", "/v1/tokens/1/revoke", struct{}{}); !got.RevokedAt.Equal(*first) || got.RevokedBy != "ada" {
		t.Errorf("revoked twice: %+v", got)
	}
}

// database is a Slurm that knows these users.
type database map[string]slurm.User

func (d database) User(_ context.Context, _, name string) (slurm.User, error) {
	if name == "silent" {
		return slurm.User{}, slurm.ErrUnreachable
	}
	u, ok := d[name]
	if !ok {
		return slurm.User{}, slurm.ErrNoUser
	}
	return u, nil
}

// Nodes: three of l4, of which one is drained, and one without GPUs.
func (database) Nodes(context.Context) ([]slurm.Node, error) {
	l4 := map[string]int{"gpu:l4": 4}
	return []slurm.Node{
		{Name: "n2", State: "IDLE", Partitions: []string{"l4"}, GRES: l4},
		{Name: "n1", State: "MIXED", Partitions: []string{"l4"}, GRES: l4},
		{Name: "n3", State: "IDLE+DRAIN", Partitions: []string{"l4"}, GRES: l4},
		{Name: "c1", State: "IDLE", Partitions: []string{"cpu"}},
	}, nil
}

// Wall: QOS short allows 10 minutes.
func (database) Wall(_ context.Context, user, _, _, qos string) (slurm.Wall, error) {
	switch {
	case user != "sbench":
		return slurm.Wall{}, slurm.ErrUnreachable
	case qos == "short":
		return slurm.Wall{Max: 10 * time.Minute, Source: "QOS short"}, nil
	}
	return slurm.Wall{}, nil
}

// associated is newEnv at a site whose Slurm knows ada of physics, and carol who
// coordinates it.
func associated(t *testing.T, d database) *env {
	t.Helper()
	e := &env{t: t, store: pgtest.New(t), site: testSite(t)}
	e.site.Roles.FromSlurm = true
	handler, err := web.New(web.Config{
		Store: e.store, Auth: headerAuth{}, Sites: []*site.Site{e.site}, Log: slog.New(slog.DiscardHandler), Now: time.Now, Version: "test", UID: 1000, RunsAs: "sbench",
		Leader: func() bool { return true }, Poll: time.Millisecond, Accounts: map[string]web.Accounts{"lab": d},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	e.url, e.server = srv.URL, handler
	e.artefacts()
	return e
}

func TestSubmit_AsksSlurm(t *testing.T) {
	t.Parallel()
	e := associated(t, database{
		"ada": {Name: "ada", DefaultAccount: "physics", Associations: []slurm.Association{{Account: "physics", QOS: []string{"normal"}}, {Account: "night", Partition: "cpu"}}},
	})
	with := func(key string, o api.Options) api.SubmitRequest { r := request(key); r.Options = o; return r }
	for name, req := range map[string]api.SubmitRequest{
		"another account": with("b", api.Options{Account: "chemistry"}),
		"another qos":     with("c", api.Options{QOS: "high"}),
		"not there":       with("d", api.Options{Account: "night"}),
	} {
		if p := e.problem(api.CodeRefused, "ada", http.MethodPost, "/v1/sweeps", req); !strings.Contains(p.Message, "Slurm at site lab") {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if p := e.problem(api.CodeRefused, "ada", http.MethodPost, "/v1/sweeps", with("f", api.Options{QOS: "short"})); !strings.Contains(fmt.Sprint(p), "QOS short allows at most 10m0s") {
		t.Errorf("too long for its QOS: %+v", p)
	}
	stranger := associated(t, database{})
	if p := stranger.problem(api.CodeRefused, "ada", http.MethodPost, "/v1/sweeps", request("e")); !strings.Contains(p.Message, "no account for ada") {
		t.Errorf("got %+v", p)
	}
	if got := post[api.SubmitResponse](e, "ada", "/v1/sweeps", with("a", api.Options{QOS: "normal"})); got.SweepID == 0 {
		t.Errorf("got %+v", got)
	}
}

// A coordinator of the account may act on its sweeps; a user of it may not.
func TestActions_Coordinators(t *testing.T) {
	t.Parallel()
	e := associated(t, database{
		"ada": {Name: "ada", DefaultAccount: "physics", Associations: []slurm.Association{{Account: "physics"}}},
		"bob": {Name: "bob", DefaultAccount: "physics", Associations: []slurm.Association{{Account: "physics"}}},
		"carol": {
			Name: "carol", DefaultAccount: "physics", Associations: []slurm.Association{{Account: "physics"}}, Coordinates: []string{"physics"},
		},
	})
	post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("a"))
	cancel := api.ActionRequest{Action: api.ActionCancel, Kind: api.KindSweep, IDs: []string{"1"}}
	e.problem(api.CodeRefused, "bob", http.MethodPost, "/v1/actions", cancel)
	if got := post[api.ActionResponse](e, "carol", "/v1/actions", cancel); got.Runs == 0 {
		t.Errorf("got %+v", got)
	}
	e.problem(api.CodeRefused, "carol", http.MethodPost, "/v1/sites/lab/mode", api.SiteRequest{Mode: store.SitePaused})
}

func TestQuotas(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	plan := post[api.SubmitResponse](e, "ada", "/v1/sweeps", api.SubmitRequest{TestOnly: true, FileName: "d", File: sweepText}).Plan
	room := plan.GPUHours * 1.5
	post[api.Quota](e, "root", "/v1/quotas", api.QuotaRequest{Account: "physics", Period: "month", GPUHours: &room})
	first := post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("a"))
	p := e.problem(api.CodeRefused, "ada", http.MethodPost, "/v1/sweeps", request("b"))
	if want := fmt.Sprintf("%.1f too many", plan.GPUHours/2); !strings.Contains(p.Message, want) || !strings.Contains(p.Message, "account physics") {
		t.Errorf("got %s, want %s", p.Message, want)
	}
	// A lost answer is asked for again; the first sweep is no second one.
	if again := post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("a")); again.SweepID != first.SweepID || !again.Repeated {
		t.Errorf("got %+v", again)
	}
	list := get[[]api.Quota](e, "ada", "/v1/quotas")
	if len(list) != 1 || list[0].ReservedGPUHours == nil || *list[0].ReservedGPUHours < plan.GPUHours*0.999 || *list[0].UsedGPUHours != 0 {
		t.Errorf("got %+v", list)
	}
	// What is cancelled reserves nothing, and may not come back beside another.
	post[api.ActionResponse](e, "ada", "/v1/actions", api.ActionRequest{Action: api.ActionCancel, Kind: api.KindSweep, IDs: []string{fmt.Sprint(first.SweepID)}})
	post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("c"))
	e.problem(api.CodeRefused, "ada", http.MethodPost, "/v1/actions", api.ActionRequest{Action: api.ActionRequeue, Kind: api.KindSweep, IDs: []string{fmt.Sprint(first.SweepID)}})
	post[api.Quota](e, "root", "/v1/quotas", api.QuotaRequest{Account: "physics", Period: "month"})
	if list := get[[]api.Quota](e, "ada", "/v1/quotas"); len(list) != 0 {
		t.Errorf("got %+v", list)
	}
	one := 1.0
	for _, bad := range []api.QuotaRequest{{Period: "decade", GPUHours: &one}, {Period: "day", Account: "a b", GPUHours: &one}, {Period: "day", Site: "moon", GPUHours: &one}} {
		e.problem(api.CodeInvalid, "root", http.MethodPost, "/v1/quotas", bad)
	}
}

func TestRatesAndMaxCost(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	most := 1.0
	limited := request("a")
	limited.Options.MaxCost = &most
	e.problem(api.CodeRefused, "ada", http.MethodPost, "/v1/sweeps", limited) // no rate: nobody knows
	rate := post[api.Rate](e, "root", "/v1/rates", api.RateRequest{Site: "lab", Hardware: "h100-sxm", MicrosPerGPUHour: 2_490_000})
	if rate.USDPerGPUHour != 2.49 || !rate.Current {
		t.Errorf("got %+v", rate)
	}
	resp := post[api.SubmitResponse](e, "ada", "/v1/sweeps", api.SubmitRequest{TestOnly: true, FileName: "d", File: sweepText})
	if resp.Plan.Cost == nil || *resp.Plan.Cost < resp.Plan.GPUHours*2.48 || *resp.Plan.Cost > resp.Plan.GPUHours*2.50 || resp.Plan.Currency != "USD" {
		t.Errorf("got %v of %v GPU-hours", resp.Plan.Cost, resp.Plan.GPUHours)
	}
	if p := e.problem(api.CodeRefused, "ada", http.MethodPost, "/v1/sweeps", limited); !strings.Contains(p.Message, "above --max-cost 1") {
		t.Errorf("got %s", p.Message)
	}
	e.problem(api.CodeInvalid, "root", http.MethodPost, "/v1/rates", api.RateRequest{Hardware: "h1000", MicrosPerGPUHour: 1})
	e.problem(api.CodeInvalid, "root", http.MethodPost, "/v1/rates", api.RateRequest{MicrosPerGPUHour: -1})
	report := get[api.CostReport](e, "ada", "/v1/cost?start=2026-01-01T00:00:00Z&end=2030-01-01T00:00:00Z&by=account,user")
	if report.User != "ada" || len(report.Rows) != 0 || !report.Complete || report.Currency != "USD" {
		t.Errorf("got %+v", report)
	}
	for _, q := range []string{"", "?by=gpu&start=2026-01-01T00:00:00Z&end=2027-01-01T00:00:00Z", "?by=user&start=2027-01-01T00:00:00Z&end=2026-01-01T00:00:00Z", "?by=user&start=yesterday&end=2026-01-01T00:00:00Z"} {
		e.problem(api.CodeInvalid, "ada", http.MethodGet, "/v1/cost"+q, nil)
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	e := &env{t: t, store: pgtest.New(t), site: testSite(t)}
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	var mu sync.Mutex
	handler, err := web.New(web.Config{
		Store: e.store, Auth: headerAuth{}, Sites: []*site.Site{e.site}, Log: slog.New(slog.DiscardHandler), Version: "test", Pace: 2,
		Now:    func() time.Time { mu.Lock(); defer mu.Unlock(); return now },
		Leader: func() bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	e.url = srv.URL
	for range 8 { // the burst
		get[api.Version](e, "ada", "/v1/version")
	}
	if status, body := e.do("ada", http.MethodGet, "/v1/version", nil); status != http.StatusTooManyRequests {
		t.Errorf("got %d %s", status, body)
	}
	get[api.Version](e, "bob", "/v1/version") // it is ada's limit
	mu.Lock()
	now = now.Add(time.Second)
	mu.Unlock()
	get[api.Version](e, "ada", "/v1/version")
	get[api.Version](e, "ada", "/v1/version")
	e.problem(api.CodeLimited, "ada", http.MethodGet, "/v1/version", nil)
}
