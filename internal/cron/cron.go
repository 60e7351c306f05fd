// Package cron submits the sweeps of schedules when they are due. It promises one
// firing for each due time, however many daemons there are and whenever one is
// killed: what becomes of a due time is one row, and a sweep is submitted under a
// key that is the due time's own. It refuses to submit for an owner who is no
// user any more, and settings other than those that were frozen.
package cron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/schedule"
	"sbench/internal/store"
)

// Config is what a Service works with.
type Config struct {
	Store *store.Store
	// Identify says who a user is now: it is asked again for each firing.
	Identify func(ctx context.Context, uid int) (auth.Identity, error)
	// Admit submits as who would themselves. Its failures are *api.Problem.
	Admit func(ctx context.Context, who auth.Identity, req api.SubmitRequest) (api.SubmitResponse, error)
	Log   *slog.Logger
	// Clock is the time and the timers; nil is the machine's.
	Clock clockwork.Clock
	// Interval is how long nothing is looked at: firings that were asked for, and
	// those that jitter delays, wait up to it; 0 is DefaultInterval.
	Interval time.Duration
}

// DefaultInterval is Config.Interval's default.
const DefaultInterval = 5 * time.Second

// patience is how long a firing is tried again while something does not answer,
// where it has no window.
const patience = 6 * time.Hour

// Service follows the schedules.
type Service struct {
	Config
	jobs map[int64]job // by schedule
}

// job is a timer of gocron.
type job struct {
	id   uuid.UUID
	mark string // changes when the timer has to
}

// New returns a service. Nothing is looked at yet.
func New(c Config) *Service {
	c.Interval = cmp.Or(c.Interval, DefaultInterval)
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("service", "cron")
	return &Service{Config: c, jobs: map[int64]job{}}
}

// Run follows the schedules until ctx ends. The timers are only what wakes it:
// what is due is what the database says. It returns an error only where another
// daemon acts.
func (s *Service) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	poke := func() {
		select {
		case wake <- struct{}{}:
		default: // it is awake already
		}
	}
	timers, err := gocron.NewScheduler(gocron.WithClock(s.Clock), gocron.WithLocation(time.UTC), gocron.WithDistributedElector(elected{ctx}),
		gocron.WithLogger(quiet{s.Log}))
	if err != nil {
		return fmt.Errorf("start timers: %w", err)
	}
	defer func() { _ = timers.Shutdown() }()
	if _, err := timers.NewJob(gocron.DurationJob(s.Interval), gocron.NewTask(poke)); err != nil {
		return fmt.Errorf("start timers: %w", err)
	}
	timers.Start()
	poke()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
		}
		err := errors.Join(s.Turn(ctx), s.reschedule(ctx, timers, poke))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, store.ErrFenced):
			return err
		case err != nil:
			s.Log.WarnContext(ctx, "schedules were not followed completely", "error", err)
		}
	}
}

// elected lets timers fire while the term lasts.
type elected struct{ term context.Context } //nolint:containedctx // it is the term itself

func (e elected) IsLeader(context.Context) error { return e.term.Err() }

// quiet passes on what is worth a line of the daemon's log.
type quiet struct{ log *slog.Logger }

func (quiet) Debug(string, ...any)                {}
func (quiet) Info(string, ...any)                 {}
func (q quiet) Warn(message string, args ...any)  { q.log.Warn(message, args...) }
func (q quiet) Error(message string, args ...any) { q.log.Error(message, args...) }

// rules is a schedule as gocron wants it: due by this project's own rules for
// clock changes.
type rules struct{ schedule.Schedule }

func (rules) IsValid(string, *time.Location, time.Time) error { return nil }

// reschedule keeps one timer for each schedule that is followed.
func (s *Service) reschedule(ctx context.Context, timers gocron.Scheduler, poke func()) error {
	list, err := s.Store.Crons(ctx, "", "")
	if err != nil {
		return err
	}
	kept := map[int64]bool{}
	var errs []error
	for _, c := range list {
		mark := fmt.Sprintf("%s %s", c.TimeZone, c.Schedule)
		if c.PausedAt != nil {
			continue
		}
		kept[c.ID] = true
		if s.jobs[c.ID].mark == mark {
			continue
		}
		s.drop(timers, c.ID)
		sched, err := scheduleOf(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("schedule %s of %s: %w", c.Name, c.UserName, err))
			continue
		}
		j, err := timers.NewJob(gocron.CronJob(c.Schedule, false), gocron.NewTask(poke), gocron.WithCronImplementation(rules{sched}),
			gocron.WithName(c.UserName+"/"+c.Name), gocron.WithSingletonMode(gocron.LimitModeReschedule))
		if err != nil {
			errs = append(errs, fmt.Errorf("schedule %s of %s: %w", c.Name, c.UserName, err))
			continue
		}
		s.jobs[c.ID] = job{j.ID(), mark}
	}
	for id := range s.jobs {
		if !kept[id] {
			s.drop(timers, id)
		}
	}
	return errors.Join(errs...)
}

func (s *Service) drop(timers gocron.Scheduler, id int64) {
	if j, ok := s.jobs[id]; ok {
		_ = timers.RemoveJob(j.id) // one that is gone is no error
		delete(s.jobs, id)
	}
}

func scheduleOf(c store.Cron) (schedule.Schedule, error) {
	loc, err := time.LoadLocation(c.TimeZone)
	if err != nil {
		return schedule.Schedule{}, err
	}
	return schedule.Parse(c.Schedule, loc)
}

func policyOf(c store.Cron) schedule.Policy {
	return schedule.Policy{
		Overlap: schedule.Overlap(c.Overlap), CatchUp: schedule.CatchUp(c.CatchUp),
		Jitter: time.Duration(c.JitterS) * time.Second, Window: time.Duration(c.WindowS) * time.Second,
	}
}

// Turn does once what there is to do: decide on what has come due, submit what
// waits, and follow what was submitted. Errors of one schedule do not keep others
// back.
func (s *Service) Turn(ctx context.Context) error {
	list, err := s.Store.Crons(ctx, "", "")
	if err != nil {
		return err
	}
	byID := map[int64]store.Cron{}
	var errs []error
	for _, c := range list {
		byID[c.ID] = c
		if c.PausedAt == nil {
			errs = append(errs, s.decide(ctx, c))
		}
	}
	return errors.Join(append(errs, s.follow(ctx, byID), s.fireWaiting(ctx, byID))...)
}

// decide writes down what becomes of the due times that have come.
func (s *Service) decide(ctx context.Context, c store.Cron) error {
	sched, err := scheduleOf(c)
	if err != nil {
		return fmt.Errorf("schedule %s of %s: %w", c.Name, c.UserName, err)
	}
	now := s.Clock.Now()
	policy := policyOf(c)
	dues := latest(sched, c.DecidedUntil, now)
	if len(dues) == 0 {
		return nil
	}
	var firings []store.CronFiring
	for _, d := range policy.Decide(dues, now) {
		f := store.CronFiring{Due: d.Due, FireAt: d.Due.Add(schedule.Delay(c.ID, d.Due, policy.Jitter)), State: store.FiringWaiting, Reason: d.Why}
		if !d.Fire {
			f.State = store.FiringSkipped
		}
		if policy.Window > 0 {
			end := d.Due.Add(policy.Window)
			f.WindowEnd = &end
		}
		firings = append(firings, f)
	}
	decided, err := s.Store.DecideCron(ctx, c, dues[len(dues)-1], firings)
	if decided {
		s.Log.InfoContext(ctx, "schedule is due", "cron", c.Name, "user", c.UserName, "due", dues[len(dues)-1], "firings", len(firings))
	}
	return err
}

// latest are the last due times up to now that nothing was decided on. Those
// before are as old as a downtime is long, and nobody waits for them.
func latest(sched schedule.Schedule, after, now time.Time) []time.Time {
	dues := sched.Between(after, now, schedule.MostMissed)
	for len(dues) == schedule.MostMissed {
		next := sched.Between(dues[len(dues)-1], now, schedule.MostMissed)
		if len(next) == 0 {
			break
		}
		dues = append(dues, next...)
		dues = dues[len(dues)-schedule.MostMissed:]
	}
	return dues
}

// follow notes how the submitted sweeps ended, and whether in their window.
func (s *Service) follow(ctx context.Context, crons map[int64]store.Cron) error {
	open, err := s.Store.OpenFirings(ctx)
	if err != nil || len(open) == 0 {
		return err
	}
	ids := make([]int64, len(open))
	for i, f := range open {
		ids[i] = *f.SweepID
	}
	sweeps, err := s.Store.Sweeps(ctx, ids...)
	if err != nil {
		return err
	}
	bySweep := map[int64]store.Sweep{}
	for _, sw := range sweeps {
		bySweep[sw.ID] = sw
	}
	now := s.Clock.Now()
	var errs []error
	for _, f := range open {
		sw := bySweep[*f.SweepID]
		switch {
		case sw.EndedAt != nil:
			var met *bool
			if f.WindowEnd != nil {
				in := !sw.EndedAt.After(*f.WindowEnd) && sw.State != store.SweepCancelled
				met = &in
			}
			errs = append(errs, s.Store.EndFiring(ctx, f.ID, *sw.EndedAt, met))
		case f.WindowEnd != nil && f.WindowMet == nil && now.After(*f.WindowEnd):
			errs = append(errs, s.overrun(ctx, crons[f.CronID], f))
		}
	}
	return errors.Join(errs...)
}

// overrun is a window that ended before its sweep.
func (s *Service) overrun(ctx context.Context, c store.Cron, f store.CronFiring) error {
	s.Log.WarnContext(ctx, "a sweep did not end in its window", "cron", c.Name, "user", c.UserName, "sweep", *f.SweepID, "due", f.Due, "window_end", *f.WindowEnd)
	if c.AtWindowEnd == "cancel" {
		// First, because it may be done twice.
		if _, err := s.Store.Cancel(ctx, store.Scope{Sweeps: []int64{*f.SweepID}}, "", "the window of schedule "+c.Name+" ended"); err != nil {
			return err
		}
	}
	return s.Store.MissWindow(ctx, f.ID)
}
