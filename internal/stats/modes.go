package stats

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Modes is the best split of values into two groups.
type Modes struct {
	// Score is the share of the variance that the split explains, within 0 and 1;
	// 0 where there are too few values for two groups of two.
	Score float64
	// Threshold is the score that one normal mode exceeds once in a hundred.
	Threshold float64
	Bimodal   bool // Score is above Threshold
	// The groups' locations (geometric means) and the share of the upper one.
	Low, High, HighShare float64
}

// Bimodality splits the sorted logarithms of x in two so that most variance is
// explained, both parts of at least two values. Below some 20 values it has
// little power: test the history rather than one night.
func Bimodality(x []float64) Modes {
	v := slices.Sorted(slices.Values(Logs(x)))
	n := len(v)
	m := Modes{Threshold: bimodalThreshold(n)}
	if n < 4 {
		return m
	}
	mean := Mean(v)
	var total, left float64
	for _, a := range v {
		total += (a - mean) * (a - mean)
	}
	// Equal values differ by rounding after a logarithm.
	if spread := v[n-1] - v[0]; !(spread > 1e-12) || math.IsInf(spread, 0) {
		return m
	}
	for k := 1; k <= n-2; k++ {
		left += v[k-1] - mean
		if k < 2 {
			continue
		}
		// Between-group sum of squares from the deviations of one group's sum.
		if score := left * left / total * (1/float64(k) + 1/float64(n-k)); score > m.Score {
			m.Score = min(1, score)
			m.Low, m.High = math.Exp(Mean(v[:k])), math.Exp(Mean(v[k:]))
			m.HighShare = float64(n-k) / float64(n)
		}
	}
	m.Bimodal = m.Score > m.Threshold
	return m
}

// bimodalThreshold is the 99 % quantile of the score of n normal values, from
// simulation; between the sizes that were simulated it is interpolated. Below 8
// values nothing is flagged.
func bimodalThreshold(n int) float64 {
	table := []struct{ n, quantile float64 }{{8, 0.94}, {10, 0.905}, {15, 0.865}, {20, 0.83}, {30, 0.80}, {60, 0.75}}
	size := float64(n)
	if size < table[0].n {
		return 1
	}
	for i := 1; i < len(table); i++ {
		if a, b := table[i-1], table[i]; size <= b.n {
			return a.quantile + (b.quantile-a.quantile)*(size-a.n)/(b.n-a.n)
		}
	}
	return table[len(table)-1].quantile
}

// Nodes is a one-way analysis of variance over the nodes that values come from.
type Nodes struct {
	Nodes    int     // with at least one value
	SigmaRun float64 // within a node, of the logarithms
	// SigmaNode is between nodes: sqrt(max(0, (MSB-MSW)/n0)).
	SigmaNode float64
	P         float64 // of "no node effect"; NaN where it cannot be tested
	// Bound says that nodes differ (p < 0.01) by more than runs do: an interval
	// from runs of these nodes does not cover other ones.
	Bound bool
	// Interval is the t interval of the means of the nodes, of the geometric mean:
	// what holds where Bound. Not OK below three nodes.
	Interval Interval
}

// NodeEffect analyses the logarithms of values by node; node[i] names the one of
// x[i].
func NodeEffect(x []float64, node []string) Nodes {
	groups := map[string][]float64{}
	var order []string // so that sums do not depend on the map's
	for i, v := range Logs(x) {
		if groups[node[i]] == nil {
			order = append(order, node[i])
		}
		groups[node[i]] = append(groups[node[i]], v)
	}
	slices.Sort(order)
	out := Nodes{Nodes: len(order), P: math.NaN(), SigmaRun: math.NaN(), SigmaNode: math.NaN()}
	var all, means []float64
	var within, squares float64
	for _, name := range order {
		g := groups[name]
		slices.Sort(g)
		m := Mean(g)
		means = append(means, m)
		all = append(all, g...)
		squares += float64(len(g) * len(g))
		for _, v := range g {
			within += (v - m) * (v - m)
		}
	}
	if ci := MeanInterval(means, 0.95); ci.OK {
		out.Interval = finite(math.Exp(ci.Low), math.Exp(ci.High))
	}
	a, n := float64(len(order)), float64(len(all))
	if a < 2 || n <= a {
		return out
	}
	grand := Mean(all)
	var between float64
	for i, name := range order {
		between += float64(len(groups[name])) * (means[i] - grand) * (means[i] - grand)
	}
	msb, msw := between/(a-1), within/(n-a)
	out.SigmaRun = math.Sqrt(msw)
	out.SigmaNode = math.Sqrt(max(0, (msb-msw)/((n-squares/n)/(a-1))))
	switch {
	case msw > 0:
		out.P = distuv.F{D1: a - 1, D2: n - a}.Survival(msb / msw)
	case msb > 0:
		out.P = 0
	default:
		out.P = 1
	}
	out.Bound = out.P < 0.01 && out.SigmaNode > out.SigmaRun
	return out
}
