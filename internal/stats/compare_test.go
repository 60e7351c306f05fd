package stats

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// raw are all groups of the vectors, for those that vectors does not name.
func raw(t *testing.T) map[string]json.RawMessage {
	t.Helper()
	b, err := os.ReadFile("../../tests/vectors/stats/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var groups map[string]json.RawMessage
	if err := json.Unmarshal(b, &groups); err != nil {
		t.Fatal(err)
	}
	return groups
}

func group[T any](t *testing.T, name string) T {
	t.Helper()
	text, ok := raw(t)[name]
	if !ok {
		t.Fatalf("no vectors %s", name)
	}
	var v T
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// digits compares a value that the vectors give with so many decimals.
func digits(t *testing.T, what string, got, want float64, places int) {
	t.Helper()
	if !(math.Abs(got-want) <= 0.5000001*math.Pow10(-places)) {
		t.Errorf("%s = %.12g, want %g to %d places", what, got, want, places)
	}
}

func TestR8_Vectors(t *testing.T) {
	t.Parallel()
	for _, c := range group[[]struct {
		Data        string
		Q, R8, Rank float64
		LoadGen     float64
	}](t, "percentile") {
		x := percentileData(t, c.Data)
		num := int(math.Round(c.Q * 1000))
		digits(t, fmt.Sprint(c.Data, " r8 ", c.Q), R8(x, num, 1000), c.R8, 9)
		// MLPerf's rule is the nearest rank of the next value, where q*n is whole.
		if at := len(x) * num / 1000; x[min(at, len(x)-1)] != c.LoadGen {
			t.Errorf("%s %g: the value at %d is not LoadGen's %g", c.Data, c.Q, at, c.LoadGen)
		}
	}
}

func TestSpread_Vectors(t *testing.T) {
	t.Parallel()
	five := group[struct {
		C4            float64
		SDSample      float64    `json:"sd_sample"`
		SigmaUnbiased float64    `json:"sigma_unbiased"`
		SigmaCI95     [2]float64 `json:"sigma_ci95"`
	}](t, "location5")
	near(t, "c4", C4(5), five.C4)
	near(t, "unbiased sigma", five.SDSample/C4(5), five.SigmaUnbiased)
	ci := SigmaInterval(five.SDSample, 4, 0.95)
	near(t, "sigma low", ci.Low, five.SigmaCI95[0])
	near(t, "sigma high", ci.High, five.SigmaCI95[1])
	for n, want := range group[map[string]float64](t, "c4") {
		digits(t, "c4 of "+n, C4(int(number(t, n))), want, 6)
	}
	for n, want := range group[map[string][2]float64](t, "sd_ci_factor95") {
		ci := SigmaInterval(1, int(number(t, n))-1, 0.95)
		digits(t, "sigma factor low "+n, ci.Low, want[0], 4)
		digits(t, "sigma factor high "+n, ci.High, want[1], 4)
	}
	if SigmaInterval(1, 0, 0.95).OK {
		t.Error("no degrees of freedom carry an interval")
	}
	repro := group[struct {
		CVs   []float64
		Score float64
	}](t, "repro")
	near(t, "reproducibility", Reproducibility(repro.CVs...), repro.Score)
}

func TestRankInterval_Vectors(t *testing.T) {
	t.Parallel()
	for name, q := range map[string][2]int{"median_ci95": {1, 2}, "p95_ci95": {95, 100}, "p99_ci95": {99, 100}} {
		for n, want := range group[map[string][3]float64](t, name) {
			low, high, cover := RankInterval(int(number(t, n)), q[0], q[1], 0.95)
			if float64(low) != want[0] || float64(high) != want[1] {
				t.Errorf("%s of %s: ranks %d, %d, want %v", name, n, low, high, want[:2])
			}
			near(t, name+" coverage of "+n, cover, want[2])
		}
	}
	for key, want := range group[map[string]int](t, "min_n_upper_bound") {
		q, c, _ := strings.Cut(key, "@")
		if got := MinForBound(number(t, q), number(t, c)); got != want {
			t.Errorf("smallest n for %s is %d, want %d", key, got, want)
		}
	}
	for key, of := range group[map[string]map[string]int](t, "mlperf_early_stop_h") {
		for over, want := range of {
			if got := EarlyStop(int(number(t, over)), number(t, strings.TrimPrefix(key, "p")), 0.99); got != want {
				t.Errorf("early stop %s with %s over: %d, want %d", key, over, got, want)
			}
		}
	}
	for q, want := range group[map[string]float64](t, "mlperf_min_queries_float") {
		near(t, "queries for "+q, FixedQueries(number(t, q)), want)
		if n := group[map[string]float64](t, "mlperf_min_queries")[q]; math.Ceil(FixedQueries(number(t, q))) != n {
			t.Errorf("queries for %s rounded up: %g", q, n)
		}
	}
	if b := ProveBound(459, 0, 0.99, 0.99); !b.Proven || b.Failed || b.More != 0 {
		t.Errorf("459 of 459: %+v", b)
	}
	if b := ProveBound(459, 1, 0.99, 0.99); b.Proven || b.Failed || b.More != 661-458 {
		t.Errorf("458 of 459: %+v", b)
	}
	if b := ProveBound(100, 50, 0.99, 0.99); b.Proven || !b.Failed {
		t.Errorf("50 of 100: %+v", b)
	}
}

func TestPair_Vectors(t *testing.T) {
	t.Parallel()
	pair := group[struct {
		A, B       []float64
		MWU        [2]float64
		HLShift    float64 `json:"hl_shift"`
		Cliffs     float64
		RatioMeans float64 `json:"ratio_means"`
		LogRatio   float64 `json:"log_ratio"`
		LogWelch   struct {
			T, DF, P float64
			CI       [2]float64 `json:"ratio_ci95"`
		} `json:"log_welch"`
	}](t, "pair")
	r := LogWelch(pair.A, pair.B)
	near(t, "log ratio", math.Log(r.Value), pair.LogRatio)
	near(t, "t", r.T, pair.LogWelch.T)
	near(t, "df", r.DF, pair.LogWelch.DF)
	near(t, "p", r.P, pair.LogWelch.P)
	near(t, "ratio low", r.Interval.Low, pair.LogWelch.CI[0])
	near(t, "ratio high", r.Interval.High, pair.LogWelch.CI[1])
	near(t, "ratio of means", Mean(pair.B)/Mean(pair.A), pair.RatioMeans)
	u := MannWhitney(pair.A, pair.B)
	near(t, "u", u.U, pair.MWU[0])
	near(t, "u p", u.P, pair.MWU[1])
	near(t, "one-sided", u.Upper, pair.MWU[1]/2)
	near(t, "shift", u.Shift, pair.HLShift)
	near(t, "cliff", u.Cliff, pair.Cliffs)

	ties := group[struct {
		X, Y []float64
		P    string
		PF   float64
	}](t, "mwu_ties")
	want, _ := new(big.Rat).SetString(ties.P)
	exact, _ := want.Float64()
	near(t, "p with ties", MannWhitney(ties.X, ties.Y).P, exact)
	near(t, "p with ties", ties.PF, exact)
	for n, want := range group[map[string]float64](t, "mwu_min_p") {
		size := int(number(t, n))
		near(t, "smallest p of "+n, MinRankP(size, size), want)
		low, high := make([]float64, size), make([]float64, size)
		for i := range low {
			low[i], high[i] = float64(i), float64(100+i)
		}
		near(t, "p of separated "+n, MannWhitney(low, high).P, want)
	}
	if w := MannWhitney([]float64{1, 2}, []float64{3, 4}).Warnings; len(w) != 1 || w[0].Code != WarnReach {
		t.Errorf("2 and 2 values: warnings %v", w)
	}
}

func TestMany_Vectors(t *testing.T) {
	t.Parallel()
	bh := group[struct {
		P, Adj []float64
		Reject int
	}](t, "bh")
	shuffled := slices.Clone(bh.P)
	slices.Reverse(shuffled)
	reject, adjusted := BenjaminiHochberg(shuffled, 0.05)
	n := 0
	for i, r := range reject {
		if r {
			n++
		}
		digits(t, "adjusted", adjusted[i], bh.Adj[len(bh.Adj)-1-i], 6)
	}
	if n != bh.Reject {
		t.Errorf("%d rejected, want %d", n, bh.Reject)
	}
	for m, of := range group[map[string]map[string]float64](t, "bh_t_needed_onesided") {
		for df, want := range of {
			// A lone candidate among m is rejected at q = 0.05 from this t on.
			near(t, "t for "+m+" at df "+df, TQuantile(1-0.05/number(t, m), number(t, df)), want)
		}
	}
	for i, want := range []float64{0.03, 0.04, 0.04} {
		near(t, "holm", Holm([]float64{0.01, 0.02, 0.04})[i], want)
	}
	near(t, "simes", Simes([]float64{0.04, 0.01, 0.5}), 0.03)
}

func TestMDE_Vectors(t *testing.T) {
	t.Parallel()
	for key, want := range group[map[string]float64](t, "mde") {
		cv, n, _ := strings.Cut(strings.TrimPrefix(key, "cv"), "_n")
		near(t, "mde "+key, 100*MDE(number(t, cv)/100, int(number(t, n))), want)
	}
	// The table's last column: one-sided 1 %, power 0.8, a step of 5 %.
	for cv, want := range map[float64]int{0.05: 22, 0.10: 82} {
		if got := Detect(cv, 0.05, 0.01, 0.8); got < want-1 || got > want+4 {
			t.Errorf("%d a side at CV %g, want about %d", got, cv, want)
		}
	}
	if n := RunsToDecide(0.05, 0.05); MDE(0.05, n) > 0.05 || MDE(0.05, n-1) <= 0.05 {
		t.Errorf("runs to decide: %d", n)
	}
	if RunsToDecide(5, 0.001) != 0 {
		t.Error("a hopeless case has a number")
	}
}

func TestSeries_Vectors(t *testing.T) {
	t.Parallel()
	e := group[struct {
		Z    []float64
		QTau [2]float64 `json:"Q_tau"`
	}](t, "edivisive")
	got := EnergySplit(e.Z, 2, 10)
	near(t, "Q", got.Q, e.QTau[0])
	if got.Index != int(e.QTau[1]) || !got.Up {
		t.Errorf("split at %d, up %v", got.Index, got.Up)
	}
	flat := make([]float64, 30)
	if c := EnergySplit(flat, 2, 14); c.Scaled != 0 {
		t.Errorf("a constant series splits: %+v", c)
	}
	if EnergyCritical(11) < 1e9 || EnergyCritical(60) != 6.28 || EnergyCritical(25) != (5.73+6.17)/2 {
		t.Error("critical values")
	}
	p := Predictive([]float64{100, 101, 99, 100, 102, 98}, 106)
	near(t, "predictive t", p.T, 6/(StdDev([]float64{100, 101, 99, 100, 102, 98})*math.Sqrt(7.0/6)))
	near(t, "predictive p", p.P, 1-TCDF(p.T, 5))
}

func TestSampling_Vectors(t *testing.T) {
	t.Parallel()
	for key, want := range group[map[string]int](t, "canary") {
		f, p, _ := strings.Cut(strings.TrimPrefix(key, "f"), "_p")
		if got := Canaries(number(t, f), 0.9, number(t, p)); got != want {
			t.Errorf("canaries %s: %d, want %d", key, got, want)
		}
	}
	h := group[struct {
		M, D, K int
		P       float64 `json:"p_detect"`
	}](t, "hypergeom")
	near(t, "hypergeometric", CatchOne(h.M, h.D, h.K), h.P)
	if CatchOne(10, 4, 7) != 1 {
		t.Error("7 of 10 miss 4")
	}
	for k, want := range group[map[string]float64](t, "rule_of_three") {
		near(t, "clean share "+k, CleanShare(int(number(t, k))), want)
	}
	for _, c := range group[[]struct {
		CStart float64 `json:"c_start"`
		CRun   float64 `json:"c_run"`
		SRun   float64 `json:"s_run"`
		SStart float64 `json:"s_start"`
		N      float64
	}](t, "kalibera_inner") {
		near(t, "runs per start", RunsPerStart(c.CStart, c.CRun, c.SRun, c.SStart), c.N)
	}
}

func repeated(n int, v float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = v
	}
	return x
}

func TestMerged_Vectors(t *testing.T) {
	t.Parallel()
	v := group[struct {
		P99, P999  []float64
		MeanP99    float64 `json:"mean_p99"`
		MergedP99  float64 `json:"merged_p99"`
		MergedP999 float64 `json:"merged_p999"`
		Unequal    struct {
			MeanP50   float64 `json:"mean_p50"`
			MergedP50 float64 `json:"merged_p50"`
			MergedP99 float64 `json:"merged_p99"`
		}
	}](t, "agg")
	runs := [][]float64{
		slices.Concat(repeated(990, 10), repeated(10, 100)),
		slices.Concat(repeated(15, 400), repeated(985, 10)),
		slices.Concat(repeated(995, 10), repeated(5, 50)),
	}
	var own []float64
	for i, run := range runs {
		sorted := slices.Sorted(slices.Values(run))
		own = append(own, NearestRank(sorted, 99, 100))
		near(t, "own p99", own[i], v.P99[i])
		near(t, "own p99.9", NearestRank(sorted, 999, 1000), v.P999[i])
	}
	near(t, "mean of p99", Mean(own), v.MeanP99)
	e := MergedPercentile(runs, 99, 100)
	near(t, "merged p99", e.Value, v.MergedP99)
	h := TQuantile(0.975, 2) * StdDev(Logs(own)) / math.Sqrt(3)
	near(t, "low", e.Interval.Low, e.Value*math.Exp(-h))
	near(t, "high", e.Interval.High, e.Value*math.Exp(h))
	if len(e.Warnings) != 0 {
		t.Errorf("warnings %v", e.Warnings)
	}
	e = MergedPercentile(runs, 999, 1000)
	near(t, "merged p99.9", e.Value, v.MergedP999)
	if len(e.Warnings) != 3 || e.Warnings[0].Code != WarnFewSamples {
		t.Errorf("1,000 requests do not carry p99.9: %v", e.Warnings)
	}
	unequal := [][]float64{repeated(10000, 10), repeated(50, 1000)}
	near(t, "mean of p50", (10+1000)/2.0, v.Unequal.MeanP50)
	e = MergedPercentile(unequal, 1, 2)
	near(t, "merged p50 of unequal", e.Value, v.Unequal.MergedP50)
	near(t, "merged p99 of unequal", MergedPercentile(unequal, 99, 100).Value, v.Unequal.MergedP99)
	if e.Interval.OK || e.Warnings[len(e.Warnings)-1].Code != WarnFewValues {
		t.Errorf("two runs have an interval: %+v", e)
	}

	failed := group[struct {
		P95Right float64 `json:"p95_right"`
		Dropped  float64 `json:"wrong_dropped"`
	}](t, "failures_as_inf")
	x := append(percentileData(t, "1..100")[:98], math.Inf(1), math.Inf(1))
	if got := NearestRank(x, 99, 100); !math.IsInf(got, 1) {
		t.Errorf("p99 with two failures in a hundred is %g", got)
	}
	near(t, "p95 with failures", NearestRank(x, 95, 100), failed.P95Right)
	near(t, "without the failures", NearestRank(x[:98], 99, 100)+0, failed.Dropped)
	if got := MergedPercentile([][]float64{x, x, x}, 99, 100); got.Interval.OK || !math.IsInf(got.Value, 1) {
		t.Errorf("an infinite quantile has an interval: %+v", got)
	}

	other := group[struct {
		Data []float64
		R7   float64
	}](t, "benchseries_percentile")
	near(t, "r7 median", R7(other.Data, 1, 2), other.R7)
	if got := group[float64](t, "mlperf_p99_loadgen_100"); got != 100 || NearestRank(percentileData(t, "1..100"), 99, 100) != 99 {
		t.Error("p99 of 100 is the 99th, whatever LoadGen says")
	}
	boot := group[struct {
		Data, Means []float64
		Low         float64 `json:"p_nearest_025"`
		High        float64 `json:"p_nearest_975"`
	}](t, "bootstrap_exact")
	var means []float64
	for _, a := range boot.Data {
		for _, b := range boot.Data {
			for _, c := range boot.Data {
				means = append(means, (a+b+c)/3)
			}
		}
	}
	slices.Sort(means)
	for i, m := range means {
		digits(t, "bootstrap mean", m, boot.Means[i], 6)
	}
	near(t, "bootstrap low", NearestRank(means, 25, 1000), boot.Low)
	near(t, "bootstrap high", NearestRank(means, 975, 1000), boot.High)
}

// Every group of the vectors is used by a test of this package or belongs to a
// named other one.
func TestVectors_AreAllUsed(t *testing.T) {
	t.Parallel()
	elsewhere := map[string]string{
		"energy": "metrics", "roofline": "metrics", "hdr": "metrics", "chunks": "metrics", "cost": "cost",
	}
	source := ""
	for _, name := range []string{"vectors_test.go", "compare_test.go"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source += string(b)
	}
	for name := range raw(t) {
		word := strings.ReplaceAll(name, "_", "")
		here := strings.Contains(source, `"`+name+`"`) || strings.Contains(strings.ToLower(source), word)
		if !here && elsewhere[name] == "" {
			t.Errorf("no test uses the vectors %s", name)
		}
	}
}
