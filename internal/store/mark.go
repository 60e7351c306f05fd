package store

import (
	"context"
	"fmt"
	"slices"

	"sbench/internal/lifecycle"
)

// Scope names runs: those of Runs, those of Sweeps (of Settings among them,
// where there are any), those of Settings over all sweeps, or All.
type Scope struct {
	Sweeps   []int64
	Settings []string
	Runs     []int64
	All      bool
	// UID limits the scope to one user's sweeps, UserName and Site likewise; nil
	// and "" do not.
	UID      *int
	UserName string
	Site     string
}

// Marked says what an action did.
type Marked struct {
	Sweeps    []int64 // whose runs were touched, ascending
	Runs      int     // runs that were touched
	Unchanged int     // runs whose state did not allow the action
}

const (
	sqlScopeRuns = `
select r.id, r.sweep_id, r.state, r.held from run r join sweep s on s.id = r.sweep_id
 where r.id = any($1) and ($2::integer is null or s.uid = $2)
 order by r.id for update of r`
	sqlScopeSweeps = `
select r.id, r.sweep_id, r.state, r.held from run r join sweep s on s.id = r.sweep_id
 where r.sweep_id = any($1) and ($2::text[] is null or r.setting_hash = any($2)) and ($3::integer is null or s.uid = $3)
 order by r.id for update of r`
	sqlScopeSettings = `
select r.id, r.sweep_id, r.state, r.held from sweep_setting ss
  join run r on r.sweep_id = ss.sweep_id and r.setting_hash = ss.setting_hash join sweep s on s.id = r.sweep_id
 where ss.setting_hash = any($1) and ($2::integer is null or s.uid = $2)
 order by r.id for update of r`
	sqlScopeAll = `
select r.id, r.sweep_id, r.state, r.held from run r join sweep s on s.id = r.sweep_id
 where s.state = 'active' and ($1::integer is null or s.uid = $1) and ($2 = '' or s.user_name = $2) and ($3 = '' or s.site = $3)
 order by r.id for update of r`
	sqlMarkCancel  = `update run set cancel_requested_at = coalesce(cancel_requested_at, $2), cancelled_by = $3 where id = any($1)`
	sqlMarkHeld    = `update run set held = $2 where id = any($1)`
	sqlMarkRequeue = `
update run r set cancel_requested_at = null, cancelled_by = '', charged = 0, held = false, avoid_nodes = '{}',
       forgiven_attempt = coalesce((select max(a.id) from attempt a where a.run_id = r.id), 0)
 where id = any($1)`
)

// What an action on whole settings means for the runs that would be added. The
// scope is as in mark; single runs say nothing about others.
const (
	sqlAddingOfScope = `
update sweep_setting ss set adding = $1
  from sweep s
 where s.id = ss.sweep_id and ss.adding = any($2) and s.state = 'active'
   and ($3::bigint[] is null or ss.sweep_id = any($3)) and ($4::text[] is null or ss.setting_hash = any($4))
   and ($5::integer is null or s.uid = $5) and ($6 = '' or s.user_name = $6) and ($7 = '' or s.site = $7)`
	// What stopped because of runs that are sent back is decided again.
	sqlReopenAdding = `
update sweep_setting ss set adding = 'open' from run r
 where r.id = any($1) and ss.sweep_id = r.sweep_id and ss.setting_hash = r.setting_hash and ss.adding in ('barred', 'cut')`
)

// setAdding says what becomes of the runs that would be added in the scope.
func (tx *Tx) setAdding(ctx context.Context, scope Scope, to Adding, from ...Adding) error {
	if len(scope.Runs) > 0 || len(scope.Sweeps) == 0 && len(scope.Settings) == 0 && !scope.All {
		return nil
	}
	if _, err := tx.Exec(ctx, sqlAddingOfScope, to, from, scope.Sweeps, scope.Settings, scope.UID, scope.UserName, scope.Site); err != nil {
		return fmt.Errorf("mark settings: %w", err)
	}
	return nil
}

// mark locks the runs of the scope, gives them to act (which returns the ones it
// touched) and sums up.
func (s *Store) mark(ctx context.Context, scope Scope, act func(tx *Tx, runs []lockedRun) ([]lockedRun, error)) (Marked, error) {
	var m Marked
	err := s.WithTx(ctx, func(tx *Tx) error {
		m = Marked{}
		var runs []lockedRun
		var err error
		switch {
		case len(scope.Runs) > 0:
			runs, err = collect[lockedRun](ctx, tx, "runs", sqlScopeRuns, scope.Runs, scope.UID)
		case len(scope.Sweeps) > 0:
			runs, err = collect[lockedRun](ctx, tx, "runs", sqlScopeSweeps, scope.Sweeps, scope.Settings, scope.UID)
		case len(scope.Settings) > 0:
			runs, err = collect[lockedRun](ctx, tx, "runs", sqlScopeSettings, scope.Settings, scope.UID)
		case scope.All:
			runs, err = collect[lockedRun](ctx, tx, "runs", sqlScopeAll, scope.UID, scope.UserName, scope.Site)
		}
		if err != nil {
			return err
		}
		touched, err := act(tx, runs)
		if err != nil {
			return err
		}
		for _, r := range touched {
			m.Sweeps = append(m.Sweeps, r.SweepID)
		}
		slices.Sort(m.Sweeps)
		m.Sweeps = slices.Compact(m.Sweeps)
		m.Runs, m.Unchanged = len(touched), len(runs)-len(touched)
		return nil
	})
	return m, err
}

func idsOf(runs []lockedRun) []int64 {
	ids := make([]int64, len(runs))
	for i, r := range runs {
		ids[i] = r.ID
	}
	return ids
}

func only(runs []lockedRun, keep func(lockedRun) bool) []lockedRun {
	return slices.DeleteFunc(slices.Clone(runs), func(r lockedRun) bool { return !keep(r) })
}

// Cancel ends the runs of the scope that have not ended. What is pending is
// cancelled at once; what is in Slurm is marked, and the tracker ends it.
func (s *Store) Cancel(ctx context.Context, scope Scope, who, reason string) (Marked, error) {
	m, err := s.mark(ctx, scope, func(tx *Tx, runs []lockedRun) ([]lockedRun, error) {
		open := only(runs, func(r lockedRun) bool { return !r.State.Terminal() })
		if _, err := tx.Exec(ctx, sqlMarkCancel, idsOf(open), tx.now, who); err != nil {
			return nil, err
		}
		if err := tx.setAdding(ctx, scope, AddingBarred, AddingOpen, AddingHeld); err != nil {
			return nil, err
		}
		pending := only(open, func(r lockedRun) bool { return r.State == lifecycle.RunPending })
		return open, tx.moveRuns(ctx, idsOf(pending), Change{
			To: lifecycle.RunCancelled, By: lifecycle.ActorAdmit, Reason: byUser("cancelled", who, reason), Evidence: userEvidence(who),
		})
	})
	if err != nil {
		return m, fmt.Errorf("cancel: %w", err)
	}
	return m, nil
}

// Hold keeps the runs of the scope that have not ended from being planned, and
// Release lets them go. Neither stops what is running.
func (s *Store) Hold(ctx context.Context, scope Scope) (Marked, error) {
	return s.setHeld(ctx, scope, true)
}

// Release undoes Hold.
func (s *Store) Release(ctx context.Context, scope Scope) (Marked, error) {
	return s.setHeld(ctx, scope, false)
}

func (s *Store) setHeld(ctx context.Context, scope Scope, held bool) (Marked, error) {
	m, err := s.mark(ctx, scope, func(tx *Tx, runs []lockedRun) ([]lockedRun, error) {
		open := only(runs, func(r lockedRun) bool { return !r.State.Terminal() && r.Held != held })
		if _, err := tx.Exec(ctx, sqlMarkHeld, idsOf(open), held); err != nil {
			return nil, err
		}
		from, to := AddingOpen, AddingHeld
		if !held {
			from, to = to, from
		}
		return open, tx.setAdding(ctx, scope, to, from)
	})
	if err != nil {
		return m, fmt.Errorf("hold or release: %w", err)
	}
	return m, nil
}

// Requeue sends failed, dead and cancelled runs back to pending with a new
// budget. Their attempts stay, and a valid result among them still counts. The
// error is a QuotaError where a quota has no room for them.
func (s *Store) Requeue(ctx context.Context, scope Scope, who, reason string) (Marked, error) {
	m, err := s.mark(ctx, scope, func(tx *Tx, runs []lockedRun) ([]lockedRun, error) {
		ended := only(runs, func(r lockedRun) bool {
			return lifecycle.MayTransition(lifecycle.ActorAdmit, r.State, lifecycle.RunPending)
		})
		if _, err := tx.Exec(ctx, sqlMarkRequeue, idsOf(ended)); err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, sqlReopenAdding, idsOf(ended)); err != nil {
			return nil, fmt.Errorf("reopen settings: %w", err)
		}
		err := tx.moveRuns(ctx, idsOf(ended), Change{
			To: lifecycle.RunPending, By: lifecycle.ActorAdmit, Reason: byUser("requeued", who, reason), Evidence: userEvidence(who),
		})
		if err != nil {
			return nil, err
		}
		var sweeps []int64
		for _, r := range ended {
			if !slices.Contains(sweeps, r.SweepID) {
				sweeps = append(sweeps, r.SweepID)
			}
		}
		return ended, tx.recheck(ctx, sweeps)
	})
	if err != nil {
		return m, fmt.Errorf("requeue: %w", err)
	}
	return m, nil
}

func byUser(did, who, reason string) string {
	text := did
	if who != "" {
		text += " by " + who
	}
	if reason != "" {
		text += ": " + reason
	}
	return text
}

func userEvidence(who string) any {
	return map[string]string{"user": who}
}
