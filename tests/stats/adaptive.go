package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"sbench/internal/stats"
)

// world draws one night of one setting: run i's logarithm around the true 0, the
// node that it ran on, and what the history says.
type world struct {
	name    string
	target  float64 // coverage in percent that has to be reached
	history func(r *rand.Rand) []float64
	night   func(r *rand.Rand) func(i int) (value float64, node string)
}

func logSD(cv float64) float64 { return math.Sqrt(math.Log1p(cv * cv)) }

// independent is a world whose runs come from one distribution.
func independent(name string, target float64, draw func(r *rand.Rand) float64) world {
	return world{
		name: name, target: target,
		history: func(r *rand.Rand) []float64 {
			x := make([]float64, 21)
			for i := range x {
				x[i] = draw(r)
			}
			return x
		},
		night: func(r *rand.Rand) func(int) (float64, string) {
			return func(i int) (float64, string) { return draw(r), fmt.Sprint(i) }
		},
	}
}

// t5 draws from Student's distribution with five degrees of freedom, scaled to a
// standard deviation of 1.
func t5(r *rand.Rand) float64 {
	var chi float64
	for range 5 {
		z := r.NormFloat64()
		chi += z * z
	}
	return r.NormFloat64() / math.Sqrt(chi/5) / math.Sqrt(5.0/3)
}

func bimodal(share, gap, within float64) func(r *rand.Rand) float64 {
	g := math.Log1p(gap)
	return func(r *rand.Rand) float64 {
		x := within*r.NormFloat64() - share*g
		if r.Float64() < share {
			x += g
		}
		return x
	}
}

// nodes is a world with node effects; the runs of a night are spread over so many
// nodes in turn, those of the history each over others.
func nodes(name string, target, nodeSD, runSD float64, spread int) world {
	w := independent(name, target, func(r *rand.Rand) float64 { return nodeSD*r.NormFloat64() + runSD*r.NormFloat64() })
	w.night = func(r *rand.Rand) func(int) (float64, string) {
		effects := make([]float64, spread)
		for i := range effects {
			effects[i] = nodeSD * r.NormFloat64()
		}
		return func(i int) (float64, string) {
			return effects[i%spread] + runSD*r.NormFloat64(), fmt.Sprint(i % spread)
		}
	}
	return w
}

// fresh is a world without a history.
func fresh(w world) world {
	w.name += "_fresh"
	w.history = func(*rand.Rand) []float64 { return nil }
	return w
}

// nights is a world with a common effect of the night. What a night's result
// claims is the night's own location, so that is what has to be covered.
func nights(name string, target, cv float64) world {
	run, night := logSD(cv), logSD(cv)/2
	return world{
		name: name, target: target,
		history: func(r *rand.Rand) []float64 {
			var x []float64
			for range 7 {
				effect := night * r.NormFloat64()
				for range 3 {
					x = append(x, effect+run*r.NormFloat64())
				}
			}
			return x
		},
		night: func(r *rand.Rand) func(int) (float64, string) {
			return func(i int) (float64, string) { return run * r.NormFloat64(), fmt.Sprint(i) }
		},
	}
}

func worlds() []world {
	var list []world
	for _, cv := range []float64{0.005, 0.01, 0.02, 0.05} {
		s := logSD(cv)
		list = append(list, independent(fmt.Sprintf("cv%g", 100*cv), 94, func(r *rand.Rand) float64 { return s * r.NormFloat64() }))
	}
	for _, cv := range []float64{0.02, 0.05} {
		s := logSD(cv)
		list = append(list, independent(fmt.Sprintf("t5_cv%g", 100*cv), 94, func(r *rand.Rand) float64 { return s * t5(r) }),
			nights(fmt.Sprintf("night_cv%g", 100*cv), 94, cv))
	}
	return append(list,
		nodes("node_per_run", 94, 0.02, 0.005, 20),
		nodes("three_nodes", 94, 0.02, 0.005, 3),
		fresh(nodes("three_nodes", 94, 0.02, 0.005, 3)),
		nodes("three_nodes_half", 94, 0.02/math.Sqrt2, 0.02/math.Sqrt2, 3),
		nodes("three_nodes_none", 94, 0, 0.02, 3),
		nodes("two_nodes", 0, 0.02, 0.005, 2), // two nodes say too little about the others: labelled few_nodes
		fresh(independent("cv2", 94, func(r *rand.Rand) float64 { return logSD(0.02) * r.NormFloat64() })),
		nodes("one_node", 0, 0.02, 0.005, 1), // no number of runs on one node covers the fleet: labelled one_node
		independent("bimodal_30_8", 94, bimodal(0.3, 0.08, 0.005)),
		independent("bimodal_10_20", 0, bimodal(0.1, 0.20, 0.01)), // published as two modes, not as a mean
	)
}

// used is what a rule made of the nights.
type used struct{ runs, covered, flagged float64 }

// adaptive lets sbench's own rule decide in reps nights, and two fixed numbers
// beside it.
func adaptive(w world, maxRuns, reps int, seed uint64) (rule, five, ten used) {
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a simulation is repeated by its seed
	for range reps {
		history := w.history(r)
		exp := make([]float64, len(history))
		for i, v := range history {
			exp[i] = math.Exp(v)
		}
		h := stats.History{}
		if len(history) > 1 {
			h = stats.History{SD: stats.StdDev(history), DF: len(history) - 1}
		}
		p := stats.Policy{Min: 3, Max: maxRuns, Target: 0.025, Widen: stats.Bimodality(exp).Bimodal}
		draw := w.night(r)
		var x []float64
		var on []string
		more := func(n int) {
			for len(x) < n {
				v, node := draw(len(x))
				x, on = append(x, math.Exp(v)), append(on, node)
			}
		}
		var s stats.Stop
		for s = stats.Decide(x, on, h, p); !s.Stop; s = stats.Decide(x, on, h, p) {
			more(s.Runs)
		}
		rule.runs += float64(len(x))
		if p.Widen {
			rule.flagged++
		}
		mean := stats.Mean(stats.Logs(x))
		if math.Abs(mean) <= s.HalfWidth {
			rule.covered++
		}
		more(10)
		for n, into := range map[int]*used{5: &five, 10: &ten} {
			into.runs += float64(n)
			if ci := stats.MeanInterval(stats.Logs(x[:n]), 0.95); ci.Low <= 0 && ci.High >= 0 {
				into.covered++
			}
		}
	}
	for _, u := range []*used{&rule, &five, &ten} {
		u.runs /= float64(reps)
		u.covered *= 100 / float64(reps)
		u.flagged *= 100 / float64(reps)
	}
	return rule, five, ten
}
