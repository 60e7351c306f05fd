package web_test

import (
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/api"
	"sbench/internal/store"
)

func TestViews(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id, runs := e.sweep(2, 1)
	e.kill("ENV_DRIFT: image", runs[:2]...)

	list := get[[]api.SweepSummary](e, "bob", "/v1/sweeps")
	if len(list) != 1 || list[0].ID != id || list[0].State != "running" || list[0].Runs["dead"] != 2 || list[0].RunsTotal != 3 || list[0].ETA == nil {
		t.Errorf("got %+v", list)
	}
	// Two of three runs have ended: the makespan is the ETA's.
	if m := list[0].MakespanS; m == nil || math.Abs(*m-max(0, list[0].ETA.Sub(list[0].SubmittedAt).Seconds())) > 1e-6 {
		t.Errorf("makespan %v, ETA %v after %v", m, list[0].ETA, list[0].SubmittedAt)
	}
	for query, want := range map[string]int{"?user=ada": 1, "?user=bob": 0, "?state=held": 0, "?state=running&state=held": 1, "?id=1": 1, "?id=2": 0} {
		if got := get[[]api.SweepSummary](e, "bob", "/v1/sweeps"+query); len(got) != want {
			t.Errorf("%s: got %+v", query, got)
		}
	}
	sum := get[api.SweepSummary](e, "bob", "/v1/sweeps/1/summary")
	if sum.Terminal() || sum.Complete() || sum.RunsOpen() != 1 {
		t.Errorf("got %+v", sum)
	}
	own := get[api.Sweep](e, "ada", "/v1/sweeps/1?runs=1")
	if own.File == nil || len(own.Settings) != 2 || len(own.RunList) != 3 || len(own.Transitions) != 5 {
		t.Errorf("got %+v", own)
	}
	if diff := cmp.Diff([]string{"ENV_DRIFT: image"}, own.Settings[0].Reasons); diff != "" || own.Settings[0].Axes["model.name"] != "m0" {
		t.Errorf("%s %v", diff, own.Settings[0].Axes)
	}
	if foreign := get[api.Sweep](e, "bob", "/v1/sweeps/1"); foreign.File != nil || string(foreign.Options) != "null" || len(foreign.RunList) != 0 {
		t.Errorf("a stranger sees the file: %+v", foreign)
	}
	run := get[api.Run](e, "bob", "/v1/runs/1")
	if run.State != "dead" || run.Reason != "ENV_DRIFT: image" || len(run.Transitions) != 2 || run.SlurmJobID != nil {
		t.Errorf("got %+v", run)
	}
	st := get[api.Setting](e, "bob", "/v1/settings/"+own.Settings[0].SettingHash[:10])
	if st.SettingHash != own.Settings[0].SettingHash || len(st.Runs) != 2 || len(st.Sweeps) != 1 || !strings.Contains(string(st.CanonicalSpec), `"spec_version":1`) {
		t.Errorf("got %+v", st)
	}
	if rs := get[[]api.Run](e, "bob", "/v1/sweeps/1/runs?state=pending"); len(rs) != 1 || rs[0].ID != runs[2] {
		t.Errorf("got %+v", rs)
	}
	dead := get[[]api.DeadRun](e, "bob", "/v1/dead?sweep=1")
	if len(dead) != 2 || dead[0].RunID != runs[0] || dead[0].User != "ada" {
		t.Errorf("got %+v", dead)
	}
	if v := get[api.Version](e, "bob", "/v1/version"); v != (api.Version{Version: "test", User: "bob"}) {
		t.Errorf("got %+v", v)
	}
}

func TestViews_SeedKeepsItsDigits(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.sweep(1)
	_, body := e.do("ada", http.MethodGet, "/v1/sweeps/1", nil)
	if !strings.Contains(string(body), `"workload.seed":9007199254740991`) {
		t.Errorf("got %s", body)
	}
}

func TestResults_WithoutAggregates(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	_, runs := e.sweep(2)
	e.kill("no such node", runs...)
	r := get[api.Results](e, "bob", "/v1/sweeps/1/results")
	if len(r.Settings) != 1 || r.Complete {
		t.Fatalf("got %+v", r)
	}
	s := r.Settings[0]
	if s.NValid != 0 || s.NTotal != 2 || s.IsFinal || s.HardwareClass != "emulated" || len(s.Metrics) != 0 || s.Reasons[0] != "no such node" {
		t.Errorf("got %+v", s)
	}
	if _, body := e.do("ada", http.MethodGet, "/v1/sweeps/1/results", nil); strings.Contains(strings.Replace(string(body), `"reproducibility":null`, "", 1), "null") {
		t.Errorf("an empty list is null: %s", body)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.sweep(1)
	for _, tc := range []struct {
		code         api.Code
		method, path string
		body         any
	}{
		{api.CodeNotFound, "GET", "/v1/sweeps/99", nil},
		{api.CodeNotFound, "GET", "/v1/sweeps/99/summary", nil},
		{api.CodeNotFound, "GET", "/v1/sweeps/99/runs", nil},
		{api.CodeNotFound, "GET", "/v1/sweeps/99/results", nil},
		{api.CodeNotFound, "GET", "/v1/runs/99", nil},
		{api.CodeNotFound, "GET", "/v1/runs/99/log?kind=engine", nil},
		{api.CodeNotFound, "GET", "/v1/runs/1/log?kind=engine", nil},
		{api.CodeNotFound, "GET", "/v1/runs/99/bundle", nil},
		{api.CodeNotFound, "GET", "/v1/runs/1/bundle", nil},
		{api.CodeNotFound, "GET", "/v1/runs/1/log?kind=slurm", nil},
		{api.CodeNotFound, "GET", "/v1/settings/ffffffff", nil},
		{api.CodeNotFound, "GET", "/v2/sweeps", nil},
		{api.CodeNotFound, "POST", "/v1/runs/1", nil},
		{api.CodeNotFound, "POST", "/v1/actions", api.ActionRequest{Action: "cancel", Kind: "sweep", IDs: []string{"1", "99"}}},
		{api.CodeNotFound, "POST", "/v1/dead/release", api.ReleaseRequest{Runs: []int64{99}}},
		{api.CodeInvalid, "GET", "/v1/sweeps/x", nil},
		{api.CodeInvalid, "GET", "/v1/sweeps/-1", nil},
		{api.CodeInvalid, "GET", "/v1/sweeps?id=x", nil},
		{api.CodeInvalid, "GET", "/v1/sweeps?limit=-1", nil},
		{api.CodeInvalid, "GET", "/v1/runs/0", nil},
		{api.CodeInvalid, "GET", "/v1/runs/1/log?kind=passwd", nil},
		{api.CodeInvalid, "GET", "/v1/settings/xyz", nil},
		{api.CodeInvalid, "GET", "/v1/settings/ab", nil},
		{api.CodeInvalid, "GET", "/v1/dead?sweep=0", nil},
		{api.CodeInvalid, "POST", "/v1/actions", "{"},
		{api.CodeInvalid, "POST", "/v1/actions", `{"action":"cancel","kind":"sweep","ids":["1"],"more":1}`},
		{api.CodeInvalid, "POST", "/v1/actions", `{"action":"cancel","kind":"sweep","ids":["1"]} {}`},
		{api.CodeInvalid, "POST", "/v1/actions", api.ActionRequest{Action: "destroy", Kind: "sweep", IDs: []string{"1"}}},
		{api.CodeInvalid, "POST", "/v1/actions", api.ActionRequest{Action: "cancel", Kind: "job", IDs: []string{"1"}}},
		{api.CodeInvalid, "POST", "/v1/actions", api.ActionRequest{Action: "cancel", Kind: "sweep"}},
		{api.CodeInvalid, "POST", "/v1/actions", api.ActionRequest{Action: "cancel", Kind: "sweep", IDs: []string{"1; drop"}}},
		{api.CodeInvalid, "POST", "/v1/actions", api.ActionRequest{Action: "hold", All: true}},
		{api.CodeInvalid, "POST", "/v1/actions", api.ActionRequest{Action: "cancel", All: true, IDs: []string{"1"}}},
		{api.CodeInvalid, "POST", "/v1/actions", api.ActionRequest{Action: "cancel", Kind: "sweep", IDs: []string{"1"}, Reason: "two\nlines"}},
		{api.CodeInvalid, "POST", "/v1/actions", api.ActionRequest{Action: "cancel", Kind: "sweep", IDs: []string{"1"}, Reason: strings.Repeat("x", 2000)}},
		{api.CodeInvalid, "POST", "/v1/actions", strings.Repeat(" ", api.MaxRequestBytes+1)},
		{api.CodeInvalid, "POST", "/v1/dead/release", api.ReleaseRequest{}},
		{api.CodeConflict, "POST", "/v1/dead/release", api.ReleaseRequest{Runs: []int64{1}}},
	} {
		e.problem(tc.code, "ada", tc.method, tc.path, tc.body)
	}
}

// Every endpoint that changes or reveals something asks who is calling.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.sweep(1)
	for _, path := range []string{
		"/v1/version", "/v1/sweeps", "/v1/sweeps/1", "/v1/sweeps/1/summary", "/v1/sweeps/1/runs", "/v1/sweeps/1/results", "/v1/settings/abcd",
		"/v1/runs/1", "/v1/runs/1/log?kind=engine", "/v1/sites", "/v1/dead",
	} {
		e.problem(api.CodeRefused, "nobody", http.MethodGet, path, nil)
	}
	for _, path := range []string{"/v1/sweeps", "/v1/actions", "/v1/sites/lab/mode", "/v1/dead/release"} {
		e.problem(api.CodeRefused, "nobody", http.MethodPost, path, "{}")
	}
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	_, runs := e.sweep(2)
	e.kill("no such node", runs[0])
	hash := get[api.Sweep](e, "ada", "/v1/sweeps/1").Settings[0].SettingHash
	for _, action := range []api.Action{api.ActionCancel, api.ActionHold, api.ActionRelease, api.ActionRequeue} {
		e.problem(api.CodeRefused, "bob", "POST", "/v1/actions", api.ActionRequest{Action: action, Kind: api.KindSweep, IDs: []string{"1"}})
		e.problem(api.CodeRefused, "bob", "POST", "/v1/actions", api.ActionRequest{Action: action, Kind: api.KindRun, IDs: []string{"2"}})
		e.problem(api.CodeRefused, "bob", "POST", "/v1/actions", api.ActionRequest{Action: action, Kind: api.KindSetting, Sweep: 1, IDs: []string{hash}})
		// A setting may be in sweeps of many: only one's own are touched.
		if r := post[api.ActionResponse](e, "bob", "/v1/actions", api.ActionRequest{Action: action, Kind: api.KindSetting, IDs: []string{hash}}); r.Runs != 0 {
			t.Errorf("%s touched %d runs of another user", action, r.Runs)
		}
	}
	if r := post[api.ActionResponse](e, "bob", "/v1/actions", api.ActionRequest{Action: api.ActionCancel, All: true}); r.Runs != 0 {
		t.Errorf("cancel --all touched %d runs of another user", r.Runs)
	}
	e.problem(api.CodeRefused, "bob", "POST", "/v1/actions", api.ActionRequest{Action: api.ActionCancel, All: true, User: "ada"})
	e.problem(api.CodeRefused, "bob", "POST", "/v1/dead/release", api.ReleaseRequest{Runs: runs[:1]})
	e.problem(api.CodeRefused, "bob", "GET", "/v1/runs/1/log?kind=engine", nil)
	e.problem(api.CodeRefused, "ada", "POST", "/v1/sites/lab/mode", api.SiteRequest{Mode: "paused"})
	if run := get[api.Run](e, "ada", "/v1/runs/2"); run.State != "pending" || len(run.Transitions) != 1 {
		t.Errorf("got %+v", run)
	}
}

func TestActions(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	_, runs := e.sweep(2, 1)
	act := func(user string, req api.ActionRequest, want api.ActionResponse) {
		t.Helper()
		if diff := cmp.Diff(want, post[api.ActionResponse](e, user, "/v1/actions", req)); diff != "" {
			t.Errorf("%+v: %s", req, diff)
		}
	}
	one := []int64{1}
	act("ada", api.ActionRequest{Action: "hold", Kind: "sweep", IDs: []string{"1"}}, api.ActionResponse{Sweeps: one, Runs: 3})
	if s := get[api.SweepSummary](e, "ada", "/v1/sweeps/1/summary"); s.State != "held" {
		t.Errorf("got %+v", s)
	}
	act("ada", api.ActionRequest{Action: "release", Kind: "run", IDs: []string{"1", "1"}}, api.ActionResponse{Sweeps: one, Runs: 1})
	if s := get[api.SweepSummary](e, "ada", "/v1/sweeps/1/summary"); s.State != "pending" {
		t.Errorf("got %+v", s)
	}
	act("root", api.ActionRequest{Action: "cancel", Kind: "run", IDs: []string{"1"}, Reason: "power cut"}, api.ActionResponse{Sweeps: one, Runs: 1})
	if r := get[api.Run](e, "ada", "/v1/runs/1"); r.Reason != "cancelled by root: power cut" {
		t.Errorf("got %+v", r)
	}
	act("ada", api.ActionRequest{Action: "requeue", Kind: "sweep", IDs: []string{"1"}}, api.ActionResponse{Sweeps: one, Runs: 1, Unchanged: 2})
	e.kill("no such node", runs[2])
	if r := post[api.ActionResponse](e, "ada", "/v1/dead/release", api.ReleaseRequest{Runs: runs[2:]}); r.Runs != 1 {
		t.Errorf("got %+v", r)
	}
	act("root", api.ActionRequest{Action: "cancel", All: true, User: "ada", Site: "lab"}, api.ActionResponse{Sweeps: one, Runs: 3})
}

func TestSites(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	if diff := cmp.Diff([]api.Site{{Name: "lab", Cluster: "c1", HardwareClass: "emulated", Mode: "active"}}, get[[]api.Site](e, "bob", "/v1/sites")); diff != "" {
		t.Error(diff)
	}
	s := post[api.Site](e, "root", "/v1/sites/lab/mode", api.SiteRequest{Mode: store.SitePaused, Reason: "power cut"})
	if s.Mode != "paused" || s.ChangedBy != "root" || s.ChangedAt == nil {
		t.Errorf("got %+v", s)
	}
	if got := get[[]api.Site](e, "bob", "/v1/sites"); got[0].Mode != "paused" || got[0].Reason != "power cut" {
		t.Errorf("got %+v", got)
	}
	e.problem(api.CodeNotFound, "root", "POST", "/v1/sites/moon/mode", api.SiteRequest{Mode: "paused"})
	e.problem(api.CodeInvalid, "root", "POST", "/v1/sites/lab/mode", api.SiteRequest{Mode: "off"})
}

func TestHealth(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.sweep(1)
	if status, body := e.do("", "GET", "/healthz", nil); status != 200 || string(body) != "ok\n" {
		t.Errorf("got %d %s", status, body)
	}
	if status, body := e.do("", "GET", "/readyz", nil); status != 200 || string(body) != "ready\n" {
		t.Errorf("got %d %s", status, body)
	}
	e.problem(api.CodeNotFound, "ada", "GET", "/v1/runs/99", nil)
	_, body := e.do("", "GET", "/metrics", nil)
	for _, want := range []string{
		"sbench_leader 1\n", "sbench_database_up 1\n", "sbench_runs{site=\"lab\",state=\"pending\"} 1\n",
		"sbench_requests_total{endpoint=\"GET /v1/runs/{id}\",status=\"404\"} 1\n",
		"sbench_slurm_calls_total{command=\"squeue\",site=\"lab\"} 7\n", "sbench_slurm_timeouts_total{command=\"squeue\",site=\"lab\"} 1\n",
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%q is missing in\n%s", want, body)
		}
	}
	e.store.Close()
	e.problem(api.CodeInternal, "", "GET", "/readyz", nil)
	if _, body := e.do("", "GET", "/metrics", nil); !strings.Contains(string(body), "sbench_database_up 0\n") {
		t.Errorf("got %s", body)
	}
}

func TestSiteCheck(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.problem(api.CodeRefused, "ada", "POST", "/v1/sites/lab/check", api.SiteCheckRequest{})
	e.problem(api.CodeNotFound, "root", "POST", "/v1/sites/moon/check", api.SiteCheckRequest{})
	if got := post[api.SiteCheck](e, "root", "/v1/sites/lab/check", api.SiteCheckRequest{NoJob: true}); got.Site != "lab" || got.OK {
		t.Errorf("got %+v", got)
	}
}
