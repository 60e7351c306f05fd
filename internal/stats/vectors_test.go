package stats

import (
	"encoding/json"
	"math"
	"math/big"
	"os"
	"slices"
	"testing"
)

// vectors are the known answers of tests/vectors/stats.
type vectors struct {
	Percentile []struct {
		Data    string
		Q       float64
		Rank    int
		Nearest float64
		R7      float64
	}
	FloatRankTrap []struct{ N, Num, Den, Right int } `json:"float_rank_trap"`
	Location5     struct {
		Data         []float64
		Mean         float64
		SDSample     float64 `json:"sd_sample"`
		CV           float64
		T            float64
		CI           [2]float64
		RelHalfWidth float64 `json:"rel_half_width"`
		Median       float64
		MADSigma     float64 `json:"mad_sigma"`
		HL           float64
		GMean        float64
	}
	Location3 struct {
		Data      []float64
		Mean      float64
		SDSample  float64 `json:"sd_sample"`
		HalfWidth float64 `json:"half_width"`
	}
	Cancellation struct {
		Data      []float64
		Mean      float64
		VarSample float64 `json:"var_sample"`
	}
	T975 map[string]float64 `json:"t_table_975"`
	Pair struct {
		A, B     []float64
		Welch    [3]float64
		LogWelch struct {
			T, DF, P float64
		} `json:"log_welch"`
	}
	MannKendall []struct {
		X      []float64
		Res    [4]float64
		ExactP *string `json:"exact_p"`
		Sen    float64
	} `json:"mann_kendall"`
	NeffFactorAR1   map[string]float64 `json:"neff_factor_ar1"`
	GoogleBenchmark struct {
		X     []float64
		Right float64
	} `json:"google_benchmark_371"`
}

func load(t *testing.T) vectors {
	t.Helper()
	b, err := os.ReadFile("../../tests/vectors/stats/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// near compares with a relative tolerance of 1e-9.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*math.Max(1, math.Abs(want)) || math.IsNaN(got) {
		t.Errorf("%s = %.12g, want %.12g", what, got, want)
	}
}

func percentileData(t *testing.T, name string) []float64 {
	t.Helper()
	switch name {
	case "1..100", "1..20":
		n := 100
		if name == "1..20" {
			n = 20
		}
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(i + 1)
		}
		return x
	case "x5":
		return []float64{15, 20, 35, 40, 50}
	case "x10":
		return []float64{3, 6, 7, 8, 8, 10, 13, 15, 16, 20}
	case "single":
		return []float64{7}
	}
	t.Fatalf("unknown data %q", name)
	return nil
}

func TestPercentile_Vectors(t *testing.T) {
	t.Parallel()
	v := load(t)
	for _, c := range v.Percentile {
		x := percentileData(t, c.Data)
		num, den := int(math.Round(c.Q*1000)), 1000
		if rank := Rank(len(x), num, den); rank != c.Rank {
			t.Errorf("%s q %g: rank %d, want %d", c.Data, c.Q, rank, c.Rank)
		}
		near(t, c.Data+" nearest", NearestRank(x, num, den), c.Nearest)
		near(t, c.Data+" r7", R7(x, num, den), c.R7)
	}
	for _, c := range v.FloatRankTrap {
		if got := Rank(c.N, c.Num, c.Den); got != c.Right {
			t.Errorf("rank of %d/%d among %d is %d, want %d", c.Num, c.Den, c.N, got, c.Right)
		}
	}
	if Enough(199, 95, 100) || !Enough(200, 95, 100) || Enough(999, 99, 100) || !Enough(1000, 99, 100) || Enough(9999, 999, 1000) || !Enough(10000, 999, 1000) {
		t.Error("p95 needs 200 values, p99 1,000, p99.9 10,000")
	}
	for _, q := range [][2]int{{50, 100}, {90, 100}, {95, 100}, {99, 100}, {999, 1000}} {
		n := Needed(q[0], q[1])
		if !Enough(n, q[0], q[1]) || Enough(n-1, q[0], q[1]) {
			t.Errorf("Needed(%v) = %d", q, n)
		}
	}
}

func TestLocation_Vectors(t *testing.T) {
	t.Parallel()
	v := load(t)
	x := v.Location5
	near(t, "mean", Mean(x.Data), x.Mean)
	near(t, "stddev", StdDev(x.Data), x.SDSample)
	near(t, "cv", CV(x.Data), x.CV)
	near(t, "median", Median(x.Data), x.Median)
	near(t, "mad sigma", MADSigma(x.Data), x.MADSigma)
	near(t, "hodges-lehmann", HodgesLehmann(x.Data), x.HL)
	near(t, "geometric mean", GeometricMean(x.Data), x.GMean)
	near(t, "t", TQuantile(0.975, 4), x.T)
	ci := MeanInterval(x.Data, 0.95)
	near(t, "interval low", ci.Low, x.CI[0])
	near(t, "interval high", ci.High, x.CI[1])
	near(t, "relative half width", (ci.High-ci.Low)/2/Mean(x.Data), x.RelHalfWidth)

	y := v.Location3
	near(t, "mean of 3", Mean(y.Data), y.Mean)
	near(t, "stddev of 3", StdDev(y.Data), y.SDSample)
	ci = MeanInterval(y.Data, 0.95)
	near(t, "half width of 3", (ci.High-ci.Low)/2, y.HalfWidth)
	if MeanInterval(y.Data[:2], 0.95).OK {
		t.Error("two values have an interval")
	}
	near(t, "variance without cancellation", Variance(v.Cancellation.Data), v.Cancellation.VarSample)
	near(t, "sample stddev", StdDev(v.GoogleBenchmark.X), v.GoogleBenchmark.Right)
	if MeanInterval([]float64{1, 2, math.Inf(1)}, 0.95).OK || RatioInterval(1, []float64{1, 2, math.Inf(1)}, 0.95).OK {
		t.Error("an infinite value has an interval")
	}
}

func TestStudent_Vectors(t *testing.T) {
	t.Parallel()
	v := load(t)
	for df, want := range v.T975 {
		var n float64
		if err := json.Unmarshal([]byte(df), &n); err != nil {
			t.Fatal(err)
		}
		if got := TQuantile(0.975, n); math.Abs(got-want) > 5e-7 {
			t.Errorf("t(0.975, %s) = %.9f, want %.6f", df, got, want)
		}
		near(t, "there and back", TCDF(TQuantile(0.975, n), n), 0.975)
		near(t, "the other tail", TQuantile(0.025, n), -TQuantile(0.975, n))
	}
	got := Welch(v.Pair.B, v.Pair.A)
	for i, g := range []float64{got.T, got.DF, got.P} {
		near(t, "welch", g, v.Pair.Welch[i])
	}
	got = Welch(Logs(v.Pair.B), Logs(v.Pair.A))
	near(t, "log welch t", got.T, v.Pair.LogWelch.T)
	near(t, "log welch df", got.DF, v.Pair.LogWelch.DF)
	near(t, "log welch p", got.P, v.Pair.LogWelch.P)
}

func TestMannKendall_Vectors(t *testing.T) {
	t.Parallel()
	v := load(t)
	for _, c := range v.MannKendall {
		got := MannKendall(c.X)
		near(t, "S", float64(got.S), c.Res[0])
		near(t, "variance", got.Variance, c.Res[1])
		near(t, "z", got.Z, c.Res[2])
		near(t, "normal p", got.PNormal, c.Res[3])
		near(t, "sen", SenSlope(c.X), c.Sen)
		if c.ExactP == nil {
			near(t, "p with ties", got.P, c.Res[3])
			continue
		}
		exact, ok := new(big.Rat).SetString(*c.ExactP)
		if !ok {
			t.Fatalf("exact p %q", *c.ExactP)
		}
		want, _ := exact.Float64()
		near(t, "exact p", got.P, want)
	}
	for rho, want := range v.NeffFactorAR1 {
		var r float64
		if err := json.Unmarshal([]byte(rho), &r); err != nil {
			t.Fatal(err)
		}
		near(t, "effective n at "+rho, EffectiveN(1, r), want)
	}
}

func TestSplitHalf(t *testing.T) {
	t.Parallel()
	flat := []float64{1, 1.01, 0.99, 1, 1.01, 0.99, 1, 1.01, 0.99, 1}
	if test, _ := SplitHalf(flat); test.P < 0.05 {
		t.Errorf("a flat series differs between its halves: %+v", test)
	}
	step := slices.Concat(flat, []float64{1.1, 1.11, 1.09, 1.1, 1.11, 1.09, 1.1, 1.11, 1.09, 1.1})
	test, relative := SplitHalf(step)
	if test.P > 1e-6 || math.Abs(relative-0.1) > 1e-9 {
		t.Errorf("a step of 10 %%: p %g, difference %g", test.P, relative)
	}
	if rho := Lag1([]float64{1, 2, 1, 2, 1, 2, 1, 2}); rho > -0.8 {
		t.Errorf("an alternating series has lag-1 autocorrelation %g", rho)
	}
}
