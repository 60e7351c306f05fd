package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sbench/internal/api"
	"sbench/internal/compare"
	"sbench/internal/lifecycle"
	"sbench/internal/regress"
	"sbench/internal/result"
	"sbench/internal/seal"
	"sbench/internal/store"
)

// ran is what the runs of one setting of a sweep measured; the node of run k
// is nodes[k], or n1.
type ran struct {
	throughput, latency []float64
	nodes               []string
}

// night submits a sweep with its flags and lets every setting measure what of
// says, in the sweep's order.
func (l *lab) night(of []ran, args ...string) int64 {
	l.t.Helper()
	var id int64
	if _, err := fmt.Sscan(l.ok(append([]string{"submit", "--parsable", "-", "--site", "lab"}, args...)...), &id); err != nil {
		l.t.Fatal(err)
	}
	l.measure(id, of)
	return id
}

// measure ends every open run of a sweep with what its setting measures.
func (l *lab) measure(sweep int64, of []ran) {
	l.t.Helper()
	ctx := l.t.Context()
	views, err := l.store.SettingViews(ctx, sweep)
	if err != nil {
		l.t.Fatal(err)
	}
	ordinal := map[string]int{}
	for i, v := range views {
		ordinal[v.SettingHash] = i
	}
	open, err := l.store.RunsOfSweep(ctx, sweep, []string{"pending"})
	if err != nil {
		l.t.Fatal(err)
	}
	first := open[0].ID
	name := fmt.Sprintf("sb-%020d", first)
	name = "sb-" + strings.NewReplacer("0", "a", "1", "b", "8", "c", "9", "d").Replace(name[3:])
	n := store.NewBatch{
		Token: name, Site: "lab", Cluster: "c1", UserName: l.user, Dir: filepath.Join(l.dir, "spool/batches", name),
		AttemptsDir: filepath.Join(l.dir, "results/attempts"), Digest: "sha256:" + strings.Repeat("0", 64), Shape: json.RawMessage("{}"), TimeLimit: time.Hour,
	}
	for _, r := range open {
		n.Tasks = append(n.Tasks, store.NewTask{TimeLimit: time.Hour, GPUs: 1, Runs: []int64{r.ID}})
	}
	if err := l.store.CreateBatch(ctx, n); err != nil {
		l.t.Fatal(err)
	}
	if ok, err := l.store.TryBatch(ctx, name); err != nil || !ok {
		l.t.Fatal(ok, err)
	}
	if ok, err := l.store.HoldBatch(ctx, name, 1000*(first+1), nil, "", nil); err != nil || !ok {
		l.t.Fatal(ok, err)
	}
	var all []store.Sealed
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(24 * time.Hour * time.Duration(sweep))
	for task, r := range open {
		m := of[ordinal[r.SettingHash]]
		node := "n1"
		if m.nodes != nil {
			node = m.nodes[r.Repeat%len(m.nodes)]
		}
		a := result.Attempt{
			RunID: r.ID, Sweep: sweep, SettingHash: r.SettingHash, SeriesHash: r.SeriesHash, Repeat: r.Repeat, Token: name, TaskIndex: task,
			Site: "lab", Cluster: "c1", JobIDRaw: 1000*(first+1) + int64(task), Nodes: []string{node}, HardwareClass: "emulated", StartedAt: at, EndedAt: at.Add(time.Minute),
		}
		throughput, latency := m.throughput[r.Repeat%len(m.throughput)], m.latency[r.Repeat%len(m.latency)]
		all = append(all, store.Sealed{
			Attempt: store.NewAttempt{
				Attempt: a, Sealed: true, ExitClass: lifecycle.ExitMeasured, Valid: true, EnvVerified: true,
				Dir: seal.Dir(filepath.Join(l.dir, "results/attempts"), r.ID, a.JobIDRaw, 0),
			},
			Result: &result.Result{
				Attempt: a, Valid: true, EnvVerified: true, MetricsVersion: "v1", PlanHash: "p", Findings: []string{}, NullReasons: map[string]string{},
				Metrics: result.Metrics{"output_tokens_per_s": &throughput, "ttft_p95": &latency}, Fingerprint: json.RawMessage("{}"),
			},
			FingerprintHash: "f",
		})
	}
	if _, _, err := l.store.Ingest(ctx, all); err != nil {
		l.t.Fatal(err)
	}
	l.settle(sweep)
}

// by are five runs around 100 tokens/s and 0.1 s, slower by a factor.
func by(slower float64) ran {
	var m ran
	for _, x := range []float64{1, 1.004, 0.997, 1.002, 0.998} {
		m.throughput = append(m.throughput, 100*x/slower)
		m.latency = append(m.latency, 0.1*x*slower)
	}
	return m
}

func TestCompareCommand(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	base := l.night([]ran{by(1), by(1.2)}, "--repeats", "5")
	other := l.night([]ran{by(1), by(1.1)}, "--repeats", "5", "--set", "model.precision=int8")
	both := l.night([]ran{by(1), by(1)}, "--repeats", "5", "--set", "model.precision=int4", "--set", "workload.output_tokens.value=8")

	within := fmt.Sprint(base)
	c := asJSON[api.Comparison](l, "compare", "--sweep", within, "--where", "model.name=tiny", "--vary", "workload.arrival.rate")
	if !c.Ranked || len(c.Entries) != 2 || *c.Entries[0].Rank != 1 || *c.Entries[1].Rank != 2 || c.Entries[1].Pairs[0].Verdict != compare.RegressedCertain {
		t.Fatalf("within a sweep: %+v", c)
	}
	if r := c.Recommendation; r == nil || r.BestThroughput != c.Entries[0].SettingHash || !r.Points[0].Front || r.Points[1].Front {
		t.Errorf("recommendation: %+v", r)
	}
	a, b := c.Entries[0].SettingHash, c.Entries[1].SettingHash
	text := l.ok("compare", a[:16], b[:16], "--recommend")
	for _, want := range []string{"RANK", "workload.arrival.rate", "regressed-certain", "best throughput: " + a[:12]} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	c = asJSON[api.Comparison](l, "compare", within, fmt.Sprint(other), "--vary", "model.precision")
	if len(c.Pairs) != 2 || !c.Ranked || c.Pairs[1].Entries[1].Pairs[0].Verdict != compare.Improved {
		t.Errorf("two sweeps: %+v", c)
	}
	o := l.run("compare", within, fmt.Sprint(both), "--vary", "model.precision")
	if o.status != exitRefused || !strings.Contains(o.stderr, "workload.output_tokens.value: 16, 8") || o.stdout != "\n" {
		t.Errorf("two axes differ: %+v", o)
	}
	o = l.run("compare", within, fmt.Sprint(both), "--vary", "model.precision", "--anyway", "--json")
	if err := json.Unmarshal([]byte(o.stdout), &c); err != nil || o.status != exitOK || c.Ranked || len(c.Pairs[0].Entries[1].Pairs) == 0 {
		t.Errorf("anyway: %v %+v", err, o)
	}
	if text := l.ok("compare", a[:16], b[:16], "--csv"); strings.Count(text, "\n") < 3 || !strings.HasPrefix(text, "base_setting_hash,") {
		t.Errorf("CSV:\n%s", text)
	}
	if text := l.ok("compare", a[:16], b[:16], "--markdown"); !strings.Contains(text, "| ---: | --- |") {
		t.Errorf("Markdown:\n%s", text)
	}
	for _, name := range []string{"front.svg", "front.png"} {
		path := filepath.Join(l.dir, name)
		l.ok("compare", a[:16], b[:16], "--plot", path)
		if info, err := os.Stat(path); err != nil || info.Size() < 1000 {
			t.Errorf("%s: %v", name, err)
		}
	}
	shape := filepath.Join(l.dir, "shape.json")
	for _, test := range []struct{ text, want string }{
		{`{"weight_bytes": 1e9}`, "have to be positive"}, {`{"weight": 1}`, "unknown field"}, {`{`, shape},
	} {
		if err := os.WriteFile(shape, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		l.fails(exitUsage, test.want, "compare", a[:16], b[:16], "--shape", shape)
	}
	text = `{"weight_bytes": 1e9, "active_params": 5e8, "layers": 8, "kv_heads": 4, "head_dim": 64, "heads": 8, "kv_bytes": 2}`
	if err := os.WriteFile(shape, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c = asJSON[api.Comparison](l, "compare", a[:16], b[:16], "--shape", shape)
	if e := c.Entries[0]; e.MBU != nil || !strings.Contains(e.RooflineNote, "no time per token") {
		t.Errorf("roofline of runs without a time per token: %+v", e)
	}
	l.fails(exitUsage, "two settings", "compare", "17")
	l.fails(exitUsage, "unknown axis", "compare", a[:16], b[:16], "--vary", "no.axis")
	l.fails(exitFailed, "no result that is summed up", "compare", a[:16], "0123456789abcdef")
	l.fails(exitUsage, "--where", "compare", "--where", "no.axis == 1", "--vary", "model.precision")
}

// TestAdaptiveRepeats: both ends are said before, what was decided and what the
// numbers are worth after.
func TestAdaptiveRepeats(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := l.file("adaptive.yaml", strings.Replace(demoSweep, "repeats: 2",
		"repeats: {min: 3, max: 10, until: {metrics: [output_tokens_per_s], relative_ci: 0.025}}", 1))
	o := l.run("submit", "--test-only", file)
	if o.status != exitOK || !strings.Contains(o.stdout, "runs       6 to 20\n") || !strings.Contains(o.stdout, "3 to 10") || o.stderr != "" {
		t.Errorf("--test-only: %+v", o)
	}
	if p := asJSON[api.SubmitResponse](l, "submit", "--test-only", file).Plan; p.Runs != 6 || p.RunsMax != 20 || !(p.GPUHours > 3*p.GPUHoursMin) {
		t.Errorf("plan: %d to %d runs, %v to %v GPU-hours", p.Runs, p.RunsMax, p.GPUHoursMin, p.GPUHours)
	}
	text := l.ok("submit", file)
	var id int64
	if _, err := fmt.Sscanf(text, "Submitted sweep %d:", &id); err != nil || !strings.Contains(text, "2 settings, 6 to 20 runs, about ") {
		t.Fatalf("%v: %s", err, text)
	}
	spread := by(1)
	spread.nodes = []string{"n1", "n2", "n3", "n4", "n5"}
	l.measure(id, []ran{spread, spread})
	sweep := asJSON[api.Sweep](l, "show", "sweep", fmt.Sprint(id))
	if st := sweep.Settings[0]; sweep.State == "complete" || sweep.RunsTotal != 10 || st.IsFinal || st.NTotal != 5 || st.Adaptive.State != "open" || st.Adaptive.NMax != 10 {
		t.Errorf("after three runs: sweep %s of %d runs, %+v", sweep.State, sweep.RunsTotal, st)
	}
	l.measure(id, []ran{spread, spread})
	r := asJSON[api.Results](l, "results", fmt.Sprint(id)).Settings[0]
	if !r.IsFinal || r.NTotal != 5 || r.NNodes != 5 || r.Mixed || *r.Reproducibility < 0.99 || r.Verdicts[0] != "precise" || r.Metrics["output_tokens_per_s"].Rule != "stein" {
		t.Errorf("results: %+v", r)
	}
	s := asJSON[api.Setting](l, "show", "setting", r.SettingHash)
	if len(s.Decisions) != 2 || s.Decisions[1].Outcome != "open" || s.Decisions[1].Added != 2 || s.Decisions[0].Outcome != "reached" ||
		s.Decisions[0].Metrics["output_tokens_per_s"].Rule != "stein" || len(s.Results) != 1 || !s.Results[0].IsFinal {
		t.Errorf("setting: %+v %+v", s.Decisions, s.Results)
	}
	for _, args := range [][]string{{"show", "setting", r.SettingHash}, {"show", "sweep", fmt.Sprint(id)}, {"results", fmt.Sprint(id)}} {
		if text := l.ok(args...); !strings.Contains(text, "stopped after 5 runs: output_tokens_per_s ±") {
			t.Errorf("%v does not say why it stopped:\n%s", args, text)
		}
	}
	if text := l.ok("results", fmt.Sprint(id), "--csv"); !strings.Contains(text, ",precise,") {
		t.Errorf("CSV:\n%s", text)
	}
}

func TestCheckCommand(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	base := l.night([]ran{by(1), by(1)}, "--repeats", "5")
	l.ok("baseline", "set", "main", fmt.Sprint(base), "--note", "first")
	if list := asJSON[[]api.Baseline](l, "baseline", "list"); len(list) != 1 || list[0].SweepID != base || list[0].User != l.user {
		t.Fatalf("baselines %+v", list)
	}
	same := fmt.Sprint(l.night([]ran{by(1.002), by(1)}, "--repeats", "5"))
	report := asJSON[api.CheckReport](l, "check", "--baseline", "main", same)
	if report.Counts[regress.Pass] != 2 || report.Series[0].Metrics[0].MDE == nil {
		t.Errorf("unchanged: %+v", report)
	}
	slow := fmt.Sprint(l.night([]ran{by(1), by(1.08)}, "--repeats", "5"))
	junit, markdown := filepath.Join(l.dir, "check.xml"), filepath.Join(l.dir, "check.md")
	o := l.run("check", "--baseline", "main", slow, "--junit", junit, "--markdown", markdown)
	if o.status != exitRegression || !strings.Contains(o.stderr, "1 regressed, 1 pass") || !strings.Contains(o.stdout, "regressed-certain") {
		t.Errorf("8 %% slower: %+v", o)
	}
	for path, want := range map[string]string{junit: `failures="1"`, markdown: "| regressed |"} {
		if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q: %v\n%s", path, want, err, text)
		}
	}
	l.ok("check", "--baseline", "main", slow, "--fail-threshold", "0.15")
	two := ran{throughput: []float64{100, 108}, latency: []float64{0.1, 0.11}}
	noisy := fmt.Sprint(l.night([]ran{two, by(1)}, "--repeats", "2"))
	o = l.run("check", "--baseline", "main", noisy, "--budget", "0", "--json")
	if err := json.Unmarshal([]byte(o.stdout), &report); err != nil || o.status != exitIncomplete || report.Counts[regress.Undecided] == 0 {
		t.Errorf("two noisy runs: %v %+v", err, o)
	}
	l.fails(exitFailed, "no baseline", "check", "--baseline", "other", slow)
	l.fails(exitUsage, "--baseline", "check", slow)
	l.ok("baseline", "rm", "main")
	l.fails(exitFailed, "no baseline", "baseline", "rm", "main")
}

// What is undecided is run again by the rules of a submission: within the quotas,
// on a site that takes sweeps, in the owner's name. A refusal leaves the report.
func TestCheckCommand_RunsAgainByTheRules(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	base := l.night([]ran{by(1), by(1)}, "--repeats", "5")
	l.ok("baseline", "set", "main", fmt.Sprint(base))
	two := ran{throughput: []float64{100, 108}, latency: []float64{0.1, 0.11}}
	noisy := l.night([]ran{two, by(1)}, "--repeats", "2")
	ask := func() (api.Confirmation, error) {
		return api.NewClient(l.socket).Confirm(t.Context(), api.ConfirmRequest{
			CheckRequest: api.CheckRequest{Baseline: "main", SweepID: noisy, Threshold: 0.05}, Budget: 40,
		})
	}
	refused := func(want string) {
		t.Helper()
		if _, err := ask(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	l.ok("quota", "set", "0.001", "--period", "year")
	refused("GPU-hours")
	junit := filepath.Join(l.dir, "refused.xml")
	o := l.run("check", "--baseline", "main", fmt.Sprint(noisy), "--junit", junit)
	if text, err := os.ReadFile(junit); o.status != exitIncomplete || err != nil || !strings.Contains(string(text), `errors="`) || !strings.Contains(o.stderr, "not run again") {
		t.Errorf("over the quota: %+v, %v", o, err)
	}
	l.ok("quota", "set", "1000", "--period", "year")
	l.ok("site", "drain", "lab", "--reason", "maintenance")
	refused("takes no new sweeps")
	l.ok("site", "resume", "lab")
	first, err := ask()
	if err != nil || first.SweepID == 0 || first.Runs == 0 || first.Runs > 40 {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := ask(); err != nil || again != first {
		t.Errorf("asked twice: %+v, %v", again, err)
	}
	sweep := asJSON[api.Sweep](l, "show", "sweep", fmt.Sprint(first.SweepID))
	if sweep.User != l.user || !strings.HasSuffix(sweep.Name, "-confirm") || sweep.RunsTotal != first.Runs || sweep.GPUHours == nil || *sweep.GPUHours <= 0 {
		t.Errorf("%+v", sweep)
	}
}

// The nights of a schedule as users see them.
func TestRegressionsCommand(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	plain := l.night([]ran{by(1), by(1)}, "--repeats", "5")
	l.fails(exitFailed, "not submitted by a schedule", "regressions", fmt.Sprint(plain))
	if o := l.run("regressions"); o.status != exitOK || strings.Count(o.stdout, "\n") != 1 {
		t.Errorf("no night: %+v", o)
	}
	l.fails(exitUsage, "--wait", "regressions", "--wait")
	done := asJSON[api.InsertedNights](l, "dev", "history", fmt.Sprint(plain), "--label", "rehearsal", "--nights", "12")
	if done.Nights != 24 {
		t.Errorf("%+v", done)
	}
	l.fails(exitUsage, "--label", "dev", "history", fmt.Sprint(plain))
	setting := asJSON[api.Sweep](l, "show", "sweep", fmt.Sprint(plain)).Settings[0].SettingHash
	l.judged(plain, setting)
	o := l.run("regressions", fmt.Sprint(plain), "--wait")
	for _, want := range []string{"regressed", "+8.1 %", "node n7 is slow (ttft_p95)", "driver: 2 tonight, 1 before", "all of l4 shifted: ttft_p95 +5.0 % over 30 series", "emulated hardware", "12 synthetic nights"} {
		if o.status != exitRegression || !strings.Contains(o.stdout, want) {
			t.Errorf("the night lacks %q: %+v", want, o)
		}
	}
	for _, args := range [][]string{{"regressions", "--json"}, {"regressions", "--since", "2020-01-01", "--site", "lab", "--json"}} {
		var nights []api.Night
		o := l.run(args...)
		if err := json.Unmarshal([]byte(o.stdout), &nights); err != nil || o.status != exitRegression || len(nights) != 1 || nights[0].Cron != "nightly" || nights[0].Published() != 1 {
			t.Errorf("%v: %v %+v", args, err, o)
		}
	}
	// The lab's clock is long past what these settings measured.
	var alarms []api.Alarm
	o = l.run("alarms", "--since", "now-1days", "--stuck", "1h", "--json")
	if err := json.Unmarshal([]byte(o.stdout), &alarms); err != nil || o.status != exitIncomplete || len(alarms) != 1 || alarms[0].Kind != "stale_settings" {
		t.Errorf("%v %+v", err, o)
	}
	if o := l.run("alarms", "--stale", "200000h"); o.status != exitOK || strings.Count(o.stdout, "\n") != 1 {
		t.Errorf("nothing is stale: %+v", o)
	}
	l.fails(exitUsage, "--pass-rate", "alarms", "--pass-rate", "2")
	l.ok("reference", "set", "lab", setting[:16])
	if list := asJSON[[]api.Reference](l, "reference", "list"); len(list) != 1 || list[0].SettingHash != setting || list[0].SetBy != l.user {
		t.Errorf("%+v", list)
	}
	l.ok("reference", "rm", "lab")
	if list := asJSON[[]api.Reference](l, "reference", "list"); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// judged stores the judgement of a sweep as if a schedule had submitted it.
func (l *lab) judged(sweep int64, setting string) {
	l.t.Helper()
	ctx := l.t.Context()
	must := func(err error) {
		l.t.Helper()
		if err != nil {
			l.t.Fatal(err)
		}
	}
	_, err := l.store.AddCron(ctx, store.NewCron{
		Name: "nightly", UserName: l.user, UID: os.Getuid(), Schedule: "0 22 * * *", TimeZone: "UTC", Overlap: "skip", CatchUp: "last", AtWindowEnd: "continue",
		Site: "lab", FileDigest: "x", SettingsDigest: "x", Options: json.RawMessage(`{}`),
	})
	must(err)
	crons, err := l.store.Crons(ctx, l.user, "nightly")
	must(err)
	_, err = l.store.FireCron(ctx, crons[0], 0, l.user)
	must(err)
	waiting, err := l.store.WaitingFirings(ctx)
	must(err)
	must(l.store.MoveFiring(ctx, waiting[0].ID, store.FiringSubmitted, "", &sweep, 1))
	l.fails(exitIncomplete, "1 night not judged yet", "regressions", fmt.Sprint(sweep))
	ratio, p := 1.081, 1e-6
	c := regress.Candidate{Series: setting, Stratum: "l4", Metric: "ttft_p95", Tonight: setting, Before: setting, Synthetic: 12}
	report, err := json.Marshal(regress.Report{
		Screened: regress.Screened{
			Screened: 2, Candidates: []regress.Candidate{c}, Unscreened: map[string]int{},
			Drifts: []regress.Drift{{Stratum: "l4", Metric: "ttft_p95", Shift: 0.05, P: 1e-9, Series: 30}},
		},
		Nodes:         []regress.NodeEffect{{Node: "n7", Metric: "ttft_p95", Effect: 0.1, Advice: "n7 is slow"}},
		Confirmations: []regress.Confirmation{{Candidate: c, Confirmed: true, Published: true, Ratio: &ratio, ConfirmP: &p, Reason: "worse"}},
		Environments:  []regress.Unlike{{Series: setting, Lines: []string{"driver: 2 tonight, 1 before"}}},
	})
	must(err)
	must(l.store.BeginNight(ctx, store.Night{SweepID: sweep, State: store.NightJudged, NSeries: 2, NCandidates: 1, Report: report}))
}
