package lifecycle

import (
	"fmt"
	"slices"
	"strings"
)

// Cause is why an attempt that sealed no measurement was ended from outside.
type Cause string

// The causes. Only the tracker knows them: from the state of the allocation.
const (
	CauseNone      Cause = ""           // not ended from outside, or not known
	CauseUser      Cause = "user"       // scancel
	CausePreempted Cause = "preempted"  // Slurm took the nodes for other work
	CauseNode      Cause = "node_fail"  // the node failed or did not boot
	CauseTimeLimit Cause = "time_limit" // the task's time was up
)

// Attempt is what Judge needs to know about an ended attempt.
type Attempt struct {
	Class     ExitClass
	Signature string // equal for two failures of one deterministic cause; "" where there is none
	Valid     bool   // of a measured attempt
	Cause     Cause
	Node      string // where it ran; "" if unknown
	Reason    string // the headline
	// Forgiven attempts lie before a user's requeue or release: they are kept,
	// and count for nothing but a valid result.
	Forgiven bool
}

// Budget limits how often a run is tried.
type Budget struct {
	// Attempts is how many charged attempts a run may have.
	Attempts int
	// Free is how many attempts that were nobody's fault (preemption, node
	// failure) are not charged; beyond it they are, so that nothing loops.
	Free int
}

// DefaultBudget is used where a sweep or site says nothing.
func DefaultBudget() Budget { return Budget{Attempts: 3, Free: 10} }

// Verdict is what becomes of a run.
type Verdict struct {
	State  RunState // complete, dead, cancelled, failed, or pending to be tried again
	Reason string   // the headline, for people
	// Charged is how many attempts were counted against the budget.
	Charged int
	// Avoid lists nodes, sorted, that a retry must not use.
	Avoid []string
}

// Judge says what becomes of a run that has no attempt under way, from all its
// ended attempts. It depends on the set alone: the order of attempts changes
// nothing but, among equals, which headline is shown.
//
// A valid measured attempt completes the run whatever else happened. Otherwise a
// run that was cancelled, by sbench or by scancel, stays cancelled; an artefact
// drift, or the same deterministic signature twice, is dead; a spent budget is
// failed; everything else is pending.
func Judge(attempts []Attempt, budget Budget, cancelled bool) Verdict {
	var v Verdict
	var free int
	var last, dead string
	complete, why := false, "cancelled"
	signatures := map[string]int{}
	for _, a := range attempts {
		complete = complete || a.Class == ExitMeasured && a.Valid
		if a.Forgiven || a.Class == ExitMeasured && a.Valid {
			continue
		}
		if a.Cause == CauseUser && !cancelled {
			cancelled, why = true, "cancelled in Slurm"
		}
		headline := a.Reason
		if headline == "" {
			headline = a.Class.Meaning()
		}
		last = headline
		switch a.Class.Retry() {
		case RetryNever:
			dead = headline
		case RetryElsewhere:
			if a.Node != "" {
				v.Avoid = append(v.Avoid, a.Node)
			}
		case RetryDeterministic:
			if a.Signature != "" {
				if signatures[a.Signature]++; signatures[a.Signature] == 2 {
					dead = "the same failure twice: " + headline
				}
			}
		case RetryNone, RetryAnywhere:
		}
		if a.blameless() && free < budget.Free {
			free++
			continue
		}
		v.Charged++
	}
	slices.Sort(v.Avoid)
	v.Avoid = slices.Compact(v.Avoid)
	switch {
	case complete:
		v.State = RunComplete
	case cancelled:
		v.State, v.Reason = RunCancelled, why
	case dead != "":
		v.State, v.Reason = RunDead, dead
	case v.Charged >= budget.Attempts:
		v.State, v.Reason = RunFailed, fmt.Sprintf("%s (attempt %d of %d)", last, v.Charged, budget.Attempts)
	default:
		v.State, v.Reason = RunPending, last
	}
	v.Reason = strings.ToValidUTF8(v.Reason, "\uFFFD")
	return v
}

// blameless reports whether the attempt ended by nobody's fault.
func (a Attempt) blameless() bool {
	if a.Class != ExitCancelled && a.Class != ExitLost {
		return false
	}
	return a.Cause == CausePreempted || a.Cause == CauseNode
}
