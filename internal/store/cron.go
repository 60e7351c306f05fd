package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrExists says that the name is taken.
var ErrExists = errors.New("exists already")

// NewCron is a schedule with the sweep that it submits.
type NewCron struct {
	Name           string
	UserName       string
	UID            int
	Schedule       string
	TimeZone       string
	Overlap        string
	CatchUp        string
	Jitter, Window time.Duration // whole seconds; 0 is none
	AtWindowEnd    string        // continue, cancel
	Site           string
	FileName, File string
	FileDigest     string
	SettingsDigest string
	NSettings      int
	NRuns          int
	GPUHours       float64
	Options        json.RawMessage
}

// Cron is a schedule as it is stored.
type Cron struct {
	ID             int64
	Name           string
	UserName       string
	UID            int `db:"uid"`
	Version        int
	Schedule       string
	TimeZone       string
	Overlap        string
	CatchUp        string
	JitterS        int64
	WindowS        int64
	AtWindowEnd    string
	Site           string
	FileName       string
	File           string
	FileDigest     string
	SettingsDigest string
	NSettings      int
	NRuns          int
	GPUHours       float64 `db:"gpu_hours"`
	Options        json.RawMessage
	PausedAt       *time.Time
	PausedBy       string
	CreatedAt      time.Time
	UpdatedAt      time.Time
	DecidedUntil   time.Time
}

// CronFiring is one due time and what became of it.
type CronFiring struct {
	ID        int64
	CronID    int64
	Due       time.Time
	Manual    bool
	FireAt    time.Time
	WindowEnd *time.Time // nil: no window
	Version   int
	State     string // waiting, submitted, skipped, refused
	Reason    string
	SweepID   *int64
	DecidedAt time.Time
	ChangedAt time.Time
	EndedAt   *time.Time // of its sweep
	WindowMet *bool      // nil: no window, or not known yet
}

// The states of a firing.
const (
	FiringWaiting   = "waiting"
	FiringSubmitted = "submitted"
	FiringSkipped   = "skipped"
	FiringRefused   = "refused"
)

const (
	sqlInsertCron = `
insert into cron (name, user_name, uid, schedule, time_zone, overlap, catch_up, jitter_s, window_s, at_window_end, site, file_name, file,
                  file_digest, settings_digest, n_settings, n_runs, gpu_hours, options, created_at, updated_at, decided_until)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $20, $20)
on conflict (uid, name) where removed_at is null do nothing returning id`
	// A changed schedule is not due for times before the change.
	sqlUpdateCron = `
update cron set version = version + 1, schedule = $3, time_zone = $4, overlap = $5, catch_up = $6, jitter_s = $7, window_s = $8,
       at_window_end = $9, site = $10, file_name = $11, file = $12, file_digest = $13, settings_digest = $14, n_settings = $15,
       n_runs = $16, gpu_hours = $17, options = $18, updated_at = $19,
       decided_until = case when schedule = $3 and time_zone = $4 then decided_until else $19 end
 where id = $1 and version = $2 and removed_at is null`
	sqlCronColumns = `
select id, name, user_name, uid, version, schedule, time_zone, overlap, catch_up, jitter_s, window_s, at_window_end, site, file_name,
       file, file_digest, settings_digest, n_settings, n_runs, gpu_hours, options, paused_at, paused_by, created_at, updated_at,
       decided_until
  from cron where removed_at is null`
	sqlCrons    = sqlCronColumns + ` and ($1::text is null or user_name = $1) and ($2::text is null or name = $2) order by user_name, name`
	sqlCronByID = sqlCronColumns + ` and id = $1`
	// What came due while it was paused is not made up for.
	sqlPauseCron  = `update cron set paused_at = coalesce(paused_at, $2), paused_by = $3, updated_at = $2 where id = $1 and removed_at is null`
	sqlResumeCron = `
update cron set paused_at = null, paused_by = '', updated_at = $2, decided_until = case when paused_at is null then decided_until else $2 end
 where id = $1 and removed_at is null`
	sqlRemoveCron = `update cron set removed_at = $2, updated_at = $2 where id = $1 and removed_at is null`
	sqlDropFiring = `update cron_firing set state = 'skipped', reason = $3, changed_at = $2 where cron_id = $1 and state = 'waiting'`
)

// AddCron stores a schedule; what is due counts from now. The error is ErrExists
// where the user has one of this name.
func (s *Store) AddCron(ctx context.Context, n NewCron) (id int64, err error) {
	err = s.WithTx(ctx, func(tx *Tx) error {
		err := tx.QueryRow(ctx, sqlInsertCron, n.Name, n.UserName, n.UID, n.Schedule, n.TimeZone, n.Overlap, n.CatchUp, seconds(n.Jitter),
			seconds(n.Window), n.AtWindowEnd, n.Site, n.FileName, n.File, n.FileDigest, n.SettingsDigest, n.NSettings, n.NRuns, n.GPUHours,
			n.Options, tx.now).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrExists
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("cron %s: %w", n.Name, err)
	}
	return id, nil
}

// UpdateCron replaces everything but the name and the owner. The error is
// ErrStale where the schedule is not at the version any more.
func (s *Store) UpdateCron(ctx context.Context, id int64, version int, n NewCron) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		tag, err := tx.Exec(ctx, sqlUpdateCron, id, version, n.Schedule, n.TimeZone, n.Overlap, n.CatchUp, seconds(n.Jitter), seconds(n.Window),
			n.AtWindowEnd, n.Site, n.FileName, n.File, n.FileDigest, n.SettingsDigest, n.NSettings, n.NRuns, n.GPUHours, n.Options, tx.now)
		if err == nil && tag.RowsAffected() == 0 {
			err = ErrStale
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("update cron %s: %w", n.Name, err)
	}
	return nil
}

// Crons returns the schedules of a user, of one name; "" is all.
func (s *Store) Crons(ctx context.Context, user, name string) ([]Cron, error) {
	return collect[Cron](ctx, s.pool, "crons", sqlCrons, given(user), given(name))
}

// Cron returns one schedule, or ErrNotFound.
func (s *Store) Cron(ctx context.Context, id int64) (Cron, error) {
	list, err := collect[Cron](ctx, s.pool, "cron", sqlCronByID, id)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("cron %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return Cron{}, err
	}
	return list[0], nil
}

// PauseCron stops a schedule, and ResumeCron lets it go on from now.
func (s *Store) PauseCron(ctx context.Context, id int64, who string) error {
	return s.changeCron(ctx, "pause", func(tx *Tx) (pgconn.CommandTag, error) { return tx.Exec(ctx, sqlPauseCron, id, tx.now, who) })
}

// ResumeCron undoes PauseCron.
func (s *Store) ResumeCron(ctx context.Context, id int64) error {
	return s.changeCron(ctx, "resume", func(tx *Tx) (pgconn.CommandTag, error) { return tx.Exec(ctx, sqlResumeCron, id, tx.now) })
}

// RemoveCron ends a schedule; what it has submitted goes on.
func (s *Store) RemoveCron(ctx context.Context, id int64, who string) error {
	return s.changeCron(ctx, "remove", func(tx *Tx) (pgconn.CommandTag, error) {
		if _, err := tx.Exec(ctx, sqlDropFiring, id, tx.now, "removed by "+who); err != nil {
			return pgconn.CommandTag{}, err
		}
		return tx.Exec(ctx, sqlRemoveCron, id, tx.now)
	})
}

func (s *Store) changeCron(ctx context.Context, what string, change func(tx *Tx) (pgconn.CommandTag, error)) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		tag, err := change(tx)
		if err == nil && tag.RowsAffected() == 0 {
			err = ErrNotFound
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s cron: %w", what, err)
	}
	return nil
}

const (
	sqlLockCron     = `select version, decided_until, paused_at is not null from cron where id = $1 and removed_at is null for update`
	sqlDecidedUntil = `update cron set decided_until = $2 where id = $1`
	sqlInsertFiring = `
insert into cron_firing (cron_id, due, manual, fire_at, window_end, version, state, reason, decided_at, changed_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)
on conflict (cron_id, due) do nothing`
	sqlFiringColumns = `
select f.id, f.cron_id, f.due, f.manual, f.fire_at, f.window_end, f.version, f.state, f.reason, f.sweep_id, f.decided_at, f.changed_at,
       f.ended_at, f.window_met
  from cron_firing f`
	sqlWaitingFirings = sqlFiringColumns + ` join cron c on c.id = f.cron_id and c.removed_at is null
 where f.state = 'waiting' and f.fire_at <= $1 and c.paused_at is null order by f.cron_id, f.due`
	sqlOpenFirings = sqlFiringColumns + ` where f.state = 'submitted' and f.ended_at is null order by f.cron_id, f.due`
	sqlFirings     = `
select * from (` + sqlFiringColumns + ` where f.cron_id = $1 order by f.due desc limit $2) f order by due desc`
	sqlMoveFiring = `
update cron_firing set state = $2, reason = $3, sweep_id = $4, version = coalesce($5, version), changed_at = $6
 where id = $1 and state = 'waiting'`
	sqlFiringEnded  = `update cron_firing set ended_at = $2, window_met = coalesce(window_met, $3), changed_at = $4 where id = $1`
	sqlFiringMissed = `update cron_firing set window_met = false, changed_at = $2 where id = $1 and window_met is null`
	sqlCronOfSweep  = `select c.name from cron_firing f join cron c on c.id = f.cron_id where f.sweep_id = $1 limit 1`
	sqlSweepByKey   = `select id from sweep where uid = $1 and idempotency_key = $2`
)

// DecideCron stores what becomes of due times of a schedule, and up to when that
// is decided. It does nothing where another daemon has decided meanwhile or the
// schedule was changed: decided is false then.
func (s *Store) DecideCron(ctx context.Context, c Cron, until time.Time, firings []CronFiring) (decided bool, err error) {
	err = s.WithTx(ctx, func(tx *Tx) error {
		decided = false
		var version int
		var done time.Time
		var paused bool
		switch err := tx.QueryRow(ctx, sqlLockCron, c.ID).Scan(&version, &done, &paused); {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err != nil:
			return err
		}
		if version != c.Version || paused || !done.Equal(c.DecidedUntil) {
			return nil
		}
		for _, f := range firings {
			if _, err := tx.Exec(ctx, sqlInsertFiring, c.ID, f.Due, f.Manual, f.FireAt, f.WindowEnd, c.Version, f.State, f.Reason, tx.now); err != nil {
				return err
			}
		}
		decided = true
		_, err := tx.Exec(ctx, sqlDecidedUntil, c.ID, until)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("decide on cron %s: %w", c.Name, err)
	}
	return decided, nil
}

// FireCron adds a firing that somebody asked for, due now.
func (s *Store) FireCron(ctx context.Context, c Cron, window time.Duration, who string) (time.Time, error) {
	var due time.Time
	err := s.WithTx(ctx, func(tx *Tx) error {
		due = tx.now
		var end *time.Time
		if window > 0 {
			t := due.Add(window)
			end = &t
		}
		_, err := tx.Exec(ctx, sqlInsertFiring, c.ID, due, true, due, end, c.Version, FiringWaiting, "asked for by "+who, tx.now)
		return err
	})
	if err != nil {
		return due, fmt.Errorf("fire cron %s: %w", c.Name, err)
	}
	return due, nil
}

// WaitingFirings are the firings whose time has come, of schedules that are not
// paused, by schedule and due time.
func (s *Store) WaitingFirings(ctx context.Context) ([]CronFiring, error) {
	return collect[CronFiring](ctx, s.pool, "firings", sqlWaitingFirings, s.now())
}

// OpenFirings are the firings whose sweep had not ended when it was last looked at.
func (s *Store) OpenFirings(ctx context.Context) ([]CronFiring, error) {
	return collect[CronFiring](ctx, s.pool, "firings", sqlOpenFirings)
}

// Firings are the latest firings of a schedule, latest first.
func (s *Store) Firings(ctx context.Context, cron int64, limit int) ([]CronFiring, error) {
	return collect[CronFiring](ctx, s.pool, "firings", sqlFirings, cron, limit)
}

// MoveFiring says what became of a waiting firing; version is that of the cron
// that was submitted, 0 where none was. A firing that does not wait is left alone.
func (s *Store) MoveFiring(ctx context.Context, id int64, state, reason string, sweep *int64, version int) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlMoveFiring, id, state, reason, sweep, given(version), tx.now)
		return err
	})
	if err != nil {
		return fmt.Errorf("firing %d is %s: %w", id, state, err)
	}
	return nil
}

// EndFiring notes that the sweep of a firing ended, and whether within its window
// (nil where there is none).
func (s *Store) EndFiring(ctx context.Context, id int64, at time.Time, met *bool) error {
	return s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlFiringEnded, id, at, met, tx.now)
		return err
	})
}

// MissWindow notes that a firing's window ended before its sweep.
func (s *Store) MissWindow(ctx context.Context, id int64) error {
	return s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlFiringMissed, id, tx.now)
		return err
	})
}

// SweepOfKey finds the sweep that a user submitted with an idempotency key; 0
// where there is none.
func (s *Store) SweepOfKey(ctx context.Context, uid int, key string) (int64, error) {
	var id int64
	err := s.pool.QueryRow(ctx, sqlSweepByKey, uid, key).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for sweep of %s: %w", key, err)
	}
	return id, nil
}

// CronOfSweep names the schedule that submitted a sweep; "" where none did.
func (s *Store) CronOfSweep(ctx context.Context, sweep int64) (string, error) {
	var name string
	err := s.pool.QueryRow(ctx, sqlCronOfSweep, sweep).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for the schedule of sweep %d: %w", sweep, err)
	}
	return name, nil
}
