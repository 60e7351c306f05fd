package cli

import (
	"io"
	"strconv"
	"strings"
	"testing"

	"sbench/internal/api"
)

// bigSweep expands to 6,000 settings.
func bigSweep() []byte {
	list := func(n int, unit string) string {
		var words []string
		for i := range n {
			words = append(words, strconv.Itoa(i+1)+unit)
		}
		return "[" + strings.Join(words, ", ") + "]"
	}
	head, _, _ := strings.Cut(demoSweep, "matrix:")
	return []byte(head + "matrix:\n  workload.arrival.rate: " + list(20, "/s") + "\n  engine.args.parallel: " + list(30, "") + "\n  workload.seed: " + list(10, "") + "\n")
}

// BenchmarkSettings is sbench settings --json on 6,000 settings: parsing,
// expanding, hashing and printing. The target is below a second.
func BenchmarkSettings(b *testing.B) {
	text := bigSweep()
	for b.Loop() {
		f, _, err := parse("big.yaml", text)
		if err != nil {
			b.Fatal(err)
		}
		x, err := expand(f, "big.yaml", api.Options{}, nil)
		if err != nil {
			b.Fatal(err)
		}
		if len(x.Settings) != 6000 {
			b.Fatalf("%d settings", len(x.Settings))
		}
		if err := writeSettings(io.Discard, x.Settings); err != nil {
			b.Fatal(err)
		}
	}
}
