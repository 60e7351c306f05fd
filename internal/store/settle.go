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
	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/setting"
)

// ErrStale says that runs or attempts have changed since they were read: read
// them again.
var ErrStale = errors.New("runs have changed meanwhile")

// ValidResult is a valid result with where its files are.
type ValidResult struct {
	SettingHash     string
	AttemptID       int64
	RunID           int64
	Repeat          int
	Cluster         string
	HardwareClass   string
	Nodes           []string
	StartedAt       time.Time
	EndedAt         time.Time
	Findings        []string
	MetricsVersion  string
	FingerprintHash string
	NullReasons     map[string]string
	Dir             string
	Files           []result.File
	UID             int // who owns the files
	Metrics         result.Metrics
}

// Results returns the valid results of a setting in a sweep, one per run: where
// a run was measured validly more than once, the one that ended first.
func (s *Store) Results(ctx context.Context, key SettingKey) ([]ValidResult, error) {
	rows, err := s.pool.Query(ctx, sqlResultsOfSetting, key.SweepID, key.SettingHash)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	return scanResults(rows)
}

// PartialSummaries sums up what is valid so far of the settings of a sweep that
// are not settled, by setting_hash; settings without a valid result are missing.
// Merged percentiles come with the settled summary only.
func (s *Store) PartialSummaries(ctx context.Context, sweepID int64) (map[string]aggregate.Summary, error) {
	rows, err := s.pool.Query(ctx, sqlResultsUnsettled, sweepID)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	list, err := scanResults(rows)
	if err != nil {
		return nil, err
	}
	runs := map[string][]aggregate.Run{}
	for i := range list {
		runs[list[i].SettingHash] = append(runs[list[i].SettingHash], list[i].Run())
	}
	type total struct {
		SettingHash string
		Repeats     int
	}
	totals, err := collect[total](ctx, s.pool, "settings", sqlUnsettledRepeats, sweepID)
	if err != nil {
		return nil, err
	}
	sums := make(map[string]aggregate.Summary, len(runs))
	for _, t := range totals {
		if valid := runs[t.SettingHash]; len(valid) > 0 {
			if sums[t.SettingHash], err = aggregate.Compute(aggregate.Input{NTotal: t.Repeats, Runs: valid}); err != nil {
				return nil, err
			}
		}
	}
	return sums, nil
}

// PartialViews is PartialSummaries in the form of AggregateViews.
func (s *Store) PartialViews(ctx context.Context, sweepID int64) (map[string]AggregateView, error) {
	sweep, err := s.Sweep(ctx, sweepID)
	if err != nil {
		return nil, err
	}
	sums, err := s.PartialSummaries(ctx, sweepID)
	if err != nil {
		return nil, err
	}
	views := make(map[string]AggregateView, len(sums))
	for hash, sum := range sums {
		text, err := json.Marshal(sum.Metrics)
		if err != nil {
			return nil, fmt.Errorf("encode metrics: %w", err)
		}
		views[hash] = AggregateView{
			SettingHash: hash, HardwareClass: sweep.HardwareClass, NValid: sum.NValid, NTotal: sum.NTotal, IsFinal: sum.IsFinal,
			Findings: sum.Findings, Warnings: warningTexts(sum), Metrics: text,
		}
	}
	return views, nil
}

func warningTexts(sum aggregate.Summary) []string {
	texts := make([]string, len(sum.Warnings))
	for i, w := range sum.Warnings {
		texts[i] = w.Message
	}
	return texts
}

// Run is the result as aggregate wants it.
func (r *ValidResult) Run() aggregate.Run {
	return aggregate.Run{
		AttemptID: r.AttemptID, Nodes: r.Nodes, Fingerprint: r.FingerprintHash, MetricsVersion: r.MetricsVersion,
		Findings: r.Findings, Metrics: r.Metrics, NullReasons: r.NullReasons,
	}
}

// scanResults reads results and keeps the first of each run.
func scanResults(rows pgx.Rows) ([]ValidResult, error) {
	table := metrics.Table()
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ValidResult, error) {
		var r ValidResult
		values := make([]*float64, len(table))
		into := []any{
			&r.SettingHash, &r.AttemptID, &r.RunID, &r.Repeat, &r.Cluster, &r.HardwareClass, &r.Nodes, &r.StartedAt, &r.EndedAt, &r.Findings,
			&r.MetricsVersion, &r.FingerprintHash, &r.NullReasons, &r.Dir, &r.Files, &r.UID,
		}
		for i := range values {
			into = append(into, &values[i])
		}
		err := row.Scan(into...)
		r.Metrics = make(result.Metrics, len(table))
		for i, m := range table {
			r.Metrics[m.Name] = values[i]
		}
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	seen := map[int64]bool{}
	return slices.DeleteFunc(list, func(r ValidResult) bool {
		again := seen[r.RunID]
		seen[r.RunID] = true
		return again
	}), nil
}

// Windows returns where the load points of attempts lie on their clocks, by
// attempt, in order.
func (s *Store) Windows(ctx context.Context, attempts []int64) (map[int64][]result.Window, error) {
	type row struct {
		AttemptID       int64
		WindowIndex     int
		OfferedRatePerS float64
		StartNS         int64
		EndNS           int64
	}
	rows, err := collect[row](ctx, s.pool, "windows", sqlWindows, attempts)
	if err != nil {
		return nil, err
	}
	windows := map[int64][]result.Window{}
	for _, r := range rows {
		windows[r.AttemptID] = append(windows[r.AttemptID], result.Window{
			Index: r.WindowIndex, OfferedRate: r.OfferedRatePerS, Start: r.StartNS, End: r.EndNS,
		})
	}
	return windows, nil
}

const (
	sqlWindows = `
select attempt_id, window_index, offered_rate_per_s, start_ns, end_ns from result_window
 where attempt_id = any($1) order by attempt_id, window_index`
	// A setting without any run has nothing to settle.
	sqlUnsettled = `
select ss.sweep_id, ss.setting_hash from sweep_setting ss
 where not ss.settled and ss.repeats > 0 and not exists (
       select from run r where r.sweep_id = ss.sweep_id and r.setting_hash = ss.setting_hash
          and r.state in ('pending', 'submitted', 'provisioning', 'running'))
 order by ss.sweep_id, ss.ordinal limit $1`
)

// Unsettled returns at most limit settings whose runs are all terminal and that
// no aggregate sums up yet.
func (s *Store) Unsettled(ctx context.Context, limit int) ([]SettingKey, error) {
	return collect[SettingKey](ctx, s.pool, "settings to sum up", sqlUnsettled, limit)
}

const (
	// Runs, then setting, then sweep: the order of the trigger that reopens.
	sqlLockSettled = `
select id, sweep_id, state, held from run where sweep_id = $1 and setting_hash = $2 order by id for update`
	sqlSettledSetting = `
select ss.repeats, ss.setting, c.series_hash, s.site, s.hardware_class
  from sweep_setting ss join sweep s on s.id = ss.sweep_id join setting c on c.setting_hash = ss.setting_hash
 where ss.sweep_id = $1 and ss.setting_hash = $2 for update of ss`
	sqlNextVersion = `
select coalesce(max(version), 0) + 1 from aggregate where sweep_id = $1 and setting_hash = $2 and site = $3`
	sqlSettle    = `update sweep_setting set settled = true, n_valid = $3 where sweep_id = $1 and setting_hash = $2`
	sqlLockSweep = `select id from sweep where id = $1 for update`
	sqlEndSweep  = `
update sweep s set changed_at = $2, ended_at = $2, state = case
       when exists (select from run r where r.sweep_id = s.id and r.state in ('failed', 'dead')) then 'incomplete'
       when exists (select from run r where r.sweep_id = s.id and r.state = 'cancelled') then 'cancelled'
       else 'complete' end
 where s.id = $1 and s.state = 'active'
   and not exists (select from sweep_setting ss where ss.sweep_id = s.id and not ss.settled and ss.repeats > 0)
returning state`
)

// Settled says what was stored.
type Settled struct {
	Version  int
	Reopened int // carried settings that are run after all
	// Sweep is what became of the sweep, "" where it goes on.
	Sweep SweepState
}

// Settle stores the summary of a setting whose runs are all terminal as its next
// version, and ends the sweep with its last setting. used are the attempts that
// the summary was computed from; the error is ErrStale where they are not the
// valid ones any more, or a run is open. What reopen names is run after all, and
// keeps the sweep from ending.
func (s *Store) Settle(ctx context.Context, key SettingKey, sum aggregate.Summary, used []ValidResult, reopen ...Reopen) (Settled, error) {
	var done Settled
	err := s.WithTx(ctx, func(tx *Tx) error {
		var err error
		done, err = tx.settle(ctx, key, sum, used, reopen)
		return err
	})
	if err != nil {
		return Settled{}, fmt.Errorf("settle setting %.12s of sweep %d: %w", key.SettingHash, key.SweepID, err)
	}
	return done, nil
}

func (tx *Tx) settle(ctx context.Context, key SettingKey, sum aggregate.Summary, used []ValidResult, reopen []Reopen) (Settled, error) {
	runs, err := collect[lockedRun](ctx, tx, "runs", sqlLockSettled, key.SweepID, key.SettingHash)
	if err != nil {
		return Settled{}, err
	}
	for _, r := range runs {
		if !r.State.Terminal() {
			return Settled{}, fmt.Errorf("run %d is %s: %w", r.ID, r.State, ErrStale)
		}
	}
	rows, err := tx.Query(ctx, sqlResultsOfSetting, key.SweepID, key.SettingHash)
	if err != nil {
		return Settled{}, fmt.Errorf("read results: %w", err)
	}
	now, err := scanResults(rows)
	if err != nil {
		return Settled{}, err
	}
	if !slices.EqualFunc(now, used, func(a, b ValidResult) bool { return a.AttemptID == b.AttemptID }) {
		return Settled{}, ErrStale
	}
	version, err := tx.insertAggregate(ctx, key, sum, used)
	if err != nil {
		return Settled{}, err
	}
	if _, err := tx.Exec(ctx, sqlSettle, key.SweepID, key.SettingHash, sum.NValid); err != nil {
		return Settled{}, fmt.Errorf("settle: %w", err)
	}
	if _, err := tx.Exec(ctx, sqlLockSweep, key.SweepID); err != nil {
		return Settled{}, fmt.Errorf("lock sweep: %w", err)
	}
	done := Settled{Version: version}
	for _, r := range reopen {
		n, err := tx.reopenCarried(ctx, key.SweepID, r)
		if err != nil {
			return Settled{}, err
		}
		done.Reopened += n
	}
	err = tx.QueryRow(ctx, sqlEndSweep, key.SweepID, tx.now).Scan(&done.Sweep)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Settled{}, fmt.Errorf("end sweep: %w", err)
	}
	return done, nil
}

// aggregateColumns is the order in which an aggregate is copied.
var aggregateColumns = slices.Concat([]string{
	"sweep_id", "setting_hash", "series_hash", "site", "version", "hardware_class", "metrics_version", "n_valid", "n_total",
	"is_final", "mixed", "n_nodes", "findings", "warnings", "reproducibility", "attempts", "first_started_at", "last_ended_at",
	"metrics", "created_at", "epoch",
}, names(axisColumns()))

func (tx *Tx) insertAggregate(ctx context.Context, key SettingKey, sum aggregate.Summary, used []ValidResult) (int, error) {
	var of struct {
		repeats             int
		setting             setting.Setting
		series, site, class string
	}
	err := tx.QueryRow(ctx, sqlSettledSetting, key.SweepID, key.SettingHash).Scan(&of.repeats, &of.setting, &of.series, &of.site, &of.class)
	if err := one(err, "setting", key.SettingHash); err != nil {
		return 0, err
	}
	var version int
	if err := tx.QueryRow(ctx, sqlNextVersion, key.SweepID, key.SettingHash, of.site).Scan(&version); err != nil {
		return 0, fmt.Errorf("number aggregate: %w", err)
	}
	axes, err := axisRow(&of.setting)
	if err != nil {
		return 0, err
	}
	summed, err := json.Marshal(sum.Metrics)
	if err != nil {
		return 0, fmt.Errorf("encode metrics: %w", err)
	}
	attempts := make([]int64, len(used))
	var first, last time.Time
	for i, r := range used {
		attempts[i] = r.AttemptID
		if i == 0 || r.StartedAt.Before(first) {
			first = r.StartedAt
		}
		if r.EndedAt.After(last) {
			last = r.EndedAt
		}
	}
	row := append([]any{
		key.SweepID, key.SettingHash, of.series, of.site, int32(version), of.class, sum.MetricsVersion, int32(sum.NValid), int32(sum.NTotal),
		sum.IsFinal, sum.Mixed, int32(sum.Nodes), texts(sum.Findings), warningTexts(sum), sum.Reproducibility, attempts, given(first), given(last),
		summed, tx.now, tx.epoch,
	}, axes...)
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{"aggregate"}, aggregateColumns, pgx.CopyFromRows([][]any{row})); err != nil {
		return 0, fmt.Errorf("insert aggregate: %w", err)
	}
	return version, nil
}

// Repeats returns n_total of a setting in a sweep: the runs that there should be.
func (s *Store) Repeats(ctx context.Context, key SettingKey) (int, error) {
	var n int
	err := s.pool.QueryRow(ctx, sqlRepeats, key.SweepID, key.SettingHash).Scan(&n)
	return n, one(err, "setting", key.SettingHash)
}

const sqlUnsettledRepeats = `select setting_hash, repeats from sweep_setting where sweep_id = $1 and not settled`

const sqlRepeats = `select repeats from sweep_setting where sweep_id = $1 and setting_hash = $2`

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
