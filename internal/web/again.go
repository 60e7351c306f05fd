package web

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/store"
	"sbench/internal/sweep"
)

// Confirm runs settings again to decide about a sweep, interleaved and by the same
// rules as a submission of its owner: the site's mode, Slurm's associations, the
// quotas. The same key makes the same sweep. A failure is an *api.Problem.
func (s *Server) Confirm(ctx context.Context, who auth.Identity, of int64, list []store.Again, key string) (int64, error) {
	row := store.AuditRow{
		UserName: who.User, UID: &who.UID, Via: "cron", Action: "confirm", Object: fmt.Sprintf("sweep %d", of), Outcome: store.AuditAsked,
	}
	asked, err := s.Store.Audit(ctx, row)
	if err != nil {
		return 0, s.problem(ctx, "audit log", err)
	}
	n := notes{}
	id, err := s.again(context.WithValue(ctx, notesKey{}, n), who, of, list, key)
	s.decided(ctx, row, asked, n, err)
	if err != nil {
		return 0, s.problem(ctx, "confirmation for "+who.User, err)
	}
	return id, nil
}

// again admits a confirmation. Whoever asks for it, the sweep's owner holds it and
// pays.
func (s *server) again(ctx context.Context, who auth.Identity, of int64, list []store.Again, key string) (int64, error) {
	first, err := s.Store.Sweep(ctx, of)
	if err != nil {
		return 0, err
	}
	if who.User != first.UserName {
		who.User, who.UID = first.UserName, first.UID
	}
	a := &admission{who: who, repeats: map[string]int{}}
	a.req.IdempotencyKey = key
	if err := json.Unmarshal(first.Options, &a.options); err != nil {
		return 0, fmt.Errorf("read the options of sweep %d: %w", of, err)
	}
	o := &a.options
	o.Site, o.Account, o.JobName = first.Site, first.Account, first.Name+"-confirm"
	// What was said about the submission itself is not said about this one.
	o.Hold, o.Begin, o.Only, o.Repeats, o.MaxGPUHours, o.MaxCost, o.Force = false, nil, nil, nil, nil, nil, false
	o.Dependency, o.MailType, o.MailUser, o.EachNode = "", nil, "", false
	a.plan.Name = o.JobName
	settings, err := s.expandAgain(ctx, a, list)
	if err != nil {
		return 0, err
	}
	for _, step := range []func(context.Context, *admission) error{s.choose, s.lookUp, s.forecast, s.permit} {
		if err := step(ctx, a); err != nil {
			return 0, err
		}
	}
	spread, err := s.spread(ctx, a, settings, list)
	if err != nil {
		return 0, err
	}
	note(ctx, "of_sweep", of)
	note(ctx, "account", o.Account)
	note(ctx, "gpu_hours", a.plan.GPUHours)
	text, err := s.Store.SweepText(ctx, of)
	if err != nil {
		return 0, err
	}
	options, err := json.Marshal(o)
	if err != nil {
		return 0, fmt.Errorf("encode options: %w", err)
	}
	id, created, err := s.Store.CreateConfirmation(ctx, store.NewSweep{
		Name: a.plan.Name, UserName: who.User, UID: who.UID, Account: o.Account, Site: a.site.Name, Priority: first.Priority, IdempotencyKey: key,
		File: text.File, Options: options, SLO: first.SLO, MaxErrorRate: first.MaxErrorRate, HardwareClass: first.HardwareClass,
		GPUHours: &a.plan.GPUHours, Settings: settings,
	}, of, spread)
	if err != nil {
		return 0, err
	}
	note(ctx, "sweep", id)
	note(ctx, "repeated", !created)
	s.Log.InfoContext(ctx, "confirmation admitted", "sweep", id, "of", of, "user", who.User, "settings", len(settings), "runs", a.plan.Runs,
		"gpu_hours", a.plan.GPUHours, "repeated", !created)
	return id, nil
}

// expandAgain puts the named settings, each once, into the admission.
func (s *server) expandAgain(ctx context.Context, a *admission, list []store.Again) ([]store.NewSetting, error) {
	bySweep := map[int64][]string{}
	var order []int64
	for _, one := range list {
		if bySweep[one.SweepID] == nil {
			order = append(order, one.SweepID)
		}
		if !slices.Contains(bySweep[one.SweepID], one.SettingHash) {
			bySweep[one.SweepID] = append(bySweep[one.SweepID], one.SettingHash)
		}
		a.repeats[one.SettingHash] = max(a.repeats[one.SettingHash], one.Runs)
	}
	var settings []store.NewSetting
	for _, id := range order {
		found, err := s.Store.AdmittedSettings(ctx, id, bySweep[id])
		if err != nil {
			return nil, err
		}
		for _, n := range found {
			if !slices.ContainsFunc(settings, func(known store.NewSetting) bool { return known.Hash == n.Hash }) {
				n.Repeats = a.repeats[n.Hash]
				settings = append(settings, n)
				a.sweep.Settings = append(a.sweep.Settings, sweep.Expanded{Setting: n.Setting, Hash: n.Hash, Series: n.SeriesHash})
			}
		}
	}
	if len(settings) == 0 {
		return nil, &api.Problem{Code: api.CodeNotFound, Message: "none of the settings that are to run again is known"}
	}
	a.plan.Settings = len(settings)
	return settings, nil
}
