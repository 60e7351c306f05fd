package collect_test

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/aggregate"
	"sbench/internal/collect"
	"sbench/internal/lifecycle"
	"sbench/internal/store"
)

func TestCollect_WholeSweep(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, 3)
	for i, run := range l.runs[:5] {
		l.measured(run, int64(100+i))
	}
	if got := l.tick(); got != (collect.Report{Ingested: 5, Settled: 1}) {
		t.Errorf("first tick %+v", got)
	}
	if got := l.tick(); got != (collect.Report{}) {
		t.Errorf("nothing new, and yet %+v", got)
	}
	partial, err := l.store.PartialSummaries(t.Context(), l.sweep)
	if err != nil {
		t.Fatal(err)
	}
	if p := partial[l.hashes[1]]; p.NValid != 2 || p.NTotal != 3 || p.IsFinal || p.Metrics["output_tokens_per_s"].Mean == nil {
		t.Errorf("partial summary %+v", p)
	}
	views, err := l.store.PartialViews(t.Context(), l.sweep, nil)
	if err != nil {
		t.Fatal(err)
	}
	if v := views[l.hashes[1]]; len(views) != 1 || v.NValid != 2 || v.HardwareClass != "emulated" || !json.Valid(v.Metrics) {
		t.Errorf("partial views %+v", views)
	}
	l.seal(l.manifest(l.runs[5], 105, lifecycle.ExitDriftArtefact), nil)
	if got := l.tick(); got != (collect.Report{Ingested: 1, Settled: 1}) {
		t.Errorf("last tick %+v", got)
	}
	for i, want := range []lifecycle.RunState{"complete", "complete", "complete", "complete", "complete", "dead"} {
		if got := l.state(l.runs[i]); got != want {
			t.Errorf("run %d is %s, want %s", i, got, want)
		}
	}
	sweep, err := l.store.Sweep(t.Context(), l.sweep)
	if err != nil {
		t.Fatal(err)
	}
	if sweep.State != store.SweepIncomplete || sweep.EndedAt == nil {
		t.Errorf("sweep is %s, ended %v", sweep.State, sweep.EndedAt)
	}
	var nValid, nTotal, version int
	var final bool
	var summed map[string]aggregate.Metric
	var args json.RawMessage
	var rate float64
	l.query(`select n_valid, n_total, version, is_final, metrics, engine_args, workload_arrival_rate_per_s from aggregate where setting_hash = '`+l.hashes[1]+`'`,
		&nValid, &nTotal, &version, &final, &summed, &args, &rate)
	if nValid != 2 || nTotal != 3 || version != 1 || !final || string(args) != `{"max-num-seqs": "256"}` || rate != 8 {
		t.Errorf("aggregate %d/%d version %d final %v args %s rate %v", nValid, nTotal, version, final, args, rate)
	}
	l.query(`select metrics from aggregate where setting_hash = '`+l.hashes[0]+`'`, &summed)
	merged, own := summed["ttft_p95_merged"], summed["ttft_p95_mean_of_runs"]
	if merged.Mean == nil || merged.CILow == nil || own.Mean == nil {
		t.Fatalf("merged %+v, runs %+v", merged, own)
	}
	// Runs 1, 2 and 3 have TTFTs of 41..47, 42..48 and 43..49 ms: their p95 are
	// the largest ones but for rounding, and so is the merged one.
	if *merged.Mean != 0.048 || math.Abs(*own.Mean-0.048) > 1e-9 {
		t.Errorf("merged p95 %v, mean of runs %v", *merged.Mean, *own.Mean)
	}
	var valid bool
	var class, name string
	var ttft float64
	l.query(`select valid, hardware_class, model_name, ttft_p50 from result where run_id = 1`, &valid, &class, &name, &ttft)
	if !valid || class != "emulated" || name != "model-0" || ttft != 0.044 {
		t.Errorf("result %v %s %s %v", valid, class, name, ttft)
	}
}

// TestCollect_LateResultReopens: what arrives after the end is summed up in a
// further version, and nothing is counted twice.
func TestCollect_LateResultReopens(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 2)
	l.measured(l.runs[0], 100)
	l.seal(l.manifest(l.runs[1], 101, lifecycle.ExitDriftArtefact), nil)
	l.tick()
	sweep, _ := l.store.Sweep(t.Context(), l.sweep)
	if sweep.State != store.SweepIncomplete {
		t.Fatalf("sweep is %s", sweep.State)
	}
	l.measured(l.runs[1], 99)  // the manifest of an earlier job
	l.measured(l.runs[0], 102) // a second measurement of what is complete
	if got := l.tick(); got != (collect.Report{Ingested: 2, Settled: 1}) {
		t.Errorf("late tick %+v", got)
	}
	sweep, _ = l.store.Sweep(t.Context(), l.sweep)
	if sweep.State != store.SweepComplete {
		t.Errorf("sweep is %s", sweep.State)
	}
	var versions []int
	var valid []int
	l.query(`select array_agg(version order by version), array_agg(n_valid order by version) from aggregate`, &versions, &valid)
	if diff := cmp.Diff([]int{1, 2}, versions); diff != "" {
		t.Errorf("versions: %s", diff)
	}
	if diff := cmp.Diff([]int{1, 2}, valid); diff != "" {
		t.Errorf("n_valid: %s", diff)
	}
}

// TestCollect_Retry: what failed goes back to pending once the tracker has
// settled its task, and is measured later.
func TestCollect_Retry(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 1)
	l.seal(l.manifest(l.runs[0], 100, lifecycle.ExitStaging), nil)
	if got := l.tick(); got != (collect.Report{Ingested: 1}) {
		t.Errorf("tick %+v", got)
	}
	l.settleTasks()
	if got := l.state(l.runs[0]); got != lifecycle.RunPending {
		t.Fatalf("run is %s", got)
	}
	l.submit(l.runs[0])
	l.measured(l.runs[0], 101)
	if got := l.tick(); got != (collect.Report{Ingested: 1, Settled: 1}) {
		t.Errorf("tick %+v", got)
	}
	if got := l.state(l.runs[0]); got != lifecycle.RunComplete {
		t.Errorf("run is %s", got)
	}
}

// TestCollect_Twice: a collector that starts again, or a second one, finds
// nothing to count again.
func TestCollect_Twice(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, 2)
	for i, run := range l.runs {
		l.measured(run, int64(100+i))
	}
	options := collect.DefaultOptions()
	options.LateEvery = 0
	other := collect.New(l.store, slog.New(slog.NewTextHandler(io.Discard, nil)), options)
	reports := make(chan collect.Report, 2)
	for _, c := range []*collect.Collector{l.collect, other} {
		go func() {
			r, err := c.Tick(t.Context())
			if err != nil {
				t.Error(err)
			}
			reports <- r
		}()
	}
	a, b := <-reports, <-reports
	if a.Ingested+b.Ingested != 4 {
		t.Errorf("ingested %d and %d of 4", a.Ingested, b.Ingested)
	}
	l.tick()
	for table, want := range map[string]int{"attempt": 4, "result": 4, "result_window": 4, "rejected_attempt": 0} {
		if got := l.count(table); got != want {
			t.Errorf("%d rows in %s, want %d", got, table, want)
		}
	}
	sweep, _ := l.store.Sweep(t.Context(), l.sweep)
	if sweep.State != store.SweepComplete {
		t.Errorf("sweep is %s", sweep.State)
	}
}

// TestCollect_CancelledSweepEnds: a sweep that never ran is summed up too.
func TestCollect_CancelledSweepEnds(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 2)
	l.exec(`update run set state = 'cancelled', actor = 'track', changed_at = now()`)
	if got := l.tick(); got != (collect.Report{Settled: 1}) {
		t.Errorf("tick %+v", got)
	}
	sweep, _ := l.store.Sweep(t.Context(), l.sweep)
	if sweep.State != store.SweepCancelled {
		t.Errorf("sweep is %s", sweep.State)
	}
}

// TestCollect_RequestsGone: without its requests an attempt still counts; only
// the merged percentiles are missing, and the summary says so.
func TestCollect_RequestsGone(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 2)
	dir := l.measured(l.runs[0], 100)
	l.tick()
	removeAll(t, dir)
	l.measured(l.runs[1], 101)
	l.tick()
	var valid int
	var warnings []string
	var summed map[string]aggregate.Metric
	l.query(`select n_valid, warnings, metrics from aggregate`, &valid, &warnings, &summed)
	if valid != 2 || summed["ttft_p95_merged"].Mean != nil || summed["ttft_p95_mean_of_runs"].Mean == nil || len(warnings) == 0 {
		t.Errorf("n_valid %d, warnings %q, merged %+v", valid, warnings, summed["ttft_p95_merged"])
	}
}

func TestCollect_FencedEnds(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 1)
	first, err := l.store.Elect(t.Context(), "a", time.Minute)
	if err != nil || first == nil {
		t.Fatal(first, err)
	}
	first.Release()
	second, err := l.store.Elect(t.Context(), "b", time.Minute)
	if err != nil || second == nil {
		t.Fatal(second, err)
	}
	defer second.Release()
	l.measured(l.runs[0], 100)
	old := collect.New(l.store.Fenced(first.Epoch), slog.New(slog.NewTextHandler(io.Discard, nil)), collect.DefaultOptions())
	if err := old.Run(t.Context()); !errors.Is(err, store.ErrFenced) {
		t.Errorf("the deposed collector: %v", err)
	}
	if l.count("attempt") != 0 {
		t.Error("it wrote")
	}
}

// TestCollect_NothingFallsBetween: while a setting is summed up its run is sent
// back, or a further attempt arrives. Whoever comes first, an open run is never
// in a sweep that is over, and every attempt is in the last summary.
func TestCollect_NothingFallsBetween(t *testing.T) {
	t.Parallel()
	l := newLab(t, 20, 1)
	for i, run := range l.runs {
		l.seal(l.manifest(run, int64(100+i), lifecycle.ExitDriftArtefact), nil)
	}
	if got := l.tick(); got.Settled != 20 {
		t.Fatalf("tick %+v", got)
	}
	for round := range 10 {
		run := l.runs[round]
		l.measured(l.runs[10+round], 500)
		done := make(chan error, 2)
		go func() {
			_, err := l.store.Requeue(t.Context(), store.Scope{Runs: []int64{run}}, "ada", "")
			done <- err
		}()
		go func() {
			_, err := l.collect.Tick(t.Context())
			done <- err
		}()
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		var settled bool
		l.query(`select settled from sweep_setting ss join run r using (sweep_id, setting_hash) where r.state = 'pending' order by r.changed_at desc limit 1`, &settled)
		sweep, err := l.store.Sweep(t.Context(), l.sweep)
		if err != nil {
			t.Fatal(err)
		}
		if settled || sweep.State != store.SweepActive {
			t.Fatalf("round %d: settled %v, sweep %s, and a run is pending", round, settled, sweep.State)
		}
	}
	l.tick()
	var stale int
	l.query(`
select count(*) from sweep_setting ss
 where ss.settled and ss.n_valid <> (select count(distinct run_id) from result r where r.valid and r.sweep_id = ss.sweep_id and r.setting_hash = ss.setting_hash)`, &stale)
	if stale != 0 {
		t.Errorf("%d summaries miss an attempt", stale)
	}
}

// TestCollect_ClocksDiffer: a folder whose modification time does not change is looked
// at again, also where the file server's clock is far behind.
func TestCollect_ClocksDiffer(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 3)
	now := time.Now().Add(time.Hour)
	options := collect.DefaultOptions()
	options.Now = func() time.Time { return now }
	l.collect = collect.New(l.store, slog.New(slog.NewTextHandler(io.Discard, nil)), options)
	l.measured(l.runs[0], 100)
	info, err := os.Stat(l.attempts)
	must(t, err)
	for i, later := range []time.Duration{0, time.Second, 2 * time.Minute} {
		now = now.Add(later)
		if i > 0 {
			l.measured(l.runs[i], 100)
			must(t, os.Chtimes(l.attempts, time.Time{}, info.ModTime())) // within the clock's grain
		}
		if got := l.tick(); got.Ingested != 1 {
			t.Errorf("attempt %d: %+v", i, got)
		}
		for range 10 { // the listing is kept by now
			now = now.Add(time.Second)
			l.tick()
		}
		if i == 0 {
			now = now.Add(-10 * time.Second)
			l.collect = collect.New(l.store, slog.New(slog.NewTextHandler(io.Discard, nil)), options)
			l.tick()
		}
	}
}
