package audit

import (
	"fmt"
	"math"
	"slices"
	"time"

	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/stats"
)

const (
	achievedShare = 0.99 // of the offered rate
	lengthShare   = 0.01 // of the answers that may have another length than asked for
	littleLimit   = 0.05
	blockSeconds  = 15
	minBlocks     = 16
	trendP        = 0.01
	trendSize     = 0.02 // of the mean, over the window
	maxLag1       = 0.2
	// chance is how many standard deviations a shortfall may have before chance no
	// longer explains it.
	chance = 3
)

// findings judges the engine in each load point, and sums the worst up. late says
// why the client was not punctual, "" where it was.
func findings(in Input, late string) []result.Check {
	judges := []func(Input, *result.Window) result.Check{saturated, unstable, failures, lengths, little}
	var checks []result.Check
	for _, judge := range judges {
		var worst *result.Check
		for i := range in.Windows {
			w := &in.Windows[i]
			c := judge(in, w)
			if c.Name == Saturated && c.Verdict == result.VerdictFail && late != "" {
				c.Verdict, c.Reason = result.VerdictUnknown, c.Reason+", but "+late
			}
			if c.Verdict == result.VerdictFail {
				w.Findings = append(w.Findings, c.Name)
				if len(in.Windows) > 1 {
					c.Reason = fmt.Sprintf("at %g requests/s: %s", w.OfferedRate, c.Reason)
				}
			}
			if worst == nil || severity(c) > severity(*worst) {
				worst = &c
			}
		}
		if worst != nil {
			checks = append(checks, *worst)
		}
	}
	return append(checks, held(in))
}

func severity(c result.Check) int {
	switch c.Verdict {
	case result.VerdictFail:
		return 3
	case result.VerdictUnknown:
		return 2
	case result.VerdictPass:
		return 1
	case result.VerdictNotApplicable:
	}
	return 0
}

// atLeast is a finding that passes where value >= threshold.
func atLeast(name string, value, threshold float64, reason string) result.Check {
	c := check(name, result.CheckFinding, -value, -threshold, "ratio", reason)
	c.Value, c.Threshold = &value, &threshold
	return c
}

// CheckSaturated asks whether the engine completed what an open loop offered it in
// the load point, whose metrics are computed.
func CheckSaturated(w setting.Workload, win *result.Window) result.Check {
	return saturated(Input{Workload: w}, win)
}

// saturated asks whether the engine completed what it was offered. In a window of
// few requests the numbers that were in the system at its two ends differ by
// chance: a shortfall is one only beyond that.
func saturated(in Input, w *result.Window) result.Check {
	if !rated(in.Workload) {
		return notApplicable(Saturated, result.CheckFinding, "a closed loop offers no rate")
	}
	offered, achieved, l := w.Metrics["offered_rate"], w.Metrics["achieved_rate"], w.Metrics["concurrency_mean"]
	if offered == nil || achieved == nil || l == nil || *offered == 0 {
		return unknown(Saturated, result.CheckFinding, "no requests were due in the window")
	}
	seconds := float64(w.End-w.Start) / 1e9
	ratio := *achieved / *offered
	short := (*offered - *achieved) * seconds
	noise := chance * math.Sqrt(2*max(*l, 1))
	c := atLeast(Saturated, ratio, achievedShare, fmt.Sprintf("the engine completed %.4g requests/s of the %.4g that were offered", *achieved, *offered))
	if c.Verdict == result.VerdictFail && short <= noise {
		c.Verdict = result.VerdictPass
		c.Reason += fmt.Sprintf("; %.0f requests are within the %.0f that come and go at the window's ends by chance", short, noise)
	}
	return c
}

// unstable tests the window for a trend, of the time to first token and of the
// requests in the system, in blocks long enough to be independent.
func unstable(in Input, w *result.Window) result.Check {
	n := int(float64(w.End-w.Start) / 1e9 / blockSeconds)
	if n < minBlocks {
		return unknown(Unstable, result.CheckFinding, fmt.Sprintf("the window has %d blocks of %d s; a trend needs %d", n, blockSeconds, minBlocks))
	}
	for _, series := range []struct {
		name   string
		values func(int) []float64
	}{
		{"time to first token", func(n int) []float64 { return ttftBlocks(in.Recording.Requests, w, n) }},
		{"number of requests in the system", func(n int) []float64 { return loadBlocks(in.Recording.Requests, w, n) }},
	} {
		values := series.values(n)
		rho := dependence(values)
		if rho > maxLag1 && n/2 >= minBlocks {
			// Blocks twice as long depend less on each other.
			values = series.values(n / 2)
			rho = dependence(values)
		}
		if slices.ContainsFunc(values, math.IsNaN) {
			return unknown(Unstable, result.CheckFinding, "a block of the window has no requests")
		}
		if c, bad := trend(series.name, values, rho); bad {
			return c
		}
	}
	return result.Check{
		Name: Unstable, Kind: result.CheckFinding, Verdict: result.VerdictPass,
		Reason: "neither the time to first token nor the requests in the system have a trend over the window",
	}
}

// dependence is the autocorrelation of successive blocks that a slope or a step
// does not explain: either of them would show as one.
func dependence(values []float64) float64 {
	n := len(values)
	slope, h := stats.SenSlope(values), n/2
	first, second := stats.Mean(values[:h]), stats.Mean(values[h:])
	line, step := make([]float64, n), make([]float64, n)
	for i, v := range values {
		line[i] = v - slope*float64(i)
		step[i] = v - second
		if i < h {
			step[i] = v - first
		}
	}
	// Of independent values the differences have an autocorrelation of -1/2, of
	// dependent ones more; what changes slowly they do not see.
	differences := make([]float64, n-1)
	for i := range differences {
		differences[i] = values[i+1] - values[i]
	}
	rho := 1.0
	for _, r := range []float64{stats.Lag1(line), stats.Lag1(step), 1 + 2*stats.Lag1(differences)} {
		if math.IsNaN(r) {
			r = 0 // nothing is left to depend on anything
		}
		rho = min(rho, r)
	}
	return max(0, rho)
}

// trend applies the two tests that see different shapes: a slope, and a step. rho
// is the autocorrelation of the values: n of them are worth n(1-rho)/(1+rho).
func trend(name string, values []float64, rho float64) (result.Check, bool) {
	worth := math.Sqrt(stats.EffectiveN(len(values), rho) / float64(len(values)))
	kendall := stats.MannKendall(values)
	p := kendall.P
	if rho > 0 {
		p = math.Erfc(math.Abs(kendall.Z) * worth / math.Sqrt2)
	}
	drift := stats.SenSlope(values) * float64(len(values)-1) / stats.Mean(values)
	if p < trendP && math.Abs(drift) > trendSize {
		return check(Unstable, result.CheckFinding, math.Abs(drift), trendSize, "ratio",
			fmt.Sprintf("the %s changed by %+.1f %% over the window (Mann-Kendall p = %.2g)", name, drift*100, p)), true
	}
	half, step := stats.SplitHalf(values)
	p = 2 * (1 - stats.TCDF(math.Abs(half.T)*worth, half.DF))
	if p < trendP && math.Abs(step) > trendSize {
		return check(Unstable, result.CheckFinding, math.Abs(step), trendSize, "ratio",
			fmt.Sprintf("the %s differs by %+.1f %% between the halves of the window (p = %.2g)", name, step*100, p)), true
	}
	return result.Check{}, false
}

// ttftBlocks is the mean time to first token of the requests due in each block.
func ttftBlocks(rows []result.Request, w *result.Window, n int) []float64 {
	sums, counts := make([]float64, n), make([]float64, n)
	for i := range rows {
		r := &rows[i]
		if !due(r, w) || r.TTok1 == nil {
			continue
		}
		b := int((r.TIntended - w.Start) * int64(n) / (w.End - w.Start))
		sums[b] += float64(*r.TTok1-r.TIntended) / 1e9
		counts[b]++
	}
	for i := range sums {
		sums[i] /= counts[i]
	}
	return sums
}

// loadBlocks is the mean number of requests in the system in each block.
func loadBlocks(rows []result.Request, w *result.Window, n int) []float64 {
	blocks := make([]float64, n)
	length := float64(w.End-w.Start) / float64(n)
	for i := range rows {
		r := &rows[i]
		if r.TDispatch == nil || r.Phase == result.PhaseWarmup {
			continue
		}
		from, to := max(r.TIntended, w.Start), w.End
		if r.TEnd != nil {
			to = min(*r.TEnd, w.End)
		}
		for b := max(0, int(float64(from-w.Start)/length)); b < n; b++ {
			low := max(float64(from-w.Start), float64(b)*length)
			high := min(float64(to-w.Start), float64(b+1)*length)
			if high <= low {
				break
			}
			blocks[b] += (high - low) / length
		}
	}
	return blocks
}

func failures(in Input, w *result.Window) result.Check {
	rate := w.Metrics["error_rate"]
	if rate == nil {
		return unknown(Errors, result.CheckFinding, "no requests were due in the window")
	}
	limit := in.ErrorLimit
	if limit == 0 {
		limit = DefaultErrorLimit
	}
	reason := fmt.Sprintf("%.2g %% of the requests failed, allowed %.2g %%", *rate*100, limit*100)
	if *rate > limit {
		reason += ": " + firstFailure(in.Recording.Requests, w)
	}
	return check(Errors, result.CheckFinding, *rate, limit, "ratio", reason)
}

// firstFailure describes one of the failed requests.
func firstFailure(rows []result.Request, w *result.Window) string {
	for i := range rows {
		r := &rows[i]
		if due(r, w) && r.Outcome != result.OutcomeOK && r.Outcome != result.OutcomeLengthMismatch && r.Outcome != result.OutcomeCancelledByPlan {
			return fmt.Sprintf("the first at %v with %s (%s)", time.Duration(r.TIntended-w.Start).Round(time.Millisecond), r.Outcome, r.Detail)
		}
	}
	return "none is recorded"
}

func lengths(in Input, w *result.Window) result.Check {
	if !in.Workload.Request.IgnoreEOS {
		return notApplicable(LengthMismatch, result.CheckFinding, "the engine may end its answers where it likes")
	}
	n, off := 0, 0
	for i := range in.Recording.Requests {
		r := &in.Recording.Requests[i]
		if !due(r, w) || r.OutputTokens == nil {
			continue
		}
		switch r.Outcome {
		case result.OutcomeOK:
			n++
		case result.OutcomeLengthMismatch:
			n++
			off++
		default:
		}
	}
	if n == 0 {
		return unknown(LengthMismatch, result.CheckFinding, "the server did not count its tokens")
	}
	share := float64(off) / float64(n)
	return check(LengthMismatch, result.CheckFinding, share, lengthShare, "ratio",
		fmt.Sprintf("%d of %d answers have another length than asked for, allowed %g %%", off, n, lengthShare*100))
}

// little holds the requests in the system against arrival rate times residence.
// The window's ends cut residences off: the fewer requests there were, and the
// longer they stayed, the more that may matter.
func little(_ Input, w *result.Window) result.Check {
	ratio, l, rate := w.Metrics["little_ratio"], w.Metrics["concurrency_mean"], w.Metrics["offered_rate"]
	if ratio == nil || l == nil || rate == nil || *l <= 0 || *rate <= 0 {
		return unknown(Little, result.CheckFinding, "Little's law cannot be checked: "+w.NullReasons["little_ratio"])
	}
	seconds := float64(w.End-w.Start) / 1e9
	residence := *l / *rate
	limit := littleLimit + chance*math.Sqrt(2 / *l)*residence/seconds
	return check(Little, result.CheckFinding, math.Abs(*ratio-1), limit, "ratio",
		fmt.Sprintf("arrival rate × time in the system is %.3g times the requests in the system, allowed 1 ± %.2g", *ratio, limit))
}

// held says whether the limit on requests in flight held requests back.
func held(in Input) result.Check {
	h := in.Recording.Harness
	seconds := float64(h.AtLimit) / 1e9
	reason := "the limit on requests in flight was not reached"
	if seconds > 0 {
		reason = fmt.Sprintf("the limit of %d requests in flight held requests back for %.3g s: the load was not open then", h.Limit, seconds)
	}
	return check(ConcurrencyHeld, result.CheckFinding, seconds, 0, "s", reason)
}
