package jobscript

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/sbatch"
)

// TestTask_Srun: what a task does about runs, by the status with which srun ends.
// The runner claims runs 7 and 8; the line "<run> <limit>" is what a claim prints.
func TestTask_Srun(t *testing.T) {
	const runner = `#!/bin/sh
case $1 in
claim) printf '7 5 \n8 5 \n' ;;
esac
`
	tests := map[string]struct {
		status int
		want   []string
	}{
		"measured":                      {0, []string{"start 7", "end 7 0", "start 8", "end 8 0"}},
		"refused":                       {11, []string{"start 7", "end 7 11", "start 8", "end 8 11"}},
		"told to stop":                  {16, []string{"start 7", "end 7 16", "skip 8 stopped"}},
		"the allocation is never free":  {1, []string{"start 7", "end 7 1", "skip 8 stopped"}},
		"killed, and cleaned up behind": {137, []string{"start 7", "end 7 137", "start 8", "end 8 137"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(path, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			var list strings.Builder
			for _, name := range []string{"sbench-runner", "sbench-runner-arm64"} {
				fmt.Fprintf(&list, "%x %s\n", sha256.Sum256([]byte(runner)), name)
			}
			programs := filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256([]byte(list.String()))))
			write(filepath.Join(programs, "sbench-runner"), runner)
			write(filepath.Join(programs, "sbench-runner-arm64"), runner)
			write(filepath.Join(dir, "bin", "srun"), fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s/calls\nexit %d\n", dir, tt.status))
			write(filepath.Join(dir, "task.sh"), string(sbatch.Task))
			if err := os.Mkdir(filepath.Join(dir, "logs"), 0o755); err != nil {
				t.Fatal(err)
			}

			cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "task.sh"))
			cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "SBENCH_BATCH="+dir,
				"SBENCH_DIGEST=sha256:0", "SBENCH_PROGRAMS="+programs, "SBENCH_NODES=1", "SBENCH_TIME_LIMIT=3600", "SBENCH_GRACE=10",
				"SLURM_ARRAY_TASK_ID=3", "SLURM_JOB_ID=41")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			record, err := os.ReadFile(filepath.Join(dir, "logs", "task-3.41-r0.record"))
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(regexp.MustCompile(`(?m)^\d+ `).ReplaceAllString(string(record), "")), "\n")
			want := append(append([]string{lines[0], "claim held"}, tt.want...), "done")
			if diff := cmp.Diff(want, lines); diff != "" {
				t.Errorf("record (-want +got): %s", diff)
			}
			calls, err := os.ReadFile(filepath.Join(dir, "calls"))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(calls)) {
				if strings.Contains(line, "--job-name=sb-run-") && !strings.Contains(line, "--immediate=180 ") {
					t.Errorf("a step that may wait for ever: %s", line)
				}
			}
		})
	}
}
