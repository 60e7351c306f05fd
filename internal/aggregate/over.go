package aggregate

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"sbench/internal/metrics"
	"sbench/internal/stats"
)

// confidence is the two-sided level of every interval.
const confidence = 0.95

// values are a metric's values of runs.
type values struct {
	v      []float64 // ascending, so that sums do not depend on the runs' order
	node   []string  // where v[i] was measured
	runs   int
	reason string // why a run has no value
	log    bool   // all positive, of a quantity that is compared by ratios
	// decided is the interval that the number of runs was decided on; zero where
	// it was not.
	decided HalfWidth
}

// overRuns collects the values of a metric.
func overRuns(m metrics.Metric, runs []Run) values {
	o := values{runs: len(runs)}
	reasons := []string{}
	type placed struct {
		v    float64
		node string
	}
	var list []placed
	for _, r := range runs {
		v := r.Metrics[m.Name]
		if v == nil || !finite(*v) {
			reasons = append(reasons, orElse(r.NullReasons[m.Name], "not measured"))
			continue
		}
		list = append(list, placed{*v, r.place()})
	}
	slices.SortFunc(list, func(a, b placed) int { return cmp.Or(cmp.Compare(a.v, b.v), cmp.Compare(a.node, b.node)) })
	for _, p := range list {
		o.v, o.node = append(o.v, p.v), append(o.node, p.node)
	}
	slices.Sort(reasons)
	switch {
	case o.runs == 0:
		o.reason = "no valid run"
	case len(o.v) == 0:
		o.reason = reasons[0]
	case len(o.v) < o.runs:
		// The mean of the runs that have a value would be that of the lucky ones.
		o.reason = fmt.Sprintf("undefined in %d of %d runs: %s", len(reasons), o.runs, reasons[0])
	}
	o.log = ratioScale(m.Unit) && len(o.v) > 0 && o.v[0] > 0
	return o
}

// ratioScale says whether a unit's noise is multiplicative: rates, times and
// energies are; shares and counts are not.
func ratioScale(unit string) bool { return unit != "ratio" && unit != "requests" && unit != "items" }

func (o values) scale() string {
	if o.log {
		return "log"
	}
	return "linear"
}

// metric is the mean, the sample standard deviation and the t interval.
func (o values) metric() Metric {
	m := Metric{N: len(o.v), Scale: o.scale(), NullReason: o.reason}
	if o.reason != "" {
		return m
	}
	mean, sd := meanSD(o.v)
	m.Mean = &mean
	if len(o.v) > 1 && finite(sd) {
		m.StdDev = &sd
	}
	if len(o.v) < MinRuns {
		return m
	}
	h, rule := o.halfWidth()
	if o.log {
		center, _ := meanSD(logs(o.v))
		m.setInterval(math.Exp(center-h), math.Exp(center+h), rule)
		return m
	}
	m.setInterval(mean-h, mean+h, rule)
	return m
}

// around is a merged percentile with the interval of the runs' own percentiles
// around it.
func (o values) around(merged *float64, reason string) Metric {
	m := Metric{N: len(o.v), Scale: o.scale()}
	switch {
	case o.runs == 0:
		m.NullReason = "no valid run"
		return m
	case merged == nil:
		m.NullReason = reason
		return m
	}
	m.Mean = merged
	if o.reason != "" {
		return m // a run without a value: no spread, no interval
	}
	if len(o.v) > 1 {
		if _, sd := meanSD(o.v); finite(sd) {
			m.StdDev = &sd
		}
	}
	if len(o.v) < MinRuns || o.log && !(*merged > 0) {
		return m
	}
	h, rule := o.halfWidth()
	if o.log {
		m.setInterval(*merged*math.Exp(-h), *merged*math.Exp(h), rule)
		return m
	}
	m.setInterval(*merged-h, *merged+h, rule)
	return m
}

// setInterval leaves out what absurd values overflow.
func (m *Metric) setInterval(low, high float64, rule string) {
	if !finite(low) || !finite(high) {
		return
	}
	m.CILow, m.CIHigh, m.Rule = &low, &high, rule
	if *m.Mean != 0 {
		relative := (high - low) / 2 / math.Abs(*m.Mean)
		m.RelativeCI = &relative
	}
}

// The rules of intervals.
const (
	ruleT     = "t"
	ruleNodes = "nodes"
)

// halfWidth is of the interval on the values' scale, and how it was made. Runs
// that share nodes which differ are not independent: the wider of Student's and
// the nodes' interval holds.
func (o values) halfWidth() (h float64, rule string) {
	if o.log && o.decided.N == len(o.v) {
		return o.decided.Log, o.decided.Rule
	}
	v := o.v
	if o.log {
		v = logs(v)
	}
	_, sd := meanSD(v)
	h, rule = halfWidth(sd, len(v)), ruleT
	if n := stats.LinearNodeEffect(v, o.node); n.SigmaNode > 0 && n.HalfWidth > h {
		h, rule = n.HalfWidth, ruleNodes
	}
	return h, rule
}

// halfWidth is that of the t interval of a mean of n values.
func halfWidth(sd float64, n int) float64 {
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(n - 1)}.Quantile(1 - (1-confidence)/2)
	return t * sd / math.Sqrt(float64(n))
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func logs(v []float64) []float64 {
	l := make([]float64, len(v))
	for i, x := range v {
		l[i] = math.Log(x)
	}
	return l
}

// meanSD is the mean and the sample standard deviation, in two passes; sd is 0
// for one value. The mean never leaves the range of the values.
func meanSD(v []float64) (mean, sd float64) {
	var sum float64
	for _, x := range v {
		sum += x
	}
	n := float64(len(v))
	mean = min(max(sum/n, v[0]), v[len(v)-1])
	if len(v) < 2 {
		return mean, 0
	}
	var squares, drift float64
	for _, x := range v {
		squares += (x - mean) * (x - mean)
		drift += x - mean
	}
	return mean, math.Sqrt(max(0, squares-drift*drift/n) / (n - 1))
}
