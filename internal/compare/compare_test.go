package compare

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sbench/internal/metrics"
	"sbench/internal/setting"
	"sbench/internal/stats"
)

// row is a setting with runs whose throughput and latency have these values.
func row(change func(*setting.Setting), throughput, latency []float64) Row {
	s := setting.Default()
	s.Model.Name, s.Hardware.GPU = "m", "h100-sxm"
	s.Workload.Arrival = setting.Arrival{Process: setting.ProcessPoisson, Rate: 4}
	if change != nil {
		change(&s)
	}
	s.Normalize()
	r := Row{SettingHash: s.Hash(), HardwareClass: "real", Axes: s.FlatValues(), Final: true, NValid: len(throughput), NTotal: len(throughput)}
	for i := range throughput {
		r.Runs = append(r.Runs, Run{Repeat: i, Fingerprint: "f", Metrics: map[string]*float64{"output_tokens_per_s": &throughput[i], "ttft_p95": &latency[i]}})
	}
	return r
}

func args(seqs string) func(*setting.Setting) {
	return func(s *setting.Setting) { s.Engine.Args = map[string]string{"max-num-seqs": seqs} }
}

func scaled(x []float64, k float64) []float64 {
	out := slices.Clone(x)
	for i := range out {
		out[i] *= k
	}
	return out
}

// five are runs with a CV of half a percent.
func five() []float64 { return []float64{100, 100.6, 99.5, 100.2, 99.7} }

func TestCompare_OneAxis(t *testing.T) {
	t.Parallel()
	a := row(args("128"), five(), five())
	b := row(args("256"), scaled([]float64{99.8, 100.4, 99.6, 100.3, 100.1}, 0.9), scaled(five(), 1.1))
	c, err := Compare([]Row{a, b}, Options{Metrics: []string{"output_tokens_per_s", "ttft_p95", "goodput"}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Vary != "engine.args.max-num-seqs" || !c.Ranked || len(c.Residue) != 0 {
		t.Fatalf("vary %q, ranked %v, residue %v", c.Vary, c.Ranked, c.Residue)
	}
	p := c.Entries[1].Pairs
	if p[0].Verdict != RegressedCertain || math.Abs(*p[0].Ratio-0.9) > 0.005 || *p[0].RatioHigh >= 0.95 {
		t.Errorf("throughput: %+v", p[0])
	}
	if p[1].Verdict != RegressedCertain || math.Abs(*p[1].Ratio-1.1) > 1e-9 || p[1].Method != "paired" {
		t.Errorf("latency: %+v", p[1])
	}
	if p[2].Verdict != Inconclusive || p[2].Ratio != nil || len(p[2].Notes) == 0 {
		t.Errorf("a metric without values: %+v", p[2])
	}
	if c.Entries[0].Rank != 1 || c.Entries[1].Rank != 2 {
		t.Errorf("ranks %d, %d", c.Entries[0].Rank, c.Entries[1].Rank)
	}
	same, err := Compare([]Row{a, row(args("512"), scaled([]float64{99.8, 100.4, 99.6, 100.3, 100.1}, 1), five())}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p := same.Entries[1].Pairs[0]; p.Verdict != OK || p.MDE == nil || *p.MDE <= 0 || *p.MDE > 0.02 {
		t.Errorf("no difference: %+v", p)
	}
	if same.Entries[0].Rank != 1 || same.Entries[1].Rank != 1 {
		t.Error("rows that cannot be told apart have different ranks")
	}
}

func TestCompare_RefusesToRank(t *testing.T) {
	t.Parallel()
	a := row(args("128"), five(), five())
	b := row(func(s *setting.Setting) { args("256")(s); s.Model.Precision = "fp8" }, five(), five())
	_, err := Compare([]Row{a, b}, Options{})
	var residue *ResidueError
	if !errors.As(err, &residue) || len(residue.Residue) != 2 {
		t.Fatalf("two axes: %v", err)
	}
	_, err = Compare([]Row{a, b}, Options{Vary: "engine.args"})
	if !errors.As(err, &residue) || len(residue.Residue) != 1 || residue.Residue[0].Axis != "model.precision" {
		t.Fatalf("residue: %v", err)
	}
	c, err := Compare([]Row{a, b}, Options{Vary: "engine.args", Anyway: true})
	if err != nil || c.Ranked || c.Entries[1].Rank != 0 || len(c.Entries[1].Pairs) == 0 {
		t.Errorf("anyway: %v, ranked %v", err, c.Ranked)
	}
	if _, err := Recommend(c, Wishes{}); err == nil {
		t.Error("recommends what it does not rank")
	}
}

func TestCompare_Unlike(t *testing.T) {
	t.Parallel()
	a := row(args("128"), five(), five())
	emulated := row(args("256"), five(), five())
	emulated.HardwareClass = "emulated"
	closedLoop := row(func(s *setting.Setting) {
		s.Workload.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: 8}
	}, five(), five())
	other := row(args("256"), five(), five())
	a.MetricsVersion, other.MetricsVersion = "v1", "v2"
	for name, rows := range map[string][]Row{"emulated": {a, emulated}, "closed": {a, closedLoop}, "versions": {a, other}, "one": {a}} {
		if _, err := Compare(rows, Options{Anyway: true}); !errors.Is(err, ErrUnlike) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// More GPUs follow from more tensor parallelism; a finding keeps a row out.
func TestCompare_Scaling(t *testing.T) {
	t.Parallel()
	tp := func(n int, speed float64) Row {
		return row(func(s *setting.Setting) { s.Parallel.Tensor, s.Hardware.GPUs = n, n }, scaled(five(), speed), scaled(five(), 1/speed))
	}
	rows := []Row{tp(4, 3.2), tp(1, 1), tp(2, 1.9), tp(8, 5)}
	rows[3].Findings = []string{"saturated"}
	c, err := Compare(rows, Options{Vary: "parallel.tensor"})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Coupled) != 1 || c.Coupled[0].Axis != "hardware.gpus" {
		t.Errorf("coupled %v", c.Coupled)
	}
	s := Scaling(c)
	for i, want := range []float64{1, 0.95, 0.8, 0.625} {
		if math.Abs(*s[i].Efficiency-want) > 1e-9 {
			t.Errorf("efficiency on %g devices: %g, want %g", s[i].Devices, *s[i].Efficiency, want)
		}
	}
	if c.Entries[3].Rank != 0 || c.Entries[3].Unranked != "finding: saturated" || c.Entries[2].Rank != 1 {
		t.Errorf("ranks: %+v", c.Entries)
	}
	r, err := Recommend(c, Wishes{})
	if err != nil {
		t.Fatal(err)
	}
	if r.BestThroughput != rows[0].SettingHash || r.BestLatency != rows[0].SettingHash || r.CheapestAtSLO != "" {
		t.Errorf("recommendation: %+v", r)
	}
	if !r.Points[0].Front || !r.Points[1].Front || !r.Points[2].Front || r.Points[3].Front {
		t.Errorf("front: %+v", r.Points)
	}
}

func TestRecommend_CheapestAtSLO(t *testing.T) {
	t.Parallel()
	with := func(gpu string, speed, good float64) Row {
		r := row(func(s *setting.Setting) { s.Hardware.GPU = gpu }, scaled(five(), speed), five())
		for i := range r.Runs {
			r.Runs[i].Metrics["goodput_ratio"] = &good
		}
		return r
	}
	c, err := Compare([]Row{with("l4", 1, 1), with("h100-sxm", 4, 0.995), with("h200", 8, 0.5)}, Options{Vary: "hardware.gpu"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Recommend(c, Wishes{PricePerGPUHour: map[string]float64{"l4": 0.5, "h100-sxm": 2.5, "h200": 4}})
	if err != nil {
		t.Fatal(err)
	}
	if r.CheapestAtSLO != c.Entries[0].Row.SettingHash || r.Points[2].CostAtSLO != nil {
		t.Errorf("%+v", r)
	}
	// $0.5 an hour at 100 tokens/s is $1.39 per million.
	if got := *r.Points[0].CostAtSLO; math.Abs(got-0.5/3600/100*1e6) > 0.01 {
		t.Errorf("cost %g", got)
	}
	r, err = Recommend(c, Wishes{PricePerGPUHour: map[string]float64{"l4": 0.5}})
	if err != nil || r.CheapestAtSLO != "" {
		t.Errorf("half the prices: %+v %v", r, err)
	}
}

// Turning a comparison round turns the verdict round; scaling both changes nothing.
func TestProperty_Pair(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 8).Draw(t, "n")
		seed := rapid.Uint64().Draw(t, "seed")
		r := rand.New(rand.NewPCG(seed, 1))
		draw := func(shift float64) []float64 {
			x := make([]float64, n)
			for i := range x {
				x[i] = 100 * math.Exp(shift+0.02*r.NormFloat64())
			}
			return x
		}
		x, y := draw(0), draw(rapid.Float64Range(-0.2, 0.2).Draw(t, "shift"))
		a, b := row(nil, x, x), row(args("1"), y, y)
		p, q := MakePair(a, b, "ttft_p95", 0.05, true), MakePair(b, a, "ttft_p95", 0.05, true)
		if math.Abs(*p.Ratio**q.Ratio-1) > 1e-9 || math.Abs(*p.RatioLow**q.RatioHigh-1) > 1e-9 {
			t.Fatalf("turned round: %+v %+v", p, q)
		}
		if (p.Verdict == Improved) != (*q.RatioLow > 1) || p.Verdict.Bad() && q.Verdict != Improved {
			t.Fatalf("verdicts %s and %s", p.Verdict, q.Verdict)
		}
		k := rapid.Float64Range(0.1, 10).Draw(t, "k")
		s := MakePair(row(nil, scaled(x, k), scaled(x, k)), row(args("1"), scaled(y, k), scaled(y, k)), "ttft_p95", 0.05, true)
		if math.Abs(*s.Ratio-*p.Ratio) > 1e-9*(*p.Ratio) || s.Verdict != p.Verdict {
			t.Fatalf("scaled: %+v %+v", p, s)
		}
	})
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d, low, high float64
		want         Verdict
	}{
		{0.08, 0.06, 0.10, RegressedCertain},
		{0.06, 0.02, 0.10, Regressed},
		{0.03, 0.01, 0.05, SlowerSmall},
		{0.00, -0.02, 0.02, OK},
		{-0.03, -0.05, -0.01, Improved},
		{0.02, -0.05, 0.09, Inconclusive},
	} {
		if got := Judge(c.d, c.low, c.high, 0.05); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// asked gives a row scores: of n items, in each run the same.
func asked(r Row, hash string, score, sd float64, n float64) Row {
	r.Quality = hash
	for i := range r.Runs {
		r.Runs[i].Metrics[metrics.QualityScore], r.Runs[i].Metrics[metrics.QualityStdDev], r.Runs[i].Metrics[metrics.QualityItems] = &score, &sd, &n
	}
	return r
}

// TestCompare_Quality: runs that answer alike say nothing about how exact a score
// is; the number of items does.
func TestCompare_Quality(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		x, y    float64
		n       float64
		verdict Verdict
	}{
		"few items":             {0.8, 0.75, 50, Inconclusive},
		"many items":            {0.8, 0.5, 5000, RegressedCertain},
		"better":                {0.5, 0.8, 5000, Improved},
		"shown not to be worse": {0.8, 0.8, 50_000, OK},
		"no mistake in three":   {1, 1, 3, Inconclusive},
	} {
		sd := func(p float64) float64 { return math.Sqrt(p * (1 - p)) }
		a, b := asked(row(args("1"), five(), five()), "q", tt.x, sd(tt.x), tt.n), asked(row(args("2"), five(), five()), "q", tt.y, sd(tt.y), tt.n)
		c, err := Compare([]Row{a, b}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := c.Entries[1].Pairs[len(c.Entries[1].Pairs)-1]
		if p.Metric != metrics.QualityScore || p.Verdict != tt.verdict || p.Method != "items" || math.Abs(*p.Ratio-tt.y/tt.x) > 1e-9 || p.RatioLow == nil || p.RunsNeeded != 0 {
			t.Errorf("%s: %+v, want %s", name, p, tt.verdict)
		}
		// 95 % of a difference of proportions, by the delta method.
		if tt.x < 1 {
			se := math.Sqrt((1-tt.x)/(tt.x*tt.n) + (1-tt.y)/(tt.y*tt.n))
			want := tt.y / tt.x * math.Exp(-stats.TQuantile(0.975, 2*tt.n-2)*se)
			if math.Abs(*p.RatioLow-want) > 1e-9 {
				t.Errorf("%s: interval from %v, want %v", name, *p.RatioLow, want)
			}
		}
	}
}

// Scores of other questions are not compared, ranked or weighed.
func TestCompare_QualityUnlike(t *testing.T) {
	t.Parallel()
	rows := []Row{
		asked(row(args("1"), five(), five()), "q", 0.8, 0.4, 100), asked(row(args("2"), five(), five()), "other", 0.9, 0.3, 100), row(args("3"), five(), five()),
	}
	c, err := Compare(rows, Options{By: metrics.QualityScore})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range c.Entries[1:] {
		p := e.Pairs[len(e.Pairs)-1]
		if p.Ratio != nil || p.Value != nil || p.Verdict != Inconclusive || len(p.Notes) != 1 || e.Unranked == "" {
			t.Errorf("%+v, unranked %q", p, e.Unranked)
		}
	}
	r, err := Recommend(c, Wishes{Pareto: []string{ParetoThroughput, ParetoQuality}})
	if err != nil || r.BestQuality != "" || slices.ContainsFunc(r.Points, func(p Point) bool { return p.Front || p.Quality != nil }) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRecommend_Quality(t *testing.T) {
	t.Parallel()
	// The third is worse in both than the first; the fourth has no score.
	rows := []Row{
		asked(row(args("1"), five(), five()), "q", 0.8, 0.4, 100), asked(row(args("2"), scaled(five(), 2), five()), "q", 0, 0, 100),
		asked(row(args("3"), scaled(five(), 0.5), scaled(five(), 0.5)), "q", 0.7, 0.4, 100), row(args("4"), scaled(five(), 4), five()),
	}
	rows[3].Quality = "q"
	c, err := Compare(rows, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		axes []string
		want []bool
	}{
		{nil, []bool{false, false, true, true}},
		{[]string{ParetoThroughput, ParetoQuality}, []bool{true, true, false, false}},
		{[]string{ParetoQuality, ParetoLatency}, []bool{true, false, true, false}},
		{[]string{ParetoThroughput, ParetoLatency, ParetoQuality}, []bool{true, true, true, false}},
	} {
		r, err := Recommend(c, Wishes{Pareto: tt.axes})
		if err != nil {
			t.Fatal(err)
		}
		front := map[string]bool{}
		for _, p := range r.Points {
			front[p.SettingHash] = p.Front
		}
		for i, want := range tt.want {
			if front[rows[i].SettingHash] != want {
				t.Errorf("%v: row %d on the front: %v, want %v", tt.axes, i, !want, want)
			}
		}
		if r.BestQuality != rows[0].SettingHash || !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "1 of 4 settings have no quality score") }) {
			t.Errorf("best quality %.12s, notes %q", r.BestQuality, r.Notes)
		}
	}
	for _, axes := range [][]string{{"throughput"}, {"throughput", "throughput"}, {"throughput", "cost"}} {
		if _, err := Recommend(c, Wishes{Pareto: axes}); err == nil {
			t.Errorf("%v: no error", axes)
		}
	}
}
