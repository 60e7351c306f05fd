package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/aggregate"
	"sbench/internal/metrics"
	"sbench/internal/result"
)

// ValidResult is a valid result with where its files are.
type ValidResult struct {
	SweepID         int64
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
	found, err := s.ResultsOf(ctx, []SettingKey{key})
	return found[key], err
}

// ResultsOf is Results for several settings; settings without one are missing.
func (s *Store) ResultsOf(ctx context.Context, keys []SettingKey) (map[SettingKey][]ValidResult, error) {
	sweeps, hashes := columnsOf(keys)
	rows, err := s.pool.Query(ctx, sqlResultsOfSettings, sweeps, hashes)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	list, err := scanResults(rows)
	if err != nil {
		return nil, err
	}
	found := make(map[SettingKey][]ValidResult, len(keys))
	for i := range list {
		key := SettingKey{list[i].SweepID, list[i].SettingHash}
		found[key] = append(found[key], list[i])
	}
	return found, nil
}

// columnsOf are the parts of keys, as statements take them.
func columnsOf(keys []SettingKey) (sweeps []int64, hashes []string) {
	sweeps, hashes = make([]int64, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		sweeps[i], hashes[i] = k.SweepID, k.SettingHash
	}
	return sweeps, hashes
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

// PartialViews is PartialSummaries in the form of AggregateViews, with the metrics
// that are wanted.
func (s *Store) PartialViews(ctx context.Context, sweepID int64, wanted []string) (map[string]AggregateView, error) {
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
		if wanted != nil {
			maps.DeleteFunc(sum.Metrics, func(name string, _ aggregate.Metric) bool { return !slices.Contains(wanted, name) })
		}
		text, err := json.Marshal(sum.Metrics)
		if err != nil {
			return nil, fmt.Errorf("encode metrics: %w", err)
		}
		views[hash] = AggregateView{
			SettingHash: hash, HardwareClass: sweep.HardwareClass, NValid: sum.NValid, NTotal: sum.NTotal, IsFinal: sum.IsFinal,
			Mixed: sum.Mixed, NNodes: sum.Nodes, Reproducibility: sum.Reproducibility, Verdicts: verdictTexts(sum), Findings: sum.Findings,
			Warnings: warningTexts(sum), Metrics: text,
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

func verdictTexts(sum aggregate.Summary) []string {
	list := make([]string, len(sum.Verdicts))
	for i, v := range sum.Verdicts {
		list[i] = string(v)
	}
	return list
}

// Run is the result as aggregate wants it.
func (r *ValidResult) Run() aggregate.Run {
	return aggregate.Run{
		AttemptID: r.AttemptID, Repeat: r.Repeat, Nodes: r.Nodes, Fingerprint: r.FingerprintHash, MetricsVersion: r.MetricsVersion,
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
			&r.SweepID, &r.SettingHash, &r.AttemptID, &r.RunID, &r.Repeat, &r.Cluster, &r.HardwareClass, &r.Nodes, &r.StartedAt, &r.EndedAt, &r.Findings,
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

const sqlWindows = `
select attempt_id, window_index, offered_rate_per_s, start_ns, end_ns from result_window
 where attempt_id = any($1) order by attempt_id, window_index`

const sqlUnsettledRepeats = `select setting_hash, repeats from sweep_setting where sweep_id = $1 and not settled`
