package slurm

import (
	"strconv"
	"strings"
)

// State is a job's state in Slurm's own long words.
type State string

// The base states, and the flags that are shown in their place.
const (
	Pending     State = "PENDING"
	Running     State = "RUNNING"
	Suspended   State = "SUSPENDED"
	Completed   State = "COMPLETED"
	Cancelled   State = "CANCELLED"
	Failed      State = "FAILED"
	Timeout     State = "TIMEOUT"
	NodeFail    State = "NODE_FAIL"
	Preempted   State = "PREEMPTED"
	BootFail    State = "BOOT_FAIL"
	Deadline    State = "DEADLINE"
	OutOfMemory State = "OUT_OF_MEMORY"

	Completing   State = "COMPLETING"
	Configuring  State = "CONFIGURING"
	StageOut     State = "STAGE_OUT"
	Resizing     State = "RESIZING"
	Signaling    State = "SIGNALING"
	Stopped      State = "STOPPED"
	Requeued     State = "REQUEUED"
	RequeueFed   State = "REQUEUE_FED"
	RequeueHold  State = "REQUEUE_HOLD"
	SpecialExit  State = "SPECIAL_EXIT"
	Revoked      State = "REVOKED"
	ResvDelHold  State = "RESV_DEL_HOLD"
	LaunchFailed State = "LAUNCH_FAILED"
)

// Phase is what a state means for an allocation.
type Phase int

// The phases. PhaseUnknown is a state that this program does not know: it is
// never taken for an end.
const (
	PhaseUnknown Phase = iota
	PhaseWaiting       // holds nothing; may start
	PhaseHolding       // holds nodes
	PhaseEnded         // holds nothing and never will again
)

// String names the phase.
func (p Phase) String() string {
	switch p {
	case PhaseWaiting:
		return "waiting"
	case PhaseHolding:
		return "holding"
	case PhaseEnded:
		return "ended"
	case PhaseUnknown:
	}
	return "unknown"
}

// Phase says what the state means where it is the controller's (squeue). There,
// REQUEUED is a job that waits again.
func (s State) Phase() Phase {
	switch s {
	case Pending, Requeued, RequeueFed, RequeueHold, SpecialExit, ResvDelHold:
		return PhaseWaiting
	case Running, Suspended, Completing, Configuring, StageOut, Resizing, Signaling, Stopped:
		return PhaseHolding
	case Completed, Cancelled, Failed, Timeout, NodeFail, Preempted, BootFail, Deadline, OutOfMemory, Revoked, LaunchFailed:
		return PhaseEnded
	}
	return PhaseUnknown
}

// RecordPhase says what the state means where it is a record of the accounting
// database (sacct). There, REQUEUED is an allocation that has ended.
func (s State) RecordPhase() Phase {
	if s == Requeued {
		return PhaseEnded
	}
	return s.Phase()
}

// parseState splits "CANCELLED by 1002"; uid is -1 where nobody is named.
func parseState(text string) (s State, uid int) {
	word, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	uid = -1
	if by, ok := strings.CutPrefix(rest, "by "); ok {
		if n, err := strconv.Atoi(by); err == nil && n >= 0 {
			uid = n
		}
	}
	return State(strings.TrimSuffix(word, "+")), uid
}

// reasons says in words why a job waits. Stuck ones never start by themselves.
var reasons = []struct {
	prefix string
	stuck  bool
	text   string
}{
	{"launch failed requeued held", true, "Slurm could not launch it and holds it; a node's prolog or spool may be broken"},
	{"job requeued in held state", true, "it was requeued and is held"},
	{"JobHeldAdmin", true, "an administrator holds it"},
	{"JobHeldUser", true, "it is held"},
	{"JobHoldMaxRequeue", true, "it was requeued as often as the site allows"},
	{"BadConstraints", true, "its constraints can never be met"},
	{"DependencyNeverSatisfied", true, "its dependency can never be met"},
	{"InvalidAccount", true, "its account is not valid any more"},
	{"InvalidQOS", true, "its QOS is not valid any more"},
	{"PartitionTimeLimit", true, "its time limit exceeds the partition's"},
	{"PartitionNodeLimit", true, "it asks for more nodes than the partition has or allows"},
	{"PartitionDown", false, "the partition is down"},
	{"PartitionInactive", false, "the partition is inactive"},
	{"AccountNotAllowed", true, "its account is not allowed in the partition"},
	{"QOSNotAllowed", true, "its QOS is not allowed in the partition"},
	{"QOSMaxWallDurationPerJobLimit", true, "its time limit exceeds the QOS's"},
	{"AssocMaxWallDurationPerJobLimit", true, "its time limit exceeds the association's"},
	{"ReqNodeNotAvail", false, "nodes it needs are reserved, drained or down"},
	{"NodeDown", false, "a node it needs is down"},
	{"Resources", false, "it waits for resources"},
	{"Priority", false, "jobs of higher priority come first"},
	{"BeginTime", false, "its start time has not come"},
	{"JobArrayTaskLimit", false, "the array's limit of tasks at once is reached"},
	{"Dependency", false, "it waits for another job"},
	{"Reservation", false, "it waits for its reservation"},
	{"Licenses", false, "it waits for licences"},
	{"Cleaning", false, "it is being cleaned up after its last run"},
	{"Prolog", false, "the prolog runs"},
}

// Explain says a pending reason in words, and whether a person must act before
// the job can start. Slurm's own word is kept where it is not known. Of several
// reasons the one that does not pass by itself counts.
func Explain(reason string) (text string, stuck bool) {
	if first, rest, several := strings.Cut(reason, ","); several {
		for part := range strings.SplitSeq(rest, ",") {
			// Node lists have commas too.
			if t, s := explain(strings.TrimSpace(part)); s {
				return t, s
			}
		}
		if text, stuck := explain(first); text != first {
			return text, stuck
		}
	}
	return explain(reason)
}

func explain(reason string) (text string, stuck bool) {
	for _, r := range reasons {
		if strings.HasPrefix(reason, r.prefix) || strings.HasPrefix(reason, strings.ReplaceAll(r.prefix, " ", "_")) {
			return r.text, r.stuck
		}
	}
	budget := strings.Contains(reason, "Minutes") // GrpTRESMins and the like: used up, not occupied
	single := strings.Contains(reason, "PerJob") || strings.Contains(reason, "PerNode") || strings.Contains(reason, "NotSatisfied")
	for _, limit := range []struct{ prefix, owner string }{{"QOS", "the QOS"}, {"AssocGrp", "the account"}, {"Assoc", "the association"}} {
		switch {
		case !strings.HasPrefix(reason, limit.prefix):
		case budget:
			return "the budget of " + limit.owner + " is used up (" + reason + ")", true
		case single:
			return "it asks for what " + limit.owner + " allows no job (" + reason + ")", true
		default:
			return "a limit of " + limit.owner + " is reached (" + reason + ")", false
		}
	}
	if reason == "" || reason == "None" {
		return "", false
	}
	return reason, false
}
