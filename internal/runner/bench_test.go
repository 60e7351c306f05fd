package runner

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"sbench/internal/batch"
	"sbench/internal/result"
	"sbench/internal/setting"
)

// BenchmarkRunOverhead measures what a run costs beyond its engine, its digests
// and its load: from the start of the runner's process to its end, less the
// phases that the runner itself times. It prints lines of name, value and
// target, for docs/performance.md; the best of the rounds counts, because what
// else the machine does only ever adds.
func BenchmarkRunOverhead(b *testing.B) {
	overhead, preflight := math.MaxFloat64, math.MaxFloat64
	var bed *bench
	for b.Loop() {
		bed = newBench(b, func(_ *batch.Spec, s *setting.Setting) {
			w := &s.Workload
			w.Warmup, w.Ramp, w.Duration, w.Drain = 0, 0, 300*time.Millisecond, 100*time.Millisecond
		})
		cmd, out := bed.start()
		began := time.Now()
		_ = cmd.Wait()
		total := time.Since(began).Seconds()
		log, err := os.ReadFile(filepath.Join(bed.attemptDir(), result.RunnerLog))
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		digests := seconds(b, log, "hashed")
		overhead = min(overhead, total-digests-seconds(b, log, "start")-seconds(b, log, "measure"))
		preflight = min(preflight, seconds(b, log, "verify")-digests)
	}
	b.ReportMetric(overhead, "s/run")
	fmt.Printf("\nrun_overhead_seconds %.3f <=0.3\n", overhead)
	fmt.Printf("preflight_seconds %.3f <=2\n", preflight)
}

// seconds is what the runner's log says that a phase took.
func seconds(t testing.TB, log []byte, phase string) float64 {
	t.Helper()
	m := regexp.MustCompile(`msg="?` + phase + `"? .*seconds=([0-9.e+-]+)`).FindSubmatch(log)
	if m == nil {
		t.Fatalf("the log has no phase %s:\n%s", phase, log)
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
