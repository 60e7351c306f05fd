package sim

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// planned is a workload of a constant rate and lengths.
func planned(t interface{ Fatal(...any) }, change func(*setting.Workload)) *workload.Plan {
	s := setting.Default()
	w := s.Workload
	w.Arrival = setting.Arrival{Process: setting.ProcessConstant, Rate: 2}
	w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 200}
	w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: 11}
	w.Warmup, w.Ramp, w.Duration, w.Drain, w.Seed = 5*time.Second, 0, 60*time.Second, 30*time.Second, 3
	if change != nil {
		change(&w)
	}
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func simulate(t *testing.T, plan *workload.Plan, c Config) ([]result.Request, result.Window) {
	t.Helper()
	rows, windows, err := Simulate(plan, c)
	if err != nil {
		t.Fatal(err)
	}
	return rows, metrics.Compute(rows, windows[0], nil)
}

// One request at a time takes what the cost model says: 200 tokens at 20,000/s, then
// 10 steps at 100/s.
func TestSimulate_CostModel(t *testing.T) {
	t.Parallel()
	rows, w := simulate(t, planned(t, nil), DefaultConfig())
	for _, r := range rows {
		if r.Phase != result.PhaseMeasure {
			continue
		}
		if ttft, e2e := *r.TTok1-r.TIntended, *r.TTokN-r.TIntended; ttft != 10e6 || e2e != 110e6 || len(r.EventTimes) != 11 {
			t.Fatalf("first token after %d ns, last after %d ns, %d events", ttft, e2e, len(r.EventTimes))
		}
	}
	for name, want := range map[string]float64{
		"ttft_p50": 0.010, "tpot_p50": 0.010, "requests_per_s": 2, "output_tokens_per_s": 22, "concurrency_mean": 0.22, "little_ratio": 1,
	} {
		if got := w.Metrics[name]; got == nil || math.Abs(*got-want) > 0.01*want {
			t.Errorf("%s is %v, want %g", name, got, want)
		}
	}
}

// An engine of two slots completes what two slots can, and no more; the rest waits,
// and is cut off when the drain ends.
func TestSimulate_Saturation(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	c.Limits.Slots = 2
	c.Cost.PerSequence = 0
	// A request of 11 tokens: 10 ms of prefill, 10 steps of 10 ms, and in some of
	// them the other's prefill.
	rows, w := simulate(t, planned(t, func(w *setting.Workload) { w.Arrival.Rate, w.Drain = 40, 5*time.Second }), c)
	if got := *w.Metrics["achieved_rate"]; got < 12 || got > 18 {
		t.Errorf("%g requests/s in two slots", got)
	}
	if *w.Metrics["requests_cut_off"] == 0 || *w.Metrics["concurrency_max"] < 500 {
		t.Errorf("%g cut off, at most %g in the system", *w.Metrics["requests_cut_off"], *w.Metrics["concurrency_max"])
	}
	for _, r := range rows {
		if r.TEnd == nil || *r.TEnd > int64(70*time.Second)+1e9 {
			t.Fatalf("a request ended at %v, behind the drain", r.TEnd)
		}
	}
}

// A closed loop never has more in the system than it has slots, and a session's
// turn follows the one before by the think time.
func TestSimulate_ClosedSessions(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	c.Limits.PrefixCacheTokens = 1 << 20
	rows, w := simulate(t, planned(t, func(w *setting.Workload) {
		w.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: 5}
		w.Prompts.Turns, w.Prompts.ThinkTime = 3, 700*time.Millisecond
	}), c)
	if most := *w.Metrics["concurrency_max"]; most > 5 {
		t.Errorf("%g in the system in 5 slots", most)
	}
	ends, later := map[[2]int32]int64{}, 0
	for _, r := range rows {
		if r.Phase == result.PhaseMeasure && r.TEnd != nil {
			ends[[2]int32{r.Session, r.Turn}] = *r.TEnd
		}
	}
	for _, r := range rows {
		before, ok := ends[[2]int32{r.Session, r.Turn - 1}]
		if r.Phase != result.PhaseMeasure || r.Turn == 0 || !ok || r.OutputTokens == nil {
			continue
		}
		later++
		if r.TIntended != before+700e6 {
			t.Errorf("turn %d follows after %d ns", r.Turn, r.TIntended-before)
		}
		if want := 200*(r.Turn+1) + 11*r.Turn; *r.InputTokens != want {
			t.Errorf("turn %d has %d prompt tokens, want %d", r.Turn, *r.InputTokens, want)
		}
		// What was said before is in the cache, up to a block.
		if *r.CachedTokens < 200*r.Turn-blockTokens {
			t.Errorf("turn %d: %d tokens cached", r.Turn, *r.CachedTokens)
		}
	}
	if later < 50 {
		t.Errorf("%d later turns", later)
	}
}

// A stall of the engine is in every request that was due in it.
func TestSimulate_Stall(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	stall, err := ParseFault("stall:at=30s,for=500ms")
	if err != nil {
		t.Fatal(err)
	}
	c.Faults = []Fault{stall}
	rows, _ := simulate(t, planned(t, func(w *setting.Workload) { w.Arrival.Rate, w.Input.Value, w.Output.Value = 200, 20, 1 }), c)
	slow := 0
	for _, r := range rows {
		if r.Phase == result.PhaseMeasure && *r.TTok1-r.TIntended > 100e6 {
			slow++
		}
	}
	if slow < 75 {
		t.Errorf("%d requests waited longer than 100 ms in a stall of 500 ms at 200/s", slow)
	}
}

// Whatever the engine: every planned request has one row, times are in order, and
// the same input gives the same rows.
func TestSimulate_Accounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := DefaultConfig()
		c.Limits.Batching = rapid.SampledFrom([]Batching{Continuous, Static}).Draw(t, "batching")
		c.Limits.Slots = rapid.IntRange(1, 16).Draw(t, "slots")
		c.Limits.KVTokens = rapid.SampledFrom([]int{0, 512, 4096}).Draw(t, "kv")
		c.Limits.Speculative = rapid.IntRange(0, 3).Draw(t, "speculative")
		c.StreamInterval = rapid.IntRange(1, 5).Draw(t, "interval")
		c.EventsPerWrite = rapid.IntRange(1, 3).Draw(t, "writes")
		c.Noise.Step = 0.1
		plan := planned(t, func(w *setting.Workload) {
			w.Arrival.Process, w.Arrival.Rate = setting.ProcessPoisson, rapid.Float64Range(1, 30).Draw(t, "rate")
			w.Input = setting.Lengths{Distribution: setting.DistUniform, Min: 1, Max: 600}
			w.Output = setting.Lengths{Distribution: setting.DistUniform, Min: 1, Max: 40}
			w.Prompts.Turns = rapid.IntRange(1, 2).Draw(t, "turns")
			w.Warmup, w.Duration, w.Drain = time.Second, 5*time.Second, 5*time.Second
		})
		rows, _, err := Simulate(plan, c)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int32]int{}
		for _, r := range rows {
			seen[r.Index]++
			if r.Outcome == result.OutcomeHTTP4xx && c.Limits.KVTokens > 0 {
				continue
			}
			tokens := int32(0)
			for i, e := range r.EventTimes {
				tokens += r.EventTokens[i]
				if e < r.TIntended || (i > 0 && e < r.EventTimes[i-1] && e != 0) {
					t.Fatalf("event %d at %d, due at %d", i, e, r.TIntended)
				}
			}
			if r.Outcome == result.OutcomeOK && (tokens != *r.OutputTokens || tokens != r.OutputPlanned || *r.TTokN != r.EventTimes[len(r.EventTimes)-1]) {
				t.Fatalf("%d tokens in events, %d counted, %d planned", tokens, *r.OutputTokens, r.OutputPlanned)
			}
		}
		for _, r := range plan.Requests {
			if r.Phase == result.PhaseMeasure && r.Turn == 0 && seen[r.Index] != 1 {
				t.Fatalf("request %d has %d rows", r.Index, seen[r.Index])
			}
		}
		again, _, err := Simulate(plan, c)
		if diff := cmp.Diff(rows, again); err != nil || diff != "" {
			t.Fatalf("the same simulation gives other rows: %v\n%s", err, diff)
		}
	})
}
