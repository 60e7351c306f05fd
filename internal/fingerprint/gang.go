package fingerprint

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"sbench/internal/result"
)

// agree compares every further node of a gang with rank 0's, item by item, also
// where nothing is pinned: an engine that spans unlike nodes runs at the pace of
// the slowest, and its number is of neither kind. Host names, addresses, serial
// numbers, free memory and uptimes may differ.
func (c *comparison) agree(f Fingerprint) {
	first := f.Nodes[0]
	names := map[string]string{}
	for _, n := range f.Nodes {
		if other, twice := names[n.Where()]; twice {
			c.node = ""
			c.exact("nodes", "one rank a node", "rank "+other+" and "+strconv.Itoa(n.Rank)+" are on "+n.Where(), "", ClassNode)
		}
		names[n.Where()] = strconv.Itoa(n.Rank)
	}
	x := f.SoftwareOf(first)
	for _, n := range f.Nodes[1:] {
		y := f.SoftwareOf(n)
		c.node = n.Where()
		c.same("image digest", x.Image.Digest, y.Image.Digest, first, n)
		c.same("checkpoint digest", x.Checkpoint.Digest, y.Checkpoint.Digest, first, n)
		for _, p := range []struct{ name, a, b string }{
			{"kernel", first.Kernel, n.Kernel},
			{"arch", first.Arch, n.Arch},
			{"cpu_model", first.CPUModel, n.CPUModel},
			{"governor", first.Governor, n.Governor},
			{"turbo", first.Turbo, n.Turbo},
			{"smt", first.SMT, n.SMT},
			{"transparent_hugepages", first.THP, n.THP},
			{"hugepages", counted(first.HugepagesTotal), counted(n.HugepagesTotal)},
			{"hardware.gpus", whole(first.GPUsAllocated), whole(n.GPUsAllocated)},
		} {
			c.same(p.name, p.a, p.b, first, n)
		}
		c.sameDevices(first, n)
	}
	c.node = ""
}

// sameDevices compares what every device of a node has in common.
func (c *comparison) sameDevices(first, n Node) {
	if first.GPUs == nil && n.GPUs == nil {
		return
	}
	c.same("driver", driver(first), driver(n), first, n)
	for _, p := range []struct {
		name string
		of   func(GPU) string
	}{
		{"hardware.gpu", func(d GPU) string { return said(d.Name) }},
		{"gpu memory", func(d GPU) string { return counted(d.MemoryTotal) }},
		{"mig", func(d GPU) string { return enabled(d.MIG) }},
		{"ecc", func(d GPU) string { return enabled(d.ECC) }},
		{"sm_clock", func(d GPU) string { return megahertz(d.Clocks.SMTarget) }},
		{"mem_clock", func(d GPU) string { return megahertz(d.Clocks.MemTarget) }},
		{"power_limit", func(d GPU) string { return watts(d.Power.Enforced) }},
	} {
		c.same(p.name, ofAll(first, p.of), ofAll(n, p.of), first, n)
	}
}

// ofAll is what the devices of a node say, each value once.
func ofAll(n Node, of func(GPU) string) string {
	found := map[string]bool{}
	for _, d := range n.Assigned() {
		found[of(d)] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(found)), " and ")
}

// agreeOnEngine compares what the software of every node says of itself.
func (c *comparison) agreeOnEngine(f Fingerprint) {
	first := f.Nodes[0]
	x := f.SoftwareOf(first)
	for _, n := range f.Nodes[1:] {
		y := f.SoftwareOf(n)
		if !y.Engine.runs() {
			continue
		}
		c.node = n.Where()
		c.same("container program", x.Container.Version, y.Container.Version, first, n)
		// A version that only the running server tells is known on rank 0 alone.
		if y.Engine.Version != "" {
			c.same("engine.version", x.Engine.Version, y.Engine.Version, first, n)
		}
		c.same("cuda", x.Engine.CUDA, y.Engine.CUDA, first, n)
		c.same("nccl", x.Engine.NCCL, y.Engine.NCCL, first, n)
		c.same("torch", x.Engine.Torch, y.Engine.Torch, first, n)
		c.same("engine environment", environment(first), environment(n), first, n)
	}
	c.node = ""
}

// own are variables that differ between the ranks of one engine by their nature.
var own = []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"}

func environment(n Node) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(n.Env)) {
		if !slices.Contains(own, k) {
			all = append(all, k+"="+n.Env[k])
		}
	}
	return strings.Join(all, " ")
}

// same is for what two nodes of a gang must have in common. What neither says is
// no difference.
func (c *comparison) same(name, first, other string, at, n Node) {
	i := Item{
		Name: name, Pinned: first + " (as on " + at.Where() + ")", Realized: other, Where: "node " + n.Where(), Node: c.node,
		Class: ClassNode, Verdict: result.VerdictFail,
	}
	switch {
	case first == other || c.refused(name):
		return
	case first == "":
		i.Pinned = "not readable (as on " + at.Where() + ")"
	case other == "":
		i.Verdict = result.VerdictUnknown
	}
	c.items = append(c.items, i)
}

// refused reports whether a pin of the item refuses the node already: one line is
// enough.
func (c *comparison) refused(name string) bool {
	return slices.ContainsFunc(c.items, func(i Item) bool {
		return i.Refuses() && i.Node == c.node && strings.TrimPrefix(i.Name, "environment.") == name
	})
}

func driver(n Node) string {
	if n.GPUs == nil {
		return ""
	}
	return said(n.GPUs.Driver)
}

func said(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func counted(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

func whole(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}
