package sweep_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"sbench/internal/sweep"
)

// large is the manual's sweep with n×20×3 points and a condition.
func large(t testing.TB, n int) []byte {
	t.Helper()
	text := string(read(t, "testdata/manual.yaml"))
	head, _, _ := strings.Cut(text, "matrix:")
	var b bytes.Buffer
	b.WriteString(head)
	b.WriteString("matrix:\n  engine.args.max-num-seqs: [")
	for i := range n {
		fmt.Fprintf(&b, "%d, ", 8+i)
	}
	b.WriteString("]\n  workload.arrival.rate: [")
	for i := range 20 {
		fmt.Fprintf(&b, "%d/s, ", 4+i)
	}
	b.WriteString("]\n  zip:\n    - {parallel.tensor: [1, 2, 4], hardware.gpus: [1, 2, 4]}\n")
	b.WriteString("  where: [\"workload.arrival.rate < 1000 || hardware.gpu == 'h100-sxm'\"]\n")
	return b.Bytes()
}

// BenchmarkExpand6000 parses, expands, validates and hashes 6,000 settings.
func BenchmarkExpand6000(b *testing.B) {
	data := large(b, 100)
	b.ReportAllocs()
	for b.Loop() {
		e := expand(b, data, sweep.Options{})
		if len(e.Settings) != 6000 || e.Runs != 60000 {
			b.Fatalf("%d settings", len(e.Settings))
		}
	}
}
