package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/runner/stage"
	"sbench/internal/seal"
	"sbench/internal/setting"
	"sbench/internal/sim"
)

// The tests start this very binary as the runner and as the engine: what it
// plays is in its environment.
const roleEnv = "SBENCH_TEST_ROLE"

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch os.Getenv(roleEnv) {
	case "":
		os.Exit(m.Run())
	case "runner":
		os.Exit(Main(ctx, os.Args[1:], os.Stdout, os.Stderr))
	case "sim":
		os.Exit(sim.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	case "deaf":
		// An engine that never listens and ignores SIGTERM.
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("deaf engine: started")
		select {}
	}
}

// bench is a batch of one task in a folder, ready to be run.
type bench struct {
	t        testing.TB
	dir      string // the batch
	spec     *batch.Spec
	digest   string
	program  string // this binary
	attempts string
}

// newBench freezes a batch of one run of the simulated engine; edit changes the
// setting or the spec before.
func newBench(t testing.TB, edit func(*batch.Spec, *setting.Setting)) *bench {
	t.Helper()
	root := t.TempDir()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(root, "model.gguf")
	if err := os.WriteFile(model, []byte("weights"), 0o644); err != nil {
		t.Fatal(err)
	}
	digest := func(path string) string {
		a, err := stage.Digest(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		return a.Digest
	}
	s := setting.Default()
	s.Model = setting.Model{Name: "sim-model", Precision: "auto", Checkpoint: setting.Checkpoint{Path: model, Digest: digest(model)}}
	s.Image = setting.Image{Kind: setting.ImageHost, Path: program, Digest: digest(program)}
	s.Engine.Kind = setting.EngineCommand
	s.Engine.Command = []string{"--listen", "{host}:{port}"}
	s.Engine.Args = map[string]string{"decode-rate": "2000", "model": "sim-model"}
	s.Engine.Env = map[string]string{roleEnv: "sim"}
	s.Hardware = setting.Hardware{GPU: "l4", GPUs: 1, Nodes: 1, Link: setting.Unpinned, Placement: setting.PlacementGPU}
	w := &s.Workload
	w.Arrival = setting.Arrival{Process: setting.ProcessPoisson, Rate: 40}
	w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 8}
	w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: 4}
	w.Warmup, w.Ramp, w.Duration, w.Drain = 200*time.Millisecond, 100*time.Millisecond, time.Second, 2*time.Second
	w.Request.TimeoutFirstToken, w.Request.TimeoutTotal = 10*time.Second, 20*time.Second

	b := &bench{t: t, program: program, dir: filepath.Join(root, "batch"), attempts: filepath.Join(root, "attempts")}
	b.spec = &batch.Spec{
		Version: batch.Version, Token: "sb-abcdefghij2345672345", Site: "lab", Cluster: "lab", HardwareClass: "emulated",
		UID: os.Getuid(), AttemptsDir: b.attempts, CacheDir: filepath.Join(root, "cache"),
		Node:  batch.Node{TempDir: root, Deadlines: batch.Deadlines{EngineStart: 20 * time.Second, Stop: time.Second}},
		Tasks: []batch.Task{{Index: 0, Runs: []batch.Run{{ID: 7, Sweep: 1, SettingHash: "h", SeriesHash: "s", TimeLimit: 90500 * time.Millisecond}}}},
	}
	if edit != nil {
		edit(b.spec, &s)
	}
	b.spec.Settings = map[string]setting.Setting{"h": s}
	b.freeze()
	return b
}

func (b *bench) freeze() {
	b.t.Helper()
	data, digest, err := batch.Encode(b.spec)
	if err == nil {
		err = os.MkdirAll(b.dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(b.dir, batch.SpecFile), data, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.digest = digest
}

// command is the runner as the job's script calls it.
func (b *bench) command(args ...string) *exec.Cmd {
	cmd := exec.Command(b.program, append(args, "--batch", b.dir, "--digest", b.digest, "--task", "0")...)
	cmd.Env = append(os.Environ(), roleEnv+"=runner", "SLURM_JOB_ID=4711", "SLURMD_NODENAME=n1", "SLURM_STEP_ID=0",
		"SLURM_JOB_GPUS=0", "CUDA_VISIBLE_DEVICES=0")
	return cmd
}

func (b *bench) start(env ...string) (*exec.Cmd, *bytes.Buffer) {
	b.t.Helper()
	cmd := b.command("run", "--run", "7")
	cmd.Env = append(cmd.Env, env...)
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	return cmd, &out
}

// run runs the runner to its end and returns its exit status and output.
func (b *bench) run(env ...string) (int, string) {
	b.t.Helper()
	cmd, out := b.start(env...)
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode(), out.String()
}

func (b *bench) attemptDir() string { return seal.Dir(b.attempts, 7, 4711, 0) }

// sealed verifies the attempt and returns its manifest.
func (b *bench) sealed() result.Manifest {
	b.t.Helper()
	m, err := seal.Verify(b.attemptDir(), seal.DefaultLimits())
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// nothingLeft checks that no process of the run, no scratch folder and no
// unsealed attempt remain.
func (b *bench) nothingLeft() {
	b.t.Helper()
	for _, pattern := range []string{"sbench-run-*", "attempts/*/.*.partial"} {
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(b.dir), pattern)); len(left) > 0 {
			b.t.Errorf("left behind: %v", left)
		}
	}
	if left := engines(b.t, filepath.Dir(b.dir)); len(left) > 0 {
		b.t.Errorf("processes left behind: %v", left)
	}
}

// engines are the processes whose environment or command line mentions the root
// folder, which is this test's own.
func engines(t testing.TB, root string) []string {
	t.Helper()
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		mentions := bytes.Contains(env, []byte(root)) || bytes.Contains(line, []byte(root))
		if mentions && filepath.Base(dir) != strconv.Itoa(os.Getpid()) {
			found = append(found, filepath.Base(dir)+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within 60 s", what)
		}
	}
}

// logContains polls the log of the attempt under way.
func (b *bench) logContains(file, text string) func() bool {
	return func() bool {
		for _, dir := range seal.Partials(b.attemptDir()) {
			log, err := os.ReadFile(filepath.Join(dir, file))
			if err == nil && strings.Contains(string(log), text) {
				return true
			}
		}
		return false
	}
}

func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return -1
}

func wantClass(t *testing.T, code int, m result.Manifest, out string, want lifecycle.ExitClass) {
	t.Helper()
	if code != want.Code() || m.ExitClass != want {
		t.Errorf("exit status %d, sealed %s; want %d, %s\nreasons: %q\n%s", code, m.ExitClass, want.Code(), want, m.Reasons, out)
	}
}
