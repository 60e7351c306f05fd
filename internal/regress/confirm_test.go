package regress

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"sbench/internal/compare"
)

// past20 are twenty nights with a run on each of four nodes; n4 is always 3 % slower
// than the others.
func past20(r *rand.Rand) []Night {
	var nights []Night
	for range 20 {
		n := Night{SettingHash: "s", Values: map[string][]float64{}}
		effect := 0.004 * r.NormFloat64()
		for _, node := range []string{"n1", "n2", "n3", "n4"} {
			n.Nodes = append(n.Nodes, node)
			n.Values["ttft_p95"] = append(n.Values["ttft_p95"], math.Exp(effect+0.008*r.NormFloat64()+nature(node)))
		}
		nights = append(nights, n)
	}
	return nights
}

func nature(node string) float64 {
	if node == "n4" {
		return 0.03
	}
	return 0
}

// Where nothing pinned changed, a slowdown is the software's only if no single node
// explains it.
func TestConfirm_Cause(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		nodes     []string
		slower    func(node string) float64
		notSpread string
		confirmed bool
		cause     Cause
		reason    string
	}{
		"seen on every node": {
			nodes: []string{"n1", "n2", "n3", "n4", "n1"}, slower: func(string) float64 { return 0.08 },
			confirmed: true, cause: CauseSoftware, reason: "worse in 5 fresh runs",
		},
		"one node of two": {
			nodes: []string{"n1", "n2", "n1", "n2", "n1", "n1"}, slower: func(node string) float64 { return 0.09 * float64(b2i(node == "n1")) },
			cause: CauseNode, reason: "n1 alone",
		},
		"one node of its own nature": { // that the nights before were rarely on
			nodes: []string{"n4", "n4", "n4", "n4", "n4"}, slower: func(string) float64 { return 0 }, reason: "not seen again",
		},
		"one node is all there is": {
			nodes: []string{"n1", "n1", "n1", "n1", "n1"}, slower: func(string) float64 { return 0.08 }, notSpread: "n1 is the only usable node for it",
			confirmed: true, cause: CauseUnknown, reason: "the node or what runs on it, which one node cannot tell (n1 is the only usable node for it)",
		},
		"one node is left": {
			nodes: []string{"n1", "n1", "n1", "n1", "n1"}, slower: func(string) float64 { return 0.08 }, cause: CauseUnknown, reason: "all on one node",
		},
		"nothing": {
			nodes: []string{"n1", "n2", "n3", "n4", "n1"}, slower: func(string) float64 { return 0 }, reason: "not seen again",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(11, 12))
			f := Fresh{Nights: past20(r), NotSpread: tt.notSpread, Now: compare.Row{SettingHash: "s"}}
			for k, node := range tt.nodes {
				v := math.Exp(0.004*r.NormFloat64() + nature(node) + tt.slower(node))
				f.Now.Runs = append(f.Now.Runs, compare.Run{Repeat: k, Nodes: []string{node}, Metrics: map[string]*float64{"ttft_p95": &v}})
			}
			got := Confirm(Candidate{Series: "s", Metric: "ttft_p95", Tonight: "s", Before: "s"}, f)
			if got.Method != "predictive" || got.Confirmed != tt.confirmed || got.Cause != tt.cause || !strings.Contains(got.Reason, tt.reason) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A slow node among several is never taken for a slow setting, whichever it is and
// however many runs it got; a slow setting is found whatever its nodes.
func TestConfirm_Simulated(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(21, 22))
	const trials = 400
	blamed, found := 0, 0
	for range trials {
		nights := past20(r)
		draw := func(slower func(node string) float64) Confirmation {
			f := Fresh{Nights: nights, Now: compare.Row{SettingHash: "s"}}
			effect := 0.004 * r.NormFloat64()
			for k := range 8 {
				node := fmt.Sprint("n", k%4+1)
				v := math.Exp(effect + 0.008*r.NormFloat64() + nature(node) + slower(node))
				f.Now.Runs = append(f.Now.Runs, compare.Run{Repeat: k, Nodes: []string{node}, Metrics: map[string]*float64{"ttft_p95": &v}})
			}
			return Confirm(Candidate{Metric: "ttft_p95", Tonight: "s", Before: "s"}, f)
		}
		slow := fmt.Sprint("n", r.IntN(4)+1)
		if draw(func(node string) float64 { return 0.3 * float64(b2i(node == slow)) }).Confirmed {
			blamed++
		}
		if c := draw(func(string) float64 { return math.Log1p(0.06) }); c.Confirmed && c.Cause == CauseSoftware {
			found++
		}
	}
	if blamed > trials/100 || found < trials*95/100 {
		t.Errorf("of %d: %d times a node was taken for the setting, %d times a slow setting was found", trials, blamed, found)
	}
}
