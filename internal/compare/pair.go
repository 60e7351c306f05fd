package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"sbench/internal/metrics"
	"sbench/internal/stats"
)

// minPairs is the number of common repeats from which the differences of pairs
// are tested: below it the lost degrees of freedom cost more than pairing brings.
const minPairs = 5

// MakePair compares one metric of a row with the base's. pairable says that
// repeat k is the same workload in both. theta is the relative difference that
// matters.
func MakePair(base, row Row, metric string, theta float64, pairable bool) Pair {
	m, _ := metrics.Find(metric)
	p := Pair{Metric: metric, Unit: m.Unit, Better: string(m.Better), Verdict: Inconclusive, Notes: []string{}}
	x, kx, why := base.values(metric)
	y, ky, other := row.values(metric)
	p.NBase, p.NValue = len(x), len(y)
	p.Base, p.Value = mean(x), mean(y)
	if metrics.IsQuality(metric) && base.Quality != row.Quality {
		p.NBase, p.NValue, p.Base, p.Value = 0, 0, nil, nil
		why = unlikeQuality
	}
	if why = cmp.Or(why, other); why != "" {
		p.Notes = append(p.Notes, why)
		return p
	}
	if metric == metrics.QualityScore {
		p.Method = "items"
		p.set(overItems(base, row, *p.Base, *p.Value), m.Better, theta)
		p.RunsNeeded = 0 // more runs ask no other items
		return p
	}
	var r stats.Ratio
	if pairable && len(kx) >= minPairs && slices.Equal(kx, ky) {
		p.Method, r = "paired", stats.Paired(x, y)
	} else {
		p.Method, r = "welch", stats.LogWelch(x, y)
	}
	p.set(r, m.Better, theta)
	return p
}

// unlikeQuality is why scores are not compared.
const unlikeQuality = "the scores are of different questions, or scored in different ways"

// overItems is the ratio of two scores with the interval that the number of items
// gives it: an engine that takes the likeliest token answers the same in every run,
// whose spread says nothing then. By the delta method the standard error of the
// logarithm of a mean m over n items with standard deviation s is s/(m·√n). That
// both sides were asked the same items is not used: the interval is too wide rather
// than too narrow.
func overItems(base, row Row, x, y float64) stats.Ratio {
	a, n := base.itemError(x)
	b, k := row.itemError(y)
	return stats.KnownRatio(y/x, math.Sqrt(a*a+b*b), n+k-2, len(base.Runs), len(row.Runs))
}

// itemError is the standard error of the logarithm of a score, and of how many
// items it is; NaN where the runs do not say.
func (r Row) itemError(score float64) (se, items float64) {
	sd := 0.0
	items = math.Inf(1)
	for _, run := range r.Runs {
		s, n := run.Metrics[metrics.QualityStdDev], run.Metrics[metrics.QualityItems]
		if s == nil || n == nil || !(*n > 1) {
			return math.NaN(), math.NaN()
		}
		sd, items = max(sd, *s), min(items, *n)
	}
	if sd == 0 {
		// Equal scores, such as no mistake in a few items, are not the certainty of never
		// making one: as Agresti and Coull do, two items more, one of them right.
		p := (score*items + 1) / (items + 2)
		sd = math.Sqrt(p * (1 - p))
	}
	return sd / (score * math.Sqrt(items)), items
}

// set fills in what a ratio says.
func (p *Pair) set(r stats.Ratio, better metrics.Direction, theta float64) {
	p.Ratio = &r.Value
	for _, w := range r.Warnings {
		p.Notes = append(p.Notes, w.Message)
	}
	if !r.Interval.OK {
		return
	}
	p.RatioLow, p.RatioHigh = &r.Interval.Low, &r.Interval.High
	if !math.IsNaN(r.P) {
		p.P = &r.P
	}
	if mde := stats.MDEOf(r.SE, r.DF); !math.IsNaN(mde) {
		p.MDE = &mde
	}
	d, low, high := math.Log(r.Value), math.Log(r.Interval.Low), math.Log(r.Interval.High)
	switch better {
	case metrics.Higher:
		d, low, high = -d, -high, -low
	case metrics.Neutral:
		p.Notes = append(p.Notes, "neither larger nor smaller is better")
		return
	case metrics.Lower:
	}
	p.Verdict = Judge(d, low, high, theta)
	if p.Verdict == Inconclusive && r.NX > 1 {
		// The spread of one run from the standard error of the difference.
		cv := r.SE / math.Sqrt(1/float64(r.NX)+1/float64(r.NY))
		p.RunsNeeded = stats.RunsToDecide(cv, theta)
	}
}

// Judge turns an interval of the log ratio, worse being positive, into a verdict.
// theta is relative: 0.05.
func Judge(d, low, high, theta float64) Verdict {
	limit := math.Log1p(theta)
	switch {
	case low > limit:
		return RegressedCertain
	case low > 0 && d >= limit:
		return Regressed
	case low > 0:
		return SlowerSmall
	case high < 0:
		return Improved
	case high < limit:
		return OK
	}
	return Inconclusive
}

// holm takes back what only several looks made significant: the gating metrics
// are judged together.
func holm(pairs []Pair) {
	var p []float64
	var of []int
	for i, pair := range pairs {
		if pair.P != nil && slices.Contains(Gating(), pair.Metric) {
			p, of = append(p, *pair.P), append(of, i)
		}
	}
	for k, adjusted := range stats.Holm(p) {
		pair := &pairs[of[k]]
		if adjusted > 0.05 && (pair.Verdict.Bad() || pair.Verdict == SlowerSmall) {
			pair.Verdict = Inconclusive
			pair.Notes = append(pair.Notes, fmt.Sprintf("p = %.2g, %.2g after Holm's rule for %d metrics", *pair.P, adjusted, len(p)))
		}
	}
}

// rank orders the entries by a metric. A row that cannot be told apart from the
// best of its rank shares it; a row with a finding about the engine, or without a
// value, is left out and says why.
func (c *Comparison) rank(theta float64) {
	c.Ranked = true
	m, _ := metrics.Find(c.By)
	var order []int
	for i := range c.Entries {
		e := &c.Entries[i]
		_, _, why := e.Row.values(c.By)
		if metrics.IsQuality(c.By) && e.Row.Quality != c.Entries[0].Row.Quality {
			why = unlikeQuality
		}
		switch {
		case len(e.Row.Findings) > 0:
			e.Unranked = "finding: " + e.Row.Findings[0]
		case why != "":
			e.Unranked = why
		default:
			order = append(order, i)
		}
	}
	value := func(i int) float64 {
		v, _, _ := c.Entries[i].Row.values(c.By)
		return stats.GeometricMean(v)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if m.Better == metrics.Higher {
			a, b = b, a
		}
		return cmp.Compare(value(a), value(b))
	})
	for k, i := range order {
		e := &c.Entries[i]
		e.Rank = k + 1
		if k == 0 {
			continue
		}
		top := k - 1
		for top > 0 && c.Entries[order[top-1]].Rank == c.Entries[order[top]].Rank {
			top--
		}
		p := MakePair(c.Entries[order[top]].Row, e.Row, c.By, theta, c.pairable())
		if p.RatioLow == nil || *p.RatioLow <= 1 && *p.RatioHigh >= 1 {
			e.Rank = c.Entries[order[top]].Rank
		}
	}
}
