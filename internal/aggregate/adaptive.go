package aggregate

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"sbench/internal/stats"
)

// Policy is how many runs a setting gets: at least Min, and more, up to Max,
// until the relative half-width of the 95 % interval of every metric is within
// Target.
type Policy struct {
	Min, Max int
	Metrics  []string // by their names for one run: output_tokens_per_s, ttft_p95
	Target   float64
}

// Counts are the runs of a setting that have ended, by what became of them.
type Counts struct {
	Planned                 int // all of them
	Cancelled, Dead, Failed int
	// Barred says that a user wants no more.
	Barred bool
}

// Outcome is what was decided about the number of runs.
type Outcome string

// The outcomes. Everything but Open stops.
const (
	Open      Outcome = "open"      // runs are added
	Reached   Outcome = "reached"   // every metric is as precise as asked for
	Exhausted Outcome = "max"       // there are as many runs as there may be
	Decided   Outcome = "decided"   // the rule has no further look, and a metric is less precise than asked for
	Undefined Outcome = "undefined" // a metric has no value in a run: no number of runs gives it an interval
	Cancelled Outcome = "cancelled" // a user has cancelled runs
	Dead      Outcome = "dead"      // a run can never succeed: the next would not either
	Failed    Outcome = "failed"    // as many runs failed as were valid
)

// ForGood reports whether what stopped lies in the numbers. What lies in the runs
// is decided again when a user sends these back.
func (o Outcome) ForGood() bool {
	return o == Reached || o == Exhausted || o == Decided || o == Undefined
}

// MetricDecision is how precise a metric is and how many runs it would take.
type MetricDecision struct {
	N int `json:"n"`
	// Effective is how many independent runs these are worth: runs that share a
	// node tell less than runs of different ones.
	Effective  *float64 `json:"n_effective"`
	RelativeCI *float64 `json:"relative_ci"` // null where there is none yet
	StdDevLog  *float64 `json:"stddev_log"`  // that the interval is made of
	DF         *float64 `json:"df"`
	// Rule is pooled (with the spread of earlier nights), stein (a pilot fixes the
	// number) or start (too few runs).
	Rule      string   `json:"rule"`
	Reached   bool     `json:"reached"`
	Wanted    int      `json:"runs_wanted"`
	HistorySD *float64 `json:"history_stddev_log"` // null without a history
	HistoryDF int      `json:"history_df"`
	Warnings  []string `json:"warnings"`

	half float64 // of the interval of the logarithms
	stop bool
}

// Decision is what was decided after so many runs.
type Decision struct {
	Outcome Outcome
	Add     int // runs to add; 0 unless Open
	Planned int // runs there are
	NValid  int
	Reason  string // for people
	Metrics map[string]MetricDecision
}

// History is what earlier nights say about a metric of a setting.
type History struct {
	stats.History
	Modes stats.Modes
}

// Decide says whether a setting whose runs have all ended gets more. Runs are the
// valid ones; where their environments differ those of the largest group count,
// as in the summary. The answer depends on its arguments alone.
func Decide(p Policy, c Counts, runs []Run, history map[string]History) Decision {
	pooled := slices.SortedFunc(slices.Values(Pooled(runs)), func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.Repeat, b.Repeat), cmp.Compare(a.AttemptID, b.AttemptID))
	})
	d := Decision{Planned: c.Planned, NValid: len(runs), Metrics: map[string]MetricDecision{}}
	stop := func(o Outcome, format string, args ...any) Decision {
		d.Outcome, d.Reason = o, fmt.Sprintf(format, args...)
		return d
	}
	undefined, wanted, reached, done := "", 0, true, true
	for _, name := range p.Metrics {
		m, why := decideMetric(name, p, pooled, history[name])
		if why != "" && undefined == "" {
			undefined = why
		}
		d.Metrics[name] = m
		wanted = max(wanted, m.Wanted)
		reached, done = reached && m.Reached, done && m.stop
	}
	switch {
	case c.Barred || c.Cancelled > 0:
		return stop(Cancelled, "stopped after %d runs: cancelled by a user", c.Planned)
	case c.Dead > 0:
		return stop(Dead, "stopped after %d runs: %d of them can never succeed, and no more are tried", c.Planned, c.Dead)
	case c.Failed > 0 && c.Failed >= len(runs):
		return stop(Failed, "stopped after %d runs: %d failed and %d are valid", c.Planned, c.Failed, len(runs))
	case undefined != "":
		return stop(Undefined, "stopped after %d runs: %s: no number of runs gives an interval", c.Planned, undefined)
	case done && reached:
		return stop(Reached, "stopped after %d runs: %s, target ±%s", c.Planned, d.precision(), percent(p.Target))
	case c.Planned >= p.Max:
		return stop(Exhausted, "stopped at the maximum of %d runs: %s, target ±%s", p.Max, d.precision(), percent(p.Target))
	case done:
		// The number that a pilot fixed is there, and the interval is wider all the
		// same because runs share nodes; or a metric that was precise enough before
		// the other one is so no more. To look again would cost the coverage.
		return stop(Decided, "stopped after %d runs, as was decided before: %s, target ±%s", c.Planned, d.precision(), percent(p.Target))
	}
	d.Outcome = Open
	d.Add = max(1, min(wanted-len(pooled), p.Max-c.Planned))
	d.Reason = fmt.Sprintf("%s added to %d: %s, target ±%s", runsText(d.Add), c.Planned, d.precision(), percent(p.Target))
	return d
}

func runsText(n int) string {
	if n == 1 {
		return "1 run"
	}
	return fmt.Sprintf("%d runs", n)
}

// decideMetric asks the stopping rule about one metric; undefined says why it
// cannot be asked.
func decideMetric(name string, p Policy, runs []Run, h History) (m MetricDecision, undefined string) {
	m = MetricDecision{N: len(runs), HistoryDF: h.DF, Warnings: []string{}, half: math.Inf(1)}
	if h.DF > 0 {
		m.HistorySD = &h.SD
	}
	x, node := make([]float64, 0, len(runs)), make([]string, 0, len(runs))
	for _, r := range runs {
		v := r.Metrics[name]
		if v == nil || !finite(*v) || !(*v > 0) {
			m.stop = true
			return m, fmt.Sprintf("%s is undefined in run %d (%s)", name, r.Repeat, orElse(r.NullReasons[name], "not measured"))
		}
		x, node = append(x, *v), append(node, r.place())
	}
	s := stats.Decide(x, node, h.History, stats.Policy{Min: p.Min, Max: p.Max, Target: p.Target, Widen: h.Modes.Bimodal})
	m.Rule, m.Reached, m.Wanted, m.stop, m.half = s.Rule, s.Reached, s.Runs, s.Stop, s.HalfWidth
	if relative := math.Expm1(s.HalfWidth); finite(relative) {
		m.RelativeCI = &relative
	}
	if finite(s.SD) {
		m.StdDevLog = &s.SD
	}
	if finite(s.DF) {
		m.DF = &s.DF
	}
	if len(x) > 0 {
		effective := stats.NodeEffect(x, node).Effective
		m.Effective = &effective
	}
	for _, w := range s.Warnings {
		m.Warnings = append(m.Warnings, w.Message)
	}
	if h.Modes.Bimodal {
		m.Warnings = append(m.Warnings, "the history has two modes: all runs are made")
	}
	return m, ""
}

// precision lists how precise each metric is.
func (d *Decision) precision() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(d.Metrics)) {
		m := d.Metrics[name]
		text := name + " has no interval yet"
		if m.RelativeCI != nil {
			text = fmt.Sprintf("%s ±%s (%s)", name, percent(*m.RelativeCI), m.Rule)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

func percent(share float64) string { return fmt.Sprintf("%.3g %%", 100*share) }

// HalfWidths are the half-widths of the logarithms' intervals that the decision
// was made on, by metric: the ones that hold however the number of runs came
// about.
func (d *Decision) HalfWidths() map[string]HalfWidth {
	out := map[string]HalfWidth{}
	for name, m := range d.Metrics {
		if finite(m.half) {
			out[name] = HalfWidth{Log: m.half, N: m.N, Rule: m.Rule}
		}
	}
	return out
}

// Night is what a setting of a series measured in one sweep.
type Night struct {
	// Segment differs where the setting, its environment or, by a confirmed step,
	// its location is another than in the other nights.
	Segment string
	Runs    []Run
}

// Histories sums up the nights before a decision for some metrics. A run without
// a value takes its night out.
func Histories(nights []Night, names []string) map[string]History {
	out := map[string]History{}
	for _, name := range names {
		var order []string
		segments := map[string][][]float64{}
		for _, n := range nights {
			values := make([]float64, 0, len(n.Runs))
			for _, r := range n.Runs {
				if v := r.Metrics[name]; v != nil && finite(*v) && *v > 0 {
					values = append(values, *v)
				}
			}
			if len(values) == 0 || len(values) < len(n.Runs) {
				continue
			}
			if segments[n.Segment] == nil {
				order = append(order, n.Segment)
			}
			segments[n.Segment] = append(segments[n.Segment], values)
		}
		var list [][][]float64
		var residuals []float64
		for _, segment := range order {
			list = append(list, segments[segment])
			logs := stats.Logs(slices.Concat(segments[segment]...))
			mean := stats.Mean(logs)
			for _, v := range logs {
				residuals = append(residuals, math.Exp(v-mean))
			}
		}
		out[name] = History{History: stats.PoolHistory(list), Modes: stats.Bimodality(residuals)}
	}
	return out
}
