package regress

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"sbench/internal/compare"
)

func row(hash string, latency ...float64) compare.Row {
	r := compare.Row{SettingHash: hash, SeriesHash: "s", HardwareClass: "real"}
	for i, l := range latency {
		t := 100 / l
		r.Runs = append(r.Runs, compare.Run{Repeat: i, Metrics: map[string]*float64{"ttft_p95": &l, "output_tokens_per_s": &t}})
	}
	return r
}

func night(setting string, latency ...float64) Night {
	n := Night{SettingHash: setting, Values: map[string][]float64{"ttft_p95": latency}}
	for range latency {
		n.Nodes = append(n.Nodes, "n1")
	}
	return n
}

func TestGate(t *testing.T) {
	t.Parallel()
	base := row("a", 1, 1.004, 0.997, 1.002, 0.998)
	for _, c := range []struct {
		name string
		now  compare.Row
		want Outcome
	}{
		{"unchanged", row("b", 1.001, 1.003, 0.998, 1.001, 0.999), Pass},
		{"slower by 8 %", row("b", 1.08, 1.083, 1.077, 1.081, 1.079), Regressed},
		{"slower by 2 %", row("b", 1.02, 1.022, 1.018, 1.021, 1.019), Pass},
		{"faster", row("b", 0.9, 0.902, 0.898, 0.901, 0.899), Pass},
		{"noisy", row("b", 0.9, 1.2, 1.1), Undecided},
		{"two runs", row("b", 1, 1.1), Undecided},
		{"nothing", compare.Row{SettingHash: "b", SeriesHash: "s", HardwareClass: "real"}, Missing},
	} {
		if v := Gate(base, Side{Row: c.now}, 0.05, false); v.Outcome != c.want {
			t.Errorf("%s: %s (%s), want %s", c.name, v.Outcome, v.Reason, c.want)
		}
	}
	// A known spread between nights makes the same difference undecided.
	wide := map[string]Spread{}
	for _, m := range compare.Gating() {
		wide[m] = Spread{Run: 0.003, RunDF: 40, Night: 0.03, Nights: 10}
	}
	slow := row("b", 1.08, 1.083, 1.077, 1.081, 1.079)
	if v := Gate(base, Side{Row: slow, Spread: wide}, 0.05, false); v.Outcome != Undecided || v.RunsNeeded == 0 && *v.Metrics[0].MDE < 0.05 {
		t.Errorf("nights differ by 3 %%: %+v", v)
	}
	if v := Gate(base, Side{Row: slow, Spread: wide}, 0.05, true); v.Outcome != Regressed || !v.Interleaved {
		t.Errorf("both sides in one night: %+v", v)
	}
	labelled := slow
	labelled.Findings = []string{"saturated"}
	if v := Gate(base, Side{Row: labelled}, 0.05, false); v.Outcome != Undecided {
		t.Errorf("a saturated engine: %s", v.Outcome)
	}
}

func TestSpreadOf(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var nights []Night
	for range 400 {
		effect := 0.02 * r.NormFloat64()
		var x []float64
		for range 5 {
			x = append(x, math.Exp(effect+0.01*r.NormFloat64()))
		}
		nights = append(nights, night("a", x...))
	}
	s := SpreadOf(nights, "ttft_p95")
	if math.Abs(s.Run-0.01) > 0.001 || math.Abs(s.Night-0.02) > 0.002 || s.Nights != 400 || s.RunDF != 1600 {
		t.Errorf("%+v", s)
	}
	if s := SpreadOf(nights[:4], "ttft_p95"); s.Night != 0 {
		t.Errorf("four nights tell how nights differ: %+v", s)
	}
}

// Of forty series one gets 8 % slower: it alone is found, run again and published.
func TestNight_PlantedSlowdown(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	var all []Series
	for i := range 40 {
		s := Series{Hash: fmt.Sprintf("s%02d", i), Stratum: "l4"}
		for n := range 20 {
			shift, setting := 0.0, "old"
			if n == 19 {
				setting = "new"
				if i == 7 {
					shift = math.Log1p(0.08)
				}
			}
			effect := 0.005 * r.NormFloat64()
			var x []float64
			for range 5 {
				x = append(x, math.Exp(shift+effect+0.01*r.NormFloat64()))
			}
			s.Nights = append(s.Nights, night(setting, x...))
		}
		all = append(all, s)
	}
	screened := Screen(all)
	if screened.Screened != 40 || len(screened.Drifts) != 0 {
		t.Fatalf("%+v", screened)
	}
	var list []Confirmation
	for _, c := range screened.Candidates {
		slower := 1.0
		if c.Series == "s07" {
			slower = 1.08
		}
		draw := func(hash string, k float64) compare.Row {
			var x []float64
			for range c.Runs {
				x = append(x, k*math.Exp(0.01*r.NormFloat64()))
			}
			return row(hash, x...)
		}
		list = append(list, Confirm(c, Fresh{Now: draw("new", slower), Before: draw("old", 1)}))
	}
	alerts := Publish(list)
	if len(alerts) != 1 || len(alerts[0].Series) != 1 || alerts[0].Series[0] != "s07" {
		t.Errorf("alerts %+v", alerts)
	}
}

// What shifts everything is one drift, not forty regressions.
func TestScreen_CommonShift(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 9))
	var all []Series
	for i := range 40 {
		s := Series{Hash: fmt.Sprintf("s%02d", i), Stratum: "l4"}
		for n := range 20 {
			shift := 0.0
			if n == 19 {
				shift = 0.05
			}
			s.Nights = append(s.Nights, night("a", math.Exp(shift+0.01*r.NormFloat64()), math.Exp(shift+0.01*r.NormFloat64()), math.Exp(shift+0.01*r.NormFloat64())))
		}
		all = append(all, s)
	}
	got := Screen(all)
	if len(got.Drifts) != 1 || math.Abs(got.Drifts[0].Shift-0.05) > 0.01 || len(got.Candidates) > 1 {
		t.Errorf("%+v", got)
	}
}

func TestOutliers(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 3))
	make1 := func(sweep int64, slow float64) []NodeValue {
		settings := map[string]Night{}
		for i := range 10 {
			n := Night{Values: map[string][]float64{}}
			var x []float64
			for _, node := range []string{"n1", "n2", "n3", "n4"} {
				k := 1.0
				if node == "n3" {
					k = slow
				}
				x = append(x, float64(i+1)*k*math.Exp(0.005*r.NormFloat64()))
				n.Nodes = append(n.Nodes, node)
			}
			n.Values["ttft_p95"] = x
			settings[fmt.Sprint("s", i)] = n
		}
		return Residuals(sweep, "ttft_p95", settings)
	}
	if got := Outliers([][]NodeValue{make1(1, 1), make1(2, 1)}); len(got) != 0 {
		t.Errorf("equal nodes: %+v", got)
	}
	one := Outliers([][]NodeValue{make1(1, 1), make1(2, 1.08)})
	if len(one) != 1 || one[0].Node != "n3" || one[0].Quarantine {
		t.Errorf("one night: %+v", one)
	}
	two := Outliers([][]NodeValue{make1(1, 1.08), make1(2, 1.08)})
	if len(two) != 1 || !two[0].Quarantine || two[0].Nights != 2 || math.Abs(two[0].Effect-0.08) > 0.01 {
		t.Errorf("two nights: %+v", two)
	}
}

func TestReferenceDrift(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(4, 4))
	var nights []Night
	for n := range 12 {
		var x []float64
		for _, node := range []string{"n1", "n2"} {
			k := 1.0
			if node == "n2" && n == 11 {
				k = 1.06
			}
			x = append(x, k*math.Exp(0.004*r.NormFloat64()))
		}
		nights = append(nights, Night{Values: map[string][]float64{"ttft_p95": x}, Nodes: []string{"n1", "n2"}})
	}
	got := ReferenceDrift(nights, "ttft_p95")
	if len(got) != 2 || got[0].Drift || !got[1].Drift || got[1].Node != "n2" {
		t.Errorf("%+v", got)
	}
}
