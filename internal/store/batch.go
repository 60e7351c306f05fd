package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"sbench/internal/lifecycle"
)

// Batch is one submission to Slurm.
type Batch struct {
	Token       string
	Site        string
	Cluster     string // Slurm's ClusterName
	UID         int    `db:"uid"`
	UserName    string
	Account     string
	Dir         string
	AttemptsDir string
	Digest      string          // of batch.json
	Shape       json.RawMessage // plan.Shape
	TimeLimitS  int64
	NTasks      int
	Throttle    int // 0 for none
	JobName     string
	// JobID is the array's, and SlurmSubmitTime Slurm's own time of it; nil until
	// Slurm has told them.
	JobID             *int64
	SlurmSubmitTime   *time.Time
	CreatedAt         time.Time
	SubmitTries       int // how often sbatch was called, or was about to be
	LastTryAt         *time.Time
	LastError         string
	CancelRequestedAt *time.Time
	State             lifecycle.BatchState
	Reason            string
	ChangedAt         time.Time
}

// NewBatch is a batch that is about to be submitted. Task i has index i.
type NewBatch struct {
	Token       string
	Site        string
	Cluster     string
	UID         int
	UserName    string
	Account     string
	Dir         string
	AttemptsDir string
	Digest      string
	Shape       json.RawMessage
	TimeLimit   time.Duration
	Throttle    int
	JobName     string
	Tasks       []NewTask
}

// NewTask is a task of a batch that is about to be submitted.
type NewTask struct {
	TimeLimit time.Duration
	GPUs      int     // held over all nodes
	Runs      []int64 // in the order in which they will be executed
}

const (
	sqlLockPlannable = `
select id from run where id = any($1) and state = 'pending' and not held and cancel_requested_at is null
 order by id for update`
	sqlInsertBatch = `
insert into batch (token, site, cluster, uid, user_name, account, dir, attempts_dir, digest, shape, time_limit_s, n_tasks,
                   throttle, job_name, created_at, state, actor, changed_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 'intent', 'submit', $15)`
	sqlInsertTasks = `
insert into task (token, task_index, time_limit_s, gpus, state, actor, changed_at)
select $1, t.index, t.time_limit_s, t.gpus, 'waiting', 'submit', $5
  from unnest($2::integer[], $3::bigint[], $4::integer[]) as t (index, time_limit_s, gpus)`
	sqlSubmitRuns = `
update run r set state = 'submitted', actor = 'submit', reason = '', changed_at = $5, evidence = null,
       batch_token = $1, task_index = p.task_index, task_position = p.position
  from unnest($2::bigint[], $3::integer[], $4::integer[]) as p (id, task_index, position)
 where r.id = p.id`
)

// CreateBatch commits the intent to submit a batch: the batch, its tasks, and
// their runs as submitted. The error is ErrStale, and nothing is changed, where a
// run is not to be planned any more.
func (s *Store) CreateBatch(ctx context.Context, n NewBatch) error {
	var runs []int64
	var taskOf, position, index, gpus []int
	var limits []int64
	for i, t := range n.Tasks {
		index, limits, gpus = append(index, i), append(limits, seconds(t.TimeLimit)), append(gpus, t.GPUs)
		for k, r := range t.Runs {
			runs, taskOf, position = append(runs, r), append(taskOf, i), append(position, k)
		}
	}
	err := s.WithTx(ctx, func(tx *Tx) error {
		type row struct{ ID int64 }
		plannable, err := collect[row](ctx, tx, "runs", sqlLockPlannable, runs)
		if err != nil {
			return err
		}
		if len(plannable) != len(runs) {
			return ErrStale
		}
		shape := n.Shape
		if shape == nil {
			shape = json.RawMessage(`{}`)
		}
		_, err = tx.Exec(ctx, sqlInsertBatch, n.Token, n.Site, n.Cluster, n.UID, n.UserName, n.Account, n.Dir, n.AttemptsDir,
			n.Digest, shape, seconds(n.TimeLimit), len(n.Tasks), n.Throttle, n.JobName, tx.now)
		if err != nil {
			return fmt.Errorf("insert batch: %w", err)
		}
		if _, err := tx.Exec(ctx, sqlInsertTasks, n.Token, index, limits, gpus, tx.now); err != nil {
			return fmt.Errorf("insert tasks: %w", err)
		}
		if _, err := tx.Exec(ctx, sqlSubmitRuns, n.Token, runs, taskOf, position, tx.now); err != nil {
			return fmt.Errorf("submit runs: %w", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("create batch %s: %w", n.Token, err)
	}
	return nil
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

const (
	sqlBatchColumns = `
select token, site, cluster, uid, user_name, account, dir, attempts_dir, digest, shape, time_limit_s, n_tasks, throttle,
       job_name, job_id, slurm_submit_time, created_at, submit_tries, last_try_at, last_error, cancel_requested_at, state,
       reason, changed_at
  from batch`
	sqlOpenBatches = sqlBatchColumns + ` where site = $1 and state in ('intent', 'held', 'released') order by created_at, token`
	sqlBatchByID   = sqlBatchColumns + ` where token = any($1) order by created_at, token`
)

// OpenBatches returns the batches of a site that Slurm has or may have, oldest
// first.
func (s *Store) OpenBatches(ctx context.Context, site string) ([]Batch, error) {
	return collect[Batch](ctx, s.pool, "open batches", sqlOpenBatches, site)
}

// Batches returns the batches of these tokens that exist.
func (s *Store) Batches(ctx context.Context, tokens ...string) ([]Batch, error) {
	return collect[Batch](ctx, s.pool, "batches", sqlBatchByID, tokens)
}

const (
	sqlTryBatch = `
update batch set submit_tries = submit_tries + 1, last_try_at = $2 where token = $1 and state = 'intent'`
	sqlNoteBatch = `update batch set last_error = $2 where token = $1`
	sqlHoldBatch = `
update batch set state = 'held', actor = 'submit', reason = $4, changed_at = $5, evidence = $6,
       job_id = $2, slurm_submit_time = $3, last_error = ''
 where token = $1 and state = 'intent'`
	sqlReleaseBatch = `
update batch set state = 'released', actor = 'submit', reason = '', changed_at = $2 where token = $1 and state = 'held'`
	sqlForgetBatch = `
update batch set state = 'intent', actor = 'submit', reason = $2, changed_at = $3, job_id = null, slurm_submit_time = null
 where token = $1 and state in ('held', 'released')
   and not exists (select from task where task.token = batch.token and task.state <> 'waiting')`
	sqlLockRunsOfBatch = `select id from run where batch_token = $1 order by id for update`
	sqlStallBatch      = `update batch set reason = $2 where token = $1 and reason <> $2`
)

// onBatch executes a statement about one batch, and reports whether it was in a
// state that the statement changes.
func (s *Store) onBatch(ctx context.Context, what, token, sqlOne string, args func(tx *Tx) ([]any, error)) (bool, error) {
	changed := false
	err := s.WithTx(ctx, func(tx *Tx) error {
		list, err := args(tx)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, sqlOne, append([]any{token}, list...)...)
		changed = tag.RowsAffected() == 1
		return err
	})
	if err != nil {
		return false, fmt.Errorf("%s batch %s: %w", what, token, err)
	}
	return changed, nil
}

// TryBatch notes, before the fact, that sbatch is called for the batch. It is
// false where the batch is not to be submitted any more.
func (s *Store) TryBatch(ctx context.Context, token string) (bool, error) {
	return s.onBatch(ctx, "try", token, sqlTryBatch, func(tx *Tx) ([]any, error) { return []any{tx.now}, nil })
}

// NoteBatch keeps Slurm's words about a batch that could not be submitted yet.
func (s *Store) NoteBatch(ctx context.Context, token, message string) error {
	_, err := s.onBatch(ctx, "note", token, sqlNoteBatch, func(*Tx) ([]any, error) { return []any{message}, nil })
	return err
}

// HoldBatch records the job that carries the batch. It is false where the batch
// was not waiting for one.
func (s *Store) HoldBatch(ctx context.Context, token string, job int64, submitted *time.Time, reason string, evidence any) (bool, error) {
	return s.onBatch(ctx, "hold", token, sqlHoldBatch, func(tx *Tx) ([]any, error) {
		text, err := encodeEvidence(evidence)
		return []any{job, submitted, reason, tx.now, text}, err
	})
}

// ReleaseBatch records that the job was released.
func (s *Store) ReleaseBatch(ctx context.Context, token string) (bool, error) {
	return s.onBatch(ctx, "release", token, sqlReleaseBatch, func(tx *Tx) ([]any, error) { return []any{tx.now}, nil })
}

// ForgetBatch takes back the job id of a batch whose job the controller does not
// know any more and never started: the batch is to be submitted again. It is false
// where a task of it was seen to begin.
func (s *Store) ForgetBatch(ctx context.Context, token, reason string) (bool, error) {
	return s.onBatch(ctx, "forget", token, sqlForgetBatch, func(tx *Tx) ([]any, error) {
		// With its runs locked, no task begins while this one looks.
		type row struct{ ID int64 }
		_, err := collect[row](ctx, tx, "runs", sqlLockRunsOfBatch, token)
		return []any{reason, tx.now}, err
	})
}

// StallBatch says in words why a batch waits in Slurm; "" when it does not.
func (s *Store) StallBatch(ctx context.Context, token, reason string) error {
	_, err := s.onBatch(ctx, "explain", token, sqlStallBatch, func(*Tx) ([]any, error) { return []any{reason}, nil })
	return err
}

const (
	sqlDropBatch = `
update batch set state = $2, actor = 'submit', reason = $3, changed_at = $4 where token = $1 and state = 'intent'`
	sqlDropTasks = `
update task set state = 'ended', actor = 'submit', reason = $2, changed_at = $3 where token = $1 and state <> 'ended'`
	sqlLockBatchRuns = `
select id from run where batch_token = $1 and state = 'submitted' order by id for update`
	sqlDropRuns = `
update run set state = case when cancel_requested_at is not null then 'cancelled' else $2 end,
       actor = 'submit', changed_at = $4, evidence = null,
       reason = case when cancel_requested_at is not null then 'cancelled by ' || cancelled_by else $3 end
 where batch_token = $1 and state = 'submitted'`
)

// DropBatch gives up a batch of which Slurm has nothing: it becomes refused or
// cancelled, and its runs go to the given state (pending, dead), those that a
// user cancelled to cancelled. It is false where the batch is not an intent.
func (s *Store) DropBatch(ctx context.Context, token string, to lifecycle.BatchState, runs lifecycle.RunState, reason string) (bool, error) {
	dropped := false
	err := s.WithTx(ctx, func(tx *Tx) error {
		dropped = false
		type row struct{ ID int64 }
		if _, err := collect[row](ctx, tx, "runs", sqlLockBatchRuns, token); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, sqlDropBatch, token, to, reason, tx.now)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		dropped = true
		if _, err := tx.Exec(ctx, sqlDropTasks, token, reason, tx.now); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlDropRuns, token, runs, reason, tx.now)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("drop batch %s: %w", token, err)
	}
	return dropped, nil
}

const (
	// A sweep's arrays share its limit: the first ones get what does not divide.
	// None gets 0, which Slurm reads as no limit.
	sqlThrottleSweep = `
update sweep set options = case when $2 = 0 then coalesce(options, '{}') - 'max_inflight'
       else coalesce(options, '{}') || jsonb_build_object('max_inflight', $2::integer) end
 where id = $1`
	sqlThrottleBatches = `
with open as (
    select token, row_number() over (order by created_at, token) - 1 as n, count(*) over () as all_of
      from batch where state in ('intent', 'held', 'released') and (shape->>'sweep')::bigint = $1
)
update batch b set throttle_wanted = case when $2 = 0 then 0 else greatest(1, $2 / o.all_of + (o.n < $2 % o.all_of)::integer) end
  from open o where b.token = o.token`
	sqlThrottlesWanted = `
select token, job_id, throttle_wanted as throttle from batch
 where site = $1 and throttle_wanted is not null and job_id is not null and state in ('held', 'released') order by token`
	sqlThrottled = `
update batch set throttle = $2, throttle_wanted = case when throttle_wanted = $2 then null else throttle_wanted end where token = $1`
)

// ThrottleSweep limits how many tasks of a sweep run at once; 0 is no limit. It
// returns how many open batches have to be told.
func (s *Store) ThrottleSweep(ctx context.Context, sweep int64, most int) (batches int, err error) {
	err = s.WithTx(ctx, func(tx *Tx) error {
		tag, err := tx.Exec(ctx, sqlThrottleSweep, sweep, most)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("sweep %d: %w", sweep, ErrNotFound)
		}
		tag, err = tx.Exec(ctx, sqlThrottleBatches, sweep, most)
		batches = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("limit the tasks of sweep %d: %w", sweep, err)
	}
	return batches, nil
}

// Throttle is how many tasks of a job may run at once; 0 is no limit.
type Throttle struct {
	Token    string
	JobID    int64
	Throttle int
}

// ThrottlesWanted returns the jobs of a site whose limit a user has changed.
func (s *Store) ThrottlesWanted(ctx context.Context, site string) ([]Throttle, error) {
	return collect[Throttle](ctx, s.pool, "limits of jobs", sqlThrottlesWanted, site)
}

// Throttled notes that Slurm was told.
func (s *Store) Throttled(ctx context.Context, t Throttle) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlThrottled, t.Token, t.Throttle)
		return err
	})
	if err != nil {
		return fmt.Errorf("note the limit of batch %s: %w", t.Token, err)
	}
	return nil
}

const sqlRunsLeft = `
select count(*) from run where batch_token = $1 and state = 'submitted' and cancel_requested_at is null`

// RunsLeft counts the runs of a batch that nobody cancelled.
func (s *Store) RunsLeft(ctx context.Context, token string) (int, error) {
	var n int
	if err := s.pool.QueryRow(ctx, sqlRunsLeft, token).Scan(&n); err != nil {
		return 0, fmt.Errorf("count runs of batch %s: %w", token, err)
	}
	return n, nil
}

// Load is what of a site is in Slurm's queue, or about to be.
type Load struct {
	Sweep    int64
	Hardware string
	Account  string
	QOS      string `db:"qos"`
	Tasks    int    // waiting and running
	Throttle int    // sum over the open batches; 0 where they have none
}

const sqlSiteLoad = `
select coalesce((b.shape->>'sweep')::bigint, 0) as sweep, coalesce(b.shape->>'hardware', '') as hardware, b.account,
       coalesce(b.shape->>'qos', '') as qos, coalesce(sum(t.n), 0)::bigint as tasks, sum(b.throttle)::bigint as throttle
  from batch b
  left join (select token, count(*) as n from task where state <> 'ended' group by token) t using (token)
 where b.site = $1 and b.state in ('intent', 'held', 'released')
 group by 1, 2, 3, 4 order by 1, 2, 3, 4`

// SiteLoad returns what is in the queue of a site, by sweep, hardware, account
// and QOS.
func (s *Store) SiteLoad(ctx context.Context, site string) ([]Load, error) {
	return collect[Load](ctx, s.pool, "load of site", sqlSiteLoad, site)
}

// NodeDrift is a node that was refused for not being as a setting pins it.
type NodeDrift struct {
	Node        string
	SettingHash string
}

const sqlNodeDrift = `
select distinct n.node, r.setting_hash
  from attempt a join run r on r.id = a.run_id
  cross join lateral unnest(coalesce(a.blamed, a.nodes[1:1])) as n (node)
 where a.exit_class = 'drift_node' and a.site = $1 and a.recorded_at >= $2
 order by 1, 2`

// NodeDrifts returns the nodes of a site that were refused since then, by setting.
func (s *Store) NodeDrifts(ctx context.Context, site string, since time.Time) ([]NodeDrift, error) {
	return collect[NodeDrift](ctx, s.pool, "node drifts", sqlNodeDrift, site, since)
}

// driftSettings is how many settings a node must not have been pinned for, for all to
// avoid it.
const driftSettings = 3

// DriftAge is how long a node is avoided after it was not as a setting pins it.
const DriftAge = 24 * time.Hour

// NodesToAvoid are the nodes of a site that were refused since then, by setting; ""
// has those that all settings avoid.
func (s *Store) NodesToAvoid(ctx context.Context, site string, since time.Time) (map[string][]string, error) {
	list, err := s.NodeDrifts(ctx, site, since)
	if err != nil {
		return nil, err
	}
	avoid, settings := map[string][]string{}, map[string]int{}
	for _, d := range list {
		avoid[d.SettingHash] = append(avoid[d.SettingHash], d.Node)
		if settings[d.Node]++; settings[d.Node] == driftSettings {
			avoid[""] = append(avoid[""], d.Node)
		}
	}
	return avoid, nil
}

// RunTime is how long runs of a series took at a site.
type RunTime struct {
	SeriesHash string
	Runs       int
	P99S       float64 `db:"p99_s"` // from start-up to seal
}

const sqlRunTimes = `
select series_hash, count(*) as runs,
       percentile_disc(0.99) within group (order by extract(epoch from ended_at - started_at))::double precision as p99_s
  from result
 where site = $1 and series_hash = any($2) and started_at >= $3
 group by series_hash`

// RunTimes returns how long the runs of series took at a site since then; series
// without a run are missing.
func (s *Store) RunTimes(ctx context.Context, site string, series []string, since time.Time) ([]RunTime, error) {
	return collect[RunTime](ctx, s.pool, "run times", sqlRunTimes, site, series, since)
}
