package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/seal"
	"sbench/internal/setting"
	"sbench/internal/spool"
)

// claimAs runs `claim` as a job and returns what it prints.
func (b *bench) claimAs(job int, restart string) (string, error) {
	cmd := b.command("claim")
	cmd.Env = append(cmd.Env, fmt.Sprintf("SLURM_JOB_ID=%d", job), "SLURM_RESTART_COUNT="+restart)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return string(out), err
}

func (b *bench) sealAs(run, job int64, restart int, class lifecycle.ExitClass) {
	b.t.Helper()
	w, err := seal.Create(seal.Dir(b.attempts, run, job, restart))
	if err == nil {
		_, err = w.Seal(result.Manifest{Attempt: result.Attempt{RunID: run, JobIDRaw: job, RestartCount: restart}, ExitClass: class})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func twoRuns(s *batch.Spec, _ *setting.Setting) {
	s.Tasks[0].Runs = append(s.Tasks[0].Runs, batch.Run{ID: 8, SettingHash: "i", TimeLimit: time.Minute})
}

func newTwoRuns(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, nil)
	twoRuns(b.spec, nil)
	b.spec.Settings["i"] = b.spec.Settings["h"]
	b.freeze()
	return b
}

func TestClaim(t *testing.T) {
	b := newTwoRuns(t)
	for range 2 { // the same job again, as after a controller that forgot it
		if out, err := b.claimAs(4711, ""); err != nil || out != "7 91\n8 60\n" {
			t.Fatalf("%q, %v", out, err)
		}
	}
	if out, err := b.claimAs(4712, ""); err != nil || out != "" {
		t.Errorf("another job: %q, %v", out, err)
	}
	// A requeue of the same job skips what it has sealed, but not what was cut off.
	b.sealAs(7, 4711, 0, lifecycle.ExitMeasured)
	b.sealAs(8, 4711, 0, lifecycle.ExitCancelled)
	if out, err := b.claimAs(4711, "1"); err != nil || out != "8 60\n" {
		t.Errorf("requeued: %q, %v", out, err)
	}
	// What another job sealed is no reason to skip.
	b.sealAs(8, 99, 0, lifecycle.ExitMeasured)
	if out, err := b.claimAs(4711, "1"); err != nil || out != "8 60\n" {
		t.Errorf("sealed by another job: %q, %v", out, err)
	}
	b.sealAs(8, 4711, 1, lifecycle.ExitDriftNode)
	if out, err := b.claimAs(4711, "2"); err != nil || out != "" {
		t.Errorf("all sealed: %q, %v", out, err)
	}
	if left, _ := filepath.Glob(filepath.Join(b.dir, batch.ClaimsDir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// The daemon re-opens a task by taking the claim away.
	if err := os.Remove(spool.ClaimPath(b.dir, 0)); err != nil {
		t.Fatal(err)
	}
	if out, err := b.claimAs(4712, ""); err != nil || out != "7 91\n8 60\n" {
		t.Errorf("after the task was re-opened: %q, %v", out, err)
	}
}

// TestClaim_OneOfMany lets jobs race for a task.
func TestClaim_OneOfMany(t *testing.T) {
	b := newTwoRuns(t)
	outs := make([]string, 12)
	var wg sync.WaitGroup
	for i := range outs {
		wg.Go(func() {
			out, err := b.claimAs(100+i, "")
			if err != nil {
				t.Error(err)
			}
			outs[i] = out
		})
	}
	wg.Wait()
	winners := 0
	for _, out := range outs {
		if out != "" {
			winners++
		}
	}
	if winners != 1 {
		t.Errorf("%d jobs have the claim", winners)
	}
}

func TestClaim_Damaged(t *testing.T) {
	b := newBench(t, nil)
	if err := os.MkdirAll(filepath.Join(b.dir, batch.ClaimsDir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(spool.ClaimPath(b.dir, 0), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := b.claimAs(4711, ""); exitCode(err) != 0 && out != "" {
		t.Errorf("%q, %v", out, err)
	} else if err == nil {
		t.Error("a damaged claim was taken for one")
	}
}

// TestClaim_Hostile: what lies in the place of a claim or a manifest and is no
// plain file is not followed, not waited for, and not read without end.
func TestClaim_Hostile(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a pipe":   func(path string) error { return syscall.Mkfifo(path, 0o644) },
		"a device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o755) },
		"too large": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<40))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			manifest := filepath.Join(seal.Dir(b.attempts, 7, 4711, 0), result.ManifestName)
			claim := spool.ClaimPath(b.dir, 0)
			if err := errors.Join(os.MkdirAll(filepath.Dir(manifest), 0o755), os.MkdirAll(filepath.Dir(claim), 0o755), make(manifest)); err != nil {
				t.Fatal(err)
			}
			if out, err := b.claimAs(4711, "1"); err != nil || !strings.HasPrefix(out, "7 ") {
				t.Errorf("as the manifest: %q, %v", out, err)
			}
			if err := errors.Join(os.Remove(claim), make(claim)); err != nil {
				t.Fatal(err)
			}
			if out, err := b.claimAs(4711, ""); err == nil || out != "" || !strings.Contains(err.Error(), "task-0") {
				t.Errorf("as the claim: %q, %v", out, err)
			}
		})
	}
}

func TestMain_Usage(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "usage: sbench-runner"},
		{[]string{"version"}, 0, "sbench-runner "},
		{[]string{"help"}, 0, "13  the engine did not become ready"},
		{[]string{"dance"}, 2, `unknown command "dance"`},
		{[]string{"run"}, 2, "are needed"},
		{[]string{"run", "--batch", "x", "--digest", "y", "--task", "0"}, 2, "are needed"},
		{[]string{"claim", "--task", "x"}, 2, "invalid value"},
		{[]string{"claim", "--batch", "x", "--digest", "y", "--task", "0", "extra"}, 2, `unexpected argument "extra"`},
	} {
		cmd := exec.Command(program, tt.args...)
		cmd.Env = []string{roleEnv + "=runner"}
		out, err := cmd.CombinedOutput()
		if code := max(0, exitCode(err)); code != tt.code || !strings.Contains(string(out), tt.want) {
			t.Errorf("%q: exit status %d, want %d and %q:\n%s", tt.args, code, tt.code, tt.want, out)
		}
	}
}

// TestStart: a run that the daemon has given up is not begun.
func TestStart(t *testing.T) {
	b := newBench(t, nil)
	start := func(job int, restart string) (int, string) {
		cmd := b.command("start", "--run", "7")
		cmd.Env = append(cmd.Env, fmt.Sprintf("SLURM_JOB_ID=%d", job), "SLURM_RESTART_COUNT="+restart)
		out, err := cmd.CombinedOutput()
		return max(0, exitCode(err)), string(out)
	}
	for _, restart := range []string{"", "1"} {
		if code, out := start(4711, restart); code != 0 || out != "" {
			t.Fatalf("exit status %d: %s", code, out)
		}
	}
	starts, err := spool.Close(b.dir, 7, "its task has ended", time.Now())
	if err != nil || len(starts) != 2 || starts[1].JobIDRaw != 4711 || starts[1].Restart != 1 || starts[1].Node != "n1" {
		t.Fatalf("%+v, %v", starts, err)
	}
	if code, out := start(4711, "2"); code != lifecycle.ExitCancelled.Code() || !strings.Contains(out, "its task has ended") {
		t.Errorf("exit status %d: %s", code, out)
	}
}

func TestClaimFile(t *testing.T) {
	b := newBench(t, nil)
	if _, err := b.claimAs(4711, ""); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(spool.ClaimPath(b.dir, 0))
	var c spool.Job
	if err != nil || json.Unmarshal(text, &c) != nil || c.JobIDRaw != 4711 || c.Cluster != "lab" || c.Node != "n1" || c.At.IsZero() {
		t.Errorf("%s %v", text, err)
	}
}

// TestRun_OneOfTwoStarts: Slurm starts a job again whose node it believes lost. The
// start that the other came after gives its numbers up; one that finished before
// lets no other begin.
func TestRun_OneOfTwoStarts(t *testing.T) {
	b := newBench(t, nil)
	again := spool.Job{JobIDRaw: 4711, Restart: 1, Node: "n2"}
	cmd, out := b.start()
	eventually(t, "measurement", b.logContains(result.RunnerLog, "msg=identify"))
	if closed, err := spool.Start(b.dir, 7, again); err != nil || closed != "" {
		t.Fatal(closed, err)
	}
	_ = cmd.Wait()
	m := b.sealed()
	b.nothingLeft()
	if m.ExitClass != lifecycle.ExitCancelled || m.Valid || !strings.Contains(m.Reasons[0], "started the job again") || cmd.ProcessState.ExitCode() != lifecycle.ExitCancelled.Code() {
		t.Fatalf("%s, %q\n%s", m.ExitClass, m.Reasons, out)
	}
	if _, err := os.Stat(filepath.Join(b.attemptDir(), result.ResultFile)); err == nil {
		t.Error("its numbers were sealed")
	}

	b = newBench(t, nil)
	if code, out := b.run(); code != lifecycle.ExitMeasured.Code() && code != lifecycle.ExitInvalid.Code() {
		t.Fatalf("exit status %d\n%s", code, out)
	}
	if closed, err := spool.Start(b.dir, 7, again); err != nil || closed == "" {
		t.Errorf("begun beside a result: %q, %v", closed, err)
	}
}
