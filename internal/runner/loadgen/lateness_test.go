package loadgen

import (
	"slices"
	"testing"
	"time"
)

func TestRun_SendsOnTime(t *testing.T) {
	s := serve(t, "tcp", streamTokens(4, time.Millisecond))
	for _, rate := range []float64{200, 1000} {
		rec := offer(t, s, load(rate, 2, 4))
		var late []int64
		for _, r := range rec.Requests {
			if r.TWritten != nil {
				late = append(late, *r.TWritten-r.TIntended)
			}
		}
		slices.Sort(late)
		n := len(late)
		t.Logf("%g/s: n %d p50 %d p99 %d max %d ns; harness %+v", rate, n, late[n/2], late[n*99/100], late[n-1], rec.Harness)
	}
}
