package fingerprint

import "strings"

// Model is a row of the hardware catalogue: what a catalogue id means.
type Model struct {
	ID string
	// Names are the products as NVML names them; a device is of the model when
	// its name is one of them.
	Names []string
	// MemoryBytes is the nominal device memory; NVML shows up to 8 % less, and
	// more than that apart is another product under the same name.
	MemoryBytes int64
	// BandwidthBytes is the peak memory bandwidth in bytes/s, PeakFlops the dense
	// BF16 (FP16 where there is no BF16) tensor peak in flop/s. 0 is unknown.
	BandwidthBytes float64
	PeakFlops      float64
	Source         string // the vendor's document
}

const (
	gb = 1_000_000_000
	tf = 1e12
)

// catalogue is sorted by id.
var catalogue = []Model{
	{"a100-pcie", []string{"NVIDIA A100 80GB PCIe"}, 85899345920, 1935 * gb, 312 * tf, "NVIDIA A100 data sheet"},
	{"a100-pcie-40g", []string{"NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"}, 42949672960, 1555 * gb, 312 * tf, "NVIDIA A100 data sheet"},
	{"a100-sxm", []string{"NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"}, 85899345920, 2039 * gb, 312 * tf, "NVIDIA A100 data sheet"},
	{"a100-sxm-40g", []string{"NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"}, 42949672960, 1555 * gb, 312 * tf, "NVIDIA A100 data sheet"},
	{"b200", []string{"NVIDIA B200"}, 193273528320, 8000 * gb, 2250 * tf, "NVIDIA DGX B200 data sheet"},
	{"gb200", []string{"NVIDIA GB200"}, 199715979264, 8000 * gb, 2500 * tf, "NVIDIA GB200 NVL72 data sheet"},
	{"h100-nvl", []string{"NVIDIA H100 NVL"}, 100931731456, 3938 * gb, 835 * tf, "NVIDIA H100 data sheet"},
	{"h100-pcie", []string{"NVIDIA H100 PCIe"}, 85899345920, 2039 * gb, 756 * tf, "NVIDIA H100 data sheet"},
	{"h100-sxm", []string{"NVIDIA H100 80GB HBM3"}, 85899345920, 3352 * gb, 989 * tf, "NVIDIA H100 data sheet"},
	{"h200", []string{"NVIDIA H200"}, 151397597184, 4800 * gb, 989 * tf, "NVIDIA H200 data sheet"},
	{"h200-nvl", []string{"NVIDIA H200 NVL"}, 151397597184, 4800 * gb, 835 * tf, "NVIDIA H200 data sheet"},
	{"l4", []string{"NVIDIA L4"}, 25769803776, 300 * gb, 121 * tf, "NVIDIA L4 data sheet"},
	{"l40s", []string{"NVIDIA L40S"}, 51539607552, 864 * gb, 362 * tf, "NVIDIA L40S data sheet"},
	{"rtx-4090", []string{"NVIDIA GeForce RTX 4090"}, 25769803776, 1008 * gb, 165.2 * tf, "NVIDIA Ada architecture white paper"},
}

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
	if d.Name == nil || d.MemoryTotal == nil {
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
