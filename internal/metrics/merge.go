package metrics

import (
	"math"

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
	for _, b := range bases() {
		var all column
		for _, p := range parts {
			col := p.column(b.name)
			all.values = append(all.values, col.values...)
			all.censored = append(all.censored, col.censored...)
			all.infinite += col.infinite
			if col.unknown != "" {
				all.unknown = col.unknown
			}
		}
		for _, s := range statistics() {
			if num, _ := s.quantile(); num == 0 || s.Interpolated() {
				continue
			}
			name := b.name + "_" + string(s)
			values[name] = nil
			v, reason := all.summary(s)
			if math.IsNaN(v) || math.IsInf(v, 0) {
				reasons[name] = reason
				continue
			}
			values[name] = &v
		}
	}
	return values, reasons
}

func (p Part) column(base string) column {
	c := computation{rows: p.Rows, start: p.Start, end: p.End}
	for i := range p.Rows {
		r := &p.Rows[i]
		if r.Phase != result.PhaseWarmup && r.TIntended >= p.Start && r.TIntended < p.End {
			c.due = append(c.due, r)
		}
	}
	switch base {
	case "chunk_gap":
		return c.gaps(false)
	case "itl":
		return c.gaps(true)
	default:
		return c.perRequest(base)
	}
}
