package runner

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/seal"
	"sbench/internal/setting"
)

// ranks are the runners of one step on several nodes, here on one machine.
type ranks struct {
	*bench
	cmds []*exec.Cmd
	outs []*bytes.Buffer
}

// startRanks starts a runner for each of n nodes; env adds to a rank's variables.
func (b *bench) startRanks(n int, env func(rank int) []string) *ranks {
	b.t.Helper()
	r := &ranks{bench: b}
	for rank := range n {
		node := "n" + string(rune('1'+rank))
		vars := []string{"SLURM_NTASKS=" + string(rune('0'+n)), "SLURM_PROCID=" + string(rune('0'+rank)), "SLURMD_NODENAME=" + node}
		if env != nil {
			vars = append(vars, env(rank)...)
		}
		cmd, out := b.start(vars...)
		r.cmds, r.outs = append(r.cmds, cmd), append(r.outs, out)
	}
	return r
}

// wait waits for all ranks, none of which may hang, and returns rank 0's exit
// status and everything that was printed.
func (r *ranks) wait() (code int, out string) {
	r.t.Helper()
	for i, cmd := range r.cmds {
		timer := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		if !timer.Stop() {
			r.t.Errorf("rank %d did not end", i)
		}
		out += r.outs[i].String()
	}
	return r.cmds[0].ProcessState.ExitCode(), out
}

// gangOf makes a batch of a gang of n nodes whose engine is on rank 0, or where
// spans on every one: the others run a process that waits, as a headless engine
// does.
func gangOf(t *testing.T, n int, spans bool, edit func(*batch.Spec, *setting.Setting)) *bench {
	t.Helper()
	return newBench(t, func(b *batch.Spec, s *setting.Setting) {
		s.Hardware.Nodes = n
		s.Parallel.Tensor = n
		w := &s.Workload
		w.Warmup, w.Ramp, w.Duration, w.Drain = 0, 0, 600*time.Millisecond, time.Second
		if spans {
			script := filepath.Join(b.Node.TempDir, "engine.sh")
			text := "#!/bin/sh\nrank=$1; echo \"rank $1 of $2 meets at $3 with $4\"; shift 4\n" +
				"if [ \"$rank\" = 0 ]; then exec " + s.Image.Path + " \"$@\"; fi\n" +
				"setsid sleep 300 & exec sleep 300\n"
			if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			s.Image.Path, s.Image.Digest = script, setting.Unpinned
			s.Engine.Command = append([]string{"{rank}", "{nodes}", "{leader}:{gang_port}", "{hosts}"}, s.Engine.Command...)
		}
		if edit != nil {
			edit(b, s)
		}
	})
}

func (b *bench) gangLeft() {
	b.t.Helper()
	b.nothingLeft()
	if left, _ := filepath.Glob(filepath.Join(b.dir, gangDir, "*")); len(left) > 0 {
		b.t.Errorf("left behind: %v", left)
	}
}

// TestGang_Measured: two nodes, each with its fingerprint in full, an engine that
// has a process on both, and nothing left on either.
func TestGang_Measured(t *testing.T) {
	b := gangOf(t, 2, true, nil)
	code, out := b.startRanks(2, nil).wait()
	m := b.sealed()
	b.gangLeft()
	if !m.EnvVerified || m.ExitClass != lifecycle.ExitMeasured && m.ExitClass != lifecycle.ExitInvalid || m.ExitClass.Code() != code {
		t.Fatalf("exit status %d, %s, verified %v: %q\n%s", code, m.ExitClass, m.EnvVerified, m.Reasons, out)
	}
	if !slices.Equal(m.Attempt.Nodes, []string{"n1", "n2"}) {
		t.Errorf("nodes %v", m.Attempt.Nodes)
	}
	s, err := seal.Open(b.attemptDir(), seal.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	log, err := s.Read("engine-rank1.log")
	if err != nil || !strings.HasPrefix(string(log), "rank 1 of 2 meets at ") || !strings.Contains(string(log), "with n1,n2") {
		t.Errorf("rank 1's log %q, %v", log, err)
	}
	data, err := s.Read(result.ResultFile)
	if err != nil {
		t.Fatal(err)
	}
	row, err := resultfile.DecodeResult(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var fp fingerprint.Fingerprint
	if err := json.Unmarshal(row.Fingerprint, &fp); err != nil {
		t.Fatal(err)
	}
	if len(fp.Nodes) != 2 || fp.Nodes[0].Name != "n1" || fp.Nodes[0].Software != nil {
		t.Fatalf("nodes %+v", fp.Nodes)
	}
	n := fp.Nodes[1]
	if n.Name != "n2" || n.Rank != 1 || n.Kernel == "" || n.CPUModel == "" || n.Software == nil {
		t.Fatalf("second node %+v", n)
	}
	if n.Software.Image.Digest != fp.Image.Digest || n.Software.Checkpoint.Digest == "" || len(n.Software.Engine.Argv) == 0 || n.Software.Engine.Argv[1] != "1" {
		t.Errorf("software of the second node: %+v", n.Software)
	}
}

// TestGang_EngineOnRankZeroAlone: a command that does not name its rank runs once.
func TestGang_EngineOnRankZeroAlone(t *testing.T) {
	b := gangOf(t, 2, false, nil)
	code, out := b.startRanks(2, nil).wait()
	m := b.sealed()
	b.gangLeft()
	if !m.EnvVerified || code != lifecycle.ExitMeasured.Code() && code != lifecycle.ExitInvalid.Code() {
		t.Fatalf("exit status %d, %s: %q\n%s", code, m.ExitClass, m.Reasons, out)
	}
	if _, err := os.Stat(filepath.Join(b.attemptDir(), "engine-rank1.log")); err == nil {
		t.Error("rank 1 has a log of an engine")
	}
}

// TestGang_Refuses: what is wrong with one rank is told of it, in its class, and
// blames it alone.
func TestGang_Refuses(t *testing.T) {
	second := func(vars ...string) func(int) []string {
		return func(rank int) []string {
			if rank == 1 {
				return vars
			}
			return nil
		}
	}
	tests := []struct {
		name  string
		n     int
		spans bool
		edit  func(*batch.Spec, *setting.Setting)
		env   func(int) []string
		class lifecycle.ExitClass
		want  string
		blame []string
	}{
		{
			"one node has other devices", 2, false, nil, second("CUDA_VISIBLE_DEVICES=0,1"),
			lifecycle.ExitDriftNode, "ENV_DRIFT: hardware.gpus 1 expected, 2 realized on node n2",
			[]string{"n2"},
		},
		{
			"two ranks on one node", 2, false, nil, second("SLURMD_NODENAME=n1"),
			lifecycle.ExitDriftNode, "ENV_DRIFT: nodes one rank a node expected, rank 0 and 1 are on n1 realized", nil,
		},
		{
			"a wrong digest", 2, false, func(_ *batch.Spec, s *setting.Setting) { s.Image.Digest = noDigest }, nil,
			lifecycle.ExitDriftArtefact, "ENV_DRIFT: image digest " + noDigest + " expected, ", nil,
		},
		{
			"an engine that spans no nodes", 2, false, func(_ *batch.Spec, s *setting.Setting) { s.Engine.Kind = setting.EngineLlamaCpp; s.Engine.Args = nil }, nil,
			lifecycle.ExitSpec, "llama-server runs on one node", nil,
		},
		{
			"rank 1's engine ends", 2, true, func(b *batch.Spec, s *setting.Setting) {
				s.Engine.Args["fault"] = "loading:for=1h" // rank 0's waits for it in vain
				script := s.Image.Path
				text, err := os.ReadFile(script)
				if err == nil {
					err = os.WriteFile(script, bytes.Replace(text, []byte("setsid sleep 300 & exec sleep 300"), []byte("sleep 0.2; echo 'RuntimeError: no route to rank 0'; exit 3"), 1), 0o755)
				}
				if err != nil {
					panic(err)
				}
			}, nil,
			lifecycle.ExitEngineStart, "ENGINE_DIED: exit status 3: RuntimeError: no route to rank 0 (rank 1 on n2)",
			[]string{"n2"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := gangOf(t, tt.n, tt.spans, tt.edit)
			code, out := b.startRanks(tt.n, tt.env).wait()
			m := b.sealed()
			b.gangLeft()
			wantClass(t, code, m, out, tt.class)
			if m.Valid || m.EnvVerified || len(m.Reasons) == 0 || !strings.HasPrefix(m.Reasons[0], tt.want) && !strings.Contains(m.Reasons[0], tt.want) {
				t.Errorf("valid %v, reasons %q, want %q", m.Valid, m.Reasons, tt.want)
			}
			if !slices.Equal(m.Blamed, tt.blame) {
				t.Errorf("blamed %v, want %v", m.Blamed, tt.blame)
			}
		})
	}
}

// TestGang_TooFewTasks: a step of one task does not measure a gang.
func TestGang_TooFewTasks(t *testing.T) {
	b := gangOf(t, 2, false, nil)
	code, out := b.run()
	m := b.sealed()
	b.gangLeft()
	wantClass(t, code, m, out, lifecycle.ExitDriftNode)
	if !strings.Contains(m.Reasons[0], "hardware.nodes 2 expected, 1 realized") {
		t.Errorf("reasons %q", m.Reasons)
	}
}

// TestGang_LostRank: a rank that is killed fails the attempt and never hangs it,
// in the measurement and before it; the node is blamed.
func TestGang_LostRank(t *testing.T) {
	b := gangOf(t, 2, true, func(_ *batch.Spec, s *setting.Setting) { s.Workload.Duration = time.Hour })
	r := b.startRanks(2, nil)
	eventually(t, "measurement", b.logContains(result.RunnerLog, "msg=identify"))
	began := time.Now()
	if err := r.cmds[1].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	code, out := r.wait()
	m := b.sealed()
	wantClass(t, code, m, out, lifecycle.ExitDriftNode)
	if !strings.HasPrefix(m.Reasons[0], "GANG: rank 1 on n2: lost: its runner ended") || !slices.Equal(m.Blamed, []string{"n2"}) || m.Valid {
		t.Errorf("reasons %q, blamed %v", m.Reasons, m.Blamed)
	}
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
}

// TestGang_MissingRank: a rank that never comes is waited for, and not for ever.
func TestGang_MissingRank(t *testing.T) {
	b := gangOf(t, 2, false, func(b *batch.Spec, _ *setting.Setting) { b.Node.Deadlines.Gang = time.Second })
	code, out := b.run("SLURM_NTASKS=2", "SLURM_PROCID=0")
	m := b.sealed()
	b.gangLeft()
	wantClass(t, code, m, out, lifecycle.ExitDriftNode)
	if !strings.Contains(m.Reasons[0], "rank 1 of 2: lost: did not join within 1s") {
		t.Errorf("reasons %q", m.Reasons)
	}
}

// TestGang_LostLeader: the others do not outlive rank 0, and leave nothing.
func TestGang_LostLeader(t *testing.T) {
	b := gangOf(t, 2, true, func(_ *batch.Spec, s *setting.Setting) { s.Workload.Duration = time.Hour })
	r := b.startRanks(2, nil)
	eventually(t, "measurement", b.logContains(result.RunnerLog, "msg=identify"))
	if err := r.cmds[0].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, out := r.wait()
	if code := r.cmds[1].ProcessState.ExitCode(); code != lifecycle.ExitInternal.Code() || !strings.Contains(out, "the leader: lost") {
		t.Errorf("rank 1 exits with %d\n%s", code, out)
	}
	eventually(t, "engines gone", func() bool { return len(engines(t, filepath.Dir(b.dir))) == 0 })
}

// TestGang_Terminated: SIGTERM to every rank, as Slurm sends it, or to one alone,
// is a cancellation that is sealed, and nothing is left.
func TestGang_Terminated(t *testing.T) {
	for name, ranks := range map[string][]int{"all": {1, 0}, "rank 1 alone": {1}, "rank 0 alone": {0}} {
		t.Run(name, func(t *testing.T) {
			b := gangOf(t, 2, true, func(_ *batch.Spec, s *setting.Setting) { s.Workload.Duration = time.Hour })
			r := b.startRanks(2, nil)
			eventually(t, "measurement", b.logContains(result.RunnerLog, "msg=identify"))
			for _, rank := range ranks {
				if err := r.cmds[rank].Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			code, out := r.wait()
			m := b.sealed()
			b.gangLeft()
			wantClass(t, code, m, out, lifecycle.ExitCancelled)
		})
	}
}
