package web_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"sbench/internal/api"
)

// BenchmarkSubmit is the admission of 6,000 settings and 30,000 runs: parsing,
// expanding, hashing, planning and storing. The targets are 5 s and 300 MB.
func BenchmarkSubmit(b *testing.B) {
	e := newEnv(b)
	e.artefacts()
	list := func(n int, unit string) string {
		words := make([]string, n)
		for i := range words {
			words[i] = fmt.Sprint(i+1, unit)
		}
		return "[" + strings.Join(words, ", ") + "]"
	}
	head, _, _ := strings.Cut(sweepText, "matrix:")
	req := request("")
	req.File = strings.Replace(head, "repeats: 3", "repeats: 5", 1) +
		"matrix:\n  workload.arrival.rate: " + list(20, "/s") + "\n  engine.args.parallel: " + list(30, "") + "\n  workload.seed: " + list(10, "") + "\n"
	n := 0
	for b.Loop() {
		n++
		req.IdempotencyKey = fmt.Sprintf("benchmark-%020d", n)
		resp := post[api.SubmitResponse](e, "ada", "/v1/sweeps", req)
		if resp.Plan.Settings != 6000 || resp.Plan.Runs != 30_000 {
			b.Fatalf("got %d settings, %d runs", resp.Plan.Settings, resp.Plan.Runs)
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapSys)/1e6, "MB-heap")
}
