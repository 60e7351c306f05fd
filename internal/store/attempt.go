package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"sbench/internal/lifecycle"
	"sbench/internal/result"
)

// NewAttempt is an attempt as its manifest, or the tracker, tells it.
type NewAttempt struct {
	result.Attempt
	Sealed      bool // false: its allocation ended and nothing was sealed
	ExitClass   lifecycle.ExitClass
	Valid       bool
	EnvVerified bool
	Reasons     []string // the headline first
	Signature   string
	Checks      []result.Check
	Runner      string        // version of sbench-runner; "" for what was lost
	Dir         string        // where it is sealed; "" for what was lost
	Files       []result.File // what the manifest vouches for
}

// LostAttempt is the row of a run whose allocation ended and sealed nothing.
// The cause of the end belongs to the allocation.
func LostAttempt(a result.Attempt, reason string) NewAttempt {
	return NewAttempt{Attempt: a, ExitClass: lifecycle.ExitLost, Reasons: []string{reason}}
}

const sqlInsertAttempt = `
insert into attempt (run_id, cluster, job_id_raw, restart_count, sealed, token, task_index, site, step_id, nodes,
                     hardware_class, started_at, ended_at, exit_class, valid, env_verified, reasons, signature, checks,
                     runner, dir, files, recorded_at, epoch)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
on conflict (run_id, cluster, job_id_raw, restart_count, sealed) do nothing
returning id`

// InsertAttempts stores attempts that are not known yet, and locks their runs. It
// returns the id of each, 0 where it was known.
func (tx *Tx) InsertAttempts(ctx context.Context, attempts []NewAttempt) ([]int64, error) {
	runs := make([]int64, len(attempts))
	for i := range attempts {
		runs[i] = attempts[i].RunID
	}
	// First, so that whoever settles their settings sees the attempts or waits.
	if _, err := collect[lockedRun](ctx, tx, "runs", sqlLockRuns, runs); err != nil {
		return nil, err
	}
	batch := &pgx.Batch{}
	ids := make([]int64, len(attempts))
	for i := range attempts {
		args, err := attempts[i].args(tx)
		if err != nil {
			return nil, err
		}
		batch.Queue(sqlInsertAttempt, args...).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				if err := rows.Scan(&ids[i]); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("insert attempts: %w", err)
	}
	return ids, nil
}

func (a *NewAttempt) args(tx *Tx) ([]any, error) {
	checks, err := json.Marshal(a.Checks)
	if err != nil {
		return nil, fmt.Errorf("encode checks: %w", err)
	}
	files, err := json.Marshal(a.Files)
	if err != nil {
		return nil, fmt.Errorf("encode files: %w", err)
	}
	if a.Checks == nil {
		checks = []byte("[]")
	}
	if a.Files == nil {
		files = []byte("[]")
	}
	return []any{
		a.RunID, a.Cluster, a.JobIDRaw, a.RestartCount, a.Sealed, a.Token, a.TaskIndex, a.Site, a.StepID, texts(a.Nodes),
		a.HardwareClass, given(a.StartedAt), given(a.EndedAt), a.ExitClass, a.Valid, a.EnvVerified, texts(a.Reasons), a.Signature,
		checks, a.Runner, a.Dir, files, tx.now, tx.epoch,
	}, nil
}

// texts is list, or an empty one for nil, which SQL would read as null.
func texts(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
