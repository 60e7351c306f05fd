package cron

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/schedule"
	"sbench/internal/store"
)

// fireWaiting submits the firings whose time has come, as the overlap policy of
// each schedule has it.
func (s *Service) fireWaiting(ctx context.Context, crons map[int64]store.Cron) error {
	waiting, err := s.Store.WaitingFirings(ctx)
	if err != nil || len(waiting) == 0 {
		return err
	}
	open, err := s.Store.OpenFirings(ctx)
	if err != nil {
		return err
	}
	running := map[int64][]int64{} // sweeps by schedule
	for _, f := range open {
		running[f.CronID] = append(running[f.CronID], *f.SweepID)
	}
	queued := map[int64]bool{}
	var errs []error
	for _, f := range waiting {
		c, ok := crons[f.CronID]
		if !ok {
			continue // removed a moment ago
		}
		sweep, err := s.fire(ctx, c, f, running[c.ID], queued[c.ID])
		if err != nil {
			errs = append(errs, fmt.Errorf("schedule %s of %s, due %s: %w", c.Name, c.UserName, f.Due.Format(time.RFC3339), err))
		}
		if sweep != 0 {
			running[c.ID] = append(running[c.ID], sweep)
		}
		queued[c.ID] = true
	}
	return errors.Join(errs...)
}

// fire decides on one firing while the sweeps running of the same schedule are
// under way; another says that an earlier firing waits too. It returns the sweep
// that was submitted, 0 for none.
func (s *Service) fire(ctx context.Context, c store.Cron, f store.CronFiring, running []int64, another bool) (int64, error) {
	policy := policyOf(c)
	if len(running) > 0 {
		last := running[len(running)-1]
		switch policy.Overlap {
		case schedule.OverlapQueue:
			if another && policy.CatchUp != schedule.CatchUpAll {
				return 0, s.skip(ctx, c, f, fmt.Sprintf("sweep %d still runs, and an earlier firing waits for it", last))
			}
			if f.Reason == waitsFor(last) {
				return 0, nil
			}
			return 0, s.Store.MoveFiring(ctx, f.ID, store.FiringWaiting, waitsFor(last), nil, 0)
		case schedule.OverlapCancelOld:
			if _, err := s.Store.Cancel(ctx, store.Scope{Sweeps: running}, "", fmt.Sprintf("schedule %s is due again", c.Name)); err != nil {
				return 0, err
			}
		default:
			return 0, s.skip(ctx, c, f, fmt.Sprintf("sweep %d still runs", last))
		}
	}
	return s.submit(ctx, c, f)
}

func waitsFor(sweep int64) string { return fmt.Sprintf("waits for sweep %d", sweep) }

func (s *Service) skip(ctx context.Context, c store.Cron, f store.CronFiring, why string) error {
	s.Log.WarnContext(ctx, "firing skipped", "cron", c.Name, "user", c.UserName, "due", f.Due, "reason", why)
	return s.Store.MoveFiring(ctx, f.ID, store.FiringSkipped, why, nil, 0)
}

// keyOf is the idempotency key of a firing.
func keyOf(f store.CronFiring) string {
	return fmt.Sprintf("cron-%06d-%d", f.CronID, f.Due.UnixMicro())
}

// submit admits a firing's sweep and writes down which it is. A daemon that is
// killed in between finds the sweep by its key.
func (s *Service) submit(ctx context.Context, c store.Cron, f store.CronFiring) (int64, error) {
	id, err := s.Store.SweepOfKey(ctx, c.UID, keyOf(f))
	if err != nil {
		return 0, err
	}
	if id == 0 {
		id, err = s.admit(ctx, c, f)
	}
	var refusal *api.Problem
	switch {
	case err == nil:
		s.Log.InfoContext(ctx, "schedule fired", "cron", c.Name, "user", c.UserName, "due", f.Due, "sweep", id)
		return id, s.Store.MoveFiring(ctx, f.ID, store.FiringSubmitted, f.Reason, &id, c.Version)
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case !errors.As(err, &refusal):
		return 0, err
	case refusal.Code == api.CodeUnavailable && s.Clock.Now().Before(s.deadline(f)):
		s.Log.WarnContext(ctx, "firing waits", "cron", c.Name, "user", c.UserName, "due", f.Due, "error", refusal)
		if f.Reason == refusal.Error() {
			return 0, nil
		}
		return 0, s.Store.MoveFiring(ctx, f.ID, store.FiringWaiting, refusal.Error(), nil, 0)
	}
	s.Log.WarnContext(ctx, "firing refused", "cron", c.Name, "user", c.UserName, "due", f.Due, "error", refusal)
	return 0, s.Store.MoveFiring(ctx, f.ID, store.FiringRefused, refusal.Error(), nil, c.Version)
}

// deadline is until when a firing is tried again.
func (s *Service) deadline(f store.CronFiring) time.Time {
	if f.WindowEnd != nil {
		return *f.WindowEnd
	}
	return f.FireAt.Add(patience)
}

// admit submits as the owner, whoever that is now. Failures that are not worth
// another try are *api.Problem.
func (s *Service) admit(ctx context.Context, c store.Cron, f store.CronFiring) (int64, error) {
	who, err := s.Identify(ctx, c.UID)
	switch {
	case errors.Is(err, auth.ErrUnknownUser):
		return 0, &api.Problem{Code: api.CodeRefused, Message: fmt.Sprintf("uid %d of %s is no user any more", c.UID, c.UserName)}
	case err != nil:
		return 0, &api.Problem{Code: api.CodeUnavailable, Message: "cannot tell who the owner is: " + err.Error()}
	case who.User != c.UserName:
		return 0, &api.Problem{Code: api.CodeRefused, Message: fmt.Sprintf("uid %d was %s and is %s now", c.UID, c.UserName, who.User)}
	}
	var o api.Options
	if err := json.Unmarshal(c.Options, &o); err != nil {
		return 0, &api.Problem{Code: api.CodeInternal, Message: "the options of the schedule cannot be read"}
	}
	resp, err := s.Admit(ctx, who, api.SubmitRequest{
		IdempotencyKey: keyOf(f), FileName: c.FileName, File: c.File, Options: o, SettingsDigest: c.SettingsDigest,
	})
	return resp.SweepID, err
}
