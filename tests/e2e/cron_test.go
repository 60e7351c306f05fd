//go:build soak

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sbench/internal/api"
	"sbench/internal/devcluster"
)

// TestCron_TwoDaemons: of two daemons one fires what is due, once; the other goes on
// where it is killed, and the first where it comes back.
func TestCron_TwoDaemons(t *testing.T) {
	lab, err := devcluster.Open(env.dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "minutely.yaml")
	if err := os.WriteFile(file, []byte(simSweep(t, "minutely", 1, "[20/s]", "500ms")), 0o644); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(env.dir, "run", "second.sock")
	second := startSecond(t, lab, other)
	began := time.Now()
	env.must(t, "sbench", "cron", "add", "minutely", "--schedule", "* * * * *", "--overlap", "queue", file)
	t.Cleanup(func() { env.exec(t, "sbench", "cron", "rm", "minutely") })

	// fired waits until that many firings have become sweeps, as a daemon says.
	fired := func(n int, socket ...string) []api.CronFiring {
		t.Helper()
		var list []api.CronFiring
		show := append([]string{"sbench", "cron", "show", "minutely", "--json"}, socket...)
		poll(t, 4*time.Minute, "the schedule to fire", func() bool {
			out := env.exec(t, show...)
			if out.code != 0 { // a daemon that was just started
				return false
			}
			list = decode[api.Cron](t, out.stdout).Firings
			submitted := 0
			for _, f := range list {
				if f.SweepID != nil {
					submitted++
				}
			}
			return submitted >= n
		}, func() string { return env.exec(t, show...).stderr })
		return list
	}
	fired(1)
	if err := lab.Kill("sbenchd", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	fired(2, "--socket", other)
	if err := lab.Restart(t.Context(), "sbenchd"); err != nil {
		t.Fatal(err)
	}
	if err := second.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	fired(3)
	env.must(t, "sbench", "cron", "pause", "minutely")
	firings := fired(3)

	due, sweeps := map[int64]bool{}, map[int64]bool{}
	for _, f := range firings {
		if f.Manual || f.DueAt.Before(began.Add(-time.Minute)) || f.DueAt.Second() != 0 {
			t.Errorf("nothing was due: %+v", f)
		}
		if due[f.DueAt.Unix()] {
			t.Errorf("fired twice: %+v", f)
		}
		due[f.DueAt.Unix()] = true
		if f.SweepID != nil {
			sweeps[*f.SweepID] = true
		}
	}
	minutes := int(time.Since(began)/time.Minute) + 1
	if len(due) > minutes {
		t.Errorf("%d firings in %d minutes", len(due), minutes)
	}
	n := 0
	for _, s := range decode[[]api.SweepSummary](t, env.must(t, "sbench", "queue", "--all", "-t", "all", "--json")) {
		if s.Name == "minutely" {
			n++
		}
	}
	if n != len(sweeps) {
		t.Errorf("%d sweeps of %d firings", n, len(sweeps))
	}
}

// startSecond starts another daemon on the same database and site, with a socket of
// its own.
func startSecond(t *testing.T, lab *devcluster.Cluster, socket string) *exec.Cmd {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(env.dir, "etc", "sbenchd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "socket:") && !strings.HasPrefix(line, "listen:") {
			lines = append(lines, line)
		}
	}
	config := filepath.Join(env.dir, "etc", "second.yaml")
	if err := os.WriteFile(config, []byte(strings.Join(lines, "")+"socket: "+socket+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(env.dir, "second.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(env.bin("sbenchd"), "--config", config)
	cmd.Env, cmd.Stdout, cmd.Stderr = lab.Environ(), log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}
