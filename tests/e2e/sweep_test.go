package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/api"
	"sbench/internal/bundle"
	"sbench/internal/devcluster"
)

// simSweep is a sweep of the simulated engine as a host program: quick, and the
// whole path but the container.
func simSweep(t *testing.T, name string, repeats int, rates string, duration string) string {
	t.Helper()
	return fmt.Sprintf(`sweep: v1
name: %s
repeats: %d
reuse: off
setting:
  model:    {name: sim-model, precision: bf16}
  image:    {kind: host, path: %q, digest: %q}
  engine:   {kind: command, command: ["--listen", "{host}:{port}", "--slots", "64"]}
  hardware: {gpu: l4, gpus: 1, nodes: 1, placement: gpu}
  workload:
    kind: serving
    request: {endpoint: completions, ignore_eos: true, temperature: 0, top_p: 1}
    arrival: {process: poisson, rate: 20/s}
    input_tokens:  {distribution: constant, value: 16}
    output_tokens: {distribution: constant, value: 8}
    warmup: 500ms
    ramp: 0s
    duration: %s
    drain: 5s
    seed: 7
matrix:
  workload.arrival.rate: %s
`, name, repeats, env.bin("sbench-sim"), digest(t, env.bin("sbench-sim")), duration, rates)
}

// TestDemoSweep: the real engine in its container through arrays; the setting
// whose image has changed is refused and named, and the sweep is incomplete.
func TestDemoSweep(t *testing.T) {
	file := filepath.Join(env.root, "docs/examples/demo.yaml")
	flags := []string{
		"--set", "image.digest=" + digest(t, filepath.Join(env.dir, "images/engine.sif")),
		"--set", "model.checkpoint.digest=" + digest(t, filepath.Join(env.dir, "models/model.gguf")),
		"--set", "workload.duration=4s", "--repeats", "2", "--max-inflight", "1",
	}
	out := env.exec(t, append(append([]string{"sbench", "submit", "--wait"}, flags...), file)...)
	if out.code != 4 {
		t.Fatalf("submit --wait: exit %d, want 4 (incomplete)\n%s%s", out.code, out.stdout, out.stderr)
	}
	var id string
	if _, err := fmt.Sscanf(out.stdout, "Submitted sweep %s", &id); err != nil {
		t.Fatalf("submit printed %q: %v", out.stdout, err)
	}
	id = strings.TrimSuffix(id, ":")
	results := decode[api.Results](t, env.must(t, "sbench", "results", id, "--json"))
	if len(results.Settings) != 5 {
		t.Fatalf("%d settings, want 5", len(results.Settings))
	}
	valid := 0
	for _, r := range results.Settings {
		if r.HardwareClass != "emulated" {
			t.Errorf("setting %.12s: hardware class %q, want emulated", r.SettingHash, r.HardwareClass)
		}
		if r.Axes["workload.arrival.rate"] == 12.0 {
			if r.NValid != 0 || r.NTotal != 2 || !strings.Contains(strings.Join(r.Reasons, "\n"), "ENV_DRIFT: image digest") {
				t.Errorf("drifted setting: n_valid %d of %d, reasons %q", r.NValid, r.NTotal, r.Reasons)
			}
			if m := r.Metrics["output_tokens_per_s"]; m.Mean != nil {
				t.Errorf("drifted setting has a number: %v", *m.Mean)
			}
			continue
		}
		if r.NTotal != 2 || !r.IsFinal {
			t.Errorf("setting %.12s: n_total %d, final %v, want 2 and final", r.SettingHash, r.NTotal, r.IsFinal)
		}
		// A machine that was too busy for a true number is said to have been: that
		// is the only other end of a run here.
		for _, reason := range r.Reasons {
			if !strings.HasPrefix(reason, "INVALID: ") {
				t.Errorf("setting %.12s: %q", r.SettingHash, reason)
			}
		}
		m := r.Metrics["output_tokens_per_s"]
		if (r.NValid > 0) != (m.Mean != nil && *m.Mean > 0) {
			t.Errorf("setting %.12s: %d valid runs, throughput %v", r.SettingHash, r.NValid, m.Mean)
		}
		valid += r.NValid
	}
	if valid == 0 {
		t.Error("no run was valid")
	}
	if table := env.must(t, "sbench", "results", id); !strings.Contains(table, "emulated") || !strings.Contains(table, "0/2") {
		t.Errorf("results table:\n%s", table)
	}
}

// TestSameSweepTwice: equal files have equal hashes, and no attempt is shared.
func TestSameSweepTwice(t *testing.T) {
	file := simSweep(t, "twice", 2, "[20/s]", "1s")
	first := env.submit(t, file, "--max-inflight", "1")
	second := env.submit(t, file, "--max-inflight", "1")
	hashes := func(id string) (h []string) {
		for _, s := range env.settle(t, id).Settings {
			h = append(h, s.SettingHash)
		}
		return h
	}
	if diff := cmp.Diff(hashes(first), hashes(second)); diff != "" {
		t.Errorf("setting hashes differ (-first +second):\n%s", diff)
	}
	attempts := map[string]int64{}
	for _, id := range []string{first, second} {
		runs := env.runs(t, id)
		if len(runs) != 2 {
			t.Fatalf("sweep %s: %d runs, want 2", id, len(runs))
		}
		for _, r := range runs {
			wantMeasured(t, r)
			for _, a := range r.Attempts {
				key := fmt.Sprintf("%s/%d/%d/%d", a.Cluster, a.JobIDRaw, a.RestartCount, r.ID)
				if other, taken := attempts[key]; taken {
					t.Errorf("attempt %s is run %d's and run %d's", key, other, r.ID)
				}
				attempts[key] = r.ID
			}
		}
	}
}

// TestBundle: a measured run is packed whole, and is repeated with its own plan;
// an altered bundle is refused.
func TestBundle(t *testing.T) {
	id := env.submit(t, simSweep(t, "bundled", 2, "[20/s]", "1s"), "--max-inflight", "1")
	env.settle(t, id)
	runs := env.runs(t, id)
	at := slices.IndexFunc(runs, func(r api.Run) bool { return r.Repeat == 1 })
	if at < 0 {
		t.Fatalf("%d runs, none with repeat 1", len(runs))
	}
	run := runs[at]
	wantMeasured(t, run)
	name := filepath.Join(t.TempDir(), "run.tar.gz")
	info := decode[bundle.Info](t, env.must(t, "sbench", "bundle", fmt.Sprint(run.ID), "-o", name, "--json"))
	if info.Run != run.ID || info.Repeat != 1 || info.SettingHash != run.SettingHash {
		t.Errorf("got %+v", info)
	}
	var names []string
	for _, f := range info.Files {
		names = append(names, f.Name)
	}
	for _, want := range []string{"sweep.yaml", "spec.json", "fingerprint.json", "plan.jsonl", "batch.sbatch", "attempt/requests.parquet", "attempt/manifest.json"} {
		if !slices.Contains(names, want) {
			t.Errorf("the bundle has no %s: %v", want, names)
		}
	}
	out := env.exec(t, "sbench", "rerun", "--wait", name)
	var again string
	if _, err := fmt.Sscanf(out.stdout, "Submitted sweep %s", &again); err != nil || out.code != 0 && out.code != 4 {
		t.Fatalf("rerun: exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	repeated := env.runs(t, strings.TrimSuffix(again, ":"))
	if len(repeated) != 1 || repeated[0].Repeat != 1 || repeated[0].SettingHash != run.SettingHash {
		t.Fatalf("%d runs, the first of setting %.12s, repeat %d", len(repeated), repeated[0].SettingHash, repeated[0].Repeat)
	}
	wantMeasured(t, repeated[0])
	second := decode[bundle.Info](t, env.must(t, "sbench", "bundle", fmt.Sprint(repeated[0].ID), "-o", name+".2", "--json"))
	if second.PlanHash != info.PlanHash || info.PlanHash == "" {
		t.Errorf("plan %q became %q", info.PlanHash, second.PlanHash)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := env.exec(t, "sbench", "rerun", name); out.code != 2 || !strings.Contains(out.stderr, "damaged") {
		t.Errorf("an altered bundle: exit %d, %s", out.code, out.stderr)
	}
}

// wantMeasured: the run has exactly one valid measurement; or, where the machine
// was too busy for a true number, only attempts that say so.
func wantMeasured(t *testing.T, r api.Run) {
	t.Helper()
	valid := 0
	for _, a := range r.Attempts {
		switch {
		case a.Valid != nil && *a.Valid:
			valid++
		case a.ExitClass == nil || *a.ExitClass != "invalid":
			t.Errorf("run %d: attempt on job %s ended as %v: %q", r.ID, a.SlurmJobID, a.ExitClass, a.Reasons)
		}
	}
	want := 1
	if r.State == "failed" {
		want = 0
	}
	if valid != want || len(r.Attempts) == 0 || (r.State != "complete" && r.State != "failed") {
		t.Errorf("run %d is %s (%s) with %d valid of %d attempts", r.ID, r.State, r.Reason, valid, len(r.Attempts))
	}
}

// TestManySettings: many runs through packed tasks, two tasks at a time; every
// run is measured once.
func TestManySettings(t *testing.T) {
	var rates []string
	for i := 1; i <= 6; i++ {
		rates = append(rates, fmt.Sprintf("%d/s", 10+i))
	}
	id := env.submit(t, simSweep(t, "arrays", 3, "["+strings.Join(rates, ", ")+"]", "500ms"), "--max-inflight", "2")
	env.settle(t, id)
	runs := env.runs(t, id)
	if len(runs) != 18 {
		t.Errorf("%d runs, want 18", len(runs))
	}
	for _, r := range runs {
		wantMeasured(t, r)
	}
}

// TestCancel: a running sweep is ended with grace; nothing of it is left.
func TestCancel(t *testing.T) {
	id := env.submit(t, simSweep(t, "cancelled", 1, "[20/s]", "120s"))
	poll(t, 2*time.Minute, "a run to be running", func() bool {
		return env.sweep(t, id).Runs["running"] > 0
	}, func() string { return env.exec(t, "squeue", "-a").stdout })
	env.must(t, "sbench", "cancel", id)
	sweep := env.settle(t, id)
	if sweep.Runs["cancelled"] != 1 {
		t.Errorf("runs by state: %v, want one cancelled", sweep.Runs)
	}
	engine := "^" + regexp.QuoteMeta(env.bin("sbench-sim")) + " --listen" // others on this machine may have engines
	poll(t, time.Minute, "the engine to be gone", func() bool {
		return !strings.Contains(env.exec(t, "pgrep", "-f", engine).stdout, "\n")
	}, func() string { return env.exec(t, "pgrep", "-af", engine).stdout })
	for _, r := range env.runs(t, id) {
		for _, a := range r.Attempts {
			if a.ExitClass == nil || *a.ExitClass != "cancelled" {
				t.Errorf("run %d attempt: exit class %v, want cancelled (sealed)", r.ID, a.ExitClass)
			}
		}
		if len(r.Attempts) == 0 {
			t.Errorf("run %d: no sealed attempt", r.ID)
		}
	}
}

// TestDaemonKilled: kill -9 of the daemon while a sweep is being submitted, while
// it runs and when it has been given more runs loses nothing, measures nothing
// twice and decides nothing twice.
func TestDaemonKilled(t *testing.T) {
	file := strings.Replace(simSweep(t, "killed", 3, "[20/s]", "1s"), "repeats: 3",
		"repeats: {min: 3, max: 6, until: {metrics: [output_tokens_per_s], relative_ci: 0.5}}", 1)
	id := env.submit(t, file, "--max-inflight", "2")
	lab, err := devcluster.Open(env.dir)
	if err != nil {
		t.Fatal(err)
	}
	kill := func() {
		t.Helper()
		if err := lab.Kill("sbenchd", syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := lab.Restart(t.Context(), "sbenchd"); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		kill()
	}
	poll(t, 3*time.Minute, "the number of runs to be decided about", func() bool {
		s := env.sweep(t, id)
		return s.RunsTotal > 3 || s.Terminal()
	}, func() string { return env.exec(t, "squeue", "-a").stdout })
	kill()
	env.settle(t, id)
	runs := env.runs(t, id)
	for _, r := range runs {
		wantMeasured(t, r)
	}
	wantDecided(t, id, runs, 3, 6)
}

// wantDecided: the log of the one setting's number of runs accounts for all of
// them, and the last decision fixed it.
func wantDecided(t *testing.T, sweep string, runs []api.Run, least, most int) {
	t.Helper()
	result := decode[api.Results](t, env.must(t, "sbench", "results", sweep, "--json")).Settings[0]
	setting := decode[api.Setting](t, env.must(t, "sbench", "show", "setting", result.SettingHash, "--json"))
	n, last := least, ""
	for _, d := range slices.Backward(setting.Decisions) { // oldest first
		if fmt.Sprint(d.SweepID) != sweep {
			continue
		}
		if d.NPlanned != n || (d.Added > 0) != (d.Outcome == "open") || last != "" && last != "open" {
			t.Errorf("decision %d after %s: %+v", d.Ordinal, last, d)
		}
		n, last = n+d.Added, d.Outcome
	}
	if last == "" || last == "open" || len(runs) != n || n < least || n > most || result.NTotal != n || !result.IsFinal {
		t.Errorf("%d runs, %d by the decisions, the last is %q; n_total %d, final %v", len(runs), n, last, result.NTotal, result.IsFinal)
	}
	if a := result.Adaptive; a == nil || a.NMax != most || a.Decided == "" || len(result.Verdicts) == 0 {
		t.Errorf("adaptive %+v, verdicts %v", a, result.Verdicts)
	}
	repeats := map[int]bool{}
	for _, r := range runs {
		repeats[r.Repeat] = true
	}
	if len(repeats) != len(runs) {
		t.Errorf("%d runs with %d different repeats", len(runs), len(repeats))
	}
}

// TestInvalidSweep: a file with faults is refused with all of them, and stored nowhere.
func TestInvalidSweep(t *testing.T) {
	before := env.must(t, "sbench", "queue", "--json")
	out := env.input(t, strings.Replace(simSweep(t, "x", 1, "[20/s]", "1s"), "hardware:", "hardwaer:", 1), "sbench", "submit", "-")
	if out.code != 2 || !strings.Contains(out.stderr, "did you mean \"hardware\"") {
		t.Errorf("exit %d, stderr:\n%s", out.code, out.stderr)
	}
	if after := env.must(t, "sbench", "queue", "--json"); after != before {
		t.Errorf("the queue changed:\n%s\n%s", before, after)
	}
}

// TestPublicFiles: what the attempt left can be read without sbench.
func TestPublicFiles(t *testing.T) {
	id := env.submit(t, simSweep(t, "files", 1, "[20/s]", "1s"))
	env.settle(t, id)
	for _, r := range env.runs(t, id) {
		for _, a := range r.Attempts {
			b, err := os.ReadFile(filepath.Join(a.Directory, "manifest.json"))
			if err != nil {
				t.Fatal(err)
			}
			var manifest struct {
				Files []struct{ Name string } `json:"files"`
			}
			if err := json.Unmarshal(b, &manifest); err != nil {
				t.Fatal(err)
			}
			names := map[string]bool{}
			for _, f := range manifest.Files {
				names[f.Name] = true
			}
			for _, want := range []string{"result.parquet", "window.parquet", "requests.parquet", "telemetry.parquet"} {
				if !names[want] {
					t.Errorf("run %d: the manifest does not vouch for %s: %v", r.ID, want, names)
				}
			}
		}
	}
}

// TestSiteCheck: the private cluster is as its site file says, nodes included.
func TestSiteCheck(t *testing.T) {
	t.Parallel()
	found := decode[api.SiteCheck](t, env.must(t, "sbench", "site", "check", env.site(t), "--json"))
	seen := map[string]int{}
	for _, p := range found.Checks {
		seen[p.Check+" "+p.Verdict]++
		if p.Verdict == api.VerdictFail {
			t.Errorf("%s %s: %s", p.Check, p.Subject, p.Detail)
		}
	}
	for _, want := range []string{
		"controller pass", "partition pass", "hardware pass", "account pass", "qos pass", "limit pass", "path pass", "submission pass", "job pass",
		"shared pass", "container pass", "clock pass",
	} {
		if seen[want] == 0 {
			t.Errorf("no %s among %v", want, found.Checks)
		}
	}
	if out := env.exec(t, "sbench", "site", "check", env.site(t), "--no-job"); out.code != 0 || !strings.Contains(out.stdout, "VERDICT") {
		t.Errorf("exit %d: %s%s", out.code, out.stdout, out.stderr)
	}
}

// site is the name of the cluster's site.
func (c *cluster) site(t *testing.T) string {
	t.Helper()
	return decode[[]api.Site](t, c.must(t, "sbench", "site", "list", "--json"))[0].Name
}

// TestDependencyAndMail: a sweep starts when the one that it waits for is over, and
// its user is told of its beginning and its end, once each.
func TestDependencyAndMail(t *testing.T) {
	t.Parallel()
	first := env.submit(t, simSweep(t, "before", 1, "[20/s]", "1s"))
	second := env.submit(t, simSweep(t, "behind", 1, "[20/s]", "1s"), "-d", "afterany:"+first, "--mail-type", "ALL", "--mail-user", "ada@example.org")
	if s := env.sweep(t, second); s.Dependency != "afterany:"+first || !strings.Contains(s.Reason, first) || s.Runs["pending"] != s.RunsTotal {
		t.Errorf("the second sweep does not wait: %+v", s.SweepSummary)
	}
	after := env.settle(t, second)
	before := env.sweep(t, first)
	for _, r := range env.runs(t, second) {
		for _, a := range r.Attempts {
			if before.EndedAt == nil || a.StartedAt == nil || a.StartedAt.Before(*before.EndedAt) {
				t.Errorf("run %d started at %v, and what it waits for ended at %v", r.ID, a.StartedAt, before.EndedAt)
			}
		}
	}
	want := []string{"has begun", map[string]string{
		"complete": "is complete", "incomplete": "is incomplete: 0 of 1 settings are complete",
	}[after.State]}
	var got []string
	poll(t, time.Minute, "the mail to be sent", func() bool {
		got = nil
		for _, m := range env.sweep(t, second).Mail {
			if m.State != "sent" {
				return false
			}
		}
		files, err := filepath.Glob(env.mailbox() + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if _, rest, ok := strings.Cut(string(text), "To: ada@example.org\nSubject: sbench: sweep "+second+" (behind) "); ok {
				line, _, _ := strings.Cut(rest, "\n")
				got = append(got, line)
			}
		}
		return len(got) >= len(want)
	}, func() string { return fmt.Sprint(env.sweep(t, second).Mail) })
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("mail %q, want %q", got, want)
	}
}
