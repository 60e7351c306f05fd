package audit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// measured is a clean measurement of 300 s at 20/s, each request answered after
// ttft and e2e seconds.
func measured(t *testing.T, change func(in *Input)) Input {
	t.Helper()
	s := setting.Default()
	w := s.Workload
	w.Arrival.Rate = 20
	w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 100}
	w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: 8}
	w.Warmup, w.Ramp, w.Duration, w.Drain, w.Seed = 0, 5*time.Second, 300*time.Second, 5*time.Second, 3
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	rec := &loadgen.Recording{PlanHash: plan.Hash, Served: loadgen.Served{Vocabulary: workload.Vocabulary{Words: []string{"a", "b"}, Base: 3}}}
	for _, r := range plan.Requests {
		rec.Requests = append(rec.Requests, answered(r, 0.1*(1+0.05*rng.NormFloat64()), 0.3*(1+0.05*rng.NormFloat64())))
	}
	zero, little, used, cores := 0.0, 1e-5, 10.0, 600.0
	rec.Harness = loadgen.Harness{
		Threads: 2, InFlightMax: 12, Limit: 1000, Connections: 20, DescriptorsMax: 1024, WindowSeconds: 300,
		CPUSeconds: &used, CPUAvailable: &cores, Throttled: &zero, StealRatio: &zero, SchedulerP99: &little,
		ThreadDelayP99: &little, GCPauseMax: &zero, GCPauseTotal: &zero, StallMax: &little, ClockDrift: &zero,
	}
	in := Input{Workload: w, Plan: plan, Recording: rec}
	for _, win := range plan.Windows {
		in.Windows = append(in.Windows, result.Window{Start: win.Start, End: win.End, OfferedRate: win.Rate})
	}
	if change != nil {
		change(&in)
	}
	for i := range in.Windows {
		in.Windows[i] = metrics.Compute(in.Recording.Requests, in.Windows[i], nil)
	}
	return in
}

func answered(r workload.Request, ttft, e2e float64) result.Request {
	at := func(s float64) *int64 {
		v := r.Due + int64(s*1e9)
		return &v
	}
	n, input, first := int32(8), r.Input, int32(1)
	return result.Request{
		Index: r.Index, Phase: r.Phase, Outcome: result.OutcomeOK, TIntended: r.Due, TDispatch: at(0.0001), TWritten: at(0.0002),
		TTok1: at(ttft), TTokN: at(e2e), TEnd: at(e2e), InputPlanned: r.Input, OutputPlanned: r.Output,
		InputTokens: &input, OutputTokens: &n, TokensFirst: &first,
	}
}

func find(t *testing.T, checks []result.Check, name string) result.Check {
	t.Helper()
	i := slices.IndexFunc(checks, func(c result.Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no check %s", name)
	}
	return checks[i]
}

func TestRun_CleanMeasurementPasses(t *testing.T) {
	t.Parallel()
	in := measured(t, nil)
	checks := Run(in)
	if !Valid(checks) || len(Findings(checks)) > 0 {
		t.Errorf("%+v", checks)
	}
	seen := map[string]bool{}
	for _, c := range checks {
		if seen[c.Name] || c.Reason == "" {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = true
	}
	for _, name := range Mandatory(setting.ProcessPoisson) {
		if c := find(t, checks, name); c.Verdict != result.VerdictPass {
			t.Errorf("%s: %s", name, c.Verdict)
		}
	}
}

// each changes every request that is due in the second half of the window, or all.
func each(in *Input, half bool, change func(r *result.Request)) {
	for i := range in.Recording.Requests {
		r := &in.Recording.Requests[i]
		if w := in.Windows[0]; !half || r.TIntended > (w.Start+w.End)/2 {
			change(r)
		}
	}
}

func later(t *int64, by time.Duration) *int64 {
	v := *t + int64(by)
	return &v
}

func TestRun_HarnessFaults(t *testing.T) {
	t.Parallel()
	f := func(v float64) *float64 { return &v }
	for name, c := range map[string]struct {
		check   string
		verdict result.Verdict
		change  func(in *Input)
	}{
		"late": {SendLateness, result.VerdictFail, func(in *Input) {
			each(in, true, func(r *result.Request) { r.TWritten = later(&r.TIntended, 1100*time.Microsecond) })
		}},
		"late by less than 1 % of the TTFT": {SendLateness, result.VerdictPass, func(in *Input) {
			each(in, false, func(r *result.Request) {
				r.TWritten = later(&r.TIntended, 4*time.Millisecond)
				r.TTok1, r.TTokN, r.TEnd = later(r.TTok1, time.Second), later(r.TTokN, time.Second), later(r.TEnd, time.Second)
			})
		}},
		"late because of the limit": {SendLateness, result.VerdictPass, func(in *Input) {
			each(in, true, func(r *result.Request) { r.TWritten, r.Held = later(&r.TIntended, 50*time.Millisecond), true })
		}},
		"not sent": {NotSent, result.VerdictFail, func(in *Input) { in.Recording.Requests[500].Outcome = result.OutcomeNotSent }},
		"no ports": {NotSent, result.VerdictFail, func(in *Input) { in.Recording.Requests[500].Outcome = result.OutcomeClientLimit }},
		"lost rows": {Accounted, result.VerdictFail, func(in *Input) {
			in.Recording.Requests = slices.Delete(in.Recording.Requests, 1000, 1003)
		}},
		"another plan": {Accounted, result.VerdictFail, func(in *Input) { in.Recording.PlanHash = "x" }},
		"busy client":  {ClientCPU, result.VerdictFail, func(in *Input) { in.Recording.Harness.CPUSeconds = f(590) }},
		"unknown CPU":  {ClientCPU, result.VerdictFail, func(in *Input) { in.Recording.Harness.CPUSeconds = nil }},
		"run queue":    {ThreadDelay, result.VerdictFail, func(in *Input) { in.Recording.Harness.ThreadDelayP99 = f(0.005) }},
		"GC":           {GCPause, result.VerdictFail, func(in *Input) { in.Recording.Harness.GCPauseMax = f(0.003) }},
		"unknown GC":   {GCPause, result.VerdictUnknown, func(in *Input) { in.Recording.Harness.GCPauseMax = nil }},
		"stalls":       {Stall, result.VerdictFail, func(in *Input) { in.Recording.Harness.Stalls = []loadgen.Stall{{Longer: 0.002, Seconds: 4}} }},
		"short stalls": {Stall, result.VerdictPass, func(in *Input) { in.Recording.Harness.Stalls = []loadgen.Stall{{Longer: 0.0001, Seconds: 40}} }},
		"late over TLS": {Stall, result.VerdictFail, func(in *Input) {
			in.Recording.Harness.TLS, in.Recording.Harness.SchedulerP99 = true, f(0.005)
		}},
		"TLS":         {Stall, result.VerdictPass, func(in *Input) { in.Recording.Harness.TLS = true }},
		"throttled":   {Throttled, result.VerdictFail, func(in *Input) { in.Recording.Harness.Throttled = f(3) }},
		"steal":       {Steal, result.VerdictFail, func(in *Input) { in.Recording.Harness.StealRatio = f(0.2) }},
		"descriptors": {Descriptors, result.VerdictFail, func(in *Input) { in.Recording.Harness.InFlightMax = 1000 }},
		"ports":       {Ports, result.VerdictFail, func(in *Input) { n := 10; in.Recording.Harness.PortsFree = &n }},
		"clock step":  {Clock, result.VerdictFail, func(in *Input) { in.Recording.Harness.ClockDrift = f(-0.5) }},
		"other lengths": {TokenCount, result.VerdictFail, func(in *Input) {
			each(in, true, func(r *result.Request) { n := r.InputPlanned + 1; r.InputTokens = &n })
		}},
		"unknown lengths": {TokenCount, result.VerdictUnknown, func(in *Input) { in.Recording.Served.Vocabulary.Words = nil }},
		"hidden cache": {HiddenCache, result.VerdictFail, func(in *Input) {
			each(in, false, func(r *result.Request) { n := int32(60); r.CachedTokens = &n })
		}},
		"the template's tokens are cached": {HiddenCache, result.VerdictPass, func(in *Input) {
			each(in, false, func(r *result.Request) { n := int32(3); r.CachedTokens = &n })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checks := Run(measured(t, c.change))
			got := find(t, checks, c.check)
			if got.Verdict != c.verdict || got.Kind != result.CheckHarness || got.Reason == "" {
				t.Errorf("%+v", got)
			}
			if Valid(checks) != (c.verdict != result.VerdictFail) {
				t.Errorf("valid %v: %+v", Valid(checks), checks)
			}
			if f := Findings(checks); len(f) > 0 {
				t.Errorf("the client's fault is blamed on the engine: %v", f)
			}
		})
	}
}

func TestRun_Findings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		want   string
		change func(in *Input)
	}{
		"saturated": {Saturated, func(in *Input) {
			// A tenth of the requests ends behind the window.
			i := 0
			each(in, false, func(r *result.Request) {
				if i++; i%10 == 0 {
					end := in.Windows[0].End + 1e9
					r.TTokN, r.TEnd = &end, &end
				}
			})
		}},
		"unstable": {Unstable, func(in *Input) {
			each(in, false, func(r *result.Request) {
				by := time.Duration(float64(r.TIntended-in.Windows[0].Start) * 1e-4) // 30 ms over the window
				r.TTok1, r.TTokN, r.TEnd = later(r.TTok1, by), later(r.TTokN, by), later(r.TEnd, by)
			})
		}},
		"a step": {Unstable, func(in *Input) {
			each(in, true, func(r *result.Request) { r.TTok1 = later(r.TTok1, 10*time.Millisecond) })
		}},
		"errors": {Errors, func(in *Input) {
			for i := range 20 {
				r := &in.Recording.Requests[1000+i]
				r.Outcome, r.Detail = result.OutcomeHTTP5xx, "HTTP 500: out of memory"
			}
		}},
		"lengths": {LengthMismatch, func(in *Input) {
			each(in, true, func(r *result.Request) { r.Outcome = result.OutcomeLengthMismatch })
		}},
		"limit": {ConcurrencyHeld, func(in *Input) { in.Recording.Harness.AtLimit = 1e9 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := measured(t, c.change)
			checks := Run(in)
			if got := Findings(checks); !slices.Contains(got, c.want) {
				t.Errorf("findings %v, want %s: %+v", got, c.want, checks)
			}
			if !Valid(checks) {
				t.Errorf("the engine's fault makes the attempt invalid: %+v", checks[0])
			}
			if c.want != ConcurrencyHeld && !slices.Contains(in.Windows[0].Findings, c.want) {
				t.Errorf("the load point has findings %v", in.Windows[0].Findings)
			}
		})
	}
	if c := find(t, Run(measured(t, func(in *Input) {
		for i := range 20 {
			r := &in.Recording.Requests[1000+i]
			r.Outcome, r.Detail = result.OutcomeHTTP5xx, "HTTP 500: out of memory"
		}
	})), Errors); !strings.Contains(c.Reason, "out of memory") {
		t.Errorf("%q does not say what went wrong", c.Reason)
	}
}

// In a short window, chance at its ends is not saturation.
func TestSaturated_ShortWindows(t *testing.T) {
	t.Parallel()
	w := result.Window{Start: 0, End: 10_000_000_000, OfferedRate: 8}
	value := func(v float64) *float64 { return &v }
	w.Metrics = result.Metrics{"offered_rate": value(8), "achieved_rate": value(7.6), "concurrency_mean": value(4)}
	in := Input{Workload: setting.Default().Workload}
	if c := saturated(in, &w); c.Verdict != result.VerdictPass {
		t.Errorf("4 requests short of 80: %+v", c)
	}
	w.Metrics["achieved_rate"] = value(5)
	if c := saturated(in, &w); c.Verdict != result.VerdictFail || *c.Threshold != achievedShare || *c.Value != 5.0/8 {
		t.Errorf("30 requests short of 80: %+v", c)
	}
}

// A mandatory check that is missing or unknown fails.
func TestRun_Mandatory(t *testing.T) {
	t.Parallel()
	in := measured(t, nil)
	in.Require = []string{"gpu_clocks"}
	if c := find(t, Run(in), "gpu_clocks"); c.Verdict != result.VerdictFail {
		t.Errorf("a missing one: %+v", c)
	}
	in.Others = []result.Check{{Name: "gpu_clocks", Kind: result.CheckHarness, Verdict: result.VerdictUnknown, Reason: "no NVML"}}
	if c := find(t, Run(in), "gpu_clocks"); c.Verdict != result.VerdictFail || !strings.Contains(c.Reason, "no NVML") {
		t.Errorf("an unknown one: %+v", c)
	}
	in.Others[0].Verdict = result.VerdictPass
	if !Valid(Run(in)) {
		t.Error("one that passed")
	}
}

// Windows without requests, or none, are judged without a panic, and not valid.
func TestRun_Nothing(t *testing.T) {
	t.Parallel()
	in := measured(t, func(in *Input) { in.Recording.Requests = nil })
	if Valid(Run(in)) {
		t.Error("nothing is valid")
	}
	in = measured(t, func(in *Input) { in.Windows, in.Recording.Requests = nil, nil })
	if Valid(Run(in)) {
		t.Error("no window is valid")
	}
}

// Stationary runs are not called unstable more often than the tests' own rate.
func TestUnstable_FalseAlarms(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 9))
	alarms := 0
	const runs = 2000
	for range runs {
		values := make([]float64, 20)
		for i := range values {
			values[i] = 1 + 0.01*rng.NormFloat64()
		}
		if _, bad := trend("x", values, dependence(values)); bad {
			alarms++
		}
	}
	if share := float64(alarms) / runs; share > 0.02 {
		t.Errorf("%.1f %% of stationary runs are called unstable", share*100)
	}
	for name, f := range map[string]func(i int) float64{
		"drift of 6 %":   func(i int) float64 { return 1 + 0.06*float64(i)/19 },
		"step of 4 %":    func(i int) float64 { return 1 + 0.04*math.Round(float64(i)/19) },
		"slow warm-up":   func(i int) float64 { return 1 + 0.15*math.Exp(-float64(i)/8) },
		"growth by half": func(i int) float64 { return 1 + float64(i)/38 },
	} {
		missed := 0
		for range 200 {
			values := make([]float64, 20)
			for i := range values {
				values[i] = f(i) + 0.01*rng.NormFloat64()
			}
			if _, bad := trend("x", values, dependence(values)); !bad {
				missed++
			}
		}
		if missed > 40 {
			t.Errorf("%s is missed in %s of the runs", name, fmt.Sprint(missed, "/200"))
		}
	}
}
