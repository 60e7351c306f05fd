package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/plan"
)

func TestShape_Hosts(t *testing.T) {
	t.Parallel()
	all := []plan.Host{
		{Name: "b", Idle: true, Partitions: []string{"gpu"}, Features: []string{"h100", "leaf1"}, GRES: map[string]int{"gpu:h100": 8}},
		{Name: "a", Partitions: []string{"gpu", "all"}, Features: []string{"h100", "leaf2"}, GRES: map[string]int{"gpu:h100": 8}},
		{Name: "c", Idle: true, Partitions: []string{"gpu"}, Features: []string{"h100", "leaf2"}, GRES: map[string]int{"gpu:h100": 4}},
		{Name: "d", Idle: true, Partitions: []string{"cpu"}},
	}
	for name, tt := range map[string]struct {
		shape plan.Shape
		avoid []string
		want  []string
		fails bool
	}{
		"idle first":        {shape: plan.Shape{Partition: "gpu", GRES: "gpu:h100:8", Nodes: 1}, want: []string{"b", "a"}},
		"fewer GPUs":        {shape: plan.Shape{Partition: "gpu", GRES: "gpu:h100:4", Nodes: 1}, want: []string{"b", "c", "a"}},
		"no type asked for": {shape: plan.Shape{GRES: "gpu:8", Nodes: 1}, want: []string{"b", "a"}},
		"another type":      {shape: plan.Shape{GRES: "gpu:l4:1", Nodes: 1}, want: []string{}},
		"no GPU":            {shape: plan.Shape{Partition: "cpu", Nodes: 1}, want: []string{"d"}},
		"one of partitions": {shape: plan.Shape{Partition: "none,all", Nodes: 1}, want: []string{"a"}},
		"features":          {shape: plan.Shape{Partition: "gpu", Constraint: "h100&leaf2", Nodes: 1}, want: []string{"c", "a"}},
		"avoided":           {shape: plan.Shape{Partition: "gpu", Nodes: 1}, avoid: []string{"b", "x"}, want: []string{"c", "a"}},
		"a gang":            {shape: plan.Shape{Partition: "gpu", Nodes: 2}, fails: true},
		"named nodes":       {shape: plan.Shape{NodeList: "a", Nodes: 1}, fails: true},
		"a reservation":     {shape: plan.Shape{Reservation: "r", Nodes: 1}, fails: true},
		"alternatives":      {shape: plan.Shape{Constraint: "leaf1|leaf2", Nodes: 1}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := tt.shape.Hosts(all, tt.avoid)
			if (err != nil) != tt.fails {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A node that is to be avoided is not asked for, nor one beside those of a user.
func TestShape_Pin(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		shape plan.Shape
		avoid []string
		want  string
	}{
		"free":    {want: "n1"},
		"avoided": {avoid: []string{"n1"}},
		"named":   {shape: plan.Shape{NodeList: "n[2-3]"}, want: "n[2-3]"},
	} {
		tt.shape.Pin("n1", tt.avoid)
		if tt.shape.NodeList != tt.want {
			t.Errorf("%s: %q", name, tt.shape.NodeList)
		}
	}
}
