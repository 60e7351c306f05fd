package loadgen

import (
	"testing"
	"time"

	"sbench/internal/result"
)

func TestRun_EveryRequestIsAccountedFor(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "unix"} {
		s := serve(t, network, streamTokens(8, 2*time.Millisecond))
		rec := offer(t, s, load(100, 1, 8))
		counts := map[result.Outcome]int{}
		for _, r := range rec.Requests {
			counts[r.Outcome]++
			if r.Phase == result.PhaseTail {
				continue // cut off once everything measured had ended
			}
			if r.Outcome != result.OutcomeOK {
				t.Errorf("request %d (%s): %s: %s", r.Index, r.Phase, r.Outcome, r.Detail)
				continue
			}
			if r.TTok1 == nil || *r.TTok1 <= r.TIntended || len(r.EventTimes) != 8 || len(r.EventTokens) != 8 {
				t.Errorf("request %d: %+v", r.Index, r)
			}
		}
		if counts[result.OutcomeOK] < 80 {
			t.Errorf("%s: outcomes %v", network, counts)
		}
	}
}
