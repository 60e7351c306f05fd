package stats

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func values(t *rapid.T, name string, least, most int) []float64 {
	return rapid.SliceOfN(rapid.Float64Range(0.01, 1e4), least, most).Draw(t, name)
}

func permuted(t *rapid.T, x []float64) []float64 {
	return rapid.Permutation(x).Draw(t, "order")
}

func close9(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-9*math.Max(1, math.Max(math.Abs(a), math.Abs(b)))
}

// closeSpread compares what a difference of large numbers is made of.
func closeSpread(a, b, scale float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(1, scale) }

func TestProperty_OrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x, y := values(t, "x", 3, 9), values(t, "y", 3, 9)
		u, v := permuted(t, x), permuted(t, y)
		if !close9(Mean(x), Mean(u)) || !close9(Median(x), Median(u)) || !close9(HodgesLehmann(x), HodgesLehmann(u)) || !close9(MADSigma(x), MADSigma(u)) {
			t.Fatal("location depends on the order")
		}
		a, b := LogWelch(x, y), LogWelch(u, v)
		if !close9(a.Value, b.Value) || !close9(a.P, b.P) {
			t.Fatalf("comparison depends on the order: %+v %+v", a, b)
		}
		if a, b := MannWhitney(x, y), MannWhitney(u, v); a.U != b.U || a.P != b.P || a.Shift != b.Shift {
			t.Fatalf("rank test depends on the order: %+v %+v", a, b)
		}
		if a, b := Bimodality(x), Bimodality(u); !close9(a.Score, b.Score) {
			t.Fatalf("modes depend on the order: %+v %+v", a, b)
		}
		runs := [][]float64{x, y, values(t, "z", 3, 9)}
		turned := [][]float64{permuted(t, runs[2]), u, v}
		if a, b := MergedPercentile(runs, 95, 100), MergedPercentile(turned, 95, 100); a.Value != b.Value || !close9(a.Interval.Low, b.Interval.Low) {
			t.Fatalf("merged percentile depends on the order: %+v %+v", a, b)
		}
	})
}

// Scaling both sides leaves a ratio alone, and scaling one scales it; shifting
// both sides leaves the raw comparison and the ranks alone.
func TestProperty_ScaleAndShift(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x, y := values(t, "x", 3, 9), values(t, "y", 3, 9)
		k := rapid.Float64Range(0.01, 100).Draw(t, "factor")
		scaled := func(x []float64) []float64 {
			out := make([]float64, len(x))
			for i, v := range x {
				out[i] = v * k
			}
			return out
		}
		a, both, one := LogWelch(x, y), LogWelch(scaled(x), scaled(y)), LogWelch(x, scaled(y))
		if !close9(a.Value, both.Value) || !closeSpread(a.SE, both.SE, 10) || !close9(a.Value*k, one.Value) {
			t.Fatalf("scaling: %+v %+v %+v", a, both, one)
		}
		if !closeSpread(Bimodality(x).Score, Bimodality(scaled(x)).Score, 100) && StdDev(Logs(x)) > 1e-6 {
			t.Fatalf("scaling changes the modes: %g %g", Bimodality(x).Score, Bimodality(scaled(x)).Score)
		}
		if !close9(CV(x), CV(scaled(x))) {
			t.Fatal("scaling changes the coefficient of variation")
		}
		// Integers shift exactly.
		ints := func(x []float64) []float64 {
			out := make([]float64, len(x))
			for i, v := range x {
				out[i] = math.Round(v)
			}
			return out
		}
		shift := math.Round(k)
		moved := func(x []float64) []float64 {
			out := make([]float64, len(x))
			for i, v := range x {
				out[i] = v + shift
			}
			return out
		}
		xi, yi := ints(x), ints(y)
		if a, b := MannWhitney(xi, yi), MannWhitney(moved(xi), moved(yi)); a.P != b.P || a.Shift != b.Shift {
			t.Fatalf("shifting changes the ranks: %+v %+v", a, b)
		}
		if !closeSpread(Variance(xi), Variance(moved(xi)), Variance(xi)) || !close9(Mean(xi)+shift, Mean(moved(xi))) {
			t.Fatal("shifting changes the variance")
		}
		if a, b := EnergySplit(xi, 2, 4), EnergySplit(moved(xi), 2, 4); a != b {
			t.Fatalf("shifting changes the split: %+v %+v", a, b)
		}
	})
}

func TestProperty_Symmetry(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x, y := values(t, "x", 3, 8), values(t, "y", 3, 8)
		a, b := LogWelch(x, y), LogWelch(y, x)
		if !close9(a.Value*b.Value, 1) || !close9(a.P, b.P) || a.Interval.OK && !close9(a.Interval.Low*b.Interval.High, 1) {
			t.Fatalf("turning the sides round: %+v %+v", a, b)
		}
		u, v := MannWhitney(x, y), MannWhitney(y, x)
		if u.P != v.P || u.Shift != -v.Shift || u.Cliff != -v.Cliff || u.U+v.U != float64(len(x)*len(y)) {
			t.Fatalf("turning the ranks round: %+v %+v", u, v)
		}
	})
}

// A percentile is a value that happened, and the identity that each SLO check
// rests on holds: p_q <= L exactly where count(x <= L) >= rank.
func TestProperty_Percentile(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x := slices.Sorted(slices.Values(values(t, "x", 1, 50)))
		num := rapid.IntRange(1, 999).Draw(t, "q")
		p := NearestRank(x, num, 1000)
		if !slices.Contains(x, p) {
			t.Fatalf("%g did not happen", p)
		}
		limit := rapid.SampledFrom(x).Draw(t, "limit")
		within := 0
		for _, v := range x {
			if v <= limit {
				within++
			}
		}
		if (p <= limit) != (within >= Rank(len(x), num, 1000)) {
			t.Fatalf("identity: p %g, limit %g, %d within", p, limit, within)
		}
		if NearestRank(x, max(1, num-1), 1000) > p {
			t.Fatal("percentiles fall")
		}
		one := MergedPercentile([][]float64{x}, num, 1000)
		if one.Value != p {
			t.Fatalf("merging one run changes it: %g %g", one.Value, p)
		}
	})
}

// Deciding again on the same runs says the same, a look never asks for fewer runs
// than there are, and a stop stays one when runs are added up to the maximum.
func TestProperty_Decide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{Min: rapid.IntRange(1, 6).Draw(t, "min"), Target: rapid.Float64Range(0.005, 0.1).Draw(t, "target")}
		p.Max = p.Min + rapid.IntRange(0, 20).Draw(t, "more")
		h := History{SD: rapid.Float64Range(0, 0.1).Draw(t, "sd"), DF: rapid.IntRange(0, 40).Draw(t, "df")}
		noise := rapid.SliceOfN(rapid.Float64Range(-0.1, 0.1), p.Max, p.Max).Draw(t, "noise")
		on := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), p.Max, p.Max).Draw(t, "nodes")
		var x []float64
		rounds := 0
		for {
			rounds++
			s := Decide(x, on[:len(x)], h, p)
			if again := Decide(x, on[:len(x)], h, p); again.Stop != s.Stop || again.Runs != s.Runs {
				t.Fatalf("asked twice: %+v %+v", s, again)
			}
			if s.Runs > p.Max || s.Runs < len(x) {
				t.Fatalf("%d runs after %d, at most %d", s.Runs, len(x), p.Max)
			}
			if s.Stop {
				if len(x) < min(p.Min, p.Max) {
					t.Fatalf("stopped after %d of at least %d", len(x), p.Min)
				}
				if s.Reached != (math.Expm1(s.HalfWidth) <= p.Target+1e-12) {
					t.Fatalf("reached: %+v", s)
				}
				if apart := Decide(x, nil, h, p); apart.Stop && apart.Rule == s.Rule && apart.HalfWidth > s.HalfWidth+1e-12 {
					t.Fatalf("sharing nodes made it more precise: %+v, apart %+v", s, apart)
				}
				return
			}
			if s.Runs == len(x) || rounds > 20 {
				t.Fatalf("goes on without asking for runs: %+v", s)
			}
			for len(x) < s.Runs {
				x = append(x, math.Exp(noise[len(x)]))
			}
		}
	})
}

func TestProperty_FalseDiscoveries(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 30).Draw(t, "p")
		reject, adjusted := BenjaminiHochberg(p, 0.05)
		holm := Holm(p)
		for i := range p {
			if reject[i] != (adjusted[i] <= 0.05) || adjusted[i] < p[i] || holm[i] < adjusted[i]-1e-12 {
				t.Fatalf("p %g adjusted %g holm %g rejected %v", p[i], adjusted[i], holm[i], reject[i])
			}
			for j := range p {
				if p[i] < p[j] && adjusted[i] > adjusted[j] {
					t.Fatal("adjusting changes the order")
				}
			}
		}
		if s := Simes(p); s < slices.Min(p)-1e-15 || s > 1 {
			t.Fatalf("simes %g", s)
		}
	})
}
