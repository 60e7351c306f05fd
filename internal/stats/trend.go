package stats

import (
	"math"
	"slices"
)

// Trend is the Mann-Kendall test for a monotonic trend.
type Trend struct {
	S        int     // pairs that rise minus pairs that fall
	Variance float64 // of S under no trend, corrected for ties
	Z        float64 // with continuity correction
	// P is two-sided: exact for up to 10 values without ties, else from the normal
	// approximation, which PNormal always is. NaN below 3 values.
	P, PNormal float64
}

// exactTrend is the largest n for which the distribution of S is enumerated.
const exactTrend = 10

// MannKendall tests the values, in their order, for a trend. It assumes that they
// are independent: see Lag1.
func MannKendall(x []float64) Trend {
	n := len(x)
	var t Trend
	for i := range x {
		for j := i + 1; j < n; j++ {
			switch {
			case x[j] > x[i]:
				t.S++
			case x[j] < x[i]:
				t.S--
			}
		}
	}
	t.Variance = float64(n * (n - 1) * (2*n + 5))
	ties := false
	sorted := slices.Sorted(slices.Values(x))
	for i := 0; i < n; {
		j := i
		for j < n && sorted[j] == sorted[i] {
			j++
		}
		if k := j - i; k > 1 {
			ties = true
			t.Variance -= float64(k * (k - 1) * (2*k + 5))
		}
		i = j
	}
	t.Variance /= 18
	if n < 3 || t.Variance <= 0 {
		t.P, t.PNormal = math.NaN(), math.NaN()
		return t
	}
	switch {
	case t.S > 0:
		t.Z = float64(t.S-1) / math.Sqrt(t.Variance)
	case t.S < 0:
		t.Z = float64(t.S+1) / math.Sqrt(t.Variance)
	}
	t.PNormal = math.Erfc(math.Abs(t.Z) / math.Sqrt2)
	t.P = t.PNormal
	if n <= exactTrend && !ties {
		t.P = kendallTail(n, t.S)
	}
	return t
}

// kendallTail is P(|S| >= |s|) over all orders of n distinct values.
func kendallTail(n, s int) float64 {
	// ways[k] is the number of orders with k inversions.
	ways := []float64{1}
	for m := 2; m <= n; m++ {
		next := make([]float64, len(ways)+m-1)
		for k, w := range ways {
			for shift := range m {
				next[k+shift] += w
			}
		}
		ways = next
	}
	if s < 0 {
		s = -s
	}
	pairs := n * (n - 1) / 2
	var tail, total float64
	for k, w := range ways {
		total += w
		if v := pairs - 2*k; v >= s || -v >= s {
			tail += w
		}
	}
	return tail / total
}

// SenSlope is the median of the slopes of all pairs, per step of the index. It is
// NaN below 2 values.
func SenSlope(x []float64) float64 {
	slopes := make([]float64, 0, len(x)*(len(x)-1)/2)
	for i := range x {
		for j := i + 1; j < len(x); j++ {
			slopes = append(slopes, (x[j]-x[i])/float64(j-i))
		}
	}
	return Median(slopes)
}

// SplitHalf compares the two halves of the values by Welch's test. relative is
// the difference of the second half's mean from the first's, relative to that.
// The middle value of an odd number is left out.
func SplitHalf(x []float64) (test Test, relative float64) {
	h := len(x) / 2
	first, second := x[:h], x[len(x)-h:]
	test = Welch(second, first)
	return test, (Mean(second) - Mean(first)) / Mean(first)
}

// Lag1 is the autocorrelation of successive values, NaN below 3 or for constants.
func Lag1(x []float64) float64 {
	if len(x) < 3 {
		return math.NaN()
	}
	mean := Mean(x)
	var num, den float64
	for i, v := range x {
		den += (v - mean) * (v - mean)
		if i > 0 {
			num += (v - mean) * (x[i-1] - mean)
		}
	}
	return num / den
}

// EffectiveN is how many independent values n values with autocorrelation rho are
// worth.
func EffectiveN(n int, rho float64) float64 {
	return float64(n) * (1 - rho) / (1 + rho)
}
