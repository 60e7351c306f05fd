package stats

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/stat/distuv"
)

// Rank is the 1-based nearest rank of the quantile num/den among n values:
// max(1, ceil(n*num/den)), in integers because a float product is wrong for
// quantiles such as 0.55 of 100.
func Rank(n, num, den int) int {
	return max(1, (n*num+den-1)/den)
}

// NearestRank returns the num/den quantile of the sorted values: one of them. It
// is NaN for no values.
func NearestRank(sorted []float64, num, den int) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[min(Rank(len(sorted), num, den), len(sorted))-1]
}

// R7 returns the num/den quantile of the sorted values by linear interpolation
// at (n-1)q, numpy's default. It is NaN for no values, and infinite where the
// upper of the two values is.
func R7(sorted []float64, num, den int) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	whole, rest := (len(sorted)-1)*num/den, (len(sorted)-1)*num%den
	low := sorted[whole]
	if rest == 0 || math.IsInf(low, 0) {
		return low
	}
	return low + (sorted[whole+1]-low)*float64(rest)/float64(den)
}

// Enough says whether n values carry the quantile num/den: n*(1-q) >= 10. Below
// that the estimate is biased and jumps from run to run.
func Enough(n, num, den int) bool { return n*(den-num) >= 10*den }

// Needed is the smallest n for which Enough holds.
func Needed(num, den int) int {
	if num >= den {
		return math.MaxInt
	}
	return (10*den + den - num - 1) / (den - num)
}

// R8 returns the num/den quantile of the sorted values by the median-unbiased
// rule, h = (n+1/3)q + 1/3, which vegeta uses. It is NaN for no values.
func R8(sorted []float64, num, den int) float64 {
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	h := (float64(n)+1.0/3)*float64(num)/float64(den) + 1.0/3
	switch {
	case h <= 1:
		return sorted[0]
	case h >= float64(n):
		return sorted[n-1]
	}
	whole := math.Floor(h)
	low := sorted[int(whole)-1]
	if math.IsInf(low, 0) {
		return low
	}
	return low + (sorted[int(whole)]-low)*(h-whole)
}

// MergedPercentile is the num/den quantile of the requests of all runs together,
// with the t interval of the logarithms of the runs' own quantiles around it. A
// failed request counts as +Inf. The runs need not be sorted and are left alone.
func MergedPercentile(runs [][]float64, num, den int) Estimate {
	var all []float64
	own := make([]float64, 0, len(runs))
	e := Estimate{N: len(runs)}
	for i, run := range runs {
		sorted := slices.Sorted(slices.Values(run))
		if !Enough(len(sorted), num, den) {
			e.Warnings = append(e.Warnings, warn(WarnFewSamples, "run %d has %d requests: %d are needed", i, len(sorted), Needed(num, den)))
		}
		own = append(own, NearestRank(sorted, num, den))
		all = append(all, sorted...)
	}
	slices.Sort(all)
	e.Value = NearestRank(all, num, den)
	e.Interval = RatioInterval(e.Value, own, 0.95)
	switch {
	case len(runs) < minInterval:
		e.Warnings = append(e.Warnings, warn(WarnFewValues, "no interval from %d runs: at least %d are needed", len(runs), minInterval))
	case !e.Interval.OK:
		e.Warnings = append(e.Warnings, warn(WarnInfinite, "the quantile of a run is not finite and positive: no interval"))
	}
	return e
}

// RankInterval returns the 1-based ranks of the distribution-free interval of the
// quantile num/den of n independent values, and its exact coverage. Rank 0 is
// -infinity and n+1 is +infinity.
func RankInterval(n, num, den int, confidence float64) (low, high int, coverage float64) {
	q, tail := float64(num)/float64(den), (1-confidence)/2
	low, high = 0, n+1
	for r := 1; r <= n && binomialCDF(r-1, n, q) <= tail; r++ {
		low = r
	}
	for r := n; r >= 1 && 1-binomialCDF(r-1, n, q) <= tail; r-- {
		high = r
	}
	return low, high, binomialCDF(high-1, n, q) - binomialCDF(low-1, n, q)
}

// MinForBound is the smallest n whose largest value is an upper bound of the
// quantile q at that confidence: ln(1-c)/ln(q), rounded up.
func MinForBound(q, confidence float64) int {
	n := int(math.Ceil(math.Log(1-confidence)/math.Log(q) - 1e-9))
	return max(n, 1)
}

// binomialCDF is P(X <= k) of n draws with probability p.
func binomialCDF(k, n int, p float64) float64 {
	switch {
	case k < 0:
		return 0
	case k >= n:
		return 1
	}
	return mathext.RegIncBeta(float64(n-k), float64(k+1), 1-p)
}

// EarlyStop is the smallest number of requests within a latency bound that, with
// over of them above it, proves "the quantile q is within the bound" at that
// confidence: the smallest h with I_q(h, over+1) <= 1-c (MLPerf's early stopping).
func EarlyStop(over int, q, confidence float64) int {
	proven := func(h int) bool { return mathext.RegIncBeta(float64(h), float64(over+1), q) <= 1-confidence }
	high := 1
	for !proven(high) {
		high *= 2
	}
	low := high / 2 // not proven, or 0
	for high-low > 1 {
		if mid := (low + high) / 2; proven(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

// Bound is what a run says about "the quantile is within the limit".
type Bound struct {
	Proven bool
	Failed bool // the estimate itself is above the limit
	More   int  // requests within the limit that are still needed; 0 where Proven
}

// ProveBound judges n requests, over of them above the limit or failed.
func ProveBound(n, over int, q, confidence float64) Bound {
	need := EarlyStop(over, q, confidence)
	within := n - over
	return Bound{Proven: within >= need, Failed: float64(within) < q*float64(n), More: max(0, need-within)}
}

// FixedQueries is the number of requests that the fixed-size rule of MLPerf asks
// for, before rounding: z(0.995)^2 q(1-q) / ((1-q)/20)^2.
func FixedQueries(q float64) float64 {
	z := distuv.UnitNormal.Quantile(0.995)
	margin := (1 - q) / 20
	return z * z * q * (1 - q) / (margin * margin)
}
