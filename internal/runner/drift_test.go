package runner

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/setting"
)

func ptr[T any](v T) *T { return &v }

// l4s is what sbench-gpu says of a node with four L4, in good order.
func l4s() *fingerprint.GPUs {
	g := &fingerprint.GPUs{Version: fingerprint.GPUVersion, Driver: ptr("550.54.15"), CUDADriver: ptr("12.4")}
	for i := range 4 {
		g.Topology = append(g.Topology, []string{"node", "node", "node", "node"})
		g.Devices = append(g.Devices, fingerprint.GPU{
			Index: i, UUID: ptr(fmt.Sprintf("GPU-%d", i)), Name: ptr("NVIDIA L4"), PCI: ptr(fmt.Sprintf("0000:%02d:00.0", i)),
			MemoryTotal: ptr(int64(24152899584)), MemoryUsed: ptr(int64(4 << 20)), MIG: ptr(false), ECC: ptr(true),
			ECCVolatile: fingerprint.ECCCounts{Corrected: ptr(int64(0)), Uncorrected: ptr(int64(0))},
			Clocks:      fingerprint.Clocks{SM: ptr(int64(210)), SMTarget: ptr(int64(1410)), MemTarget: ptr(int64(6251))},
			Power:       fingerprint.Power{Enforced: ptr(72.0), Usage: ptr(11.0)}, Throttle: &[]string{"gpu_idle"},
			RemappedRows: &fingerprint.RowRemaps{}, ProcessesKnown: true, TemperatureC: ptr(int64(30)),
		})
	}
	return g
}

// realNode is a node: what its helper says before and after the measurement,
// and while it runs.
type realNode struct {
	before, after *fingerprint.GPUs
	sample        fingerprint.GPUSample
	// second and secondAfter are the second node's of a gang; nil is the first's.
	second, secondAfter *fingerprint.GPUs
	// staged is shell that the first snapshot runs: the artefacts are hashed then,
	// and the engine is not started.
	staged string
	script string // instead of all that
}

func newNode() *realNode {
	return &realNode{before: l4s(), after: l4s(), sample: fingerprint.GPUSample{
		Utilization: ptr(int64(90)), SM: ptr(int64(1410)), Mem: ptr(int64(6251)), EnergyMillijoules: ptr(int64(5)), Throttle: &[]string{"sw_power_cap"},
	}}
}

// both changes what is said before and after alike.
func (n *realNode) both(change func(*fingerprint.GPUs)) { change(n.before); change(n.after) }

// install writes a helper that says it all, and returns its path.
func (n *realNode) install(t *testing.T, dir string) string {
	t.Helper()
	write := func(name string, v any) {
		text, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("before.json", n.before)
	write("after.json", n.after)
	write("sample.json", n.sample)
	write("before-n2.json", cmp.Or(n.second, n.before))
	write("after-n2.json", cmp.Or(n.secondAfter, n.second, n.after))
	script := n.script
	if script == "" {
		script = `node=
		tr '\0' '\n' </proc/$PPID/environ | grep -qx SLURMD_NODENAME=n2 && node=-n2
		if [ "$1" = snapshot ]; then
			if [ -e seen$node ]; then exec cat after$node.json; fi
			touch seen$node; ` + n.staged + `
			exec cat before$node.json
		fi
		while :; do
			now=$(awk '{printf "%.0f", $1 * 1e9}' /proc/uptime)
			sed "s/\"time_ns\":0/\"time_ns\":$now/" sample.json
			sleep 0.05
		done`
	}
	path := filepath.Join(dir, "sbench-gpu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\ncd "+dir+" || exit 1\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// kernel is this machine's, which the matrix pins.
func kernel(t testing.TB) string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// drift is one injected difference. inject changes the frozen batch, the setting
// and the node; during, where set, is done while the measurement runs.
type drift struct {
	name   string
	inject func(b *batch.Spec, s *setting.Setting, n *realNode)
	during func(b *bench) error
	class  lifecycle.ExitClass
	want   string // must be in exactly one reason, the first
}

// placedDrift is a drift with the nodes that it is on and their variables.
type placedDrift struct {
	drift
	ranks int // nodes of the gang; 0 is one node
	env   func(rank int) []string
}

func onOneNode(all []drift) []placedDrift {
	placed := make([]placedDrift, len(all))
	for i, d := range all {
		placed[i] = placedDrift{drift: d}
	}
	return placed
}

func injected() []drift {
	dev := func(n *realNode) *fingerprint.GPU { return &n.before.Devices[0] }
	after := func(n *realNode) *fingerprint.GPU { return &n.after.Devices[0] }
	const art, node, inv, stg = lifecycle.ExitDriftArtefact, lifecycle.ExitDriftNode, lifecycle.ExitInvalid, lifecycle.ExitStaging
	env := func(change func(e *setting.Environment)) func(*batch.Spec, *setting.Setting, *realNode) {
		return func(_ *batch.Spec, s *setting.Setting, _ *realNode) { change(&s.Environment) }
	}
	on := func(change func(n *realNode)) func(*batch.Spec, *setting.Setting, *realNode) {
		return func(_ *batch.Spec, _ *setting.Setting, n *realNode) { change(n) }
	}
	return []drift{
		{"image digest", func(_ *batch.Spec, s *setting.Setting, _ *realNode) { s.Image.Digest = noDigest }, nil, art, "ENV_DRIFT: image digest " + noDigest + " expected, sha256:"},
		{"image absent", func(_ *batch.Spec, s *setting.Setting, _ *realNode) { s.Image.Path += ".absent" }, nil, stg, "STAGING: "},
		{"checkpoint digest", func(_ *batch.Spec, s *setting.Setting, _ *realNode) { s.Model.Checkpoint.Digest = noDigest }, nil, art, "ENV_DRIFT: checkpoint digest " + noDigest + " expected, sha256:"},
		{"checkpoint written during the run", nil, func(b *bench) error {
			return os.WriteFile(b.spec.Settings["h"].Model.Checkpoint.Path, []byte("Weights"), 0o644)
		}, inv, "INVALID: artefacts: "},
		{"checkpoint replaced during the run", nil, func(b *bench) error {
			path := b.spec.Settings["h"].Model.Checkpoint.Path
			if err := os.WriteFile(path+".new", []byte("weights"), 0o644); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		}, inv, "was replaced or written since it was hashed"},
		{"checkpoint removed during the run", nil, func(b *bench) error {
			return os.Remove(b.spec.Settings["h"].Model.Checkpoint.Path)
		}, inv, "INVALID: artefacts: "},
		{"engine version", func(_ *batch.Spec, s *setting.Setting, _ *realNode) { s.Engine.Version = "9.9.9" }, nil, art, "ENV_DRIFT: engine.version 9.9.9 expected, "},
		{"cuda unreadable", env(func(e *setting.Environment) { e.CUDA = "12.4" }), nil, art, "ENV_DRIFT: cuda 12.4 expected, could not be read"},
		{"nccl unreadable", env(func(e *setting.Environment) { e.NCCL = "2.20.5" }), nil, art, "ENV_DRIFT: nccl 2.20.5 expected, could not be read"},
		{"kernel", env(func(e *setting.Environment) { e.Kernel = "1.2.3" }), nil, node, "ENV_DRIFT: kernel 1.2.3 expected, "},
		{"governor", env(func(e *setting.Environment) { e.Governor = "no-such-governor" }), nil, node, "ENV_DRIFT: governor no-such-governor expected, "},
		{"driver", on(func(n *realNode) { n.before.Driver = ptr("535.1") }), nil, node, "ENV_DRIFT: driver 550.54.15 expected, 535.1 realized"},
		{"driver unreadable", on(func(n *realNode) { n.before.Driver = nil }), nil, node, "ENV_DRIFT: driver 550.54.15 expected, could not be read"},
		{"driver changed during the run", on(func(n *realNode) { n.after.Driver = ptr("551") }), nil, inv, "ENV_DRIFT: driver 550.54.15 expected, 551 realized"},
		{"mig", on(func(n *realNode) { dev(n).MIG = ptr(true) }), nil, node, "ENV_DRIFT: mig disabled expected, enabled realized on gpu 0"},
		{"mig unreadable", on(func(n *realNode) { dev(n).MIG = nil }), nil, node, "ENV_DRIFT: mig disabled expected, could not be read (NVML does not say) on gpu 0"},
		{"mig changed during the run", on(func(n *realNode) { after(n).MIG = ptr(true) }), nil, inv, "ENV_DRIFT: mig disabled expected, enabled realized on gpu 0"},
		{"ecc", on(func(n *realNode) { dev(n).ECC = ptr(false) }), nil, node, "ENV_DRIFT: ecc enabled expected, disabled realized on gpu 0"},
		{"ecc unreadable", on(func(n *realNode) { dev(n).ECC = nil }), nil, node, "ENV_DRIFT: ecc enabled expected, could not be read"},
		{"sm clock", on(func(n *realNode) { dev(n).Clocks.SMTarget = ptr(int64(2040)) }), nil, node, "ENV_DRIFT: sm_clock 1410MHz expected, 2040MHz realized on gpu 0"},
		{"sm clock under load", on(func(n *realNode) { n.sample.SM = ptr(int64(1200)) }), nil, inv, "INVALID: gpu_sm_clock: under load the clock was up to 210 MHz away"},
		{"memory clock", on(func(n *realNode) { dev(n).Clocks.MemTarget = ptr(int64(5001)) }), nil, node, "ENV_DRIFT: mem_clock 6251MHz expected, 5001MHz realized on gpu 0"},
		{"memory clock unreadable", on(func(n *realNode) { dev(n).Clocks.MemTarget = nil }), nil, node, "ENV_DRIFT: mem_clock 6251MHz expected, could not be read"},
		{"clocks not sampled", on(func(n *realNode) { n.sample.SM = nil }), nil, inv, "INVALID: gpu_sm_clock: not known: the clock was not sampled under load"},
		{"power limit", on(func(n *realNode) { dev(n).Power.Enforced = ptr(50.0) }), nil, node, "ENV_DRIFT: power_limit 72W expected, 50W realized on gpu 0"},
		{"power limit changed during the run", on(func(n *realNode) { after(n).Power.Enforced = ptr(50.0) }), nil, inv, "ENV_DRIFT: power_limit 72W expected, 50W realized on gpu 0"},
		{"another product", on(func(n *realNode) { dev(n).Name = ptr("NVIDIA L40S") }), nil, node, "ENV_DRIFT: hardware.gpu l4 expected, NVIDIA L40S realized on gpu 0"},
		{"another memory size", on(func(n *realNode) { dev(n).MemoryTotal = ptr(int64(12 << 30)) }), nil, node, "ENV_DRIFT: hardware.gpu l4 expected, NVIDIA L4 realized on gpu 0"},
		{"one GPU of two", func(_ *batch.Spec, s *setting.Setting, _ *realNode) { s.Hardware.GPUs = 2 }, nil, node, "ENV_DRIFT: hardware.gpus 2 expected, 1 realized"},
		{"link", func(_ *batch.Spec, s *setting.Setting, _ *realNode) { s.Hardware.Link = "nvlink" }, nil, node, "ENV_DRIFT: hardware.link nvlink expected, pcie realized"},
		{"neighbour", on(func(n *realNode) { dev(n).Processes = []fingerprint.GPUProcess{{PID: 1}} }), nil, node, "ENV_DRIFT: other processes none expected, pid 1 realized on gpu 0"},
		{"neighbours unknown", on(func(n *realNode) { dev(n).ProcessesKnown = false }), nil, node, "ENV_DRIFT: other processes none expected, could not be read"},
		{"neighbour during the run", on(func(n *realNode) { after(n).Processes = []fingerprint.GPUProcess{{PID: 1}} }), nil, inv, "pid 1"},
		{"memory error during the run", on(func(n *realNode) { after(n).ECCVolatile.Uncorrected = ptr(int64(2)) }), nil, inv, "INVALID: gpu_ecc: gpu 0 had 2 uncorrected memory errors"},
		{"memory errors unreadable afterwards", on(func(n *realNode) { after(n).ECCVolatile.Uncorrected = nil }), nil, inv, "INVALID: gpu_ecc: not known: "},
		{"row remapped during the run", on(func(n *realNode) { after(n).RemappedRows = &fingerprint.RowRemaps{Corrected: 1} }), nil, inv, "INVALID: gpu_memory_repair: gpu 0 remapped memory rows"},
		{"throttled at the end", on(func(n *realNode) { after(n).Throttle = &[]string{"hw_thermal_slowdown"} }), nil, inv, "INVALID: gpu_throttle: gpu 0: hw_thermal_slowdown"},
		{"throttled under load", on(func(n *realNode) { n.sample.Throttle = &[]string{"hw_power_brake_slowdown"} }), nil, inv, "INVALID: gpu_throttle_under_load: "},
		{"another GPU afterwards", on(func(n *realNode) { after(n).UUID = ptr("GPU-x") }), nil, inv, "INVALID: gpu_devices: gpu 0 is gone"},
		{"GPU lost during the run", on(func(n *realNode) { n.after.Devices = n.after.Devices[1:] }), nil, inv, "INVALID: gpu_devices: gpu 0 is gone"},
		{"driver hangs", on(func(n *realNode) { n.script = "sleep 300" }), nil, node, "could not be read (no GPU data: sbench-gpu did not answer within 3s: the driver hangs)"},
		{"driver hangs afterwards", on(func(n *realNode) {
			n.script = `if [ "$1" != snapshot ]; then exec sleep 300; fi; if [ -e seen ]; then exec sleep 300; fi; touch seen; exec cat before.json`
		}), nil, inv, "the driver hangs"},
		{"helper crashes", on(func(n *realNode) { n.script = "kill -SEGV $$" }), nil, node, "could not be read (no GPU data: sbench-gpu ended with killed by signal 11"},
		{"no helper", func(b *batch.Spec, _ *setting.Setting, _ *realNode) { b.Node.GPUHelper = "" }, nil, node, "could not be read (the site has no sbench-gpu)"},
	}
}

// harmless are differences that must not refuse.
func harmless() []drift {
	both := func(change func(d *fingerprint.GPU)) func(*batch.Spec, *setting.Setting, *realNode) {
		return func(_ *batch.Spec, _ *setting.Setting, n *realNode) {
			n.both(func(g *fingerprint.GPUs) { change(&g.Devices[0]) })
		}
	}
	after := func(change func(d *fingerprint.GPU)) func(*batch.Spec, *setting.Setting, *realNode) {
		return func(_ *batch.Spec, _ *setting.Setting, n *realNode) { change(&n.after.Devices[0]) }
	}
	return []drift{
		{name: "nothing"},
		{name: "PCI address", inject: both(func(d *fingerprint.GPU) { d.PCI = ptr("0000:ff:00.0") })},
		{name: "UUID", inject: both(func(d *fingerprint.GPU) { d.UUID = ptr("GPU-other") })},
		{name: "serial number", inject: both(func(d *fingerprint.GPU) { d.Serial = ptr("123") })},
		{name: "memory used before", inject: both(func(d *fingerprint.GPU) { d.MemoryUsed = ptr(int64(1 << 30)) })},
		{name: "memory still used afterwards", inject: after(func(d *fingerprint.GPU) { d.MemoryUsed = ptr(int64(20 << 30)) })},
		{name: "temperature", inject: after(func(d *fingerprint.GPU) { d.TemperatureC = ptr(int64(70)) })},
		{name: "current clock at idle", inject: both(func(d *fingerprint.GPU) { d.Clocks.SM = ptr(int64(300)) })},
		{name: "power drawn", inject: after(func(d *fingerprint.GPU) { d.Power.Usage = ptr(71.0) })},
		{name: "old memory errors", inject: both(func(d *fingerprint.GPU) { d.ECCVolatile.Uncorrected = ptr(int64(7)) })},
		{name: "corrected errors during the run", inject: after(func(d *fingerprint.GPU) { d.ECCVolatile.Corrected = ptr(int64(7)) })},
		{name: "old remapped rows", inject: both(func(d *fingerprint.GPU) { d.RemappedRows = &fingerprint.RowRemaps{Corrected: 3} })},
		{name: "VBIOS", inject: both(func(d *fingerprint.GPU) { d.VBIOS = ptr("1.2") })},
		{name: "power cap reached", inject: after(func(d *fingerprint.GPU) { d.Throttle = &[]string{"sw_power_cap"} })},
		{name: "PCIe link idles", inject: both(func(d *fingerprint.GPU) { d.PCIe.Generation = ptr(int64(1)) })},
		{name: "a neighbour on another GPU", inject: func(_ *batch.Spec, _ *setting.Setting, n *realNode) {
			n.both(func(g *fingerprint.GPUs) { g.Devices[3].Processes = []fingerprint.GPUProcess{{PID: 1}} })
		}},
		{name: "another GPU of another product", inject: func(_ *batch.Spec, _ *setting.Setting, n *realNode) {
			n.both(func(g *fingerprint.GPUs) { g.Devices[2].Name = ptr("NVIDIA T4") })
		}},
		{name: "unpinned driver that cannot be read", inject: func(_ *batch.Spec, s *setting.Setting, n *realNode) {
			s.Environment.Driver = setting.Unpinned
			n.both(func(g *fingerprint.GPUs) { g.Driver = nil })
		}},
		{name: "unpinned clocks of any value", inject: func(_ *batch.Spec, s *setting.Setting, n *realNode) {
			s.Environment.SMClock, n.sample.SM = setting.Unpinned, ptr(int64(999))
		}},
		{name: "no checkpoint pinned", inject: func(_ *batch.Spec, s *setting.Setting, _ *realNode) { s.Model.Checkpoint.Digest = setting.Unpinned }},
		{name: "image unpinned", inject: func(_ *batch.Spec, s *setting.Setting, _ *realNode) { s.Image.Digest = setting.Unpinned }},
		{name: "checkpoint read during the run", during: func(b *bench) error {
			_, err := os.ReadFile(b.spec.Settings["h"].Model.Checkpoint.Path)
			return err
		}},
	}
}

// bench builds the batch of a drift on a real node.
func (d drift) bench(t *testing.T) *bench {
	n := newNode()
	return newBench(t, func(b *batch.Spec, s *setting.Setting) {
		b.HardwareClass = "real"
		b.Node.GPUHelper = "to be installed"
		b.Node.Deadlines.GPU = 3 * time.Second
		s.Environment = setting.Environment{
			Driver: "550.54.15", CUDA: setting.Unpinned, NCCL: setting.Unpinned, MIG: "disabled", ECC: "enabled", SMClock: "1410MHz",
			MemClock: "6251MHz", PowerLimit: "72W", Kernel: kernel(t), Governor: setting.Unpinned,
		}
		s.Hardware.Link = "pcie"
		w := &s.Workload
		w.Warmup, w.Ramp, w.Duration, w.Drain = 0, 0, 600*time.Millisecond, time.Second
		if d.inject != nil {
			d.inject(b, s, n)
		}
		if b.Node.GPUHelper != "" {
			b.Node.GPUHelper = n.install(t, t.TempDir())
		}
	})
}

// run runs it to its end.
func (d placedDrift) run(t *testing.T) (result.Manifest, int, string) {
	t.Helper()
	b := d.bench(t)
	if d.ranks > 1 {
		code, out := b.startRanks(d.ranks, d.env).wait()
		m := b.sealed()
		b.gangLeft()
		return m, code, out
	}
	var vars []string
	if d.env != nil {
		vars = d.env(0)
	}
	cmd, out := b.start(vars...)
	if d.during != nil {
		eventually(t, "measurement", b.logContains(result.RunnerLog, "msg=identify"))
		if err := d.during(b); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	m := b.sealed()
	b.nothingLeft()
	return m, cmd.ProcessState.ExitCode(), out.String()
}

// TestDriftMatrix injects one difference at a time into a run on a real node, of
// which the devices are scripted. `make drift` shows its last line.
func TestDriftMatrix(t *testing.T) {
	if testing.Short() {
		t.Skip("the drift matrix takes a minute or two; make drift runs it")
	}
	var refused, passed atomic.Int32
	refuse, allow := append(onOneNode(injected()), injectedTogether()...), append(onOneNode(harmless()), harmlessTogether()...)
	count := func(t *testing.T, n *atomic.Int32) {
		if !t.Failed() {
			n.Add(1)
		}
	}
	t.Run("refuse", func(t *testing.T) {
		for _, d := range refuse {
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				defer count(t, &refused)
				m, code, out := d.run(t)
				wantClass(t, code, m, out, d.class)
				if m.Valid {
					t.Error("the attempt is valid")
				}
				if !slices.ContainsFunc(m.Reasons, func(r string) bool { return strings.Contains(r, d.want) && !strings.Contains(r, "\n") }) {
					t.Errorf("reasons %q, none says %q", m.Reasons, d.want)
				}
			})
		}
	})
	t.Run("allow", func(t *testing.T) {
		for _, d := range allow {
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				defer count(t, &passed)
				m, _, out := d.run(t)
				// A client that a busy machine made late is another matter.
				if !m.EnvVerified || m.ExitClass != lifecycle.ExitMeasured && m.ExitClass != lifecycle.ExitInvalid {
					t.Fatalf("%s, verified %v: %q\n%s", m.ExitClass, m.EnvVerified, m.Reasons, out)
				}
				for _, r := range m.Reasons {
					if strings.Contains(r, "ENV_DRIFT") || strings.Contains(r, "gpu_") || strings.Contains(r, "artefacts") {
						t.Errorf("refused: %s", r)
					}
				}
			})
		}
	})
	fmt.Printf("refused %d/%d harmless %d/%d\n", refused.Load(), len(refuse), passed.Load(), len(allow))
}
