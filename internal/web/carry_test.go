package web_test

import (
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/aggregate"
	"sbench/internal/api"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/store"
)

// A sweep that is submitted again stands on what was measured, but for a canary;
// --force, reuse: off and results that are not clean run everything.
func TestSubmit_CarriesFreshResults(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("a"))
	first := get[api.Sweep](e, "ada", "/v1/sweeps/1?runs=1")
	e.measured(1, nil)
	second := post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("b"))
	if p := second.Plan; len(p.Skipped) != 1 || len(p.Canaries) != 1 || p.Runs != 3 || p.SavedGPUHours <= 0 || len(second.Notes) != 1 {
		t.Fatalf("got %+v %v", p, second.Notes)
	}
	skipped := second.Plan.Skipped[0]
	if !strings.Contains(skipped.Reason, "carried from sweep 1") {
		t.Errorf("got %+v", skipped)
	}
	again := get[api.Sweep](e, "ada", "/v1/sweeps/2?runs=1")
	if len(again.RunList) != 3 {
		t.Errorf("%d runs, want the canary's 3", len(again.RunList))
	}
	results := get[api.Results](e, "ada", "/v1/sweeps/2/results")
	for i, r := range results.Settings {
		carried := r.SettingHash == skipped.SettingHash
		if (r.CarriedFrom != nil) != carried || r.IsFinal != carried || r.SettingHash != first.Settings[i].SettingHash {
			t.Errorf("got %+v", r)
		}
		if carried && (r.CarriedFrom.SweepID != 1 || r.NValid != 3 || r.NTotal != 3 || r.Metrics["output_tokens_per_s"].Mean == nil) {
			t.Errorf("got %+v", r)
		}
	}
	// The canary's collector doubts what is carried: it is run after all.
	e.measured(2, nil, store.Reopen{Stratum: "h100-sxm/llamacpp/tiny", Reason: "not carried: ttft_p50"})
	doubted := get[api.Sweep](e, "ada", "/v1/sweeps/2?runs=1")
	if doubted.State == "complete" || len(doubted.RunList) != 6 || doubted.RunsTotal != 6 {
		t.Errorf("got %s with %d runs", doubted.State, len(doubted.RunList))
	}
	for _, r := range get[api.Results](e, "ada", "/v1/sweeps/2/results").Settings {
		if r.CarriedFrom != nil {
			t.Errorf("still carried: %+v", r)
		}
	}
	forced := request("c")
	forced.Options.Force = true
	off := request("d")
	off.File = strings.Replace(off.File, "reuse: {max_age: 30d}", "reuse: off", 1)
	more, five := request("e"), 5
	more.Options.Repeats = &five
	for _, req := range []api.SubmitRequest{forced, off, more} {
		if p := post[api.SubmitResponse](e, "ada", "/v1/sweeps", req).Plan; len(p.Skipped) != 0 || p.Runs < 6 {
			t.Errorf("%.1s: got %+v", req.IdempotencyKey, p)
		}
	}
	e.measured(3, []string{"saturated"}) // the forced one
	if p := post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("f")).Plan; len(p.Skipped) != 0 {
		t.Errorf("what is labelled was carried: %+v", p)
	}
	e.measured(6, []string{"noisy"})
	if p := post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("g")).Plan; len(p.Skipped) != 0 {
		t.Errorf("what is not precise was carried: %+v", p)
	}
}

// measured gives every run of a sweep a valid result, and sums them up, as the
// submission and the collector do.
func (e *env) measured(sweep int64, findings []string, reopen ...store.Reopen) {
	e.t.Helper()
	ctx := e.t.Context()
	rows, err := e.store.RunsOfSweep(ctx, sweep, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	token := "sb-" + strings.Repeat(strconv.FormatInt(sweep+1, 10), 20)
	n := store.NewBatch{
		Token: token, Site: "lab", Cluster: "c1", UserName: "ada", Dir: "/spool/" + token, AttemptsDir: "/results/attempts",
		Digest: "sha256:" + strings.Repeat("0", 64), Shape: json.RawMessage("{}"), TimeLimit: time.Hour,
	}
	for _, r := range rows {
		n.Tasks = append(n.Tasks, store.NewTask{TimeLimit: time.Hour, GPUs: 1, Runs: []int64{r.ID}})
	}
	if err := e.store.CreateBatch(ctx, n); err != nil {
		e.t.Fatal(err)
	}
	if ok, err := e.store.TryBatch(ctx, token); err != nil || !ok {
		e.t.Fatal(ok, err)
	}
	if ok, err := e.store.HoldBatch(ctx, token, 1000*sweep, nil, "", nil); err != nil || !ok {
		e.t.Fatal(ok, err)
	}
	for i, r := range rows {
		throughput := 100.0
		if noisy := len(findings) > 0 && findings[0] == "noisy"; noisy {
			throughput += 10 * float64(i)
		}
		a := result.Attempt{
			RunID: r.ID, Sweep: sweep, SettingHash: r.SettingHash, SeriesHash: r.SeriesHash, Repeat: r.Repeat, Token: token, TaskIndex: i,
			Site: "lab", Cluster: "c1", JobIDRaw: 1000*sweep + int64(i), Nodes: []string{"n1"}, HardwareClass: "emulated",
			StartedAt: time.Now().Add(-time.Minute), EndedAt: time.Now(),
		}
		_, _, err := e.store.Ingest(ctx, []store.Sealed{{
			Attempt:         store.NewAttempt{Attempt: a, Sealed: true, ExitClass: lifecycle.ExitMeasured, Valid: true, EnvVerified: true, Dir: "/results"},
			FingerprintHash: "f",
			Result: &result.Result{
				Attempt: a, Valid: true, EnvVerified: true, MetricsVersion: "v1", PlanHash: "p", Findings: clean(findings), NullReasons: map[string]string{},
				Metrics: result.Metrics{"output_tokens_per_s": &throughput}, Fingerprint: json.RawMessage("{}"),
			},
		}})
		if err != nil {
			e.t.Fatal(err)
		}
	}
	views, err := e.store.SettingViews(ctx, sweep)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, v := range views {
		if v.Repeats == 0 {
			continue // it is carried
		}
		key := store.SettingKey{SweepID: sweep, SettingHash: v.SettingHash}
		used, err := e.store.Results(ctx, key)
		if err != nil {
			e.t.Fatal(err)
		}
		in := aggregate.Input{NTotal: v.Repeats, Terminal: true}
		for i := range used {
			in.Runs = append(in.Runs, used[i].Run())
		}
		sum, err := aggregate.Compute(in)
		if err != nil {
			e.t.Fatal(err)
		}
		if _, err := e.store.Settle(ctx, key, sum, used, reopen...); err != nil {
			e.t.Fatal(err)
		}
	}
}

// The metrics that are asked for are the same values as among all of them, whether
// they lie in the row or are picked; those of rows from before that, and of what is
// carried, too.
func TestResults_Metrics(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("a"))
	e.measured(1, nil)
	post[api.SubmitResponse](e, "ada", "/v1/sweeps", request("b")) // carries one setting of it
	check := func() {
		t.Helper()
		for _, sweep := range []string{"1", "2"} {
			path := "/v1/sweeps/" + sweep + "/results"
			all := get[api.Results](e, "ada", path)
			for _, names := range [][]string{aggregate.Headline(), {"ttft_p99_merged", "output_tokens_per_s"}, {"no_such_metric"}} {
				want := all
				want.Settings = slices.Clone(all.Settings)
				for i := range want.Settings {
					metrics := map[string]api.Metric{}
					for _, name := range names {
						if m, ok := all.Settings[i].Metrics[name]; ok {
							metrics[name] = m
						}
					}
					want.Settings[i].Metrics = metrics
				}
				got := get[api.Results](e, "ada", path+"?"+url.Values{"metric": names}.Encode())
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("sweep %s, %v: (-all +picked)\n%s", sweep, names, diff)
				}
			}
		}
	}
	check()
	if n := len(get[api.Results](e, "ada", "/v1/sweeps/1/results").Settings[0].Metrics); n < 100 {
		t.Fatalf("%d metrics in all", n)
	}
	err := e.store.WithTx(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.Exec(t.Context(), "set local session_replication_role = replica"); err != nil { // past the rule that nothing is changed
			return err
		}
		_, err := tx.Exec(t.Context(), "update aggregate set headline = null")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	check()
}

// clean are findings about the engine; noise is none.
func clean(findings []string) []string {
	return slices.DeleteFunc(slices.Clone(findings), func(f string) bool { return f == "noisy" })
}
