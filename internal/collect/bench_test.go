package collect_test

import (
	"fmt"
	"testing"
	"time"

	"sbench/internal/collect"
)

// BenchmarkTick ingests sealed attempts of 1,000 requests each: four files are
// hashed, two decoded, and everything goes into the database and is summed up.
func BenchmarkTick(b *testing.B) {
	const settings, repeats = 60, 5
	best := time.Duration(1 << 62)
	for b.Loop() {
		l := newLab(b, settings, repeats)
		l.requests = 1000
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
	fmt.Printf("\ncollect_attempts_per_s %.0f >=100\n", rate)
}
