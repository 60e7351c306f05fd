package regress

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"sbench/internal/compare"
	"sbench/internal/stats"
)

// Cause is what a confirmation may say of where a slowdown comes from.
type Cause string

// The causes.
const (
	// CausePinned: a digest or a version differs, and both were run side by side.
	CausePinned Cause = "pinned"
	// CauseSoftware: nothing pinned differs, and it is seen on several nodes,
	// whichever of them is left out.
	CauseSoftware Cause = "software"
	// CauseNode: without one node nothing is left of it.
	CauseNode Cause = "node"
	// CauseUnknown: one node alone cannot tell itself from what runs on it.
	CauseUnknown Cause = "unknown"
)

// Confirmation is what the runs again say of a candidate.
type Confirmation struct {
	Candidate
	Confirmed bool `json:"confirmed"`
	// Published: confirmed, and kept under false-discovery control.
	Published bool `json:"published"`
	// Ratio of the fresh runs, worse above 1, and the one-sided p.
	Ratio     *float64 `json:"ratio"`
	ConfirmP  *float64 `json:"confirm_p"`
	PAdjusted *float64 `json:"p_adjusted"`
	Method    string   `json:"method"` // interleaved, predictive
	Cause     Cause    `json:"cause"`  // "" where nothing is worse
	// Nodes are those of the fresh runs of tonight's setting, by name. NotSpread says
	// why they are not on different ones where they should be; "" where they are, or
	// need not be.
	Nodes     []NodeShift `json:"nodes"`
	NotSpread string      `json:"not_spread"`
	Reason    string      `json:"reason"`
}

// NodeShift is what a node's fresh runs say.
type NodeShift struct {
	Node  string   `json:"node"` // the nodes of a gang are joined with commas
	Runs  int      `json:"runs"`
	Ratio *float64 `json:"ratio"` // to the nights before, worse above 1; nil where they are held against other runs
}

// Fresh are the runs again of a candidate: of tonight's setting, and of the one
// before where that is another.
type Fresh struct {
	Now, Before compare.Row
	// Nights are those before tonight; they are what the fresh runs are compared
	// with where nothing pinned changed.
	Nights []Night
	// Reference is how the reference setting's fresh runs differ from its own
	// history, as a log ratio: the night's and the node's part. 0 without one.
	Reference float64
	// NotSpread is why the runs of tonight's setting were not put on different
	// nodes; "" where they were.
	NotSpread string
}

// Confirm judges the fresh runs alone, so that the selection by the screen does
// not favour it. Where nothing pinned changed, it is a regression only if no single
// node explains it; on a site where one node is all there is, it is one of unknown
// cause.
func Confirm(c Candidate, f Fresh) Confirmation {
	out := Confirmation{Candidate: c, Nodes: []NodeShift{}}
	now := logsOf(f.Now, c.Metric)
	if len(now) < 3 {
		out.Reason = fmt.Sprintf("%d fresh runs: at least 3 are needed", len(now))
		return out
	}
	sign := worse(c.Metric)
	var shifts []shift
	var d, p float64
	if before := logsOf(f.Before, c.Metric); f.Before.SettingHash != f.Now.SettingHash && len(before) >= 3 {
		out.Method = "interleaved"
		t := stats.Welch(now, before)
		if sign < 0 {
			t.T = -t.T
		}
		d, p = sign*(stats.Mean(now)-stats.Mean(before)), t.Upper()
		for _, s := range freshByNode(f.Now, c.Metric) {
			out.Nodes = append(out.Nodes, NodeShift{Node: s.node, Runs: len(s.values)})
		}
	} else {
		out.Method, out.NotSpread = "predictive", f.NotSpread
		var nights int
		if shifts, nights, d, p = predict(c.Metric, f); nights < minNights {
			out.Reason = fmt.Sprintf("%d nights to compare with", nights)
			return out
		}
		for _, s := range shifts {
			ratio := math.Exp(s.d)
			out.Nodes = append(out.Nodes, NodeShift{Node: s.node, Runs: len(s.values), Ratio: &ratio})
		}
	}
	ratio := math.Exp(d)
	out.Ratio, out.ConfirmP = &ratio, &p
	switch {
	case p < confirmP && d >= math.Log1p(confirmBy):
		out.decide(shifts, len(now))
	case p < confirmP:
		out.Reason = fmt.Sprintf("%.1f %% worse: less than the %g %% that count", 100*(ratio-1), 100*confirmBy)
	default:
		out.Reason = fmt.Sprintf("not seen again: %+.1f %%, p = %.2g", 100*(ratio-1), p)
	}
	return out
}

// decide says what a slowdown that was seen again comes from.
func (out *Confirmation) decide(shifts []shift, runs int) {
	out.Confirmed = true
	out.Reason = fmt.Sprintf("%s is %.1f %% worse in %d fresh runs", out.Metric, 100*(*out.Ratio-1), runs)
	if out.Method == "interleaved" {
		out.Cause = CausePinned
		return
	}
	if len(shifts) < 2 {
		out.Cause = CauseUnknown
		if out.NotSpread != "" {
			out.Reason += ": the node or what runs on it, which one node cannot tell (" + out.NotSpread + ")"
			return
		}
		out.Confirmed = false
		out.Reason += ", all on one node: not told from the node"
		return
	}
	node, rest := without(shifts)
	if out.Cause = CauseSoftware; rest >= math.Log1p(confirmBy)/2 {
		return
	}
	out.Cause, out.Confirmed = CauseNode, false
	out.Reason = fmt.Sprintf("%s alone: without it %s is %+.1f %% worse", node, out.Metric, 100*math.Expm1(rest))
}

// shift is what the fresh runs on a node are worse by, as a log ratio.
type shift struct {
	node   string
	values []float64 // logarithms, as measured
	d      float64
}

// freshByNode are the fresh values of each node, by its name.
func freshByNode(r compare.Row, metric string) []shift {
	byNode := map[string][]float64{}
	for _, run := range r.Runs {
		if v := run.Metrics[metric]; v != nil && *v > 0 {
			node := strings.Join(run.Nodes, ",")
			byNode[node] = append(byNode[node], math.Log(*v))
		}
	}
	var out []shift
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		out = append(out, shift{node: node, values: byNode[node]})
	}
	return out
}

// without is the node that explains most, and what the others are worse by.
func without(shifts []shift) (node string, rest float64) {
	rest = math.Inf(1)
	for i := range shifts {
		sum, n := 0.0, 0
		for k, s := range shifts {
			if k != i {
				sum, n = sum+s.d*float64(len(s.values)), n+len(s.values)
			}
		}
		if others := sum / float64(n); others < rest {
			node, rest = shifts[i].node, others
		}
	}
	return node, rest
}

// past is what a node, or all nodes together, had in the nights before.
type past struct {
	means []float64 // of each night
	runs  int
}

func (p *past) add(x []float64) {
	p.means, p.runs = append(p.means, stats.Mean(x)), p.runs+len(x)
}

// predict holds the fresh runs against the nights before: those of a node against
// that node's own where it has enough of them, for nodes differ and the nights need
// not have been on the same ones. nights is how many nights the prediction is made
// of.
func predict(metric string, f Fresh) (shifts []shift, nights int, d, p float64) {
	var all past
	byNode := map[string]*past{}
	for _, n := range f.Nights {
		x := stats.Logs(n.Values[metric])
		if len(x) == 0 || !finite(x) {
			continue
		}
		all.add(x)
		if len(x) != len(n.Nodes) {
			continue
		}
		here := map[string][]float64{}
		for i, v := range x {
			here[n.Nodes[i]] = append(here[n.Nodes[i]], v)
		}
		for node, v := range here {
			if byNode[node] == nil {
				byNode[node] = &past{}
			}
			byNode[node].add(v)
		}
	}
	nights = len(all.means)
	if nights < minNights {
		return nil, nights, 0, 1
	}
	shifts = freshByNode(f.Now, metric)
	var now []float64
	for _, s := range shifts {
		now = append(now, s.values...)
	}
	n, base := float64(len(now)), 0.0 // base: variance of what is compared with, in runs
	for i := range shifts {
		s := &shifts[i]
		before := &all
		if own := byNode[s.node]; own != nil && len(own.means) >= minNights {
			before = own
			nights = min(nights, len(own.means))
		}
		s.d = worse(metric) * (stats.Mean(s.values) - stats.Mean(before.means) - f.Reference)
		share := float64(len(s.values)) / n
		d += share * s.d
		base += share * share / float64(before.runs)
	}
	spread := SpreadOf(f.Nights, metric)
	run := max(spread.Run*spread.Run, stats.Variance(now))
	se := math.Sqrt(spread.Night*spread.Night*(1+1/float64(nights)) + run*(1/n+base))
	return shifts, nights, d, stats.TCDF(-d/max(se, 1e-15), float64(nights-1))
}
