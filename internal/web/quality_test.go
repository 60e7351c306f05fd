package web_test

import (
	"os"
	"strings"
	"testing"

	"sbench/internal/api"
	"sbench/internal/site"
)

const (
	asksItems   = "quality: {method: token_f1, items: {path: q.jsonl, digest: \"sha256:abababababababababababababababababababababababababababababababab\"}, time_limit: 5m}\n"
	asksCommand = "quality: {method: command, command: [evaluate, \"{url}\"], count: 3}\n"
)

func asking(key, block string) api.SubmitRequest {
	req := request(key)
	req.File = strings.Replace(req.File, "setting:\n", block+"setting:\n", 1)
	return req
}

// TestSubmit_Quality: forecast and time limits have the time of the questions, a
// file of items that is missing is told, and what was asked is stored.
func TestSubmit_Quality(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	plain := request("plain")
	plain.TestOnly = true
	without := post[api.SubmitResponse](e, "ada", "/v1/sweeps", plain).Plan
	if p := e.problem(api.CodeRefused, "ada", "POST", "/v1/sweeps", asking("a", asksItems)); !strings.Contains(strings.Join(p.Reasons, "\n"), "quality.items.path: no such file") {
		t.Errorf("%+v", p)
	}
	if err := os.WriteFile(e.site.ModelPath("q.jsonl"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	with := post[api.SubmitResponse](e, "ada", "/v1/sweeps", asking("b", asksItems))
	// Six runs on eight GPUs, each five and a half minutes longer.
	if got, want := with.Plan.GPUHours-without.GPUHours, 6*8*330.0/3600; got < want-1e-9 || got > want+1e-9 {
		t.Errorf("the forecast is %v GPU-hours longer, want %v", got, want)
	}
	if a, b := with.Plan.Batches[0], without.Batches[0]; a.TimeLimitS*int64(with.Plan.Tasks) <= b.TimeLimitS*int64(without.Tasks) {
		t.Errorf("%d tasks of %d s, without questions %d of %d s", with.Plan.Tasks, a.TimeLimitS, without.Tasks, b.TimeLimitS)
	}
	if len(with.Notes) != 1 || !strings.Contains(with.Notes[0], "token_f1") {
		t.Errorf("notes %q", with.Notes)
	}
	r := get[api.Results](e, "ada", "/v1/sweeps/1/results")
	if r.Quality == nil || r.Quality.ItemsPath != "q.jsonl" || r.QualityHash == "" || r.QualityHash != r.Quality.Hash() {
		t.Errorf("%+v, %q", r.Quality, r.QualityHash)
	}
}

// TestSubmit_QualityCommand: code of the user's choice runs under nobody's account
// but the user's.
func TestSubmit_QualityCommand(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	req := asking("a", asksCommand)
	req.TestOnly = true
	post[api.SubmitResponse](e, "ada", "/v1/sweeps", req)
	e.site.SubmitAs = site.SubmitAsService
	if p := e.problem(api.CodeRefused, "ada", "POST", "/v1/sweeps", req); !strings.Contains(p.Message, "quality.method command is for admins") {
		t.Errorf("%+v", p)
	}
	post[api.SubmitResponse](e, "root", "/v1/sweeps", req)
}

// TestSubmit_QualityCarries: a sweep that asks stands on results that were asked the
// same; one that does not, on any.
func TestSubmit_QualityCarries(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	skipped := func(req api.SubmitRequest) int {
		t.Helper()
		return len(post[api.SubmitResponse](e, "ada", "/v1/sweeps", req).Plan.Skipped)
	}
	if n := skipped(request("a")); n != 0 {
		t.Fatalf("%d skipped at first", n)
	}
	e.measured(1, nil)
	if n := skipped(asking("b", asksCommand)); n != 0 {
		t.Errorf("%d carried from a sweep that asked nothing", n)
	}
	e.measured(2, nil)
	if n := skipped(asking("c", asksCommand)); n == 0 {
		t.Error("what was asked the same is run again")
	}
	if n := skipped(asking("d", strings.Replace(asksCommand, "count: 3", "count: 4", 1))); n != 0 {
		t.Errorf("%d carried although they were asked something else", n)
	}
	if n := skipped(request("e")); n == 0 {
		t.Error("what was asked is run again where nothing is to be asked")
	}
}
