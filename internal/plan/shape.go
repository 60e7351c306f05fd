package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sbench/internal/setting"
	"sbench/internal/site"
)

// Options are what a submission says beside its settings. The JSON keys are those
// of the API's options, which hold more.
type Options struct {
	JobName      string `json:"job_name,omitempty"`
	Partition    string `json:"partition,omitempty"`
	Account      string `json:"account,omitempty"`
	QOS          string `json:"qos,omitempty"`
	TimeLimitS   *int64 `json:"time_limit_s,omitempty"`
	NodeList     string `json:"nodelist,omitempty"`
	ExcludeNodes string `json:"exclude_nodes,omitempty"`
	Reservation  string `json:"reservation,omitempty"`
	Nice         *int   `json:"nice,omitempty"`
	Wckey        string `json:"wckey,omitempty"`
	Dependency   string `json:"dependency,omitempty"`
	Priority     string `json:"priority,omitempty"`
	MaxInflight  *int   `json:"max_inflight,omitempty"`
}

// StartAllowance is how long a run may take before its warm-up where the site
// gives no limit: staging, digests, the engine's start.
const StartAllowance = 10 * time.Minute

// teardown is how long a run may take after its drain: engine's end, files, seal.
const teardown = time.Minute

// ShapeOf says what a setting asks Slurm for at a site. avoid are nodes that it
// must not run on.
func ShapeOf(s *site.Site, set *setting.Setting, o Options, avoid []string) (Shape, error) {
	hw, ok := s.Hardware[set.Hardware.GPU]
	if !ok {
		return Shape{}, fmt.Errorf("site %s has no hardware %q", s.Name, set.Hardware.GPU)
	}
	want := set.Hardware
	if class := want.Class; class != "" && class != s.HardwareClass {
		return Shape{}, fmt.Errorf("site %s is %s, the setting asks for %s", s.Name, s.HardwareClass, class)
	}
	if want.GPUs > hw.GPUsPerNode {
		return Shape{}, fmt.Errorf("%s has %d GPUs per node at site %s, the setting asks for %d", want.GPU, hw.GPUsPerNode, s.Name, want.GPUs)
	}
	if hw.Nodes > 0 && want.Nodes > hw.Nodes {
		return Shape{}, fmt.Errorf("site %s has %d nodes of %s, the setting asks for %d", s.Name, hw.Nodes, want.GPU, want.Nodes)
	}
	shape := Shape{
		Hardware: want.GPU, JobName: o.JobName, WCKey: o.Wckey, Reservation: o.Reservation, Dependency: o.Dependency, NodeList: o.NodeList,
		Partition: cmp.Or(o.Partition, s.PartitionFor(want.GPU)),
		Account:   cmp.Or(o.Account, s.Defaults.Account),
		QOS:       cmp.Or(o.QOS, s.QOSFor(o.Priority)),
		Nice:      s.Priorities[cmp.Or(o.Priority, "normal")].Nice,
		Nodes:     max(want.Nodes, 1), Switches: want.Switches, Throttle: s.Limits.MaxRunning,
		Constraint: and(hw.Constraint, want.Constraint),
		Exclude:    exclude(o.ExcludeNodes, avoid),
	}
	if o.Nice != nil {
		shape.Nice = *o.Nice
	}
	if o.TimeLimitS != nil {
		shape.TimeLimit = time.Duration(*o.TimeLimitS) * time.Second
	}
	part, listed := s.Partitions[shape.Partition]
	if !listed && shape.Partition != "" && len(s.Partitions) > 0 {
		return Shape{}, fmt.Errorf("site %s lists no partition %q", s.Name, shape.Partition)
	}
	shape.Bound(part.MaxTime, "partition "+shape.Partition)
	shape.place(s, hw, want)
	return shape, nil
}

// place asks for the GPUs, CPUs and memory that the placement needs.
func (shape *Shape) place(s *site.Site, hw site.Hardware, want setting.Hardware) {
	shape.StepGRES = gres(hw.GRES, want.GPUs)
	shape.GRES = shape.StepGRES
	if want.Placement == setting.PlacementNode {
		shape.GPUs = hw.GPUsPerNode * shape.Nodes
		shape.Memory = s.Jobs.Memory
		if s.Jobs.Exclusive == "gres" {
			// The whole node by asking for all that makes it one.
			shape.GRES, shape.CPUs = gres(hw.GRES, hw.GPUsPerNode), hw.CPUsPerNode
		} else {
			shape.Exclusive = true
		}
		return
	}
	// Side by side on purpose is beside runs of ours.
	shape.OwnUser = want.Placement == setting.PlacementCopacked
	units := max(want.GPUs, 1)
	shape.GPUs = want.GPUs * shape.Nodes
	shape.CPUs = hw.CPUsPerGPU * units
	if hw.MemoryPerGPU > 0 {
		const mib = 1 << 20
		shape.Memory = strconv.FormatInt((hw.MemoryPerGPU*int64(units)+mib-1)/mib, 10) + "M"
	}
}

func gres(kind string, n int) string {
	if kind == "" || n == 0 {
		return ""
	}
	return kind + ":" + strconv.Itoa(n)
}

// and joins two feature expressions.
func and(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return group(a) + "&" + group(b)
}

func group(expr string) string {
	depth := 0
	for _, r := range expr {
		switch r {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case '|':
			if depth == 0 {
				return "(" + expr + ")"
			}
		}
	}
	return expr
}

// exclude joins a user's node list, whose brackets stay as they are, and nodes.
func exclude(list string, nodes []string) string {
	sorted := slices.Clone(nodes)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	if list != "" {
		sorted = append([]string{list}, sorted...)
	}
	return strings.Join(sorted, ",")
}

// RunLimit is how long a run of the setting takes at most by its own plan: start
// (0 is StartAllowance), warm-up, all load points, drain and tear-down.
func RunLimit(set *setting.Setting, start time.Duration) time.Duration {
	w := &set.Workload
	points := max(len(w.Ladder), 1)
	return cmp.Or(start, StartAllowance) + w.Warmup + time.Duration(points)*(w.Ramp+w.Duration+w.Drain) + teardown
}

// History is how long earlier runs of a setting's series took at a site.
type History struct {
	Runs int
	P99  time.Duration // from start-up to seal
}

// leastHistory is how many runs make a history: below, its p99 is only a maximum.
const leastHistory = 10

// LimitFrom is RunLimit, or what history says where there is one: half as much
// again as its p99, and never less than the run's own schedule.
func (h History) LimitFrom(set *setting.Setting, start time.Duration) time.Duration {
	if h.Runs < leastHistory {
		return RunLimit(set, start)
	}
	return max(h.P99*3/2+teardown, RunLimit(set, 30*time.Second))
}

// Checkpoint is what Run.Checkpoint is for the setting.
func Checkpoint(set *setting.Setting) string {
	c := set.Model.Checkpoint
	if c.Digest != "" && c.Digest != setting.Unpinned {
		return c.Digest
	}
	return set.Model.Name + " " + c.Path
}

// LoadsFiles reports whether runs of a checkpoint, by its name of Checkpoint, have
// files to load at all.
func LoadsFiles(checkpoint string) bool { return !strings.HasSuffix(checkpoint, " ") }

// LimitsOf are the site's bounds on tasks and arrays.
func LimitsOf(s *site.Site) Limits {
	l := DefaultLimits()
	if m := s.Limits.TaskMinutes; m > 0 {
		l.TaskTime = time.Duration(m) * time.Minute
	}
	// Slurm sends the signal up to a minute early; a minute more is for the prolog
	// and the claim.
	l.TaskOverhead = s.Jobs.Signal + 2*time.Minute
	if a, b := s.Limits.MaxArraySize, s.Limits.MaxSubmit; a > 0 || b > 0 {
		l.ArrayTasks = min(cmp.Or(a, b), cmp.Or(b, a))
	}
	return l
}
