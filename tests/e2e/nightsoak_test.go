//go:build soak

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"sbench/internal/api"
)

// TestNights: of forty settings one gets 8 % slower, and it alone is published; a
// node that gets 8 % slower is named, and no setting is blamed for it; and the sweep
// submitted again unchanged runs only canaries.
func TestNights(t *testing.T) {
	r := rehearsal{
		T: t, name: "nights", settings: 40, repeats: 4, hardware: "gpu: h100-sxm, gpus: 1, nodes: 1, placement: node", nodes: "gpu1,gpu2,gpu3,gpu4", runCV: 0.008, nightCV: 0.004,
	}
	old := r.file(r.engine(""))
	r.past(old)
	env.must(t, "sbench", "cron", "add", r.name, "--schedule", "0 3 1 1 *", r.write(r.file(r.engine(slowSetting(17, 46.2)))))
	defer env.must(t, "sbench", "cron", "rm", r.name)
	id := r.night()
	n := r.judged(id, 5)
	found := r.published(id, n)
	if c, ok := found["17"]; !ok || len(found) != 1 || c.Method != "interleaved" {
		t.Errorf("published %+v", found)
	}
	t.Logf("%d candidates of %d series, %d run again", len(n.Report.Candidates), n.Series, len(n.Report.Confirmations))

	// A node drifts: the engine is what it was.
	slow := `[ "$SLURMD_NODENAME" = gpu2 ] && set -- "$@" --decode-rate 46.2`
	env.must(t, "sbench", "cron", "update", r.name, r.write(r.file(r.engine(slow))))
	id = r.night()
	n = r.judged(id, 0)
	named := map[string]bool{}
	for _, e := range n.Report.Nodes {
		named[e.Node] = true
		if e.Effect < 0.04 || e.Effect > 0.12 {
			t.Errorf("%+v", e)
		}
	}
	if len(named) != 1 || !named["gpu2"] {
		t.Errorf("outliers %+v", n.Report.Nodes)
	}
	if text := env.must(t, "sbench", "regressions", id); !strings.Contains(text, "node gpu2 is") {
		t.Errorf("%s", text)
	}

	again := strings.Replace(r.file(r.engine(slow)), "reuse: off", "reuse: {max_age: 30d, canary: 0.05}", 1)
	plan := decode[api.SubmitResponse](t, env.input(t, again, "sbench", "submit", "--test-only", "--json", "-").stdout).Plan
	if len(plan.Canaries) != 2 || len(plan.Skipped) != 38 || plan.Runs != 8 {
		t.Errorf("%d canaries, %d skipped, %d runs", len(plan.Canaries), len(plan.Skipped), plan.Runs)
	}
	unchanged := env.submit(t, again)
	env.settle(t, unchanged)
	canary := map[string]bool{}
	for _, run := range env.runs(t, unchanged) {
		canary[run.SettingHash] = true
	}
	if len(canary) != 2 {
		t.Errorf("%d settings ran: %s", len(canary), fmt.Sprint(canary))
	}
}
