package stats

import "math"

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
