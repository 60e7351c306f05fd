// Package judge decides for every night of a schedule whether something got slower:
// a screen along the history of each series, the runs again of what it suspects,
// and the regressions among them under false-discovery control. It promises one
// judgement for each night, whenever a daemon is killed, and that nothing is called
// a regression that was not run again; it runs nothing again that the owner's own
// quotas and rights have no room for.
package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/regress"
	"sbench/internal/store"
)

// Config is what a Service works with.
type Config struct {
	Store *store.Store
	// Identify says who a user is now.
	Identify func(ctx context.Context, uid int) (auth.Identity, error)
	// Confirm admits the runs again of a sweep as who would submit them. The same
	// key makes the same sweep. Its failures are *api.Problem.
	Confirm func(ctx context.Context, who auth.Identity, of int64, list []store.Again, key string) (int64, error)
	Log     *slog.Logger
	Now     func() time.Time // nil is time.Now
	// Interval is how often the nights are looked at; 0 is DefaultInterval.
	Interval time.Duration
	// Failpoint is called with the names of steps at which the daemon may die; nil
	// for none.
	Failpoint func(name string)
}

// DefaultInterval is Config.Interval's default.
const DefaultInterval = 10 * time.Second

const (
	// lookBack is how old the end of a night may be that is still judged.
	lookBack = 7 * 24 * time.Hour
	// historyAge is how far back a series' own history is read.
	historyAge = 120 * 24 * time.Hour
	// patience is how long the runs again are asked for while something does not
	// answer.
	patience = 12 * time.Hour
	// nodePatience is how long a run again waits for the node that it is for.
	nodePatience = 6 * time.Hour
	// maxRuns bounds the runs again of one night, both sides together.
	maxRuns = 2000
	// referenceRuns are made of the reference setting beside the candidates.
	referenceRuns = 5
)

// Service judges the nights.
type Service struct{ Config }

// New returns a service. Nothing is looked at yet.
func New(c Config) *Service {
	c.Interval = cmp.Or(c.Interval, DefaultInterval)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Failpoint == nil {
		c.Failpoint = func(string) {}
	}
	c.Log = c.Log.With("service", "judge")
	return &Service{c}
}

// Run judges until ctx ends, whose error it returns, or store.ErrFenced where another
// daemon acts.
func (s *Service) Run(ctx context.Context) error {
	return store.UntilFenced(ctx, s.Interval, nil, s.Turn, func(err error) {
		s.Log.WarnContext(ctx, "nights were not judged completely", "error", err)
	})
}

// Turn does once what there is to do: screen the nights that have ended, have their
// candidates run again, and judge those that were. Errors of one night do not keep
// others back.
func (s *Service) Turn(ctx context.Context) error {
	ended, err := s.Store.UnjudgedNights(ctx, s.Now().Add(-lookBack))
	if err != nil {
		return err
	}
	var errs []error
	for _, sweep := range ended {
		if err := s.screen(ctx, sweep); err != nil {
			errs = append(errs, fmt.Errorf("sweep %d: %w", sweep, err))
		}
	}
	open, err := s.Store.OpenNights(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, n := range open {
		step := s.confirm
		if n.State == store.NightConfirming {
			step = s.conclude
		}
		if err := step(ctx, n); err != nil {
			errs = append(errs, fmt.Errorf("sweep %d: %w", n.SweepID, err))
		}
	}
	return errors.Join(errs...)
}

// screen looks at a night that has ended, and stores what it suspects.
func (s *Service) screen(ctx context.Context, id int64) error {
	h, err := s.history(ctx, id)
	if err != nil {
		return err
	}
	report := regress.Report{Screened: regress.Screen(h.series), Nodes: h.nodes(), References: h.references()}
	report.Unscreened = merged(report.Unscreened, h.left)
	report.Candidates = append(report.Candidates, report.Witnesses(h.series)...)
	report.Confirmations, report.Alerts, report.NotRun = []regress.Confirmation{}, []regress.Alert{}, []regress.Unconfirmed{}
	if report.Environments, err = s.environments(ctx, h, report.Candidates); err != nil {
		return err
	}
	text, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	n := store.Night{
		SweepID: id, State: store.NightJudged, NSeries: report.Screened.Screened, NCandidates: len(report.Candidates), Report: text,
	}
	if n.NCandidates > 0 {
		n.State = store.NightScreened
	}
	if err := s.Store.BeginNight(ctx, n); err != nil {
		return err
	}
	s.Failpoint("night-screened")
	s.Log.InfoContext(ctx, "night screened", "sweep", id, "series", n.NSeries, "candidates", n.NCandidates, "drifts", len(report.Drifts),
		"outlier_nodes", len(report.Nodes))
	return nil
}

func merged(a, b map[string]int) map[string]int {
	for k, n := range b {
		a[k] += n
	}
	return a
}

// keyOf is the idempotency key of a night's runs again.
func keyOf(sweep int64) string { return fmt.Sprintf("night-%012d", sweep) }

// confirm has the candidates run again. A daemon that is killed in between finds
// the sweep by its key.
func (s *Service) confirm(ctx context.Context, n store.Night) error {
	sweep, err := s.Store.Sweep(ctx, n.SweepID)
	if err != nil {
		return err
	}
	var report regress.Report
	if err := json.Unmarshal(n.Report, &report); err != nil {
		return fmt.Errorf("read the screen: %w", err)
	}
	id, err := s.Store.SweepOfKey(ctx, sweep.UID, keyOf(sweep.ID))
	if err != nil {
		return err
	}
	if id == 0 {
		id, err = s.admit(ctx, sweep, report)
	}
	var refusal *api.Problem
	switch {
	case err == nil:
		s.Failpoint("night-admitted")
		return s.Store.ConfirmNight(ctx, sweep.ID, id)
	case ctx.Err() != nil:
		return ctx.Err()
	case !errors.As(err, &refusal):
		return err
	case refusal.Code == api.CodeUnavailable && s.Now().Sub(n.ScreenedAt) < patience:
		return err
	}
	s.Log.WarnContext(ctx, "the candidates of a night are not run again", "sweep", sweep.ID, "user", sweep.UserName, "error", refusal)
	n.Reason = "not run again: " + refusal.Error()
	return s.finish(ctx, sweep, n, report, nil)
}

// admit submits the runs again as the owner of the night, whoever that is now.
func (s *Service) admit(ctx context.Context, sweep store.Sweep, report regress.Report) (int64, error) {
	who, err := s.Identify(ctx, sweep.UID)
	switch {
	case errors.Is(err, auth.ErrUnknownUser):
		return 0, &api.Problem{Code: api.CodeRefused, Message: fmt.Sprintf("uid %d of %s is no user any more", sweep.UID, sweep.UserName)}
	case err != nil:
		return 0, &api.Problem{Code: api.CodeUnavailable, Message: "cannot tell who the owner is: " + err.Error()}
	case who.User != sweep.UserName:
		return 0, &api.Problem{Code: api.CodeRefused, Message: fmt.Sprintf("uid %d was %s and is %s now", sweep.UID, sweep.UserName, who.User)}
	}
	list, err := s.again(ctx, sweep, report)
	if err != nil {
		return 0, err
	}
	return s.Confirm(ctx, who, sweep.ID, list, keyOf(sweep.ID))
}

// again lists what is to run again: tonight's setting of each candidate, the one of
// the nights before where that is another, and the reference setting where
// something got slower of which nothing pinned changed.
func (s *Service) again(ctx context.Context, sweep store.Sweep, report regress.Report) ([]store.Again, error) {
	reference, known, err := s.reference(ctx, sweep)
	if err != nil {
		return nil, err
	}
	hashes := []string{reference.SettingHash}
	for _, c := range report.Candidates {
		hashes = append(hashes, c.Before)
	}
	at, err := s.Store.SweepsOf(ctx, hashes, sweep.Site, sweep.HardwareClass)
	if err != nil {
		return nil, err
	}
	var list []store.Again
	unchanged := false
	for _, c := range within(report.Candidates) {
		// What nothing pinned explains may be a node: it is run on several.
		list = append(list, store.Again{SweepID: sweep.ID, SettingHash: c.Tonight, Runs: c.Runs, Spread: c.Before == c.Tonight})
		switch {
		case c.Before == c.Tonight:
			unchanged = true
		case at[c.Before] != 0: // a synthetic night's may be nowhere
			list = append(list, store.Again{SweepID: at[c.Before], SettingHash: c.Before, Runs: c.Runs})
		}
	}
	if unchanged && known && at[reference.SettingHash] != 0 {
		list = append(list, store.Again{SweepID: at[reference.SettingHash], SettingHash: reference.SettingHash, Runs: referenceRuns, Spread: true})
	}
	return list, nil
}

func (s *Service) reference(ctx context.Context, sweep store.Sweep) (store.Reference, bool, error) {
	list, err := s.Store.References(ctx, sweep.Site)
	if err != nil || len(list) == 0 {
		return store.Reference{}, false, err
	}
	return list[0], true, nil
}
