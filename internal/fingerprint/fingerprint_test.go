package fingerprint

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/result"
	"sbench/internal/setting"
)

func ptr[T any](v T) *T { return &v }

// pinned is a setting that pins everything, and node eight devices as it wants.
func pinned() setting.Setting {
	return setting.Setting{
		Model:    setting.Model{Name: "m", Checkpoint: setting.Checkpoint{Path: "m", Digest: "sha256:aa"}},
		Image:    setting.Image{Kind: setting.ImageSIF, Digest: "sha256:bb"},
		Engine:   setting.Engine{Kind: setting.EngineVLLM, Version: "0.9.2"},
		Hardware: setting.Hardware{GPU: "h100-sxm", GPUs: 8, Nodes: 1, Link: "nvlink", Placement: setting.PlacementNode},
		Environment: setting.Environment{
			Driver: "550.54.15", CUDA: "12.4", NCCL: "2.20.5", MIG: "disabled", ECC: "enabled",
			SMClock: "1410MHz", MemClock: "2619MHz", PowerLimit: "700W", Kernel: "5.14.0", Governor: "performance",
		},
	}
}

func realized() Fingerprint {
	n := Node{
		Hostname: "n1", Kernel: "5.14.0", Governor: "performance", Arch: "amd64", BootID: "b",
		GPUsAllocated: ptr(8), GPUs: &GPUs{Driver: ptr("550.54.15")},
	}
	for i := range 8 {
		row := make([]string, 8)
		for j := range row {
			row[j] = "nvlink×18"
		}
		n.GPUs.Topology = append(n.GPUs.Topology, row)
		n.GPUs.Devices = append(n.GPUs.Devices, GPU{
			Index: i, UUID: ptr("GPU-" + string(rune('a'+i))), Name: ptr("NVIDIA H100 80GB HBM3"), MemoryTotal: ptr(int64(85520809984)),
			MIG: ptr(false), ECC: ptr(true), Clocks: Clocks{SMTarget: ptr(int64(1410)), MemTarget: ptr(int64(2619))},
			Power: Power{Enforced: ptr(700.0)}, ProcessesKnown: true, ECCVolatile: ECCCounts{Uncorrected: ptr(int64(0))},
			Throttle: &[]string{"gpu_idle"}, RetiredPages: ptr(int64(0)), RemappedRows: &RowRemaps{},
		})
	}
	return Fingerprint{
		Image: Artefact{Digest: "sha256:bb"}, Checkpoint: Artefact{Digest: "sha256:aa"}, Nodes: []Node{n},
		Engine: Engine{Version: "0.9.2", CUDA: "12.4", NCCL: "2.20.5"},
	}
}

func refusals(s setting.Setting, f Fingerprint, class string) []string {
	var lines []string
	for _, stage := range []Stage{StageNode, StageEngine} {
		for _, i := range Compare(s, f, class, stage) {
			if i.Refuses() {
				lines = append(lines, i.Line())
			}
		}
	}
	return lines
}

// TestCompare_Drift injects one difference each; exactly one line must name it.
func TestCompare_Drift(t *testing.T) {
	t.Parallel()
	dev := func(f *Fingerprint) *GPU { return &f.Nodes[0].GPUs.Devices[3] }
	tests := []struct {
		name   string
		change func(s *setting.Setting, f *Fingerprint)
		want   string
	}{
		{"image", func(_ *setting.Setting, f *Fingerprint) { f.Image.Digest = "sha256:cc" }, "ENV_DRIFT: image digest sha256:bb expected, sha256:cc realized"},
		{"image unreadable", func(_ *setting.Setting, f *Fingerprint) { f.Image.Digest = "" }, "ENV_DRIFT: image digest sha256:bb expected, could not be read"},
		{"checkpoint", func(_ *setting.Setting, f *Fingerprint) { f.Checkpoint.Digest = "sha256:cc" }, "ENV_DRIFT: checkpoint digest sha256:aa expected, sha256:cc realized"},
		{"nodes", func(s *setting.Setting, _ *Fingerprint) { s.Hardware.Nodes = 2 }, "ENV_DRIFT: hardware.nodes 2 expected, 1 realized"},
		{"kernel", func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].Kernel = "6.1.0" }, "ENV_DRIFT: kernel 5.14.0 expected, 6.1.0 realized"},
		{"kernel unreadable", func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].Kernel = "" }, "ENV_DRIFT: kernel 5.14.0 expected, could not be read"},
		{"governor", func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].Governor = "mixed: performance, powersave" }, "ENV_DRIFT: governor performance expected, mixed: performance, powersave realized"},
		{"governor unreadable", func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].Governor = "" }, "ENV_DRIFT: governor performance expected, could not be read (the kernel offers no frequency control)"},
		{"driver", func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].GPUs.Driver = ptr("535.1") }, "ENV_DRIFT: driver 550.54.15 expected, 535.1 realized"},
		{"driver unreadable", func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].GPUs.Driver = nil }, "ENV_DRIFT: driver 550.54.15 expected, could not be read"},
		{"cuda", func(_ *setting.Setting, f *Fingerprint) { f.Engine.CUDA = "12.6" }, "ENV_DRIFT: cuda 12.4 expected, 12.6 realized"},
		{"nccl", func(_ *setting.Setting, f *Fingerprint) { f.Engine.NCCL = "2.18.3" }, "ENV_DRIFT: nccl 2.20.5 expected, 2.18.3 realized"},
		{"nccl unreadable", func(_ *setting.Setting, f *Fingerprint) { f.Engine.NCCL = "" }, "ENV_DRIFT: nccl 2.20.5 expected, could not be read (the engine does not report it)"},
		{"engine version", func(_ *setting.Setting, f *Fingerprint) { f.Engine.Version = "0.9.1" }, "ENV_DRIFT: engine.version 0.9.2 expected, 0.9.1 realized"},
		{"mig on one of eight", func(_ *setting.Setting, f *Fingerprint) { dev(f).MIG = ptr(true) }, "ENV_DRIFT: mig disabled expected, enabled realized on gpu 3"},
		{"mig unreadable", func(_ *setting.Setting, f *Fingerprint) { dev(f).MIG = nil }, "ENV_DRIFT: mig disabled expected, could not be read (NVML does not say) on gpu 3"},
		{"ecc on one of eight", func(_ *setting.Setting, f *Fingerprint) { dev(f).ECC = ptr(false) }, "ENV_DRIFT: ecc enabled expected, disabled realized on gpu 3"},
		{"sm clock", func(_ *setting.Setting, f *Fingerprint) { dev(f).Clocks.SMTarget = ptr(int64(1980)) }, "ENV_DRIFT: sm_clock 1410MHz expected, 1980MHz realized on gpu 3"},
		{"memory clock", func(_ *setting.Setting, f *Fingerprint) { dev(f).Clocks.MemTarget = nil }, "ENV_DRIFT: mem_clock 2619MHz expected, could not be read (NVML does not say) on gpu 3"},
		{"power limit", func(_ *setting.Setting, f *Fingerprint) { dev(f).Power.Enforced = ptr(650.0) }, "ENV_DRIFT: power_limit 700W expected, 650W realized on gpu 3"},
		{"another model", func(_ *setting.Setting, f *Fingerprint) { dev(f).Name = ptr("NVIDIA H100 PCIe") }, "ENV_DRIFT: hardware.gpu h100-sxm expected, NVIDIA H100 PCIe realized on gpu 3"},
		{"another memory size", func(_ *setting.Setting, f *Fingerprint) { dev(f).MemoryTotal = ptr(int64(64 << 30)) }, "ENV_DRIFT: hardware.gpu h100-sxm expected, NVIDIA H100 80GB HBM3 realized on gpu 3"},
		{"no name", func(_ *setting.Setting, f *Fingerprint) { dev(f).Name = nil }, "ENV_DRIFT: hardware.gpu h100-sxm expected, could not be read (NVML says no name) on gpu 3"},
		{"not in the catalogue", func(s *setting.Setting, _ *Fingerprint) { s.Hardware.GPU = "h900" }, "ENV_DRIFT: hardware.gpu h900 expected, could not be read (not in the hardware catalogue)"},
		{"fewer GPUs allocated", func(_ *setting.Setting, f *Fingerprint) {
			f.Nodes[0].GPUsAllocated, f.Nodes[0].GPUsAllocatedID = ptr(7), []string{"0", "1", "2", "3", "4", "5", "6"}
		}, "ENV_DRIFT: hardware.gpus 8 expected, 7 realized"},
		{"GPU fell off", func(_ *setting.Setting, f *Fingerprint) {
			f.Nodes[0].GPUs.Devices = f.Nodes[0].GPUs.Devices[:7]
			f.Nodes[0].GPUsAllocatedID = []string{"0", "1", "2", "3", "4", "5", "6", "7"}
		}, "ENV_DRIFT: hardware.gpus 8 expected, 7 of NVML realized"},
		{"a link is not NVLink", func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].GPUs.Topology[2][5] = "system" }, "ENV_DRIFT: hardware.link nvlink expected, mixed realized"},
		{"topology unreadable", func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].GPUs.Topology = nil }, "ENV_DRIFT: hardware.link nvlink expected, could not be read"},
		{"neighbour", func(_ *setting.Setting, f *Fingerprint) { dev(f).Processes = []GPUProcess{{PID: 99}} }, "ENV_DRIFT: other processes none expected, pid 99 realized on gpu 3"},
		{"neighbours unknown", func(_ *setting.Setting, f *Fingerprint) { dev(f).ProcessesKnown = false }, "ENV_DRIFT: other processes none expected, could not be read (NVML does not say) on gpu 3"},
		{"second node differs", func(s *setting.Setting, f *Fingerprint) {
			s.Hardware.Nodes = 2
			second := realized().Nodes[0]
			second.Hostname, second.Kernel = "n2", "5.14.1"
			f.Nodes = append(f.Nodes, second)
		}, "ENV_DRIFT: kernel 5.14.0 expected, 5.14.1 realized on node n2"},
		{"second node's GPU differs", func(s *setting.Setting, f *Fingerprint) {
			s.Hardware.Nodes = 2
			second := realized().Nodes[0]
			second.Hostname = "n2"
			second.GPUs.Devices[3].ECC = ptr(false)
			f.Nodes = append(f.Nodes, second)
		}, "ENV_DRIFT: ecc enabled expected, disabled realized on gpu 3 of node n2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, f := pinned(), realized()
			tt.change(&s, &f)
			if diff := cmp.Diff([]string{tt.want}, refusals(s, f, "real")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCompare_Harmless(t *testing.T) {
	t.Parallel()
	tests := map[string]func(s *setting.Setting, f *Fingerprint){
		"nothing":     func(*setting.Setting, *Fingerprint) {},
		"host name":   func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].Hostname = "other" },
		"PCI address": func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].GPUs.Devices[0].PCI = ptr("0000:ff:00.0") },
		"memory used": func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].GPUs.Devices[0].MemoryUsed = ptr(int64(1)) },
		"old ECC errors": func(_ *setting.Setting, f *Fingerprint) {
			f.Nodes[0].GPUs.Devices[0].ECCAggregate.Corrected = ptr(int64(9))
		},
		"idle clock": func(_ *setting.Setting, f *Fingerprint) { f.Nodes[0].GPUs.Devices[0].Clocks.SM = ptr(int64(210)) },
		"neighbour where co-packed": func(s *setting.Setting, f *Fingerprint) {
			s.Hardware.Placement = setting.PlacementCopacked
			f.Nodes[0].GPUs.Devices[0].Processes = []GPUProcess{{PID: 1}}
		},
		"unpinned driver": func(s *setting.Setting, f *Fingerprint) {
			s.Environment.Driver, f.Nodes[0].GPUs.Driver = setting.Unpinned, nil
		},
		"driver prefix": func(s *setting.Setting, _ *Fingerprint) { s.Environment.Driver = "550.*" },
		"driver range":  func(s *setting.Setting, _ *Fingerprint) { s.Environment.Driver = ">=550 <560" },
		"more devices shown than allocated": func(s *setting.Setting, f *Fingerprint) {
			s.Hardware.GPUs, f.Nodes[0].GPUsAllocated = 2, ptr(2)
			f.Nodes[0].GPUsAllocatedID = []string{"1", "2"}
			f.Nodes[0].GPUs.Devices[3].Name = ptr("another")
		},
		"no checkpoint": func(s *setting.Setting, f *Fingerprint) {
			s.Model.Checkpoint, f.Checkpoint = setting.Checkpoint{}, Artefact{}
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, f := pinned(), realized()
			change(&s, &f)
			if lines := refusals(s, f, "real"); lines != nil {
				t.Errorf("refused: %q", lines)
			}
		})
	}
}

// TestCompare_EmulatedFailsClosed: where there is no device, whatever is pinned
// of one is refused.
func TestCompare_EmulatedFailsClosed(t *testing.T) {
	t.Parallel()
	s := pinned()
	f := realized()
	f.Nodes[0].GPUs = nil
	f.Engine.CUDA, f.Engine.NCCL = "", ""
	got := strings.Join(refusals(s, f, "emulated"), "\n")
	for _, item := range []string{"driver", "mig", "ecc", "sm_clock", "mem_clock", "power_limit", "hardware.link", "cuda", "nccl"} {
		if !strings.Contains(got, "ENV_DRIFT: "+item+" ") {
			t.Errorf("%s is pinned and cannot be read, but is not refused:\n%s", item, got)
		}
	}
	s.Environment = setting.Environment{
		Driver: setting.Unpinned, CUDA: setting.Unpinned, NCCL: setting.Unpinned, MIG: setting.Unpinned, ECC: setting.Unpinned,
		SMClock: setting.Unpinned, MemClock: setting.Unpinned, PowerLimit: setting.Unpinned, Kernel: setting.Unpinned, Governor: setting.Unpinned,
	}
	s.Hardware.Link = setting.Unpinned
	if lines := refusals(s, f, "emulated"); lines != nil {
		t.Errorf("nothing is pinned, but refused: %q", lines)
	}
	if lines := refusals(s, f, "real"); len(lines) == 0 {
		t.Error("a real node without NVML is not refused")
	}
	if lines := refusals(s, f, ""); len(lines) == 0 {
		t.Error("a node of unknown class is taken for an emulated one")
	}
}

func TestCompare_ChecksSayWhatTheyCompared(t *testing.T) {
	t.Parallel()
	for _, i := range Compare(pinned(), realized(), "real", StageNode) {
		c := i.Check()
		if c.Verdict != result.VerdictPass || c.Kind != result.CheckEnvironment || !strings.Contains(c.Reason, i.Realized) {
			t.Errorf("check: %+v", c)
		}
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	dev := func(f *Fingerprint) *GPU { return &f.Nodes[0].GPUs.Devices[5] }
	tests := []struct {
		name   string
		change func(f *Fingerprint)
		want   string // name of the failed check; "" for none
	}{
		{"nothing", func(*Fingerprint) {}, ""},
		{"own process", func(f *Fingerprint) { dev(f).Processes = []GPUProcess{{PID: 42}} }, ""},
		{"power cap", func(f *Fingerprint) { dev(f).Throttle = &[]string{"sw_power_cap"} }, ""},
		{"neighbour", func(f *Fingerprint) { dev(f).Processes = []GPUProcess{{PID: 42}, {PID: 43}} }, "gpu_processes"},
		{"ECC error", func(f *Fingerprint) { dev(f).ECCVolatile.Uncorrected = ptr(int64(1)) }, "gpu_ecc"},
		{"ECC unreadable", func(f *Fingerprint) { dev(f).ECCVolatile.Uncorrected = nil }, "gpu_ecc"},
		{"row remapped", func(f *Fingerprint) { dev(f).RemappedRows = &RowRemaps{Corrected: 1} }, "gpu_memory_repair"},
		{"page retired", func(f *Fingerprint) { dev(f).RetiredPages = ptr(int64(1)) }, "gpu_memory_repair"},
		{"thermal", func(f *Fingerprint) { dev(f).Throttle = &[]string{"hw_thermal_slowdown"} }, "gpu_throttle"},
		{"GPU lost", func(f *Fingerprint) { f.Nodes[0].GPUs.Devices = f.Nodes[0].GPUs.Devices[:5] }, "gpu_devices"},
		{"another GPU", func(f *Fingerprint) { dev(f).UUID = ptr("GPU-x") }, "gpu_devices"},
		{"no GPUs any more", func(f *Fingerprint) { f.Nodes[0].GPUs = nil }, "gpu_devices"},
		{"node gone", func(f *Fingerprint) { f.Nodes = nil }, "node_state"},
		{"booted", func(f *Fingerprint) { f.Nodes[0].BootID = "c" }, "node_state"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			after := realized()
			tt.change(&after)
			got := ""
			for _, c := range Changes(pinned(), realized(), after, []int{42}) {
				if c.Verdict != result.VerdictPass {
					got += c.Name
				}
			}
			if got != tt.want {
				t.Errorf("failed %q, want %q", got, tt.want)
			}
		})
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	tests := []struct {
		pinned, realized string
		want             bool
	}{
		{"12.4", "12.4", true},
		{"12.4", "12.40", false},
		{"12.4", "12.4.1", false},
		{"12.4.*", "12.4.1", true},
		{"12.4.*", "12.4", false},
		{"12.4.*", "12.40.1", false},
		{">=550.54 <560", "550.54.15", true},
		{">=550.54 <560", "560", false},
		{">=550.54 <560", "550.9", false},
		{">550", "550.0", false},
		{"<=550", "550", true},
		{">=550", "unknown", false},
		{">=x", "550", false},
		{"=>550", "=>550", true},
		{"", "", false},
		{"a", "", false},
	}
	for _, tt := range tests {
		if got := Matches(tt.pinned, tt.realized); got != tt.want {
			t.Errorf("Matches(%q, %q) = %v", tt.pinned, tt.realized, got)
		}
	}
}

func TestMatches_NeverTheUnknown(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pin := rapid.String().Draw(t, "pin")
		if Matches(pin, "") {
			t.Fatalf("%q matches an unread value", pin)
		}
	})
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for i, m := range catalogue {
		if i > 0 && catalogue[i-1].ID >= m.ID {
			t.Errorf("%s is not in order", m.ID)
		}
		incomplete := m.MemoryBytes == 0 || m.BandwidthBytes == 0 || m.PeakFlops == 0
		if incomplete && !strings.HasPrefix(m.ID, "cpu-") || m.Source == "" {
			t.Errorf("%s is incomplete", m.ID)
		}
		for _, name := range m.Names {
			if other := seen[name]; other != "" {
				t.Errorf("%s names both %s and %s", name, other, m.ID)
			}
			seen[name] = m.ID
			if got := Identify(GPU{Name: &name, MemoryTotal: ptr(m.MemoryBytes * 96 / 100)}); got != m.ID {
				t.Errorf("%s identified as %q", name, got)
			}
		}
	}
	if got := Identify(GPU{Name: ptr("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), MemoryTotal: ptr(int64(10 << 30))}); got != "" {
		t.Errorf("a MIG instance is a %s", got)
	}
}
