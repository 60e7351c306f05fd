package stats

import (
	"math"
	"math/big"
	"slices"

	"gonum.org/v1/gonum/mathext"
)

// Ratio is y by x on the scale of logarithms: how many times larger one side is.
type Ratio struct {
	Value    float64  // exp of the difference of the mean logarithms
	Interval Interval // 95 %, of the ratio
	Test              // of the logarithms; T is positive where y is larger
	// SE is the standard error of the difference of the logarithms; with Test.DF
	// it makes the interval.
	SE       float64
	NX, NY   int
	Warnings []Warning
}

// LogWelch compares y with x on logarithms, without assuming equal variances.
func LogWelch(x, y []float64) Ratio {
	a, b := Logs(x), Logs(y)
	r := Ratio{Value: math.Exp(Mean(b) - Mean(a)), NX: len(x), NY: len(y)}
	if len(x) < 2 || len(y) < 2 {
		r.T, r.DF, r.P, r.SE = math.NaN(), math.NaN(), math.NaN(), math.NaN()
		r.Warnings = append(r.Warnings, warn(WarnFewValues, "no spread from %d and %d values", len(x), len(y)))
		return r
	}
	r.Test = Welch(b, a)
	r.SE = math.Sqrt(Variance(a)/float64(len(a)) + Variance(b)/float64(len(b)))
	r.finish()
	return r
}

// KnownRatio is a ratio whose logarithm has a standard error that is known from
// elsewhere than the spread of nx and ny values.
func KnownRatio(value, se, df float64, nx, ny int) Ratio {
	r := Ratio{Value: value, NX: nx, NY: ny, SE: se}
	r.DF, r.T = df, math.Log(value)/se
	r.P = twoSided(r.T, df)
	switch {
	case !(value > 0) || math.IsInf(value, 0) || !(se >= 0) || math.IsInf(se, 0) || !(df > 0):
		r.Warnings = append(r.Warnings, warn(WarnInfinite, "a value is not finite and positive: no interval"))
	case se == 0:
		r.Interval = finite(value, value)
	default:
		h := TQuantile(0.975, df) * se
		r.Interval = finite(value*math.Exp(-h), value*math.Exp(h))
	}
	return r
}

// finish makes the interval out of Value, SE and DF.
func (r *Ratio) finish() {
	switch {
	case min(r.NX, r.NY) < minInterval:
		r.Warnings = append(r.Warnings, warn(WarnFewValues, "no interval from %d and %d values: at least %d are needed", r.NX, r.NY, minInterval))
	case math.IsNaN(r.SE) || math.IsInf(r.SE, 0):
		r.Warnings = append(r.Warnings, warn(WarnInfinite, "a value is not finite and positive: no interval"))
	case r.SE == 0:
		r.Interval = finite(r.Value, r.Value)
	default:
		h := TQuantile(0.975, r.DF) * r.SE
		r.Interval = finite(r.Value*math.Exp(-h), r.Value*math.Exp(h))
	}
}

// Paired compares y with x, whose values of the same index belong together (the
// same workload and seed), on logarithms. It wants as many of one as of the other.
func Paired(x, y []float64) Ratio {
	n := min(len(x), len(y))
	d := make([]float64, n)
	for i := range d {
		d[i] = math.Log(y[i]) - math.Log(x[i])
	}
	mean := Mean(d)
	r := Ratio{Value: math.Exp(mean), NX: n, NY: n, SE: StdDev(d) / math.Sqrt(float64(n))}
	r.DF = float64(n - 1)
	r.T = mean / r.SE
	r.P = twoSided(r.T, r.DF)
	r.finish()
	return r
}

func twoSided(t, df float64) float64 {
	switch {
	case math.IsNaN(t) || !(df > 0):
		return math.NaN()
	case math.IsInf(t, 0):
		return 0
	}
	return mathext.RegIncBeta(df/2, 0.5, df/(df+t*t))
}

// Upper is the one-sided p of "larger" of a t test.
func (t Test) Upper() float64 {
	if t.T < 0 {
		return 1 - t.P/2
	}
	return t.P / 2
}

// RankTest is the Mann-Whitney test. U counts the pairs in which y is larger, a
// tie as one half.
type RankTest struct {
	U        float64
	P        float64 // two-sided, exact, ties included; NaN where a side is empty
	Upper    float64 // one-sided: y larger
	Cliff    float64 // Cliff's delta: P(y > x) - P(y < x)
	Shift    float64 // Hodges-Lehmann: median of all differences y - x
	Warnings []Warning
}

// MannWhitney tests exactly whether y tends to be larger than x. The distribution
// is over all ways to divide the pooled mid-ranks, so ties cost nothing in
// validity.
func MannWhitney(x, y []float64) RankTest {
	r := RankTest{P: math.NaN(), Upper: math.NaN(), Cliff: math.NaN(), Shift: math.NaN()}
	if len(x) == 0 || len(y) == 0 {
		r.Warnings = append(r.Warnings, warn(WarnFewValues, "one side has no values"))
		return r
	}
	differences := make([]float64, 0, len(x)*len(y))
	for _, b := range y {
		for _, a := range x {
			differences = append(differences, b-a)
			switch {
			case b > a:
				r.U++
			case b == a:
				r.U += 0.5
			}
		}
	}
	pairs := float64(len(differences))
	r.Cliff = (2*r.U - pairs) / pairs
	r.Shift = Median(differences)
	r.Upper, r.P = rankTail(slices.Concat(x, y), len(y), r.U, pairs)
	if least := MinRankP(len(x), len(y)); least > 0.05 {
		r.Warnings = append(r.Warnings, warn(WarnReach, "%d and %d values cannot reach p = 0.05: the smallest is %.3g", len(x), len(y), least))
	}
	return r
}

// rankTail counts the divisions of the pooled mid-ranks whose U is at least as
// large as u, and at least as far from the middle. Sums are of doubled ranks, so
// that they are integers.
func rankTail(pooled []float64, n int, u, pairs float64) (upper, two float64) {
	ranks := doubledRanks(pooled)
	total := 0
	for _, r := range ranks {
		total += r
	}
	// ways[k][s]: choices of k values whose doubled ranks sum to s. Counts stay
	// exact below 2^53, far beyond what anybody measures; beyond it they are ratios.
	ways := make([][]float64, n+1)
	for k := range ways {
		ways[k] = make([]float64, total+1)
	}
	ways[0][0] = 1
	for _, r := range ranks {
		for k := n; k >= 1; k-- {
			for s := total; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	base := float64(n*(n+1)) / 2
	var all float64
	for s, w := range ways[n] {
		if w == 0 {
			continue
		}
		all += w
		v := float64(s)/2 - base
		if v >= u {
			upper += w
		}
		if math.Abs(v-pairs/2) >= math.Abs(u-pairs/2) {
			two += w
		}
	}
	return upper / all, two / all
}

// doubledRanks are twice the mid-ranks of the values, in their order.
func doubledRanks(x []float64) []int {
	sorted := slices.Sorted(slices.Values(x))
	ranks := make([]int, len(x))
	for i, v := range x {
		low, _ := slices.BinarySearch(sorted, v)
		high := low
		for high < len(sorted) && sorted[high] == v {
			high++
		}
		ranks[i] = low + 1 + high
	}
	return ranks
}

// MinRankP is the smallest two-sided p that Mann-Whitney can reach.
func MinRankP(nx, ny int) float64 {
	ways, _ := new(big.Float).SetInt(new(big.Int).Binomial(int64(nx+ny), int64(nx))).Float64()
	return min(1, 2/ways)
}

// MDE is the smallest relative difference that n values a side find with power
// 80 % at a two-sided level of 5 %, where their coefficient of variation is cv:
// (t(.975, 2n-2) + t(.8, 2n-2)) * cv * sqrt(2/n). It is NaN below 2 values.
func MDE(cv float64, n int) float64 {
	if n < 2 {
		return math.NaN()
	}
	df := float64(2*n - 2)
	return (TQuantile(0.975, df) + TQuantile(0.8, df)) * cv * math.Sqrt(2/float64(n))
}

// MDEOf is the smallest relative difference that a comparison with that standard
// error of the logarithms would have found: power 80 %, two-sided 5 %.
func MDEOf(se, df float64) float64 {
	return math.Expm1((TQuantile(0.975, df) + TQuantile(0.8, df)) * se)
}

// maxSide bounds RunsToDecide: more is as good as never.
const maxSide = 1000

// RunsToDecide is how many values a side find a relative difference of effect
// (power 80 %, two-sided 5 %); 0 where no number up to 1,000 does.
func RunsToDecide(cv, effect float64) int {
	for n := 2; n <= maxSide; n++ {
		if MDE(cv, n) <= effect {
			return n
		}
	}
	return 0
}

// Detect is how many values a side find a relative step with that power at a
// one-sided level: 2*((z+zb)*cv/ln(1+step))², rounded up.
func Detect(cv, step, level, power float64) int {
	z := normalQuantile(1-level) + normalQuantile(power)
	d := z * cv / math.Log1p(step)
	return int(math.Ceil(2 * d * d))
}
