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
	// Effective is how many independent runs the mean of these is worth: the number
	// of values where each has a node of its own, near that of the nodes where these
	// differ. The node's share of the variance that it is made of is the upper end
	// of a one-sided 75 % interval, because few runs hardly tell it.
	Effective float64
	// HalfWidth is of the 95 % interval of the mean of the logarithms, made of these
	// values alone: Satterthwaite's combination of both sums of squares where nodes
	// differ by more than runs do by chance, else Student's. Infinite below two
	// values; all on one node are Student's, and cover that node.
	HalfWidth float64
}

// shareLevel is the level of the upper bound of the nodes' share.
const shareLevel = 0.75

// NodeEffect analyses the logarithms of values by node; node[i] names the one of
// x[i].
func NodeEffect(x []float64, node []string) Nodes {
	out := LinearNodeEffect(Logs(x), node)
	if out.Interval.OK {
		out.Interval = finite(math.Exp(out.Interval.Low), math.Exp(out.Interval.High))
	}
	return out
}

// LinearNodeEffect is NodeEffect of values that are no ratios: everything is on
// their own scale.
func LinearNodeEffect(x []float64, node []string) Nodes {
	groups := map[string][]float64{}
	var order []string // so that sums do not depend on the map's
	for i, v := range x {
		if groups[node[i]] == nil {
			order = append(order, node[i])
		}
		groups[node[i]] = append(groups[node[i]], v)
	}
	slices.Sort(order)
	out := Nodes{Nodes: len(order), P: math.NaN(), SigmaRun: math.NaN(), SigmaNode: math.NaN(), Effective: float64(len(x)), HalfWidth: math.Inf(1)}
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
	out.Interval = MeanInterval(means, 0.95)
	a, n := float64(len(order)), float64(len(all))
	if n >= 2 {
		out.HalfWidth = TQuantile(0.975, n-1) * StdDev(all) / math.Sqrt(n)
	}
	if a < 2 || n <= a {
		return out
	}
	grand := Mean(all)
	var between float64
	for i, name := range order {
		between += float64(len(groups[name])) * (means[i] - grand) * (means[i] - grand)
	}
	msb, msw := between/(a-1), within/(n-a)
	perNode := (n - squares/n) / (a - 1) // values, as the expectation of msb counts them
	out.SigmaRun = math.Sqrt(msw)
	out.SigmaNode = math.Sqrt(max(0, (msb-msw)/perNode))
	share := 0.0
	switch f := (distuv.F{D1: a - 1, D2: n - a}); {
	case msw > 0:
		out.P = f.Survival(msb / msw)
		most := msb / msw / f.Quantile(1-shareLevel)
		share = max(0, (most-1)/(most-1+perNode))
	case msb > 0:
		out.P, share = 0, 1
	default:
		out.P = 1
	}
	concentration := squares / (n * n)
	out.Effective = 1 / (share*concentration + (1-share)/n)
	if out.SigmaNode > 0 {
		// Var(mean) = SigmaNode²·Σw² + SigmaRun²/n, as a combination of msb and msw.
		b := concentration / perNode * msb
		w := (1/n - concentration/perNode) * msw
		df := max(1, (b+w)*(b+w)/(b*b/(a-1)+w*w/(n-a)))
		out.HalfWidth = max(out.HalfWidth, TQuantile(0.975, df)*math.Sqrt(b+w))
	}
	out.Bound = out.P < 0.01 && out.SigmaNode > out.SigmaRun
	return out
}
