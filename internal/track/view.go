package track

import (
	"slices"
	"strings"

	"sbench/internal/lifecycle"
	"sbench/internal/slurm"
	"sbench/internal/store"
)

// view is what one look at the queue says about a batch's job.
type view struct {
	waiting []slurm.Job // rows that stand for waiting tasks
	holding map[int]slurm.Job
	ended   map[int]slurm.Job
	// whole is a row that stands for all tasks without one of their own: an array
	// that was cancelled before any of it started.
	whole *slurm.Job
	// strays are jobs that carry the token and are not the batch's: what Slurm
	// created after we had given up on it.
	strays []int64
	// again are tasks that we have ended and Slurm has not: given up, or brought
	// back by a controller that forgot their end.
	again []int
}

// look finds the rows of a batch. A row with the batch's job id but without its
// name is another's: a controller that crashed gives ids out again.
func look(q slurm.Queue, b store.Batch) view {
	v := view{holding: map[int]slurm.Job{}, ended: map[int]slurm.Job{}}
	for _, j := range q.Jobs {
		if j.Name != b.JobName && !slices.Contains(strings.Fields(j.Comment), b.Token) {
			continue
		}
		if b.JobID == nil || j.ArrayID != *b.JobID {
			if j.State.Phase() != slurm.PhaseEnded && !slices.Contains(v.strays, j.ArrayID) {
				v.strays = append(v.strays, j.ArrayID)
			}
			continue
		}
		index, single := (slurm.JobID{Tasks: j.Tasks}).Task()
		switch j.State.Phase() {
		case slurm.PhaseWaiting:
			v.waiting = append(v.waiting, j)
		case slurm.PhaseEnded:
			if single {
				v.ended[index] = j
			} else {
				v.whole = &j
			}
		default: // holding, or a state that this program does not know
			if single {
				v.holding[index] = j
			}
		}
	}
	return v
}

func (v view) waits(index int) (slurm.Job, bool) {
	for _, j := range v.waiting {
		if j.Tasks.Has(index) {
			return j, true
		}
	}
	return slurm.Job{}, false
}

// strayTasks notes the tasks that are in the queue although none of them is open.
func (v *view) strayTasks(open []store.OpenTasks, ended []store.TaskKey, token string) {
	left := map[int]bool{}
	for _, o := range open {
		if o.Token == token {
			for _, i := range slices.Concat(o.Waiting, o.Running) {
				left[i] = true
			}
		}
	}
	for _, key := range ended {
		if key.Token == token {
			delete(left, key.Index)
		}
	}
	for _, j := range v.waiting {
		for i := range j.Tasks.All() {
			if !left[i] {
				v.again = append(v.again, i)
			}
		}
	}
	for i := range v.holding {
		if !left[i] {
			v.again = append(v.again, i)
		}
	}
	slices.Sort(v.again)
}

// known reports whether the controller still has anything of the job.
func (v view) known() bool {
	return len(v.waiting)+len(v.holding)+len(v.ended) > 0 || v.whole != nil
}

// reason says in words why the batch waits, and whether a person must act.
func (v view) reason() (text string, stuck bool) {
	for _, j := range v.waiting {
		t, s := slurm.Explain(j.Reason)
		if s {
			return t, true
		}
		if text == "" {
			text = t
		}
	}
	return text, false
}

// heldWhole reports whether all there is of the job waits, held as by sbatch --hold.
func (v view) heldWhole() bool {
	return len(v.waiting) > 0 && len(v.holding)+len(v.ended) == 0 && v.whole == nil &&
		!slices.ContainsFunc(v.waiting, func(j slurm.Job) bool { return !strings.Contains(j.Reason, "JobHeldUser") })
}

// endedRow is the row that says that a task has ended.
func (v view) endedRow(index int) (slurm.Job, bool) {
	if j, ok := v.ended[index]; ok {
		return j, true
	}
	if v.whole != nil && (v.whole.Tasks == nil || v.whole.Tasks.Has(index)) {
		return *v.whole, true
	}
	return slurm.Job{}, false
}

// causeOf says from outside why an allocation ended.
func causeOf(s slurm.State) lifecycle.Cause {
	switch s {
	case slurm.Cancelled:
		return lifecycle.CauseUser
	case slurm.Preempted, slurm.Requeued, slurm.RequeueFed, slurm.Revoked:
		return lifecycle.CausePreempted
	case slurm.NodeFail, slurm.BootFail, slurm.LaunchFailed:
		return lifecycle.CauseNode
	case slurm.Timeout, slurm.Deadline:
		return lifecycle.CauseTimeLimit
	default:
		return lifecycle.CauseNone
	}
}

// mayComeBack reports whether Slurm may requeue what ended in the state.
func mayComeBack(s slurm.State) bool {
	c := causeOf(s)
	return c == lifecycle.CausePreempted || c == lifecycle.CauseNode
}

// records are the accounting records of jobs, by array id.
type records map[int64][]slurm.Record

func index(a slurm.Accounting) records {
	all := records{}
	for _, r := range a.Records {
		if !r.Placeholder() {
			all[r.ID.Job] = append(all[r.ID.Job], r)
		}
	}
	return all
}

// of returns the records of a task of a batch, oldest first.
func (r records) of(b store.Batch, task int) []slurm.Record {
	var found []slurm.Record
	for _, rec := range r[*b.JobID] {
		if i, single := rec.ID.Task(); single && i == task && rec.Name == b.JobName {
			found = append(found, rec)
		}
	}
	slices.SortStableFunc(found, func(a, b slurm.Record) int { return a.Submit.Compare(b.Submit) })
	return found
}

// whole is the record of an array that was cancelled before any of it started.
func (r records) whole(b store.Batch, task int) (slurm.Record, bool) {
	for _, rec := range r[*b.JobID] {
		_, single := rec.ID.Task()
		if !single && rec.Name == b.JobName && rec.Ended() && (rec.ID.Tasks == nil || rec.ID.Tasks.Has(task)) {
			return rec, true
		}
	}
	return slurm.Record{}, false
}
