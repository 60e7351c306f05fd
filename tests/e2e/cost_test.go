//go:build soak

package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"sbench/internal/api"
)

// TestCost: what a sweep cost is what sacct says, which may take minutes to say it.
func TestCost(t *testing.T) {
	begin := time.Now().Add(-time.Minute)
	id := env.submit(t, simSweep(t, "cost", 1, "[20/s]", "1s"))
	env.settle(t, id)
	wantCost(t, id, begin)
}

// wantCost: the GPU-seconds of a sweep of one run and one GPU are sacct's.
func wantCost(t *testing.T, id string, begin time.Time) {
	t.Helper()
	run := env.runs(t, id)[0]
	var row api.CostRow
	poll(t, 5*time.Minute, "the cost of sweep "+id, func() bool {
		report := decode[api.CostReport](t, env.must(t, "sbench", "cost", "--start", begin.UTC().Format(time.RFC3339), "--end",
			time.Now().Add(time.Minute).UTC().Format(time.RFC3339), "--by", "sweep", "--json"))
		for _, r := range report.Rows {
			if r.Sweep != nil && *r.Sweep == id && r.Complete {
				row = r
				return true
			}
		}
		return false
	}, func() string { return env.exec(t, "sbench", "cost", "--by", "sweep").stdout })
	held := int64(0)
	seen := map[int64]bool{}
	for _, a := range run.Attempts {
		if seen[a.JobIDRaw] {
			continue
		}
		seen[a.JobIDRaw] = true
		said := strings.TrimSpace(env.must(t, "sacct", "-D", "-X", "-n", "-P", "-j", strconv.FormatInt(a.JobIDRaw, 10), "--format=ElapsedRaw"))
		for line := range strings.Lines(said) {
			seconds, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil {
				t.Fatalf("sacct said %q", said)
			}
			held += seconds // of one GPU
		}
	}
	if row.BillableGPUSeconds != held || held == 0 || row.RunStarts != len(run.Attempts) {
		t.Errorf("%d GPU-seconds of %d starts, sacct says %d of %d", row.BillableGPUSeconds, row.RunStarts, held, len(run.Attempts))
	}
}
