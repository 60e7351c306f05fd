package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/aggregate"
	"sbench/internal/lifecycle"
)

// Carried says which result stands for a setting of a sweep.
type Carried struct {
	Aggregate int64
	Stratum   string
	// Canary settings are run all the same, and held against the aggregate.
	Canary bool
}

// Fresh is the latest result of a setting on a site: final, complete, clean and
// precise.
type Fresh struct {
	SettingHash string
	AggregateID int64
	SweepID     int64
	NValid      int
	MeasuredAt  time.Time // when its last attempt ended
}

const sqlFresh = `
select setting_hash, id as aggregate_id, sweep_id, n_valid, last_ended_at as measured_at
  from (select distinct on (a.setting_hash) a.*, ss.settled, s.quality_hash
          from aggregate a join sweep_setting ss using (sweep_id, setting_hash) join sweep s on s.id = a.sweep_id
         where a.setting_hash = any($1) and a.site = $2
         order by a.setting_hash, a.created_at desc, a.id desc) latest
 where settled and is_final and n_valid >= n_total and n_valid >= $6 and not mixed and findings = '{}' and 'precise' = any(verdicts) and not 'bimodal' = any(verdicts)
   and metrics_version = $3 and hardware_class = $4 and last_ended_at >= $5
   and ($7 = '' or quality_hash = $7)`

// FreshResults returns the settings whose latest result on a site is final,
// complete, clean, of at least runs runs and younger than since, by their hash, and
// precise: neither noisy nor of two modes; where quality is not "", with scores of that definition's hash. A latest result that is not good
// enough is not replaced by an older one.
func (s *Store) FreshResults(ctx context.Context, site, class, metricsVersion string, hashes []string, since time.Time, runs int, quality string) (map[string]Fresh, error) {
	list, err := collect[Fresh](ctx, s.pool, "fresh results", sqlFresh, hashes, site, metricsVersion, class, since, runs, quality)
	if err != nil {
		return nil, err
	}
	fresh := make(map[string]Fresh, len(list))
	for _, f := range list {
		fresh[f.SettingHash] = f
	}
	return fresh, nil
}

// CarriedView is a setting of a sweep that stands on an older result.
type CarriedView struct {
	SettingHash string
	Canary      bool
	FromSweep   int64
	MeasuredAt  *time.Time
	NValid      int
	NTotal      int
	NNodes      int
	// Reproducibility is nil below two runs.
	Reproducibility *float64
	Verdicts        []string
	Findings        []string
	Warnings        []string
	Metrics         json.RawMessage
}

const sqlCarried = `
select l.setting_hash, l.canary, l.from_sweep, l.measured_at, l.n_valid, l.n_total, l.n_nodes, l.reproducibility, l.verdicts, l.findings,
       l.warnings,` + pickedMetrics + `
  from (select d.*, ` + unpackedMetrics + `
          from (select ss.setting_hash, ss.canary, a.sweep_id as from_sweep, a.last_ended_at as measured_at, a.n_valid, a.n_total, a.n_nodes,
                       a.reproducibility, a.verdicts, a.findings, a.warnings, a.headline, a.metrics as packed
                  from sweep_setting ss join aggregate a on a.id = ss.carried_from
                 where ss.sweep_id = $1 and ss.carried_from is not null) d offset 0) l`

// CarriedViews returns the settings of a sweep that stand on an older result,
// canaries included, by their hash; metrics as for AggregateViews.
func (s *Store) CarriedViews(ctx context.Context, sweep int64, metrics []string) (map[string]CarriedView, error) {
	list, err := collect[CarriedView](ctx, s.pool, "carried results", sqlCarried, sweep, metrics, slices.Equal(metrics, aggregate.Headline()))
	if err != nil {
		return nil, err
	}
	views := make(map[string]CarriedView, len(list))
	for _, v := range list {
		views[v.SettingHash] = v
	}
	return views, nil
}

// Canary is one canary of a stratum: what was carried, and what it is now.
type Canary struct {
	SettingHash string
	Before      map[string]aggregate.Metric
	After       map[string]aggregate.Metric // nil while it is not settled
}

const (
	// Another canary of the stratum counts once it is settled.
	sqlCanaries = `
select ss.setting_hash, b.metrics as before, l.metrics as after
  from sweep_setting ss
  join aggregate b on b.id = ss.carried_from
  left join lateral (
       select a.metrics from aggregate a
        where a.sweep_id = ss.sweep_id and a.setting_hash = ss.setting_hash and ss.settled
        order by a.version desc limit 1) l on true
 where ss.sweep_id = $1 and ss.stratum = $2 and ss.canary
 order by ss.setting_hash`
	sqlReopenCarried = `
update sweep_setting set carried_from = null, repeats = carried_repeats, settled = false, stop_reason = $3
 where sweep_id = $1 and stratum = $2 and carried_from is not null and not canary
returning setting_hash, repeats`
)

// Canaries returns the canaries of a stratum of a sweep.
func (s *Store) Canaries(ctx context.Context, sweep int64, stratum string) ([]Canary, error) {
	return collect[Canary](ctx, s.pool, "canaries", sqlCanaries, sweep, stratum)
}

// Reopen takes back that the settings of a stratum are carried: they are run.
type Reopen struct {
	Stratum string
	Reason  string // for people
}

// reopenCarried gives every carried setting of a stratum its runs. The sweep's
// own row is not touched but for their number.
func (tx *Tx) reopenCarried(ctx context.Context, sweep int64, r Reopen) (int, error) {
	type reopened struct {
		SettingHash string
		Repeats     int
	}
	list, err := collect[reopened](ctx, tx, "carried settings", sqlReopenCarried, sweep, r.Stratum, r.Reason)
	if err != nil {
		return 0, err
	}
	n, repeat, total := 0, 0, 0
	budget := lifecycle.DefaultBudget()
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"run"}, runColumns, pgx.CopyFromFunc(func() ([]any, error) {
		for n < len(list) && repeat == list[n].Repeats {
			n, repeat = n+1, 0
		}
		if n == len(list) {
			return nil, nil
		}
		row := []any{
			sweep, list[n].SettingHash, int32(repeat), int32(budget.Attempts), int32(budget.Free), false,
			string(lifecycle.RunPending), string(lifecycle.ActorCollect), tx.now,
		}
		repeat++
		total++
		return row, nil
	}))
	if err != nil {
		return 0, fmt.Errorf("copy runs: %w", err)
	}
	if _, err := tx.Exec(ctx, sqlMoreRuns, sweep, total); err != nil {
		return 0, fmt.Errorf("count runs: %w", err)
	}
	return len(list), nil
}

const sqlMoreRuns = `update sweep set n_runs = n_runs + $2 where id = $1`
