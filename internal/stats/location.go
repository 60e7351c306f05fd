package stats

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Mean is the arithmetic mean, NaN for no values.
func Mean(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// Variance is the sample variance (N-1), by two passes. It is NaN below 2 values.
func Variance(x []float64) float64 {
	if len(x) < 2 {
		return math.NaN()
	}
	mean := Mean(x)
	var sum, rest float64
	for _, v := range x {
		d := v - mean
		sum += d * d
		rest += d
	}
	n := float64(len(x))
	return (sum - rest*rest/n) / (n - 1)
}

// StdDev is the sample standard deviation (N-1), NaN below 2 values.
func StdDev(x []float64) float64 { return math.Sqrt(Variance(x)) }

// CV is the standard deviation relative to the mean's magnitude.
func CV(x []float64) float64 { return StdDev(x) / math.Abs(Mean(x)) }

// GeometricMean is the exponential of the mean of the logarithms: no product that
// could overflow. It is NaN where a value is not positive.
func GeometricMean(x []float64) float64 { return math.Exp(Mean(Logs(x))) }

// Logs are the natural logarithms of the values.
func Logs(x []float64) []float64 {
	logs := make([]float64, len(x))
	for i, v := range x {
		logs[i] = math.Log(v)
	}
	return logs
}

// Median is the middle value, or the mean of the middle two. NaN for no values.
func Median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(x))
	h := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[h]
	}
	return (sorted[h-1] + sorted[h]) / 2
}

// HodgesLehmann is the median of the means of all pairs, each value paired with
// itself too.
func HodgesLehmann(x []float64) float64 {
	pairs := make([]float64, 0, len(x)*(len(x)+1)/2)
	for i := range x {
		for j := i; j < len(x); j++ {
			pairs = append(pairs, (x[i]+x[j])/2)
		}
	}
	return Median(pairs)
}

// MADSigma estimates the standard deviation from the median absolute deviation,
// as if the values were normal.
func MADSigma(x []float64) float64 {
	const normal = 1.4826022185056018 // 1/Phi^-1(3/4)
	median := Median(x)
	deviations := make([]float64, len(x))
	for i, v := range x {
		deviations[i] = math.Abs(v - median)
	}
	return normal * Median(deviations)
}

// C4 is E[s]/sigma of the sample standard deviation of n normal values.
func C4(n int) float64 {
	a, _ := math.Lgamma(float64(n) / 2)
	b, _ := math.Lgamma(float64(n-1) / 2)
	return math.Sqrt(2/float64(n-1)) * math.Exp(a-b)
}

// SigmaInterval is the interval of a standard deviation that was estimated as sd
// with df degrees of freedom. It is not OK without one.
func SigmaInterval(sd float64, df int, confidence float64) Interval {
	if df < 1 {
		return Interval{}
	}
	chi := distuv.ChiSquared{K: float64(df)}
	tail := (1 - confidence) / 2
	v := float64(df)
	return finite(sd*math.Sqrt(v/chi.Quantile(1-tail)), sd*math.Sqrt(v/chi.Quantile(tail)))
}

// Reproducibility is 1 minus the largest coefficient of variation, within 0 and
// 1. It is NaN for none.
func Reproducibility(cvs ...float64) float64 {
	if len(cvs) == 0 {
		return math.NaN()
	}
	return min(1, max(0, 1-slices.Max(cvs)))
}
