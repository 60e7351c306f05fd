//go:build soak

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sbench/internal/api"
	"sbench/internal/devcluster"
)

// longDrills take minutes: Slurm's own limits are in minutes, and what a killed
// runner sealed is waited for, because a shared file system may show it late.
func longDrills() []drill {
	return []drill{
		{
			name: "runner killed", edit: func(file string) string { return strings.ReplaceAll(file, "duration: 2s", "duration: 6s") },
			act: func(t *testing.T, c *cluster, run api.Run) { c.killRunner(t, run.ID) },
			// Nothing was sealed: the attempt is the allocation's.
			classes: []string{"lost", "measured"},
		},
		{
			name: "time limit", edit: func(file string) string { return strings.ReplaceAll(file, "duration: 2s", "duration: 100s") },
			act: func(t *testing.T, c *cluster, run api.Run) {
				c.must(t, "scontrol", "update", "jobid="+*run.SlurmJobID, "TimeLimit=1")
			},
			// The limit was nobody's choice here: the run is tried again with its own.
			classes: []string{"cancelled", "measured"}, reason: "CANCELLED: told to stop",
		},
	}
}

func TestLongDrills(t *testing.T) {
	for _, d := range longDrills() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			d.run(t, env)
		})
	}
}

// TestPreempted: Slurm takes the node for other work and starts the task again;
// what was measured so far is no result.
func TestPreempted(t *testing.T) {
	drill{
		flags: []string{"--qos", "low", "--nodelist", "l4-1"},
		edit:  func(file string) string { return strings.ReplaceAll(file, "duration: 2s", "duration: 20s") },
		act: func(t *testing.T, c *cluster, run api.Run) {
			c.must(t, "sbatch", "--parsable", "-p", "l4", "-w", "l4-1", "--gres=gpu:l4:4", "-q", "high", "-t", "1", "-o", "/dev/null", "--wrap", "sleep 2")
		},
		classes: []string{"cancelled", "measured"}, reason: "CANCELLED: told to stop",
	}.run(t, env)
}

// TestNodeLost: the node loses its power in the middle of the measurement.
func TestNodeLost(t *testing.T) {
	lab, err := devcluster.Open(env.dir)
	if err != nil {
		t.Fatal(err)
	}
	drill{
		flags: []string{"--nodelist", "l4-2"},
		edit:  func(file string) string { return strings.ReplaceAll(file, "duration: 2s", "duration: 20s") },
		act: func(t *testing.T, c *cluster, run api.Run) {
			if err := lab.Kill("l4-2", syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			poll(t, 2*time.Minute, "Slurm to notice", func() bool {
				return strings.Contains(strings.ToLower(c.must(t, "sinfo", "-h", "-n", "l4-2", "-o", "%T")), "down")
			}, func() string { return c.exec(t, "sinfo", "-N").stdout })
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if err := lab.Restart(ctx, "l4-2"); err != nil {
				t.Fatal(err)
			}
		},
		classes: []string{"lost", "measured"},
	}.run(t, env)
}

// killRunner kills the runner of a run, and it alone.
func (c *cluster) killRunner(t *testing.T, run int64) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
		if filepath.Base(args[0]) != "sbench-runner" || !strings.Contains(string(text), c.dir) {
			continue
		}
		if i := slices.Index(args, "--run"); i < 0 || i+1 >= len(args) || args[i+1] != strconv.FormatInt(run, 10) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no runner of run %d", run)
}
