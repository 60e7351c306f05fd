package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/lifecycle"
)

// OpenTasks are the tasks of a batch that have not ended.
type OpenTasks struct {
	Token   string
	Waiting []int // indexes, ascending
	Running []int
}

const sqlOpenTasks = `
select token,
       coalesce(array_agg(task_index order by task_index) filter (where state = 'waiting'), '{}') as waiting,
       coalesce(array_agg(task_index order by task_index) filter (where state = 'running'), '{}') as running
  from task where token = any($1) and state <> 'ended'
 group by token`

// OpenTasks returns the tasks of these batches that have not ended.
func (s *Store) OpenTasks(ctx context.Context, tokens ...string) ([]OpenTasks, error) {
	return collect[OpenTasks](ctx, s.pool, "open tasks", sqlOpenTasks, tokens)
}

// TaskKey names a task.
type TaskKey struct {
	Token string
	Index int
}

func splitTasks(keys []TaskKey) (tokens []string, indexes []int) {
	tokens, indexes = make([]string, len(keys)), make([]int, len(keys))
	for i, k := range keys {
		tokens[i], indexes[i] = k.Token, k.Index
	}
	return tokens, indexes
}

// TrackedRun is a run that Slurm has or may have.
type TrackedRun struct {
	ID              int64
	SweepID         int64
	SettingHash     string
	SeriesHash      string
	Repeat          int
	HardwareClass   string
	BatchToken      string
	TaskIndex       int
	State           lifecycle.RunState
	CancelRequested bool
	TaskEnded       *time.Time // when the tracker saw the task ended; nil while it is open
	Here            bool       // it is in the task and undecided
}

const (
	sqlTrackedColumns = `
select r.id, r.sweep_id, r.setting_hash, c.series_hash, r.repeat, s.hardware_class, r.batch_token, r.task_index, r.state,
       r.cancel_requested_at is not null as cancel_requested,
       case when t.state = 'ended' then t.changed_at end as task_ended, true as here
  from run r
  join task t on t.token = r.batch_token and t.task_index = r.task_index
  join batch b on b.token = r.batch_token
  join sweep s on s.id = r.sweep_id
  join setting c on c.setting_hash = r.setting_hash
 where r.state in ('submitted', 'provisioning', 'running')`
	sqlRunsOfTasks = sqlTrackedColumns + `
   and (r.batch_token, r.task_index) in (select * from unnest($1::text[], $2::integer[]))
 order by r.batch_token, r.task_index, r.task_position, r.id`
	// Also those that are decided, or elsewhere by now: what they lost in this task
	// is noted all the same.
	sqlUnsettledRuns = `
select r.id, r.sweep_id, r.setting_hash, c.series_hash, r.repeat, s.hardware_class, t.token as batch_token, t.task_index, r.state,
       r.cancel_requested_at is not null as cancel_requested, t.changed_at as task_ended,
       r.state in ('submitted', 'provisioning', 'running') and r.batch_token = t.token and r.task_index = t.task_index as here
  from batch b
  join task t on t.token = b.token and t.state = 'ended' and not t.settled
  join task_run tr on tr.token = t.token and tr.task_index = t.task_index
  join run r on r.id = tr.run_id
  join sweep s on s.id = r.sweep_id
  join setting c on c.setting_hash = r.setting_hash
 where b.site = $1 and b.state in ('held', 'released')
 order by t.token, t.task_index, r.task_position, r.id`
	sqlRunsToCancel = sqlTrackedColumns + `
   and b.site = $1 and b.state in ('held', 'released') and t.state <> 'ended' and b.token in (
       select batch_token from run where cancel_requested_at is not null and state in ('submitted', 'provisioning', 'running'))
 order by r.batch_token, r.task_index, r.task_position, r.id`
)

// RunsOfTasks returns the runs of these tasks that Slurm has or may have.
func (s *Store) RunsOfTasks(ctx context.Context, keys []TaskKey) ([]TrackedRun, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	tokens, indexes := splitTasks(keys)
	return collect[TrackedRun](ctx, s.pool, "runs of tasks", sqlRunsOfTasks, tokens, indexes)
}

// UnsettledRuns returns the runs of the tasks of a site that have ended and are
// not settled.
func (s *Store) UnsettledRuns(ctx context.Context, site string) ([]TrackedRun, error) {
	return collect[TrackedRun](ctx, s.pool, "unsettled runs", sqlUnsettledRuns, site)
}

// RunsToCancel returns all runs in Slurm of those batches of a site of which a
// user has cancelled a run.
func (s *Store) RunsToCancel(ctx context.Context, site string) ([]TrackedRun, error) {
	return collect[TrackedRun](ctx, s.pool, "runs to cancel", sqlRunsToCancel, site)
}

// MootRun is a run that is complete by an attempt of an earlier task, and waits
// in another that has not ended.
type MootRun struct {
	ID        int64
	Token     string
	TaskIndex int
}

const (
	sqlMootRuns = `
select r.id, r.batch_token as token, r.task_index from run r join batch b on b.token = r.batch_token
 where r.moot and b.site = $1 order by r.id`
	sqlClearMoot = `update run set moot = false where id = any($1) and moot`
)

// MootRuns returns the runs of a site that their tasks need not measure any more.
func (s *Store) MootRuns(ctx context.Context, site string) ([]MootRun, error) {
	return collect[MootRun](ctx, s.pool, "moot runs", sqlMootRuns, site)
}

// ClearMoot notes that the tasks of these runs will not measure them.
func (s *Store) ClearMoot(ctx context.Context, ids []int64) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		if _, err := collect[lockedRun](ctx, tx, "runs", sqlLockRuns, ids); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlClearMoot, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("clear %d moot runs: %w", len(ids), err)
	}
	return nil
}

// Allocation is one start of a job or array element. What is nil is not known.
type Allocation struct {
	Cluster      string
	JobIDRaw     int64
	SubmitTime   time.Time
	ArrayJobID   *int64
	RestartCount *int
	Token        string
	TaskIndex    int
	State        string // Slurm's own word
	SlurmReason  string
	Cause        lifecycle.Cause
	Nodes        []string
	StartTime    *time.Time
	EndTime      *time.Time
	ExitCode     *int
	ExitSignal   *int
	ElapsedS     *int64
	AllocGPUs    *int
	AllocTRES    string `db:"alloc_tres"`
	Account      string
	UserName     string
	Partition    string `db:"partition_name"` // where it ran; "" where only squeue told
	SeenIn       string // squeue, sacct
	Ended        bool
}

const (
	sqlAllocationColumns = `
select cluster, job_id_raw, submit_time, array_job_id, restart_count, token, task_index, state, slurm_reason, cause, nodes,
       start_time, end_time, exit_code, exit_signal, elapsed_s, alloc_gpus, alloc_tres, account, user_name, partition_name,
       seen_in, ended
  from allocation`
	sqlAllocationsOfTasks = sqlAllocationColumns + `
 where (token, task_index) in (select * from unnest($1::text[], $2::integer[]))
 order by token, task_index, submit_time, job_id_raw`
	// Open, or ended without what only the accounting database knows.
	sqlAllocationsToFollow = sqlAllocationColumns + `
 where token = any($1) and (not ended or (exit_code is null and last_seen_at >= $2))
 order by token, task_index, submit_time, job_id_raw`
	// What sacct says of an end wins over what was concluded from squeue; what has
	// ended stays so.
	sqlUpsertAllocation = `
insert into allocation as a (cluster, job_id_raw, submit_time, array_job_id, restart_count, token, task_index, state, slurm_reason,
       cause, nodes, start_time, end_time, exit_code, exit_signal, elapsed_s, alloc_gpus, alloc_tres, account, user_name, seen_in,
       ended, last_seen_at, partition_name)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
on conflict (cluster, job_id_raw, submit_time) do update set
       array_job_id = coalesce(excluded.array_job_id, a.array_job_id),
       restart_count = coalesce(excluded.restart_count, a.restart_count),
       state = case when a.ended and not excluded.ended then a.state else excluded.state end,
       slurm_reason = case when excluded.slurm_reason <> '' then excluded.slurm_reason else a.slurm_reason end,
       cause = case when excluded.cause = '' then a.cause
                    when excluded.cause = 'user' and a.ended and a.state in ('COMPLETED', 'FAILED', 'TIMEOUT', 'OUT_OF_MEMORY', 'NODE_FAIL', 'BOOT_FAIL', 'PREEMPTED', 'DEADLINE')
                    then a.cause else excluded.cause end,
       nodes = case when cardinality(excluded.nodes) > 0 then excluded.nodes else a.nodes end,
       start_time = coalesce(excluded.start_time, a.start_time),
       end_time = case when excluded.seen_in = 'sacct' then coalesce(excluded.end_time, a.end_time) else coalesce(a.end_time, excluded.end_time) end,
       exit_code = coalesce(excluded.exit_code, a.exit_code),
       exit_signal = coalesce(excluded.exit_signal, a.exit_signal),
       elapsed_s = coalesce(excluded.elapsed_s, a.elapsed_s),
       alloc_gpus = coalesce(excluded.alloc_gpus, a.alloc_gpus),
       alloc_tres = case when excluded.alloc_tres <> '' then excluded.alloc_tres else a.alloc_tres end,
       account = case when excluded.account <> '' then excluded.account else a.account end,
       user_name = case when excluded.user_name <> '' then excluded.user_name else a.user_name end,
       partition_name = case when excluded.partition_name <> '' then excluded.partition_name else a.partition_name end,
       seen_in = excluded.seen_in, ended = a.ended or excluded.ended, last_seen_at = excluded.last_seen_at`
)

// AllocationsOfTasks returns every start of these tasks, in the order of submission.
func (s *Store) AllocationsOfTasks(ctx context.Context, keys []TaskKey) ([]Allocation, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	tokens, indexes := splitTasks(keys)
	return collect[Allocation](ctx, s.pool, "allocations", sqlAllocationsOfTasks, tokens, indexes)
}

// AllocationsToFollow returns the allocations of these batches that have not
// ended, or ended since then without accounting data.
func (s *Store) AllocationsToFollow(ctx context.Context, tokens []string, since time.Time) ([]Allocation, error) {
	return collect[Allocation](ctx, s.pool, "allocations to follow", sqlAllocationsToFollow, tokens, since)
}

// UpsertAllocations adds what was seen to what is known of allocations. A start that
// had ended by itself and is cancelled later was brought back by a controller that
// crashed, and removed by the tracker: no user did that.
func (tx *Tx) UpsertAllocations(ctx context.Context, list []Allocation) error {
	batch := &pgx.Batch{}
	for _, a := range list {
		batch.Queue(sqlUpsertAllocation, a.Cluster, a.JobIDRaw, a.SubmitTime, a.ArrayJobID, a.RestartCount, a.Token, a.TaskIndex,
			a.State, a.SlurmReason, a.Cause, texts(a.Nodes), a.StartTime, a.EndTime, a.ExitCode, a.ExitSignal, a.ElapsedS,
			a.AllocGPUs, a.AllocTRES, a.Account, a.UserName, a.SeenIn, a.Ended, tx.now, a.Partition)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("store allocations: %w", err)
	}
	return nil
}

const (
	sqlLockTasks = `
select token, task_index as index from task
 where (token, task_index) in (select * from unnest($1::text[], $2::integer[])) and state <> $3
 order by token, task_index for update`
	sqlMoveTasks = `
update task t set state = $4, actor = 'track', reason = k.reason, changed_at = $5, evidence = null, settled = false
  from unnest($1::text[], $2::integer[], $3::text[]) as k (token, task_index, reason)
 where t.token = k.token and t.task_index = k.task_index and t.state <> $4`
)

// MoveTasks changes the state of tasks that are not in it yet. reasons has one
// for each.
func (tx *Tx) MoveTasks(ctx context.Context, keys []TaskKey, reasons []string, to lifecycle.TaskState) error {
	if len(keys) == 0 {
		return nil
	}
	tokens, indexes := splitTasks(keys)
	if _, err := collect[TaskKey](ctx, tx, "tasks", sqlLockTasks, tokens, indexes, to); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, sqlMoveTasks, tokens, indexes, reasons, to, tx.now); err != nil {
		return fmt.Errorf("move %d tasks to %s: %w", len(keys), to, err)
	}
	return nil
}

// ErrForgotten is returned for a batch whose job the submitter has taken back, since
// the controller knew nothing of it (ForgetBatch).
var ErrForgotten = errors.New("the job of the batch was taken back")

const sqlLockBatches = `select token, state from batch where token = any($1) order by token for share`

// LockSubmitted locks runs and then batches, none of which is forgotten until the
// transaction ends. The error is ErrForgotten where one is already: what Slurm told
// of its job before means nothing.
func (tx *Tx) LockSubmitted(ctx context.Context, runs []int64, tokens []string) error {
	if _, err := collect[lockedRun](ctx, tx, "runs", sqlLockRuns, runs); err != nil {
		return err
	}
	type row struct {
		Token string
		State lifecycle.BatchState
	}
	batches, err := collect[row](ctx, tx, "batches", sqlLockBatches, tokens)
	if err != nil {
		return err
	}
	for _, b := range batches {
		if b.State == lifecycle.BatchIntent {
			return fmt.Errorf("batch %s: %w", b.Token, ErrForgotten)
		}
	}
	return nil
}

// FollowRuns moves those of the runs that are in one of the from states. Unlike
// SetRunStates it leaves the others alone: the collector may have been faster.
func (tx *Tx) FollowRuns(ctx context.Context, ids []int64, from []lifecycle.RunState, to lifecycle.RunState, reason string) error {
	if len(ids) == 0 {
		return nil
	}
	runs, err := collect[lockedRun](ctx, tx, "runs", sqlLockRuns, ids)
	if err != nil {
		return err
	}
	var move []int64
	for _, r := range runs {
		for _, f := range from {
			if r.State == f {
				move = append(move, r.ID)
			}
		}
	}
	return tx.moveRuns(ctx, move, Change{To: to, By: lifecycle.ActorTrack, Reason: reason})
}

const sqlReturnRuns = `
update run set state = case when cancel_requested_at is not null then 'cancelled' else $2 end,
       actor = 'track', changed_at = $4, evidence = null,
       reason = case when cancel_requested_at is not null then 'cancelled by ' || cancelled_by else $3 end
 where id = any($1) and state in ('submitted', 'provisioning', 'running')`

// ReturnRuns takes back runs that were not started: to pending at no cost, or to
// what a user wants instead (to, for all of them; cancelled, for those that were
// cancelled).
func (tx *Tx) ReturnRuns(ctx context.Context, ids []int64, to lifecycle.RunState, reason string) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := collect[lockedRun](ctx, tx, "runs", sqlLockRuns, ids); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, sqlReturnRuns, ids, to, reason, tx.now); err != nil {
		return fmt.Errorf("return %d runs: %w", len(ids), err)
	}
	return nil
}

const sqlSettleTask = `update task set settled = true where token = $1 and task_index = $2 and state = 'ended'`

// SettleTask notes that every run of an ended task is decided.
func (tx *Tx) SettleTask(ctx context.Context, key TaskKey) error {
	if _, err := tx.Exec(ctx, sqlSettleTask, key.Token, key.Index); err != nil {
		return fmt.Errorf("settle task %s/%d: %w", key.Token, key.Index, err)
	}
	return nil
}

const sqlEndBatches = `
update batch b set state = 'ended', actor = 'track', reason = '', changed_at = $2
 where b.site = $1 and b.state in ('held', 'released')
   and not exists (select from task t where t.token = b.token and (t.state <> 'ended' or not t.settled))
   and not exists (select from run r where r.batch_token = b.token and r.state in ('submitted', 'provisioning', 'running'))
   and not exists (select from allocation a where a.token = b.token and a.ended and a.exit_code is null and a.last_seen_at >= $3)
returning token`

// EndBatches ends the batches of a site of which nothing is left, and returns
// their tokens. Allocations that were seen since then and lack their accounting
// keep their batch open.
func (s *Store) EndBatches(ctx context.Context, site string, since time.Time) ([]string, error) {
	var tokens []string
	err := s.WithTx(ctx, func(tx *Tx) error {
		rows, err := tx.Query(ctx, sqlEndBatches, site, tx.now, since)
		if err != nil {
			return err
		}
		tokens, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("end batches of site %s: %w", site, err)
	}
	return tokens, nil
}

// KnownAttempt is an attempt in few words.
type KnownAttempt struct {
	RunID        int64
	JobIDRaw     int64
	RestartCount int
	Sealed       bool
}

const sqlAttemptsOfRuns = `
select run_id, job_id_raw, restart_count, sealed from attempt where run_id = any($1)`

// KnownAttempts returns the attempts of runs.
func (s *Store) KnownAttempts(ctx context.Context, runs []int64) ([]KnownAttempt, error) {
	return collect[KnownAttempt](ctx, s.pool, "attempts", sqlAttemptsOfRuns, runs)
}

// Step is what Slurm accounted for one srun.
type Step struct {
	Cluster    string
	JobIDRaw   int64
	StartTime  time.Time
	StepID     string
	Name       string
	RunID      *int64 // nil where it executed no run
	State      string
	EndTime    *time.Time
	ElapsedS   int64
	ExitCode   int
	ExitSignal int
	Nodes      []string
	EnergyJ    *float64 // nil where Slurm measured none
}

const (
	sqlStepsToRead = sqlAllocationColumns + `
 where cluster = $1 and ended and not steps_read and end_time <= $2 and (exit_code is not null or last_seen_at < $3)
 order by end_time limit $4`
	sqlInsertStep = `
insert into step (cluster, job_id_raw, start_time, step_id, name, run_id, state, end_time, elapsed_s, exit_code, exit_signal, nodes,
       energy_j)
values ($1, $2, $3, $4, $5, (select id from run where id = $6), $7, $8, $9, $10, $11, $12, $13)
on conflict (cluster, job_id_raw, start_time, step_id) do nothing`
	sqlStepsRead = `
update allocation set steps_read = true where cluster = $1 and job_id_raw = any($2) and ended`
)

// StepsToRead returns allocations that ended before then and whose steps were
// not stored yet, at most limit. Those that lack their accounting are left out if
// they were seen since: their steps are not there either.
func (s *Store) StepsToRead(ctx context.Context, cluster string, before, since time.Time, limit int) ([]Allocation, error) {
	return collect[Allocation](ctx, s.pool, "allocations without steps", sqlStepsToRead, cluster, before, since, limit)
}

// StoreSteps stores steps, and that those of the given jobs were read.
func (s *Store) StoreSteps(ctx context.Context, cluster string, steps []Step, jobs []int64) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		batch := &pgx.Batch{}
		for _, st := range steps {
			batch.Queue(sqlInsertStep, st.Cluster, st.JobIDRaw, st.StartTime, st.StepID, st.Name, st.RunID, st.State, st.EndTime,
				st.ElapsedS, st.ExitCode, st.ExitSignal, texts(st.Nodes), st.EnergyJ)
		}
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlStepsRead, cluster, jobs)
		return err
	})
	if err != nil {
		return fmt.Errorf("store %d steps: %w", len(steps), err)
	}
	return nil
}
