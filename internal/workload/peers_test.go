package workload

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/result"
	"sbench/internal/setting"
)

// What other clients plan wrongly. The list of all such faults, with the tests that
// hold us to them, is in tests/conformance.

// Load points share nothing: no session, no prompt and no index of one appears in
// another, and each has the requests that its rate asks for, however many there are.
func TestPlan_LoadPointsShareNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := serving(setting.ProcessConstant, 0)
		w.Warmup, w.Ramp, w.Duration = time.Second, rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "ramp"), 5*time.Second
		w.Prompts.Turns = rapid.IntRange(1, 3).Draw(t, "turns")
		w.Ladder = rapid.SliceOfN(rapid.Float64Range(1, 40), 1, 6).Draw(t, "ladder")
		p, err := New(w, 0, Options{})
		if err != nil {
			t.Fatal(err)
		}
		owner, seeds := map[int32]int32{}, map[uint64]bool{}
		counts := make([]float64, len(w.Ladder))
		for i, r := range p.Requests {
			if int(r.Index) != i || seeds[r.Seed] {
				t.Fatalf("request %d has index %d, or another's prompt", i, r.Index)
			}
			seeds[r.Seed] = true
			if before, seen := owner[r.Session]; seen && before != r.Window {
				t.Fatalf("session %d is in load points %d and %d", r.Session, before, r.Window)
			}
			owner[r.Session] = r.Window
			if r.Phase == result.PhaseMeasure {
				counts[r.Window]++
			}
		}
		for i, rate := range w.Ladder {
			// A session is a whole number of requests.
			if want := rate * 5; counts[i] < want-1 || counts[i] > want+float64(w.Prompts.Turns) {
				t.Fatalf("load point %d of %g/s has %g requests in 5 s", i, rate, counts[i])
			}
		}
	})
}

// A trace is replayed in its order, whatever the order of its lines, and each line
// once.
func TestPlan_TraceInOrder(t *testing.T) {
	t.Parallel()
	w := serving(setting.ProcessTrace, 0)
	w.Arrival.TraceScale, w.Warmup, w.Ramp, w.Drain, w.Duration = 1, 0, 0, 0, 4*time.Second
	w.Input, w.Output = setting.Lengths{Distribution: setting.DistFile}, setting.Lengths{Distribution: setting.DistFile}
	trace := `{"timestamp": 3000, "input_length": 30, "output_length": 3}
{"timestamp": 1000, "input_length": 10, "output_length": 1}
{"timestamp": 5000, "input_length": 50, "output_length": 5}
{"timestamp": 1000, "input_length": 11, "output_length": 1}
{"timestamp": 4800, "input_length": 48, "output_length": 4}
`
	p, err := New(w, 0, Options{Trace: []byte(trace)})
	if err != nil {
		t.Fatal(err)
	}
	type one struct {
		Due   int64
		Input int32
	}
	var got []one
	for _, r := range p.Requests {
		got = append(got, one{r.Due, r.Input})
	}
	// The first line's time is the window's start; at 4 s the window has ended.
	want := []one{{0, 10}, {0, 11}, {2e9, 30}, {3.8e9, 48}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
