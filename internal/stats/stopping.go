package stats

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// History is what earlier nights say about the spread of a metric of a setting:
// the standard deviation of the logarithms over run, night and node, after
// removing confirmed steps.
type History struct {
	SD float64
	DF int
}

// Policy is how many runs are made.
type Policy struct {
	Min, Max int
	Target   float64 // relative half-width of the 95 % interval
	// Widen says that the history has two modes: all runs are made, because a few
	// of one mode look like a precise answer.
	Widen bool
}

// The constants of the policy.
const (
	minHistory = 10   // degrees of freedom below which the history is not used
	maxHistory = 20   // above which it counts as these: it may be out of date
	guardLevel = 0.90 // a variance beyond this F quantile of the history drops it
	pilot      = 5    // runs of Stein's first stage
)

// Stop is what the policy says after so many runs.
type Stop struct {
	Stop bool
	// Runs is how many there should be: at a stop, those there are.
	Runs int
	// Reached: the relative half-width is within the target.
	Reached bool
	// HalfWidth is of the 95 % interval of the logarithms, the interval being the
	// geometric mean times exp(±HalfWidth); infinite below two runs.
	HalfWidth float64
	SD        float64 // that it is made of
	DF        float64
	// Rule is "pooled" (with history), "stein" (a pilot of five fixes the number)
	// or "start" (too few runs to say anything).
	Rule     string
	Warnings []Warning
}

// Looks are the numbers of runs at which the policy decides, so that batches fit
// arrays and each look costs little.
func Looks(p Policy) []int {
	looks := []int{p.Min}
	for _, n := range []int{3, 5, 7, 10, 14, 20, 28, 40, 56, 80} {
		if n > p.Min && n < p.Max {
			looks = append(looks, n)
		}
	}
	if p.Max > p.Min {
		looks = append(looks, p.Max)
	}
	return looks
}

// Decide says whether runs are enough. x are the values of the metric in the
// order of the repeats, all that there are; node[i] names where x[i] was measured,
// nil says that each has a node of its own. Runs that share a node are worth less
// than as many on different ones (Nodes.Effective). The variance of earlier nights is
// pooled with tonight's, so that a spread that happens to look small does not end
// the sampling; where there is no history, or tonight's variance does not fit it,
// Stein's two-stage rule decides, whose interval is exact for normal logarithms
// however N came about. The answer depends on x alone: asking again is harmless.
func Decide(x []float64, node []string, h History, p Policy) Stop {
	seen := placed{x: x, logs: Logs(x), node: node}
	logs := seen.logs
	start := p.Min
	if h.DF < minHistory || !(h.SD > 0) {
		return stein(seen, max(pilot, p.Min), p, warn(WarnNoHistory,
			"%d degrees of freedom of history are fewer than %d: a pilot of %d runs fixes the number", h.DF, minHistory, max(pilot, p.Min)))
	}
	v0 := float64(min(h.DF, maxHistory))
	last := Stop{Runs: min(start, p.Max), Rule: "start", HalfWidth: math.Inf(1), SD: math.NaN(), DF: math.NaN()}
	for _, n := range Looks(p) {
		if n > len(logs) {
			last.Runs = n
			return last
		}
		df := float64(n - 1)
		if n >= 2 && Variance(logs[:n]) > h.SD*h.SD*(distuv.F{D1: df, D2: v0}).Quantile(guardLevel) {
			return stein(seen, max(pilot, n), p, warn(WarnStale,
				"a standard deviation of %.2g %% is more than the history's %.2g %% allow: a pilot of %d runs fixes the number",
				100*StdDev(logs[:n]), 100*h.SD, max(pilot, n)))
		}
		last = pooled(seen, n, h, v0)
		last.Reached = math.Expm1(last.HalfWidth) <= p.Target+1e-12
		if last.Reached && !p.Widen || n >= p.Max {
			// Runs beyond the look that decided (a batch that was larger) only add.
			last = pooled(seen, len(logs), h, v0)
			last.Stop, last.Runs, last.Reached = true, len(logs), math.Expm1(last.HalfWidth) <= p.Target+1e-12
			return last
		}
	}
	return last
}

// placed are values with the nodes that they come from.
type placed struct {
	x, logs []float64
	node    []string
}

// nodes analyses the first n; nil nodes are all different.
func (p placed) nodes(n int) Nodes {
	if p.node == nil {
		return Nodes{Nodes: n, Effective: float64(n)}
	}
	return NodeEffect(p.x[:n], p.node[:n])
}

// pooled is the interval of the first n values with the history's variance.
func pooled(p placed, n int, h History, v0 float64) Stop {
	seen := p.logs[:n]
	df := v0
	sum := v0 * h.SD * h.SD
	if n >= 2 {
		df += float64(n - 1)
		sum += float64(n-1) * Variance(seen)
	}
	sd := math.Sqrt(sum / df)
	return Stop{Runs: n, Rule: "pooled", SD: sd, DF: df, HalfWidth: TQuantile(0.975, df) * sd / math.Sqrt(p.nodes(n).Effective)}
}

// stein is the two-stage rule with the first n0 values as the pilot.
func stein(of placed, n0 int, p Policy, why Warning) Stop {
	logs := of.logs
	n0 = min(n0, p.Max)
	s := Stop{Rule: "stein", Runs: n0, HalfWidth: math.Inf(1), SD: math.NaN(), DF: float64(n0 - 1), Warnings: []Warning{why}}
	if len(logs) < n0 {
		return s
	}
	if n0 < 2 {
		s.Stop, s.Runs = true, len(logs)
		return s
	}
	s.SD = StdDev(logs[:n0])
	t := TQuantile(0.975, s.DF)
	ratio := t * s.SD / math.Log1p(p.Target)
	need := p.Max
	if ratio*ratio < float64(p.Max) { // also false where it is NaN or infinite
		need = max(n0, int(math.Ceil(ratio*ratio)))
	}
	if p.Widen {
		need = p.Max
	}
	nodes := of.nodes(len(logs))
	s.HalfWidth = t * s.SD / math.Sqrt(nodes.Effective)
	if nodes.SigmaNode > 0 {
		s.HalfWidth = max(s.HalfWidth, nodes.HalfWidth) // nothing but these runs says how much nodes differ
	}
	s.Reached = math.Expm1(s.HalfWidth) <= p.Target+1e-12
	s.Stop = len(logs) >= need
	s.Runs = max(need, len(logs))
	return s
}

// PoolHistory makes a History of nights in segments between confirmed steps and
// changes of the setting: segments[i][j] are the runs of night j of segment i. The
// deviations are those of all runs from the mean of their segment, so that night
// and node effects are in them and steps are not. The degrees of freedom are
// Satterthwaite's: where nights differ by more than runs do, many runs of few
// nights know little.
func PoolHistory(segments [][][]float64) History {
	var squares, between, within, dfBetween, dfWithin float64
	for _, nights := range segments {
		var all []float64
		var inside float64
		used := 0
		for _, n := range nights {
			logs := Logs(n)
			slices.Sort(logs)
			if len(logs) == 0 {
				continue
			}
			used++
			all = append(all, logs...)
			inside += float64(len(logs)-1) * varianceOrZero(logs)
		}
		if len(all) < 2 {
			continue
		}
		slices.Sort(all)
		total := float64(len(all)-1) * varianceOrZero(all)
		squares += total
		within += inside
		between += max(0, total-inside)
		dfWithin += float64(len(all) - used)
		dfBetween += float64(used - 1)
	}
	df := dfWithin + dfBetween
	if df < 1 || !(squares > 0) {
		return History{}
	}
	effective := 0.0
	if dfBetween > 0 {
		effective += between * between / dfBetween
	}
	if dfWithin > 0 {
		effective += within * within / dfWithin
	}
	return History{SD: math.Sqrt(squares / df), DF: int(min(df, squares*squares/effective) + 1e-9)}
}

func varianceOrZero(x []float64) float64 {
	if len(x) < 2 {
		return 0
	}
	return Variance(x)
}
