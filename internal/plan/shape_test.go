package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/setting"
	"sbench/internal/site"
)

func lab() *site.Site {
	return &site.Site{
		Name: "lab", HardwareClass: "emulated",
		Defaults:   site.Defaults{Partition: "all", Account: "ml", QOS: "normal"},
		Partitions: map[string]site.Partition{"all": {}, "gpu": {MaxTime: 48 * time.Hour}},
		Priorities: map[string]site.Priority{"urgent": {QOS: "high", Nice: -10}, "normal": {}, "bulk": {Nice: 100}},
		Hardware: map[string]site.Hardware{
			"h100-sxm": {GRES: "gpu:h100", GPUsPerNode: 8, Nodes: 4, CPUsPerNode: 96, CPUsPerGPU: 12, MemoryPerGPU: 200 << 30, Constraint: "h100", Partition: "gpu"},
			"cpu-x86":  {CPUsPerGPU: 4},
		},
		Limits: site.Limits{MaxArraySize: 1001, MaxSubmit: 500, TaskMinutes: 90, MaxRunning: 5},
		Jobs:   site.Jobs{Exclusive: "exclusive", Memory: "0", Signal: 30 * time.Second},
	}
}

func set(edit func(*setting.Hardware)) *setting.Setting {
	s := &setting.Setting{Hardware: setting.Hardware{GPU: "h100-sxm", GPUs: 2, Nodes: 1, Placement: setting.PlacementNode}}
	edit(&s.Hardware)
	return s
}

func TestShapeOf(t *testing.T) {
	node := Shape{
		Hardware: "h100-sxm", Partition: "gpu", Account: "ml", QOS: "normal", GRES: "gpu:h100:2", StepGRES: "gpu:h100:2", Nodes: 1, Memory: "0", Exclusive: true,
		Constraint: "h100", GPUs: 8, Throttle: 5, MaxTime: 48 * time.Hour, MaxTimeOf: "partition gpu",
	}
	with := func(edit func(*Shape)) Shape { s := node; edit(&s); return s }
	seconds, nice := int64(3600), 7
	tests := []struct {
		name  string
		site  func(*site.Site)
		set   func(*setting.Hardware)
		opts  Options
		avoid []string
		want  Shape
	}{
		{name: "a node of its own holds all its GPUs", want: node},
		{
			name: "two nodes in one island, on one switch", set: func(h *setting.Hardware) { h.Nodes, h.Constraint, h.Switches = 2, "[isl1|isl2]", 1 },
			want: with(func(s *Shape) { s.Nodes, s.GPUs, s.Constraint, s.Switches = 2, 16, "h100&[isl1|isl2]", 1 }),
		},
		{
			name: "alternatives are grouped", set: func(h *setting.Hardware) { h.Constraint = "isl1|isl2" },
			want: with(func(s *Shape) { s.Constraint = "h100&(isl1|isl2)" }),
		},
		{
			name: "GPUs of its own", set: func(h *setting.Hardware) { h.Placement = setting.PlacementGPU },
			want: with(func(s *Shape) { s.Exclusive, s.GPUs, s.CPUs, s.Memory = false, 2, 24, "409600M" }),
		},
		{
			name: "beside runs of ours", set: func(h *setting.Hardware) { h.Placement = setting.PlacementCopacked },
			want: with(func(s *Shape) { s.Exclusive, s.OwnUser, s.GPUs, s.CPUs, s.Memory = false, true, 2, 24, "409600M" }),
		},
		{
			name: "a site without --exclusive", site: func(s *site.Site) { s.Jobs.Exclusive = "gres" },
			want: with(func(s *Shape) { s.Exclusive, s.GRES, s.CPUs = false, "gpu:h100:8", 96 }),
		},
		{
			name: "a CPU node", set: func(h *setting.Hardware) { h.GPU, h.GPUs, h.Placement = "cpu-x86", 0, setting.PlacementGPU },
			want: with(func(s *Shape) {
				*s = Shape{Hardware: "cpu-x86", Partition: "all", Account: "ml", QOS: "normal", Nodes: 1, CPUs: 4, Throttle: 5}
			}),
		},
		{
			name: "the command line wins",
			opts: Options{JobName: "j", Partition: "all", Account: "x", QOS: "y", TimeLimitS: &seconds, NodeList: "gpu[1-2]", ExcludeNodes: "gpu[7-8]", Reservation: "r", Nice: &nice, Wckey: "w", Priority: "urgent"},
			want: with(func(s *Shape) {
				s.JobName, s.Partition, s.Account, s.QOS, s.TimeLimit, s.NodeList, s.Exclude, s.Reservation, s.Nice, s.WCKey, s.MaxTime, s.MaxTimeOf = "j", "all", "x", "y", time.Hour, "gpu[1-2]", "gpu[7-8]", "r", 7, "w", 0, ""
			}),
		},
		{name: "urgent work", opts: Options{Priority: "urgent"}, want: with(func(s *Shape) { s.QOS, s.Nice = "high", -10 })},
		{name: "drifted nodes are avoided", avoid: []string{"gpu2", "gpu1", "gpu2"}, opts: Options{ExcludeNodes: "gpu[7-8]"}, want: with(func(s *Shape) { s.Exclude = "gpu[7-8],gpu1,gpu2" })},
	}
	for _, tt := range tests {
		s, st := lab(), set(func(*setting.Hardware) {})
		if tt.site != nil {
			tt.site(s)
		}
		if tt.set != nil {
			tt.set(&st.Hardware)
		}
		got, err := ShapeOf(s, st, tt.opts, tt.avoid)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

func TestShapeOf_Refuses(t *testing.T) {
	for name, tt := range map[string]struct {
		set  func(*setting.Hardware)
		opts Options
		want string
	}{
		"hardware":  {func(h *setting.Hardware) { h.GPU = "b200" }, Options{}, "no hardware"},
		"GPUs":      {func(h *setting.Hardware) { h.GPUs = 9 }, Options{}, "8 GPUs per node"},
		"nodes":     {func(h *setting.Hardware) { h.Nodes = 5 }, Options{}, "4 nodes"},
		"class":     {func(h *setting.Hardware) { h.Class = "real" }, Options{}, "is emulated"},
		"partition": {func(*setting.Hardware) {}, Options{Partition: "secret"}, "no partition"},
	} {
		if _, err := ShapeOf(lab(), set(tt.set), tt.opts, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRunLimit(t *testing.T) {
	s := &setting.Setting{Workload: setting.Workload{Warmup: 30 * time.Second, Ramp: 10 * time.Second, Duration: 5 * time.Minute, Drain: time.Minute}}
	if got, want := RunLimit(s, 0), 10*time.Minute+30*time.Second+6*time.Minute+10*time.Second+time.Minute; got != want {
		t.Errorf("%v, want %v", got, want)
	}
	s.Workload.Ladder = []float64{1, 2, 4}
	if got, want := RunLimit(s, time.Minute), time.Minute+30*time.Second+3*(6*time.Minute+10*time.Second)+time.Minute; got != want {
		t.Errorf("ladder: %v, want %v", got, want)
	}
}

func TestHistory_LimitFrom(t *testing.T) {
	s := &setting.Setting{Workload: setting.Workload{Duration: 5 * time.Minute}}
	for name, tt := range map[string]struct {
		h    History
		want time.Duration
	}{
		"none":                  {History{}, 16 * time.Minute},
		"too short":             {History{Runs: 9, P99: 7 * time.Minute}, 16 * time.Minute},
		"long enough":           {History{Runs: 10, P99: 8 * time.Minute}, 13 * time.Minute},
		"a slow engine":         {History{Runs: 10, P99: 40 * time.Minute}, 61 * time.Minute},
		"shorter than its plan": {History{Runs: 10, P99: time.Minute}, 6*time.Minute + 30*time.Second},
	} {
		if got := tt.h.LimitFrom(s, 0); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestLimitsOf(t *testing.T) {
	want := Limits{TaskTime: 90 * time.Minute, TaskOverhead: 150 * time.Second, ArrayTasks: 500}
	if diff := cmp.Diff(want, LimitsOf(lab())); diff != "" {
		t.Error(diff)
	}
}
