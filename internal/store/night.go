package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The states of a night's judgement.
const (
	NightScreened   = "screened"   // its candidates are to be run again
	NightConfirming = "confirming" // they are
	NightJudged     = "judged"
)

// Night is the judgement of a scheduled sweep along its series.
type Night struct {
	SweepID     int64
	State       string
	ScreenedAt  time.Time
	NSeries     int
	NCandidates int
	Report      json.RawMessage
	ConfirmedBy *int64 // the sweep of the runs again
	Reason      string
	JudgedAt    *time.Time
}

// NightView is a night with its sweep.
type NightView struct {
	Night
	SweepName     string
	UserName      string
	Site          string
	HardwareClass string
	SubmittedAt   time.Time
	EndedAt       *time.Time
	Cron          string
}

const (
	// What was cancelled measured nothing whole.
	sqlUnjudged = `
select s.id from sweep s
 where s.ended_at >= $1 and s.state in ('complete', 'incomplete')
   and exists (select from cron_firing f where f.sweep_id = s.id)
   and not exists (select from night n where n.sweep_id = s.id)
   and not exists (select from sweep_setting ss where ss.sweep_id = s.id and not ss.settled)
 order by s.ended_at, s.id`
	sqlInsertNight = `
insert into night (sweep_id, state, screened_at, n_series, n_candidates, report, reason, judged_at)
values ($1, $2, $3, $4, $5, $6, $7, case when $2 = 'judged' then $3::timestamptz end)
on conflict (sweep_id) do nothing`
	nightColumns = `
select n.sweep_id, n.state, n.screened_at, n.n_series, n.n_candidates, n.report, n.confirmed_by, n.reason, n.judged_at`
	sqlOpenNights   = nightColumns + ` from night n where n.state <> 'judged' order by n.sweep_id`
	sqlConfirmNight = `update night set state = 'confirming', confirmed_by = $2 where sweep_id = $1 and state = 'screened'`
	sqlFinishNight  = `update night set state = 'judged', judged_at = $2, report = $3, reason = $4 where sweep_id = $1 and state <> 'judged'`
	nightViewFrom   = `,
       s.name as sweep_name, s.user_name, s.site, s.hardware_class, s.submitted_at, s.ended_at,
       coalesce((select c.name from cron_firing f join cron c on c.id = f.cron_id where f.sweep_id = s.id limit 1), '') as cron
  from night n join sweep s on s.id = n.sweep_id`
	sqlNight       = nightColumns + nightViewFrom + ` where n.sweep_id = $1`
	sqlNightsSince = nightColumns + nightViewFrom + ` where s.submitted_at >= $1 and ($2 = '' or s.site = $2) order by s.submitted_at desc, s.id desc limit $3`
	// The latest night of each schedule of each user.
	sqlLatestNights = `
select * from (
    select distinct on (s.site, s.user_name, s.name)` + ` n.sweep_id, n.state, n.screened_at, n.n_series, n.n_candidates, n.report, n.confirmed_by,
           n.reason, n.judged_at` + nightViewFrom + `
     where s.submitted_at >= $1 and ($2 = '' or s.site = $2)
     order by s.site, s.user_name, s.name, s.submitted_at desc, s.id desc) latest
 order by submitted_at desc, sweep_id desc limit $3`
	sqlJudgements = `
select sweep_id, coalesce(confirmed_by, 0) as confirmed_by, series_hash, setting_hash, stratum, metric, estimate, ratio, p, p_adjusted,
       confirmed, published, reason, judged_by as by
  from judgement where sweep_id = any($1) order by sweep_id, published desc, confirmed desc, p nulls last, id`
	sqlSetReference = `
insert into reference_setting (site, series_hash, setting_hash, set_by, set_at)
select $1, series_hash, setting_hash, $3, $4 from setting where setting_hash = $2
on conflict (site) do update set series_hash = excluded.series_hash, setting_hash = excluded.setting_hash, set_by = excluded.set_by, set_at = excluded.set_at`
	sqlReferences      = `select site, series_hash, setting_hash, set_by, set_at from reference_setting where $1 = '' or site = $1 order by site`
	sqlRemoveReference = `delete from reference_setting where site = $1`
	sqlEnvironments    = `
select distinct on (r.series_hash, r.fingerprint_hash, r.sweep_id = $2) r.series_hash, r.sweep_id = $2 as tonight, r.sweep_id, r.fingerprint
  from result r
 where r.series_hash = any($1) and r.site = $3 and r.valid and r.fingerprint is not null and r.started_at >= $4 and r.sweep_id <= $2
 order by r.series_hash, r.fingerprint_hash, r.sweep_id = $2, r.sweep_id desc`
)

// UnjudgedNights are the scheduled sweeps that ended since then, that are summed up
// and that nothing was decided on, first the one that ended first.
func (s *Store) UnjudgedNights(ctx context.Context, since time.Time) ([]int64, error) {
	rows, err := s.pool.Query(ctx, sqlUnjudged, since)
	if err != nil {
		return nil, fmt.Errorf("read nights to judge: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("read nights to judge: %w", err)
	}
	return list, nil
}

// BeginNight stores what the screen says; a night that is known stays as it is.
func (s *Store) BeginNight(ctx context.Context, n Night) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlInsertNight, n.SweepID, n.State, tx.now, n.NSeries, n.NCandidates, n.Report, n.Reason)
		return err
	})
	if err != nil {
		return fmt.Errorf("store the screen of sweep %d: %w", n.SweepID, err)
	}
	return nil
}

// OpenNights are those that are not judged yet.
func (s *Store) OpenNights(ctx context.Context) ([]Night, error) {
	return collect[Night](ctx, s.pool, "nights", sqlOpenNights)
}

// ConfirmNight notes which sweep runs the candidates again.
func (s *Store) ConfirmNight(ctx context.Context, sweep, confirmedBy int64) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlConfirmNight, sweep, confirmedBy)
		return err
	})
	if err != nil {
		return fmt.Errorf("note the confirmation of sweep %d: %w", sweep, err)
	}
	return nil
}

// FinishNight stores the judgement of a night with its decisions, once: false says
// that it was judged before, and nothing was stored.
func (s *Store) FinishNight(ctx context.Context, n Night, list []NewJudgement) (finished bool, err error) {
	err = s.WithTx(ctx, func(tx *Tx) error {
		tag, err := tx.Exec(ctx, sqlFinishNight, n.SweepID, tx.now, n.Report, n.Reason)
		if finished = err == nil && tag.RowsAffected() > 0; !finished {
			return err
		}
		return tx.insertJudgements(ctx, list)
	})
	if err != nil {
		return false, fmt.Errorf("store the judgement of sweep %d: %w", n.SweepID, err)
	}
	return finished, nil
}

// NightOf returns the judgement of a sweep, or ErrNotFound.
func (s *Store) NightOf(ctx context.Context, sweep int64) (NightView, error) {
	list, err := collect[NightView](ctx, s.pool, "night", sqlNight, sweep)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("judgement of sweep %d: %w", sweep, ErrNotFound)
	}
	if err != nil {
		return NightView{}, err
	}
	return list[0], nil
}

// NightsSince returns at most limit nights that were submitted since then, latest
// first; of one site where it is not "".
func (s *Store) NightsSince(ctx context.Context, since time.Time, site string, limit int) ([]NightView, error) {
	return collect[NightView](ctx, s.pool, "nights", sqlNightsSince, since, site, limit)
}

// LatestNights is NightsSince with the latest night of each schedule only.
func (s *Store) LatestNights(ctx context.Context, since time.Time, site string, limit int) ([]NightView, error) {
	return collect[NightView](ctx, s.pool, "nights", sqlLatestNights, since, site, limit)
}

// Judgements returns what was decided about sweeps: by sweep, published first.
func (s *Store) Judgements(ctx context.Context, sweeps []int64) ([]NewJudgement, error) {
	return collect[NewJudgement](ctx, s.pool, "judgements", sqlJudgements, sweeps)
}

// Reference is the reference setting of a site.
type Reference struct {
	Site        string
	SeriesHash  string
	SettingHash string
	SetBy       string
	SetAt       time.Time
}

// SetReference names the reference setting of a site, or ErrNotFound where no such
// setting is known.
func (s *Store) SetReference(ctx context.Context, site, setting, who string) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		tag, err := tx.Exec(ctx, sqlSetReference, site, setting, who, tx.now)
		if err == nil && tag.RowsAffected() == 0 {
			err = ErrNotFound
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("reference setting %s: %w", setting, err)
	}
	return nil
}

// RemoveReference forgets a site's reference setting.
func (s *Store) RemoveReference(ctx context.Context, site string) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlRemoveReference, site)
		return err
	})
	if err != nil {
		return fmt.Errorf("remove the reference setting of %s: %w", site, err)
	}
	return nil
}

// References returns the reference settings; that of one site where it is not "".
func (s *Store) References(ctx context.Context, site string) ([]Reference, error) {
	return collect[Reference](ctx, s.pool, "reference settings", sqlReferences, site)
}

// Environment is a realized environment in which a series was measured, tonight or
// before.
type Environment struct {
	SeriesHash  string
	Tonight     bool
	SweepID     int64 // the latest that had it
	Fingerprint json.RawMessage
}

// Environments returns the different environments of series in a sweep, and in
// those before it since then.
func (s *Store) Environments(ctx context.Context, series []string, sweep int64, site string, since time.Time) ([]Environment, error) {
	return collect[Environment](ctx, s.pool, "environments", sqlEnvironments, series, sweep, site, since)
}
