package sweep_test

import (
	"os"
	"testing"

	"sbench/internal/sweep"
)

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// expand parses and expands a file that has no faults.
func expand(t testing.TB, data []byte, o sweep.Options) sweep.Expansion {
	t.Helper()
	f, list := sweep.Parse(data, "sweep.yaml")
	if list.HasErrors() {
		t.Fatalf("parse:\n%s", list.Text())
	}
	e, list := sweep.Expand(f, o)
	if list.HasErrors() {
		t.Fatalf("expand:\n%s", list.Text())
	}
	return e
}

// TestExpand_Manual: the example of the manual, in its order.
func TestExpand_Manual(t *testing.T) {
	t.Parallel()
	e := expand(t, read(t, "testdata/manual.yaml"), sweep.Options{})
	// 2 × 3 × 3 points; 8/s on the a100 is out (3), and a100 with tensor 1 (2).
	if len(e.Settings) != 13 || e.Runs != 130 {
		t.Errorf("%d settings, %d runs", len(e.Settings), e.Runs)
	}
	for _, s := range e.Settings {
		t.Log(s.Hash, s.Setting.Hardware.GPU, s.Setting.Workload.Arrival.Rate, s.Setting.Parallel.Tensor)
	}
	t.Log(e.Warnings.Text())
	t.Log(string(e.Settings[0].Setting.Canonical()))
}
