package aggregate

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"sbench/internal/metrics"
)

// confidence is the two-sided level of every interval.
const confidence = 0.95

// values are a metric's values of runs.
type values struct {
	v      []float64 // ascending, so that sums do not depend on the runs' order
	runs   int
	reason string // why a run has no value
	log    bool   // all positive, of a quantity that is compared by ratios
}

// overRuns collects the values of a metric.
func overRuns(m metrics.Metric, runs []Run) values {
	o := values{runs: len(runs)}
	reasons := []string{}
	for _, r := range runs {
		v := r.Metrics[m.Name]
		if v == nil || !finite(*v) {
			reasons = append(reasons, orElse(r.NullReasons[m.Name], "not measured"))
			continue
		}
		o.v = append(o.v, *v)
	}
	slices.Sort(o.v)
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
func ratioScale(unit string) bool { return unit != "ratio" && unit != "requests" }

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
	low, high := o.interval(mean)
	m.setInterval(low, high)
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
	if o.log {
		_, sd := meanSD(logs(o.v))
		h := halfWidth(sd, len(o.v))
		m.setInterval(*merged*math.Exp(-h), *merged*math.Exp(h))
		return m
	}
	_, sd := meanSD(o.v)
	h := halfWidth(sd, len(o.v))
	m.setInterval(*merged-h, *merged+h)
	return m
}

// setInterval leaves out what absurd values overflow.
func (m *Metric) setInterval(low, high float64) {
	if !finite(low) || !finite(high) {
		return
	}
	m.CILow, m.CIHigh = &low, &high
	if *m.Mean != 0 {
		relative := (high - low) / 2 / math.Abs(*m.Mean)
		m.RelativeCI = &relative
	}
}

func (o values) interval(mean float64) (low, high float64) {
	if o.log {
		center, sd := meanSD(logs(o.v))
		h := halfWidth(sd, len(o.v))
		return math.Exp(center - h), math.Exp(center + h)
	}
	_, sd := meanSD(o.v)
	h := halfWidth(sd, len(o.v))
	return mean - h, mean + h
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
