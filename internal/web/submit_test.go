package web_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sbench/internal/api"
	"sbench/internal/site"
	"sbench/internal/store"
)

const sweepText = `sweep: v1
name: demo
repeats: 3
priority: bulk
reuse: {max_age: 30d}
setting:
  model:    {name: tiny, checkpoint: {path: model.gguf}, precision: fp16}
  image:    {kind: sif, path: engine.sif}
  engine:   {kind: llamacpp}
  hardware: {gpu: h100-sxm, gpus: 1, nodes: 1, placement: node}
  workload:
    kind: serving
    request: {endpoint: completions}
    arrival: {process: poisson, rate: 16/s}
    input_tokens:  {distribution: constant, value: 32}
    output_tokens: {distribution: constant, value: 16}
    warmup: 10s
    ramp: 10s
    duration: 100s
    drain: 60s
    seed: 42
matrix:
  workload.arrival.rate: [2/s, 4/s]
`

// artefacts puts the files of sweepText where the site has them.
func (e *env) artefacts() {
	e.t.Helper()
	for _, p := range []string{e.site.ModelPath("model.gguf"), e.site.ImagePath("engine.sif")} {
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			e.t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o644); err != nil {
			e.t.Fatal(err)
		}
	}
}

func request(key string) api.SubmitRequest {
	return api.SubmitRequest{IdempotencyKey: key + strings.Repeat("0", 16), FileName: "demo.yaml", File: sweepText}
}

func TestSubmit(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	req := request("a")
	repeats, limit := 2, int64(7200)
	req.Options = api.Options{Repeats: &repeats, TimeLimitS: &limit, QOS: "night", Hold: true, Set: []string{"workload.seed=7"}}
	resp := post[api.SubmitResponse](e, "ada", "/v1/sweeps", req)
	if resp.SweepID != 1 || resp.Repeated || resp.Plan.Settings != 2 || resp.Plan.Runs != 4 || resp.Plan.HardwareClass != "emulated" || resp.Plan.Site != "lab" {
		t.Errorf("got %+v", resp)
	}
	// A run without history: start and end, and its load. A whole node is held.
	seconds := float64(120 + 10 + 10 + 100 + 60 + 60)
	if want := seconds * 8 * 4 / 3600; resp.Plan.GPUHours != want {
		t.Errorf("forecast %v GPU-hours, want %v", resp.Plan.GPUHours, want)
	}
	if len(resp.Plan.Detail) != 0 {
		t.Errorf("got %+v", resp.Plan.Detail)
	}
	if b := resp.Plan.Batches; len(b) != 1 || b[0].Partition != "gpu" || b[0].Account != "physics" || b[0].QOS != "night" || !b[0].Exclusive || b[0].Runs != 4 || b[0].TimeLimitS != 7200 {
		t.Errorf("got %+v", b)
	}
	if len(resp.Notes) != 0 || len(resp.Plan.Skipped) != 0 {
		t.Errorf("got %v, %v", resp.Notes, resp.Plan.Skipped)
	}
	sweep := get[api.Sweep](e, "ada", "/v1/sweeps/1?runs=1")
	if sweep.State != "held" || sweep.Priority != "bulk" || sweep.Account != "physics" || sweep.Name != "demo" || *sweep.File != sweepText || len(sweep.RunList) != 4 {
		t.Errorf("got %+v", sweep)
	}
	if text := string(sweep.Options); !strings.Contains(text, `"job_name":"demo"`) || !strings.Contains(text, `"priority":"bulk"`) || !strings.Contains(text, `"site":"lab"`) {
		t.Errorf("got %s", text)
	}

	again := post[api.SubmitResponse](e, "ada", "/v1/sweeps", req)
	if again.SweepID != 1 || !again.Repeated {
		t.Errorf("got %+v", again)
	}
	other := request("a")
	other.File = strings.Replace(sweepText, "duration: 100s", "duration: 200s", 1)
	e.problem(api.CodeConflict, "ada", "POST", "/v1/sweeps", other)
	// The same file again is a new sweep with the same hashes.
	second := post[api.SubmitResponse](e, "ada", "/v1/sweeps", api.SubmitRequest{IdempotencyKey: strings.Repeat("b", 20), FileName: "x", File: sweepText, Options: req.Options})
	if got := get[api.Sweep](e, "ada", fmt.Sprint("/v1/sweeps/", second.SweepID)); second.SweepID == 1 || got.Settings[0].SettingHash != sweep.Settings[0].SettingHash {
		t.Errorf("got %+v", second)
	}
}

func TestSubmit_OneRunAgain(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("a"))
	second := get[api.Sweep](e, "ada", "/v1/sweeps/1").Settings[1].SettingHash
	req, one := request("b"), 1
	req.Options = api.Options{Repeats: &one, Only: &api.Only{SettingHash: second, Repeat: 2}}
	resp := post[api.SubmitResponse](e, "ada", "/v1/sweeps", req)
	if resp.Plan.Settings != 1 || resp.Plan.Runs != 1 {
		t.Errorf("got %+v", resp.Plan)
	}
	again := get[api.Sweep](e, "ada", "/v1/sweeps/2?runs=1")
	if len(again.RunList) != 1 || again.RunList[0].SettingHash != second || again.RunList[0].Repeat != 2 || again.Settings[0].NTotal != 1 {
		t.Errorf("got %+v", again)
	}
	for _, only := range []api.Only{{SettingHash: strings.Repeat("0", 64)}, {SettingHash: second, Repeat: -1}} {
		req := request("c")
		req.Options = api.Options{Repeats: &one, Only: &only}
		e.problem(api.CodeInvalid, "ada", "POST", "/v1/sweeps", req)
	}
	many := request("d")
	many.Options = api.Options{Only: &api.Only{SettingHash: second}}
	e.problem(api.CodeInvalid, "ada", "POST", "/v1/sweeps", many)
}

func TestSubmit_TestOnlyStoresNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	req := request("")
	req.IdempotencyKey, req.TestOnly = "", true
	resp := post[api.SubmitResponse](e, "ada", "/v1/sweeps", req)
	if resp.SweepID != 0 || resp.Plan.Runs != 6 || resp.Plan.Tasks == 0 || resp.Plan.Cost != nil {
		t.Errorf("got %+v", resp)
	}
	if d := resp.Plan.Detail; len(d) != 2 || d[0].HeldGPUs != 8 || d[0].RunSeconds != 360 || d[0].Axes["workload.arrival.rate"] != 2.0 {
		t.Errorf("got %+v", d)
	}
	if list := get[[]api.SweepSummary](e, "ada", "/v1/sweeps"); len(list) != 0 {
		t.Errorf("got %+v", list)
	}
}

func TestSubmit_Refusals(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	e.site.SubmitAs = site.SubmitAsService
	edit := func(old, now string) func(*api.SubmitRequest) {
		return func(r *api.SubmitRequest) { r.File = strings.Replace(r.File, old, now, 1) }
	}
	option := func(set func(*api.Options)) func(*api.SubmitRequest) {
		return func(r *api.SubmitRequest) { set(&r.Options) }
	}
	zero, many, tiny, negative := 0, 10_000_000, int64(1), -1.0
	for name, tc := range map[string]struct {
		code   api.Code
		change func(*api.SubmitRequest)
		want   string // in message, reasons or diagnostics
	}{
		"faulty file":     {api.CodeInvalid, edit("seed: 42", "sede: 42"), `unknown key "sede"`},
		"faulty set":      {api.CodeInvalid, option(func(o *api.Options) { o.Set = []string{"workload.sede=1"} }), "unknown axis"},
		"unknown gres":    {api.CodeInvalid, option(func(o *api.Options) { o.Gres = "gpu:b200:1" }), "no hardware of the site"},
		"unknown site":    {api.CodeInvalid, option(func(o *api.Options) { o.Site = "moon" }), "no such site"},
		"site of file":    {api.CodeInvalid, edit("name: demo", "name: demo\nsite: moon"), "no such site"},
		"no key":          {api.CodeInvalid, func(r *api.SubmitRequest) { r.IdempotencyKey = "" }, "idempotency_key"},
		"hostile key":     {api.CodeInvalid, func(r *api.SubmitRequest) { r.IdempotencyKey = "aaaaaaaaaaaaaaaa\n" }, "idempotency_key"},
		"huge file":       {api.CodeInvalid, func(r *api.SubmitRequest) { r.File += strings.Repeat("#\n", 2<<20) }, "larger than"},
		"hostile name":    {api.CodeInvalid, func(r *api.SubmitRequest) { r.FileName = "\x1b[2J" }, "file_name"},
		"dependency":      {api.CodeInvalid, option(func(o *api.Options) { o.Dependency = "afterok:1" }), "there is no sweep 1"},
		"mail type":       {api.CodeInvalid, option(func(o *api.Options) { o.MailType = []string{"DAILY"} }), "none of NONE, ALL"},
		"mail user":       {api.CodeInvalid, option(func(o *api.Options) { o.MailUser = "ada\r\nBcc: eve" }), "no plain address"},
		"max cost":        {api.CodeRefused, option(func(o *api.Options) { c := 1.0; o.MaxCost = &c }), "has no rate"},
		"priority":        {api.CodeInvalid, option(func(o *api.Options) { o.Priority = "top" }), "none of"},
		"time":            {api.CodeInvalid, option(func(o *api.Options) { o.TimeLimitS = &tiny }), "--time"},
		"inflight":        {api.CodeInvalid, option(func(o *api.Options) { o.MaxInflight = &zero }), "--max-inflight"},
		"switches":        {api.CodeInvalid, option(func(o *api.Options) { o.Switches = &many }), "--switches"},
		"gpu hours":       {api.CodeInvalid, option(func(o *api.Options) { o.MaxGPUHours = &negative }), "--max-gpu-hours"},
		"hostile option":  {api.CodeInvalid, option(func(o *api.Options) { o.Partition = "gpu\n#SBATCH --wrap=x" }), "--partition"},
		"shell in qos":    {api.CodeInvalid, option(func(o *api.Options) { o.QOS = "$(id)" }), "--qos"},
		"hostile comment": {api.CodeInvalid, option(func(o *api.Options) { o.Comment = "a\x00b" }), "--comment"},
		"many sets":       {api.CodeInvalid, option(func(o *api.Options) { o.Set = make([]string, 2000) }), "assignments"},

		"hardware":        {api.CodeRefused, edit("gpu: h100-sxm", "gpu: b200"), `site lab has no hardware "b200" (2 times)`},
		"gpus":            {api.CodeRefused, edit("{gpu: h100-sxm, gpus: 1", "{gpu: l4, gpus: 8"), "l4 has 4 GPUs per node"},
		"partition":       {api.CodeRefused, option(func(o *api.Options) { o.Partition = "debug" }), `lists no partition "debug"`},
		"class":           {api.CodeRefused, edit("nodes: 1,", "nodes: 1, class: real,"), "site lab is emulated"},
		"too long":        {api.CodeRefused, edit("duration: 100s", "duration: 5h"), "partition gpu allows at most 4h0m0s"},
		"missing image":   {api.CodeRefused, edit("engine.sif", "other.sif"), "image.path: no such file"},
		"missing model":   {api.CodeRefused, edit("model.gguf", "other.gguf"), "model.checkpoint.path: no such file"},
		"above gpu hours": {api.CodeRefused, option(func(o *api.Options) { h := 1.0; o.MaxGPUHours = &h }), "above --max-gpu-hours 1"},
		"host program":    {api.CodeRefused, edit("kind: sif, path: engine.sif", "kind: host, path: engine.sif"), "for admins"},
	} {
		req := request("a")
		tc.change(&req)
		if name == "gpus" {
			req.File = strings.Replace(req.File, "engine:   {kind: llamacpp}", "engine:   {kind: llamacpp}\n  parallel: {data: 8}", 1)
		}
		p := e.problem(tc.code, "ada", "POST", "/v1/sweeps", req)
		if all := fmt.Sprint(p.Message, p.Hint, p.Reasons, p.Diagnostics.Text()); !strings.Contains(all, tc.want) {
			t.Errorf("%s: got %s", name, all)
		}
	}
	if list := get[[]api.SweepSummary](e, "ada", "/v1/sweeps"); len(list) != 0 {
		t.Errorf("a refused sweep was stored: %+v", list)
	}
}

func TestSubmit_SiteModes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	post[api.Site](e, "root", "/v1/sites/lab/mode", api.SiteRequest{Mode: store.SiteDrain, Reason: "move to the new hall"})
	if p := e.problem(api.CodeRefused, "ada", "POST", "/v1/sweeps", request("a")); !strings.Contains(p.Error(), "root drains it: move to the new hall") {
		t.Errorf("got %v", p.Error())
	}
	post[api.Site](e, "root", "/v1/sites/lab/mode", api.SiteRequest{Mode: store.SitePaused})
	if resp := post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("a")); len(resp.Notes) != 1 || !strings.Contains(resp.Notes[0], "paused") {
		t.Errorf("got %+v", resp.Notes)
	}
}

// A daemon that submits as its own user must not spend for others.
func TestSubmit_AsUser(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	e.problem(api.CodeRefused, "bob", "POST", "/v1/sweeps", request("a"))
	post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("a"))
}

func TestSubmit_Dependency(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	on := func(key, dependency string) api.SubmitRequest {
		r := request(key)
		r.Options.Dependency = dependency
		return r
	}
	first := post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("a")).SweepID
	waiting := post[api.SubmitResponse](e, "ada", "/v1/sweeps", on("b", fmt.Sprintf("afterok:%d", first)))
	if want := []string{"waits for sweep 1 to be complete (afterok)"}; !slices.Equal(waiting.Notes, want) {
		t.Errorf("notes %q, want %q", waiting.Notes, want)
	}
	// Nobody has looked at it yet: it waits all the same.
	if s := get[api.Sweep](e, "ada", fmt.Sprint("/v1/sweeps/", waiting.SweepID)); s.Dependency != "afterok:1" || s.Reason != "waits for afterok:1" || s.State != "pending" {
		t.Errorf("got %+v", s.SweepSummary)
	}
	if p := e.problem(api.CodeInvalid, "ada", "POST", "/v1/sweeps", on("c", "afterok:99")); !strings.Contains(p.Error(), "--dependency afterok:99 can never be satisfied: there is no sweep 99") {
		t.Errorf("got %v", p.Error())
	}
	if p := e.problem(api.CodeInvalid, "ada", "POST", "/v1/sweeps", on("c", "afterok")); !strings.Contains(p.Error(), `"afterok" is not a dependency`) {
		t.Errorf("got %v", p.Error())
	}
	if err := e.store.SetDependency(t.Context(), waiting.SweepID, store.DependencyNever, "sweep 1 is incomplete"); err != nil {
		t.Fatal(err)
	}
	s := get[api.Sweep](e, "ada", fmt.Sprint("/v1/sweeps/", waiting.SweepID, "?runs=1"))
	if s.Reason != "the dependency can never be satisfied: sweep 1 is incomplete" || s.Runs["cancelled"] != s.RunsTotal {
		t.Errorf("got %+v", s.SweepSummary)
	}
	if last := s.Transitions[len(s.Transitions)-1]; last.To != "cancelled" || last.Reason != s.Reason {
		t.Errorf("got %+v", last)
	}
}
