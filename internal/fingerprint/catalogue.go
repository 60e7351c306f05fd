package fingerprint

import (
	"slices"
	"strings"
)

// Model is a row of the hardware catalogue: what a catalogue id means.
type Model struct {
	ID string
	// Names are the products as NVML names them; a device is of the model when
	// its name is one of them. Empty where NVML does not know the device.
	Names []string
	// MemoryBytes is the nominal device memory; NVML shows up to 8 % less, and
	// more than that apart is another product under the same name. 0 for a CPU.
	MemoryBytes int64
	// BandwidthBytes is the peak memory bandwidth in bytes/s, PeakFlops the dense
	// BF16 (FP16 where there is no BF16) tensor peak in flop/s, without sparsity. 0
	// is unknown, or a matter of the node.
	BandwidthBytes float64
	PeakFlops      float64
	Source         string // the vendor's document that the figures are of
}

const (
	gb  = 1_000_000_000
	gib = 1 << 30
	tf  = 1e12
)

// catalogue is sorted by id. Data sheets give peaks with sparsity: what is here is
// half of those.
var catalogue = []Model{
	{"a10", []string{"NVIDIA A10"}, 24 * gib, 600 * gb, 125 * tf, "NVIDIA A10 Tensor Core GPU data sheet"},
	{"a100-pcie", []string{"NVIDIA A100 80GB PCIe"}, 80 * gib, 1935 * gb, 312 * tf, "NVIDIA A100 Tensor Core GPU data sheet"},
	{"a100-pcie-40g", []string{"NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"}, 40 * gib, 1555 * gb, 312 * tf, "NVIDIA A100 Tensor Core GPU data sheet"},
	{"a100-sxm", []string{"NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"}, 80 * gib, 2039 * gb, 312 * tf, "NVIDIA A100 Tensor Core GPU data sheet"},
	{"a100-sxm-40g", []string{"NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"}, 40 * gib, 1555 * gb, 312 * tf, "NVIDIA A100 Tensor Core GPU data sheet"},
	{"a40", []string{"NVIDIA A40"}, 48 * gib, 696 * gb, 149.7 * tf, "NVIDIA A40 data sheet"},
	{"b200", []string{"NVIDIA B200"}, 180 * gib, 8000 * gb, 2250 * tf, "NVIDIA DGX B200 data sheet, of one of its eight"},
	{"cpu-arm64", nil, 0, 0, 0, "the node's own: model, cores and memory are in the fingerprint"},
	{"cpu-x86", nil, 0, 0, 0, "the node's own: model, cores and memory are in the fingerprint"},
	{"gb200", []string{"NVIDIA GB200"}, 186 * gib, 8000 * gb, 2500 * tf, "NVIDIA GB200 NVL72 data sheet, of one of its GPUs"},
	{"gh200", []string{"NVIDIA GH200 480GB", "NVIDIA GH200 120GB"}, 96 * gib, 4000 * gb, 989.5 * tf, "NVIDIA GH200 Grace Hopper data sheet, with HBM3"},
	{"h100-nvl", []string{"NVIDIA H100 NVL"}, 94 * gib, 3938 * gb, 835.5 * tf, "NVIDIA H100 Tensor Core GPU data sheet"},
	{"h100-pcie", []string{"NVIDIA H100 PCIe"}, 80 * gib, 2039 * gb, 756.5 * tf, "NVIDIA H100 Tensor Core GPU data sheet"},
	{"h100-sxm", []string{"NVIDIA H100 80GB HBM3"}, 80 * gib, 3352 * gb, 989.5 * tf, "NVIDIA H100 Tensor Core GPU data sheet"},
	{"h20", []string{"NVIDIA H20"}, 96 * gib, 4000 * gb, 148 * tf, "NVIDIA H20 data sheet"},
	{"h200", []string{"NVIDIA H200"}, 141 * gib, 4800 * gb, 989.5 * tf, "NVIDIA H200 Tensor Core GPU data sheet"},
	{"h200-nvl", []string{"NVIDIA H200 NVL"}, 141 * gib, 4800 * gb, 835.5 * tf, "NVIDIA H200 Tensor Core GPU data sheet"},
	{"l4", []string{"NVIDIA L4"}, 24 * gib, 300 * gb, 121 * tf, "NVIDIA L4 Tensor Core GPU data sheet"},
	{"l40s", []string{"NVIDIA L40S"}, 48 * gib, 864 * gb, 362.05 * tf, "NVIDIA L40S data sheet"},
	// AMD's device has no NVML: only its id, memory and peaks are known here, and a
	// run on it is refused where the site does not say that it is emulated.
	{"mi300x", nil, 192 * gib, 5300 * gb, 1307.4 * tf, "AMD Instinct MI300X data sheet"},
	{"rtx-4090", []string{"NVIDIA GeForce RTX 4090"}, 24 * gib, 1008 * gb, 165.2 * tf, "NVIDIA Ada GPU architecture white paper, FP32 accumulation"},
	{"rtx-5090", []string{"NVIDIA GeForce RTX 5090"}, 32 * gib, 1792 * gb, 209.5 * tf, "NVIDIA RTX Blackwell GPU architecture white paper, FP32 accumulation"},
	{"rtx-6000-ada", []string{"NVIDIA RTX 6000 Ada Generation"}, 48 * gib, 960 * gb, 364.25 * tf, "NVIDIA RTX 6000 Ada Generation data sheet"},
	{"t4", []string{"Tesla T4", "NVIDIA T4"}, 16 * gib, 320 * gb, 65 * tf, "NVIDIA T4 data sheet"},
}

// Catalogue returns all models, sorted by id.
func Catalogue() []Model { return slices.Clone(catalogue) }

// Find returns the model of a catalogue id.
func Find(id string) (Model, bool) {
	for _, m := range catalogue {
		if m.ID == id {
			return m, true
		}
	}
	return Model{}, false
}

// Identify returns the catalogue id of a device; "" where none fits.
func Identify(d GPU) string {
	for _, m := range catalogue {
		if m.is(d) {
			return m.ID
		}
	}
	return ""
}

func (m Model) is(d GPU) bool {
	if d.Name == nil || d.MemoryTotal == nil || m.MemoryBytes == 0 {
		return false
	}
	// A MIG or vGPU name says more than the product: it is another thing.
	for _, name := range m.Names {
		if strings.EqualFold(*d.Name, name) {
			memory := float64(*d.MemoryTotal) / float64(m.MemoryBytes)
			return memory > 0.92 && memory < 1.02
		}
	}
	return false
}
