package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/setting"
	"sbench/internal/site"
	"sbench/internal/store"
	"sbench/internal/web"
)

// users are the people of the tests, by the name that a request carries.
var users = map[string]auth.Identity{
	"ada":   {UID: 1000, User: "ada"},
	"bob":   {UID: 1001, User: "bob"},
	"carol": {UID: 1002, User: "carol"},
	"root":  {UID: 0, User: "root", Operator: true, Admin: true},
}

// headerAuth takes a header for the kernel's word; it is for tests only.
type headerAuth struct{}

func (headerAuth) Identify(r *http.Request) (auth.Identity, error) {
	id, ok := users[r.Header.Get("X-User")]
	if !ok {
		return id, auth.ErrUnknownUser
	}
	return id, nil
}

// env is a handler on a database of its own.
type env struct {
	t     testing.TB
	store *store.Store
	url   string
	site  *site.Site
	// server admits for the daemon's own services.
	server *web.Server
}

func newEnv(t testing.TB) *env {
	t.Helper()
	e := &env{t: t, store: pgtest.New(t), site: testSite(t)}
	handler, err := web.New(web.Config{
		Store: e.store, Auth: headerAuth{}, Sites: []*site.Site{e.site}, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Version: "test", UID: 1000, SlurmCalls: func() []web.SlurmCalls {
			return []web.SlurmCalls{{Site: "lab", Command: "squeue", Calls: 7, Failures: 2, Timeouts: 1, Seconds: 1.5}}
		},
		Leader: func() bool { return true }, Poll: time.Millisecond,
		CheckSite: func(_ context.Context, st *site.Site, job bool) (api.SiteCheck, error) {
			return api.SiteCheck{Site: st.Name, OK: job, Checks: []api.SiteProbe{}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	e.url, e.server = srv.URL, handler
	return e
}

// testSite is an emulated cluster whose paths lie in a folder of the test.
func testSite(t testing.TB) *site.Site {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf(`site: v1
name: lab
cluster: c1
hardware_class: emulated
defaults: {partition: gpu, account: physics}
partitions: {gpu: {max_time: 4h}, cpu: {}}
hardware:
  h100-sxm: {gres: "gpu:h100", gpus_per_node: 8, nodes: 4, link: nvlink}
  l4: {gres: "gpu:l4", gpus_per_node: 4, nodes: 2}
paths: {spool: %[1]s/spool, results: %[1]s/results, models: %[1]s/models, images: %[1]s/images, cache: %[1]s/cache}
`, dir)
	s, faults := site.Load([]byte(text), "site.yaml")
	if s == nil {
		t.Fatal(faults.Text())
	}
	return s
}

// do sends a request as a user and returns the status and the body.
func (e *env) do(user, method, path string, body any) (int, []byte) {
	e.t.Helper()
	var payload io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		payload = bytes.NewBufferString(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			e.t.Fatal(err)
		}
		payload = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(e.t.Context(), method, e.url+path, payload)
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("X-User", user)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return resp.StatusCode, text
}

// get decodes a successful answer.
func get[T any](e *env, user, path string) T {
	e.t.Helper()
	status, body := e.do(user, http.MethodGet, path, nil)
	return decodeAs[T](e, status, body)
}

func post[T any](e *env, user, path string, req any) T {
	e.t.Helper()
	status, body := e.do(user, http.MethodPost, path, req)
	return decodeAs[T](e, status, body)
}

func decodeAs[T any](e *env, status int, body []byte) T {
	e.t.Helper()
	var v T
	if status != http.StatusOK {
		e.t.Fatalf("status %d: %s", status, body)
	}
	if err := json.Unmarshal(body, &v); err != nil {
		e.t.Fatal(err)
	}
	return v
}

// problem expects a failure of a category.
func (e *env) problem(want api.Code, user, method, path string, body any) api.Problem {
	e.t.Helper()
	status, text := e.do(user, method, path, body)
	var p api.Problem
	if err := json.Unmarshal(text, &p); err != nil || status < 400 {
		e.t.Fatalf("%s %s: status %d: %s", method, path, status, text)
	}
	if p.Code != want {
		e.t.Errorf("%s %s: got %s (%s), want %s", method, path, p.Code, p.Message, want)
	}
	return p
}

// sweep stores a sweep of ada's with one setting per number of repeats.
func (e *env) sweep(repeats ...int) (int64, []int64) {
	e.t.Helper()
	n := store.NewSweep{Name: "nightly", UserName: "ada", UID: 1000, Site: "lab", HardwareClass: "emulated", File: "sweep: v1\n"}
	for i, r := range repeats {
		s := setting.Default()
		s.Model.Name = fmt.Sprintf("m%d", i)
		s.Workload.Seed = 1<<53 - 1
		s.Normalize()
		n.Settings = append(n.Settings, store.NewSetting{
			Hash: s.Hash(), SeriesHash: s.SeriesHash(), CanonicalSpec: s.Canonical(), Setting: s, Repeats: r,
		})
	}
	id, _, err := e.store.CreateSweep(e.t.Context(), n)
	if err != nil {
		e.t.Fatal(err)
	}
	rows, err := e.store.RunsOfSweep(e.t.Context(), id, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	var runs []int64
	for _, r := range rows {
		runs = append(runs, r.ID)
	}
	return id, runs
}

// kill moves runs to dead, as the submission of what Slurm never accepts does.
func (e *env) kill(reason string, runs ...int64) {
	e.t.Helper()
	_, err := e.store.SetRunState(e.t.Context(), store.Change{Runs: runs, To: lifecycle.RunDead, By: lifecycle.ActorSubmit, Reason: reason})
	if err != nil {
		e.t.Fatal(err)
	}
}
