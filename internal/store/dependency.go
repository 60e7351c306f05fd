package store

import (
	"context"
	"fmt"

	"sbench/internal/lifecycle"
)

// The states of a sweep's dependency.
const (
	DependencyWaiting = "waiting"
	DependencyMet     = "met"   // or there is none; it stays so
	DependencyNever   = "never" // it cannot come true as things are
)

// WaitingSweep is an active sweep whose dependency has not come true.
type WaitingSweep struct {
	ID               int64
	Dependency       string // as written
	DependencyState  string
	DependencyReason string
	// Earlier: a sweep of the same user and name that was submitted before is
	// active.
	Earlier bool
}

// Progress of a sweep that others wait for.
type SweepProgress struct {
	ID    int64
	State SweepState
	Begun bool // a run has started
}

const (
	sqlWaitingSweeps = `
select s.id, s.dependency, s.dependency_state, s.dependency_reason,
       exists (select from sweep e where e.uid = s.uid and e.name = s.name and e.id < s.id and e.state = 'active') as earlier
  from sweep s
 where s.site = $1 and s.state = 'active' and s.dependency_state <> 'met'
 order by s.id`
	sqlSweepProgress = `
select s.id, s.state,
       exists (select from run r where r.sweep_id = s.id
                  and (r.state in ('provisioning', 'running', 'complete', 'failed') or r.charged > 0)) as begun
  from sweep s where s.id = any($1) order by s.id`
	sqlSetDependency = `
update sweep set dependency_state = $2, dependency_reason = $3
 where id = $1 and state = 'active' and dependency_state <> 'met'`
)

// WaitingSweeps lists the sweeps of a site that wait for others, oldest first.
func (s *Store) WaitingSweeps(ctx context.Context, site string) ([]WaitingSweep, error) {
	return collect[WaitingSweep](ctx, s.pool, "waiting sweeps", sqlWaitingSweeps, site)
}

// SweepsProgress says how far the sweeps of these ids are, those that exist.
func (s *Store) SweepsProgress(ctx context.Context, ids ...int64) ([]SweepProgress, error) {
	return collect[SweepProgress](ctx, s.pool, "sweeps", sqlSweepProgress, ids)
}

// SetDependency notes what became of a waiting sweep's dependency; where it can
// never come true its pending runs are cancelled with the reason.
func (s *Store) SetDependency(ctx context.Context, sweep int64, state, reason string) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		// Runs before the sweep: the order of whoever locks both.
		var pending []lockedRun
		if state == DependencyNever {
			runs, err := collect[lockedRun](ctx, tx, "runs", sqlScopeSweeps, []int64{sweep}, nil, nil)
			if err != nil {
				return err
			}
			pending = only(runs, func(r lockedRun) bool { return r.State == lifecycle.RunPending })
		}
		tag, err := tx.Exec(ctx, sqlSetDependency, sweep, state, reason)
		if err != nil || tag.RowsAffected() == 0 || len(pending) == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, sqlMarkCancel, idsOf(pending), tx.now, ""); err != nil {
			return err
		}
		return tx.moveRuns(ctx, idsOf(pending), Change{
			To: lifecycle.RunCancelled, By: lifecycle.ActorAdmit, Reason: "the dependency can never be satisfied: " + reason,
		})
	})
	if err != nil {
		return fmt.Errorf("dependency of sweep %d: %w", sweep, err)
	}
	return nil
}
