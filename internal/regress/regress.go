// Package regress decides whether a series got slower: against a named baseline
// for a gate, and along its own history for every night. It promises that nothing
// undecided passes for good, that the false alarms of a whole night are bounded,
// and that each verdict says what it could not have seen; it never moves a
// baseline. The package is pure.
package regress

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"sbench/internal/compare"
	"sbench/internal/metrics"
	"sbench/internal/stats"
)

// Night is what a series measured in one sweep.
type Night struct {
	Sweep       int64
	SettingHash string
	Synthetic   bool                 // inserted, labelled; never measured
	Values      map[string][]float64 // by metric, in the order of the repeats
	Nodes       []string             // of the runs, beside the values
	Fingerprint []string             // realized, different ones
}

// Spread is how much a metric of a series varies, on logarithms.
type Spread struct {
	Run    float64 // within a night
	RunDF  int
	Night  float64 // of the nights' means, beyond what the runs explain
	Nights int
	// Total is the standard deviation over run, night and node; its degrees of
	// freedom are TotalDF. It is what adaptive N pools.
	Total   float64
	TotalDF int
}

// minNights is the fewest nights that tell how much nights differ.
const minNights = 5

// SpreadOf separates the variance within nights from that between them. Values
// that are not positive are left out with their night.
func SpreadOf(nights []Night, metric string) Spread {
	var s Spread
	var within, runs float64
	var means, all []float64
	for _, n := range nights {
		x := stats.Logs(n.Values[metric])
		if len(x) == 0 || !finite(x) {
			continue
		}
		s.Nights++
		m := stats.Mean(x)
		means, all = append(means, m), append(all, x...)
		runs += 1 / float64(len(x))
		for _, v := range x {
			within += (v - m) * (v - m)
		}
		s.RunDF += len(x) - 1
	}
	if s.RunDF > 0 {
		s.Run = math.Sqrt(within / float64(s.RunDF))
	}
	if len(all) > 1 {
		s.Total, s.TotalDF = stats.StdDev(all), len(all)-1
	}
	if s.Nights >= minNights {
		// A mean of n runs varies by run²/n beside what the nights do.
		s.Night = math.Sqrt(max(0, stats.Variance(means)-s.Run*s.Run*runs/float64(s.Nights)))
	}
	return s
}

func finite(x []float64) bool {
	return !slices.ContainsFunc(x, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

// Outcome is what a gate says of a series.
type Outcome string

// The outcomes.
const (
	Pass      Outcome = "pass"
	Regressed Outcome = "regressed"
	Undecided Outcome = "undecided" // never to be taken for a pass
	Missing   Outcome = "missing"   // the baseline has it, the sweep has no valid result
	New       Outcome = "new"       // the baseline does not have it
)

// MetricVerdict is one metric of a series beside its baseline.
type MetricVerdict struct {
	compare.Pair
	// NightSD is the night-to-night deviation that the interval allows for; null
	// where no history tells it.
	NightSD *float64 `json:"night_stddev"`
}

// SeriesVerdict is a series beside its baseline.
type SeriesVerdict struct {
	Series      string          `json:"series_hash"`
	Setting     string          `json:"setting_hash"`
	Baseline    string          `json:"baseline_setting_hash"`
	Outcome     Outcome         `json:"outcome"`
	Metrics     []MetricVerdict `json:"metrics"`
	Reason      string          `json:"reason"` // one line
	RunsNeeded  int             `json:"runs_needed"`
	Interleaved bool            `json:"interleaved"` // judged on runs of both sides of one night
}

// Side is one side of a gate: a setting's runs, and whether both sides were
// measured together.
type Side struct {
	Row    compare.Row
	Spread map[string]Spread
}

// Gate is the rule for CI: a series is regressed where a gating metric is worse
// than the baseline's beyond doubt and by threshold or more; it passes where every
// metric is shown not to be. together says that both sides ran interleaved in one
// sweep, so that nights do not count. A metric that neither side has is left out.
func Gate(base compare.Row, now Side, threshold float64, together bool) SeriesVerdict {
	v := SeriesVerdict{
		Series: now.Row.SeriesHash, Setting: now.Row.SettingHash, Baseline: base.SettingHash, Outcome: Pass,
		Metrics: []MetricVerdict{}, Interleaved: together,
	}
	if len(now.Row.Runs) == 0 {
		v.Series, v.Outcome, v.Reason = base.SeriesHash, Missing, "no valid result"
		return v
	}
	if len(now.Row.Findings) > 0 {
		v.Outcome, v.Reason = Undecided, "the engine was "+now.Row.Findings[0]+": such results are not judged"
		return v
	}
	if base.HardwareClass != now.Row.HardwareClass {
		v.Outcome, v.Reason = Undecided, "emulated and real hardware are never compared"
		return v
	}
	var p []float64
	for _, name := range compare.Gating() {
		if lacks(base, name) && lacks(now.Row, name) {
			continue
		}
		m := gateMetric(base, now, name, threshold, together)
		v.Metrics = append(v.Metrics, m)
		if m.P != nil {
			p = append(p, *m.P)
		} else {
			p = append(p, 1)
		}
	}
	if len(v.Metrics) == 0 {
		v.Outcome, v.Reason = Undecided, "neither side has a metric that gates"
		return v
	}
	for i, adjusted := range stats.Holm(p) {
		m := &v.Metrics[i]
		if m.Verdict.Bad() && adjusted > 0.05 {
			m.Verdict = compare.Inconclusive
			m.Notes = append(m.Notes, fmt.Sprintf("p = %.2g after Holm's rule", adjusted))
		}
		v.RunsNeeded = max(v.RunsNeeded, m.RunsNeeded)
	}
	v.conclude()
	return v
}

func lacks(r compare.Row, metric string) bool {
	return !slices.ContainsFunc(r.Runs, func(run compare.Run) bool { return run.Metrics[metric] != nil })
}

// conclude makes one outcome of the metrics'.
func (v *SeriesVerdict) conclude() {
	for _, m := range v.Metrics {
		ratio := "?"
		if m.Ratio != nil {
			ratio = fmt.Sprintf("%+.1f %%", 100*(*m.Ratio-1))
		}
		switch {
		case m.Verdict.Bad():
			v.Outcome, v.Reason = Regressed, fmt.Sprintf("%s %s", m.Metric, ratio)
			return
		case m.Verdict == compare.Inconclusive && v.Outcome != Undecided:
			v.Outcome = Undecided
			v.Reason = fmt.Sprintf("%s %s is inconclusive", m.Metric, ratio)
			if m.MDE != nil {
				v.Reason += fmt.Sprintf(": smallest detectable %.1f %%", 100**m.MDE)
			} else if len(m.Notes) > 0 {
				v.Reason += ": " + m.Notes[0]
			}
		case m.Verdict == compare.SlowerSmall && v.Outcome == Pass && v.Reason == "":
			v.Reason = fmt.Sprintf("%s %s, less than what counts", m.Metric, ratio)
		}
	}
}

// gateMetric compares with the variance pooled over both sides and the history,
// and adds that of the nights where the sides ran on different ones.
func gateMetric(base compare.Row, now Side, name string, threshold float64, together bool) MetricVerdict {
	m := MetricVerdict{Pair: compare.MakePair(base, now.Row, name, threshold, together)}
	x, y := logsOf(base, name), logsOf(now.Row, name)
	if together || len(x) < 2 || len(y) < 2 || m.Ratio == nil {
		return m
	}
	h := now.Spread[name]
	v0 := float64(min(h.RunDF, 20))
	df := float64(len(x)+len(y)-2) + v0
	sum := stats.Variance(x)*float64(len(x)-1) + stats.Variance(y)*float64(len(y)-1) + v0*h.Run*h.Run
	variance := sum / df * (1/float64(len(x)) + 1/float64(len(y)))
	if h.Nights >= minNights {
		night := 2 * h.Night * h.Night
		m.NightSD = &h.Night
		// Satterthwaite: the nights' part is known from few nights only.
		df = (variance + night) * (variance + night) / (variance*variance/df + night*night/float64(h.Nights-1))
		variance += night
	} else {
		m.Notes = append(m.Notes, fmt.Sprintf("%d nights of history: how much nights differ is not allowed for", h.Nights))
	}
	m.fill(math.Log(*m.Ratio), math.Sqrt(variance), df, threshold, min(len(x), len(y)))
	return m
}

// fill judges a log ratio with that standard error.
func (m *MetricVerdict) fill(d, se, df, threshold float64, n int) {
	m.Method = "pooled"
	h := stats.TQuantile(0.975, df) * se
	low, high := math.Exp(d-h), math.Exp(d+h)
	m.RatioLow, m.RatioHigh = &low, &high
	mde := stats.MDEOf(se, df)
	p := 0.0
	if se > 0 {
		p = 2 * stats.TCDF(-math.Abs(d/se), df)
	} else if d == 0 {
		p = 1
	}
	m.MDE, m.P = &mde, &p
	worse, wl, wh := d, d-h, d+h
	if of, _ := metrics.Find(m.Metric); of.Better == metrics.Higher {
		worse, wl, wh = -d, -d-h, -d+h
	}
	m.Verdict = compare.Judge(worse, wl, wh, threshold)
	m.RunsNeeded = 0
	if m.Verdict == compare.Inconclusive {
		m.RunsNeeded = stats.RunsToDecide(se*math.Sqrt(float64(n)/2), threshold)
	}
}

func logsOf(r compare.Row, metric string) []float64 {
	runs := slices.SortedFunc(slices.Values(r.Runs), func(a, b compare.Run) int { return cmp.Compare(a.Repeat, b.Repeat) })
	var out []float64
	for _, run := range runs {
		if v := run.Metrics[metric]; v != nil && *v > 0 {
			out = append(out, math.Log(*v))
		}
	}
	return out
}
