package submit

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/plan"
	"sbench/internal/slurm"
	"sbench/internal/store"
)

const (
	// skew is how far the clocks of Slurm and of this host may be apart.
	skew = 15 * time.Minute
	// mostRefusals is how often Slurm may refuse a batch before its runs are dead:
	// a partition that is down and associations that are not loaded yet look like
	// mistakes for a while.
	mostRefusals = 3
	refusalWait  = 15 * time.Second
	fullWait     = 30 * time.Second
	// mostFull is how often Slurm may be too full for a batch before it is planned
	// again in smaller ones.
	mostFull = 3
	longest  = 5 * time.Minute
)

// advance brings a batch one step on, or several where nothing is in doubt.
func (s *Service) advance(ctx context.Context, b store.Batch) error {
	switch b.State {
	case lifecycle.BatchIntent:
		return s.advanceIntent(ctx, b)
	case lifecycle.BatchHeld:
		return s.advanceHeld(ctx, b)
	default:
	}
	delete(s.fresh, b.Token)
	return nil
}

func (s *Service) advanceIntent(ctx context.Context, b store.Batch) error {
	wait := s.waits(b)
	if !s.unsubmitted(b) {
		// sbatch was called and what it did is not recorded.
		if wait {
			return nil // Slurm is not asked all the time either
		}
		if presence, err := s.adopt(ctx, b); err != nil || presence != slurm.Gone {
			return err
		}
	}
	if dropped, err := s.dropEmpty(ctx, b); err != nil || dropped || wait {
		return err
	}
	return s.submit(ctx, b)
}

// unsubmitted reports whether Slurm has nothing of an intent for certain.
func (s *Service) unsubmitted(b store.Batch) bool { return b.SubmitTries == 0 || s.nothing[b.Token] }

// dropEmpty gives up an intent whose runs were all cancelled.
func (s *Service) dropEmpty(ctx context.Context, b store.Batch) (dropped bool, err error) {
	left, err := s.Store.RunsLeft(ctx, b.Token)
	if err != nil || left > 0 {
		return false, err
	}
	s.forget(b.Token)
	_, err = s.Store.DropBatch(ctx, b.Token, lifecycle.BatchCancelled, lifecycle.RunCancelled, "cancelled before it was submitted")
	return true, err
}

// waits reports whether an intent is to be left alone for now.
func (s *Service) waits(b store.Batch) bool {
	now := s.Now()
	return now.Before(s.notUntil[b.Token]) || s.isFull(ownerOf(b), now)
}

// isFull reports whether Slurm has said that it takes no more of an owner's jobs.
func (s *Service) isFull(o owner, now time.Time) bool {
	return now.Before(s.full) || now.Before(s.fullOf[o])
}

func ownerOf(b store.Batch) owner {
	var shape plan.Shape
	// It is our own; without it the account alone is the owner.
	_ = json.Unmarshal(b.Shape, &shape)
	return owner{b.Account, shape.QOS}
}

// forget forgets what was learned about the submissions of a batch.
func (s *Service) forget(token string) {
	delete(s.refusals, token)
	delete(s.notUntil, token)
	delete(s.nothing, token)
}

// adopt looks for the batch's job and records it. Gone means that it may be
// submitted again.
func (s *Service) adopt(ctx context.Context, b store.Batch) (slurm.Presence, error) {
	presence, found, err := s.Cluster.Find(ctx, b.JobName, b.Token, b.CreatedAt.Add(-skew))
	if err == nil && presence == slurm.Known {
		if found = slices.DeleteFunc(found, lostByController); len(found) == 0 {
			presence = slurm.Gone
		}
	}
	switch {
	case err != nil:
		return slurm.Unknown, err
	case presence == slurm.Known:
		keep := choose(found)
		s.Log.InfoContext(ctx, "adopting job", "token", b.Token, "job", keep.JobID, "found", len(found))
		submitted := keep.Submit
		ok, err := s.Store.HoldBatch(ctx, b.Token, keep.JobID, &submitted, "found by its token", map[string]any{"found": found})
		if err != nil || !ok {
			return slurm.Known, err
		}
		if err := s.cancelOthers(ctx, keep, found); err != nil {
			return slurm.Known, err
		}
		b.State, b.JobID = lifecycle.BatchHeld, &keep.JobID
		return slurm.Known, s.releaseFound(ctx, b, keep)
	case presence == slurm.Gone && b.LastTryAt != nil && s.Now().Before(b.LastTryAt.Add(s.settle(ctx))):
		// A controller that hung may create the job when it goes on.
		return slurm.Unknown, nil
	}
	return presence, nil
}

// lostByController are jobs of which only the accounting database knows, and that never started: a
// controller that crashed has lost them, and they will not run.
func lostByController(f slurm.Found) bool { return !f.Queued && !f.Begun && !f.Ended }

// choose prefers a job that has not ended, then the oldest.
func choose(found []slurm.Found) slurm.Found {
	return slices.MinFunc(found, func(a, b slurm.Found) int {
		switch {
		case a.Ended != b.Ended && b.Ended:
			return -1
		case a.Ended != b.Ended:
			return 1
		}
		return a.Submit.Compare(b.Submit)
	})
}

// cancelOthers ends the jobs that carry the same token. They are held, or their
// tasks found the claim taken.
func (s *Service) cancelOthers(ctx context.Context, keep slurm.Found, found []slurm.Found) error {
	var others []string
	for _, f := range found {
		if f.JobID != keep.JobID && !f.Ended {
			others = append(others, strconv.FormatInt(f.JobID, 10))
		}
	}
	if len(others) == 0 {
		return nil
	}
	s.Log.WarnContext(ctx, "cancelling jobs that carry the same token", "jobs", others)
	return s.Cluster.Cancel(ctx, others...)
}

// settle is how long a submission may be under way after sbatch gave up.
func (s *Service) settle(ctx context.Context) time.Duration {
	if s.Settle > 0 {
		return s.Settle
	}
	const margin = 20 * time.Second
	if settings, err := s.limits.settings(ctx, s.Cluster, s.Now()); err == nil {
		return settings.MessageTimeout + margin
	}
	return time.Minute
}

// submit calls sbatch for a batch of which Slurm has nothing.
func (s *Service) submit(ctx context.Context, b store.Batch) error {
	if ok, err := s.Store.TryBatch(ctx, b.Token); err != nil || !ok {
		return err
	}
	clean := s.unsubmitted(b)
	delete(s.nothing, b.Token)
	s.Failpoint(FailTrying)
	sub, err := s.Cluster.Submit(ctx, filepath.Join(b.Dir, batch.ScriptFile), true)
	if err != nil {
		return s.later(ctx, b, err.Error(), refusalWait)
	}
	if sub.Outcome == slurm.Refused && clean {
		s.nothing[b.Token] = true
	}
	backoff := min(longest, time.Second<<min(b.SubmitTries, 8))
	switch {
	case sub.Outcome == slurm.Created:
		s.Failpoint(FailSubmitted)
		return s.created(ctx, b, sub)
	case sub.Backpressure:
		return s.tooFull(ctx, b, sub)
	case sub.NotNow:
		// It is nobody's fault and passes: nothing is counted, and nobody gives up.
		s.Log.WarnContext(ctx, "Slurm does not take the batch now", "token", b.Token, "message", sub.Message)
		return s.later(ctx, b, sub.Message, max(refusalWait, backoff))
	case sub.TooLong && b.NTasks > 1:
		s.limits.asked = time.Time{} // the limit has changed since
		return s.smaller(ctx, b, sub)
	case sub.Outcome == slurm.Refused:
		return s.refused(ctx, b, sub)
	}
	s.Log.WarnContext(ctx, "not known whether the job was created", "token", b.Token, "message", sub.Message)
	return s.later(ctx, b, sub.Message, backoff)
}

func (s *Service) created(ctx context.Context, b store.Batch, sub slurm.Submission) error {
	ok, err := s.Store.HoldBatch(ctx, b.Token, sub.JobID, nil, "", nil)
	if err != nil {
		return err
	}
	if !ok {
		// Somebody else recorded a job meanwhile; ours is held, and stays so.
		return s.Cluster.Cancel(ctx, strconv.FormatInt(sub.JobID, 10))
	}
	s.Log.InfoContext(ctx, "submitted", "token", b.Token, "job", sub.JobID, "tasks", b.NTasks)
	s.forget(b.Token)
	s.fresh[b.Token] = true
	s.Failpoint(FailHeld)
	b.State, b.JobID = lifecycle.BatchHeld, &sub.JobID
	return s.release(ctx, b)
}

// later notes Slurm's words and leaves the batch alone for a while.
func (s *Service) later(ctx context.Context, b store.Batch, message string, wait time.Duration) error {
	s.notUntil[b.Token] = s.Now().Add(wait)
	return s.Store.NoteBatch(ctx, b.Token, message)
}

func (s *Service) refused(ctx context.Context, b store.Batch, sub slurm.Submission) error {
	s.refusals[b.Token]++
	if s.refusals[b.Token] < mostRefusals {
		s.Log.WarnContext(ctx, "Slurm refused the batch", "token", b.Token, "message", sub.Message, "times", s.refusals[b.Token])
		return s.later(ctx, b, sub.Message, refusalWait)
	}
	s.forget(b.Token)
	s.Log.ErrorContext(ctx, "Slurm refuses the batch", "token", b.Token, "message", sub.Message)
	_, err := s.Store.DropBatch(ctx, b.Token, lifecycle.BatchRefused, lifecycle.RunDead, "sbatch: "+sub.Message)
	return err
}

// tooFull waits, and after a while plans the runs again in smaller arrays: the
// limit may be lower than the array is long. Where the limit is of an account or a
// QOS, others are not held up.
func (s *Service) tooFull(ctx context.Context, b store.Batch, sub slurm.Submission) error {
	until := s.Now().Add(fullWait)
	if sub.Outcome != slurm.Refused {
		s.full = until // the controller itself is full
		return s.Store.NoteBatch(ctx, b.Token, sub.Message)
	}
	s.fullOf[ownerOf(b)] = until
	if s.refusals[b.Token]++; s.refusals[b.Token] < mostFull || b.NTasks == 1 {
		return s.Store.NoteBatch(ctx, b.Token, sub.Message)
	}
	delete(s.fullOf, ownerOf(b))
	return s.smaller(ctx, b, sub)
}

// smaller gives a batch up whose array is too long. Its runs are planned again in
// shorter ones; for a while, because what was in the way may be gone by then.
func (s *Service) smaller(ctx context.Context, b store.Batch, sub slurm.Submission) error {
	s.forget(b.Token)
	s.most, s.mostFor = max(1, b.NTasks/2), s.Now().Add(limitsAge)
	s.Log.WarnContext(ctx, "Slurm takes no array of this size", "token", b.Token, "tasks", b.NTasks, "message", sub.Message)
	_, err := s.Store.DropBatch(ctx, b.Token, lifecycle.BatchRefused, lifecycle.RunPending, "sbatch: "+sub.Message)
	return err
}

// advanceHeld releases a job whose id is recorded. One that another process
// submitted is looked at first: a controller that crashed gives ids out again.
func (s *Service) advanceHeld(ctx context.Context, b store.Batch) error {
	if b.JobID == nil {
		return fmt.Errorf("batch is held without a job id")
	}
	if s.fresh[b.Token] {
		return s.release(ctx, b)
	}
	presence, found, err := s.Cluster.Find(ctx, b.JobName, b.Token, b.CreatedAt.Add(-skew))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(found, func(f slurm.Found) bool { return f.JobID == *b.JobID && !lostByController(f) })
	switch {
	case i >= 0:
		return s.releaseFound(ctx, b, found[i])
	case presence == slurm.Unknown, s.Now().Before(b.ChangedAt.Add(s.settle(ctx))):
		return nil
	}
	s.Log.WarnContext(ctx, "the controller forgot the job", "token", b.Token, "job", *b.JobID)
	forgotten, err := s.Store.ForgetBatch(ctx, b.Token, fmt.Sprintf("the controller forgot job %d", *b.JobID))
	if err == nil && !forgotten {
		// It was released before, which nobody recorded, and has begun: what became of
		// its tasks is for the tracker to find out.
		_, err = s.Store.ReleaseBatch(ctx, b.Token)
	}
	return err
}

// releaseFound releases a job that was looked for. One that has ended, by whoever
// released or cancelled it, or that only the accounting database knows, is not
// touched: its id may be another's by now. The tracker sees to the rest.
func (s *Service) releaseFound(ctx context.Context, b store.Batch, f slurm.Found) error {
	if f.Queued && !f.Ended {
		return s.release(ctx, b)
	}
	_, err := s.Store.ReleaseBatch(ctx, b.Token)
	return err
}

func (s *Service) release(ctx context.Context, b store.Batch) error {
	if err := s.Cluster.Release(ctx, *b.JobID); err != nil {
		// Whatever it was, the next turn asks Slurm whether the job is there.
		delete(s.fresh, b.Token)
		return err
	}
	s.Failpoint(FailReleased)
	done, err := s.Store.ReleaseBatch(ctx, b.Token)
	if err == nil && done {
		s.Released(s.Now().Sub(b.CreatedAt))
	}
	return err
}
