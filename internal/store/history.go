package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/setting"
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
	Fingerprints []string
	Nodes        []string
	Throughput   []*float64 // output_tokens_per_s
	Latency      []*float64 // ttft_p95
}

// Of a run that was measured validly more than once the first counts. Results
// with a finding about the engine are kept out of history.
const sqlNights = `
select * from (
    select r.series_hash, r.sweep_id, min(r.setting_hash) as setting_hash, min(r.started_at) as night, false as synthetic,
           array_agg(distinct r.fingerprint_hash) as fingerprints,
           array_agg(coalesce(r.nodes[1], '') order by r.repeat) as nodes,
           array_agg(r.output_tokens_per_s order by r.repeat) as throughput,
           array_agg(r.ttft_p95 order by r.repeat) as latency
      from (select distinct on (run_id) * from result
             where series_hash = any($1) and site = $2 and valid and findings = '{}' and started_at >= $3 and hardware_class = $5
             order by run_id, ended_at, attempt_id) r
     where not exists (select from confirmation c where c.sweep_id = r.sweep_id)
     group by r.series_hash, r.sweep_id
    union all
    select n.series_hash, 0, n.setting_hash, n.night, true, '{}', n.nodes, n.output_tokens_per_s, n.ttft_p95
      from synthetic_night n
     where n.series_hash = any($1) and n.site = $2 and n.night >= $3 and n.hardware_class = $5) h
 where h.night <= $4
 order by h.series_hash, h.night, h.sweep_id`

// Nights returns the history of series on a site between two times, oldest first
// within each series.
func (s *Store) Nights(ctx context.Context, series []string, site, class string, since, until time.Time) ([]NightRow, error) {
	return collect[NightRow](ctx, s.pool, "history", sqlNights, series, site, since, until, class)
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

const (
	sqlConfirmable = `
select ss.setting_hash as hash, c.series_hash, c.canonical_spec, ss.setting
  from sweep_setting ss join setting c using (setting_hash)
 where ss.sweep_id = $1 and ss.setting_hash = any($2) order by ss.ordinal`
	sqlInsertConfirmation = `insert into confirmation (sweep_id, of_sweep, created_at) values ($1, $2, $3) on conflict do nothing`
	sqlIsConfirmation     = `select of_sweep from confirmation where sweep_id = $1`
)

// confirmable is a setting of a sweep that can be put into another.
type confirmable struct {
	Hash, SeriesHash string
	CanonicalSpec    json.RawMessage
	Setting          setting.Setting
}

// Confirm creates a sweep that runs settings of the given sweeps again, runs times
// each and interleaved, with the options of the first sweep. settings maps a sweep
// to hashes of its settings. The same key makes the same sweep.
func (s *Store) Confirm(ctx context.Context, of Sweep, settings map[int64][]string, runs int, key string) (int64, error) {
	text, err := s.SweepText(ctx, of.ID)
	if err != nil {
		return 0, err
	}
	n := NewSweep{
		Name: of.Name + "-confirm", UserName: of.UserName, UID: of.UID, Account: of.Account, Site: of.Site, Priority: of.Priority,
		IdempotencyKey: key, File: text.File, Options: text.Options, SLO: of.SLO, MaxErrorRate: of.MaxErrorRate, HardwareClass: of.HardwareClass,
	}
	seen := map[string]bool{}
	for _, id := range sortedKeys(settings) {
		list, err := collect[confirmable](ctx, s.pool, "settings", sqlConfirmable, id, settings[id])
		if err != nil {
			return 0, err
		}
		for _, c := range list {
			if !seen[c.Hash] {
				seen[c.Hash] = true
				n.Settings = append(n.Settings, NewSetting{Hash: c.Hash, SeriesHash: c.SeriesHash, CanonicalSpec: c.CanonicalSpec, Setting: c.Setting, Repeats: runs})
			}
		}
	}
	if len(n.Settings) == 0 {
		return 0, fmt.Errorf("settings to run again: %w", ErrNotFound)
	}
	var id int64
	digest, err := n.digest()
	if err != nil {
		return 0, err
	}
	err = s.WithTx(ctx, func(tx *Tx) error {
		var err error
		if id, _, err = tx.createSweep(ctx, n, digest); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlInsertConfirmation, id, of.ID, tx.now)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("create confirmation of sweep %d: %w", of.ID, err)
	}
	return id, nil
}

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

// InsertJudgements records decisions; one that is known stays as it was.
func (s *Store) InsertJudgements(ctx context.Context, list []NewJudgement) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		batch := &pgx.Batch{}
		for _, j := range list {
			batch.Queue(sqlInsertJudgement, j.SweepID, given(j.ConfirmedBy), j.SeriesHash, j.SettingHash, j.Stratum, j.Metric, j.Estimate, j.Ratio, j.P,
				j.PAdjusted, j.Confirmed, j.Published, j.Reason, j.By, tx.now)
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
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

func sortedKeys(m map[int64][]string) []int64 { return slices.Sorted(maps.Keys(m)) }
