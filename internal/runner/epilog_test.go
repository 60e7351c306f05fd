package runner

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sbench/internal/batch"
	"sbench/internal/result"
	"sbench/internal/setting"
)

func epilog(t *testing.T, scratch string) (int, string) {
	t.Helper()
	cmd := exec.Command("bash", "../../sbatch/epilog-check.sh", "--scratch", scratch, "--cache", filepath.Join(scratch, "cache"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), stderr.String()
}

// TestEpilogCheck: the shipped script finds what a killed runner leaves, and
// nothing after a run that ended by itself.
func TestEpilogCheck(t *testing.T) {
	b := newBench(t, nil)
	scratch := filepath.Dir(b.dir)
	_, _ = b.run()
	if code, out := epilog(t, scratch); code != 0 {
		t.Errorf("after a run: exit status %d\n%s", code, out)
	}

	killed := newBench(t, func(b *batch.Spec, s *setting.Setting) {
		// What outlives a killed runner: a descendant that nobody else ends.
		script := filepath.Join(b.Node.TempDir, "engine.sh")
		text := "#!/bin/sh\nsetsid sleep 300 &\necho $! >" + b.Node.TempDir + "/left.pid\nexec " + s.Image.Path + " \"$@\"\n"
		if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
			panic(err)
		}
		s.Image.Path, s.Image.Digest = script, setting.Unpinned
		s.Workload.Duration *= 3600
	})
	scratch = filepath.Dir(killed.dir)
	cmd, _ := killed.start()
	eventually(t, "measurement", killed.logContains(result.RunnerLog, "msg=identify"))
	if code, out := epilog(t, scratch); code != 0 {
		t.Errorf("while a run is under way: exit status %d\n%s", code, out)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "engine gone", func() bool { return len(engines(t, scratch)) == 1 })
	code, out := epilog(t, scratch)
	if code != 1 || !strings.Contains(out, "scratch folder "+scratch) || !strings.Contains(out, "sleep 300") {
		t.Errorf("after a killed runner: exit status %d\n%s", code, out)
	}
	pid := bytes.TrimSpace(must(os.ReadFile(filepath.Join(scratch, "left.pid"))))
	if err := exec.Command("kill", "-9", string(pid)).Run(); err != nil {
		t.Error(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestEpilogClocks: the shipped script resets the job's devices, and no others.
func TestEpilogClocks(t *testing.T) {
	t.Parallel()
	helper := filepath.Join(t.TempDir(), "sbench-gpu")
	if err := os.WriteFile(helper, []byte("#!/bin/sh\necho \"$*\"\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		gpus, out string
		code      int
	}{
		{"0,3", "reset-clocks --gpus 0,3\n", 3}, {"", "", 0}, {"0;id", "", 2}, {"0-3", "", 2},
	} {
		cmd := exec.Command("bash", "../../sbatch/epilog-clocks.sh", helper)
		cmd.Env = append(os.Environ(), "SLURM_JOB_GPUS="+tt.gpus)
		out, _ := cmd.Output()
		if string(out) != tt.out || cmd.ProcessState.ExitCode() != tt.code {
			t.Errorf("GPUs %q: exit status %d, %q; want %d, %q", tt.gpus, cmd.ProcessState.ExitCode(), out, tt.code, tt.out)
		}
	}
}
