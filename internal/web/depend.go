package web

import (
	"context"

	"sbench/internal/api"
	"sbench/internal/plan"
)

// depend refuses a dependency that is none, or that cannot come true: of sweeps
// that are not there, or that have ended otherwise than it waits for.
func (s *server) depend(ctx context.Context, a *admission) error {
	d, err := plan.ParseDependency(a.options.Dependency)
	if err != nil {
		return invalid("--dependency: %v", err)
	}
	if len(d.Sweeps()) == 0 {
		return nil
	}
	rows, err := s.Store.SweepsProgress(ctx, d.Sweeps()...)
	if err != nil {
		return err
	}
	progress := map[int64]plan.SweepProgress{}
	for _, p := range rows {
		progress[p.ID] = plan.SweepProgress{State: string(p.State), Begun: p.Begun}
	}
	switch verdict, why := d.Verdict(progress, false); verdict {
	case plan.Never:
		return &api.Problem{Code: api.CodeInvalid, Message: "--dependency " + a.options.Dependency + " can never be satisfied: " + why}
	case plan.Waiting:
		a.resp.Notes = append(a.resp.Notes, why)
	case plan.Met:
	}
	return nil
}
