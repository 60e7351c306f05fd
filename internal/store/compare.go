package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/setting"
)

// Latest is the latest summary of a setting, with the attempts that it is of.
type Latest struct {
	SweepID        int64
	SettingHash    string
	SeriesHash     string
	Site           string
	HardwareClass  string
	MetricsVersion string
	NValid         int
	NTotal         int
	IsFinal        bool
	Mixed          bool
	QualityHash    string // of the sweep that measured it; "" where it asked for no answers
	Findings       []string
	Attempts       []int64
	CreatedAt      time.Time
	Setting        setting.Setting
}

const (
	latestColumns = `
       a.sweep_id, a.setting_hash, a.series_hash, a.site, a.hardware_class, a.metrics_version, a.n_valid, a.n_total, a.is_final,
       a.mixed, s.quality_hash, a.findings, a.attempts, a.created_at, ss.setting
  from aggregate a join sweep_setting ss on ss.sweep_id = a.sweep_id and ss.setting_hash = a.setting_hash
  join sweep s on s.id = a.sweep_id`
	sqlLatestOfSweep = `select distinct on (ss.ordinal)` + latestColumns + `
 where a.sweep_id = $1 order by ss.ordinal, a.version desc`
	// The latest sweep that measured anything of each setting, by a skip over the
	// settings: their number does not grow with the years of results.
	sqlLatestOfSettings = `
select l.* from setting c cross join lateral (
       select` + latestColumns + `
        where a.setting_hash = c.setting_hash and a.n_valid > 0 and ($3::text is null or a.site = $3)
        order by a.created_at desc, a.id desc limit 1) l
 where c.setting_hash >= $1 and c.setting_hash < $2
 order by l.setting_hash`
)

// LatestOfSweep returns the latest summary of each setting of a sweep that has
// one, in the sweep's order.
func (s *Store) LatestOfSweep(ctx context.Context, sweep int64) ([]Latest, error) {
	return collect[Latest](ctx, s.pool, "summaries", sqlLatestOfSweep, sweep)
}

// LatestOfSettings returns the latest summary with a valid result of each setting
// whose hash begins with prefix ("" for all), over all sweeps; of one site where
// it is given.
func (s *Store) LatestOfSettings(ctx context.Context, prefix, site string) ([]Latest, error) {
	return collect[Latest](ctx, s.pool, "summaries", sqlLatestOfSettings, prefix, prefix+"g", given(site))
}

// Measured is a valid result of an attempt, without its files.
type Measured struct {
	AttemptID       int64
	SweepID         int64
	SettingHash     string
	SeriesHash      string
	Repeat          int
	Nodes           []string
	StartedAt       time.Time
	Findings        []string
	FingerprintHash string
	Metrics         result.Metrics
}

var (
	measuredColumns = `
select r.attempt_id, r.sweep_id, r.setting_hash, r.series_hash, r.repeat, r.nodes, r.started_at, r.findings, r.fingerprint_hash, r.` +
		strings.Join(names(metricColumns()), ", r.")
	sqlMeasured = measuredColumns + ` from result r where r.attempt_id = any($1) order by r.attempt_id`
	// Of a run that was measured validly more than once the first counts. What was
	// computed by other definitions is no history of these.
	sqlHistory = measuredColumns + `
  from (select distinct on (run_id) * from result
         where series_hash = $1 and site = $2 and hardware_class = $3 and valid and findings = '{}' and started_at >= $4 and started_at < $5
           and metrics_version = $7
         order by run_id, ended_at, attempt_id) r
 where not exists (select from confirmation c where c.sweep_id = r.sweep_id)
 order by r.started_at desc, r.attempt_id limit $6`
)

// Measured returns what attempts measured, by attempt.
func (s *Store) Measured(ctx context.Context, attempts []int64) (map[int64]Measured, error) {
	rows, err := s.pool.Query(ctx, sqlMeasured, attempts)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	list, err := scanMeasured(rows)
	if err != nil {
		return nil, err
	}
	out := make(map[int64]Measured, len(list))
	for _, m := range list {
		out[m.AttemptID] = m
	}
	return out, nil
}

func scanMeasured(rows pgx.Rows) ([]Measured, error) {
	table := metrics.Table()
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Measured, error) {
		var m Measured
		values := make([]*float64, len(table))
		into := []any{&m.AttemptID, &m.SweepID, &m.SettingHash, &m.SeriesHash, &m.Repeat, &m.Nodes, &m.StartedAt, &m.Findings, &m.FingerprintHash}
		for i := range values {
			into = append(into, &values[i])
		}
		err := row.Scan(into...)
		m.Metrics = make(result.Metrics, len(table))
		for i, metric := range table {
			m.Metrics[metric.Name] = values[i]
		}
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	return list, nil
}

// Attempts are those of all the summaries, ascending.
func Attempts(list []Latest) []int64 {
	ids := map[int64]bool{}
	for _, l := range list {
		for _, a := range l.Attempts {
			ids[a] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}
