package track

import (
	"context"
	"errors"
	"strings"
	"time"

	"sbench/internal/lifecycle"
	"sbench/internal/slurm"
	"sbench/internal/store"
)

// releaseAll lets start what Slurm holds and nobody else will release; on a site
// that is paused nothing.
func (t *Tracker) releaseAll(ctx context.Context, batches map[string]store.Batch, views map[string]view, tasks []store.OpenTasks, c *changes) error {
	modes, err := t.Store.SiteModes(ctx)
	if err != nil || modes[t.Site.Name].Mode == store.SitePaused {
		return err
	}
	return errors.Join(t.release(ctx, batches, c), t.releaseAgain(ctx, batches, views, tasks))
}

// mostLaunches is how often a task that Slurm could not launch is released before
// its runs are given to another batch.
const mostLaunches = 5

// unlaunched deals with a task that Slurm could not launch on a node, and holds:
// nobody else will release it. It reports whether the task was given up; what of
// it is still in the queue is then a stray.
func (t *Tracker) unlaunched(c *changes, key store.TaskKey, j slurm.Job) bool {
	failed := strings.HasPrefix(strings.ReplaceAll(j.Reason, "_", " "), "launch failed requeued held")
	switch {
	case failed && t.launches[key] < mostLaunches:
		c.launch[key.Token] = append(c.launch[key.Token], key.Index)
		return false
	case failed, strings.HasPrefix(j.Reason, "JobHoldMaxRequeue"):
		text, _ := slurm.Explain(j.Reason)
		c.toEnded, c.reasons = append(c.toEnded, key), append(c.reasons, "given up: "+text)
		return true
	}
	return false
}

// release lets tasks try again that Slurm could not launch.
func (t *Tracker) release(ctx context.Context, batches map[string]store.Batch, c *changes) error {
	var errs []error
	now := t.Now()
	for token, tasks := range c.launch {
		if now.Sub(t.released[token]) < releaseEvery {
			continue
		}
		t.released[token] = now
		for _, i := range tasks {
			t.launches[store.TaskKey{Token: token, Index: i}]++
		}
		t.Log.WarnContext(ctx, "releasing tasks that Slurm could not launch", "token", token, "job", *batches[token].JobID, "tasks", len(tasks))
		errs = append(errs, t.Cluster.ReleaseTasks(ctx, *batches[token].JobID, tasks...))
	}
	return errors.Join(errs...)
}

// mostReleases is how often a job that is held again is released.
const mostReleases = 3

// releaseAgain releases jobs that are held although we have released them: a
// controller that crashed has forgotten it. Where anything of the job has begun,
// or after some tries, somebody else holds it and is left to it.
func (t *Tracker) releaseAgain(ctx context.Context, batches map[string]store.Batch, views map[string]view, tasks []store.OpenTasks) error {
	var errs []error
	for _, open := range tasks {
		b, v := batches[open.Token], views[open.Token]
		if b.State != lifecycle.BatchReleased || len(open.Waiting) != b.NTasks || !v.heldWhole() || t.reheld[b.Token] >= mostReleases {
			continue
		}
		if now := t.Now(); now.Sub(t.released[b.Token]) >= releaseEvery {
			t.released[b.Token] = now
			t.reheld[b.Token]++
			t.Log.WarnContext(ctx, "releasing a job that is held again", "token", b.Token, "job", *b.JobID)
			errs = append(errs, t.Cluster.Release(ctx, *b.JobID))
		}
	}
	return errors.Join(errs...)
}

// releaseEvery is how long a node gets to recover before its tasks try again.
const releaseEvery = 10 * time.Second
