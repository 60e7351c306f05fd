package metrics

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"sbench/internal/result"
	"sbench/internal/stats"
)

// column holds the samples of one request-level quantity.
type column struct {
	values   []weighted
	infinite int       // requests that failed: they never got there
	censored []float64 // requests cut off: they took longer than this
	unknown  string    // why the quantity cannot be told at all; "" where it can
}

// weighted is a value in seconds (or tokens/s) that stands for weight samples:
// 1, but for itl the tokens of the event.
type weighted struct {
	value  float64
	weight int
}

func (c *computation) latencies() {
	for _, b := range bases() {
		var col column
		switch b.name {
		case "chunk_gap":
			col = c.gaps(false)
		case "itl":
			col = c.gaps(true)
		default:
			col = c.perRequest(b.name)
		}
		if col.unknown == "" && len(col.values) > 0 && b.unit == "s" {
			c.histograms[b.name] = histogram(col)
		}
		for _, s := range statistics() {
			v, reason := col.summary(s)
			c.set(b.name+"_"+string(s), v, reason)
		}
	}
}

// perRequest collects one value per offered request. What a failure means
// depends on the quantity: it never finished (e2e), never had a first token
// (ttft, ttfo), or has no such value (tpot, schedule_delay).
func (c *computation) perRequest(base string) column {
	var col column
	for _, r := range c.due {
		if !offered(r) {
			continue
		}
		v := latency(base, r)
		if base == "e2e" && !EndedWell(r) {
			v = nil
		}
		switch {
		case v != nil:
			col.values = append(col.values, weighted{*v, 1})
		case base == "tpot" || base == "tokens_per_s_user":
			// Undefined: it leaves n.
		case base == "schedule_delay":
			if r.Outcome == result.OutcomeNotSent || r.Outcome == result.OutcomeClientLimit {
				col.infinite++
			}
		case EndedWell(r):
			// Undefined, and no failure: only reasoning was produced (ttfo), or the
			// answer did not come as a stream (ttft).
		case r.Outcome == result.OutcomeCutOff && r.TEnd != nil:
			from := r.TIntended
			if base == "ttft_service" && r.TWritten != nil {
				from = *r.TWritten
			}
			col.censored = append(col.censored, float64(*r.TEnd-from)/1e9)
		default:
			col.infinite++
		}
	}
	if len(col.values)+col.infinite+len(col.censored) == 0 && len(c.due) > 0 {
		switch base {
		case "tpot", "tokens_per_s_user":
			col.unknown = "no request had more tokens than its first event, or the counts are unknown"
		case "ttfo":
			col.unknown = "nothing but reasoning was produced, or the answers did not come as a stream"
		default:
			col.unknown = "the answers did not come as a stream"
		}
	}
	return col
}

// gaps collects the differences of successive events with text; normalised, each
// is divided by, and weighted with, the tokens of its event.
func (c *computation) gaps(normalised bool) column {
	var col column
	for _, r := range c.due {
		n := len(r.EventTimes)
		if n < 2 {
			continue
		}
		if normalised && len(r.EventTokens) != n {
			return column{unknown: "the tokens of each event are unknown"}
		}
		for i := 1; i < n; i++ {
			gap, weight := float64(r.EventTimes[i]-r.EventTimes[i-1])/1e9, 1
			if normalised {
				if weight = int(r.EventTokens[i]); weight <= 0 {
					continue
				}
				gap /= float64(weight)
			}
			col.values = append(col.values, weighted{gap, weight})
		}
	}
	if len(col.values) == 0 && len(c.due) > 0 {
		col.unknown = "no answer came in more than one event"
	}
	return col
}

// summary returns the statistic, or NaN and the reason why there is none.
func (col column) summary(s Statistic) (float64, string) {
	n := len(col.censored) + col.infinite
	for _, v := range col.values {
		n += v.weight
	}
	switch {
	case col.unknown != "":
		return math.NaN(), col.unknown
	case n == 0:
		return math.NaN(), noRequests
	case s == Mean:
		return col.mean(n)
	}
	num, den := s.quantile()
	if !stats.Enough(n, num, den) {
		return math.NaN(), fmt.Sprintf("%d samples; this percentile needs %d", n, stats.Needed(num, den))
	}
	// The requests that were cut off lie between their bound and infinity. Where
	// both extremes give the same value, that is the percentile.
	lower := col.sorted(true)
	v := lower.quantile(s)
	if len(col.censored) > 0 {
		if upper := col.sorted(false).quantile(s); v != upper {
			return math.NaN(), fmt.Sprintf("> %.6g: %d of %d requests were cut off", v, len(col.censored), n)
		}
	}
	if math.IsInf(v, 1) {
		return v, fmt.Sprintf("infinite: %d of %d requests failed", col.infinite, n)
	}
	return v, ""
}

func (col column) mean(n int) (float64, string) {
	if failed := col.infinite + len(col.censored); failed > 0 {
		return math.NaN(), fmt.Sprintf("infinite: %d of %d requests failed or were cut off", failed, n)
	}
	var sum float64
	for _, v := range col.values {
		sum += v.value * float64(v.weight)
	}
	return sum / float64(n), ""
}

// order is a column in ascending order: ends[i] is the rank of the last sample
// that values[i] stands for; ranks above n are infinite.
type order struct {
	values []float64
	ends   []int
	total  int
}

// sorted orders the column, with what was cut off at its bound or at infinity.
func (col column) sorted(atBound bool) order {
	all := slices.Clone(col.values)
	infinite := col.infinite
	if atBound {
		for _, bound := range col.censored {
			all = append(all, weighted{bound, 1})
		}
	} else {
		infinite += len(col.censored)
	}
	slices.SortFunc(all, func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	o := order{values: make([]float64, len(all)), ends: make([]int, len(all))}
	for i, v := range all {
		o.total += v.weight
		o.values[i], o.ends[i] = v.value, o.total
	}
	o.total += infinite
	return o
}

// at is the sample of that 1-based rank.
func (o order) at(rank int) float64 {
	i, _ := slices.BinarySearch(o.ends, rank)
	if i == len(o.values) {
		return math.Inf(1)
	}
	return o.values[i]
}

func (o order) quantile(s Statistic) float64 {
	num, den := s.quantile()
	if !s.Interpolated() {
		return o.at(stats.Rank(o.total, num, den))
	}
	whole, rest := (o.total-1)*num/den, (o.total-1)*num%den
	low := o.at(whole + 1)
	if rest == 0 || math.IsInf(low, 1) {
		return low
	}
	return low + (o.at(whole+2)-low)*float64(rest)/float64(den)
}
