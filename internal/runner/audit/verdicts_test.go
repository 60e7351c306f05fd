package audit

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// Where something could not be read, or has no meaning, the check says so, and only
// a mandatory one fails by it.
func TestRun_UnknownAndNotApplicable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		check   string
		verdict result.Verdict
		says    string
		change  func(in *Input)
	}{
		"throttling":    {Throttled, result.VerdictUnknown, "cgroup", func(in *Input) { in.Recording.Harness.Throttled = nil }},
		"steal":         {Steal, result.VerdictUnknown, "kernel", func(in *Input) { in.Recording.Harness.StealRatio = nil }},
		"thread delay":  {ThreadDelay, result.VerdictUnknown, "could not be read", func(in *Input) { in.Recording.Harness.ThreadDelayP99 = nil }},
		"ports":         {Ports, result.VerdictNotApplicable, "no local ports", func(in *Input) { in.Recording.Harness.PortsFree = nil }},
		"no ports left": {Ports, result.VerdictFail, "0 local ports", func(in *Input) { n := 0; in.Recording.Harness.PortsFree = &n }},
		"stalls":        {Stall, result.VerdictFail, "mandatory for this workload, but unknown", func(in *Input) { in.Recording.Harness.StallMax = nil }},
		"stalls over TLS": {Stall, result.VerdictFail, "mandatory for this workload, but unknown", func(in *Input) {
			in.Recording.Harness.TLS, in.Recording.Harness.SchedulerP99 = true, nil
		}},
		"clock":   {Clock, result.VerdictFail, "mandatory for this workload, but unknown", func(in *Input) { in.Recording.Harness.ClockDrift = nil }},
		"files":   {Descriptors, result.VerdictFail, "mandatory for this workload, but unknown", func(in *Input) { in.Recording.Harness.DescriptorsMax = 0 }},
		"no plan": {Accounted, result.VerdictNotApplicable, "no schedule", func(in *Input) { in.Plan = nil }},
		"row too many": {Accounted, result.VerdictFail, "or one too many", func(in *Input) {
			in.Recording.Requests = append(in.Recording.Requests, in.Recording.Requests[1000])
		}},
		"prompt file": {TokenCount, result.VerdictNotApplicable, "file", func(in *Input) { in.Workload.Prompts.Source = "file" }},
		"uncounted prompts": {TokenCount, result.VerdictUnknown, "did not count a prompt", func(in *Input) {
			each(in, false, func(r *result.Request) { r.InputTokens = nil })
		}},
		"sessions":       {HiddenCache, result.VerdictNotApplicable, "on purpose", func(in *Input) { in.Workload.Prompts.Turns = 3 }},
		"prefix groups":  {HiddenCache, result.VerdictNotApplicable, "on purpose", func(in *Input) { in.Workload.Prompts.Groups = 3 }},
		"no nonce":       {HiddenCache, result.VerdictNotApplicable, "on purpose", func(in *Input) { in.Workload.Prompts.Nonce = false }},
		"lengths free":   {LengthMismatch, result.VerdictNotApplicable, "where it likes", func(in *Input) { in.Workload.Request.IgnoreEOS = false }},
		"lengths untold": {LengthMismatch, result.VerdictUnknown, "did not count", func(in *Input) { each(in, false, func(r *result.Request) { r.OutputTokens = nil }) }},
		"gap in the window": {Unstable, result.VerdictUnknown, "has no requests", func(in *Input) {
			w := in.Windows[0]
			in.Recording.Requests = slices.DeleteFunc(in.Recording.Requests, func(r result.Request) bool {
				return r.TIntended > w.Start+100e9 && r.TIntended < w.Start+150e9
			})
		}},
		"nothing left the system": {Little, result.VerdictUnknown, "still in the system", func(in *Input) {
			each(in, true, func(r *result.Request) { r.Outcome, r.TTokN = result.OutcomeCutOff, nil })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checks := Run(measured(t, c.change))
			if got := find(t, checks, c.check); got.Verdict != c.verdict || !strings.Contains(got.Reason, c.says) {
				t.Errorf("%s: %s (%s), want %s (…%s…)", got.Name, got.Verdict, got.Reason, c.verdict, c.says)
			}
			if !slices.IsSortedFunc(checks, func(a, b result.Check) int { return rank(a) - rank(b) }) {
				t.Error("failures do not come first")
			}
		})
	}
}

// A client that was late does not blame the engine for the rate that was missed.
func TestRun_LateClientBlamesNobody(t *testing.T) {
	t.Parallel()
	behind := func(in *Input) {
		i := 0
		each(in, false, func(r *result.Request) {
			if i++; i%10 == 0 {
				end := in.Windows[0].End + 1e9
				r.TTokN, r.TEnd = &end, &end
			}
		})
	}
	for name, fault := range map[string]func(in *Input){
		"late": func(in *Input) {
			each(in, false, func(r *result.Request) { r.TWritten = later(&r.TIntended, 80*time.Millisecond) })
		},
		"not sent": func(in *Input) { in.Recording.Requests[500].Outcome = result.OutcomeNotSent },
	} {
		in := measured(t, func(in *Input) { behind(in); fault(in) })
		checks := Run(in)
		if c := find(t, checks, Saturated); c.Verdict != result.VerdictUnknown || !strings.Contains(c.Reason, "client") {
			t.Errorf("%s: %+v", name, c)
		}
		if Valid(checks) || slices.Contains(Findings(checks), Saturated) || slices.Contains(in.Windows[0].Findings, Saturated) {
			t.Errorf("%s: valid %v, findings %v and %v", name, Valid(checks), Findings(checks), in.Windows[0].Findings)
		}
	}
}

// Thresholds belong to what passes.
func TestCheck_AtTheThreshold(t *testing.T) {
	t.Parallel()
	above := math.Nextafter(0.5, 1)
	for _, c := range []struct {
		value float64
		want  result.Verdict
	}{{0.5, result.VerdictPass}, {above, result.VerdictFail}, {math.NaN(), result.VerdictFail}, {math.Inf(1), result.VerdictFail}} {
		if got := check("x", result.CheckHarness, c.value, 0.5, "s", "r").Verdict; got != c.want {
			t.Errorf("%g against 0.5: %s", c.value, got)
		}
	}
	if atLeast("x", 0.99, 0.99, "r").Verdict != result.VerdictPass || atLeast("x", math.Nextafter(0.99, 0), 0.99, "r").Verdict != result.VerdictFail {
		t.Error("the share that must be reached is not counted as reached")
	}
}

// A ladder is judged by its worst load point, which is named; each point has its
// own findings.
func TestRun_LadderNamesThePoint(t *testing.T) {
	t.Parallel()
	s := setting.Default()
	w := s.Workload
	w.Ladder = []float64{10, 30}
	w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 100}
	w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: 8}
	w.Warmup, w.Ramp, w.Duration, w.Drain = 0, time.Second, 60*time.Second, 5*time.Second
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rec := &loadgen.Recording{PlanHash: plan.Hash}
	for i, r := range plan.Requests {
		row := answered(r, 0.1, 0.3)
		row.Window = r.Window
		if r.Window == 1 && i%5 == 0 {
			row.Outcome, row.Detail = result.OutcomeHTTP5xx, "HTTP 500"
			row.TWritten = later(&row.TIntended, 30*time.Millisecond)
		}
		rec.Requests = append(rec.Requests, row)
	}
	in := Input{Workload: w, Plan: plan, Recording: rec}
	for _, win := range plan.Windows {
		in.Windows = append(in.Windows, metrics.Compute(rec.Requests, result.Window{Index: int(win.Index), Start: win.Start, End: win.End, OfferedRate: win.Rate}, nil))
	}
	checks := Run(in)
	if c := find(t, checks, Errors); c.Verdict != result.VerdictFail || !strings.HasPrefix(c.Reason, "at 30 requests/s: ") {
		t.Errorf("%+v", c)
	}
	if len(in.Windows[0].Findings) > 0 || !slices.Contains(in.Windows[1].Findings, Errors) {
		t.Errorf("findings %v and %v", in.Windows[0].Findings, in.Windows[1].Findings)
	}
	if c := find(t, checks, SendLateness); c.Verdict != result.VerdictFail || *c.Value < 0.029 {
		t.Errorf("the later load point decides: %+v", c)
	}
}

// A closed loop has no schedule to lose requests of, and no rate to fall behind.
func TestMandatory_Closed(t *testing.T) {
	t.Parallel()
	if m := Mandatory(setting.ProcessClosed); slices.Contains(m, Accounted) || !slices.Contains(m, SendLateness) {
		t.Errorf("%v", m)
	}
	in := measured(t, func(in *Input) { in.Workload.Arrival.Process = setting.ProcessClosed })
	if c := find(t, Run(in), Saturated); c.Verdict != result.VerdictNotApplicable {
		t.Errorf("%+v", c)
	}
}

// The mean load of the blocks is that of the window, whatever the requests.
func TestLoadBlocks_AddUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &result.Window{Start: 1000, End: 1000 + rapid.Int64Range(16, 1e9).Draw(t, "length")}
		var rows []result.Request
		for range rapid.IntRange(0, 40).Draw(t, "rows") {
			due := rapid.Int64Range(0, 2*w.End).Draw(t, "due")
			end := due + rapid.Int64Range(0, w.End).Draw(t, "time")
			r := result.Request{Phase: result.PhaseMeasure, Outcome: result.OutcomeOK, TIntended: due, TDispatch: &due, TEnd: &end, TTokN: &end}
			if rapid.IntRange(0, 9).Draw(t, "running") == 0 {
				r.TEnd, r.TTokN, r.Outcome = nil, nil, result.OutcomeCutOff
			}
			rows = append(rows, r)
		}
		n := rapid.IntRange(1, 20).Draw(t, "blocks")
		var sum float64
		for _, b := range loadBlocks(rows, w, n) {
			sum += b / float64(n)
		}
		want := 0.0
		for _, r := range rows {
			to := w.End
			if r.TEnd != nil {
				to = min(*r.TEnd, w.End)
			}
			if from := max(r.TIntended, w.Start); to > from {
				want += float64(to-from) / float64(w.End-w.Start)
			}
		}
		if math.Abs(sum-want) > 1e-6*math.Max(1, want) {
			t.Fatalf("the blocks' mean is %g, the window's %g", sum, want)
		}
	})
}
