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
	Blamed      []string // nodes at fault; nil is not said, empty is none
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

const (
	sqlKnownAttempts = `
select run_id, cluster, job_id_raw, restart_count, sealed from attempt where run_id = any($1)`
	sqlAttemptIDs = `
select nextval(seq) from (select pg_get_serial_sequence('attempt', 'id')::regclass as seq offset 0) s, generate_series(1, $1::integer)`
)

// attemptColumns is the order in which attempts are copied.
var attemptColumns = []string{
	"id", "run_id", "cluster", "job_id_raw", "restart_count", "sealed", "token", "task_index", "site", "step_id", "nodes",
	"hardware_class", "started_at", "ended_at", "exit_class", "valid", "env_verified", "reasons", "signature", "checks",
	"runner", "dir", "files", "recorded_at", "epoch", "blamed",
}

// attemptKey is what no two attempts share.
type attemptKey struct {
	RunID        int64
	Cluster      string
	JobIDRaw     int64
	RestartCount int
	Sealed       bool
}

// InsertAttempts stores attempts that are not known yet, and locks their runs. It
// returns the id of each, 0 where it was known.
func (tx *Tx) InsertAttempts(ctx context.Context, attempts []NewAttempt) ([]int64, error) {
	runs := make([]int64, len(attempts))
	for i := range attempts {
		runs[i] = attempts[i].RunID
	}
	if _, err := collect[lockedRun](ctx, tx, "runs", sqlLockRuns, runs); err != nil {
		return nil, err
	}
	return tx.insertAttempts(ctx, attempts, runs)
}

// insertAttempts is InsertAttempts of runs that are locked. The lock comes first:
// nobody else adds an attempt of these runs now, and whoever settles their settings
// sees these attempts or waits.
func (tx *Tx) insertAttempts(ctx context.Context, attempts []NewAttempt, runs []int64) ([]int64, error) {
	list, err := collect[attemptKey](ctx, tx, "attempts", sqlKnownAttempts, runs)
	if err != nil {
		return nil, err
	}
	known := map[attemptKey]bool{}
	for _, k := range list {
		known[k] = true
	}
	var fresh []int
	for i := range attempts {
		a := &attempts[i]
		if k := (attemptKey{a.RunID, a.Cluster, a.JobIDRaw, a.RestartCount, a.Sealed}); !known[k] {
			known[k] = true
			fresh = append(fresh, i)
		}
	}
	ids := make([]int64, len(attempts))
	return ids, tx.copyAttempts(ctx, attempts, fresh, ids)
}

// copyAttempts stores the fresh ones of attempts and notes their ids.
func (tx *Tx) copyAttempts(ctx context.Context, attempts []NewAttempt, fresh []int, ids []int64) error {
	if len(fresh) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, sqlAttemptIDs, len(fresh))
	if err != nil {
		return fmt.Errorf("number attempts: %w", err)
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("number attempts: %w", err)
	}
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"attempt"}, attemptColumns, pgx.CopyFromSlice(len(fresh), func(i int) ([]any, error) {
		ids[fresh[i]] = numbers[i]
		return attempts[fresh[i]].row(tx, numbers[i])
	}))
	if err != nil {
		return fmt.Errorf("copy attempts: %w", err)
	}
	return nil
}

// row holds the values of attemptColumns.
func (a *NewAttempt) row(tx *Tx, id int64) ([]any, error) {
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
		id, a.RunID, a.Cluster, a.JobIDRaw, int32(a.RestartCount), a.Sealed, a.Token, int32(a.TaskIndex), a.Site, a.StepID, texts(a.Nodes),
		a.HardwareClass, given(a.StartedAt), given(a.EndedAt), string(a.ExitClass), a.Valid, a.EnvVerified, texts(a.Reasons), a.Signature,
		checks, a.Runner, a.Dir, files, tx.now, tx.epoch, a.Blamed,
	}, nil
}

// texts is list, or an empty one for nil, which SQL would read as null.
func texts(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
