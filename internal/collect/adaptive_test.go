package collect_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/aggregate"
	"sbench/internal/collect"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/store"
)

const adaptivePolicy = `{"min":3,"max":10,"until":{"metrics":["output_tokens_per_s"],"relative_ci":0.025}}`

// newAdaptiveLab is a lab of one setting with 3 to 10 runs, all three submitted.
func newAdaptiveLab(t *testing.T) *lab {
	t.Helper()
	l := newLab(t, 1, 3)
	l.repeats = 1000
	l.exec(`update sweep set repeats = $1 where id = $2`, adaptivePolicy, l.sweep)
	l.exec(`update sweep_setting set repeats_max = 10, adding = 'open' where sweep_id = $1`, l.sweep)
	return l
}

// throughput seals a valid attempt of a run with that many tokens/s.
func (l *lab) throughput(run int64, tokens float64, at time.Time) {
	l.t.Helper()
	m := l.manifest(run, 1000+run, lifecycle.ExitMeasured)
	if !at.IsZero() {
		m.Attempt.StartedAt, m.Attempt.EndedAt = at, at.Add(time.Minute)
	}
	l.seal(m, func(int) int64 { return 40 }, func(r *result.Result) { r.Metrics["output_tokens_per_s"] = &tokens })
}

// added submits the runs that are pending, and returns them.
func (l *lab) added() []int64 {
	l.t.Helper()
	var pending []int64
	l.query(`select coalesce(array_agg(id order by id), '{}') from run where state = 'pending' and not held`, &pending)
	l.submit(pending...)
	return pending
}

type logged struct {
	Planned, Valid, Added int
	Outcome               aggregate.Outcome
}

func (l *lab) decisions() []logged {
	l.t.Helper()
	views, err := l.store.DecisionsOfSetting(l.t.Context(), l.hashes[0], 100)
	if err != nil {
		l.t.Fatal(err)
	}
	var out []logged
	for _, v := range views {
		if v.Reason == "" || len(v.Metrics) != 1 {
			l.t.Errorf("decision %d: %+v", v.Ordinal, v)
		}
		out = append([]logged{{v.NPlanned, v.NValid, v.Added, v.Outcome}}, out...)
	}
	return out
}

func (l *lab) wantDecisions(want ...logged) {
	l.t.Helper()
	if diff := cmp.Diff(want, l.decisions()); diff != "" {
		l.t.Errorf("decisions (-want +got):\n%s", diff)
	}
}

// view is the setting and its sweep as people see them.
func (l *lab) view() (store.SettingView, store.SweepView) {
	l.t.Helper()
	settings, err := l.store.SettingViews(l.t.Context(), l.sweep)
	if err != nil || len(settings) != 1 {
		l.t.Fatalf("%v, %v", settings, err)
	}
	sweep, err := l.store.SweepView(l.t.Context(), l.sweep)
	if err != nil {
		l.t.Fatal(err)
	}
	return settings[0], sweep
}

// TestAdaptive_GoesOnAndStops: three runs, two more for a pilot, as many as the
// pilot asks for, and then n_total is fixed; what comes late changes no number of
// runs.
func TestAdaptive_GoesOnAndStops(t *testing.T) {
	t.Parallel()
	l := newAdaptiveLab(t)
	for i, run := range l.runs {
		l.throughput(run, []float64{100, 102, 98}[i], time.Time{})
	}
	if got := l.tick(); got != (collect.Report{Ingested: 3, Settled: 1}) {
		t.Errorf("tick %+v", got)
	}
	st, sweep := l.view()
	if st.Repeats != 5 || st.RepeatsMax != 10 || st.Adding != store.AddingOpen || st.Settled || sweep.NRuns != 5 || sweep.State != store.SweepActive {
		t.Errorf("after 3 runs: %d of %d, %s, settled %v; sweep %s of %d runs", st.Repeats, st.RepeatsMax, st.Adding, st.Settled, sweep.State, sweep.NRuns)
	}
	if views, _ := l.store.AggregateViews(t.Context(), l.sweep, nil); len(views) != 0 {
		t.Errorf("a summary before the number of runs is fixed: %+v", views)
	}
	if got := l.tick(); got != (collect.Report{}) {
		t.Errorf("nothing has ended, and yet %+v", got)
	}
	for i, run := range l.added() {
		l.throughput(run, []float64{101, 97}[i], time.Time{})
	}
	l.tick()
	more := l.added() // Stein: t(4)² · 2.07 %² / 2.47 %² = 5.4
	if len(more) != 1 {
		t.Fatalf("%d runs added to the pilot", len(more))
	}
	l.throughput(more[0], 103, time.Time{})
	l.tick()
	l.wantDecisions(logged{3, 3, 2, aggregate.Open}, logged{5, 5, 1, aggregate.Open}, logged{6, 6, 0, aggregate.Reached})
	st, sweep = l.view()
	if st.Repeats != 6 || st.Adding != store.AddingEnded || !st.Settled || sweep.State != store.SweepComplete || !strings.Contains(st.StopReason, "stopped after 6 runs") {
		t.Errorf("at the end: %d, %s, settled %v, %q; sweep %s", st.Repeats, st.Adding, st.Settled, st.StopReason, sweep.State)
	}
	var final bool
	var total int
	var verdicts []string
	var summed map[string]aggregate.Metric
	l.query(`select is_final, n_total, verdicts, metrics from aggregate where version = 1`, &final, &total, &verdicts, &summed)
	if m := summed["output_tokens_per_s"]; !final || total != 6 || verdicts[0] != "precise" || m.Rule != "stein" || *m.RelativeCI > 0.025 {
		t.Errorf("final %v, n_total %d, %v, %+v", final, total, verdicts, m)
	}
	// A second measurement of a run, and the pilot's rule again: one more version.
	l.seal(l.manifest(l.runs[0], 99, lifecycle.ExitMeasured), func(int) int64 { return 40 })
	l.tick()
	var versions int
	l.query(`select count(*), max(n_total) from aggregate`, &versions, &total)
	if versions != 2 || total != 6 || len(l.decisions()) != 3 {
		t.Errorf("late: %d versions, n_total %d, %d decisions", versions, total, len(l.decisions()))
	}
}

// TestAdaptive_History: with what earlier nights say, three quiet runs are enough.
func TestAdaptive_History(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 14)
	for i, run := range l.runs {
		l.throughput(run, 100+float64(i%3), time.Now().Add(-48*time.Hour))
	}
	l.tick()
	spec, err := l.store.SettingSpecs(t.Context(), l.hashes[0])
	if err != nil {
		t.Fatal(err)
	}
	n := store.NewSweep{Name: "next", UserName: "ada", UID: 1000, Site: "lab", HardwareClass: "emulated", Repeats: json.RawMessage(adaptivePolicy)}
	n.Settings = []store.NewSetting{{
		Hash: spec[0].SettingHash, SeriesHash: spec[0].SeriesHash, CanonicalSpec: spec[0].CanonicalSpec, Setting: spec[0].Setting, Repeats: 3, RepeatsMax: 10,
	}}
	if l.sweep, _, err = l.store.CreateSweep(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	l.runs, l.repeats = l.added(), 1000
	for i, run := range l.runs {
		l.throughput(run, 101+0.5*float64(i), time.Now())
	}
	l.tick()
	l.wantDecisions(logged{3, 3, 0, aggregate.Reached})
	var rule string
	l.query(`select metrics -> 'output_tokens_per_s' ->> 'rule' from aggregate where sweep_id = (select max(id) from sweep)`, &rule)
	if rule != "pooled" {
		t.Errorf("rule %s", rule)
	}
}

// TestAdaptive_Dead: what can never succeed is not tried more often; sent back, it
// is decided again.
func TestAdaptive_Dead(t *testing.T) {
	t.Parallel()
	l := newAdaptiveLab(t)
	l.throughput(l.runs[0], 100, time.Time{})
	l.throughput(l.runs[1], 101, time.Time{})
	l.seal(l.manifest(l.runs[2], 102, lifecycle.ExitDriftArtefact), nil)
	l.tick()
	l.wantDecisions(logged{3, 2, 0, aggregate.Dead})
	st, sweep := l.view()
	if st.Adding != store.AddingCut || !st.Settled || sweep.State != store.SweepIncomplete {
		t.Errorf("%s, settled %v, sweep %s", st.Adding, st.Settled, sweep.State)
	}
	if _, err := l.store.Requeue(t.Context(), store.Scope{Runs: l.runs[2:]}, "ada", ""); err != nil {
		t.Fatal(err)
	}
	l.submit(l.runs[2])
	l.throughput(l.runs[2], 99, time.Time{})
	l.tick()
	l.wantDecisions(logged{3, 2, 0, aggregate.Dead}, logged{3, 3, 2, aggregate.Open})
	if _, sweep := l.view(); sweep.State != store.SweepActive || sweep.NRuns != 5 {
		t.Errorf("sweep %s of %d runs", sweep.State, sweep.NRuns)
	}
}

// TestAdaptive_Cancel: a cancelled sweep gets no more runs, also where none was
// open when it was cancelled.
func TestAdaptive_Cancel(t *testing.T) {
	t.Parallel()
	l := newAdaptiveLab(t)
	for _, run := range l.runs {
		l.throughput(run, 100+float64(run), time.Time{})
	}
	if _, err := l.store.Cancel(t.Context(), store.Scope{Sweeps: []int64{l.sweep + 1}}, "ada", ""); err != nil {
		t.Fatal(err)
	}
	if st, _ := l.view(); st.Adding != store.AddingOpen {
		t.Errorf("another sweep's cancellation: %s", st.Adding)
	}
	l.exec(`update run set state = 'complete', actor = 'collect' where sweep_id = $1`, l.sweep)
	if _, err := l.store.Cancel(t.Context(), store.Scope{Sweeps: []int64{l.sweep}}, "ada", ""); err != nil {
		t.Fatal(err)
	}
	l.tick()
	l.wantDecisions(logged{3, 3, 0, aggregate.Cancelled})
	if st, sweep := l.view(); st.Repeats != 3 || !st.Settled || sweep.EndedAt == nil {
		t.Errorf("%d runs, settled %v, sweep %s", st.Repeats, st.Settled, sweep.State)
	}
}

// TestAdaptive_Held: what is added to a held setting waits for its release.
func TestAdaptive_Held(t *testing.T) {
	t.Parallel()
	l := newAdaptiveLab(t)
	scope := store.Scope{Settings: l.hashes}
	if _, err := l.store.Hold(t.Context(), scope); err != nil {
		t.Fatal(err)
	}
	for _, run := range l.runs {
		l.throughput(run, 100+float64(run), time.Time{})
	}
	l.tick()
	if got := l.added(); len(got) != 0 {
		t.Errorf("runs %v are not held", got)
	}
	if _, err := l.store.Release(t.Context(), scope); err != nil {
		t.Fatal(err)
	}
	if got := l.added(); len(got) != 2 {
		t.Errorf("%d runs after the release", len(got))
	}
	if st, _ := l.view(); st.Adding != store.AddingOpen {
		t.Errorf("released, and yet %s", st.Adding)
	}
}

// TestAdaptive_DecidedOnce: a decision counts once, whoever took it when, and
// what became of the setting meanwhile makes it stale.
func TestAdaptive_DecidedOnce(t *testing.T) {
	t.Parallel()
	l := newAdaptiveLab(t)
	for _, run := range l.runs {
		l.throughput(run, 100+float64(run), time.Time{})
	}
	l.tick() // adds two
	key := store.SettingKey{SweepID: l.sweep, SettingHash: l.hashes[0]}
	l.exec(`update run set state = 'cancelled', actor = 'admit' where state = 'pending'`)
	used, err := l.store.Results(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	settle := func(d *aggregate.Decision) (stale bool, err error) {
		t.Helper()
		done, err := l.store.SettleAll(t.Context(), []store.Settlement{{Key: key, Used: used, Decision: d}})
		return err == nil && done[0].Stale, err
	}
	for name, test := range map[string]struct {
		decision *aggregate.Decision
		stale    bool
	}{
		"of before":        {&aggregate.Decision{Outcome: aggregate.Open, Add: 2, Planned: 3, NValid: 3}, true},
		"none":             {nil, true},
		"above the most":   {&aggregate.Decision{Outcome: aggregate.Open, Add: 6, Planned: 5, NValid: 3}, false},
		"adds and stops":   {&aggregate.Decision{Outcome: aggregate.Reached, Add: 1, Planned: 5, NValid: 3}, false},
		"open adds nobody": {&aggregate.Decision{Outcome: aggregate.Open, Planned: 5, NValid: 3}, false},
	} {
		if stale, err := settle(test.decision); stale != test.stale || (err == nil) != test.stale {
			t.Errorf("%s: stale %v, %v", name, stale, err)
		}
	}
	l.exec(`update sweep_setting set adding = 'barred'`)
	if stale, err := settle(&aggregate.Decision{Outcome: aggregate.Open, Add: 1, Planned: 5}); !stale || err != nil {
		t.Errorf("of a setting that was cancelled meanwhile: stale %v, %v", stale, err)
	}
	if st, sweep := l.view(); st.Repeats != 5 || sweep.NRuns != 5 || len(l.decisions()) != 1 {
		t.Errorf("%d runs, %d in the sweep, %d decisions", st.Repeats, sweep.NRuns, len(l.decisions()))
	}
}
