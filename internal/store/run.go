package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"sbench/internal/lifecycle"
	"sbench/internal/setting"
)

// Run is one execution of a setting.
type Run struct {
	ID                int64
	SweepID           int64
	SettingHash       string
	SeriesHash        string
	Repeat            int
	UserName          string
	UID               int `db:"uid"`
	Site              string
	Account           string
	BatchToken        *string // where it is now or was last; nil before its first batch
	TaskIndex         *int
	TaskPosition      *int
	BudgetAttempts    int
	BudgetFree        int
	Charged           int
	ForgivenAttempt   int64
	AvoidNodes        []string
	Held              bool
	CancelRequestedAt *time.Time
	State             lifecycle.RunState
	Reason            string
	Actor             lifecycle.Actor
	ChangedAt         time.Time
}

const (
	sqlRunColumns = `
select r.id, r.sweep_id, r.setting_hash, c.series_hash, r.repeat, s.user_name, s.uid, s.site, s.account, r.batch_token, r.task_index,
       r.task_position, r.budget_attempts, r.budget_free, r.charged, r.forgiven_attempt, r.avoid_nodes, r.held,
       r.cancel_requested_at, r.state, r.reason, r.actor, r.changed_at
  from run r join sweep s on s.id = r.sweep_id join setting c on c.setting_hash = r.setting_hash`
	sqlRunsByID   = sqlRunColumns + ` where r.id = any($1) order by r.id`
	sqlRunsOfTask = sqlRunColumns + ` where r.batch_token = $1 and ($2::integer is null or r.task_index = $2)
 order by r.task_index, r.task_position, r.id`
)

// Run returns one run, or ErrNotFound.
func (s *Store) Run(ctx context.Context, id int64) (Run, error) {
	runs, err := s.Runs(ctx, id)
	if err == nil && len(runs) == 0 {
		err = fmt.Errorf("run %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return Run{}, err
	}
	return runs[0], nil
}

// Runs returns the runs of these ids that exist.
func (s *Store) Runs(ctx context.Context, ids ...int64) ([]Run, error) {
	return collect[Run](ctx, s.pool, "runs", sqlRunsByID, ids)
}

// RunsOfBatch returns the runs that are, or were last, in a batch; of one task
// where taskIndex is given.
func (s *Store) RunsOfBatch(ctx context.Context, token string, taskIndex *int) ([]Run, error) {
	return collect[Run](ctx, s.pool, "runs", sqlRunsOfTask, token, taskIndex)
}

// PendingRun is a run that may be planned.
type PendingRun struct {
	ID          int64
	SweepID     int64
	Ordinal     int // of its setting in the sweep
	SettingHash string
	SeriesHash  string
	Repeat      int
	AvoidNodes  []string
	Node        string // that it is for; "" for any
}

// SettingKey names a setting within a sweep, where its labels are its own.
type SettingKey struct {
	SweepID     int64
	SettingHash string
}

// Pending is what the planner may plan.
type Pending struct {
	Runs     []PendingRun // urgent sweeps first, then in order of submission
	Settings map[SettingKey]setting.Setting
	Sweeps   map[int64]Sweep
}

const (
	sqlPendingRuns = `
select r.id, r.sweep_id, ss.ordinal, r.setting_hash, c.series_hash, r.repeat, r.avoid_nodes, r.node
  from sweep s
  join run r on r.sweep_id = s.id and r.state = 'pending'
  join sweep_setting ss on ss.sweep_id = r.sweep_id and ss.setting_hash = r.setting_hash
  join setting c on c.setting_hash = r.setting_hash
 where s.state = 'active' and s.site = $1 and (s.begin_at is null or s.begin_at <= $2)
   and s.dependency_state = 'met' and not r.held and r.cancel_requested_at is null
 order by array_position(array['urgent', 'normal', 'bulk'], s.priority), s.id, r.repeat, ss.ordinal
 limit $3`
	sqlSettingsOfKeys = `
select ss.sweep_id, ss.setting_hash, ss.setting
  from unnest($1::bigint[], $2::text[]) as k (sweep_id, setting_hash)
  join sweep_setting ss using (sweep_id, setting_hash)`
)

// PendingRuns returns at most limit runs that may be planned for a site now:
// pending, not held, of sweeps whose time has come and that wait for no other.
func (s *Store) PendingRuns(ctx context.Context, site string, limit int) (Pending, error) {
	p := Pending{Settings: map[SettingKey]setting.Setting{}, Sweeps: map[int64]Sweep{}}
	var err error
	p.Runs, err = collect[PendingRun](ctx, s.pool, "pending runs", sqlPendingRuns, site, s.now(), limit)
	if err != nil || len(p.Runs) == 0 {
		return p, err
	}
	var sweeps, sweepIDs []int64
	var hashes []string
	for _, r := range p.Runs {
		key := SettingKey{r.SweepID, r.SettingHash}
		if _, known := p.Settings[key]; !known {
			p.Settings[key] = setting.Setting{}
			sweeps, hashes = append(sweeps, r.SweepID), append(hashes, r.SettingHash)
		}
		if _, known := p.Sweeps[r.SweepID]; !known {
			p.Sweeps[r.SweepID] = Sweep{}
			sweepIDs = append(sweepIDs, r.SweepID)
		}
	}
	type row struct {
		SweepID     int64
		SettingHash string
		Setting     setting.Setting
	}
	rows, err := collect[row](ctx, s.pool, "pending settings", sqlSettingsOfKeys, sweeps, hashes)
	if err != nil {
		return p, err
	}
	for _, r := range rows {
		p.Settings[SettingKey{r.SweepID, r.SettingHash}] = r.Setting
	}
	list, err := s.Sweeps(ctx, sweepIDs...)
	if err != nil {
		return p, err
	}
	for _, sweep := range list {
		p.Sweeps[sweep.ID] = sweep
	}
	return p, nil
}

// Change moves runs to a state.
type Change struct {
	Runs     []int64
	To       lifecycle.RunState
	By       lifecycle.Actor
	Reason   string
	Evidence any // goes into the transition as JSON; nil for none
}

// lockedRun is what a change of state has to know.
type lockedRun struct {
	ID      int64
	SweepID int64
	State   lifecycle.RunState
	Held    bool
}

const (
	// In the order of ids, so that two transactions wait instead of deadlocking.
	sqlLockRuns = `select id, sweep_id, state, held from run where id = any($1) order by id for update`
	sqlMoveRuns = `
update run set state = $2, actor = $3, reason = $4, changed_at = $5, evidence = $6 where id = any($1)`
)

// SetRunStates changes the state of runs and returns how many it changed: a run
// that is there already is left alone. The error is ErrIllegalTransition, and
// nothing is changed, where the lifecycle does not allow one of them.
func (tx *Tx) SetRunStates(ctx context.Context, c Change) (int, error) {
	runs, err := collect[lockedRun](ctx, tx, "runs", sqlLockRuns, c.Runs)
	if err != nil {
		return 0, err
	}
	var move []int64
	for _, r := range runs {
		if r.State == c.To {
			continue
		}
		if !lifecycle.MayTransition(c.By, r.State, c.To) {
			return 0, fmt.Errorf("run %d from %s to %s by %s: %w", r.ID, r.State, c.To, c.By, ErrIllegalTransition)
		}
		move = append(move, r.ID)
	}
	return len(move), tx.moveRuns(ctx, move, c)
}

func (tx *Tx) moveRuns(ctx context.Context, ids []int64, c Change) error {
	if len(ids) == 0 {
		return nil
	}
	evidence, err := encodeEvidence(c.Evidence)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, sqlMoveRuns, ids, c.To, c.By, c.Reason, tx.now, evidence); err != nil {
		return fmt.Errorf("move %d runs to %s: %w", len(ids), c.To, err)
	}
	return nil
}

func encodeEvidence(evidence any) (json.RawMessage, error) {
	if evidence == nil {
		return nil, nil
	}
	text, err := json.Marshal(evidence)
	if err != nil {
		return nil, fmt.Errorf("encode evidence: %w", err)
	}
	return text, nil
}

// SetRunState is SetRunStates in a transaction of its own.
func (s *Store) SetRunState(ctx context.Context, c Change) (changed int, err error) {
	err = s.WithTx(ctx, func(tx *Tx) error {
		changed, err = tx.SetRunStates(ctx, c)
		return err
	})
	return changed, err
}

// Transition is one recorded change of state.
type Transition struct {
	ID        int64
	Entity    lifecycle.Entity
	EntityID  string // the run's id, the batch's token, "token/index" of a task
	FromState string // "" at creation
	ToState   string
	At        time.Time
	Actor     lifecycle.Actor
	Reason    string
	Evidence  json.RawMessage // nil for none
	Epoch     *int64          // of the daemon that acted; nil for what any may do
}

const sqlTransitions = `
select id, entity, entity_id, from_state, to_state, at, actor, reason, evidence, epoch
  from transition where entity = $1 and entity_id = any($2) order by id`

// Transitions returns the history of entities of one kind, oldest first.
func (s *Store) Transitions(ctx context.Context, entity lifecycle.Entity, ids ...string) ([]Transition, error) {
	return collect[Transition](ctx, s.pool, "transitions", sqlTransitions, entity, ids)
}
