package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/compare"
	"sbench/internal/regress"
	"sbench/internal/result"
)

// Baseline is a sweep with a name that others are held against.
type Baseline struct {
	Name      string
	SweepID   int64
	UserName  string
	Note      string
	CreatedAt time.Time
}

const (
	sqlBaselines   = `select name, sweep_id, user_name, note, created_at from baseline where $1 = '' or name = $1 order by name`
	sqlSetBaseline = `
insert into baseline (name, sweep_id, user_name, note, created_at) values ($1, $2, $3, $4, $5)
on conflict (name) do update set sweep_id = excluded.sweep_id, user_name = excluded.user_name, note = excluded.note, created_at = excluded.created_at`
	sqlRemoveBaseline = `delete from baseline where name = $1`
)

// Baselines returns all baselines by name; the one of that name where it is not "".
func (s *Store) Baselines(ctx context.Context, name string) ([]Baseline, error) {
	return collect[Baseline](ctx, s.pool, "baselines", sqlBaselines, name)
}

// SetBaseline names a sweep; a name that exists moves. CreatedAt is the store's now.
func (s *Store) SetBaseline(ctx context.Context, b Baseline) (Baseline, error) {
	err := s.WithTx(ctx, func(tx *Tx) error {
		b.CreatedAt = tx.now
		_, err := tx.Exec(ctx, sqlSetBaseline, b.Name, b.SweepID, b.UserName, b.Note, b.CreatedAt)
		return err
	})
	if err != nil {
		return b, fmt.Errorf("set baseline %s: %w", b.Name, err)
	}
	return b, nil
}

// RemoveBaseline forgets a name; the sweep stays.
func (s *Store) RemoveBaseline(ctx context.Context, name string) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlRemoveBaseline, name)
		return err
	})
	if err != nil {
		return fmt.Errorf("remove baseline %s: %w", name, err)
	}
	return nil
}

// NightRow is what a series measured in one sweep, run by run in the order of the
// repeats.
type NightRow struct {
	SeriesHash   string
	SweepID      int64 // 0 for a synthetic night
	SettingHash  string
	Night        time.Time // when its first run began
	Synthetic    bool
	Scheduled    bool // submitted by a schedule
	Fingerprints []string
	Nodes        []string
	Throughput   []*float64 // output_tokens_per_s
	Latency      []*float64 // ttft_p95
}

// Judged is the row for those that judge. A metric that a run lacks is left out.
func (n NightRow) Judged() regress.Night {
	out := regress.Night{
		Sweep: n.SweepID, SettingHash: n.SettingHash, Synthetic: n.Synthetic, Nodes: n.Nodes, Fingerprint: n.Fingerprints,
		Values: map[string][]float64{},
	}
	for i, list := range [][]*float64{n.Throughput, n.Latency} {
		values := make([]float64, 0, len(list))
		for _, v := range list {
			if v != nil && *v > 0 {
				values = append(values, *v)
			}
		}
		if len(values) == len(list) {
			out.Values[compare.Gating()[i]] = values
		}
	}
	return out
}

// Of a run that was measured validly more than once the first counts. Results
// with a finding about the engine are kept out of history, and so are sweeps that
// have several settings of a series: they are no night of it, and what was computed
// by other definitions of the metrics.
const sqlNights = `
select * from (
    select r.series_hash, r.sweep_id, min(r.setting_hash) as setting_hash, min(r.started_at) as night, false as synthetic,
           exists (select from cron_firing f where f.sweep_id = r.sweep_id) as scheduled,
           array_agg(distinct r.fingerprint_hash) as fingerprints,
           array_agg(coalesce(r.nodes[1], '') order by r.repeat) as nodes,
           array_agg(r.output_tokens_per_s order by r.repeat) as throughput,
           array_agg(r.ttft_p95 order by r.repeat) as latency
      from (select distinct on (run_id) * from result
             where series_hash = any($1) and site = $2 and valid and findings = '{}' and started_at >= $3 and hardware_class = $5
               and metrics_version = $6
             order by run_id, ended_at, attempt_id) r
     where not exists (select from confirmation c where c.sweep_id = r.sweep_id)
     group by r.series_hash, r.sweep_id having count(distinct r.setting_hash) = 1
    union all
    select n.series_hash, 0, n.setting_hash, n.night, true, false, '{}', n.nodes, n.output_tokens_per_s, n.ttft_p95
      from synthetic_night n
     where n.series_hash = any($1) and n.site = $2 and n.night >= $3 and n.hardware_class = $5) h
 where h.night <= $4
 order by h.series_hash, h.night, h.sweep_id`

// Nights returns the history of series on a site between two times, oldest first
// within each series.
func (s *Store) Nights(ctx context.Context, series []string, site, class string, since, until time.Time) ([]NightRow, error) {
	return collect[NightRow](ctx, s.pool, "history", sqlNights, series, site, since, until, class, result.MetricsVersion)
}

// NewSyntheticNight is a night that was never measured.
type NewSyntheticNight struct {
	SeriesHash, SettingHash, Site, Label, By string
	Night                                    time.Time
	Throughput, Latency                      []float64
	Nodes                                    []string
}

const sqlInsertSynthetic = `
insert into synthetic_night (series_hash, site, hardware_class, night, setting_hash, label, output_tokens_per_s, ttft_p95, nodes, created_by)
values ($1, $2, 'emulated', $3, $4, $5, $6, $7, $8, $9)
on conflict do nothing`

// InsertSynthetic stores nights that were never measured. The schema takes none
// for real hardware.
func (s *Store) InsertSynthetic(ctx context.Context, nights []NewSyntheticNight) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		batch := &pgx.Batch{}
		for _, n := range nights {
			batch.Queue(sqlInsertSynthetic, n.SeriesHash, n.Site, n.Night, n.SettingHash, n.Label, n.Throughput, n.Latency, n.Nodes, n.By)
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("insert %d synthetic nights: %w", len(nights), err)
	}
	return nil
}

const sqlIsConfirmation = `select of_sweep from confirmation where sweep_id = $1`

// Confirms returns the sweep that a confirmation is about, or ErrNotFound.
func (s *Store) Confirms(ctx context.Context, sweep int64) (int64, error) {
	var of int64
	err := s.pool.QueryRow(ctx, sqlIsConfirmation, sweep).Scan(&of)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("confirmation %d: %w", sweep, ErrNotFound)
	}
	if err != nil {
		return 0, fmt.Errorf("read confirmation: %w", err)
	}
	return of, nil
}

// NewJudgement is what was decided about a series.
type NewJudgement struct {
	SweepID     int64
	ConfirmedBy int64
	SeriesHash  string
	SettingHash string
	Stratum     string
	Metric      string
	Estimate    float64
	Ratio       *float64
	P           *float64
	PAdjusted   *float64
	Confirmed   bool
	Published   bool
	Reason      string
	By          string
}

const (
	sqlInsertJudgement = `
insert into judgement (sweep_id, confirmed_by, series_hash, setting_hash, stratum, metric, estimate, ratio, p, p_adjusted, confirmed,
                       published, reason, judged_by, judged_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
on conflict do nothing`
	// The first night of the segment is the one in which the step was seen.
	sqlSteps = `
select j.series_hash, max(s.submitted_at) as at from judgement j join sweep s on s.id = j.sweep_id
 where j.series_hash = any($1) and j.published and s.submitted_at < $2 group by j.series_hash`
)

// insertJudgements records decisions; one that is known stays as it was.
func (tx *Tx) insertJudgements(ctx context.Context, list []NewJudgement) error {
	batch := &pgx.Batch{}
	for _, j := range list {
		batch.Queue(sqlInsertJudgement, j.SweepID, given(j.ConfirmedBy), j.SeriesHash, j.SettingHash, j.Stratum, j.Metric, j.Estimate, j.Ratio, j.P,
			j.PAdjusted, j.Confirmed, j.Published, j.Reason, j.By, tx.now)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("insert %d judgements: %w", len(list), err)
	}
	return nil
}

// Steps returns when the latest published regression of each series was seen,
// before a time.
func (s *Store) Steps(ctx context.Context, series []string, before time.Time) (map[string]time.Time, error) {
	type row struct {
		SeriesHash string
		At         time.Time
	}
	list, err := collect[row](ctx, s.pool, "steps", sqlSteps, series, before)
	if err != nil {
		return nil, err
	}
	out := map[string]time.Time{}
	for _, r := range list {
		out[r.SeriesHash] = r.At
	}
	return out, nil
}
