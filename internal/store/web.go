package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"sbench/internal/aggregate"
	"sbench/internal/lifecycle"
	"sbench/internal/setting"
)

// SweepView is a sweep with the counts of its parts.
type SweepView struct {
	ID            int64
	Name          string
	UserName      string
	UID           int `db:"uid"`
	Account       string
	Site          string
	Priority      string
	HardwareClass string
	State         SweepState
	SubmittedAt   time.Time
	BeginAt       *time.Time
	EndedAt       *time.Time
	GPUHours      *float64
	NSettings     int
	NRuns         int

	SettingsFinal    int                        // every run terminal, and aggregated
	SettingsComplete int                        // final, and every run valid
	RunsByState      map[lifecycle.RunState]int // states without a run are missing
	RunsHeld         int                        // pending and held

	Dependency       string // as written; "" for none
	DependencyState  string
	DependencyReason string
}

const (
	sqlSweepViewColumns = `
select s.id, s.name, s.user_name, s.uid, s.account, s.site, s.priority, s.hardware_class, s.state, s.submitted_at, s.begin_at,
       s.ended_at, s.gpu_hours, s.n_settings, s.n_runs, s.dependency, s.dependency_state, s.dependency_reason, c.settings_final, c.settings_complete,
       coalesce(r.runs_by_state, '{}') as runs_by_state, coalesce(r.runs_held, 0) as runs_held
  from sweep s
  cross join lateral (
       select count(*) filter (where ss.settled) as settings_final,
              count(*) filter (where ss.settled and ss.n_valid >= ss.repeats) as settings_complete
         from sweep_setting ss where ss.sweep_id = s.id) c
  cross join lateral (
       select jsonb_object_agg(g.state, g.n) as runs_by_state, sum(g.held)::bigint as runs_held
         from (select state, count(*) as n, count(*) filter (where held and state = 'pending') as held
                 from run where run.sweep_id = s.id group by state) g) r`
	sqlSweepView  = sqlSweepViewColumns + ` where s.id = $1`
	sqlSweepViews = sqlSweepViewColumns + `
 where ($1::bigint[] is null or s.id = any($1)) and ($2::text[] is null or s.user_name = any($2))
   and ($3::text[] is null or s.account = any($3)) and ($4::text is null or s.site = $4)
   and (s.state = 'active' or s.ended_at >= $5)
 order by s.id desc limit $6`
)

// SweepView returns one sweep, or ErrNotFound.
func (s *Store) SweepView(ctx context.Context, id int64) (SweepView, error) {
	list, err := collect[SweepView](ctx, s.pool, "sweep", sqlSweepView, id)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("sweep %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return SweepView{}, err
	}
	return list[0], nil
}

// SweepFilter narrows SweepViews; a zero field does not.
type SweepFilter struct {
	IDs       []int64
	UserNames []string
	Accounts  []string
	Site      string
	// EndedSince lists sweeps too that ended since then; the zero time lists all
	// of them.
	EndedSince time.Time
	Limit      int // at most so many; 0 for 1000
}

// SweepViews returns the sweeps that match, newest first.
func (s *Store) SweepViews(ctx context.Context, f SweepFilter) ([]SweepView, error) {
	return collect[SweepView](ctx, s.pool, "sweeps", sqlSweepViews, f.IDs, f.UserNames, f.Accounts, given(f.Site), f.EndedSince, cmp.Or(f.Limit, 1000))
}

// SweepText is a sweep as it was submitted.
type SweepText struct {
	File    string
	Options json.RawMessage
}

const sqlSweepText = `select file, options from sweep where id = $1`

// SweepText returns the sweep file and what came with it.
func (s *Store) SweepText(ctx context.Context, id int64) (SweepText, error) {
	var t SweepText
	err := s.pool.QueryRow(ctx, sqlSweepText, id).Scan(&t.File, &t.Options)
	return t, one(err, "sweep", id)
}

// SettingView is a setting within a sweep.
type SettingView struct {
	SettingHash string
	SeriesHash  string
	Setting     setting.Setting // with its labels in this sweep
	Repeats     int             // n_total
	RepeatsMax  int             // up to which runs may be added; 0 where the number is fixed
	Adding      Adding
	StopReason  string // why runs were added last, or no more are
	Settled     bool   // every run terminal, and aggregated
	NValid      int    // of the latest aggregate
	RunsByState map[lifecycle.RunState]int
}

const sqlSettingViews = `
select ss.setting_hash, c.series_hash, ss.setting, ss.repeats, ss.repeats_max, ss.adding, ss.stop_reason, ss.settled, ss.n_valid, coalesce(r.runs_by_state, '{}') as runs_by_state
  from sweep_setting ss
  join setting c using (setting_hash)
  left join (select g.setting_hash, jsonb_object_agg(g.state, g.n) as runs_by_state
               from (select setting_hash, state, count(*) as n from run where sweep_id = $1 group by setting_hash, state) g
              group by g.setting_hash) r using (setting_hash)
 where ss.sweep_id = $1
 order by ss.ordinal`

// SettingViews returns the settings of a sweep in their order.
func (s *Store) SettingViews(ctx context.Context, sweep int64) ([]SettingView, error) {
	return collect[SettingView](ctx, s.pool, "settings", sqlSettingViews, sweep)
}

// SettingSpec is a setting over all sweeps.
type SettingSpec struct {
	SettingHash   string
	SeriesHash    string
	CanonicalSpec json.RawMessage
	Setting       setting.Setting // with its labels in the latest sweep
	Sweeps        []int64         // ascending
}

const sqlSettingSpecs = `
select c.setting_hash, c.series_hash, c.canonical_spec, l.setting,
       array(select sweep_id from sweep_setting ss where ss.setting_hash = c.setting_hash order by sweep_id) as sweeps
  from setting c
  cross join lateral (select setting from sweep_setting where setting_hash = c.setting_hash order by sweep_id desc limit 1) l
 where c.setting_hash >= $1 and c.setting_hash < $2
 order by c.setting_hash limit 2`

// SettingSpecs returns at most two settings whose hash begins with prefix
// (lower-case hex): one is an answer, two are an ambiguity.
func (s *Store) SettingSpecs(ctx context.Context, prefix string) ([]SettingSpec, error) {
	return collect[SettingSpec](ctx, s.pool, "settings", sqlSettingSpecs, prefix, prefix+"g")
}

const (
	sqlRunsOfSweep = sqlRunColumns + `
 where r.sweep_id = $1 and ($2::text[] is null or r.state = any($2)) order by r.id`
	sqlRunsOfSetting = sqlRunColumns + `
  join sweep_setting ss on ss.sweep_id = r.sweep_id and ss.setting_hash = r.setting_hash
 where ss.setting_hash = $1 order by r.id desc limit $2`
	sqlDeadRuns = sqlRunColumns + `
 where r.state = 'dead' and ($1::bigint is null or r.sweep_id = $1) order by r.id limit $2`
)

// RunsOfSweep returns the runs of a sweep, those in the given states where there
// are any.
func (s *Store) RunsOfSweep(ctx context.Context, sweep int64, states []string) ([]Run, error) {
	return collect[Run](ctx, s.pool, "runs", sqlRunsOfSweep, sweep, states)
}

// RunsOfSetting returns the latest runs of a setting over all sweeps, newest first.
func (s *Store) RunsOfSetting(ctx context.Context, settingHash string, limit int) ([]Run, error) {
	return collect[Run](ctx, s.pool, "runs", sqlRunsOfSetting, settingHash, limit)
}

// DeadRuns is the dead-letter list, of one sweep where sweep is not 0.
func (s *Store) DeadRuns(ctx context.Context, sweep int64, limit int) ([]Run, error) {
	return collect[Run](ctx, s.pool, "dead runs", sqlDeadRuns, given(sweep), limit)
}

// SettingReason is why runs of a setting have no valid result.
type SettingReason struct {
	SettingHash string
	Reason      string
	N           int // how many runs say so
}

const sqlSettingReasons = `
select setting_hash, reason, count(*)::int as n
  from run
 where sweep_id = $1 and reason <> '' and (state in ('failed', 'dead', 'cancelled') or state = 'pending' and charged > 0)
 group by setting_hash, reason
 order by setting_hash, n desc, reason`

// SettingReasons lists the headlines of a sweep's runs that failed or are tried
// again, the most frequent first within each setting.
func (s *Store) SettingReasons(ctx context.Context, sweep int64) ([]SettingReason, error) {
	return collect[SettingReason](ctx, s.pool, "reasons", sqlSettingReasons, sweep)
}

// Place is where a run is in Slurm, or was last.
type Place struct {
	RunID     int64
	Token     string
	TaskIndex int
	Cluster   string
	// ArrayJobID is the array's id; nil where the task is a job of its own or
	// Slurm has told nothing yet. JobIDRaw is of the latest allocation; nil before
	// there is one.
	ArrayJobID   *int64
	JobIDRaw     *int64
	RestartCount *int
	SlurmState   *string
	Nodes        []string
	StartedAt    *time.Time
	BatchDir     string
	AttemptsDir  string
	// Waits says in words why the task waits; "" where it does not, or Slurm has
	// not said it yet.
	Waits string
}

const sqlPlaces = `
select r.id as run_id, b.token, r.task_index, b.cluster,
       coalesce(al.array_job_id, case when b.form = 'array' then b.job_id end) as array_job_id,
       coalesce(al.job_id_raw, case when b.form <> 'array' then b.job_id end) as job_id_raw,
       al.restart_count, al.state as slurm_state, coalesce(al.nodes, '{}') as nodes, al.start_time as started_at,
       b.dir as batch_dir, b.attempts_dir,
       case when r.state <> 'submitted' then '' when b.state = 'released' then b.reason else coalesce(b.last_error, '') end as waits
  from run r
  join batch b on b.token = r.batch_token
  left join lateral (
       select array_job_id, job_id_raw, restart_count, state, nodes, start_time from allocation
        where token = r.batch_token and task_index = r.task_index order by submit_time desc limit 1) al on true
 where r.id = any($1)
 order by r.id`

// Places returns where the runs are that have been in a batch.
func (s *Store) Places(ctx context.Context, runs ...int64) ([]Place, error) {
	return collect[Place](ctx, s.pool, "places", sqlPlaces, runs)
}

// AttemptView is an attempt with what Slurm says of its allocation.
type AttemptView struct {
	ID           int64
	RunID        int64
	Cluster      string
	JobIDRaw     int64
	ArrayJobID   *int64 // nil where the job is in no array, or its allocation is not known
	TaskIndex    int
	RestartCount int
	Sealed       bool
	SlurmState   *string
	Nodes        []string
	ExitClass    lifecycle.ExitClass
	Valid        bool
	Reasons      []string
	Findings     []string // of the result, where there is one
	Checks       json.RawMessage
	StartedAt    *time.Time
	EndedAt      *time.Time
	Dir          string // where it is sealed; "" for what was lost
}

const sqlAttemptViews = `
select a.id, a.run_id, a.cluster, a.job_id_raw, al.array_job_id, a.task_index, a.restart_count, a.sealed, al.state as slurm_state,
       a.nodes, a.exit_class, a.valid, a.reasons, coalesce(res.findings, '{}') as findings, a.checks, a.started_at, a.ended_at, a.dir
  from current_attempt a
  left join result res on res.attempt_id = a.id
  left join lateral (
       select array_job_id, state from allocation
        where cluster = a.cluster and job_id_raw = a.job_id_raw and token = a.token
        order by (restart_count = a.restart_count) desc nulls last, submit_time desc limit 1) al on true
 where a.run_id = any($1)
 order by a.run_id, a.id`

// AttemptViews lists the attempts of runs, oldest first within each run.
func (s *Store) AttemptViews(ctx context.Context, runs ...int64) ([]AttemptView, error) {
	return collect[AttemptView](ctx, s.pool, "attempts", sqlAttemptViews, runs)
}

// AggregateView is the latest summary of a setting in a sweep.
type AggregateView struct {
	SettingHash   string
	HardwareClass string
	NValid        int
	NTotal        int
	IsFinal       bool
	Mixed         bool
	NNodes        int
	// Reproducibility is nil below two runs.
	Reproducibility *float64
	Verdicts        []string
	Findings        []string
	Warnings        []string
	Metrics         json.RawMessage // name to {n, mean, stddev, ci_low, ci_high, …}
}

// All metrics of a setting are 30 kB of text: the database picks those that are
// wanted, $2. Where these are the headline ones, $3, they lie in the row; others are
// picked from all of them, which each row unpacks once: the offset sees to it.
const (
	unpackedMetrics = `case when $2::text[] is null then d.packed when $3::boolean and d.headline is not null then d.headline
                               when $2 = '{}' then '{}' else d.packed || '{}' end as metrics`
	pickedMetrics = `
       case when $2::text[] is null or $3::boolean and l.headline is not null then l.metrics
            else coalesce((select jsonb_object_agg(k, l.metrics -> k) from unnest($2) k where l.metrics ? k), '{}') end as metrics`
	sqlAggregateViews = `
select l.setting_hash, l.hardware_class, l.n_valid, l.n_total, l.is_final, l.mixed, l.n_nodes, l.reproducibility, l.verdicts, l.findings,
       l.warnings,` + pickedMetrics + `
  from (select d.*, ` + unpackedMetrics + `
          from (select setting_hash, hardware_class, n_valid, n_total, is_final, mixed, n_nodes, reproducibility,
                       verdicts, findings, warnings, headline, metrics as packed
                  from aggregate a
                 where sweep_id = $1 and not exists (
                       select from aggregate b
                        where b.sweep_id = a.sweep_id and b.setting_hash = a.setting_hash and (b.version, b.id) > (a.version, a.id))) d offset 0) l`
)

// AggregateViews returns the latest aggregate of each setting of a sweep that
// has one, in no order, with the metrics of these names; with all of them where it
// is nil.
func (s *Store) AggregateViews(ctx context.Context, sweep int64, metrics []string) ([]AggregateView, error) {
	return collect[AggregateView](ctx, s.pool, "aggregates", sqlAggregateViews, sweep, metrics, slices.Equal(metrics, aggregate.Headline()))
}

const (
	sqlRunHistory = `
with mine as (
    select 'run' as entity, $1::bigint::text as entity_id
    union all select 'task', token || '/' || task_index from task_run where run_id = $1
    union select 'batch', token from task_run where run_id = $1)
select t.id, t.entity, t.entity_id, t.from_state, t.to_state, t.at, t.actor, t.reason, t.evidence, t.epoch
  from transition t join mine using (entity, entity_id)
 order by t.id`
	sqlSweepHistory = `
select t.id, t.entity, t.entity_id, t.from_state, t.to_state, t.at, t.actor, t.reason, t.evidence, t.epoch
  from transition t join run r on t.entity = 'run' and t.entity_id = r.id::text
 where r.sweep_id = $1
 order by t.id`
)

// RunHistory lists every change of state of a run and of the tasks and batches
// that it was in, oldest first.
func (s *Store) RunHistory(ctx context.Context, run int64) ([]Transition, error) {
	return collect[Transition](ctx, s.pool, "history", sqlRunHistory, run)
}

// SweepHistory lists every change of state of a sweep's runs, oldest first.
func (s *Store) SweepHistory(ctx context.Context, sweep int64) ([]Transition, error) {
	return collect[Transition](ctx, s.pool, "history", sqlSweepHistory, sweep)
}

// StateCount is how many runs are in a state.
type StateCount struct {
	Site  string
	State string
	N     int64
}

const sqlRunCounts = `
select s.site, r.state, count(*) as n from run r join sweep s on s.id = r.sweep_id
 where r.state = 'pending' or r.state in ('submitted', 'provisioning', 'running') or r.state = 'dead'
 group by s.site, r.state order by s.site, r.state`

// RunCounts counts the runs that are not over, and the dead ones, by site and
// state: what has ended well is the longer the more, and tells nothing.
func (s *Store) RunCounts(ctx context.Context) ([]StateCount, error) {
	return collect[StateCount](ctx, s.pool, "run counts", sqlRunCounts)
}

const sqlRunSeconds = `
select series_hash, avg(extract(epoch from ended_at - started_at))::double precision as seconds
  from result
 where site = $1 and series_hash = any($2) and valid
 group by series_hash`

// RunSeconds returns how long valid runs of series took on a site, from start-up
// to seal, on average; series without history are missing.
func (s *Store) RunSeconds(ctx context.Context, site string, series []string) (map[string]float64, error) {
	type row struct {
		SeriesHash string
		Seconds    float64
	}
	list, err := collect[row](ctx, s.pool, "run times", sqlRunSeconds, site, series)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, r := range list {
		out[r.SeriesHash] = r.Seconds
	}
	return out, nil
}

// SiteMode is how a site is fed.
type SiteMode struct {
	Site      string
	Mode      string // active; drain: nothing new is taken; paused: nothing is submitted
	Reason    string
	ChangedBy string
	ChangedAt time.Time
}

// The site modes.
const (
	SiteActive = "active"
	SiteDrain  = "drain"
	SitePaused = "paused"
)

const (
	sqlSiteModes   = `select site, mode, reason, changed_by, changed_at from site_mode order by site`
	sqlSetSiteMode = `
insert into site_mode (site, mode, reason, changed_by, changed_at) values ($1, $2, $3, $4, $5)
on conflict (site) do update set mode = excluded.mode, reason = excluded.reason, changed_by = excluded.changed_by,
       changed_at = excluded.changed_at`
)

// SiteModes returns the modes of the sites whose mode was ever set; the others
// are active.
func (s *Store) SiteModes(ctx context.Context) (map[string]SiteMode, error) {
	list, err := collect[SiteMode](ctx, s.pool, "site modes", sqlSiteModes)
	if err != nil {
		return nil, err
	}
	modes := map[string]SiteMode{}
	for _, m := range list {
		modes[m.Site] = m
	}
	return modes, nil
}

// SetSiteMode pauses, drains or resumes a site; ChangedAt is the store's now.
func (s *Store) SetSiteMode(ctx context.Context, m SiteMode) (SiteMode, error) {
	err := s.WithTx(ctx, func(tx *Tx) error {
		m.ChangedAt = tx.now
		_, err := tx.Exec(ctx, sqlSetSiteMode, m.Site, m.Mode, m.Reason, m.ChangedBy, m.ChangedAt)
		return err
	})
	if err != nil {
		return m, fmt.Errorf("set mode of site %s: %w", m.Site, err)
	}
	return m, nil
}

// Unavailable reports whether err says that the database cannot be reached or
// takes no work now: the same request may succeed later.
func Unavailable(err error) bool {
	var connect *pgconn.ConnectError
	var network net.Error
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		switch pg.Code[:min(2, len(pg.Code))] {
		case "08", "53", "57": // connection, resources, operator intervention
			return true
		}
		return pg.Code == "25006" // a standby: read-only transaction
	case errors.As(err, &connect), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return true
	case errors.As(err, &network):
		// An error of a file is a number alone, which calls itself one of the network.
		_, file := network.(syscall.Errno)
		return !file
	}
	return pgconn.Timeout(err)
}
