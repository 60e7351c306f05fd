package submit

import (
	"context"
	"errors"

	"sbench/internal/plan"
	"sbench/internal/store"
)

// depend looks at the sweeps that wait for others: lets go those whose time has
// come, and cancels those whose dependency can never be satisfied.
func (s *Service) depend(ctx context.Context) error {
	waiting, err := s.Store.WaitingSweeps(ctx, s.Site.Name)
	if err != nil || len(waiting) == 0 {
		return err
	}
	on := make([]plan.Dependency, len(waiting))
	var ids []int64
	for i, w := range waiting {
		// What the admission took is read again without a fault; if it is not, nothing
		// is known of it and the sweep waits.
		d, err := plan.ParseDependency(w.Dependency)
		if err != nil {
			s.Log.ErrorContext(ctx, "a stored dependency is not readable", "sweep", w.ID, "error", err)
			continue
		}
		on[i] = d
		ids = append(ids, d.Sweeps()...)
	}
	rows, err := s.Store.SweepsProgress(ctx, ids...)
	if err != nil {
		return err
	}
	progress := map[int64]plan.SweepProgress{}
	for _, p := range rows {
		progress[p.ID] = plan.SweepProgress{State: string(p.State), Begun: p.Begun}
	}
	var errs []error
	for i, w := range waiting {
		if len(on[i].Conditions) == 0 {
			continue
		}
		verdict, reason := on[i].Verdict(progress, w.Earlier)
		state := map[plan.Verdict]string{plan.Waiting: store.DependencyWaiting, plan.Met: store.DependencyMet, plan.Never: store.DependencyNever}[verdict]
		// Runs of a sweep that was found hopeless may be pending again: they were requeued.
		if state == store.DependencyWaiting && state == w.DependencyState && reason == w.DependencyReason {
			continue
		}
		if state != w.DependencyState {
			s.Log.InfoContext(ctx, "dependency", "sweep", w.ID, "on", w.Dependency, "state", state, "reason", reason)
		}
		if err := s.Store.SetDependency(ctx, w.ID, state, reason); err != nil {
			errs = append(errs, err)
			if err := stop(ctx, errs); err != nil {
				return err
			}
		}
	}
	return errors.Join(errs...)
}
