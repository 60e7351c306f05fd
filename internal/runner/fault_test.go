package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/seal"
	"sbench/internal/setting"
)

const noDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// TestRun_Refuses injects one fault each; the attempt must be sealed in the right
// class with the right first line, and without any result.
func TestRun_Refuses(t *testing.T) {
	tests := []struct {
		name  string
		edit  func(*batch.Spec, *setting.Setting)
		class lifecycle.ExitClass
		want  string // in the first reason
	}{
		{"image digest", func(_ *batch.Spec, s *setting.Setting) { s.Image.Digest = noDigest }, lifecycle.ExitDriftArtefact, "ENV_DRIFT: image digest " + noDigest + " expected, sha256:"},
		{"checkpoint digest", func(_ *batch.Spec, s *setting.Setting) { s.Model.Checkpoint.Digest = noDigest }, lifecycle.ExitDriftArtefact, "ENV_DRIFT: checkpoint digest " + noDigest},
		{"kernel", func(_ *batch.Spec, s *setting.Setting) { s.Environment.Kernel = "1.2.3" }, lifecycle.ExitDriftNode, "ENV_DRIFT: kernel 1.2.3 expected, "},
		{"driver on emulated hardware", func(_ *batch.Spec, s *setting.Setting) { s.Environment.Driver = "550.54.15" }, lifecycle.ExitDriftNode, "ENV_DRIFT: driver 550.54.15 expected, could not be read (the hardware is emulated)"},
		{"nccl that the engine does not report", func(_ *batch.Spec, s *setting.Setting) { s.Environment.NCCL = "2.20.5" }, lifecycle.ExitDriftArtefact, "ENV_DRIFT: nccl 2.20.5 expected, could not be read"},
		{"engine version", func(_ *batch.Spec, s *setting.Setting) { s.Engine.Version = "9.9.9" }, lifecycle.ExitDriftArtefact, "ENV_DRIFT: engine.version 9.9.9 expected, "},
		{"GPUs", func(_ *batch.Spec, s *setting.Setting) { s.Hardware.GPUs = 4 }, lifecycle.ExitDriftNode, "ENV_DRIFT: hardware.gpus 4 expected, 1 realized"},
		{"real hardware without a helper", func(b *batch.Spec, _ *setting.Setting) { b.HardwareClass = "real" }, lifecycle.ExitDriftNode, "ENV_DRIFT: hardware.gpu l4 expected, could not be read (the site has no sbench-gpu)"},
		{"real hardware with a broken helper", func(b *batch.Spec, _ *setting.Setting) {
			b.HardwareClass, b.Node.GPUHelper = "real", "/bin/false"
		}, lifecycle.ExitDriftNode, "ENV_DRIFT: hardware.gpu l4 expected, could not be read (no GPU data: sbench-gpu ended with exit status 1"},
		{"image absent", func(_ *batch.Spec, s *setting.Setting) { s.Image.Path = "/nonexistent/engine" }, lifecycle.ExitStaging, "STAGING: digest: stat /nonexistent/engine"},
		{"checkpoint absent", func(_ *batch.Spec, s *setting.Setting) { s.Model.Checkpoint.Path = "/nonexistent/model" }, lifecycle.ExitStaging, "/nonexistent/model"},
		{"relative path", func(_ *batch.Spec, s *setting.Setting) { s.Image.Path = "engine" }, lifecycle.ExitSpec, `image.path "engine" is not absolute`},
		{"foreign batch", func(b *batch.Spec, _ *setting.Setting) { b.UID = os.Getuid() + 1 }, lifecycle.ExitSpec, "the batch is of user"},
		{"reserved option", func(_ *batch.Spec, s *setting.Setting) {
			s.Engine.Kind, s.Engine.Args = setting.EngineLlamaCpp, map[string]string{"port": "1"}
		}, lifecycle.ExitSpec, "engine.args.port is set by the harness"},
		{"no container program", func(b *batch.Spec, s *setting.Setting) {
			s.Image.Kind, b.Node.Apptainer = setting.ImageSIF, "/nonexistent/apptainer"
		}, lifecycle.ExitDriftNode, "ENV_DRIFT: a container program expected"},
		{"node that cannot run containers", func(b *batch.Spec, s *setting.Setting) {
			program := filepath.Join(b.Node.TempDir, "apptainer")
			text := "#!/bin/sh\n[ \"$1\" = exec ] || exit 0\necho 'FATAL:   while mounting: failed to open /dev/fuse' >&2; exit 255\n"
			if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
				panic(err)
			}
			s.Image.Kind, b.Node.Apptainer = setting.ImageSIF, program
		}, lifecycle.ExitDriftNode, "ENV_DRIFT: a node that can run the image expected: while mounting: failed to open /dev/fuse"},
		{"engine option", func(_ *batch.Spec, s *setting.Setting) { s.Engine.Args["no-such-option"] = "1" }, lifecycle.ExitEngineStart, "ENGINE_START: the engine ended before it was ready (exit status 2)"},
		{"engine never listens", func(b *batch.Spec, s *setting.Setting) {
			s.Engine.Env[roleEnv], b.Node.Deadlines.EngineStart = "deaf", time.Second
		}, lifecycle.ExitEngineStart, "ENGINE_START: the engine was not ready in time: not listening yet"},
		{"engine loads for ever", func(b *batch.Spec, s *setting.Setting) {
			s.Engine.Args["fault"], b.Node.Deadlines.EngineStart = "loading:for=1h", 2*time.Second
		}, lifecycle.ExitEngineStart, "ENGINE_START: the engine was not ready in time: "},
		{"engine dies in the measurement", func(_ *batch.Spec, s *setting.Setting) { s.Engine.Args["fault"] = "die:at=900ms" }, lifecycle.ExitEngineDied, "ENGINE_DIED: during warm-up or measurement"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, tt.edit)
			code, out := b.run()
			m := b.sealed()
			b.nothingLeft()
			wantClass(t, code, m, out, tt.class)
			if len(m.Reasons) == 0 || !strings.Contains(m.Reasons[0], tt.want) {
				t.Errorf("reasons %q, want %q first", m.Reasons, tt.want)
			}
			if m.Valid || m.EnvVerified {
				t.Error("a refusal is valid or verified")
			}
			for _, f := range m.Files {
				if strings.HasSuffix(f.Name, ".parquet") {
					t.Errorf("a refusal has the file %s", f.Name)
				}
			}
			deterministic := m.ExitClass.Retry() == lifecycle.RetryDeterministic
			if deterministic && tt.class != lifecycle.ExitSpec && m.Signature == "" {
				t.Error("a deterministic failure has no signature")
			}
		})
	}
}

// TestRun_SignatureRepeats: the same deterministic failure, tried again, has the
// same signature, although ports, process ids and times differ.
func TestRun_SignatureRepeats(t *testing.T) {
	b := newBench(t, func(_ *batch.Spec, s *setting.Setting) { s.Engine.Args["no-such-option"] = "1" })
	_, _ = b.run()
	first := b.sealed()
	_, _ = b.run("SLURM_RESTART_COUNT=1")
	second, err := seal.Verify(seal.Dir(b.attempts, 7, 4711, 1), seal.DefaultLimits())
	if err != nil || first.Signature == "" || first.Signature != second.Signature {
		t.Errorf("signatures %q and %q, %v", first.Signature, second.Signature, err)
	}
}

// TestRun_Terminated sends SIGTERM in every phase.
func TestRun_Terminated(t *testing.T) {
	tests := []struct {
		name string
		edit func(*batch.Spec, *setting.Setting)
		file string // of the attempt under way
		when string // what it says when the signal is sent
	}{
		{"while hashing", func(_ *batch.Spec, s *setting.Setting) {
			// A FIFO with a writer would block; a huge sparse file takes its time.
			path := s.Model.Checkpoint.Path
			if err := os.Truncate(path, 64<<30); err != nil {
				panic(err)
			}
		}, result.RunnerLog, ""},
		{"while the engine loads", func(_ *batch.Spec, s *setting.Setting) { s.Engine.Args["fault"] = "loading:for=1h" }, result.RunnerLog, "start engine"},
		{"deaf engine", func(_ *batch.Spec, s *setting.Setting) { s.Engine.Env[roleEnv] = "deaf" }, result.EngineLog, "deaf engine: started"},
		{"in the measurement", func(_ *batch.Spec, s *setting.Setting) { s.Workload.Duration = time.Hour }, result.RunnerLog, "msg=identify"},
		{"in the warm-up", func(_ *batch.Spec, s *setting.Setting) { s.Workload.Warmup = time.Hour }, result.RunnerLog, "msg=identify"},
		{"in the drain", func(_ *batch.Spec, s *setting.Setting) {
			s.Engine.Args["decode-rate"] = "1"
			s.Workload.Drain = time.Hour
			s.Workload.Request.TimeoutTotal = time.Hour
			s.Workload.Output.Value = 1000
		}, result.RunnerLog, "msg=identify"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, tt.edit)
			cmd, out := b.start()
			if tt.when == "" {
				eventually(t, "attempt begins", func() bool { return len(seal.Partials(b.attemptDir())) > 0 })
			} else {
				eventually(t, tt.when, b.logContains(tt.file, tt.when))
			}
			began := time.Now()
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			code := exitCode(cmd.Wait())
			m := b.sealed()
			b.nothingLeft()
			wantClass(t, code, m, out.String(), lifecycle.ExitCancelled)
			if !strings.HasPrefix(m.Reasons[0], "CANCELLED") || m.Valid {
				t.Errorf("reasons %q, valid %v", m.Reasons, m.Valid)
			}
			// Slurm's default leaves 30 s between SIGTERM and SIGKILL.
			if d := time.Since(began); d > 20*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
}

// TestRun_TerminatedEngineFirst: Slurm signals every process of a step, and the
// engine may end of it before the runner has heard: that is no death of its own.
func TestRun_TerminatedEngineFirst(t *testing.T) {
	b := newBench(t, func(_ *batch.Spec, s *setting.Setting) { s.Workload.Duration = time.Hour })
	cmd, out := b.start()
	eventually(t, "measurement", b.logContains(result.RunnerLog, "msg=identify"))
	var children []string
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		children = append(children, strings.Fields(string(text))...)
	}
	if len(children) != 1 {
		t.Fatalf("children of the runner: %v", children)
	}
	pid, err := strconv.Atoi(children[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	code := exitCode(cmd.Wait())
	m := b.sealed()
	b.nothingLeft()
	wantClass(t, code, m, out.String(), lifecycle.ExitCancelled)
}

// TestRun_OrphansDie: an engine that leaves a process in a session of its own,
// without a parent, leaves nothing all the same.
func TestRun_OrphansDie(t *testing.T) {
	b := newBench(t, func(_ *batch.Spec, s *setting.Setting) {
		program := s.Image.Path
		script := filepath.Join(filepath.Dir(s.Model.Checkpoint.Path), "engine.sh")
		text := "#!/bin/sh\nsetsid sh -c '(trap \"\" TERM; sleep 300 & echo orphan $!)'\nexec " + program + " \"$@\"\n"
		if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
			panic(err)
		}
		s.Image.Path, s.Image.Digest = script, setting.Unpinned
	})
	code, out := b.run()
	m := b.sealed()
	if m.ExitClass != lifecycle.ExitMeasured && m.ExitClass != lifecycle.ExitInvalid {
		t.Fatalf("exit status %d: %q\n%s", code, m.Reasons, out)
	}
	log, err := os.ReadFile(filepath.Join(b.attemptDir(), result.EngineLog))
	if err != nil || !strings.Contains(string(log), "orphan ") {
		t.Fatalf("the orphan was not started: %s %v", log, err)
	}
	b.nothingLeft()
}

// TestRun_RunnerKilled: when the runner itself is killed, the kernel ends the
// engine; what is not sealed does not exist.
func TestRun_RunnerKilled(t *testing.T) {
	b := newBench(t, func(_ *batch.Spec, s *setting.Setting) { s.Workload.Duration = time.Hour })
	cmd, _ := b.start()
	eventually(t, "measurement", b.logContains(result.RunnerLog, "msg=identify"))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "engine gone", func() bool { return len(engines(t, filepath.Dir(b.dir))) == 0 })
	if _, err := seal.Verify(b.attemptDir(), seal.DefaultLimits()); err == nil {
		t.Error("a killed runner's attempt is sealed")
	}
}

// TestRun_FileSizeLimit: where the results cannot be written, the attempt says
// so and has no result.
func TestRun_FileSizeLimit(t *testing.T) {
	b := newBench(t, nil)
	cmd := b.command("run", "--run", "7")
	// The manifest and the logs fit into 40 KiB; a result row does not.
	shell := "ulimit -f 80; exec \"$@\""
	cmd.Args = append([]string{"sh", "-c", shell, "sh", b.program}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	out, err := cmd.CombinedOutput()
	m := b.sealed()
	b.nothingLeft()
	wantClass(t, exitCode(err), m, string(out), lifecycle.ExitInternal)
	if !strings.Contains(m.Reasons[0], "could not be written") || m.Valid {
		t.Errorf("reasons %q", m.Reasons)
	}
	for _, f := range m.Files {
		if strings.HasSuffix(f.Name, ".parquet") {
			t.Errorf("the attempt has the file %s", f.Name)
		}
	}
}

func TestRun_BadBatch(t *testing.T) {
	for name, damage := range map[string]func(b *bench) error{
		"damaged": func(b *bench) error {
			return os.WriteFile(filepath.Join(b.dir, batch.SpecFile), []byte("{}"), 0o644)
		},
		"another digest": func(b *bench) error { b.digest = noDigest; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			if err := damage(b); err != nil {
				t.Fatal(err)
			}
			if code, out := b.run(); code != lifecycle.ExitSpec.Code() || !strings.Contains(out, "frozen spec") {
				t.Errorf("exit status %d\n%s", code, out)
			}
			if _, err := os.Stat(b.attempts); err == nil {
				t.Error("an attempt was begun")
			}
		})
	}
	b := newBench(t, nil)
	cmd := b.command("run", "--run", "8")
	if out, err := cmd.CombinedOutput(); exitCode(err) != lifecycle.ExitSpec.Code() {
		t.Errorf("unknown run: %v\n%s", err, out)
	}
	cmd = b.command("run", "--run", "7")
	cmd.Env = []string{roleEnv + "=runner"}
	if out, err := cmd.CombinedOutput(); exitCode(err) != lifecycle.ExitInternal.Code() || !strings.Contains(string(out), "not inside a Slurm job") {
		t.Errorf("outside of a job: %v\n%s", err, out)
	}
}
