package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// bruteScore is the definition of the score, by sums of squares.
func bruteScore(x []float64, cut int) float64 {
	ss := func(x []float64) float64 { return Variance(x) * float64(len(x)-1) }
	return 1 - (ss(x[:cut])+ss(x[cut:]))/ss(x)
}

func TestBimodality(t *testing.T) {
	t.Parallel()
	two := []float64{100, 100.4, 99.7, 100.2, 100.1, 99.9, 100.3, 108, 108.3, 107.8}
	m := Bimodality(two)
	if !m.Bimodal || math.Abs(m.HighShare-0.3) > 1e-12 || math.Abs(m.Low-100.085) > 0.01 || math.Abs(m.High-108.03) > 0.01 {
		t.Errorf("two modes: %+v", m)
	}
	sorted := Logs([]float64{99.7, 99.9, 100, 100.1, 100.2, 100.3, 100.4, 107.8, 108, 108.3})
	if want := bruteScore(sorted, 7); math.Abs(m.Score-want) > 1e-9 {
		t.Errorf("score %g, by definition %g", m.Score, want)
	}
	if m := Bimodality([]float64{1, 2, 3}); m.Score != 0 || m.Bimodal {
		t.Errorf("three values: %+v", m)
	}
	if m := Bimodality([]float64{5, 5, 5, 5, 5, 5, 5, 5, 5}); m.Bimodal {
		t.Errorf("constants: %+v", m)
	}
	// One normal mode is flagged about once in a hundred.
	r := rand.New(rand.NewPCG(1, 2))
	flagged := 0
	const nights = 4000
	for range nights {
		x := make([]float64, 20)
		for i := range x {
			x[i] = math.Exp(0.02 * r.NormFloat64())
		}
		if Bimodality(x).Bimodal {
			flagged++
		}
	}
	if share := float64(flagged) / nights; share > 0.02 || share < 0.003 {
		t.Errorf("%.2f %% of unimodal histories are flagged", 100*share)
	}
}

func TestNodeEffect(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	draw := func(nodeSD, runSD float64) Nodes {
		names := []string{"n1", "n2", "n3", "n4"}
		var x []float64
		var node []string
		for _, name := range names {
			effect := nodeSD * r.NormFloat64()
			for range 5 {
				x = append(x, 50*math.Exp(effect+runSD*r.NormFloat64()))
				node = append(node, name)
			}
		}
		return NodeEffect(x, node)
	}
	bound, alarms := 0, 0
	for range 500 {
		if draw(0.03, 0.005).Bound {
			bound++
		}
		if draw(0, 0.02).P < 0.01 {
			alarms++
		}
	}
	if bound < 450 || alarms > 15 {
		t.Errorf("%d of 500 node effects found, %d of 500 false", bound, alarms)
	}
	one := NodeEffect([]float64{1, 2, 3}, []string{"a", "a", "a"})
	if !math.IsNaN(one.P) || one.Bound || one.Interval.OK {
		t.Errorf("one node: %+v", one)
	}
	three := NodeEffect([]float64{1, 1, 2, 2, 4, 4}, []string{"a", "a", "b", "b", "c", "c"})
	if !three.Bound || three.P != 0 || !three.Interval.OK || three.Nodes != 3 {
		t.Errorf("three nodes without noise: %+v", three)
	}
}

// The two-stage rule asks for the number that its formula says.
func TestDecide_Rules(t *testing.T) {
	t.Parallel()
	p := Policy{Min: 3, Max: 20, Target: 0.025}
	x := []float64{100, 104, 97, 101, 99}
	s := Decide(x, nil, History{}, p)
	want := int(math.Ceil(math.Pow(TQuantile(0.975, 4)*StdDev(Logs(x))/math.Log1p(0.025), 2)))
	if s.Stop || s.Rule != "stein" || s.Runs != want || s.Warnings[0].Code != WarnNoHistory {
		t.Errorf("without history: %+v, want %d runs", s, want)
	}
	s = Decide(x[:3], nil, History{SD: 0.01, DF: 20}, Policy{Min: 3, Max: 10, Target: 0.025})
	if s.Rule != "stein" || s.Warnings[0].Code != WarnStale || s.Runs != 5 {
		t.Errorf("spread beyond the history: %+v", s)
	}
	quiet := []float64{100, 100.2, 99.9}
	s = Decide(quiet, nil, History{SD: 0.005, DF: 20}, Policy{Min: 3, Max: 10, Target: 0.025})
	if !s.Stop || !s.Reached || s.Runs != 3 || s.DF != 22 || s.Rule != "pooled" {
		t.Errorf("quiet setting: %+v", s)
	}
	if s := Decide(quiet, nil, History{SD: 0.05, DF: 20}, Policy{Min: 3, Max: 10, Target: 0.025}); s.Stop || s.Runs != 5 {
		t.Errorf("a lucky start on a noisy history: %+v", s)
	}
	if got := Looks(Policy{Min: 3, Max: 10}); len(got) != 4 || got[1] != 5 || got[3] != 10 {
		t.Errorf("looks %v", got)
	}
}

// Two nights that differ by more than runs do are nearly one degree of freedom,
// however many runs they have; a step between segments is no spread.
func TestPoolHistory(t *testing.T) {
	t.Parallel()
	night, other := []float64{100, 101, 99}, []float64{103, 102, 104}
	h := PoolHistory([][][]float64{{night, other}})
	if h.DF != 1 || math.Abs(h.SD-StdDev(Logs(slices.Concat(night, other)))) > 1e-12 {
		t.Errorf("one segment: %+v", h)
	}
	h = PoolHistory([][][]float64{{night}, {other}})
	want := math.Sqrt((Variance(Logs(night)) + Variance(Logs(other))) / 2)
	if h.DF != 4 || math.Abs(h.SD-want) > 1e-12 {
		t.Errorf("two segments: %+v, want %g of 4", h, want)
	}
	for _, none := range [][][][]float64{nil, {{{1}}}, {{{}, {2}}}, {{{5, 5, 5}}}} {
		if h := PoolHistory(none); h != (History{}) {
			t.Errorf("%v: %+v", none, h)
		}
	}
}

// Runs of one node are worth less than as many of different nodes where nodes
// differ, and as much where they do not.
func TestNodeEffect_Effective(t *testing.T) {
	t.Parallel()
	x := []float64{100, 110, 90, 100.1, 110.1, 90.1}
	apart := NodeEffect(x, []string{"a", "b", "c", "d", "e", "f"})
	shared := NodeEffect(x, []string{"a", "b", "c", "a", "b", "c"})
	if apart.Effective != 6 || math.Abs(shared.Effective-3) > 0.01 {
		t.Errorf("effective runs: apart %g, shared %g", apart.Effective, shared.Effective)
	}
	// Three means with nothing between their two runs: Student's of three values.
	means := Logs([]float64{math.Sqrt(100 * 100.1), math.Sqrt(110 * 110.1), math.Sqrt(90 * 90.1)})
	if want := TQuantile(0.975, 2) * StdDev(means) / math.Sqrt(3); math.Abs(shared.HalfWidth/want-1) > 1e-3 {
		t.Errorf("half-width %g, want about %g", shared.HalfWidth, want)
	}
	plain := MeanInterval(Logs(x), 0.95)
	if math.Abs(apart.HalfWidth-(plain.High-plain.Low)/2) > 1e-12 || shared.HalfWidth < apart.HalfWidth {
		t.Errorf("half-width apart %g, shared %g", apart.HalfWidth, shared.HalfWidth)
	}
	one := NodeEffect(x, []string{"a", "a", "a", "a", "a", "a"})
	if one.Effective != 6 || math.Abs(one.HalfWidth-apart.HalfWidth) > 1e-12 {
		t.Errorf("one node: %+v", one)
	}
}

func TestPaired(t *testing.T) {
	t.Parallel()
	// The same large variation between repeats on both sides, 3 % apart.
	x := []float64{100, 150, 80, 120, 200}
	y := []float64{103.1, 154.4, 82.5, 123.5, 206.1}
	r := Paired(x, y)
	if !r.Interval.OK || r.Interval.Low < 1.029 || r.Interval.High > 1.032 || r.P > 1e-4 {
		t.Errorf("paired: %+v", r)
	}
	if LogWelch(x, y).P < 0.5 {
		t.Error("unpaired sees what it cannot")
	}
	if r := Paired(x[:2], y[:2]); r.Interval.OK || len(r.Warnings) == 0 {
		t.Errorf("two pairs: %+v", r)
	}
}
