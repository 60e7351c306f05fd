package store

import (
	"context"
	"fmt"
	"time"

	"sbench/internal/result"
)

// DeadFiles is an attempt that counts for nothing and whose files may go.
type DeadFiles struct {
	AttemptID    int64
	RunID        int64
	JobIDRaw     int64
	RestartCount int
	ExitClass    string
	Sealed       bool   // false: its runner ended without sealing
	AttemptsDir  string // <results>/attempts of its batch
	RecordedAt   time.Time
}

// Nothing is taken of a run that Slurm has or may have, nor of a task that has
// not ended: a task that starts again looks at what it sealed before.
const sqlDeadFiles = `
select a.id as attempt_id, a.run_id, a.job_id_raw, a.restart_count, a.exit_class, a.sealed, b.attempts_dir, a.recorded_at
  from attempt a
  join batch b on b.token = a.token
  join task t on t.token = a.token and t.task_index = a.task_index
  join run r on r.id = a.run_id
 where a.site = $1 and not a.valid and t.state = 'ended' and r.state not in ('submitted', 'provisioning', 'running')
   and (a.sealed and a.recorded_at < $2 or not a.sealed and a.recorded_at < $3)
   and a.id > $4 and not exists (select from attempt_files_removed g where g.attempt_id = a.id)
 order by a.id limit $5`

// DeadFiles returns attempts of a site beyond the id after, in order: sealed ones
// that are not valid and were recorded before failed, and unsealed ones from
// before unsealed. A zero time is for none.
func (s *Store) DeadFiles(ctx context.Context, site string, failed, unsealed time.Time, after int64, limit int) ([]DeadFiles, error) {
	return collect[DeadFiles](ctx, s.pool, "files to remove", sqlDeadFiles, site, failed, unsealed, after, limit)
}

// FilesRemoved says that the files of an attempt are gone.
type FilesRemoved struct {
	AttemptID int64
	Reason    string // failed, unsealed
	Files     int64
	Bytes     int64
}

const sqlFilesRemoved = `
insert into attempt_files_removed (attempt_id, removed_at, reason, files, bytes)
select id, $5, reason, files, bytes from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[]) as g (id, reason, files, bytes)
on conflict do nothing`

// NoteFilesRemoved records that files are gone; what is recorded already stays.
func (s *Store) NoteFilesRemoved(ctx context.Context, removed []FilesRemoved) error {
	ids, reasons := make([]int64, len(removed)), make([]string, len(removed))
	files, bytes := make([]int64, len(removed)), make([]int64, len(removed))
	for i, r := range removed {
		ids[i], reasons[i], files[i], bytes[i] = r.AttemptID, r.Reason, r.Files, r.Bytes
	}
	err := s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlFilesRemoved, ids, reasons, files, bytes, tx.now)
		return err
	})
	if err != nil {
		return fmt.Errorf("note removed files: %w", err)
	}
	return nil
}

// Part is a part of the compacted dataset.
type Part struct {
	ID   int64
	Site string
	Day  time.Time // UTC midnight
}

// PartAttempt is an attempt of a part, with where its files are.
type PartAttempt struct {
	AttemptID int64
	Dir       string
	Files     []result.File
	UID       int
}

const (
	sqlOpenParts = `select id, site, day from dataset_part where site = $1 and state = 'writing' order by id`
	// Every measured attempt is compacted, valid or not: the rows say which. What
	// arrives more than 60 days late stays in its own files.
	sqlPartDay = `
select (r.ended_at at time zone 'UTC')::date as day
  from result r
 where r.site = $1 and r.ended_at < $2 and r.ended_at >= $2 - interval '60 days'
   and not exists (select from dataset_attempt d where d.attempt_id = r.attempt_id)
   and not exists (select from attempt_files_removed g where g.attempt_id = r.attempt_id)
 order by r.attempt_id limit 1`
	sqlPlanPart = `
with picked as (
    select r.attempt_id from result r
     where r.site = $1 and r.ended_at >= $2::date::timestamp at time zone 'UTC' and r.ended_at < ($2::date + 1)::timestamp at time zone 'UTC'
       and not exists (select from dataset_attempt d where d.attempt_id = r.attempt_id)
       and not exists (select from attempt_files_removed g where g.attempt_id = r.attempt_id)
     order by r.attempt_id limit $3
), part as (
    insert into dataset_part (site, day, state, attempts, created_at)
    select $1, $2::date, 'writing', count(*), $4 from picked having count(*) > 0 returning id
), members as (
    insert into dataset_attempt (attempt_id, part_id) select attempt_id, id from picked, part
)
select id from part`
	sqlPartAttempts = `
select a.id as attempt_id, a.dir, a.files, b.uid
  from dataset_attempt d join attempt a on a.id = d.attempt_id join batch b on b.token = a.token
 where d.part_id = $1 order by a.id`
	sqlPartDone = `
update dataset_part set state = 'done', unreadable = $2, bytes = $3, finished_at = $4 where id = $1 and state = 'writing'`
)

// OpenParts returns the parts of a site that were planned and not finished.
func (s *Store) OpenParts(ctx context.Context, site string) ([]Part, error) {
	return collect[Part](ctx, s.pool, "dataset parts", sqlOpenParts, site)
}

// PlanPart commits a part for at most limit attempts of one day that ended before
// the given time, and are in none. It returns nil where there is nothing to do.
func (s *Store) PlanPart(ctx context.Context, site string, before time.Time, limit int) (*Part, error) {
	var part *Part
	err := s.WithTx(ctx, func(tx *Tx) error {
		part = nil
		days, err := collect[struct{ Day time.Time }](ctx, tx, "days", sqlPartDay, site, before)
		if err != nil || len(days) == 0 {
			return err
		}
		parts, err := collect[struct{ ID int64 }](ctx, tx, "part", sqlPlanPart, site, days[0].Day, limit, tx.now)
		if err != nil || len(parts) == 0 {
			return err
		}
		part = &Part{ID: parts[0].ID, Site: site, Day: days[0].Day}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("plan dataset part: %w", err)
	}
	return part, nil
}

// PartAttempts returns the attempts of a part in the order of its rows.
func (s *Store) PartAttempts(ctx context.Context, part int64) ([]PartAttempt, error) {
	return collect[PartAttempt](ctx, s.pool, "attempts of a part", sqlPartAttempts, part)
}

// FinishPart says that the files of a part are in place.
func (s *Store) FinishPart(ctx context.Context, part int64, unreadable int, bytes int64) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlPartDone, part, unreadable, bytes, tx.now)
		return err
	})
	if err != nil {
		return fmt.Errorf("finish dataset part %d: %w", part, err)
	}
	return nil
}
