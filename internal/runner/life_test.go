package runner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/seal"
	"sbench/internal/setting"
)

// sharing makes a batch of three runs of settings that differ in their rate, and
// share a server; edit changes the third setting.
func sharing(t *testing.T, edit func(b *batch.Spec, third *setting.Setting)) *bench {
	t.Helper()
	b := newBench(t, func(_ *batch.Spec, s *setting.Setting) {
		s.Engine.ServerLife = setting.ServerLifeShared
		s.Engine.Args["prefix-cache-tokens"] = "4096"
		w := &s.Workload
		w.Warmup, w.Ramp, w.Duration, w.Drain = 0, 0, 500*time.Millisecond, time.Second
	})
	first := b.spec.Settings["h"]
	second, third := first, first
	second.Workload.Arrival.Rate, third.Workload.Arrival.Rate = 50, 60
	if edit != nil {
		edit(b.spec, &third)
	}
	b.spec.Settings["h2"], b.spec.Settings["h3"] = second, third
	run := b.spec.Tasks[0].Runs[0]
	for i, hash := range []string{"h2", "h3"} {
		run.ID, run.SettingHash = int64(8+i), hash
		b.spec.Tasks[0].Runs = append(b.spec.Tasks[0].Runs, run)
	}
	b.freeze()
	return b
}

// runAll runs the three in one process, as task.sh does.
func (b *bench) runAll(env ...string) *exec.Cmd {
	b.t.Helper()
	cmd := b.command("run", "--run", "7,8,9")
	cmd.Env = append(append(cmd.Env, "SBENCH_RECORD="+filepath.Join(b.dir, "record")), env...)
	cmd.Stderr = new(bytes.Buffer)
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	return cmd
}

// lifeOf is what the attempt of a run says of its server's life.
func (b *bench) lifeOf(run int64) (result.Manifest, fingerprint.Life) {
	b.t.Helper()
	dir := seal.Dir(b.attempts, run, 4711, 0)
	s, err := seal.Open(dir, seal.DefaultLimits())
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Close()
	data, err := s.Read(result.ResultFile)
	if err != nil {
		b.t.Fatalf("run %d: %v, %q", run, err, s.Manifest.Reasons)
	}
	row, err := resultfile.DecodeResult(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		b.t.Fatal(err)
	}
	var fp fingerprint.Fingerprint
	if err := json.Unmarshal(row.Fingerprint, &fp); err != nil {
		b.t.Fatal(err)
	}
	if _, err := s.Read(result.EngineLog); err != nil {
		b.t.Errorf("run %d has no log of the engine: %v", run, err)
	}
	return s.Manifest, fp.Engine.Life
}

// TestShared: three runs on one server. Each is an attempt of its own, says where
// in the server's life it is and that the prefix cache was emptied before it, and
// nothing is left at the end.
func TestShared(t *testing.T) {
	b := sharing(t, nil)
	cmd := b.runAll()
	_ = cmd.Wait()
	b.nothingLeft()
	var started string
	for i := range 3 {
		m, life := b.lifeOf(int64(7 + i))
		if m.ExitClass != lifecycle.ExitMeasured && m.ExitClass != lifecycle.ExitInvalid || !m.EnvVerified {
			t.Fatalf("run %d: %s %q\n%s", 7+i, m.ExitClass, m.Reasons, cmd.Stderr)
		}
		if i == 0 {
			started = life.Started
		}
		want := fingerprint.Life{Kind: "shared", Position: i, Started: started, Cache: "reset", CacheRoute: "/reset_prefix_cache"}
		if diff := cmp.Diff(want, life); diff != "" || started == "" {
			t.Errorf("run %d (-want +got):\n%s", 7+i, diff)
		}
	}
	text, err := os.ReadFile(filepath.Join(b.dir, "record"))
	if err != nil {
		t.Fatal(err)
	}
	record := batch.ParseRecord(text)
	if len(record.Runs) != 3 || record.Runs[2].Run != 9 || record.Runs[2].Ended.IsZero() || !record.Runs[0].Started.IsZero() {
		t.Errorf("record %q", text) // task.sh has noted the first one's start
	}
}

// TestShared_Apart: a run whose setting differs in more than the workload, and one
// after a server that cannot be emptied, get a server of their own.
func TestShared_Apart(t *testing.T) {
	b := sharing(t, func(_ *batch.Spec, third *setting.Setting) {
		third.Engine.Args = map[string]string{"decode-rate": "1000", "model": "sim-model"}
	})
	out, err := b.command("claim").Output()
	if err != nil || string(out) != "7,8 91\n9 91\n" {
		t.Fatalf("claim prints %q, %v", out, err)
	}
	for name, want := range map[string]string{"shared": "7,8,9 91\n", "run": "7 91\n8 91\n9 91\n"} {
		b := sharing(t, nil)
		for hash, s := range b.spec.Settings {
			s.Engine.ServerLife = setting.ServerLife(name)
			b.spec.Settings[hash] = s
		}
		b.freeze()
		if out, err := b.command("claim").Output(); err != nil || string(out) != want {
			t.Errorf("%s: claim prints %q, %v", name, out, err)
		}
	}
}

// TestShared_EngineDies: the server's death fails the run that it happens in; the
// next one gets a new server, and says so.
func TestShared_EngineDies(t *testing.T) {
	b := sharing(t, nil)
	for hash, s := range b.spec.Settings {
		s.Engine.Args = map[string]string{"decode-rate": "2000", "model": "sim-model", "fault": "die:at=3s"}
		if hash == "h" {
			s.Workload.Duration = 20 * time.Second
		}
		b.spec.Settings[hash] = s
	}
	b.freeze()
	cmd := b.runAll()
	_ = cmd.Wait()
	b.nothingLeft()
	if code := cmd.ProcessState.ExitCode(); code != lifecycle.ExitEngineDied.Code() {
		t.Errorf("exit status %d\n%s", code, cmd.Stderr)
	}
	m, err := seal.Verify(seal.Dir(b.attempts, 7, 4711, 0), seal.DefaultLimits())
	if err != nil || m.ExitClass != lifecycle.ExitEngineDied {
		t.Fatalf("first run: %s %q %v", m.ExitClass, m.Reasons, err)
	}
	if m, err := seal.Verify(seal.Dir(b.attempts, 8, 4711, 0), seal.DefaultLimits()); err != nil || m.ExitClass == lifecycle.ExitEngineDied && m.Attempt.EndedAt.Sub(m.Attempt.StartedAt) < time.Second {
		t.Errorf("second run: %s %q %v", m.ExitClass, m.Reasons, err)
	}
}

// TestShared_Terminated: a signal ends the run under way, the runs after it are not
// begun, and the server is gone.
func TestShared_Terminated(t *testing.T) {
	b := sharing(t, nil)
	s := b.spec.Settings["h2"]
	s.Workload.Duration = time.Hour
	b.spec.Settings["h2"] = s
	b.freeze()
	cmd := b.runAll()
	second := seal.Dir(b.attempts, 8, 4711, 0)
	eventually(t, "second measurement", func() bool {
		for _, dir := range seal.Partials(second) {
			log, err := os.ReadFile(filepath.Join(dir, result.RunnerLog))
			if err == nil && strings.Contains(string(log), "msg=identify") {
				return true
			}
		}
		return false
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	b.nothingLeft()
	if code := cmd.ProcessState.ExitCode(); code != lifecycle.ExitCancelled.Code() {
		t.Errorf("exit status %d\n%s", code, cmd.Stderr)
	}
	if m, err := seal.Verify(second, seal.DefaultLimits()); err != nil || m.ExitClass != lifecycle.ExitCancelled {
		t.Errorf("second run: %s %v", m.ExitClass, err)
	}
	if _, err := os.Stat(seal.Dir(b.attempts, 9, 4711, 0)); err == nil {
		t.Error("the third run was begun")
	}
	text, _ := os.ReadFile(filepath.Join(b.dir, "record"))
	if !strings.Contains(string(text), " skip 9 stopped\n") || !strings.Contains(string(text), fmt.Sprintf(" end 8 %d\n", lifecycle.ExitCancelled.Code())) {
		t.Errorf("record %q", text)
	}
}

// TestShared_NoTime: a further run that does not fit the task's time any more is
// left out, and the server ends.
func TestShared_NoTime(t *testing.T) {
	b := sharing(t, nil)
	cmd := b.runAll(fmt.Sprintf("SBENCH_DEADLINE=%d", time.Now().Add(30*time.Second).Unix()))
	_ = cmd.Wait()
	b.nothingLeft()
	text, _ := os.ReadFile(filepath.Join(b.dir, "record"))
	if !strings.Contains(string(text), " skip 8 time\n") || !strings.Contains(string(text), " skip 9 time\n") {
		t.Errorf("record %q\n%s", text, cmd.Stderr)
	}
	if _, life := b.lifeOf(7); life.Position != 0 {
		t.Errorf("life %+v", life)
	}
}
