package runner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/setting"
)

// realHelper builds sbench-gpu and a stub of NVIDIA's library, and returns a
// program that runs the one with the other in a scenario.
func realHelper(t *testing.T, dir, scenario string) string {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\nLD_LIBRARY_PATH=%[1]s SBENCH_NVML_STATE=%[1]s/state SBENCH_NVML_STUB=%[2]s exec %[1]s/sbench-gpu \"$@\"\n", dir, scenario)
	path := filepath.Join(dir, strings.NewReplacer("=", "-", ",", "-").Replace("helper-"+scenario))
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func buildHelper(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("SKIPPED: no C compiler, so no stub of NVIDIA's library")
	}
	dir := t.TempDir()
	for _, argv := range [][]string{
		{"cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "../../tests/nvml/stub.c"},
		{"go", "build", "-o", filepath.Join(dir, "sbench-gpu"), "sbench/cmd/sbench-gpu"},
	} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-Wno-deprecated-declarations")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	return dir
}

// TestRun_AcrossTheLibrary measures with the real sbench-gpu over a stub of the
// library: what the driver does in each scenario ends the run as it must, and the
// clocks are as they were.
func TestRun_AcrossTheLibrary(t *testing.T) {
	dir := buildHelper(t)
	tests := []struct {
		scenario string
		classes  []lifecycle.ExitClass
		want     string // in a reason; "" for no reason of the devices
	}{
		{"", []lifecycle.ExitClass{lifecycle.ExitMeasured, lifecycle.ExitInvalid}, ""},
		{"noevents", []lifecycle.ExitClass{lifecycle.ExitMeasured, lifecycle.ExitInvalid}, ""},
		{"drop", []lifecycle.ExitClass{lifecycle.ExitInvalid}, "INVALID: gpu_sm_clock: under load the clock was up to 105 MHz away"},
		{"xid=79", []lifecycle.ExitClass{lifecycle.ExitInvalid}, "INVALID: gpu_xid: the driver reported Xid 79 on gpu 0"},
		{"denied", []lifecycle.ExitClass{lifecycle.ExitDriftNode}, "ENV_DRIFT: sm_clock 1305MHz expected, 1410MHz realized on gpu 0"},
		{"hangsample", []lifecycle.ExitClass{lifecycle.ExitInvalid}, "INVALID: gpu_sm_clock: not known: the clock was not sampled under load"},
		{"hang", []lifecycle.ExitClass{lifecycle.ExitDriftNode}, "the driver hangs"},
		{"crash", []lifecycle.ExitClass{lifecycle.ExitDriftNode}, "no GPU data: sbench-gpu ended with "},
		{"lost=0", []lifecycle.ExitClass{lifecycle.ExitDriftNode}, "gpu 0: the GPU is lost"},
		{"nodriver", []lifecycle.ExitClass{lifecycle.ExitDriftNode}, "the driver is not loaded"},
		{"busy", []lifecycle.ExitClass{lifecycle.ExitDriftNode}, "ENV_DRIFT: other processes none expected, pid 4242 realized on gpu 0"},
		{"noecc", []lifecycle.ExitClass{lifecycle.ExitDriftNode}, "ENV_DRIFT: ecc enabled expected, disabled realized on gpu 0"},
		{"throttle", []lifecycle.ExitClass{lifecycle.ExitInvalid}, "INVALID: gpu_throttle"},
	}
	for _, tt := range tests {
		t.Run("scenario "+tt.scenario, func(t *testing.T) {
			b := drift{inject: func(b *batch.Spec, s *setting.Setting, _ *realNode) {
				s.Environment = setting.Environment{
					Driver: "550.54.15", CUDA: setting.Unpinned, NCCL: setting.Unpinned, MIG: setting.Unpinned, ECC: "enabled", SMClock: "1305MHz",
					MemClock: setting.Unpinned, PowerLimit: setting.Unpinned, Kernel: setting.Unpinned, Governor: setting.Unpinned,
				}
				b.Node.GPUHelper = ""
				b.Node.Deadlines.GPU = 3 * time.Second
			}}.bench(t)
			path := realHelper(t, dir, strings.Trim("model=l4,count=1,pcie,"+tt.scenario, ","))
			b.spec.Node.GPUHelper, b.spec.Node.Clocks = path, batch.Clocks{Method: batch.ClocksHelper, Helper: []string{path}}
			b.freeze()
			_, out := b.run()
			m := b.sealed()
			b.nothingLeft()
			reasons := strings.Join(m.Reasons, "\n")
			found := false
			for _, class := range tt.classes {
				found = found || m.ExitClass == class
			}
			if !found || !strings.Contains(reasons, tt.want) || tt.want == "" && strings.Contains(reasons, "gpu_") && !strings.Contains(reasons, "not sampled") {
				t.Errorf("%s: %s\n%s", m.ExitClass, reasons, out)
			}
			if strings.Contains(out, "locked the clocks") && !lastReset(t, filepath.Join(dir, "state")) {
				t.Error("the clocks are still locked")
			}
		})
	}
}

// lastReset reports whether the stub's last note is that of a reset.
func lastReset(t *testing.T, state string) bool {
	t.Helper()
	text, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	return strings.HasSuffix(string(text), "0 0 0\n")
}
