package audit

import (
	"fmt"
	"math"
	"slices"

	"sbench/internal/result"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
	"sbench/internal/stats"
)

// The tolerance on everything that the client does to a time: max(1 ms, 1 % of
// the median time to first token).
const (
	leastTolerance = 0.001
	ttftShare      = 0.01
)

const (
	cpuShare      = 0.8   // of the processors that the client's threads can use
	stallShare    = 0.01  // of the window
	stealLimit    = 0.05  // of all processor time
	headroomShare = 0.9   // of descriptors and ports
	clockLimit    = 0.001 // s, wall clock against monotonic clock
	tokenShare    = 0.01  // of the prompts that may have another length than planned
	cacheShare    = 0.05  // of the prompt tokens that may come from a cache nobody asked for
)

func harness(in Input) []result.Check {
	h := in.Recording.Harness
	tolerance, from := toleranceOf(in.Windows)
	checks := []result.Check{
		lateness(in),
		notSent(in),
		accounted(in),
		cpu(h),
	}
	pause := func(name string, v *float64, what string) result.Check {
		if v == nil {
			return unknown(name, result.CheckHarness, what+" could not be read")
		}
		return check(name, result.CheckHarness, *v, tolerance, "s", fmt.Sprintf("%s: %s, allowed %s (%s)", what, ms(*v), ms(tolerance), from))
	}
	if h.TLS {
		checks = append(checks, pause(Stall, h.SchedulerP99, "wait of the goroutines that read TLS for a processor, p99"))
	} else {
		checks = append(checks, stall(h, tolerance, from))
	}
	checks = append(checks,
		pause(ThreadDelay, h.ThreadDelayP99, "wait of the reading thread for a processor, p99"),
		pause(GCPause, h.GCPauseMax, "longest pause of the client's garbage collector"),
		throttled(h), steal(h), descriptors(h), ports(h), clock(h), tokenCount(in), hiddenCache(in),
	)
	return checks
}

// toleranceOf is the tolerance over the attempt: that of the load point with the
// fastest median.
func toleranceOf(windows []result.Window) (seconds float64, from string) {
	seconds, from = math.Inf(1), ""
	for i := range windows {
		if s, f := tolerance(&windows[i]); s < seconds {
			seconds, from = s, f
		}
	}
	if from == "" {
		return leastTolerance, "1 ms"
	}
	return seconds, from
}

func tolerance(w *result.Window) (seconds float64, from string) {
	if m := w.Metrics["ttft_p50"]; m != nil && *m*ttftShare > leastTolerance {
		return *m * ttftShare, fmt.Sprintf("1 %% of the median TTFT of %s", ms(*m))
	}
	return leastTolerance, "1 ms"
}

func ms(seconds float64) string { return fmt.Sprintf("%.3g ms", seconds*1000) }

// lateness judges when requests left against when they were due, in the load
// point that comes off worst. What the limit on requests in flight held back is a
// finding of its own; a request that had to be written again left in time before.
func lateness(in Input) result.Check {
	var worst *result.Check
	for i := range in.Windows {
		w := &in.Windows[i]
		var late []float64
		for j := range in.Recording.Requests {
			r := &in.Recording.Requests[j]
			if due(r, w) && r.TWritten != nil && !r.Held && !r.Resent {
				late = append(late, float64(*r.TWritten-r.TIntended)/1e9)
			}
		}
		if len(late) == 0 {
			continue
		}
		slices.Sort(late)
		limit, from := tolerance(w)
		p99 := stats.NearestRank(late, 99, 100)
		c := check(SendLateness, result.CheckHarness, p99, limit, "s",
			fmt.Sprintf("99 %% of %d requests left within %s of when they were due, allowed %s (%s)", len(late), ms(p99), ms(limit), from))
		if c.Verdict == result.VerdictFail {
			c.Reason = fmt.Sprintf("the client was late: 1 %% of %d requests left %s or more behind their time, allowed %s (%s)", len(late), ms(p99), ms(limit), from)
		}
		if worst == nil || *c.Value / *c.Threshold > *worst.Value / *worst.Threshold {
			worst = &c
		}
	}
	if worst == nil {
		return unknown(SendLateness, result.CheckHarness, "no request was sent in a window")
	}
	return *worst
}

// due says whether the request belongs to the window's latencies.
func due(r *result.Request, w *result.Window) bool {
	return r.Phase != result.PhaseWarmup && r.TIntended >= w.Start && r.TIntended < w.End
}

func notSent(in Input) result.Check {
	n := 0
	for i := range in.Recording.Requests {
		switch in.Recording.Requests[i].Outcome {
		case result.OutcomeNotSent, result.OutcomeClientLimit:
			n++
		default:
		}
	}
	reason := "the client could send every request"
	if n > 0 {
		reason = fmt.Sprintf("the client could not send %d requests: it was out of time, descriptors or ports", n)
	}
	return check(NotSent, result.CheckHarness, float64(n), 0, "requests", reason)
}

// accounted holds what was recorded against the plan: each request that was to be
// measured has one row.
func accounted(in Input) result.Check {
	if in.Plan == nil || in.Plan.Closed > 0 {
		return notApplicable(Accounted, result.CheckHarness, "a closed loop has no schedule")
	}
	if in.Recording.PlanHash != in.Plan.Hash {
		return check(Accounted, result.CheckHarness, 1, 0, "requests", "the recording belongs to another plan")
	}
	planned, rows := map[int32]bool{}, 0
	for i := range in.Plan.Requests {
		if r := &in.Plan.Requests[i]; r.Phase == result.PhaseMeasure && r.Turn == 0 {
			planned[r.Index] = true
		}
	}
	missing := float64(len(planned))
	for i := range in.Recording.Requests {
		r := &in.Recording.Requests[i]
		if r.Phase != result.PhaseMeasure || r.Turn > 0 {
			continue
		}
		rows++
		if planned[r.Index] {
			missing--
			delete(planned, r.Index)
		} else {
			missing++
		}
	}
	reason := fmt.Sprintf("each of the %d requests planned for the windows has its row", rows)
	if missing != 0 {
		reason = fmt.Sprintf("%g of the requests planned for the windows have no row, or one too many", missing)
	}
	return check(Accounted, result.CheckHarness, math.Abs(missing), 0, "requests", reason)
}

func cpu(h loadgen.Harness) result.Check {
	if h.CPUSeconds == nil || h.CPUAvailable == nil || h.WindowSeconds <= 0 {
		return unknown(ClientCPU, result.CheckHarness, "the client's processor time could not be read")
	}
	available := min(*h.CPUAvailable, float64(h.Threads)*h.WindowSeconds)
	share := *h.CPUSeconds / available
	return check(ClientCPU, result.CheckHarness, share, cpuShare, "ratio",
		fmt.Sprintf("the client used %.0f %% of the processors it can use, allowed %.0f %%", share*100, cpuShare*100))
}

func stall(h loadgen.Harness, tolerance float64, from string) result.Check {
	if h.StallMax == nil || h.WindowSeconds <= 0 {
		return unknown(Stall, result.CheckHarness, "the reading threads were not watched")
	}
	var seconds float64
	for _, s := range h.Stalls {
		if s.Longer >= tolerance {
			seconds += s.Seconds
		}
	}
	share := seconds / h.WindowSeconds
	return check(Stall, result.CheckHarness, share, stallShare, "ratio",
		fmt.Sprintf("when answers came in is in doubt by more than %s (%s) in %.2g %% of the window, allowed %g %%; at most by %s",
			ms(tolerance), from, share*100, stallShare*100, ms(*h.StallMax)))
}

func throttled(h loadgen.Harness) result.Check {
	if h.Throttled == nil {
		return unknown(Throttled, result.CheckHarness, "the cgroup does not say")
	}
	return check(Throttled, result.CheckHarness, *h.Throttled, 0, "periods",
		fmt.Sprintf("the cgroup held the client back in %.0f periods", *h.Throttled))
}

func steal(h loadgen.Harness) result.Check {
	if h.StealRatio == nil {
		return unknown(Steal, result.CheckHarness, "the kernel does not say")
	}
	return check(Steal, result.CheckHarness, *h.StealRatio, stealLimit, "ratio",
		fmt.Sprintf("a hypervisor took %.2g %% of the processor time, allowed %g %%", *h.StealRatio*100, stealLimit*100))
}

func descriptors(h loadgen.Harness) result.Check {
	if h.DescriptorsMax == 0 {
		return unknown(Descriptors, result.CheckHarness, "the limit of open files could not be read")
	}
	share := float64(h.InFlightMax) / float64(h.DescriptorsMax)
	return check(Descriptors, result.CheckHarness, share, headroomShare, "ratio",
		fmt.Sprintf("%d requests in flight at most, of %d files that may be open", h.InFlightMax, h.DescriptorsMax))
}

func ports(h loadgen.Harness) result.Check {
	if h.PortsFree == nil {
		return notApplicable(Ports, result.CheckHarness, "no local ports are needed, or their range cannot be read")
	}
	share := 1.0
	if *h.PortsFree > 0 {
		share = float64(h.Connections) / float64(*h.PortsFree)
	}
	return check(Ports, result.CheckHarness, share, headroomShare, "ratio",
		fmt.Sprintf("%d connections were opened, %d local ports were free", h.Connections, *h.PortsFree))
}

func clock(h loadgen.Harness) result.Check {
	if h.ClockDrift == nil {
		return unknown(Clock, result.CheckHarness, "no window was timed")
	}
	off := math.Abs(*h.ClockDrift)
	return check(Clock, result.CheckHarness, off, clockLimit, "s",
		fmt.Sprintf("wall clock and monotonic clock differ by %s over the windows, allowed %s", ms(off), ms(clockLimit)))
}

// tokenCount holds the server's count of the prompts against what was planned.
func tokenCount(in Input) result.Check {
	if in.Workload.Prompts.Source == "file" {
		return notApplicable(TokenCount, result.CheckHarness, "the prompts come from a file")
	}
	if !in.Recording.Served.Vocabulary.Exact() {
		return unknown(TokenCount, result.CheckHarness, "the server's tokenizer could not be asked: prompt lengths are approximate")
	}
	n, off := 0, 0
	for i := range in.Recording.Requests {
		r := &in.Recording.Requests[i]
		if r.InputTokens == nil || r.Turn > 0 {
			continue
		}
		n++
		if *r.InputTokens != r.InputPlanned {
			off++
		}
	}
	if n == 0 {
		return unknown(TokenCount, result.CheckHarness, "the server did not count a prompt")
	}
	share := float64(off) / float64(n)
	return check(TokenCount, result.CheckHarness, share, tokenShare, "ratio",
		fmt.Sprintf("%d of %d prompts have another length than planned by the server's count, allowed %g %%", off, n, tokenShare*100))
}

// hiddenCache looks for a prefix cache that helps although nobody asked for it.
func hiddenCache(in Input) result.Check {
	p := in.Workload.Prompts
	if !p.Nonce || p.Groups > 0 || p.Turns > 1 {
		return notApplicable(HiddenCache, result.CheckHarness, "the workload repeats prefixes on purpose")
	}
	var worst *float64
	for i := range in.Windows {
		if v := in.Windows[i].Metrics["cached_tokens_ratio"]; v != nil && (worst == nil || *v > *worst) {
			worst = v
		}
	}
	if worst == nil {
		return unknown(HiddenCache, result.CheckHarness, "the server does not report cached prompt tokens; each prompt began with words of its own")
	}
	return check(HiddenCache, result.CheckHarness, *worst, cacheLimit(in), "ratio",
		fmt.Sprintf("%.2g %% of the prompt tokens came from the server's prefix cache, although no prompt repeats another", *worst*100))
}

// cacheLimit allows for the template's tokens, which all prompts share.
func cacheLimit(in Input) float64 {
	mean := 0.0
	for i := range in.Windows {
		if v := in.Windows[i].Metrics["input_tokens_mean"]; v != nil {
			mean = max(mean, *v)
		}
	}
	if mean == 0 {
		return cacheShare
	}
	return cacheShare + float64(in.Recording.Served.Vocabulary.Base+1)/mean
}

// rated says whether the process has a rate that the engine can fall behind.
func rated(w setting.Workload) bool { return w.Arrival.Process != setting.ProcessClosed }
