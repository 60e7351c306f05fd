package runner

import (
	"fmt"
	"slices"
	"strings"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/setting"
)

// h100s is what sbench-gpu says of a node with eight H100 on NVLink, in good order.
func h100s() *fingerprint.GPUs {
	g := &fingerprint.GPUs{Version: fingerprint.GPUVersion, Driver: ptr("550.54.15"), CUDADriver: ptr("12.4")}
	l4 := l4s().Devices[0]
	for i := range 8 {
		g.Topology = append(g.Topology, slices.Repeat([]string{"nvlink×18"}, 8))
		d := l4
		d.Index, d.UUID, d.Name, d.PCI = i, ptr(fmt.Sprintf("GPU-h%d", i)), ptr("NVIDIA H100 80GB HBM3"), ptr(fmt.Sprintf("0000:%02d:00.0", i))
		d.MemoryTotal = ptr(int64(85520809984))
		g.Devices = append(g.Devices, d)
	}
	return g
}

// eight makes the run one of eight devices; change edits the sixth, before and
// after.
func eight(change func(before, after *fingerprint.GPU)) func(*batch.Spec, *setting.Setting, *realNode) {
	return func(_ *batch.Spec, s *setting.Setting, n *realNode) {
		s.Hardware.GPU, s.Hardware.GPUs, s.Hardware.Link, s.Parallel.Tensor = "h100-sxm", 8, "nvlink", 8
		n.before, n.after = h100s(), h100s()
		change(&n.before.Devices[5], &n.after.Devices[5])
	}
}

func allEight(int) []string {
	return []string{"SLURM_JOB_GPUS=0-7", "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"}
}

// two makes the run one of two nodes; change edits the second's devices.
func two(change func(s *setting.Setting, second, after *fingerprint.GPUs)) func(*batch.Spec, *setting.Setting, *realNode) {
	return func(_ *batch.Spec, s *setting.Setting, n *realNode) {
		s.Hardware.Nodes, s.Parallel.Tensor = 2, 2
		n.second, n.secondAfter = l4s(), l4s()
		for _, g := range []*fingerprint.GPUs{n.second, n.secondAfter} {
			for i := range g.Devices {
				g.Devices[i].UUID = ptr(fmt.Sprintf("GPU-second-%d", i))
			}
		}
		change(s, n.second, n.secondAfter)
	}
}

func leaves(names ...string) func(int) []string {
	return func(rank int) []string {
		if names[rank] == "" {
			return nil
		}
		return []string{"SLURM_TOPOLOGY_ADDR=spine." + names[rank] + ".n1", "SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node"}
	}
}

// injectedTogether are differences of one device among eight, of one node of two,
// of the placement, between the check and the start, and of the resolved flags.
func injectedTogether() []placedDrift {
	const art, node, inv = lifecycle.ExitDriftArtefact, lifecycle.ExitDriftNode, lifecycle.ExitInvalid
	staged := func(script string) func(*batch.Spec, *setting.Setting, *realNode) {
		return func(_ *batch.Spec, s *setting.Setting, n *realNode) {
			n.staged = strings.ReplaceAll(script, "MODEL", s.Model.Checkpoint.Path)
		}
	}
	flags := func(known map[string]string) func(*batch.Spec, *setting.Setting, *realNode) {
		return func(b *batch.Spec, s *setting.Setting, _ *realNode) {
			b.Flags = map[string]map[string]map[string]string{"h": {s.Image.Digest: known}}
		}
	}
	return []placedDrift{
		{drift: drift{"one GPU of eight has ECC off", eight(func(d, _ *fingerprint.GPU) { d.ECC = ptr(false) }), nil, node, "ENV_DRIFT: ecc enabled expected, disabled realized on gpu 5"}, env: allEight},
		{drift: drift{"one GPU of eight is another product", eight(func(d, _ *fingerprint.GPU) { d.Name = ptr("NVIDIA H100 PCIe") }), nil, node, "ENV_DRIFT: hardware.gpu h100-sxm expected, NVIDIA H100 PCIe realized on gpu 5"}, env: allEight},
		{drift: drift{"one GPU of eight has another power limit afterwards", eight(func(_, d *fingerprint.GPU) { d.Power.Enforced = ptr(70.0) }), nil, inv, "ENV_DRIFT: power_limit 72W expected, 70W realized on gpu 5"}, env: allEight},
		{drift: drift{"one GPU of eight has a memory error during the run", eight(func(_, d *fingerprint.GPU) { d.ECCVolatile.Uncorrected = ptr(int64(1)) }), nil, inv, "INVALID: gpu_ecc: gpu 5 had 1 uncorrected memory errors"}, env: allEight},
		{drift: drift{"one GPU of eight gets a neighbour", eight(func(_, d *fingerprint.GPU) { d.Processes = []fingerprint.GPUProcess{{PID: 1}} }), nil, inv, "pid 1 realized on gpu 5"}, env: allEight},
		{drift: drift{"seven GPUs of eight", eight(func(*fingerprint.GPU, *fingerprint.GPU) {}), nil, node, "ENV_DRIFT: hardware.gpus 8 expected, 7 realized"}, env: func(int) []string {
			return []string{"SLURM_JOB_GPUS=0-6", "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6"}
		}},

		{drift: drift{"checkpoint written between check and start", staged("printf Weights >MODEL"), nil, art, "ENV_DRIFT: unchanged artefacts expected, "}},
		{drift: drift{"checkpoint replaced between check and start", staged("cp MODEL MODEL.new && mv MODEL.new MODEL"), nil, art, "ENV_DRIFT: unchanged artefacts expected, "}},
		{drift: drift{"checkpoint removed between check and start", staged("rm -f MODEL"), nil, art, "ENV_DRIFT: unchanged artefacts expected, "}},

		{drift: drift{"a resolved flag has another value", flags(map[string]string{"version": "0.0.1"}), nil, art, "ENV_DRIFT: engine flag version 0.0.1 expected, "}},
		{drift: drift{"a resolved flag is not reported any more", flags(map[string]string{"max-num-seqs": "256"}), nil, art, "ENV_DRIFT: engine flag max-num-seqs 256 expected, could not be read"}},

		{drift: drift{"one node of two has another driver", two(func(_ *setting.Setting, g, _ *fingerprint.GPUs) { g.Driver = ptr("535.1") }), nil, node, "ENV_DRIFT: driver 550.54.15 expected, 535.1 realized on node n2"}, ranks: 2},
		{drift: drift{"one node of two has another driver, unpinned", two(func(s *setting.Setting, g, _ *fingerprint.GPUs) {
			s.Environment.Driver, g.Driver = setting.Unpinned, ptr("535.1")
		}), nil, node, "ENV_DRIFT: driver 550.54.15 (as on n1) expected, 535.1 realized on node n2"}, ranks: 2},
		{drift: drift{"one node of two has other clocks, unpinned", two(func(s *setting.Setting, g, _ *fingerprint.GPUs) {
			s.Environment.SMClock, g.Devices[0].Clocks.SMTarget = setting.Unpinned, ptr(int64(2040))
		}), nil, node, "ENV_DRIFT: sm_clock 1410MHz (as on n1) expected, 2040MHz realized on node n2"}, ranks: 2},
		{drift: drift{"one node of two cannot say its driver, unpinned", two(func(s *setting.Setting, g, _ *fingerprint.GPUs) {
			s.Environment.Driver, g.Driver = setting.Unpinned, nil
		}), nil, node, "ENV_DRIFT: driver 550.54.15 (as on n1) expected, could not be read on node n2"}, ranks: 2},
		{drift: drift{"one node of two has another product", two(func(_ *setting.Setting, g, _ *fingerprint.GPUs) { g.Devices[0].Name = ptr("NVIDIA L40S") }), nil, node, "ENV_DRIFT: hardware.gpu l4 expected, NVIDIA L40S realized on gpu 0 of node n2"}, ranks: 2},
		{drift: drift{"a neighbour on one node of two", two(func(_ *setting.Setting, g, _ *fingerprint.GPUs) {
			g.Devices[0].Processes = []fingerprint.GPUProcess{{PID: 1}}
		}), nil, node, "ENV_DRIFT: other processes none expected, pid 1 realized on gpu 0 of node n2"}, ranks: 2},
		{drift: drift{"a neighbour appears on one node of two", two(func(_ *setting.Setting, _, g *fingerprint.GPUs) {
			g.Devices[0].Processes = []fingerprint.GPUProcess{{PID: 1}}
		}), nil, inv, "pid 1 realized on gpu 0 of node n2"}, ranks: 2},
		{drift: drift{"MIG switched on one node of two during the run", two(func(_ *setting.Setting, _, g *fingerprint.GPUs) { g.Devices[0].MIG = ptr(true) }), nil, inv, "ENV_DRIFT: mig disabled expected, enabled realized on gpu 0 of node n2"}, ranks: 2},
		{drift: drift{"a GPU of one node of two is lost during the run", two(func(_ *setting.Setting, _, g *fingerprint.GPUs) { g.Devices[0].UUID = ptr("GPU-x") }), nil, inv, "INVALID: gpu_devices: gpu 0 is gone"}, ranks: 2},
		{drift: drift{"two nodes behind two switches", two(func(s *setting.Setting, _, _ *fingerprint.GPUs) { s.Hardware.Switches = 1 }), nil, node, "ENV_DRIFT: placement switches at most 1 expected, 2 (leaf1, leaf2) realized"}, ranks: 2, env: leaves("leaf1", "leaf2")},
		{drift: drift{"a node whose switch is not known", two(func(s *setting.Setting, _, _ *fingerprint.GPUs) { s.Hardware.Switches = 1 }), nil, node, "ENV_DRIFT: placement switches at most 1 expected, could not be read"}, ranks: 2, env: leaves("leaf1", "")},
	}
}

// harmlessTogether must not refuse.
func harmlessTogether() []placedDrift {
	return []placedDrift{
		{drift: drift{name: "eight GPUs", inject: eight(func(*fingerprint.GPU, *fingerprint.GPU) {})}, env: allEight},
		{drift: drift{name: "eight GPUs in another order", inject: func(b *batch.Spec, s *setting.Setting, n *realNode) {
			eight(func(*fingerprint.GPU, *fingerprint.GPU) {})(b, s, n)
			slices.Reverse(n.after.Devices)
		}}, env: allEight},
		{drift: drift{name: "two nodes", inject: two(func(*setting.Setting, *fingerprint.GPUs, *fingerprint.GPUs) {})}, ranks: 2},
		{drift: drift{name: "two nodes with other addresses, temperatures and free memory", inject: two(func(_ *setting.Setting, g, _ *fingerprint.GPUs) {
			for i := range g.Devices {
				g.Devices[i].PCI, g.Devices[i].TemperatureC, g.Devices[i].MemoryUsed = ptr("0000:f0:00.0"), ptr(int64(55)), ptr(int64(3<<20))
			}
		})}, ranks: 2},
		{drift: drift{name: "two nodes behind one switch", inject: two(func(s *setting.Setting, _, _ *fingerprint.GPUs) { s.Hardware.Switches = 1 })}, ranks: 2, env: leaves("leaf1", "leaf1")},
		{drift: drift{name: "resolved flags of another image", inject: func(b *batch.Spec, _ *setting.Setting, _ *realNode) {
			b.Flags = map[string]map[string]map[string]string{"h": {noDigest: {"version": "0.0.1"}}}
		}}},
	}
}
