package stats

import (
	"math"

	"gonum.org/v1/gonum/mathext"
)

// Interval is a confidence interval. OK is false where the values do not carry
// one: below 3, or where one is not finite.
type Interval struct {
	Low, High float64
	OK        bool
}

// minInterval is the smallest number of values that carries an interval.
const minInterval = 3

// TQuantile is the quantile p of Student's distribution with df degrees of
// freedom, which need not be whole.
func TQuantile(p, df float64) float64 {
	switch {
	case p == 0.5:
		return 0
	case p < 0.5:
		return -TQuantile(1-p, df)
	case df == 1:
		return math.Tan(math.Pi * (p - 0.5))
	}
	// P(T > t) = I_x(df/2, 1/2)/2 at x = df/(df+t²). The inverse is polished by
	// Newton's rule on the distribution itself.
	x := mathext.InvRegIncBeta(df/2, 0.5, 2*(1-p))
	t := math.Sqrt(df * (1 - x) / x)
	for range 3 {
		t -= (TCDF(t, df) - p) / tDensity(t, df)
	}
	return t
}

// TCDF is P(T <= t) of Student's distribution.
func TCDF(t, df float64) float64 {
	tail := mathext.RegIncBeta(df/2, 0.5, df/(df+t*t)) / 2
	if t < 0 {
		return tail
	}
	return 1 - tail
}

func tDensity(t, df float64) float64 {
	a, _ := math.Lgamma((df + 1) / 2)
	b, _ := math.Lgamma(df / 2)
	return math.Exp(a-b-(df+1)/2*math.Log1p(t*t/df)) / math.Sqrt(math.Pi*df)
}

// MeanInterval is the two-sided t interval of the mean at that confidence.
func MeanInterval(x []float64, confidence float64) Interval {
	if len(x) < minInterval {
		return Interval{}
	}
	half := TQuantile((1+confidence)/2, float64(len(x)-1)) * StdDev(x) / math.Sqrt(float64(len(x)))
	mean := Mean(x)
	return finite(mean-half, mean+half)
}

// RatioInterval is the t interval of the logarithms of x, put around the point:
// point * exp(±t*s/√N). It is the interval of a percentile over runs, with the
// merged percentile as the point.
func RatioInterval(point float64, x []float64, confidence float64) Interval {
	if len(x) < minInterval {
		return Interval{}
	}
	logs := Logs(x)
	half := TQuantile((1+confidence)/2, float64(len(x)-1)) * StdDev(logs) / math.Sqrt(float64(len(x)))
	return finite(point*math.Exp(-half), point*math.Exp(half))
}

func finite(low, high float64) Interval {
	if math.IsNaN(low) || math.IsInf(low, 0) || math.IsNaN(high) || math.IsInf(high, 0) {
		return Interval{}
	}
	return Interval{low, high, true}
}

// Test is the outcome of a t test: T, its degrees of freedom and the two-sided p.
type Test struct {
	T, DF, P float64
}

// Welch tests whether the means of x and y differ, without assuming that their
// variances are equal. T is positive where x is larger.
func Welch(x, y []float64) Test {
	vx, vy := Variance(x)/float64(len(x)), Variance(y)/float64(len(y))
	t := (Mean(x) - Mean(y)) / math.Sqrt(vx+vy)
	df := (vx + vy) * (vx + vy) / (vx*vx/float64(len(x)-1) + vy*vy/float64(len(y)-1))
	return Test{t, df, mathext.RegIncBeta(df/2, 0.5, df/(df+t*t))}
}
