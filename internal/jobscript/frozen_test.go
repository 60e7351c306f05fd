package jobscript

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sbench/sbatch"
)

// TestArray_ExecutesWhatWasFrozen: the batch script, which Slurm keeps, starts
// nothing of the spool that has been changed since.
func TestArray_ExecutesWhatWasFrozen(t *testing.T) {
	t.Parallel()
	runner := "sbench-runner"
	if runtime.GOARCH == "arm64" {
		runner += "-arm64"
	}
	for name, c := range map[string]struct {
		change func(dir, programs string) error
		code   int
		says   string
	}{
		"nothing": {func(_, _ string) error { return nil }, 0, ""},
		"task.sh": {func(dir, _ string) error {
			return os.WriteFile(filepath.Join(dir, "task.sh"), []byte("touch \"$SBENCH_BATCH/started\"\n"), 0o755)
		}, 17, "task.sh is not there as it was frozen"},
		"the runner": {func(_, programs string) error {
			return os.WriteFile(filepath.Join(programs, runner), []byte("#!/bin/sh\ntouch \"$SBENCH_BATCH/started\"; exit 3\n"), 0o755)
		}, 70, "are not those that were installed"},
		"one program more": {func(_, programs string) error {
			return os.WriteFile(filepath.Join(programs, "sbench-gpu"), []byte("x"), 0o755)
		}, 70, "are not those that were installed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "a folder")
			if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o755); err != nil {
				t.Fatal(err)
			}
			j := job()
			j.Dir, j.TaskDigest = dir, "sha256:"+sum(string(sbatch.Task))
			program := "#!/bin/sh\ntouch \"$SBENCH_BATCH/started\"\n"
			j.Programs = filepath.Join(dir, "bin", sum(fmt.Sprintf("%s %s\n", sum(program), runner)))
			if err := os.MkdirAll(j.Programs, 0o755); err != nil {
				t.Fatal(err)
			}
			for path, text := range map[string]string{
				filepath.Join(dir, "task.sh"): string(sbatch.Task), filepath.Join(j.Programs, runner): program,
			} {
				if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			script := filepath.Join(t.TempDir(), "script") // Slurm's own copy
			if err := os.WriteFile(script, render(t, j), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := c.change(dir, j.Programs); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/bin/bash", script)
			cmd.Env = append(os.Environ(), "SLURM_JOB_ID=7", "SLURM_ARRAY_TASK_ID=0")
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(string(out), c.says) {
				t.Errorf("exit %d, want %d: %s", got, c.code, out)
			}
			_, err := os.Stat(filepath.Join(dir, "started"))
			if started := err == nil; started != (c.code == 0) {
				t.Errorf("a program of the spool was executed: %v", started)
			}
		})
	}
}

func sum(text string) string {
	d := sha256.Sum256([]byte(text))
	return hex.EncodeToString(d[:])
}
