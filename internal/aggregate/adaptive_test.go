package aggregate_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/aggregate"
	"sbench/internal/result"
	"sbench/internal/stats"
)

func adaptivePolicy() aggregate.Policy {
	return aggregate.Policy{Min: 3, Max: 10, Metrics: []string{"output_tokens_per_s"}, Target: 0.025}
}

// numbered gives runs their repeats.
func numbered(runs []aggregate.Run) []aggregate.Run {
	for i := range runs {
		runs[i].Repeat = i
	}
	return runs
}

func quietHistory() map[string]aggregate.History {
	return map[string]aggregate.History{"output_tokens_per_s": {History: stats.History{SD: 0.005, DF: 20}}}
}

func TestDecide_Outcomes(t *testing.T) {
	t.Parallel()
	quiet := []float64{100, 100.3, 99.8}
	undefined := numbered(runsOf("output_tokens_per_s", quiet...))
	undefined[1].Metrics["output_tokens_per_s"] = nil
	undefined[1].NullReasons = map[string]string{"output_tokens_per_s": "no request ended"}
	for name, test := range map[string]struct {
		counts  aggregate.Counts
		runs    []aggregate.Run
		history map[string]aggregate.History
		want    aggregate.Outcome
		add     int
		reason  string
	}{
		"quiet with history":    {aggregate.Counts{Planned: 3}, runsOf("output_tokens_per_s", quiet...), quietHistory(), aggregate.Reached, 0, "pooled"},
		"quiet without history": {aggregate.Counts{Planned: 3}, runsOf("output_tokens_per_s", quiet...), nil, aggregate.Open, 2, "2 runs added to 3"},
		"no run is valid yet":   {aggregate.Counts{Planned: 3, Failed: 3}, nil, nil, aggregate.Failed, 0, "3 failed and 0 are valid"},
		"one failed":            {aggregate.Counts{Planned: 3, Failed: 1}, runsOf("output_tokens_per_s", quiet[:2]...), quietHistory(), aggregate.Open, 1, "1 run added to 3"},
		"one is dead":           {aggregate.Counts{Planned: 3, Dead: 1}, runsOf("output_tokens_per_s", quiet[:2]...), quietHistory(), aggregate.Dead, 0, "can never succeed"},
		"one was cancelled":     {aggregate.Counts{Planned: 3, Cancelled: 1}, runsOf("output_tokens_per_s", quiet[:2]...), nil, aggregate.Cancelled, 0, "cancelled by a user"},
		"barred":                {aggregate.Counts{Planned: 3, Barred: true}, runsOf("output_tokens_per_s", quiet...), nil, aggregate.Cancelled, 0, "cancelled by a user"},
		"undefined":             {aggregate.Counts{Planned: 3}, undefined, quietHistory(), aggregate.Undefined, 0, "undefined in run 1 (no request ended)"},
		"noisy at the maximum": {
			aggregate.Counts{Planned: 10},
			runsOf("output_tokens_per_s", 100, 120, 80, 110, 95, 130, 70, 105, 99, 88),
			nil, aggregate.Exhausted, 0, "maximum of 10 runs",
		},
		"the last failed at the maximum": {
			aggregate.Counts{Planned: 10, Failed: 1},
			runsOf("output_tokens_per_s", 100, 120, 80, 110, 95, 130, 70, 105, 99),
			nil, aggregate.Exhausted, 0, "maximum of 10 runs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := aggregate.Decide(adaptivePolicy(), test.counts, numbered(test.runs), test.history)
			if d.Outcome != test.want || d.Add != test.add || !strings.Contains(d.Reason, test.reason) || d.NValid != len(test.runs) {
				t.Errorf("%s, %d added: %s", d.Outcome, d.Add, d.Reason)
			}
		})
	}
}

// What was decided on is what is published.
func TestDecide_IntervalIsPublished(t *testing.T) {
	t.Parallel()
	runs := numbered(runsOf("output_tokens_per_s", 100, 100.3, 99.8))
	d := aggregate.Decide(adaptivePolicy(), aggregate.Counts{Planned: 3}, runs, quietHistory())
	s := compute(t, aggregate.Input{NTotal: 3, Terminal: true, Runs: runs, HalfWidths: d.HalfWidths(), Gating: adaptivePolicy().Metrics})
	m := s.Metrics["output_tokens_per_s"]
	if m.Rule != "pooled" || !near(m.RelativeCI, math.Sinh(math.Log1p(*d.Metrics["output_tokens_per_s"].RelativeCI))*geometric(100, 100.3, 99.8) / *m.Mean) {
		t.Errorf("rule %s, relative %v, decided on %v", m.Rule, value(m.RelativeCI), value(d.Metrics["output_tokens_per_s"].RelativeCI))
	}
	if diff := cmp.Diff([]aggregate.Verdict{aggregate.Precise}, s.Verdicts); diff != "" {
		t.Errorf("verdicts: %s", diff)
	}
	// A result that came later: the interval of other runs is not taken for theirs.
	s = compute(t, aggregate.Input{NTotal: 4, Terminal: true, Runs: runsOf("output_tokens_per_s", 100, 100.3, 99.8, 101), HalfWidths: d.HalfWidths()})
	if m := s.Metrics["output_tokens_per_s"]; m.Rule != "t" {
		t.Errorf("rule %s", m.Rule)
	}
}

func geometric(x ...float64) float64 { return stats.GeometricMean(x) }

// Whatever becomes of the runs, the number of runs grows until it stops, at most
// to the maximum; the order in which results are read does not matter; and what is
// called reached is reached.
func TestProperty_DecideEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := adaptivePolicy()
		p.Metrics = append(p.Metrics, "ttft_p95")
		p.Min = rapid.IntRange(3, 5).Draw(t, "min")
		p.Max = p.Min + rapid.IntRange(1, 10).Draw(t, "more")
		noise := rapid.Float64Range(0, 0.1).Draw(t, "noise")
		history := map[string]aggregate.History{}
		if rapid.Bool().Draw(t, "has history") {
			for _, name := range p.Metrics {
				history[name] = aggregate.History{History: stats.History{SD: noise, DF: rapid.IntRange(1, 30).Draw(t, "df")}}
			}
		}
		c := aggregate.Counts{}
		var runs []aggregate.Run
		add := p.Min
		for round := 1; ; round++ {
			for range add {
				if rapid.IntRange(0, 9).Draw(t, "fails") == 0 {
					c.Failed++
					c.Planned++
					continue
				}
				x := math.Exp(noise * rapid.Float64Range(-2, 2).Draw(t, "x"))
				y := math.Exp(noise * rapid.Float64Range(-2, 2).Draw(t, "y"))
				runs = append(runs, aggregate.Run{
					AttemptID: int64(len(runs) + 1), Repeat: c.Planned, Nodes: []string{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "node")},
					Fingerprint: rapid.SampledFrom([]string{"f", "f", "f", "g"}).Draw(t, "fingerprint"),
					Metrics:     result.Metrics{"output_tokens_per_s": &x, "ttft_p95": &y},
				})
				c.Planned++
			}
			d := aggregate.Decide(p, c, runs, history)
			if diff := cmp.Diff(d.Reason, aggregate.Decide(p, c, rapid.Permutation(runs).Draw(t, "order"), history).Reason); diff != "" {
				t.Fatalf("order matters: %s", diff)
			}
			if (d.Outcome == aggregate.Open) != (d.Add > 0) || c.Planned+d.Add > p.Max || round > p.Max {
				t.Fatalf("round %d: %s adds %d to %d, at most %d", round, d.Outcome, d.Add, c.Planned, p.Max)
			}
			if d.Outcome == aggregate.Open {
				add = d.Add
				continue
			}
			for name, m := range d.Metrics {
				if d.Outcome == aggregate.Reached && (m.RelativeCI == nil || *m.RelativeCI > p.Target+1e-9) {
					t.Fatalf("reached, but %s is %v", name, value(m.RelativeCI))
				}
			}
			return
		}
	})
}

// Runs that share nodes which differ have the nodes' interval; nodes of one run
// each do not.
func TestCompute_SharedNodes(t *testing.T) {
	t.Parallel()
	runs := runsOf("output_tokens_per_s", 100, 110, 90, 100.2, 110.2, 90.2)
	apart := compute(t, aggregate.Input{NTotal: 6, Terminal: true, Runs: runs})
	for i := range runs {
		runs[i].Nodes = []string{string(rune('a' + i%3))}
	}
	shared := compute(t, aggregate.Input{NTotal: 6, Terminal: true, Runs: runs})
	a, b := apart.Metrics["output_tokens_per_s"], shared.Metrics["output_tokens_per_s"]
	if a.Rule != "t" || b.Rule != "nodes" || *b.RelativeCI < 2**a.RelativeCI || !near(b.Mean, *a.Mean) {
		t.Errorf("apart %s ±%v, shared %s ±%v", a.Rule, value(a.RelativeCI), b.Rule, value(b.RelativeCI))
	}
	if !slices.Contains(shared.Verdicts, aggregate.NodeBound) || slices.Contains(apart.Verdicts, aggregate.NodeBound) {
		t.Errorf("verdicts: apart %v, shared %v", apart.Verdicts, shared.Verdicts)
	}
	if !slices.ContainsFunc(shared.Warnings, func(w aggregate.Warning) bool {
		return w.Code == aggregate.WarnNodeBound && strings.Contains(w.Message, "3 nodes")
	}) {
		t.Errorf("warnings %v", shared.Warnings)
	}
}

func TestCompute_Verdicts(t *testing.T) {
	t.Parallel()
	two := []float64{100, 100.1, 99.9, 100.2, 99.8, 110, 110.1, 109.9, 110.2, 109.8}
	for name, test := range map[string]struct {
		values []float64
		want   []aggregate.Verdict
	}{
		"precise":  {[]float64{100, 100.1, 99.9, 100.2, 99.8}, []aggregate.Verdict{aggregate.Precise}},
		"noisy":    {[]float64{100, 120, 80, 110, 95}, []aggregate.Verdict{aggregate.Noisy}},
		"few":      {[]float64{100, 101}, []aggregate.Verdict{aggregate.Unknown}},
		"nothing":  {nil, []aggregate.Verdict{aggregate.Unknown}},
		"bimodal":  {two, []aggregate.Verdict{aggregate.Noisy, aggregate.Bimodal}},
		"infinite": {[]float64{100, 100, math.Inf(1)}, []aggregate.Verdict{aggregate.Unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := compute(t, aggregate.Input{NTotal: 10, Terminal: true, Runs: runsOf("output_tokens_per_s", test.values...)})
			if diff := cmp.Diff(test.want, s.Verdicts); diff != "" {
				t.Error(diff)
			}
		})
	}
	// Few runs of one mode look precise; the history knows better.
	old := stats.Bimodality(slices.Concat(two, two))
	s := compute(t, aggregate.Input{
		NTotal: 3, Terminal: true, Runs: runsOf("output_tokens_per_s", 100, 100.1, 99.9),
		History: map[string]aggregate.History{"output_tokens_per_s": {Modes: old}},
	})
	if diff := cmp.Diff([]aggregate.Verdict{aggregate.Precise, aggregate.Bimodal}, s.Verdicts); diff != "" {
		t.Error(diff)
	}
}

func TestHistories(t *testing.T) {
	t.Parallel()
	night := func(segment string, values ...float64) aggregate.Night {
		return aggregate.Night{Segment: segment, Runs: runsOf("output_tokens_per_s", values...)}
	}
	torn := night("a", 100, 500)
	torn.Runs[0].Metrics["output_tokens_per_s"] = nil
	h := aggregate.Histories([]aggregate.Night{night("a", 100, 101, 99), torn, night("b", 200, 202, 198)}, []string{"output_tokens_per_s", "ttft_p95"})
	if got := h["output_tokens_per_s"]; got.DF != 4 || got.SD < 0.009 || got.SD > 0.011 {
		t.Errorf("a step of 100 %% between segments is a spread of %v with %d degrees of freedom", got.SD, got.DF)
	}
	if got := h["ttft_p95"]; got.DF != 0 {
		t.Errorf("never measured: %+v", got)
	}
}
