package metrics

import (
	"math"
	"slices"

	"sbench/internal/result"
)

// Part is one window of an attempt: the attempt's rows, and where the window
// lies on the attempt's clock.
type Part struct {
	Rows       []result.Request
	Start, End int64 // ns
}

// MergePercentiles returns the nearest-rank percentiles over the samples of all
// parts together, by the metric's name for one window (ttft_p95), and why one is
// null. Every other metric is missing: only percentiles are merged.
func MergePercentiles(parts []Part) (result.Metrics, map[string]string) {
	values, reasons := result.Metrics{}, map[string]string{}
	computations := make([]computation, len(parts))
	for i, p := range parts {
		computations[i] = computation{rows: p.Rows, start: p.Start, end: p.End}
		computations[i].selectDue()
	}
	var all column // its memory is used again
	for _, b := range bases() {
		most := 0
		for i := range computations {
			most += computations[i].most(b.name)
		}
		all = column{values: slices.Grow(all.values[:0], most), censored: all.censored[:0]}
		for i := range computations {
			computations[i].collect(&all, b.name)
		}
		whole := all.sample()
		for _, s := range statistics() {
			if num, _ := s.quantile(); num == 0 || s.Interpolated() {
				continue
			}
			name := b.name + "_" + string(s)
			values[name] = nil
			v, reason := whole.summary(s)
			if math.IsNaN(v) || math.IsInf(v, 0) {
				reasons[name] = reason
				continue
			}
			values[name] = &v
		}
	}
	return values, reasons
}
