// Package plan turns runs into what Slurm gets: runs of one shape are packed into
// tasks, and tasks are cut into arrays.
//
// It promises that every run is in exactly one task; that a task holds runs of
// one shape and one checkpoint and never two repeats of one setting, which would
// share node and moment and make their spread lie; that a task is no longer than
// asked for unless a single run is; that array indexes start at 0 in each array
// and stay below the site's limit; and that the same input gives the same plan.
// The package is pure.
package plan

import (
	"fmt"
	"time"
)

// Shape is what all tasks of one array have in common. It is comparable, and its
// zero fields leave Slurm's or the site's default.
type Shape struct {
	// Sweep keeps the sweeps apart, so that one can be cancelled, throttled and
	// accounted for without another.
	Sweep       int64  `json:"sweep"`
	Hardware    string `json:"hardware"`           // catalogue id
	JobName     string `json:"job_name,omitempty"` // the user's part of it
	Partition   string `json:"partition,omitempty"`
	Account     string `json:"account,omitempty"`
	QOS         string `json:"qos,omitempty"`
	WCKey       string `json:"wckey,omitempty"`
	Reservation string `json:"reservation,omitempty"`
	Nice        int    `json:"nice,omitempty"`
	Dependency  string `json:"dependency,omitempty"`
	// GRES is what a node of the allocation holds and StepGRES what a run uses of
	// it, as Slurm writes them: gpu:h100:4.
	GRES     string `json:"gres,omitempty"`
	StepGRES string `json:"step_gres,omitempty"`
	Nodes    int    `json:"nodes"`
	// CPUs and Memory (as --mem takes it: "0" is all) are per node; where they are
	// not given, an exclusive node gives all and another its partition's default.
	CPUs      int    `json:"cpus,omitempty"`
	Memory    string `json:"memory,omitempty"`
	Exclusive bool   `json:"exclusive"`
	// OwnUser keeps jobs of other users off the node, and lets ours share it.
	OwnUser    bool   `json:"own_user,omitempty"`
	Constraint string `json:"constraint,omitempty"`
	Switches   int    `json:"switches,omitempty"`
	NodeList   string `json:"nodelist,omitempty"`
	Exclude    string `json:"exclude,omitempty"` // node names, sorted, with commas
	// GPUs is how many one allocation holds over all its nodes, and is billed for.
	GPUs int `json:"gpus"`
	// Throttle is how many tasks of the array may run at once; 0 is no limit.
	Throttle int `json:"throttle,omitempty"`
	// TimeLimit is the user's for a task; 0 is the sum of its runs'. MaxTime is the
	// longest that is allowed, and MaxTimeOf whose limit that is, for people; 0 is
	// none.
	TimeLimit time.Duration `json:"time_limit,omitempty"`
	MaxTime   time.Duration `json:"max_time,omitempty"`
	MaxTimeOf string        `json:"max_time_of,omitempty"`
}

// Bound lowers MaxTime to another limit; 0 is none. of says whose it is.
func (s *Shape) Bound(most time.Duration, of string) {
	if most > 0 && (s.MaxTime == 0 || most < s.MaxTime) {
		s.MaxTime, s.MaxTimeOf = most, of
	}
}

// Run is a run that is to be planned.
type Run struct {
	ID          int64
	SettingHash string
	// Checkpoint is what runs must have in common to be neighbours: its digest, or
	// its path where it is not pinned.
	Checkpoint string
	Repeat     int
	Limit      time.Duration // how long it takes at most, start-up and tear-down included
	Shape      Shape
}

// Limits bound tasks and arrays.
type Limits struct {
	// TaskTime is how long a task may be planned; a single longer run has a task
	// of its own.
	TaskTime time.Duration
	// TaskOverhead is added to every task: prolog, claim, the grace to seal.
	TaskOverhead time.Duration
	// ArrayTasks is how many tasks one array takes: at most Slurm's MaxArraySize,
	// which caps the index, and its max_array_tasks.
	ArrayTasks int
}

// DefaultLimits are used where a site says nothing.
func DefaultLimits() Limits {
	return Limits{TaskTime: time.Hour, TaskOverhead: 3 * time.Minute, ArrayTasks: 1000}
}

// Task is one element of an array.
type Task struct {
	Runs  []Run
	Limit time.Duration // with overhead
}

// Batch is one array. Task i has index i.
type Batch struct {
	Shape     Shape
	Tasks     []Task
	TimeLimit time.Duration // whole minutes, as Slurm counts
}

// Runs counts the runs of the batch.
func (b Batch) Runs() int {
	n := 0
	for _, t := range b.Tasks {
		n += len(t.Runs)
	}
	return n
}

// Refused is a run that no task can hold, and why.
type Refused struct {
	Run    Run
	Reason string
}

// Pack plans the runs. Batches come in the order in which their shapes first
// appear in runs, and within a shape runs of one checkpoint come together, one
// repeat of every setting after the other.
func Pack(runs []Run, limits Limits) ([]Batch, []Refused) {
	limits.ArrayTasks = max(limits.ArrayTasks, 1)
	var order []Shape
	byShape := map[Shape][]Run{}
	var refused []Refused
	for _, r := range runs {
		if reason := unfit(r, limits); reason != "" {
			refused = append(refused, Refused{r, reason})
			continue
		}
		if _, seen := byShape[r.Shape]; !seen {
			order = append(order, r.Shape)
		}
		byShape[r.Shape] = append(byShape[r.Shape], r)
	}
	var batches []Batch
	for _, shape := range order {
		batches = append(batches, cut(shape, tasks(shape, byShape[shape], limits), limits.ArrayTasks)...)
	}
	return batches, refused
}

func unfit(r Run, limits Limits) string {
	need := r.Limit + limits.TaskOverhead
	if t := r.Shape.TimeLimit; t > 0 && need > t {
		return fmt.Sprintf("needs %v, the time limit given is %v", round(need), t)
	}
	if t := r.Shape.MaxTime; t > 0 && round(max(need, r.Shape.TimeLimit)) > t {
		return fmt.Sprintf("needs %v, %s allows at most %v", round(max(need, r.Shape.TimeLimit)), r.Shape.MaxTimeOf, t)
	}
	return ""
}

// tasks packs runs of one shape.
func tasks(shape Shape, runs []Run, limits Limits) []Task {
	most := limits.TaskTime
	for _, t := range []time.Duration{shape.TimeLimit, shape.MaxTime} {
		if t > 0 {
			most = min(most, t)
		}
	}
	var all []Task
	for _, group := range neighbours(runs) {
		var open Task
		held := map[string]bool{}
		for _, r := range group {
			full := open.Limit+r.Limit > most || held[r.SettingHash]
			if len(open.Runs) > 0 && full {
				all, open, held = append(all, open), Task{}, map[string]bool{}
			}
			if len(open.Runs) == 0 {
				open.Limit = limits.TaskOverhead
			}
			open.Runs = append(open.Runs, r)
			open.Limit += r.Limit
			held[r.SettingHash] = true
		}
		all = append(all, open)
	}
	return all
}

// neighbours groups runs by checkpoint in the order of first appearance. Within
// a group, the first run of every setting comes before the second of any.
func neighbours(runs []Run) [][]Run {
	var order []string
	groups := map[string][]Run{}
	for _, r := range runs {
		if _, seen := groups[r.Checkpoint]; !seen {
			order = append(order, r.Checkpoint)
		}
		groups[r.Checkpoint] = append(groups[r.Checkpoint], r)
	}
	all := make([][]Run, 0, len(order))
	for _, c := range order {
		all = append(all, rounds(groups[c]))
	}
	return all
}

func rounds(runs []Run) []Run {
	var byRound [][]Run
	seen := map[string]int{}
	for _, r := range runs {
		n := seen[r.SettingHash]
		seen[r.SettingHash]++
		if n == len(byRound) {
			byRound = append(byRound, nil)
		}
		byRound[n] = append(byRound[n], r)
	}
	all := make([]Run, 0, len(runs))
	for _, round := range byRound {
		all = append(all, round...)
	}
	return all
}

// cut makes arrays of at most size tasks.
func cut(shape Shape, all []Task, size int) []Batch {
	var batches []Batch
	for len(all) > 0 {
		n := min(size, len(all))
		batches = append(batches, newBatch(shape, all[:n:n]))
		all = all[n:]
	}
	return batches
}

func newBatch(shape Shape, tasks []Task) Batch {
	b := Batch{Shape: shape, Tasks: tasks, TimeLimit: shape.TimeLimit}
	if b.TimeLimit == 0 {
		for _, t := range tasks {
			b.TimeLimit = max(b.TimeLimit, t.Limit)
		}
	}
	b.TimeLimit = round(b.TimeLimit)
	return b
}

// round is up to whole minutes.
func round(d time.Duration) time.Duration {
	return max(time.Minute, (d + time.Minute - 1).Truncate(time.Minute))
}

// Head cuts the batch after n tasks, for when Slurm takes no more now.
func (b Batch) Head(n int) Batch {
	if n >= len(b.Tasks) {
		return b
	}
	return newBatch(b.Shape, b.Tasks[:n:n])
}
