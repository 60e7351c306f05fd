package fingerprint

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/setting"
)

// TestCompare_Placement: what Slurm gave is compared with the isolation that was
// asked for, and no node is blamed for it.
func TestCompare_Placement(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		edit  func(*setting.Setting, *Node)
		class string
		want  []string
	}{
		{"nobody beside", func(_ *setting.Setting, n *Node) { n.Placed.OtherJobs = []int64{} }, "real", nil},
		{"not visible", func(_ *setting.Setting, n *Node) { n.Placed.OtherJobs = nil }, "real", nil},
		{"other jobs", func(_ *setting.Setting, n *Node) { n.Placed.OtherJobs = []int64{7, 8} }, "real", []string{
			"ENV_DRIFT: placement other jobs on the node none expected, job 7, 8 realized",
		}},
		{"other jobs where they may be", func(s *setting.Setting, n *Node) {
			s.Hardware.Placement, n.Placed.OtherJobs = setting.PlacementGPU, []int64{7}
		}, "real", nil},
		{"CPUs bound", func(s *setting.Setting, n *Node) {
			s.Hardware.Placement, n.CPUs, n.CPUsAllowed, n.Placed.CPUsGiven = setting.PlacementGPU, 8, []int{0, 1}, ptr(2)
		}, "real", nil},
		{"CPUs bound, counted as cores", func(s *setting.Setting, n *Node) {
			s.Hardware.Placement, n.CPUs, n.SMT, n.CPUsAllowed, n.Placed.CPUsGiven = setting.PlacementGPU, 4, "on", []int{0, 1, 2, 3}, ptr(2)
		}, "real", nil},
		{"CPUs not bound", func(s *setting.Setting, n *Node) {
			s.Hardware.Placement, n.CPUs, n.CPUsAllowed, n.Placed.CPUsGiven = setting.PlacementGPU, 4, []int{0, 1, 2, 3}, ptr(2)
		}, "real", []string{"ENV_DRIFT: placement CPUs 2 of the node's 4 expected, bound to none: all 4 realized"}},
	} {
		s, f := pinned(), realized()
		tt.edit(&s, &f.Nodes[0])
		var lines []string
		for _, i := range Compare(s, f, tt.class, StageNode) {
			if i.IsPlacement() && i.Refuses() {
				lines = append(lines, i.Line())
				if i.Node != "" {
					t.Errorf("%s: blames %s", tt.name, i.Node)
				}
			}
		}
		if diff := cmp.Diff(tt.want, lines); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestPlaced_Leaf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ address, pattern, want string }{
		{"spine.leaf1.gpu1", "switch.switch.node", "leaf1"},
		{"leaf[1-2].gpu1", "switch.node", "leaf[1-2]"},
		{"gpu1", "node", ""},
		{"", "", ""},
		{"a", "switch.switch.node", "a"},
	} {
		if got := (Placed{TopologyAddress: tt.address, TopologyPattern: tt.pattern}).Leaf(); got != tt.want {
			t.Errorf("%q of %q: %q, want %q", tt.address, tt.pattern, got, tt.want)
		}
	}
}
