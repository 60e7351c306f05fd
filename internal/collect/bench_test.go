package collect_test

import (
	"fmt"
	"testing"
	"time"

	"sbench/internal/collect"
)

// BenchmarkTick ingests sealed attempts of 1,000 requests each, with 100 s of
// telemetry of one GPU: all files are hashed, result and windows are decoded, and
// everything goes into the database and is summed up, for which the requests are
// hashed again and decoded.
func BenchmarkTick(b *testing.B) {
	const settings, repeats = 60, 5
	for _, size := range []struct {
		figure, target string
		events         int
	}{
		{"collect_attempts_per_s", ">=100", 4},
		{"collect_attempts_of_128_events_per_s", "-", 128},
	} {
		b.Run(fmt.Sprintf("events=%d", size.events), func(b *testing.B) {
			best := time.Duration(1 << 62)
			for b.Loop() {
				l := newLab(b, settings, repeats)
				l.requests, l.events, l.samples = 1000, size.events, 9000
				for i, run := range l.runs {
					l.measured(run, int64(1000+i))
				}
				start := time.Now()
				if got := l.tick(); got != (collect.Report{Ingested: settings * repeats, Settled: settings}) {
					b.Fatalf("tick %+v", got)
				}
				best = min(best, time.Since(start))
			}
			rate := settings * repeats / best.Seconds()
			b.ReportMetric(rate, "attempts/s")
			fmt.Printf("\n%s %.0f %s\n", size.figure, rate, size.target)
		})
	}
}
