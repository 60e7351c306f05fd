//go:build cgo

package nvml

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"

	"sbench/internal/fingerprint"
)

// The tests start this very binary as sbench-gpu, with a stub of the library
// where the loader looks first.
func TestMain(m *testing.M) {
	if os.Getenv("SBENCH_TEST_ROLE") != "gpu" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	os.Exit(Main(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// stub builds the library and returns its folder.
func stub(t *testing.T, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	args := append(flags, "-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "../../tests/nvml/stub.c")
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("build the stub: %v\n%s", err, out)
	}
	return dir
}

func helper(t *testing.T, library, scenario string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = []string{"SBENCH_TEST_ROLE=gpu", "LD_LIBRARY_PATH=" + library, "SBENCH_NVML_STUB=" + scenario}
	return cmd
}

func snapshot(t *testing.T, library, scenario string) (fingerprint.GPUs, []byte) {
	t.Helper()
	out, err := helper(t, library, scenario, "snapshot").Output()
	var e *exec.ExitError
	if errors.As(err, &e) {
		t.Fatalf("%v\n%s%s", err, out, e.Stderr)
	}
	var g fingerprint.GPUs
	if err := json.Unmarshal(out, &g); err != nil {
		t.Fatal(err)
	}
	return g, out
}

func equal[T comparable](t *testing.T, what string, got *T, want T) {
	t.Helper()
	switch {
	case got == nil:
		t.Errorf("%s: null, want %v", what, want)
	case *got != want:
		t.Errorf("%s: %v, want %v", what, *got, want)
	}
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	library := stub(t)
	g, _ := snapshot(t, library, "")
	if len(g.Devices) != 8 || g.Version != fingerprint.GPUVersion {
		t.Fatalf("%d devices, version %d", len(g.Devices), g.Version)
	}
	equal(t, "driver", g.Driver, "550.54.15")
	equal(t, "CUDA", g.CUDADriver, "12.4")
	d := g.Devices[3]
	equal(t, "name", d.Name, "NVIDIA H100 80GB HBM3")
	equal(t, "uuid", d.UUID, "GPU-00000003")
	equal(t, "pci", d.PCI, "0000:13:00.0")
	equal(t, "memory", d.MemoryTotal, 85520809984)
	equal(t, "architecture", d.Architecture, "hopper")
	equal(t, "compute capability", d.ComputeCapability, "9.0")
	equal(t, "MIG", d.MIG, false)
	equal(t, "ECC", d.ECC, true)
	equal(t, "uncorrected", d.ECCVolatile.Uncorrected, 0)
	equal(t, "SM target", d.Clocks.SMTarget, 1410)
	equal(t, "SM clock", d.Clocks.SM, 1980)
	equal(t, "enforced limit", d.Power.Enforced, 650)
	equal(t, "power", d.Power.Usage, 71.503)
	equal(t, "compute mode", d.ComputeMode, "exclusive_process")
	equal(t, "energy", d.EnergyMillijoules, 4_000_000)
	if d.Serial != nil || d.RetiredPages != nil || d.PCIe.GenerationMax != nil {
		t.Errorf("not supported, but not null: %v %v %v", d.Serial, d.RetiredPages, d.PCIe.GenerationMax)
	}
	if d.Throttle == nil || len(*d.Throttle) != 1 || (*d.Throttle)[0] != "gpu_idle" {
		t.Errorf("throttle: %v", d.Throttle)
	}
	if len(d.NVLinks) != 18 || !d.ProcessesKnown || len(d.Processes) != 0 || g.Topology[0][7] != "nvlink×18" || g.Topology[2][2] != "self" {
		t.Errorf("%d links, processes %v, topology %v", len(d.NVLinks), d.Processes, g.Topology)
	}
	if id := fingerprint.Identify(d); id != "h100-sxm" {
		t.Errorf("identified as %q", id)
	}
	for _, why := range []string{"DeviceGetSerial: not supported", "DeviceGetMaxPcieLinkWidth: not in this driver"} {
		if !strings.Contains(strings.Join(g.Unsupported, "\n"), why) {
			t.Errorf("unsupported does not say %q: %q", why, g.Unsupported)
		}
	}
}

func TestSnapshot_Scenarios(t *testing.T) {
	t.Parallel()
	library := stub(t)
	g, _ := snapshot(t, library, "mig,count=1")
	equal(t, "MIG", g.Devices[0].MIG, true)
	if m := g.Devices[0].MIGInstances; len(m) != 1 || *m[0].Name != "NVIDIA H100 80GB HBM3 MIG 1g.10gb" || *m[0].GPUInstance != 9 || *m[0].MemoryTotal != 10200547328 {
		t.Errorf("MIG instances: %+v", m)
	}
	g, _ = snapshot(t, library, "noecc,model=l4,count=4,pcie")
	d := g.Devices[0]
	equal(t, "ECC", d.ECC, false)
	if d.MIG != nil || d.ECCVolatile.Uncorrected != nil || len(d.NVLinks) != 0 || g.Topology[0][1] != "node" || fingerprint.Identify(d) != "l4" {
		t.Errorf("L4: MIG %v, ECC count %v, %d links, topology %v, %q", d.MIG, d.ECCVolatile.Uncorrected, len(d.NVLinks), g.Topology, fingerprint.Identify(d))
	}
	g, _ = snapshot(t, library, "eccerrors,throttle,busy,model=a100")
	d = g.Devices[0]
	equal(t, "uncorrected", d.ECCVolatile.Uncorrected, 3)
	equal(t, "aggregate", d.ECCAggregate.Uncorrected, 0)
	if got := strings.Join(*d.Throttle, " "); got != "hw_slowdown hw_thermal_slowdown unknown_0x1000" {
		t.Errorf("throttle: %s", got)
	}
	if len(d.Processes) != 1 || d.Processes[0].PID != 4242 || d.Processes[0].Memory != nil || fingerprint.Identify(d) != "a100-sxm" {
		t.Errorf("processes: %+v", d.Processes)
	}
}

// TestSnapshot_OldDriver: functions that the library lacks are null and do not
// end the process.
func TestSnapshot_OldDriver(t *testing.T) {
	t.Parallel()
	g, out := snapshot(t, stub(t, "-DOLD"), "count=2")
	d := g.Devices[1]
	equal(t, "name", d.Name, "NVIDIA H100 80GB HBM3")
	if d.ECC != nil || d.Clocks.SM != nil || d.Throttle != nil || d.ProcessesKnown || d.RemappedRows != nil || g.NVML != nil {
		t.Errorf("%+v", d)
	}
	if g.Topology[0][1] != "" || !bytes.Contains(out, []byte(`"ecc":null`)) || !bytes.Contains(out, []byte(`"processes":null`)) {
		t.Errorf("%s", out)
	}
}

func TestMain_Faults(t *testing.T) {
	t.Parallel()
	full, empty := stub(t), t.TempDir()
	tests := []struct {
		name, library, scenario string
		args                    []string
		status                  int
		code, text              string
	}{
		{"no library", empty, "", []string{"snapshot"}, exitNoDriver, "no_library", "NVML: libnvidia-ml.so.1 was not found"},
		{"no driver", full, "nodriver", []string{"snapshot"}, exitNoDriver, "no_driver", "NVML: the driver is not loaded"},
		{"no driver, sample", full, "nodriver", []string{"sample"}, exitNoDriver, "no_driver", "NVML: the driver is not loaded"},
		{"lost", full, "lost=5", []string{"snapshot"}, exitFault, "gpu_lost", "gpu 5: the GPU is lost: it fell off the bus"},
		{"no such gpu", full, "", []string{"lock-clocks", "--sm", "1410", "--gpus", "9"}, exitFault, "usage", "there is no gpu 9"},
		{"memory clock", full, "", []string{"lock-clocks", "--sm", "1410", "--mem", "2619", "--gpus", "0"}, exitFault, "", "gpu 0: lock"},
		{"unknown command", full, "", []string{"dance"}, exitUsage, "", ""},
		{"no command", full, "", nil, exitUsage, "", ""},
		{"no clock", full, "", []string{"lock-clocks"}, exitUsage, "", ""},
		{"short period", full, "", []string{"sample", "--period", "1us"}, exitUsage, "", ""},
		{"bad list", full, "", []string{"reset-clocks", "--gpus", "a"}, exitUsage, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := helper(t, tt.library, tt.scenario, tt.args...)
			out, err := cmd.Output()
			if status := cmd.ProcessState.ExitCode(); status != tt.status {
				t.Fatalf("exit status %d, want %d: %v %s", status, tt.status, err, out)
			}
			var e fingerprint.GPUError
			if tt.text != "" && (json.Unmarshal(out, &e) != nil || tt.code != "" && e.Code != tt.code || !strings.HasPrefix(e.Error, tt.text)) {
				t.Errorf("%s", out)
			}
		})
	}
}

func TestMain_Clocks(t *testing.T) {
	t.Parallel()
	library := stub(t)
	for _, args := range [][]string{{"lock-clocks", "--sm", "1410"}, {"reset-clocks", "--gpus", "0,1"}} {
		out, err := helper(t, library, "", args...).Output()
		if os.Getuid() == 0 && err != nil {
			t.Errorf("%q: %v %s", args, err, out)
		}
		if os.Getuid() != 0 && !bytes.Contains(out, []byte("no_permission")) {
			t.Errorf("%q: %s", args, out)
		}
	}
}

func TestSample(t *testing.T) {
	t.Parallel()
	cmd := helper(t, stub(t), "count=2", "sample", "--period", "5ms")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	began := monotonic()
	var last fingerprint.GPUSample
	lines := bufio.NewScanner(pipe)
	for i := range 20 {
		if !lines.Scan() {
			t.Fatal("the stream ended")
		}
		if err := json.Unmarshal(lines.Bytes(), &last); err != nil || last.GPU != i%2 {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
	}
	equal(t, "utilization", last.Utilization, 97)
	equal(t, "instant power", last.PowerInstant, 412)
	equal(t, "energy", last.EnergyMillijoules, 2_000_000)
	if last.PowerAverage != nil {
		t.Errorf("average power is not supported, but %v", *last.PowerAverage)
	}
	if last.TimeNS < began || last.TimeNS > monotonic() {
		t.Errorf("time %d is not on this clock (%d)", last.TimeNS, began)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// TestSample_ReaderGone: the sampler does not outlive the one who reads it.
func TestSample_ReaderGone(t *testing.T) {
	t.Parallel()
	cmd := helper(t, stub(t), "count=1", "sample", "--period", "1ms")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pipe.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Kill()
		t.Error("it goes on without a reader")
	}
}

// TestSnapshot_Mock asks go-nvml's own mock of a DGX H100, of which only some
// functions exist.
func TestSnapshot_Mock(t *testing.T) {
	t.Parallel()
	server := dgxh100.New()
	known := map[string]bool{
		"nvmlDeviceGetCount_v2": true, "nvmlDeviceGetUUID": true, "nvmlDeviceGetName": true, "nvmlSystemGetDriverVersion": true,
		"nvmlSystemGetCudaDriverVersion_v2": false, "nvmlDeviceGetMemoryInfo": true, "nvmlDeviceGetMigMode": true,
	}
	s := &session{lib: server, has: func(symbol string) bool { return known[symbol] }}
	if code := server.Init(); code != lib.SUCCESS {
		t.Fatal(code)
	}
	g, err := s.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Devices) != 8 || g.Devices[0].Name == nil || !strings.Contains(*g.Devices[0].Name, "H100") || g.Devices[0].ECC != nil || g.CUDADriver != nil {
		t.Errorf("%+v", g.Devices[0])
	}
}

// sampled returns the samples of so many turns.
func sampled(t *testing.T, cmd *exec.Cmd, n int) []fingerprint.GPUSample {
	t.Helper()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	out := make([]fingerprint.GPUSample, n)
	lines := bufio.NewScanner(pipe)
	for i := range out {
		if !lines.Scan() {
			t.Fatal("the stream ended")
		}
		if err := json.Unmarshal(lines.Bytes(), &out[i]); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
	}
	return out
}

// TestSample_Xid: an error that the driver reports is in one sample of its device.
func TestSample_Xid(t *testing.T) {
	t.Parallel()
	library := stub(t)
	seen := 0
	for _, x := range sampled(t, helper(t, library, "count=2,xid=79", "sample", "--period", "2ms"), 12) {
		if x.Xids == nil {
			t.Fatalf("gpu %d is not listened to", x.GPU)
		}
		for _, xid := range *x.Xids {
			if seen++; xid != 79 || x.GPU != 0 {
				t.Errorf("Xid %d on gpu %d", xid, x.GPU)
			}
		}
	}
	if seen != 1 {
		t.Errorf("the error was seen %d times", seen)
	}
	for scenario, library := range map[string]string{"noevents,count=1": library, "count=1": stub(t, "-DOLD")} {
		if x := sampled(t, helper(t, library, scenario, "sample", "--period", "2ms"), 1)[0]; x.Xids != nil {
			t.Errorf("%s: %v, want null", scenario, *x.Xids)
		}
	}
}

// TestClocks_Locked: what one process locks, by UUID, another sees under load, and
// a third resets.
func TestClocks_Locked(t *testing.T) {
	t.Parallel()
	library, state := stub(t), filepath.Join(t.TempDir(), "state")
	run := func(scenario string, args ...string) ([]byte, error) {
		cmd := helper(t, library, scenario, args...)
		cmd.Env = append(cmd.Env, "SBENCH_NVML_STATE="+state)
		return cmd.Output()
	}
	clocks := func() []int64 {
		t.Helper()
		cmd := helper(t, library, "count=2", "sample", "--period", "2ms")
		cmd.Env = append(cmd.Env, "SBENCH_NVML_STATE="+state)
		var out []int64
		for _, x := range sampled(t, cmd, 2) {
			out = append(out, *x.SM)
		}
		return out
	}
	if out, err := run("count=2,denied", "lock-clocks", "--sm", "1410"); err == nil || !bytes.Contains(out, []byte("no_permission")) {
		t.Errorf("without the right: %v %s", err, out)
	}
	if out, err := run("count=2", "lock-clocks", "--sm", "1410", "--gpus", "GPU-00000001"); err != nil {
		t.Fatalf("lock: %v %s", err, out)
	}
	if got := clocks(); got[0] != 1980 || got[1] != 1410 {
		t.Errorf("locked: %v", got)
	}
	if out, err := run("count=2", "reset-clocks", "--gpus", "GPU-00000001"); err != nil {
		t.Fatalf("reset: %v %s", err, out)
	}
	if got := clocks(); got[1] != 1980 {
		t.Errorf("reset: %v", got)
	}
	if out, err := run("count=2", "lock-clocks", "--sm", "1410", "--gpus", "GPU-no-such"); err == nil || !bytes.Contains(out, []byte("there is no gpu GPU-no-such")) {
		t.Errorf("unknown device: %v %s", err, out)
	}
}
