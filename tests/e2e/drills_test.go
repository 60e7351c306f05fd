package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sbench/internal/api"
)

// drill is a fault in a run on the cluster, and what must come of it.
type drill struct {
	name  string
	fault string // of the simulated engine; "" for none
	edit  func(file string) string
	flags []string
	// act is done once the run is under way; nil does nothing.
	act func(t *testing.T, c *cluster, run api.Run)
	// classes are the exit classes of the attempts in their order; the last may
	// stand for any number more. A retry may be measured or, on a busy machine,
	// invalid: "measured" stands for both.
	classes []string
	state   string // of the run; "" is complete or, on a busy machine, failed
	reason  string // in the first reason of the first attempt, or of the run
}

func longRun(file string) string { return strings.ReplaceAll(file, "duration: 2s", "duration: 300s") }

// shortDrills are part of every test run; what takes minutes is in the soak.
func shortDrills() []drill {
	return []drill{
		{
			name: "engine never ready", fault: "loading:for=1h",
			classes: []string{"engine_start", "engine_start"}, state: "dead", reason: "ENGINE_START: the engine was not ready in time",
		},
		{
			name: "engine dies in the warm-up", fault: "die:at=10s",
			edit:    func(file string) string { return strings.ReplaceAll(file, "warmup: 500ms", "warmup: 60s") },
			classes: []string{"engine_died", "engine_died"}, state: "dead", reason: "ENGINE_DIED: ",
		},
		{
			name: "engine dies in the measurement", fault: "die:at=10s",
			edit:    func(file string) string { return strings.ReplaceAll(file, "duration: 2s", "duration: 60s") },
			classes: []string{"engine_died", "engine_died"}, state: "dead", reason: "ENGINE_DIED: ",
		},
		{
			name: "scancel", edit: longRun,
			act: func(t *testing.T, c *cluster, run api.Run) { c.must(t, "scancel", *run.SlurmJobID) },
			// Slurm says who cancelled it: it is not tried again behind a person's back.
			classes: []string{"cancelled"}, state: "cancelled", reason: "CANCELLED: told to stop",
		},
	}
}

// TestDrills injects one fault each into a run on the cluster, side by side, and
// checks the exit classes, the run's state, that nothing is left on the node and
// that no number came of it.
func TestDrills(t *testing.T) {
	for _, d := range shortDrills() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			d.run(t, env)
		})
	}
}

func (d drill) run(t *testing.T, c *cluster) {
	t.Helper()
	file := simSweep(t, "drill", 1, "[20/s]", "2s")
	if d.fault != "" {
		file = strings.ReplaceAll(file, `"64"]`, fmt.Sprintf(`"64", "--fault", %q]`, d.fault))
	}
	if d.edit != nil {
		file = d.edit(file)
	}
	id := c.submit(t, file, d.flags...)
	if d.act != nil {
		d.act(t, c, c.underWay(t, id))
	}
	c.settle(t, id)
	runs := c.runs(t, id)
	if len(runs) != 1 {
		t.Fatalf("%d runs, want 1", len(runs))
	}
	d.check(t, runs[0])
	c.clean(t)
	c.noFalseResult(t, id, runs[0])
}

// underWay waits until the sweep's only run measures.
func (c *cluster) underWay(t *testing.T, id string) api.Run {
	t.Helper()
	var run api.Run
	poll(t, 3*time.Minute, "the run of sweep "+id+" to be measured", func() bool {
		runs := c.runs(t, id)
		if len(runs) != 1 || runs[0].State != "running" || runs[0].SlurmJobID == nil {
			return false
		}
		run = runs[0]
		logs, _ := filepath.Glob(filepath.Join(c.dir, "results/attempts", strconv.FormatInt(run.ID, 10), "*", "runner.log"))
		hidden, _ := filepath.Glob(filepath.Join(c.dir, "results/attempts", strconv.FormatInt(run.ID, 10), ".*", "runner.log"))
		return slices.ContainsFunc(append(logs, hidden...), func(path string) bool {
			text, _ := os.ReadFile(path)
			return bytes.Contains(text, []byte("msg=identify"))
		})
	}, func() string { return c.exec(t, "squeue", "-a").stdout })
	return run
}

func (d drill) check(t *testing.T, run api.Run) {
	t.Helper()
	// The loss of a first start may be recorded after the second has ended.
	slices.SortStableFunc(run.Attempts, func(x, y api.Attempt) int {
		return cmp.Or(cmp.Compare(x.JobIDRaw, y.JobIDRaw), cmp.Compare(x.RestartCount, y.RestartCount))
	})
	var classes []string
	for _, a := range run.Attempts {
		class := "none"
		if a.ExitClass != nil {
			class = *a.ExitClass
		}
		classes = append(classes, class)
		if class != "measured" && (a.Valid != nil && *a.Valid) {
			t.Errorf("the attempt on job %s is %s and valid", a.SlurmJobID, class)
		}
	}
	// Slurm may fail to start a step on a busy machine: that is an attempt of its
	// own, which does not take the place of one that is wanted.
	wanted, match := d.classes, true
	for _, class := range classes {
		switch {
		case len(wanted) > 0 && fits(class, wanted[0]):
			wanted = wanted[1:]
		case class == "lost", fits(class, d.classes[len(d.classes)-1]):
		default:
			match = false
		}
	}
	match = match && len(wanted) == 0
	if !match {
		t.Errorf("attempts ended as %v, want %v: %s", classes, d.classes, explain(run))
	}
	if run.State != d.state && (d.state != "" || run.State != "complete" && run.State != "failed") {
		t.Errorf("the run is %s (%s), want %s", run.State, run.Reason, d.state)
	}
	if d.reason != "" && !strings.Contains(explain(run), d.reason) {
		t.Errorf("nothing says %q: %s", d.reason, explain(run))
	}
}

// fits says whether a class is the one that is wanted, or one of several with |
// between them.
func fits(class, want string) bool {
	return slices.Contains(strings.Split(want, "|"), class) || want == "measured" && class == "invalid"
}

func explain(run api.Run) string {
	var b strings.Builder
	fmt.Fprintf(&b, "run %d %s: %s", run.ID, run.State, run.Reason)
	for _, a := range run.Attempts {
		class := "?"
		if a.ExitClass != nil {
			class = *a.ExitClass
		}
		fmt.Fprintf(&b, "\n  job %s r%d on %v: %s sealed %v %q", a.SlurmJobID, a.RestartCount, a.Nodes, class, a.Sealed, a.Reasons)
	}
	return b.String()
}

// clean runs the shipped epilog check over the cluster's scratch folders and
// cache, as a node's epilog does.
func (c *cluster) clean(t *testing.T) {
	t.Helper()
	check := func() (string, error) {
		out, err := exec.Command("bash", filepath.Join(c.root, "sbatch/epilog-check.sh"), "--scratch", c.scratch(),
			"--cache", filepath.Join(c.dir, "cache")).CombinedOutput()
		return string(out), err
	}
	// The last step may still be on its way out when the run is settled.
	poll(t, 30*time.Second, "a clean node", func() bool { _, err := check(); return err == nil }, func() string { out, _ := check(); return out })
}

// noFalseResult: what the sweep shows is exactly what its valid attempts are.
func (c *cluster) noFalseResult(t *testing.T, id string, run api.Run) {
	t.Helper()
	valid := 0
	for _, a := range run.Attempts {
		if a.Valid != nil && *a.Valid {
			valid++
		}
	}
	for _, r := range decode[api.Results](t, c.must(t, "sbench", "results", id, "--json")).Settings {
		if r.NValid != valid {
			t.Errorf("n_valid %d, and %d attempts are valid", r.NValid, valid)
		}
		for name, m := range r.Metrics {
			if valid == 0 && m.Mean != nil {
				t.Errorf("%s has the mean %v without a valid run", name, *m.Mean)
			}
		}
	}
}
