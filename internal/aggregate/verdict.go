package aggregate

import (
	"math"
	"slices"

	"sbench/internal/metrics"
	"sbench/internal/stats"
)

// Verdict is what a setting's numbers are worth.
type Verdict string

// The verdicts.
const (
	Precise   Verdict = "precise"    // every gating metric is within the target
	Noisy     Verdict = "noisy"      // one is not
	Unknown   Verdict = "unknown"    // one has no interval
	NodeBound Verdict = "node-bound" // nodes differ by more than runs do: other nodes may differ too
	Bimodal   Verdict = "bimodal"    // two modes: the mean is not one thing
)

// DefaultTarget is the relative half-width of the 95 % interval that is precise
// where a sweep asks for no other: two such intervals tell 0 from 5 %.
const DefaultTarget = 0.025

// judge adds the verdicts and what has to be said about them.
func (s *Summary) judge(in Input, runs []Run) {
	target, gating := in.Target, in.Gating
	if target == 0 {
		target = DefaultTarget
	}
	if gating == nil {
		gating = []string{throughputMetric, tailMetric}
	}
	worst, judged := Precise, false
	nodeBound, bimodal := false, false
	for _, name := range gating {
		m := s.Metrics[overRunsName(name)]
		if m.N == 0 {
			continue // a workload that has no such metric
		}
		judged = true
		switch {
		case m.RelativeCI == nil:
			worst = Unknown
		case *m.RelativeCI > target && worst == Precise:
			worst = Noisy
		}
		x, node, ok := positive(name, runs)
		if !ok {
			continue
		}
		if e := stats.NodeEffect(x, node); e.Bound {
			nodeBound = true
			s.warn(WarnNodeBound, "%s differs between the %d nodes by %s, between runs on one by %s: the interval says little about other nodes",
				name, e.Nodes, percent(e.SigmaNode), percent(e.SigmaRun))
		}
		if modes := stats.Bimodality(x); modes.Bimodal {
			bimodal = true
			s.warn(WarnBimodal, "%s has two modes: %.0f %% of the runs near %.4g, the others near %.4g; their mean is not one thing",
				name, 100*modes.HighShare, modes.High, modes.Low)
		} else if h := in.History[name].Modes; h.Bimodal {
			bimodal = true
			s.warn(WarnBimodal, "%s had two modes in earlier nights, %s apart; few runs may be of one of them", name, percent(h.High/h.Low-1))
		}
	}
	if !judged {
		worst = Unknown
	}
	s.Verdicts = []Verdict{worst}
	if nodeBound {
		s.Verdicts = append(s.Verdicts, NodeBound)
	}
	if bimodal {
		s.Verdicts = append(s.Verdicts, Bimodal)
	}
}

// overRunsName is what a metric of one run is called over runs.
func overRunsName(name string) string {
	if m, ok := metrics.Find(name); ok {
		if num, _ := m.Quantile(); num > 0 {
			return name + MeanOfRunsSuffix
		}
	}
	return name
}

// positive are the values of a metric with their nodes, in an order that does not
// depend on the runs'; not ok where a run has none.
func positive(name string, runs []Run) (x []float64, node []string, ok bool) {
	type value struct {
		v    float64
		node string
	}
	var list []value
	for _, r := range runs {
		v := r.Metrics[name]
		if v == nil || !finite(*v) || !(*v > 0) || math.IsInf(math.Log(*v), 0) {
			return nil, nil, false
		}
		list = append(list, value{*v, r.place()})
	}
	slices.SortFunc(list, func(a, b value) int {
		switch {
		case a.v < b.v || a.v == b.v && a.node < b.node:
			return -1
		case a == b:
			return 0
		}
		return 1
	})
	for _, e := range list {
		x, node = append(x, e.v), append(node, e.node)
	}
	return x, node, len(x) > 0
}
