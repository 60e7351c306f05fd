package runner

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/setting"
)

// clockBench is a run on a real node whose clocks a helper of the site locks; log
// is where the helper notes what it was asked.
func clockBench(t *testing.T, lockExit string, edit func(*batch.Spec, *setting.Setting, *realNode)) (b *bench, log string) {
	t.Helper()
	dir := t.TempDir()
	log = filepath.Join(dir, "calls")
	helper := filepath.Join(dir, "clocks")
	script := "#!/bin/sh\necho \"$*\" >>" + log + "\n[ \"$1\" != lock-clocks ] || exit " + lockExit + "\n"
	if err := os.WriteFile(helper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	d := drift{inject: func(b *batch.Spec, s *setting.Setting, n *realNode) {
		b.Node.Clocks = batch.Clocks{Method: batch.ClocksHelper, Helper: []string{helper}}
		// The application clocks are others: only the lock makes it as pinned.
		n.both(func(g *fingerprint.GPUs) {
			g.Devices[0].Clocks.SMTarget, g.Devices[0].Clocks.MemTarget = ptr(int64(2040)), ptr(int64(9001))
		})
		if edit != nil {
			edit(b, s, n)
		}
	}}
	return d.bench(t), log
}

const (
	lockCall  = "lock-clocks --sm 1410 --mem 6251 --gpus GPU-0"
	resetCall = "reset-clocks --gpus GPU-0"
)

func calls(t *testing.T, log string) string {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "; ")
}

// TestRun_Clocks: the helper locks them before, and resets them on every way out.
func TestRun_Clocks(t *testing.T) {
	tests := []struct {
		name     string
		lockExit string
		edit     func(*batch.Spec, *setting.Setting, *realNode)
		classes  []lifecycle.ExitClass
		want     string
	}{
		{"measured", "0", nil, []lifecycle.ExitClass{lifecycle.ExitMeasured, lifecycle.ExitInvalid}, ""},
		{"lock refused", "1", nil, []lifecycle.ExitClass{lifecycle.ExitDriftNode}, "ENV_DRIFT: sm_clock 1410MHz expected, 2040MHz realized on gpu 0"},
		{
			"the device does not keep to it", "0", func(_ *batch.Spec, _ *setting.Setting, n *realNode) { n.sample.SM = ptr(int64(1200)) },
			[]lifecycle.ExitClass{lifecycle.ExitInvalid},
			"INVALID: gpu_sm_clock: under load the clock was up to 210 MHz away",
		},
		{
			"another refusal", "0", func(_ *batch.Spec, s *setting.Setting, _ *realNode) { s.Environment.Kernel = "1.2.3" },
			[]lifecycle.ExitClass{lifecycle.ExitDriftNode},
			"ENV_DRIFT: kernel 1.2.3 expected",
		},
		{"engine dies", "0", func(_ *batch.Spec, s *setting.Setting, _ *realNode) {
			s.Engine.Args["fault"], s.Workload.Duration = "die:at=500ms", 10*time.Second
		}, []lifecycle.ExitClass{lifecycle.ExitEngineDied}, "ENGINE_DIED: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b, log := clockBench(t, tt.lockExit, tt.edit)
			_, out := b.run()
			m := b.sealed()
			b.nothingLeft()
			found := false
			for _, class := range tt.classes {
				found = found || m.ExitClass == class
			}
			if !found || !strings.Contains(strings.Join(m.Reasons, "\n"), tt.want) {
				t.Errorf("%s: %q\n%s", m.ExitClass, m.Reasons, out)
			}
			// On a busy machine the helper may not have sampled: that is another matter.
			if strings.Contains(strings.Join(m.Reasons, "\n"), "MHz away") != strings.Contains(tt.want, "MHz away") {
				t.Errorf("reasons: %q", m.Reasons)
			}
			if got := calls(t, log); got != lockCall+"; "+resetCall {
				t.Errorf("the helper was asked: %s", got)
			}
		})
	}
}

// TestRun_ClocksAfterASignal: SIGTERM resets them; after SIGKILL the next runner
// on the node, or sbench-runner clean, does.
func TestRun_ClocksAfterASignal(t *testing.T) {
	for signal, want := range map[syscall.Signal]string{
		syscall.SIGTERM: lockCall + "; " + resetCall, syscall.SIGKILL: lockCall,
	} {
		b, log := clockBench(t, "0", func(_ *batch.Spec, s *setting.Setting, _ *realNode) { s.Workload.Duration = time.Hour })
		cmd, _ := b.start()
		eventually(t, "measurement", b.logContains(result.RunnerLog, "msg=identify"))
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if got := calls(t, log); got != want {
			t.Errorf("after %v the helper was asked: %s", signal, got)
		}
		if signal != syscall.SIGKILL {
			continue
		}
		removed, err := cleanUp(t.Context(), []string{filepath.Dir(b.dir)}, nil, os.Getuid())
		if err != nil || len(removed) == 0 {
			t.Errorf("removed %q, %v", removed, err)
		}
		if got := calls(t, log); got != lockCall+"; "+resetCall {
			t.Errorf("after the clean-up the helper was asked: %s", got)
		}
	}
}

func TestGPUFreq(t *testing.T) {
	t.Parallel()
	slurm := batch.Node{Clocks: batch.Clocks{Method: batch.ClocksSlurm}}
	for _, tt := range []struct {
		node    batch.Node
		sm, mem string
		want    string
	}{
		{slurm, "1410MHz", "6251MHz", "1410,memory=6251"},
		{slurm, "1410MHz", setting.Unpinned, "1410"},
		{slurm, setting.Unpinned, "6251MHz", "memory=6251"},
		{slurm, setting.Unpinned, setting.Unpinned, ""},
		{batch.Node{}, "1410MHz", "6251MHz", ""},
	} {
		if got := gpuFreq(tt.node, setting.Environment{SMClock: tt.sm, MemClock: tt.mem}); got != tt.want {
			t.Errorf("%v %s %s: %q, want %q", tt.node.Clocks.Method, tt.sm, tt.mem, got, tt.want)
		}
	}
}
