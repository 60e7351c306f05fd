package fingerprint

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"sbench/internal/result"
	"sbench/internal/setting"
)

// Class says what is to blame for a difference.
type Class string

// The classes of difference.
const (
	ClassArtefact Class = "artefact" // the run cannot succeed anywhere
	ClassNode     Class = "node"     // another node may be right
)

// Stage is when an item can be known.
type Stage int

// The stages. What only the engine knows is known after it has started.
const (
	StageNode   Stage = iota // before the engine starts
	StageEngine              // after it is ready, before the measurement
)

// Item is one compared item. Realized is "" where it could not be read.
type Item struct {
	Name     string // as in the sweep file: environment.driver
	Pinned   string
	Realized string
	Where    string // "node n2", "gpu 3 of node n2"; "" where there is only one place
	Node     string // that is to blame; "" where none is, or no single one
	Why      string // why it could not be read, or does not apply
	Class    Class
	Verdict  result.Verdict
}

// Line is the one line that a person reads.
func (i Item) Line() string {
	realized := i.Realized + " realized"
	if i.Realized == "" {
		realized = "could not be read"
		if i.Why != "" {
			realized += " (" + i.Why + ")"
		}
	}
	if i.Where != "" {
		realized += " on " + i.Where
	}
	return fmt.Sprintf("ENV_DRIFT: %s %s expected, %s", strings.TrimPrefix(i.Name, "environment."), i.Pinned, realized)
}

// Refuses reports whether the item forbids the measurement.
func (i Item) Refuses() bool {
	return i.Verdict == result.VerdictFail || i.Verdict == result.VerdictUnknown
}

// Check is the item as it is stored with the attempt.
func (i Item) Check() result.Check {
	c := result.Check{Name: i.Name, Kind: result.CheckEnvironment, Verdict: i.Verdict}
	switch {
	case i.Refuses():
		c.Reason = i.Line()
	case i.Verdict == result.VerdictPass:
		c.Reason = strings.TrimSpace(i.Name + " is " + i.Realized + " as pinned" + onPlace(i.Where))
	default:
		c.Reason = i.Name + " not compared: " + i.Why
	}
	return c
}

func onPlace(where string) string {
	if where == "" {
		return ""
	}
	return " on " + where
}

// comparison collects items.
type comparison struct {
	items []Item
	node  string // to blame for what comes
	// emulated hardware has no devices to ask.
	emulated bool
}

// Compare compares everything that the setting pins and that can be known at the
// stage. Pins that are left out yield no item. hardwareClass is the
// site's; anything but "emulated" is held to be real.
func Compare(s setting.Setting, f Fingerprint, hardwareClass string, stage Stage) []Item {
	c := comparison{emulated: hardwareClass == "emulated"}
	if stage == StageEngine {
		c.software(s, f, stage)
		if len(f.Nodes) > 1 {
			c.agreeOnEngine(f)
		}
		return c.items
	}
	c.software(s, f, stage)
	c.exact("hardware.nodes", strconv.Itoa(s.Hardware.Nodes), strconv.Itoa(len(f.Nodes)), "", ClassNode)
	for _, n := range f.Nodes {
		where := ""
		if len(f.Nodes) > 1 {
			where = "node " + n.Where()
		}
		c.node = n.Where()
		c.pin("environment.kernel", s.Environment.Kernel, n.Kernel, where, "", ClassNode)
		c.pin("environment.governor", s.Environment.Governor, n.Governor, where, "the kernel offers no frequency control", ClassNode)
		c.hardware(s, n, where)
		c.placed(s, n, where)
	}
	c.node = ""
	c.switches(s, f)
	if len(f.Nodes) > 1 {
		c.agree(f)
	}
	return c.items
}

// software compares the pinned artefacts and versions on every node. Where one
// node has the pinned one and another has not, the other node is to blame, and
// not the artefact.
func (c *comparison) software(s setting.Setting, f Fingerprint, stage Stage) {
	const silent = "the engine does not report it"
	type pin struct {
		name, pinned, why string
		of                func(Software) string
	}
	pins := []pin{
		{"image digest", s.Image.Digest, "", func(x Software) string { return x.Image.Digest }},
		{"checkpoint digest", s.Model.Checkpoint.Digest, "", func(x Software) string { return x.Checkpoint.Digest }},
	}
	if s.Model.Checkpoint.Path == "" && s.Model.Checkpoint.Digest == "" {
		pins = pins[:1]
	}
	if stage == StageEngine {
		pins = []pin{
			{"engine.version", s.Engine.Version, silent, func(x Software) string { return x.Engine.Version }},
			{"environment.cuda", s.Environment.CUDA, silent, func(x Software) string { return x.Engine.CUDA }},
			{"environment.nccl", s.Environment.NCCL, silent, func(x Software) string { return x.Engine.NCCL }},
		}
	}
	for _, p := range pins {
		right := 0
		for _, n := range f.Nodes {
			if Matches(p.pinned, p.of(f.SoftwareOf(n))) {
				right++
			}
		}
		for _, n := range f.Nodes {
			x := f.SoftwareOf(n)
			if n.Rank > 0 && stage == StageEngine && !x.Engine.runs() {
				continue // this rank runs no engine: it has nothing to say
			}
			where, class := "", ClassArtefact
			if n.Rank > 0 {
				where = "node " + n.Where()
			}
			c.node = ""
			if right > 0 {
				class, c.node = ClassNode, n.Where()
			}
			c.pin(p.name, p.pinned, p.of(x), where, p.why, class)
		}
	}
	c.node = ""
}

// runs reports whether the rank has an engine process.
func (e Engine) runs() bool { return e.Kind != "" }

// pin compares where the setting pins.
func (c *comparison) pin(name, pinned, realized, where, why string, class Class) {
	if pinned == setting.Unpinned || pinned == "" {
		return
	}
	i := Item{Name: name, Pinned: pinned, Realized: realized, Where: where, Node: c.node, Class: class, Verdict: result.VerdictFail}
	switch {
	case realized == "":
		i.Verdict, i.Why = result.VerdictUnknown, why
	case Matches(pinned, realized):
		i.Verdict = result.VerdictPass
	}
	c.items = append(c.items, i)
}

// exact compares an item that every setting has.
func (c *comparison) exact(name, pinned, realized, where string, class Class) {
	i := Item{Name: name, Pinned: pinned, Realized: realized, Where: where, Node: c.node, Class: class, Verdict: result.VerdictFail}
	if pinned == realized {
		i.Verdict = result.VerdictPass
	}
	c.items = append(c.items, i)
}

func (c *comparison) skip(name, pinned, where, why string) {
	c.items = append(c.items, Item{
		Name: name, Pinned: pinned, Where: where, Why: why,
		Class: ClassNode, Verdict: result.VerdictNotApplicable,
	})
}

// hardware compares the devices of one node.
func (c *comparison) hardware(s setting.Setting, n Node, where string) {
	if strings.HasPrefix(s.Hardware.GPU, "cpu-") {
		c.exact("hardware.gpu", s.Hardware.GPU, "cpu-"+archID(n.Arch), where, ClassNode)
		return
	}
	count := ""
	if n.GPUsAllocated != nil {
		count = strconv.Itoa(*n.GPUsAllocated)
	}
	c.pin("hardware.gpus", strconv.Itoa(s.Hardware.GPUs), count, where, "Slurm says no GPUs", ClassNode)
	why := n.GPUError
	if c.emulated {
		c.skip("hardware.gpu", s.Hardware.GPU, where, "the hardware is emulated; Slurm gave GPUs of the type that was asked for")
		why = "the hardware is emulated"
	} else {
		c.models(s, n, where, why)
		c.neighbours(s, n, where)
	}
	c.devicePins(s.Environment, n, where, why)
	if s.Hardware.Link != "none" {
		c.pin("hardware.link", s.Hardware.Link, link(n), where, why, ClassNode)
	}
}

// models compares the products of the node's devices with the catalogue.
func (c *comparison) models(s setting.Setting, n Node, where, why string) {
	model, known := Find(s.Hardware.GPU)
	devices := n.Assigned()
	switch {
	case len(devices) == 0:
		c.pin("hardware.gpu", s.Hardware.GPU, "", where, why, ClassNode)
		return
	case !known:
		c.pin("hardware.gpu", s.Hardware.GPU, "", where, "not in the hardware catalogue", ClassNode)
		return
	}
	if n.GPUsAllocated != nil && len(devices) != *n.GPUsAllocated {
		c.exact("hardware.gpus", strconv.Itoa(*n.GPUsAllocated), strconv.Itoa(len(devices))+" of NVML", where, ClassNode)
	}
	for _, d := range devices {
		i := Item{Name: "hardware.gpu", Pinned: s.Hardware.GPU, Where: place(d, where), Node: c.node, Class: ClassNode, Verdict: result.VerdictFail}
		switch {
		case d.Name == nil:
			i.Verdict, i.Why = result.VerdictUnknown, "NVML says no name"
		case model.is(d):
			i.Realized, i.Verdict = s.Hardware.GPU, result.VerdictPass
		default:
			i.Realized = *d.Name
		}
		c.items = append(c.items, i)
	}
}

// neighbours are processes on the devices before the engine starts.
func (c *comparison) neighbours(s setting.Setting, n Node, where string) {
	if s.Hardware.Placement == setting.PlacementCopacked {
		return
	}
	for _, d := range n.Assigned() {
		realized := ""
		if d.ProcessesKnown {
			realized = "none"
		}
		if len(d.Processes) > 0 {
			var pids []string
			for _, p := range d.Processes {
				pids = append(pids, strconv.Itoa(p.PID))
			}
			realized = "pid " + strings.Join(pids, ", ")
		}
		c.pin("other processes", "none", realized, place(d, where), "NVML does not say", ClassNode)
	}
}

// devicePins compares what is pinned of every device.
func (c *comparison) devicePins(e setting.Environment, n Node, where, why string) {
	driver := ""
	if n.GPUs != nil && n.GPUs.Driver != nil {
		driver = *n.GPUs.Driver
	}
	c.pin("environment.driver", e.Driver, driver, where, why, ClassNode)
	pins := []struct {
		name, pinned string
		realized     func(GPU) string
	}{
		{"environment.mig", e.MIG, func(d GPU) string { return enabled(d.MIG) }},
		{"environment.ecc", e.ECC, func(d GPU) string { return enabled(d.ECC) }},
		{"environment.sm_clock", e.SMClock, func(d GPU) string { return megahertz(cmp.Or(d.Clocks.SMLocked, d.Clocks.SMTarget)) }},
		{"environment.mem_clock", e.MemClock, func(d GPU) string { return megahertz(cmp.Or(d.Clocks.MemLocked, d.Clocks.MemTarget)) }},
		{"environment.power_limit", e.PowerLimit, func(d GPU) string { return watts(d.Power.Enforced) }},
	}
	devices := n.Assigned()
	for _, p := range pins {
		if len(devices) == 0 {
			c.pin(p.name, p.pinned, "", where, why, ClassNode)
		}
		for _, d := range devices {
			c.pin(p.name, p.pinned, p.realized(d), place(d, where), "NVML does not say", ClassNode)
		}
	}
}

// Assigned returns the devices of the node that Slurm gave to the run: all that
// NVML shows where there are as many, else those with the numbers that Slurm says.
func (n Node) Assigned() []GPU {
	if n.GPUs == nil {
		return nil
	}
	if n.GPUsAllocated == nil || len(n.GPUs.Devices) == *n.GPUsAllocated {
		return n.GPUs.Devices
	}
	var assigned []GPU
	for _, id := range n.GPUsAllocatedID {
		for _, d := range n.GPUs.Devices {
			if strconv.Itoa(d.Index) == id {
				assigned = append(assigned, d)
			}
		}
	}
	return assigned
}

func place(d GPU, where string) string {
	s := "gpu " + strconv.Itoa(d.Index)
	if where != "" {
		s += " of " + where
	}
	return s
}

func enabled(b *bool) string {
	switch {
	case b == nil:
		return ""
	case *b:
		return "enabled"
	}
	return "disabled"
}

func megahertz(v *int64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatInt(*v, 10) + "MHz"
}

func watts(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', -1, 64) + "W"
}

func archID(goarch string) string {
	if goarch == "amd64" {
		return "x86"
	}
	return goarch
}

// link says how the assigned devices are connected: nvlink, pcie or mixed; "" if
// that is not known.
func link(n Node) string {
	devices := n.Assigned()
	if len(devices) == 0 {
		return ""
	}
	if len(devices) == 1 {
		for _, l := range devices[0].NVLinks {
			if l.Active {
				return "nvlink"
			}
		}
		return "pcie"
	}
	var nvlink, other bool
	for i, a := range devices {
		for _, b := range devices[i+1:] {
			if a.Index >= len(n.GPUs.Topology) || b.Index >= len(n.GPUs.Topology[a.Index]) || n.GPUs.Topology[a.Index][b.Index] == "" {
				return ""
			}
			if strings.HasPrefix(n.GPUs.Topology[a.Index][b.Index], "nvlink") {
				nvlink = true
			} else {
				other = true
			}
		}
	}
	switch {
	case nvlink && other:
		return "mixed"
	case nvlink:
		return "nvlink"
	}
	return "pcie"
}
