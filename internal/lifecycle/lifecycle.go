// Package lifecycle is the one table of what can become of a run, a batch and a
// task: states, the legal transitions between them and who may write each, exit
// classes, their process exit codes, and what is retried. The package is pure.
//
// Who writes what:
//
//   - admission (the API's handlers, [ActorAdmit]) creates runs as pending or
//     skipped; on a user's word it cancels what is pending, and sends failed,
//     dead and cancelled runs back to pending (requeue, dead release).
//   - submission ([ActorSubmit]) moves pending runs to submitted in the
//     transaction that commits their batch; it moves them back to pending, or to
//     dead, when Slurm refuses the batch. It writes every state of a batch up to
//     released.
//   - tracking ([ActorTrack]) follows the allocations: submitted, provisioning,
//     running, and back to submitted when Slurm requeues. When a task has ended
//     it settles its runs: one that was started and sealed nothing gets a lost
//     attempt, and whatever was tried goes where [Judge] says; a run that was
//     never started goes back to pending at no cost, a cancelled one to
//     cancelled. It ends tasks and batches.
//   - collection ([ActorCollect]) ingests sealed manifests. A run in Slurm it
//     moves to complete or dead at once and leaves the rest to tracking: a
//     requeued task may run it again, and why an attempt was cut short is known
//     only when its allocation has ended. A run that has left Slurm goes where
//     [Judge] says: a measured attempt that arrives late still completes it.
//
// Judge is a function of the set of attempts, never of the order in which they
// became known, so late, duplicated and reordered observations end alike.
package lifecycle

import "slices"

// RunState is the state of a run.
type RunState string

// The run states.
const (
	RunPending      RunState = "pending"
	RunSubmitted    RunState = "submitted"    // in a committed batch
	RunProvisioning RunState = "provisioning" // its task holds an allocation, its own step has not started
	RunRunning      RunState = "running"      // its step has started
	RunComplete     RunState = "complete"     // has a valid result
	RunFailed       RunState = "failed"       // out of budget
	RunDead         RunState = "dead"         // in the dead-letter list until released
	RunCancelled    RunState = "cancelled"
	RunSkipped      RunState = "skipped" // a fresh result exists already
)

// RunStates lists all run states in the order of a run's life.
func RunStates() []RunState {
	return []RunState{
		RunPending, RunSubmitted, RunProvisioning, RunRunning,
		RunComplete, RunFailed, RunDead, RunCancelled, RunSkipped,
	}
}

// Terminal reports whether nothing happens to the run any more by itself.
func (s RunState) Terminal() bool {
	switch s {
	case RunComplete, RunFailed, RunDead, RunCancelled, RunSkipped:
		return true
	case RunPending, RunSubmitted, RunProvisioning, RunRunning:
	}
	return false
}

// Active reports whether the run belongs to a batch that Slurm has or may have.
func (s RunState) Active() bool {
	return s == RunSubmitted || s == RunProvisioning || s == RunRunning
}

// BatchState is the state of a batch.
type BatchState string

// The batch states.
const (
	BatchIntent    BatchState = "intent"   // committed; sbatch may or may not have been called
	BatchHeld      BatchState = "held"     // its job id is recorded; the job is held
	BatchReleased  BatchState = "released" // Slurm may start it
	BatchEnded     BatchState = "ended"    // no task is left in Slurm
	BatchRefused   BatchState = "refused"  // Slurm said no; nothing was created
	BatchCancelled BatchState = "cancelled"
)

// BatchStates lists all batch states.
func BatchStates() []BatchState {
	return []BatchState{BatchIntent, BatchHeld, BatchReleased, BatchEnded, BatchRefused, BatchCancelled}
}

// Terminal reports whether nothing happens to the batch any more.
func (s BatchState) Terminal() bool {
	return s == BatchEnded || s == BatchRefused || s == BatchCancelled
}

// TaskState is the state of a task.
type TaskState string

// The task states.
const (
	TaskWaiting TaskState = "waiting" // pending in Slurm, or not yet submitted
	TaskRunning TaskState = "running" // holds an allocation
	TaskEnded   TaskState = "ended"   // no allocation, and none will come
)

// TaskStates lists all task states.
func TaskStates() []TaskState { return []TaskState{TaskWaiting, TaskRunning, TaskEnded} }

// Actor is who writes a transition.
type Actor string

// The actors. A user's own name is kept in the transition's reason or evidence.
const (
	ActorAdmit   Actor = "admit"
	ActorSubmit  Actor = "submit"
	ActorTrack   Actor = "track"
	ActorCollect Actor = "collect"
)

// Entity is what has a state.
type Entity string

// The entities.
const (
	EntityRun   Entity = "run"
	EntityBatch Entity = "batch"
	EntityTask  Entity = "task"
)

// Transition is a legal step from one state to another and who may write it.
// From is "" at creation.
type Transition struct {
	Entity   Entity
	From, To string
	By       []Actor
}

// Transitions returns the whole table in a fixed order. SQL holds a copy, which
// a test compares with this one.
func Transitions() []Transition {
	var table []Transition
	for _, t := range runTransitions {
		table = append(table, Transition{EntityRun, string(t.from), string(t.to), slices.Clone(t.by)})
	}
	for _, t := range batchTransitions {
		table = append(table, Transition{EntityBatch, string(t.from), string(t.to), slices.Clone(t.by)})
	}
	for _, t := range taskTransitions {
		table = append(table, Transition{EntityTask, string(t.from), string(t.to), slices.Clone(t.by)})
	}
	return table
}

type step[S ~string] struct {
	from, to S
	by       []Actor
}

var (
	byAdmit  = []Actor{ActorAdmit}
	bySubmit = []Actor{ActorSubmit}
	byTrack  = []Actor{ActorTrack}
	// byJudge is who applies Judge; byAny adds what submission is refused.
	byCollect = []Actor{ActorCollect}
	byJudge   = []Actor{ActorTrack, ActorCollect}
	byAny     = []Actor{ActorSubmit, ActorTrack, ActorCollect}
)

var runTransitions = []step[RunState]{
	{"", RunPending, []Actor{ActorAdmit, ActorCollect}}, // or a carried setting is run after all
	{"", RunSkipped, byAdmit},

	{RunPending, RunSubmitted, bySubmit},
	{RunPending, RunSkipped, []Actor{ActorAdmit, ActorSubmit}},
	{RunPending, RunCancelled, []Actor{ActorAdmit, ActorTrack, ActorCollect}},
	{RunPending, RunDead, byAny},           // it cannot be planned; or a late manifest
	{RunPending, RunFailed, byJudge},       // a late manifest exhausts the budget
	{RunPending, RunComplete, byCollect},   // a late manifest
	{RunSubmitted, RunPending, byAny},      // the batch was refused; never started; retry
	{RunSubmitted, RunDead, byAny},         // Slurm will never accept it
	{RunSubmitted, RunCancelled, byAny},    //
	{RunSubmitted, RunFailed, byJudge},     //
	{RunSubmitted, RunComplete, byCollect}, // sealed between two ticks
	{RunSubmitted, RunProvisioning, byTrack},
	{RunSubmitted, RunRunning, byTrack},

	{RunProvisioning, RunSubmitted, byTrack}, // Slurm requeued the task
	{RunProvisioning, RunRunning, byTrack},
	{RunProvisioning, RunPending, byJudge},
	{RunProvisioning, RunDead, byJudge},
	{RunProvisioning, RunCancelled, byJudge},
	{RunProvisioning, RunFailed, byJudge},
	{RunProvisioning, RunComplete, byCollect},

	{RunRunning, RunSubmitted, byTrack},
	{RunRunning, RunProvisioning, byTrack}, // the requeued task holds an allocation again
	{RunRunning, RunPending, byJudge},
	{RunRunning, RunDead, byJudge},
	{RunRunning, RunCancelled, byJudge},
	{RunRunning, RunFailed, byJudge},
	{RunRunning, RunComplete, byCollect},

	// A late manifest replaces a lost attempt, and with it what was judged.
	{RunFailed, RunComplete, byCollect},
	{RunFailed, RunDead, byCollect},
	{RunFailed, RunPending, []Actor{ActorAdmit, ActorCollect}},
	{RunDead, RunComplete, byCollect},
	{RunDead, RunPending, byAdmit},
	{RunCancelled, RunComplete, byCollect},
	{RunCancelled, RunPending, byAdmit},
}

var batchTransitions = []step[BatchState]{
	{"", BatchIntent, bySubmit},
	{BatchIntent, BatchHeld, bySubmit},
	{BatchIntent, BatchRefused, bySubmit},
	{BatchIntent, BatchCancelled, bySubmit},
	{BatchHeld, BatchReleased, bySubmit},
	{BatchHeld, BatchIntent, bySubmit}, // the controller forgot the job: its id means nothing any more
	{BatchHeld, BatchEnded, byTrack},
	{BatchReleased, BatchEnded, byTrack},
	{BatchReleased, BatchIntent, bySubmit},
}

var taskTransitions = []step[TaskState]{
	{"", TaskWaiting, bySubmit},
	{TaskWaiting, TaskRunning, byTrack},
	{TaskRunning, TaskWaiting, byTrack}, // requeued
	{TaskWaiting, TaskEnded, []Actor{ActorSubmit, ActorTrack}},
	{TaskRunning, TaskEnded, byTrack},
	{TaskEnded, TaskRunning, byTrack}, // the controller ran an ended job again
}

func find[S ~string](table []step[S], from, to S) []Actor {
	for _, t := range table {
		if t.from == from && t.to == to {
			return t.by
		}
	}
	return nil
}

// CanTransition reports whether a run may go from one state to another. A state
// is never its own successor.
func CanTransition(from, to RunState) bool { return find(runTransitions, from, to) != nil }

// MayTransition reports whether the actor may write that transition of a run.
func MayTransition(by Actor, from, to RunState) bool {
	return slices.Contains(find(runTransitions, from, to), by)
}

// CanTransitionBatch is CanTransition for batches.
func CanTransitionBatch(from, to BatchState) bool { return find(batchTransitions, from, to) != nil }

// CanTransitionTask is CanTransition for tasks.
func CanTransitionTask(from, to TaskState) bool { return find(taskTransitions, from, to) != nil }
