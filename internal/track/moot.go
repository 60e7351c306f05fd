package track

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"

	"sbench/internal/batch"
	"sbench/internal/slurm"
	"sbench/internal/spool"
	"sbench/internal/store"
)

// moot keeps tasks from measuring runs that an attempt of an earlier task has
// completed: it had been given up, and was sealed or read after all.
func (t *Tracker) moot(ctx context.Context, open []store.Batch) error {
	runs, err := t.Store.MootRuns(ctx, t.Site.Name)
	if err != nil || len(runs) == 0 {
		return err
	}
	var errs []error
	var done []int64
	for _, r := range runs {
		if i := slices.IndexFunc(open, func(b store.Batch) bool { return b.Token == r.Token }); i >= 0 {
			b := open[i]
			_, err := spool.Close(b.Dir, r.ID, "another attempt has completed it", t.Now())
			if err = errors.Join(err, markCancelled(b, r.ID)); err != nil {
				errs = append(errs, err)
				continue
			}
			t.Log.InfoContext(ctx, "a run is complete and need not be measured again", "run", r.ID, "token", r.Token, "task", r.TaskIndex)
		}
		done = append(done, r.ID)
	}
	return errors.Join(append(errs, t.Store.ClearMoot(ctx, done))...)
}

// tokenIn finds a token at the end of a job's name, or as a word of its comment.
var tokenIn = regexp.MustCompile(`(?:^|[ .-])(sb-[a-z2-7]{20})(?: |$)`)

// orphans finds jobs that carry the token of a batch that is over: a controller
// that hung for long has created them after they were given up. Nobody waits for
// them, and what they hold is somebody else's.
func (t *Tracker) orphans(ctx context.Context, q slurm.Queue, batches map[string]store.Batch) ([]string, error) {
	jobs := map[string][]int64{}
	var tokens []string
	for _, j := range q.Jobs {
		m := tokenIn.FindStringSubmatch(j.Name)
		if m == nil {
			m = tokenIn.FindStringSubmatch(j.Comment)
		}
		if m == nil || j.State.Phase() == slurm.PhaseEnded || !batch.IsToken(m[1]) {
			continue
		}
		if _, open := batches[m[1]]; open || slices.Contains(jobs[m[1]], j.ArrayID) {
			continue
		}
		if jobs[m[1]] == nil {
			tokens = append(tokens, m[1])
		}
		jobs[m[1]] = append(jobs[m[1]], j.ArrayID)
	}
	if len(tokens) == 0 {
		return nil, nil
	}
	known, err := t.Store.Batches(ctx, tokens...)
	if err != nil {
		return nil, err
	}
	var targets []string
	for _, b := range known {
		// A batch that is being submitted looks for its job itself.
		if b.Site != t.Site.Name || !b.State.Terminal() || t.Now().Sub(t.cancelled[b.Token+strayMark]) < cancelEvery {
			continue
		}
		t.cancelled[b.Token+strayMark] = t.Now()
		t.Log.WarnContext(ctx, "cancelling jobs of a batch that is over", "token", b.Token, "jobs", jobs[b.Token])
		for _, id := range jobs[b.Token] {
			targets = append(targets, strconv.FormatInt(id, 10))
		}
	}
	return targets, nil
}
