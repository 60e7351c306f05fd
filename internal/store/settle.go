package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/aggregate"
	"sbench/internal/lifecycle"
)

// ErrStale says that runs or attempts have changed since they were read: read
// them again.
var ErrStale = errors.New("runs have changed meanwhile")

// Unsettled is a setting in a sweep that has to be summed up.
type Unsettled struct {
	SettingKey
	Repeats int    // n_total: the runs that there should be
	Stratum string // of a canary; "" for any other setting
	Adding  Adding
}

const (
	// A setting without any run has nothing to settle.
	sqlUnsettled = `
select ss.sweep_id, ss.setting_hash, ss.repeats, case when ss.canary then ss.stratum else '' end as stratum, ss.adding
  from sweep_setting ss
 where not ss.settled and ss.repeats > 0 and not exists (
       select from run r where r.sweep_id = ss.sweep_id and r.setting_hash = ss.setting_hash
          and r.state in ('pending', 'submitted', 'provisioning', 'running'))
 order by ss.sweep_id, ss.ordinal limit $1`
	// Runs, then setting, then sweep: the order of the trigger that reopens; each
	// by their keys, so that two transactions wait instead of deadlocking.
	sqlLockSettled = `
select r.sweep_id, r.setting_hash, r.state
  from unnest($1::bigint[], $2::text[]) as k (sweep_id, setting_hash) join run r using (sweep_id, setting_hash)
 order by r.id for update of r`
	sqlValidAttempts = `
select r.sweep_id, r.setting_hash, r.run_id, r.attempt_id
  from unnest($1::bigint[], $2::text[]) as k (sweep_id, setting_hash) join result r using (sweep_id, setting_hash)
 where r.valid order by r.ended_at, r.attempt_id`
	sqlSettledSettings = `
select ss.sweep_id, ss.setting_hash, c.series_hash, s.site, s.hardware_class,
       1 + coalesce((select max(a.version) from aggregate a
                      where a.sweep_id = ss.sweep_id and a.setting_hash = ss.setting_hash and a.site = s.site), 0) as version
  from unnest($1::bigint[], $2::text[]) as k (sweep_id, setting_hash)
  join sweep_setting ss using (sweep_id, setting_hash)
  join sweep s on s.id = ss.sweep_id
  join setting c on c.setting_hash = ss.setting_hash
 order by ss.sweep_id, ss.ordinal for update of ss`
	sqlSettle = `
update sweep_setting ss set settled = true, n_valid = k.n_valid
  from unnest($1::bigint[], $2::text[], $3::integer[]) as k (sweep_id, setting_hash, n_valid)
 where ss.sweep_id = k.sweep_id and ss.setting_hash = k.setting_hash`
	sqlLockSweeps = `select id from sweep where id = any($1) order by id for update`
	sqlEndSweeps  = `
update sweep s set changed_at = $2, ended_at = $2, state = case
       when exists (select from run r where r.sweep_id = s.id and r.state in ('failed', 'dead')) then 'incomplete'
       when exists (select from run r where r.sweep_id = s.id and r.state = 'cancelled') then 'cancelled'
       else 'complete' end
 where s.id = any($1) and s.state = 'active'
   and not exists (select from sweep_setting ss where ss.sweep_id = s.id and not ss.settled and ss.repeats > 0)
returning id, state`
)

// Unsettled returns at most limit settings whose runs are all terminal and that
// no aggregate sums up yet.
func (s *Store) Unsettled(ctx context.Context, limit int) ([]Unsettled, error) {
	return collect[Unsettled](ctx, s.pool, "settings to sum up", sqlUnsettled, limit)
}

// Settlement is the summary of a setting whose runs are all terminal.
type Settlement struct {
	Key SettingKey
	Sum aggregate.Summary
	// Used is what the summary was computed from, as Results returned it.
	Used []ValidResult
	// Reopen names what is run after all; it keeps the sweep from ending.
	Reopen []Reopen
	// Decision is about an adaptive number of runs; nil where the number is fixed,
	// from the start or by an earlier one. One that adds runs stores these and
	// itself, and no summary; one that stops is stored with the summary, and fixes
	// n_total.
	Decision *aggregate.Decision
}

// Settled says what was stored of a settlement.
type Settled struct {
	// Stale says that nothing was: a run is open again, the valid attempts are not
	// those that were used, or something was decided about the setting meanwhile, or
	// has to be and is not. It has to be read and summed up again.
	Stale    bool
	Version  int // of the aggregate; 0 where runs were added instead
	Added    int // runs, by the decision
	Reopened int // carried settings that are run after all
	// Sweep is what became of the sweep, "" where it goes on; one settlement of a
	// sweep says it.
	Sweep SweepState
}

// Settle is SettleAll of one setting. The error is ErrStale where it is stale.
func (s *Store) Settle(ctx context.Context, key SettingKey, sum aggregate.Summary, used []ValidResult, reopen ...Reopen) (Settled, error) {
	done, err := s.SettleAll(ctx, []Settlement{{Key: key, Sum: sum, Used: used, Reopen: reopen}})
	if err == nil && done[0].Stale {
		err = fmt.Errorf("settle setting %.12s of sweep %d: %w", key.SettingHash, key.SweepID, ErrStale)
	}
	if err != nil {
		return Settled{}, err
	}
	return done[0], nil
}

// SettleAll stores each summary as its setting's next version, and ends sweeps
// with their last setting, all in one transaction. What is stale is left out and
// holds up nothing else. No two may be of one setting.
func (s *Store) SettleAll(ctx context.Context, list []Settlement) (done []Settled, err error) {
	err = s.WithTx(ctx, func(tx *Tx) error {
		done = make([]Settled, len(list))
		return tx.settle(ctx, s.axes, list, done)
	})
	if err != nil {
		return nil, fmt.Errorf("settle %d settings: %w", len(list), err)
	}
	return done, nil
}

func (tx *Tx) settle(ctx context.Context, cache *axesCache, list []Settlement, done []Settled) error {
	fresh, err := tx.fresh(ctx, list, done)
	if err != nil || len(fresh) == 0 {
		return err
	}
	if fresh, err = tx.decideAll(ctx, list, fresh, done); err != nil || len(fresh) == 0 {
		return err
	}
	if err := tx.insertAggregates(ctx, cache, list, fresh, done); err != nil {
		return err
	}
	keys, counts := make([]SettingKey, len(fresh)), make([]int32, len(fresh))
	last := map[int64]int{} // by sweep
	for i, at := range fresh {
		keys[i], counts[i] = list[at].Key, int32(list[at].Sum.NValid)
		last[keys[i].SweepID] = at
	}
	sweeps, hashes := columnsOf(keys)
	if _, err := tx.Exec(ctx, sqlSettle, sweeps, hashes, counts); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	if _, err := tx.Exec(ctx, sqlLockSweeps, sweeps); err != nil {
		return fmt.Errorf("lock sweeps: %w", err)
	}
	for _, at := range fresh {
		for _, r := range list[at].Reopen {
			n, err := tx.reopenCarried(ctx, list[at].Key.SweepID, r)
			if err != nil {
				return err
			}
			done[at].Reopened += n
		}
	}
	type endedSweep struct {
		ID    int64
		State SweepState
	}
	ended, err := collect[endedSweep](ctx, tx, "ended sweeps", sqlEndSweeps, sweeps, tx.now)
	for _, e := range ended {
		done[last[e.ID]].Sweep = e.State
	}
	return err
}

// fresh locks the runs of the settlements and returns which of these are not
// stale; the others it marks.
func (tx *Tx) fresh(ctx context.Context, list []Settlement, done []Settled) ([]int, error) {
	keys := make([]SettingKey, len(list))
	for i := range list {
		keys[i] = list[i].Key
	}
	sweeps, hashes := columnsOf(keys)
	type lockedState struct {
		SettingKey
		State lifecycle.RunState
	}
	runs, err := collect[lockedState](ctx, tx, "runs", sqlLockSettled, sweeps, hashes)
	if err != nil {
		return nil, err
	}
	open := map[SettingKey]bool{}
	for _, r := range runs {
		open[r.SettingKey] = open[r.SettingKey] || !r.State.Terminal()
	}
	type validAttempt struct {
		SettingKey
		RunID, AttemptID int64
	}
	valid, err := collect[validAttempt](ctx, tx, "valid attempts", sqlValidAttempts, sweeps, hashes)
	if err != nil {
		return nil, err
	}
	now, seen := map[SettingKey][]int64{}, map[int64]bool{}
	for _, v := range valid {
		if !seen[v.RunID] {
			seen[v.RunID] = true
			now[v.SettingKey] = append(now[v.SettingKey], v.AttemptID)
		}
	}
	var fresh []int
	for i := range list {
		same := slices.EqualFunc(now[keys[i]], list[i].Used, func(id int64, r ValidResult) bool { return id == r.AttemptID })
		if done[i].Stale = open[keys[i]] || !same; !done[i].Stale {
			fresh = append(fresh, i)
		}
	}
	return fresh, nil
}

// aggregateColumns is the order in which an aggregate is copied.
var aggregateColumns = slices.Concat([]string{
	"sweep_id", "setting_hash", "series_hash", "site", "version", "hardware_class", "metrics_version", "n_valid", "n_total",
	"is_final", "mixed", "n_nodes", "findings", "warnings", "reproducibility", "attempts", "first_started_at", "last_ended_at",
	"metrics", "created_at", "epoch", "verdicts", "headline",
}, names(axisColumns()))

type settledSetting struct {
	SettingKey
	SeriesHash, Site, HardwareClass string
	Version                         int
}

// insertAggregates stores the fresh ones of list, and notes their versions.
func (tx *Tx) insertAggregates(ctx context.Context, cache *axesCache, list []Settlement, fresh []int, done []Settled) error {
	keys := make([]SettingKey, len(fresh))
	for i, at := range fresh {
		keys[i] = list[at].Key
	}
	sweeps, hashes := columnsOf(keys)
	settings, err := collect[settledSetting](ctx, tx, "settings", sqlSettledSettings, sweeps, hashes)
	if err != nil {
		return err
	}
	axes, err := cache.rows(ctx, tx, keys)
	if err != nil {
		return err
	}
	of := make(map[SettingKey]settledSetting, len(settings))
	for _, s := range settings {
		of[s.SettingKey] = s
	}
	rows := make([][]any, len(fresh))
	for i, at := range fresh {
		known, ok := of[keys[i]]
		if !ok {
			return one(pgx.ErrNoRows, "setting", keys[i].SettingHash)
		}
		done[at].Version = known.Version
		if rows[i], err = list[at].row(tx, known, axes[keys[i]]); err != nil {
			return err
		}
	}
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{"aggregate"}, aggregateColumns, pgx.CopyFromRows(rows)); err != nil {
		return fmt.Errorf("copy aggregates: %w", err)
	}
	return nil
}

// row holds the values of aggregateColumns.
func (s *Settlement) row(tx *Tx, of settledSetting, axes []any) ([]any, error) {
	sum := &s.Sum
	summed, err := json.Marshal(sum.Metrics)
	if err != nil {
		return nil, fmt.Errorf("encode metrics: %w", err)
	}
	headline := map[string]aggregate.Metric{}
	for _, name := range aggregate.Headline() {
		if m, ok := sum.Metrics[name]; ok {
			headline[name] = m
		}
	}
	attempts := make([]int64, len(s.Used))
	var first, last time.Time
	for i, r := range s.Used {
		attempts[i] = r.AttemptID
		if i == 0 || r.StartedAt.Before(first) {
			first = r.StartedAt
		}
		if r.EndedAt.After(last) {
			last = r.EndedAt
		}
	}
	return append([]any{
		s.Key.SweepID, s.Key.SettingHash, of.SeriesHash, of.Site, int32(of.Version), of.HardwareClass, sum.MetricsVersion,
		int32(sum.NValid), int32(sum.NTotal), sum.IsFinal, sum.Mixed, int32(sum.Nodes), texts(sum.Findings), warningTexts(*sum),
		sum.Reproducibility, attempts, given(first), given(last), summed, tx.now, tx.epoch, verdictTexts(*sum), headline,
	}, axes...), nil
}

// Progress is the largest transition and attempt number: where both are as they
// were, no run has changed.
func (s *Store) Progress(ctx context.Context) (transition, attempt int64, err error) {
	err = s.pool.QueryRow(ctx, sqlProgress).Scan(&transition, &attempt)
	if err != nil {
		return 0, 0, fmt.Errorf("read progress: %w", err)
	}
	return transition, attempt, nil
}

const sqlProgress = `
select coalesce((select max(id) from transition), 0), coalesce((select max(id) from attempt), 0)`
