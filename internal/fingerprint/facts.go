package fingerprint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Facts are the properties of an environment that can move a number, by name: what
// people look at when it got slower and nothing pinned changed. What names one
// machine or one moment (host names, UUIDs, loads) is left out. Several nodes or
// devices give a property each of their values once.
func (f *Fingerprint) Facts() map[string]string {
	many := map[string]map[string]bool{}
	add := func(name, value string) {
		if value == "" {
			return
		}
		if many[name] == nil {
			many[name] = map[string]bool{}
		}
		many[name][value] = true
	}
	add("image digest", f.Image.Digest)
	add("checkpoint digest", f.Checkpoint.Digest)
	for _, l := range f.Image.Libraries {
		add("library "+l.Name, l.Digest)
	}
	add("container program", strings.TrimSpace(f.Container.Program+" "+f.Container.Version))
	add("engine version", f.Engine.Version)
	add("CUDA runtime", f.Engine.CUDA)
	add("NCCL", f.Engine.NCCL)
	add("torch", f.Engine.Torch)
	for name, value := range f.Engine.Flags {
		add("engine flag "+name, value)
	}
	for i := range f.Nodes {
		f.Nodes[i].facts(add)
	}
	out := make(map[string]string, len(many))
	for name, values := range many {
		out[name] = strings.Join(slices.Sorted(maps.Keys(values)), ", ")
	}
	return out
}

func (n *Node) facts(add func(name, value string)) {
	add("kernel", n.Kernel)
	add("OS", n.OS)
	add("CPU model", n.CPUModel)
	add("CPU governor", n.Governor)
	add("turbo", n.Turbo)
	add("SMT", n.SMT)
	add("transparent hugepages", n.THP)
	for name, value := range n.Env {
		add("environment "+name, value)
	}
	if n.GPUs == nil {
		return
	}
	add("driver", text(n.GPUs.Driver))
	add("CUDA of the driver", text(n.GPUs.CUDADriver))
	for i := range n.GPUs.Devices {
		d := &n.GPUs.Devices[i]
		add("GPU", text(d.Name))
		add("VBIOS", text(d.VBIOS))
		add("MIG", text(d.MIG))
		add("ECC", text(d.ECC))
		add("power limit", text(d.Power.Limit))
		add("SM clock target", text(d.Clocks.SMTarget))
		add("memory clock target", text(d.Clocks.MemTarget))
	}
}

// text is "" for what could not be read.
func text[T any](v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(*v)
}
