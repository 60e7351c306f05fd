package reuse_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/reuse"
)

func candidates(n int, stratum string, fresh bool) []reuse.Candidate {
	var list []reuse.Candidate
	for i := range n {
		list = append(list, reuse.Candidate{Hash: fmt.Sprintf("%s-%v-%d", stratum, fresh, i), Stratum: stratum, Fresh: fresh})
	}
	return list
}

func count(actions map[string]reuse.Action) map[reuse.Action]int {
	n := map[reuse.Action]int{}
	for _, a := range actions {
		n[a]++
	}
	return n
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		list  []reuse.Candidate
		share float64
		want  map[reuse.Action]int
	}{
		{"nothing", nil, 0.02, map[reuse.Action]int{}},
		{"nothing fresh", candidates(3, "a", false), 0.02, map[reuse.Action]int{reuse.Run: 3}},
		{"one canary at least", candidates(4, "a", true), 0.02, map[reuse.Action]int{reuse.Carry: 3, reuse.Canary: 1}},
		{"alone", candidates(1, "a", true), 0.02, map[reuse.Action]int{reuse.Canary: 1}},
		{"two of twenty", candidates(20, "a", true), 0.02, map[reuse.Action]int{reuse.Carry: 18, reuse.Canary: 2}},
		{"2 % of 6,000", candidates(6000, "a", true), 0.02, map[reuse.Action]int{reuse.Carry: 5880, reuse.Canary: 120}},
		{"none wanted", candidates(4, "a", true), 0, map[reuse.Action]int{reuse.Carry: 4}},
		{"all wanted", candidates(4, "a", true), 1, map[reuse.Action]int{reuse.Canary: 4}},
		{"each stratum", append(candidates(5, "a", true), candidates(5, "b", true)...), 0.02, map[reuse.Action]int{reuse.Carry: 8, reuse.Canary: 2}},
	} {
		if diff := cmp.Diff(tc.want, count(reuse.Decide(tc.list, tc.share, 20000))); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
}

// The order of the settings decides nothing; what is not fresh is run; a stratum
// that is skipped has a canary.
func TestDecide_Properties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var list []reuse.Candidate
		for i := range rapid.IntRange(0, 60).Draw(t, "n") {
			list = append(list, reuse.Candidate{
				Hash: fmt.Sprint(i), Stratum: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "stratum"), Fresh: rapid.Bool().Draw(t, "fresh"),
			})
		}
		share, day := rapid.Float64Range(0.001, 1).Draw(t, "share"), rapid.Int64Range(0, 1<<40).Draw(t, "day")
		got := reuse.Decide(list, share, day)
		if diff := cmp.Diff(got, reuse.Decide(rapid.Permutation(list).Draw(t, "shuffled"), share, day)); diff != "" {
			t.Fatal(diff)
		}
		carried, canaries := map[string]bool{}, map[string]bool{}
		for _, c := range list {
			if (got[c.Hash] == reuse.Run) == c.Fresh {
				t.Fatalf("%+v: %s", c, got[c.Hash])
			}
			carried[c.Stratum] = carried[c.Stratum] || got[c.Hash] == reuse.Carry
			canaries[c.Stratum] = canaries[c.Stratum] || got[c.Hash] == reuse.Canary
		}
		for s := range carried {
			if carried[s] && !canaries[s] {
				t.Fatalf("stratum %s is skipped without a canary", s)
			}
		}
	})
}

// In the long run every setting has its turn, and a sixth is always there.
func TestDecide_Rotates(t *testing.T) {
	t.Parallel()
	list := candidates(300, "a", true)
	turns := map[string]int{}
	const days = 200
	for day := range int64(days) {
		for h, a := range reuse.Decide(list, 0.1, day) {
			if a == reuse.Canary {
				turns[h]++
			}
		}
	}
	always := 0
	for _, n := range turns {
		if n == days {
			always++
		}
	}
	if len(turns) != len(list) || always != 5 {
		t.Errorf("%d of %d settings had their turn, %d always", len(turns), len(list), always)
	}
}

func TestDeviates(t *testing.T) {
	t.Parallel()
	pair := func(before, after, cv float64, n int) reuse.Pair {
		return reuse.Pair{Before: reuse.Sample{N: n, Mean: before, StdDev: before * cv}, After: reuse.Sample{N: n, Mean: after, StdDev: after * cv}}
	}
	for _, tc := range []struct {
		name  string
		pairs []reuse.Pair
		n     int
		found bool
	}{
		{"none", nil, 0, false},
		{"equal", []reuse.Pair{pair(100, 100, 0.01, 5)}, 1, false},
		{"8 % at 1 %", []reuse.Pair{pair(100, 108, 0.01, 5)}, 1, true},
		{"8 % at 10 %", []reuse.Pair{pair(100, 108, 0.10, 5)}, 1, false},
		{"sure but small", []reuse.Pair{pair(100, 101, 0.0001, 5)}, 1, false},
		{"opposite ways", []reuse.Pair{pair(100, 108, 0.01, 5), pair(100, 100/1.08, 0.01, 5)}, 2, false},
		{"without spread", []reuse.Pair{pair(100, 110, 0, 5)}, 1, true},
		{"one run", []reuse.Pair{pair(100, 200, 0.01, 1)}, 0, false},
		{"no number", []reuse.Pair{pair(math.NaN(), 200, 0.01, 5), pair(0, 200, 0.01, 5)}, 0, false},
	} {
		got := reuse.Deviates(tc.pairs, 4)
		if got.Found != tc.found || got.Canaries != tc.n {
			t.Errorf("%s: got %+v", tc.name, got)
		}
	}
	// A single pair is Welch's statistic on the logarithms with pooled freedom:
	// ln 1.08 / sqrt(2·0.01²/5) = 12.169, on 8 degrees of freedom.
	if p := reuse.Deviates([]reuse.Pair{pair(100, 108, 0.01, 5)}, 1).P; math.Abs(p-1.9e-6) > 0.1e-6 {
		t.Errorf("p = %g", p)
	}
}

// Small common shifts are seen in the pool, and pure noise hardly ever is.
func TestDeviates_Pool(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	draw := func(mean, cv float64, n int) reuse.Sample {
		var sum, squares float64
		for range n {
			v := mean * (1 + cv*random.NormFloat64())
			sum += v
			squares += v * v
		}
		m := sum / float64(n)
		return reuse.Sample{N: n, Mean: m, StdDev: math.Sqrt((squares - sum*m) / float64(n-1))}
	}
	night := func(shift float64) bool {
		var pairs []reuse.Pair
		for range 30 {
			pairs = append(pairs, reuse.Pair{Before: draw(100, 0.02, 5), After: draw(100*shift, 0.02, 3)})
		}
		return reuse.Deviates(pairs, 4).Found
	}
	false0, found := 0, 0
	for range 500 {
		if night(1) {
			false0++
		}
		if night(1.04) {
			found++
		}
	}
	if false0 > 2 || found < 490 {
		t.Errorf("of 500 nights: %d false alarms, %d of a 4 %% shift found", false0, found)
	}
}
