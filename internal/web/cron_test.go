package web_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"sbench/internal/api"
)

const cronSweep = `sweep: v1
name: nightly
repeats: 2
setting:
  model: {name: m, checkpoint: {path: m}, precision: bf16}
  image: {kind: sif, path: /images/e.sif}
  engine: {kind: vllm, version: "0.9.2"}
  hardware: {gpu: l4, gpus: 1}
  workload:
    kind: serving
    arrival: {process: poisson, rate: 8/s}
    input_tokens: {distribution: constant, value: 64}
    output_tokens: {distribution: constant, value: 64}
    warmup: 5s
    duration: 300s
    drain: 5s
    seed: 7
`

func cronRequest(name string) api.CronRequest {
	return api.CronRequest{Name: name, Schedule: "30 2 * * *", TimeZone: "Europe/Berlin", FileName: "n.yaml", File: strings.Replace(cronSweep, "path: m}", "path: /m}", 1), Options: &api.Options{}}
}

func TestCron_AddShowUpdateRemove(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	window := int64(3600)
	req := cronRequest("nightly")
	req.WindowS = &window
	added := post[api.CronResponse](e, "ada", "/v1/crons", req)
	c := added.Cron
	if c.Name != "nightly" || c.User != "ada" || c.Overlap != "skip" || c.CatchUp != "last" || c.Settings != 1 || c.Runs != 2 || c.WindowS != 3600 ||
		c.NextAt == nil || c.Version != 1 || !strings.HasPrefix(c.FileDigest, "sha256:") || added.Plan == nil {
		t.Errorf("added %+v", added)
	}
	if len(added.Notes) == 0 || !strings.Contains(strings.Join(added.Notes, "\n"), "pin no digest") {
		t.Errorf("notes %q say nothing of unpinned digests", added.Notes)
	}
	e.problem(api.CodeConflict, "ada", http.MethodPost, "/v1/crons", req)
	post[api.CronResponse](e, "root", "/v1/crons", req) // a name is its owner's

	next := get[api.CronNext](e, "ada", "/v1/crons/nightly/next?n=400")
	if len(next.Due) != 400 {
		t.Fatalf("%d due times", len(next.Due))
	}
	for i, d := range next.Due[1:] {
		if gap := d.DueAt.Sub(next.Due[i].DueAt); gap < 23*time.Hour || gap > 25*time.Hour {
			t.Errorf("due at %v after %v", d.DueAt, next.Due[i].DueAt)
		}
	}

	if got := post[api.CronResponse](e, "ada", "/v1/crons/nightly/pause", nil); got.Cron.PausedAt == nil || got.Cron.NextAt != nil {
		t.Errorf("paused: %+v", got.Cron)
	}
	e.problem(api.CodeConflict, "ada", http.MethodPost, "/v1/crons/nightly/run", struct{}{})
	post[api.CronResponse](e, "ada", "/v1/crons/nightly/resume", nil)
	if got := post[api.CronResponse](e, "ada", "/v1/crons/nightly/run", nil); got.DueAt == nil || len(got.Cron.Firings) != 1 || got.Cron.Firings[0].State != "waiting" {
		t.Errorf("run: %+v", got)
	}
	updated := post[api.CronResponse](e, "ada", "/v1/crons/nightly/update", api.CronRequest{Name: "nightly", Overlap: "queue"})
	if u := updated.Cron; u.Overlap != "queue" || u.Version != 2 || u.Schedule != c.Schedule || u.FileDigest != c.FileDigest || u.WindowS != 3600 {
		t.Errorf("updated: %+v", updated.Cron)
	}
	post[api.CronResponse](e, "ada", "/v1/crons/nightly/rm", nil)
	e.problem(api.CodeNotFound, "ada", http.MethodGet, "/v1/crons/nightly", nil)
}

func TestCron_Refuses(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for name, change := range map[string]func(*api.CronRequest){
		"name":      func(r *api.CronRequest) { r.Name = "../x" },
		"schedule":  func(r *api.CronRequest) { r.Schedule = "0 0 31 2 *" },
		"zone":      func(r *api.CronRequest) { r.TimeZone = "Local" },
		"path zone": func(r *api.CronRequest) { r.TimeZone = "../../etc/passwd" },
		"overlap":   func(r *api.CronRequest) { r.Overlap = "maybe" },
		"catch up":  func(r *api.CronRequest) { r.CatchUp = "some" },
		"at end":    func(r *api.CronRequest) { r.AtWindowEnd = "explode" },
		"no file":   func(r *api.CronRequest) { r.File = "" },
		"bad file":  func(r *api.CronRequest) { r.File = "sweep: v2" },
		"hold":      func(r *api.CronRequest) { r.Options.Hold = true },
		"window":    func(r *api.CronRequest) { v := int64(-1); r.WindowS = &v },
		"jitter":    func(r *api.CronRequest) { v := int64(7200); r.JitterS, r.WindowS = &v, &v },
	} {
		req := cronRequest("x")
		change(&req)
		p := e.problem(api.CodeInvalid, "ada", http.MethodPost, "/v1/crons", req)
		if p.Message == "" {
			t.Errorf("%s: no message", name)
		}
	}
	post[api.CronResponse](e, "ada", "/v1/crons", cronRequest("mine"))
	e.problem(api.CodeRefused, "bob", http.MethodGet, "/v1/crons/mine?user=ada", nil)
	e.problem(api.CodeRefused, "bob", http.MethodPost, "/v1/crons/mine/rm?user=ada", struct{}{})
	e.problem(api.CodeRefused, "bob", http.MethodGet, "/v1/crons?user=*", nil)
	e.problem(api.CodeRefused, "root", http.MethodPost, "/v1/crons/mine/update?user=ada", api.CronRequest{Name: "mine", Overlap: "queue"})
	if got := get[[]api.Cron](e, "root", "/v1/crons?user=*"); len(got) != 1 {
		t.Errorf("the operator sees %d schedules", len(got))
	}
	post[api.CronResponse](e, "root", "/v1/crons/mine/pause?user=ada", nil)
}
