package fingerprint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sbench/internal/setting"
)

// placementName begins the names of items about where Slurm put the run: a node is
// not to blame for them.
const placementName = "placement "

// IsPlacement reports whether an item is about where Slurm put the run.
func (i Item) IsPlacement() bool { return strings.HasPrefix(i.Name, placementName) }

// placed compares the isolation that the setting asks for with what Slurm gave on
// a node. Nodes of a private cluster share one machine: what is beside the run
// there says nothing.
func (c *comparison) placed(s setting.Setting, n Node, where string) {
	blame := c.node
	c.node = ""
	defer func() { c.node = blame }()
	if c.emulated {
		return
	}
	if s.Hardware.Placement == setting.PlacementNode && n.Placed.OtherJobs != nil {
		realized := "none"
		if len(n.Placed.OtherJobs) > 0 {
			realized = "job " + strings.Trim(strings.ReplaceAll(fmt.Sprint(n.Placed.OtherJobs), " ", ", "), "[]")
		}
		c.pin(placementName+"other jobs on the node", "none", realized, where, "", ClassNode)
	}
	if s.Hardware.Placement == setting.PlacementNode {
		return // all CPUs are ours
	}
	// Where a core has two threads, a site may count either; what is bound to all
	// CPUs of a node of which it was given some is bound to none.
	if given := n.Placed.CPUsGiven; given != nil && len(n.CPUsAllowed) > 0 && n.CPUs > 0 {
		threads := 1
		if n.SMT == "on" {
			threads = 2
		}
		if *given*threads < n.CPUs && len(n.CPUsAllowed) >= n.CPUs {
			c.exact(placementName+"CPUs", strconv.Itoa(*given)+" of the node's "+strconv.Itoa(n.CPUs), "bound to none: all "+strconv.Itoa(len(n.CPUsAllowed)), where, ClassNode)
		}
	}
}

// switches counts the leaf switches that the gang is on: Slurm takes --switches
// for a wish after some time.
func (c *comparison) switches(s setting.Setting, f Fingerprint) {
	most := s.Hardware.Switches
	if most <= 0 {
		return
	}
	var leaves []string
	for _, n := range f.Nodes {
		leaf := n.Placed.Leaf()
		if leaf == "" {
			c.pin(placementName+"switches", "at most "+strconv.Itoa(most), "", "node "+n.Where(), "Slurm says no switch of the node: it has no tree topology", ClassNode)
			return
		}
		if !slices.Contains(leaves, leaf) {
			leaves = append(leaves, leaf)
		}
	}
	slices.Sort(leaves)
	pinned := "at most " + strconv.Itoa(most)
	if len(leaves) <= most {
		c.exact(placementName+"switches", pinned, pinned, "", ClassNode)
		return
	}
	c.exact(placementName+"switches", pinned, strconv.Itoa(len(leaves))+" ("+strings.Join(leaves, ", ")+")", "", ClassNode)
}

// Leaf is the switch that the node hangs on; "" where Slurm says none. A switch
// of several names is a range in brackets.
func (p Placed) Leaf() string {
	address, pattern := strings.Split(p.TopologyAddress, "."), strings.Split(p.TopologyPattern, ".")
	leaf := ""
	for i, kind := range pattern {
		if kind == "switch" && i < len(address) {
			leaf = address[i]
		}
	}
	return leaf
}
