package loadgen

import (
	"slices"
	"testing"
	"time"
)

// Requests leave at absolute times: never before them, and without drift. How
// late a busy machine lets a thread wake is not asserted here: make bench-load
// states it beside a bare thread in the same run.
func TestRun_SendsAtAbsoluteTimes(t *testing.T) {
	t.Parallel()
	s := serve(t, "tcp", streamTokens(4, time.Millisecond))
	rec := offer(t, s, load(400, 2, 4))
	var early, late []int64
	for i, r := range rec.Requests {
		if r.TDispatch == nil {
			continue
		}
		lag := *r.TDispatch - r.TIntended
		if lag < 0 {
			t.Errorf("request %d left %d ns before its time", r.Index, -lag)
		}
		if i < len(rec.Requests)/2 {
			early = append(early, lag)
		} else {
			late = append(late, lag)
		}
	}
	// Drift would move every later request; a busy machine moves some.
	if first, second := slices.Min(early), slices.Min(late); second > first+20_000_000 {
		t.Errorf("the schedule drifts: the least lag is %d ns in the first half, %d ns in the second", first, second)
	}
}
