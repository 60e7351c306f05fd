// Package track follows one site's jobs: with one squeue and at most one sacct
// call per tick, whatever the number of runs, it writes what became of
// allocations, tasks, runs and batches.
//
// It promises that not knowing never decides anything: where Slurm does not
// answer, or has not said it yet, a run stays as it is; that every state can be
// reached from any order of late, duplicated and missing observations; and that
// it ends only jobs that carry our token. It decides only about what has no
// manifest: a run that was started and sealed nothing is lost, one that was never
// started goes back at no cost.
package track

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/store"
)

// cluster is what tracking needs of Slurm.
type cluster interface {
	Queue(ctx context.Context) (slurm.Queue, error)
	Accounting(ctx context.Context, q slurm.AccountingQuery) (slurm.Accounting, error)
	Steps(ctx context.Context, since time.Time, raw ...int64) ([]slurm.Step, error)
	Cancel(ctx context.Context, ids ...string) error
	Release(ctx context.Context, job int64) error
	ReleaseTasks(ctx context.Context, array int64, tasks ...int) error
}

// Config is what a Tracker works with. Zero numbers are the defaults.
type Config struct {
	Site    *site.Site
	Store   *store.Store
	Cluster cluster
	Log     *slog.Logger
	// Interval is the time between two ticks; 0 is the site's poll interval. It
	// grows while Slurm does not answer.
	Interval time.Duration
	// Wake makes the tracker look before a longer wait is over, though no sooner
	// than Interval after the last look; nil never does.
	Wake <-chan struct{}
	// Visibility is how long after a task's end a shared file system may hide what
	// it has sealed.
	Visibility time.Duration
	// Collect is how long a manifest that is there may take to be ingested before
	// its run is given up, and how long a start that Slurm never told of may go on.
	Collect time.Duration
	// Collected is when the collector began its last complete look at the runs in
	// flight: a manifest that it has not seen is not given up, however late it is.
	// nil does not ask.
	Collected func() time.Time
	// Absent is how long neither squeue nor sacct may know a task before it is
	// taken for gone.
	Absent time.Duration
	// Requeue is how long a task that ended by preemption or node failure is left
	// alone: Slurm may bring it back.
	Requeue time.Duration
	// Rest bounds how much of the time Slurm is asked: it is left alone for so many
	// times what its answers took. A controller that takes a second gets twenty.
	Rest int
	Now  func() time.Time // nil is time.Now
	// Failpoint is called between the steps of a tick; nil does nothing.
	Failpoint func(name string)
}

// The defaults of Config.
const (
	DefaultVisibility = time.Minute
	DefaultCollect    = 10 * time.Minute
	DefaultAbsent     = 5 * time.Minute
	DefaultRequeue    = time.Minute
	DefaultRest       = 20
	longest           = 5 * time.Minute // between two ticks
)

// The failpoints, in the order of a tick.
const (
	FailObserved = "track-1-observed" // Slurm was asked, nothing is written
	FailApplied  = "track-2-applied"  // states are written, nothing is settled
	FailSettled  = "track-3-settled"  // runs are settled, the batch is open
)

// skew is how far the clocks of Slurm and of this host may be apart.
const skew = 15 * time.Minute

// Tracker tracks one site. It must not be used by two goroutines at once.
type Tracker struct {
	Config
	// All of this may be forgotten with the process: it is learned again.
	since      map[store.TaskKey]time.Time // when a task was first missed, or seen ended
	seen       map[allocationKey]string    // what was last written of an allocation
	cancelled  map[string]time.Time        // when a batch's jobs were last cancelled
	launches   map[store.TaskKey]int       // how often a task that could not be launched was released
	released   map[string]time.Time        // when a batch's tasks were last released
	asked      time.Time                   // when sacct last answered
	asking     time.Duration               // how long Slurm took for the answers of this tick
	noRecords  bool                        // the cluster keeps no accounting
	lastSteps  time.Time
	reheld     map[string]int // how often a batch was released again
	lastReason map[string]string
	unread     map[string]time.Time // folders of manifests that were due to be read: since when
}

type allocationKey struct {
	raw    int64
	submit int64
}

// New returns a tracker.
func New(c Config) *Tracker {
	c.Interval = cmp.Or(c.Interval, c.Site.PollInterval, 15*time.Second)
	c.Visibility = cmp.Or(c.Visibility, DefaultVisibility)
	c.Collect = cmp.Or(c.Collect, DefaultCollect)
	c.Absent = cmp.Or(c.Absent, DefaultAbsent)
	c.Requeue = cmp.Or(c.Requeue, DefaultRequeue)
	c.Rest = cmp.Or(c.Rest, DefaultRest)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Failpoint == nil {
		c.Failpoint = func(string) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("service", "track", "site", c.Site.Name)
	return &Tracker{
		Config: c, since: map[store.TaskKey]time.Time{}, seen: map[allocationKey]string{},
		cancelled: map[string]time.Time{}, launches: map[store.TaskKey]int{}, released: map[string]time.Time{}, reheld: map[string]int{}, lastReason: map[string]string{}, unread: map[string]time.Time{},
	}
}

// Run tracks until ctx ends. It returns another error only where going on would
// be wrong: another daemon acts.
func (t *Tracker) Run(ctx context.Context) error {
	wait := t.Interval
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-t.Wake:
			if time.Since(last) < t.Interval {
				continue // the timer is close, or Slurm is to be left alone
			}
		}
		t.asking = 0
		err := t.Tick(ctx)
		last = time.Now()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, store.ErrFenced):
			return err
		}
		wait = t.next(wait, t.asking, err)
		if err != nil {
			t.Log.WarnContext(ctx, "tracking is incomplete", "error", err, "next", wait)
		}
		timer.Reset(wait)
	}
}

// next is how long Slurm is left alone after a tick: never less than the site's
// interval, longer the longer it took to answer, and twice as long after each tick
// that got no answer. What else takes long or goes wrong, such as a folder that
// cannot be read, is no burden to Slurm, and keeps nobody else's runs waiting.
func (t *Tracker) next(last, asking time.Duration, err error) time.Duration {
	most := max(longest, t.Interval)
	if errors.Is(err, slurm.ErrUnreachable) || store.Unavailable(err) {
		return min(2*max(last, t.Interval), most)
	}
	return min(max(t.Interval, time.Duration(t.Rest)*asking), most)
}

// ask notes how long a question to Slurm took that began then.
func (t *Tracker) ask(begun time.Time) { t.asking += time.Since(begun) }

// Tick looks once. Where Slurm does not answer, what is known already is still
// settled.
func (t *Tracker) Tick(ctx context.Context) error {
	open, err := t.Store.OpenBatches(ctx, t.Site.Name)
	if err != nil {
		return err
	}
	batches := map[string]store.Batch{}
	for _, b := range open {
		if b.JobID != nil {
			batches[b.Token] = b
		}
	}
	if err := t.moot(ctx, open); err != nil {
		return err
	}
	if len(batches) == 0 {
		clear(t.since)
		clear(t.seen)
		clear(t.launches)
		return t.steps(ctx)
	}
	var errs []error
	for _, step := range []func(context.Context, map[string]store.Batch) error{t.follow, t.settle} {
		if err := step(ctx, batches); err != nil {
			errs = append(errs, err)
			if ctx.Err() != nil || errors.Is(err, store.ErrFenced) {
				return err
			}
		}
	}
	t.Failpoint(FailSettled)
	ended, err := t.Store.EndBatches(ctx, t.Site.Name, t.accountable())
	for _, token := range ended {
		t.Log.InfoContext(ctx, "batch ended", "token", token)
		delete(t.cancelled, token)
		delete(t.released, token)
		delete(t.reheld, token)
		delete(t.lastReason, token)
	}
	return errors.Join(append(errs, err, t.steps(ctx))...)
}
