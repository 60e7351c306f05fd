//go:build soak

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// diskCluster is a cluster of its own whose shared folders and cache are file
// systems that can be filled and made read-only.
func diskCluster(t *testing.T) *cluster {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sb-disk-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{dir: filepath.Join(dir, "c"), root: env.root}
	t.Cleanup(func() { os.RemoveAll(dir) })
	dev := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(c.bin("sbench"), append([]string{"dev"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("dev %v: %v\n%s", args, err, out)
		}
	}
	up := []string{"up", "--dir", c.dir, "--nodes", "l4=1", "--apptainer", filepath.Join(c.root, ".cache/engine/apptainer")}
	dev(up...)
	t.Cleanup(func() { dev("down", "--dir", c.dir) })
	dev("down", "--dir", c.dir)
	for name, size := range map[string]string{"spool-sbench": "200m", "results": "64m", "cache": "4m"} {
		mount(t, filepath.Join(c.dir, name), size)
	}
	dev(up...)
	if err := c.configure(); err != nil {
		t.Fatal(err)
	}
	for file, folder := range map[string]string{"engine.sif": "images", "engine-drifted.sif": "images", "model.gguf": "models"} {
		if err := copyFile(filepath.Join(c.root, ".cache/engine", file), filepath.Join(c.dir, folder, file)); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func mount(t *testing.T, dir, size string) {
	t.Helper()
	if err := unix.Mount("sbench-test", dir, "tmpfs", 0, "mode=0755,size="+size); err != nil {
		t.Skipf("SKIPPED: a full disk needs a tmpfs, which this user cannot mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// remount changes a file system for every node, whatever their namespaces.
func (c *cluster) remount(t *testing.T, name string, flags uintptr, size string) {
	t.Helper()
	if err := unix.Mount("sbench-test", filepath.Join(c.dir, name), "tmpfs", unix.MS_REMOUNT|flags, "mode=0755,size="+size); err != nil {
		t.Fatal(err)
	}
}

// fill takes all the space that is left, and gives it back.
func (c *cluster) fill(t *testing.T, name string) (free func()) {
	t.Helper()
	path := filepath.Join(c.dir, name, "ballast")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for block := 1 << 20; block > 0; {
		if _, err := f.Write(make([]byte, block)); err != nil {
			block /= 2
		}
	}
	f.Close()
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// TestDisks: full and read-only file systems under the daemon and under runs.
func TestDisks(t *testing.T) {
	c := diskCluster(t)
	medium := func(file string) string { return strings.ReplaceAll(file, "duration: 2s", "duration: 20s") }
	t.Run("cache full", func(t *testing.T) {
		file, err := os.ReadFile(filepath.Join(c.root, "docs/examples/demo.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		id := c.submit(t, string(file), "--set", "image.digest="+digest(t, filepath.Join(c.dir, "images/engine.sif")),
			"--set", "model.checkpoint.digest="+digest(t, filepath.Join(c.dir, "models/model.gguf")), "--set", "workload.duration=2s", "--repeats", "1")
		c.settle(t, id)
		for _, run := range c.runs(t, id) {
			if len(run.Attempts) == 0 {
				t.Errorf("run %d has no attempt", run.ID)
			}
			for _, a := range run.Attempts {
				class := "none"
				if a.ExitClass != nil {
					class = *a.ExitClass
				}
				if class != "staging" && class != "drift_artefact" || a.Valid != nil && *a.Valid {
					t.Errorf("%s", explain(run))
				}
			}
			if text := explain(run); !strings.Contains(text, "the cache is full") && !strings.Contains(text, "ENV_DRIFT") {
				t.Errorf("nothing says why: %s", text)
			}
			c.noFalseResult(t, id, api.Run{})
		}
		c.clean(t)
	})
	t.Run("spool full at the submission", func(t *testing.T) {
		free := c.fill(t, "spool-sbench")
		id := c.submit(t, simSweep(t, "drill", 1, "[20/s]", "2s"))
		poll(t, time.Minute, "the daemon to notice", func() bool {
			text, _ := os.ReadFile(filepath.Join(c.dir, "log/sbenchd.out"))
			return strings.Contains(string(text), "no space left on device")
		}, func() string { return "nothing in its log" })
		if runs := c.runs(t, id); len(runs) != 1 || runs[0].State != "pending" && runs[0].State != "submitted" {
			t.Errorf("%+v", runs)
		}
		free()
		c.settle(t, id)
		drill{classes: []string{"measured"}}.check(t, c.runs(t, id)[0])
		c.clean(t)
	})
	t.Run("spool full during the run", func(t *testing.T) {
		drill{
			edit: medium,
			act: func(t *testing.T, c *cluster, _ api.Run) {
				free := c.fill(t, "spool-sbench")
				go func() { // until then the daemon gives no run up, nor tries one again
					time.Sleep(40 * time.Second)
					free()
				}()
			},
			// What a run writes into the spool are logs: the measurement is not in it.
			classes: []string{"measured"},
		}.run(t, c)
	})
	t.Run("results full during the run", func(t *testing.T) {
		drill{
			edit: medium,
			act: func(t *testing.T, c *cluster, run api.Run) {
				free := c.fill(t, "results")
				go func() { // the retry has its space again
					time.Sleep(30 * time.Second)
					free()
				}()
			},
			// What was written of the results is taken back, and makes room for saying so.
			classes: []string{"internal|lost", "measured"},
		}.run(t, c)
	})
	t.Run("results read-only", func(t *testing.T) {
		c.remount(t, "results", unix.MS_RDONLY, "64m")
		id := c.submit(t, simSweep(t, "drill", 1, "[20/s]", "2s"))
		poll(t, 4*time.Minute, "the first attempt to be given up", func() bool {
			runs := c.runs(t, id)
			return len(runs) == 1 && len(runs[0].Attempts) > 0 && runs[0].Attempts[0].ExitClass != nil
		}, func() string { return c.exec(t, "squeue", "-a").stdout })
		c.remount(t, "results", 0, "64m")
		c.settle(t, id)
		drill{classes: []string{"lost", "measured"}}.check(t, c.runs(t, id)[0])
		c.clean(t)
	})
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
