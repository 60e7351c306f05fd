//go:build soak

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sbench/internal/api"
	"sbench/internal/regress"
)

// rehearsal is a schedule on emulated hardware: a closed loop, so that the tokens
// per second are the simulated engine's own, with its noise from run to run. The
// history is labelled synthetic nights around what the settings really measured.
type rehearsal struct {
	*testing.T
	name           string
	settings       int
	repeats        string  // a number, or a policy
	hardware       string  // the block's fields
	nodes          string  // that the synthetic nights are on
	runCV, nightCV float64 // of the synthetic nights
	timeLimit      string  // of a task, so that the runs are shared out among all nodes
	fault          string  // what happens while r.broken() is there; "" for nothing
}

// broken is the file that, once it is there, makes the planted fault happen although
// nothing pinned changes.
func (r rehearsal) broken() string { return filepath.Join(env.dir, "images", r.name+".broken") }

// engine writes an engine that slows down by the shell condition that is given, ""
// for never. Another text is another digest.
func (r rehearsal) engine(slow string) string {
	r.Helper()
	path := filepath.Join(env.dir, "images", fmt.Sprintf("%s-%x.sh", r.name, len(slow)))
	text := "#!/bin/sh\n"
	if r.fault != "" {
		text += fmt.Sprintf("[ -e %s ] && %s\n", r.broken(), r.fault)
	}
	if slow != "" {
		text += slow + "\n"
	}
	text += fmt.Sprintf("exec %s \"$@\"\n", env.bin("sbench-sim"))
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		r.Fatal(err)
	}
	return path
}

// file is the sweep with an engine; settings differ in a variable that nothing but
// the planted fault looks at. A run's requests begin with its window and last until
// after it, so that what it measures is the engine's rate, wherever a window would
// cut others; and there are enough first tokens to have a median, of half a second,
// of which the audit allows the client a hundredth: the few milliseconds that a busy
// machine takes.
func (r rehearsal) file(engine string) string {
	r.Helper()
	numbers := make([]string, r.settings)
	for i := range numbers {
		numbers[i] = strconv.Quote(strconv.Itoa(i + 1))
	}
	return fmt.Sprintf(`sweep: v1
name: %s
repeats: %s
reuse: off
setting:
  model:    {name: sim-model, precision: bf16}
  image:    {kind: host, path: %q, digest: %q}
  engine:   {kind: command, command: ["--listen", "{host}:{port}", "--decode-rate", "50", "--prefill-rate", "4000", "--sequence-cost", "0s", "--noise", "run=0.005"]}
  hardware: {%s}
  workload:
    kind: serving
    request: {endpoint: completions, ignore_eos: true, temperature: 0, top_p: 1}
    arrival: {process: closed, concurrency: 20}
    input_tokens:  {distribution: constant, value: 80}
    output_tokens: {distribution: constant, value: 190}
    warmup: 0s
    ramp: 0s
    duration: 4s
    drain: 5s
    seed: 7
matrix:
  engine.env.SIM_SETTING: [%s]
`, r.name, r.repeats, engine, digest(r.T, engine), r.hardware, strings.Join(numbers, ", "))
}

// write puts a sweep file where a schedule can be made of it.
func (r rehearsal) write(text string) string {
	r.Helper()
	path := filepath.Join(r.TempDir(), "nightly.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
	return path
}

// past runs the sweep once, and inserts synthetic nights around it, each with a run
// on every node.
func (r rehearsal) past(file string) string {
	r.Helper()
	id := env.submit(r.T, file, "--repeats", "1", "--time", r.timeLimit)
	r.ended(id)
	env.must(r.T, "sbench", "dev", "history", id, "--label", "rehearsal of "+r.name, "--nights", "20",
		"--repeats", strconv.Itoa(1+strings.Count(r.nodes, ",")), "--run-cv", fmt.Sprint(r.runCV), "--night-cv", fmt.Sprint(r.nightCV), "--nodes", r.nodes)
	return id
}

func (r rehearsal) ended(id string) {
	r.Helper()
	poll(r.T, 20*time.Minute, "sweep "+id+" to end", func() bool { return env.sweep(r.T, id).Terminal() },
		func() string { return env.exec(r.T, "squeue", "-a").stdout })
}

// night fires the schedule and returns the number of its sweep.
func (r rehearsal) night() string {
	r.Helper()
	env.must(r.T, "sbench", "cron", "run", r.name)
	var id string
	poll(r.T, time.Minute, "the schedule to fire", func() bool {
		c := decode[api.Cron](r.T, env.must(r.T, "sbench", "cron", "show", r.name, "--json"))
		for _, f := range c.Firings {
			if f.SweepID != nil && f.EndedAt == nil {
				id = strconv.FormatInt(*f.SweepID, 10)
			}
		}
		return id != ""
	}, func() string { return env.exec(r.T, "sbench", "cron", "show", r.name).stdout })
	return id
}

// judged waits for the judgement; want is the command's exit status.
func (r rehearsal) judged(id string, want int) api.Night {
	r.Helper()
	r.ended(id)
	out := env.exec(r.T, "sbench", "regressions", id, "--wait", "--json")
	if out.code != want {
		r.Errorf("regressions: exit %d, want %d\n%s\n%s", out.code, want, out.stderr, env.exec(r.T, "sbench", "regressions", id, "--all").stdout)
	}
	nights := decode[[]api.Night](r.T, out.stdout)
	if len(nights) != 1 || nights[0].Report == nil {
		r.Fatalf("%s", out.stdout)
	}
	return nights[0]
}

// published are the settings of the published regressions, by what tells them apart.
func (r rehearsal) published(id string, n api.Night) map[string]regress.Confirmation {
	r.Helper()
	number := map[string]string{}
	for _, s := range env.sweep(r.T, id).Settings {
		number[s.SettingHash] = fmt.Sprint(s.Axes["engine.env.SIM_SETTING"])
	}
	out := map[string]regress.Confirmation{}
	for _, c := range n.Report.Confirmations {
		if c.Published {
			out[number[c.Tonight]] = c
		}
	}
	return out
}

// slowed makes everything take so much longer where a shell condition holds.
func slowed(condition string, by float64) string {
	return fmt.Sprintf(`%s && set -- "$@" --decode-rate %g --prefill-rate %g`, condition, 50/(1+by), 4000/(1+by))
}

func slowSetting(number int, by float64) string {
	return slowed(fmt.Sprintf(`[ "$SIM_SETTING" = %d ]`, number), by)
}

// TestNight: a new image makes one setting slower. The night is judged by itself:
// the old and the new setting are run again side by side, and that one is
// published, the others are not. The night after, another setting is slower and
// nothing pinned changed: it is run again on different nodes, and is published
// because no node explains it.
func TestNight(t *testing.T) {
	r := rehearsal{
		T: t, name: "night", settings: 4, repeats: "2", hardware: "gpu: l4, gpus: 1, nodes: 1, placement: gpu", nodes: "l4-1,l4-2",
		runCV: 0.02, nightCV: 0.01, timeLimit: "10", fault: slowSetting(2, 0.3),
	}
	r.past(r.file(r.engine("")))
	r.repeats = "3"
	env.must(t, "sbench", "cron", "add", r.name, "--schedule", "0 3 1 1 *", r.write(r.file(r.engine(slowSetting(3, 0.3)))))
	defer env.must(t, "sbench", "cron", "rm", r.name)
	id := r.night()
	n := r.judged(id, 5)
	found := r.published(id, n)
	c, ok := found["3"]
	if !ok || len(found) != 1 || c.Method != "interleaved" || c.Cause != regress.CausePinned || c.Metric != "output_tokens_per_s" || c.Synthetic == 0 || *c.Ratio < 1.1 {
		t.Errorf("published %+v", found)
	}
	if n.Confirmation == nil || n.HardwareClass != "emulated" {
		t.Errorf("%+v", n)
	}
	if view := env.must(t, "sbench", "results", fmt.Sprint(*n.Confirmation)); !strings.Contains(view, "emulated") {
		t.Errorf("the runs again:\n%s", view)
	}

	if err := os.WriteFile(r.broken(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id = r.night()
	n = r.judged(id, 5)
	found = r.published(id, n)
	c, ok = found["2"]
	if !ok || len(found) != 1 || c.Method != "predictive" || c.Cause != regress.CauseSoftware || c.NotSpread != "" || len(c.Nodes) != 2 {
		t.Errorf("published %+v", found)
	}
}

// TestNights: of forty settings one gets 8 % slower, and it alone is published; the
// sweep submitted again unchanged runs only canaries; and a node that gets 8 % slower
// is named, also by the reference setting, and no setting is blamed for it.
func TestNights(t *testing.T) {
	r := rehearsal{
		T: t, name: "nights", settings: 40, repeats: "{min: 3, max: 4, until: {metrics: [output_tokens_per_s], relative_ci: 0.2}}",
		hardware: "gpu: h100-sxm, gpus: 1, nodes: 1, placement: node", nodes: "gpu1,gpu2,gpu3,gpu4",
		runCV: 0.012, nightCV: 0.006, timeLimit: "18", fault: slowed(`[ "$(uname -n)" = gpu2 ]`, 0.08),
	}
	first := r.past(r.file(r.engine("")))
	slower := r.file(r.engine(slowSetting(17, 0.08)))
	env.must(t, "sbench", "cron", "add", r.name, "--schedule", "0 3 1 1 *", "--time", r.timeLimit, r.write(slower))
	defer env.must(t, "sbench", "cron", "rm", r.name)
	id := r.night()
	n := r.judged(id, 5)
	found := r.published(id, n)
	if c, ok := found["17"]; !ok || len(found) != 1 || c.Method != "interleaved" {
		t.Errorf("published %+v", found)
	}
	t.Logf("%d candidates of %d series, %d run again", len(n.Report.Candidates), n.Series, len(n.Report.Confirmations))
	r.unchanged(id, strings.Replace(slower, "reuse: off", "reuse: {max_age: 30d, canary: 0.05}", 1))
	r.drift(first)
}

// unchanged submits what was measured last night again: of what is precise only
// canaries run, and that is nearly all: precise is what the sweep asks for, which
// two busy cores can keep.
func (r rehearsal) unchanged(night, file string) {
	r.Helper()
	precise := 0
	var others []string
	for _, s := range decode[api.Results](r.T, env.must(r.T, "sbench", "results", night, "--json")).Settings {
		if slices.Contains(s.Verdicts, "precise") && !slices.Contains(s.Verdicts, "bimodal") && s.NValid == s.NTotal {
			precise++
			continue
		}
		others = append(others, fmt.Sprintf("%.12s %v %d/%d %+v %v", s.SettingHash, s.Verdicts, s.NValid, s.NTotal, s.Metrics["output_tokens_per_s"], s.Findings))
	}
	if precise < 36 {
		r.Fatalf("the machine is too busy to rehearse on: %d of 40 settings are not precise:\n%s", len(others), strings.Join(others, "\n"))
	}
	again := 2 + 40 - precise
	plan := decode[api.SubmitResponse](r.T, env.input(r.T, file, "sbench", "submit", "--test-only", "--json", "-").stdout).Plan
	if len(plan.Canaries) != 2 || len(plan.Skipped) != precise-2 || plan.Runs != 3*again || !(plan.SavedGPUHours > 0) {
		r.Errorf("%d canaries, %d skipped, %d runs, %g GPU-hours saved", len(plan.Canaries), len(plan.Skipped), plan.Runs, plan.SavedGPUHours)
	}
	id := env.submit(r.T, file)
	r.ended(id)
	ran := map[string]bool{}
	for _, run := range env.runs(r.T, id) {
		ran[run.SettingHash] = true
	}
	if len(ran) != again {
		r.Errorf("%d settings ran, %d of them not precise", len(ran), 40-precise)
	}
}

// drift makes gpu2 slower between two nights; nothing that is pinned changes. Each
// of eight settings is run on each node, and one of them is the reference.
func (r rehearsal) drift(first string) {
	r.Helper()
	r.settings, r.repeats = 8, "1"
	env.must(r.T, "sbench", "cron", "update", r.name, "--each-node", "--time", r.timeLimit, r.write(r.file(r.engine(slowSetting(17, 0.08)))))
	sweep := env.sweep(r.T, first)
	env.must(r.T, "sbench", "reference", "set", sweep.Site, sweep.Settings[0].SettingHash)
	defer env.must(r.T, "sbench", "reference", "rm", sweep.Site)
	if err := os.WriteFile(r.broken(), nil, 0o600); err != nil {
		r.Fatal(err)
	}
	id := r.night()
	n := r.judged(id, 0)
	for _, s := range env.sweep(r.T, id).Settings {
		if s.NTotal != 4 {
			r.Errorf("setting %s has %d runs on four nodes", s.SettingHash, s.NTotal)
		}
	}
	named := map[string]bool{}
	for _, e := range n.Report.Nodes {
		named[e.Node] = true
		if e.Effect < 0.04 || e.Effect > 0.12 {
			r.Errorf("%+v", e)
		}
	}
	if len(named) != 1 || !named["gpu2"] {
		r.Errorf("outliers %+v", n.Report.Nodes)
	}
	for _, ref := range n.Report.References {
		if ref.Drift != (ref.Node == "gpu2") {
			r.Errorf("the reference setting on %s: %+v", ref.Node, ref)
		}
	}
	if len(n.Report.References) != 4 {
		r.Errorf("%d nodes have the reference setting", len(n.Report.References))
	}
	text := env.must(r.T, "sbench", "regressions", id)
	for _, want := range []string{"node gpu2 is", "the reference setting on gpu2 is"} {
		if !strings.Contains(text, want) {
			r.Errorf("no %q in\n%s", want, text)
		}
	}
}
