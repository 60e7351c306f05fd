package regress

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"sbench/internal/stats"
)

// minSettings is the fewest settings that tell a node's effect.
const minSettings = 5

// NodeValue is the logarithm of a run's metric, worse upward, less what its
// setting is expected to have.
type NodeValue struct {
	Night   int64 // the sweep
	Setting string
	Node    string
	Value   float64 // worse positive
}

// NodeEffect is how much slower a node is than the others, over settings.
type NodeEffect struct {
	Node     string  `json:"node"`
	Metric   string  `json:"metric"`
	Effect   float64 `json:"effect"` // relative, worse positive, of the latest night
	Settings int     `json:"settings"`
	Limit    float64 `json:"limit"`  // beyond which it is an outlier
	Nights   int     `json:"nights"` // in a row, the latest included
	// Quarantine: an outlier two nights running. Its runs are kept and marked;
	// comparisons should not use them.
	Quarantine bool   `json:"quarantine"`
	Advice     string `json:"advice"`
}

// Residuals turns the runs of a night into node values: each less the median of
// its setting, so that settings of any speed add up. Settings on one node tell
// nothing about nodes and are left out.
func Residuals(night int64, metric string, of map[string]Night) []NodeValue {
	var out []NodeValue
	for _, setting := range slices.Sorted(maps.Keys(of)) {
		n := of[setting]
		x := stats.Logs(n.Values[metric])
		if len(x) != len(n.Nodes) || !finite(x) {
			continue
		}
		byNode := map[string][]float64{}
		for i, v := range x {
			byNode[n.Nodes[i]] = append(byNode[n.Nodes[i]], v)
		}
		if len(byNode) < 2 {
			continue
		}
		// The median over nodes, so that a node with many runs does not set it.
		var medians []float64
		for _, node := range slices.Sorted(maps.Keys(byNode)) {
			medians = append(medians, stats.Median(byNode[node]))
		}
		middle := stats.Median(medians)
		for i, v := range x {
			out = append(out, NodeValue{Night: night, Setting: setting, Node: n.Nodes[i], Value: worse(metric) * (v - middle)})
		}
	}
	return out
}

// Outliers finds nodes that are slower or faster than the rest. nights are in
// order, the latest last. A node is an outlier where its median effect over at
// least five settings is beyond 2 % and beyond three robust deviations of all
// nodes; two nights running it is to be kept out of comparisons.
func Outliers(nights [][]NodeValue) []NodeEffect {
	var streak map[string]int
	var out []NodeEffect
	for _, values := range nights {
		effects := nodeEffects(values)
		limit := outlierLimit(effects)
		next := map[string]int{}
		out = out[:0]
		for _, e := range effects {
			e.Limit = limit
			if math.Abs(e.Effect) <= limit {
				continue
			}
			next[e.Node] = streak[e.Node] + 1
			e.Nights = next[e.Node]
			e.Quarantine = e.Nights >= 2
			word := "slower"
			if e.Effect < 0 {
				word = "faster"
			}
			e.Advice = fmt.Sprintf("%s is %.1f %% %s than the other nodes over %d settings", e.Node, 100*math.Abs(e.Effect), word, e.Settings)
			if e.Quarantine {
				e.Advice += fmt.Sprintf(", %d nights running: keep it out of comparisons and look at clocks, cooling, ECC and NUMA", e.Nights)
			} else {
				e.Advice += ": watch it"
			}
			out = append(out, e)
		}
		streak = next
	}
	return slices.Clone(out)
}

func nodeEffects(values []NodeValue) []NodeEffect {
	byNode := map[string]map[string][]float64{}
	for _, v := range values {
		if byNode[v.Node] == nil {
			byNode[v.Node] = map[string][]float64{}
		}
		byNode[v.Node][v.Setting] = append(byNode[v.Node][v.Setting], v.Value)
	}
	var out []NodeEffect
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		settings := byNode[node]
		if len(settings) < minSettings {
			continue
		}
		var medians []float64
		for _, s := range slices.Sorted(maps.Keys(settings)) {
			medians = append(medians, stats.Median(settings[s]))
		}
		out = append(out, NodeEffect{Node: node, Effect: math.Expm1(stats.Median(medians)), Settings: len(settings)})
	}
	return out
}

func outlierLimit(effects []NodeEffect) float64 {
	all := make([]float64, len(effects))
	for i, e := range effects {
		all[i] = e.Effect
	}
	sigma := 0.0
	if len(all) >= 4 { // of fewer nodes one outlier is most of the spread
		sigma = stats.MADSigma(all)
	}
	return max(0.02, 3*sigma)
}

// Reference judges the reference setting of one node against that node's own
// earlier nights: the cheapest drift alarm there is.
type Reference struct {
	Node   string  `json:"node"`
	Metric string  `json:"metric"`
	Change float64 `json:"change"` // relative, worse positive
	P      float64 `json:"p"`      // one-sided
	Nights int     `json:"nights"`
	Drift  bool    `json:"drift"`
}

// ReferenceDrift compares the last night of the reference series with the earlier
// ones, node by node. A node needs five earlier nights.
func ReferenceDrift(nights []Night, metric string) []Reference {
	byNode := map[string][]float64{}
	tonight := map[string]float64{}
	for i, n := range nights {
		x := stats.Logs(n.Values[metric])
		if len(x) != len(n.Nodes) || !finite(x) {
			continue
		}
		here := map[string][]float64{}
		for k, v := range x {
			here[n.Nodes[k]] = append(here[n.Nodes[k]], worse(metric)*v)
		}
		for node, v := range here {
			if i == len(nights)-1 {
				tonight[node] = stats.Mean(v)
			} else {
				byNode[node] = append(byNode[node], stats.Mean(v))
			}
		}
	}
	out := []Reference{}
	for _, node := range slices.Sorted(maps.Keys(tonight)) {
		earlier := byNode[node]
		if len(earlier) < minNights {
			continue
		}
		t := stats.Predictive(earlier, tonight[node])
		change := math.Expm1(tonight[node] - stats.Mean(earlier))
		out = append(out, Reference{
			Node: node, Metric: metric, Change: change, P: t.P, Nights: len(earlier), Drift: t.P < screenP && change > 0.01,
		})
	}
	return out
}
