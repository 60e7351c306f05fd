package web_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"sbench/internal/api"
	"sbench/internal/store"
	"sbench/internal/web"
)

// stance is what an endpoint does for somebody when it is about another's work.
type stance string

const (
	// shared is for everybody, as squeue is.
	shared stance = "shared"
	// own answers about, or makes, the caller's own things only.
	own stance = "own"
	// refused says no; absent does not even say that there is something.
	refused stance = "refused"
	absent  stance = "absent"
)

// crossing is a request of bob's about ada's things.
type crossing struct {
	stance stance
	query  string
	body   any
}

// crossings has every endpoint of the router: a new one that is not judged here
// fails the test.
func crossings() map[string]crossing {
	b := bodies()
	return map[string]crossing{
		"POST /v1/compare":              {shared, "", api.CompareRequest{}},
		"GET /v1/baselines":             {shared, "", nil},
		"POST /v1/baselines":            {refused, "", api.BaselineRequest{Name: "lab", SweepID: 1}},
		"DELETE /v1/baselines/{name}":   {refused, "", nil},
		"POST /v1/check":                {shared, "", api.CheckRequest{Baseline: "lab", SweepID: 1, Threshold: 0.05}},
		"POST /v1/check/confirm":        {refused, "", api.ConfirmRequest{CheckRequest: api.CheckRequest{Baseline: "lab", SweepID: 1, Threshold: 0.05}, Budget: 10}},
		"GET /v1/nights":                {shared, "", nil},
		"GET /v1/alarms":                {shared, "", nil},
		"POST /v1/nights/synthetic":     {refused, "", b["POST /v1/nights/synthetic"]},
		"GET /v1/references":            {shared, "", nil},
		"POST /v1/references":           {refused, "", b["POST /v1/references"]},
		"GET /v1/version":               {own, "", nil},
		"POST /v1/sweeps":               {refused, "", b["POST /v1/sweeps"]}, // the daemon's jobs are another's
		"GET /v1/sweeps":                {shared, "", nil},
		"GET /v1/sweeps/{id}":           {shared, "", nil},
		"GET /v1/sweeps/{id}/summary":   {shared, "", nil},
		"GET /v1/sweeps/{id}/runs":      {shared, "", nil},
		"GET /v1/sweeps/{id}/results":   {shared, "", nil},
		"GET /v1/settings/{hash}":       {shared, "", nil},
		"GET /v1/runs/{id}":             {shared, "", nil},
		"POST /v1/sweeps/{id}/throttle": {refused, "", api.ThrottleRequest{MaxInflight: 1}},
		"POST /v1/actions":              {refused, "", b["POST /v1/actions"]},
		"GET /v1/sites":                 {shared, "", nil},
		"POST /v1/sites/{name}/mode":    {refused, "", b["POST /v1/sites/{name}/mode"]},
		"GET /v1/cost":                  {own, "?start=2026-01-01T00:00:00Z&end=2030-01-01T00:00:00Z&by=user", nil},
		"GET /v1/rates":                 {shared, "", nil},
		"POST /v1/rates":                {refused, "", b["POST /v1/rates"]},
		"GET /v1/audit":                 {own, "", nil},
		"GET /v1/tokens":                {own, "", nil},
		"POST /v1/tokens":               {refused, "", api.TokenRequest{Name: "ci", User: "ada", Scopes: []string{"read"}, LifetimeS: 3600}},
		"POST /v1/tokens/{id}/revoke":   {absent, "", struct{}{}},
		"GET /v1/quotas":                {own, "", nil},
		"POST /v1/quotas":               {refused, "", b["POST /v1/quotas"]},
		"GET /v1/dead":                  {shared, "", nil},
		"POST /v1/artefacts":            {own, "", api.ArtefactRequest{Kind: api.ArtefactImage, Path: "/images/bob.sif", Digest: "sha256:" + strings.Repeat("1", 64), Bytes: 1, Files: 1}},
		"GET /v1/artefacts":             {shared, "", nil},
		"GET /v1/artefacts/{digest}":    {shared, "", nil},
		"POST /v1/sites/{name}/gc":      {refused, "", api.RemoveFilesRequest{}},

		"POST /v1/sites/{name}/check":          {refused, "", api.SiteCheckRequest{}},
		"POST /v1/artefacts/{digest}/accounts": {refused, "", api.RestrictRequest{Accounts: []string{"chemistry"}}},
		"POST /v1/dead/release":                {refused, "", b["POST /v1/dead/release"]},
		"GET /v1/crons":                        {own, "", nil},
		"POST /v1/crons":                       {refused, "", theirs()},
		"GET /v1/crons/{name}":                 {absent, "", nil},
		"GET /v1/crons/{name}/next":            {absent, "", nil},
		"POST /v1/crons/{name}/{act}":          {absent, "", nil},
		"GET /v1/runs/{id}/log":                {refused, "?kind=engine", nil},
		"GET /v1/runs/{id}/bundle":             {refused, "", nil},
	}
}

// theirs is a schedule of ada's.
func theirs() api.CronRequest {
	req := cronRequest("lab")
	req.User = "ada"
	return req
}

// adasThings is an installation in which ada has one of everything.
func adasThings(t *testing.T) *env {
	t.Helper()
	e := newEnv(t)
	e.artefacts()
	_, runs := e.sweep(1, 1)
	e.kill("no such node", runs[0])
	k := store.Token{Name: "ci", SecretHash: make([]byte, 32), UserName: "ada", UID: 1000, Scopes: []string{"read"}, CreatedBy: "ada", ExpiresAt: time.Now().Add(time.Hour)}
	if err := e.store.CreateToken(t.Context(), &k); err != nil {
		t.Fatal(err)
	}
	e.execute(`insert into baseline (name, sweep_id, user_name, created_at) values ('lab', 1, 'ada', now())`)
	post[api.CronResponse](e, "ada", "/v1/crons", cronRequest("lab"))
	post[api.Artefact](e, "ada", "/v1/artefacts", api.ArtefactRequest{Kind: api.ArtefactImage, Path: "/images/e.sif", Digest: "sha256:" + strings.Repeat("0", 64), Bytes: 1, Files: 1})
	return e
}

// Nobody changes, or reads the private parts of, what is another's: by no endpoint.
func TestEveryEndpoint_KeepsUsersApart(t *testing.T) {
	t.Parallel()
	e := adasThings(t)
	table := crossings()
	for _, pattern := range web.Patterns() {
		c, ok := table[pattern]
		if !ok {
			t.Errorf("%s: what may somebody do here with another's work? Say it in crossings", pattern)
			continue
		}
		delete(table, pattern)
		method, uri := path(pattern)
		status, body := e.do("bob", method, uri+c.query, c.body)
		got := status == http.StatusForbidden
		switch c.stance {
		case refused:
			if !got {
				t.Errorf("%s: status %d: %s", pattern, status, body)
			}
		case absent:
			if status != http.StatusNotFound {
				t.Errorf("%s: status %d: %s", pattern, status, body)
			}
		case own:
			if status != http.StatusOK || strings.Contains(string(body), `"ada"`) {
				t.Errorf("%s: status %d: %s", pattern, status, body)
			}
		case shared:
			if got || status >= http.StatusInternalServerError {
				t.Errorf("%s: status %d: %s", pattern, status, body)
			}
		}
	}
	for pattern := range table {
		t.Errorf("%s is no endpoint any more", pattern)
	}
	// What bob's name hides, ada's own does not give him.
	for _, uri := range []string{"/v1/runs/1/log?kind=runner", "/v1/audit?user=ada", "/v1/tokens?all=1", "/v1/quotas?user=ada", "/v1/crons?user=ada", "/v1/crons/lab?user=ada", "/v1/crons/lab/next?user=ada"} {
		e.problem(api.CodeRefused, "bob", http.MethodGet, uri, nil)
	}
	for _, act := range []string{"pause", "resume", "run", "rm", "update"} {
		e.problem(api.CodeRefused, "bob", http.MethodPost, "/v1/crons/lab/"+act+"?user=ada", nil)
	}
	for _, action := range []api.Action{api.ActionCancel, api.ActionHold, api.ActionRelease, api.ActionRequeue} {
		for _, target := range []api.ActionRequest{{Kind: api.KindSweep, IDs: []string{"1"}}, {Kind: api.KindRun, IDs: []string{"2"}}} {
			target.Action = action
			e.problem(api.CodeRefused, "bob", http.MethodPost, "/v1/actions", target)
		}
	}
	if got := post[api.ActionResponse](e, "bob", "/v1/actions", api.ActionRequest{Action: api.ActionCancel, All: true}); got.Runs != 0 {
		t.Errorf("bob cancelled %d runs of ada's", got.Runs)
	}
	// And nothing was done.
	if sw := get[api.Sweep](e, "ada", "/v1/sweeps/1"); sw.State == "cancelled" || sw.Runs["dead"] != 1 {
		t.Errorf("something was done: %+v", sw.SweepSummary)
	}
	if c := get[api.Cron](e, "ada", "/v1/crons/lab"); c.PausedAt != nil || len(c.Firings) != 0 {
		t.Errorf("something was done: %+v", c)
	}
	if list := get[[]api.Baseline](e, "ada", "/v1/baselines"); len(list) != 1 || list[0].User != "ada" {
		t.Errorf("something was done: %+v", list)
	}
	if a := get[api.Artefact](e, "ada", "/v1/artefacts/sha256:"+strings.Repeat("0", 64)); a.Accounts != nil {
		t.Errorf("something was done: %+v", a)
	}
	if list := get[[]api.Token](e, "ada", "/v1/tokens"); len(list) != 1 || list[0].RevokedAt != nil {
		t.Errorf("something was done: %+v", list)
	}
}
