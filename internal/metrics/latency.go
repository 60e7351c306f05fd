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
		col := column{values: make([]weighted, 0, c.most(b.name))}
		c.collect(&col, b.name)
		if col.unknown == "" && len(col.values) > 0 && b.unit == "s" {
			c.histograms[b.name] = histogram(col)
		}
		all := col.sample()
		for _, s := range statistics() {
			v, reason := all.summary(s)
			c.set(b.name+"_"+string(s), v, reason)
		}
	}
}

// collect adds the samples of a quantity to a column, which may have those of
// other computations.
func (c *computation) collect(col *column, base string) {
	before := col.size()
	switch base {
	case "chunk_gap":
		c.gaps(col, false)
	case "itl":
		c.gaps(col, true)
	default:
		c.perRequest(col, base)
	}
	if col.size() > before || len(c.due) == 0 || col.unknown != "" {
		return
	}
	switch base {
	case "chunk_gap", "itl":
		col.unknown = "no answer came in more than one event"
	case "tpot", "tokens_per_s_user":
		col.unknown = "no request had more tokens than its first event, or the counts are unknown"
	case "ttfo":
		col.unknown = "nothing but reasoning was produced, or the answers did not come as a stream"
	default:
		col.unknown = "the answers did not come as a stream"
	}
}

// most is how many values a quantity has at most.
func (c *computation) most(base string) int {
	if base != "chunk_gap" && base != "itl" {
		return len(c.due)
	}
	n := 0
	for _, r := range c.due {
		n += max(0, len(r.EventTimes)-1)
	}
	return n
}

// perRequest collects one value per offered request. What a failure means
// depends on the quantity: it never finished (e2e), never had a first token
// (ttft, ttfo), or has no such value (tpot, schedule_delay).
func (c *computation) perRequest(col *column, base string) {
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
}

// gaps collects the differences of successive events with text; normalised, each
// is divided by, and weighted with, the tokens of its event.
func (c *computation) gaps(col *column, normalised bool) {
	for _, r := range c.due {
		n := len(r.EventTimes)
		if n < 2 {
			continue
		}
		if normalised && len(r.EventTokens) != n {
			col.unknown = "the tokens of each event are unknown"
			return
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
}

// sample is a column that is ordered once for all its statistics.
type sample struct {
	column
	total int
	// The requests that were cut off lie between their bound and infinity: atBound
	// has them there, and atInfinity as if they had never ended.
	atBound, atInfinity order
}

// size is how many values and requests there are.
func (col *column) size() int { return len(col.values) + len(col.censored) + col.infinite }

// n is how many samples there are.
func (col *column) n() int {
	n := len(col.censored) + col.infinite
	for _, v := range col.values {
		n += v.weight
	}
	return n
}

func (col column) sample() sample {
	s := sample{column: col, total: col.n()}
	if col.unknown != "" || s.total == 0 {
		return s
	}
	s.atBound = col.sorted(true)
	if len(col.censored) > 0 {
		s.atInfinity = col.sorted(false)
	}
	return s
}

// summary returns the statistic, or NaN and the reason why there is none.
func (s *sample) summary(stat Statistic) (float64, string) {
	switch {
	case s.unknown != "":
		return math.NaN(), s.unknown
	case s.total == 0:
		return math.NaN(), noRequests
	case stat == Mean:
		return s.mean(s.total)
	}
	num, den := stat.quantile()
	if !stats.Enough(s.total, num, den) {
		return math.NaN(), fmt.Sprintf("%d samples; this percentile needs %d", s.total, stats.Needed(num, den))
	}
	// Where both extremes give the same value, that is the percentile.
	v := s.atBound.quantile(stat)
	if len(s.censored) > 0 && v != s.atInfinity.quantile(stat) {
		return math.NaN(), fmt.Sprintf("> %.6g: %d of %d requests were cut off", v, len(s.censored), s.total)
	}
	if math.IsInf(v, 1) {
		return v, fmt.Sprintf("infinite: %d of %d requests failed", s.infinite, s.total)
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
// that values[i] stands for, and nil where each stands for one; ranks above are
// infinite.
type order struct {
	values []float64
	ends   []int
	total  int
}

// sorted orders the column, with what was cut off at its bound or at infinity.
func (col column) sorted(atBound bool) order {
	bounds := col.censored
	o := order{total: col.infinite}
	if !atBound {
		bounds, o.total = nil, o.total+len(col.censored)
	}
	if !slices.ContainsFunc(col.values, func(v weighted) bool { return v.weight != 1 }) {
		o.values = make([]float64, len(col.values), len(col.values)+len(bounds))
		for i, v := range col.values {
			o.values[i] = v.value
		}
		o.values = append(o.values, bounds...)
		slices.Sort(o.values)
		o.total += len(o.values)
		return o
	}
	all := slices.Grow(slices.Clone(col.values), len(bounds))
	for _, bound := range bounds {
		all = append(all, weighted{bound, 1})
	}
	slices.SortFunc(all, func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	o.values, o.ends = make([]float64, len(all)), make([]int, len(all))
	rank := 0
	for i, v := range all {
		rank += v.weight
		o.values[i], o.ends[i] = v.value, rank
	}
	o.total += rank
	return o
}

// at is the sample of that 1-based rank.
func (o order) at(rank int) float64 {
	i := rank - 1
	if o.ends != nil {
		i, _ = slices.BinarySearch(o.ends, rank)
	}
	if i >= len(o.values) {
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
