package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/lifecycle"
	"sbench/internal/metrics"
	"sbench/internal/result"
)

// Candidate is a run in a task that it is or was in: where an attempt of it may
// be sealed, and what the manifest must say. A run has one for each such task.
type Candidate struct {
	RunID         int64
	SweepID       int64
	SettingHash   string
	SeriesHash    string
	Repeat        int
	HardwareClass string
	Token         string
	TaskIndex     int
	Site          string
	Cluster       string
	UID           int `db:"uid"` // who must own what is sealed
	AttemptsDir   string
	// Known are the folders, "<job id raw>-r<restart>", that were ingested.
	Known []string
}

const (
	sqlCandidateColumns = `
select r.id as run_id, r.sweep_id, r.setting_hash, c.series_hash, r.repeat, s.hardware_class, tr.token, tr.task_index,
       b.site, b.cluster, b.uid, b.attempts_dir,
       array(select a.job_id_raw || '-r' || a.restart_count from attempt a where a.run_id = r.id and a.sealed) as known
  from run r
  join task_run tr on tr.run_id = r.id
  join batch b on b.token = tr.token
  join sweep s on s.id = r.sweep_id
  join setting c on c.setting_hash = r.setting_hash`
	sqlActiveCandidates = sqlCandidateColumns + `
 where r.state in ('submitted', 'provisioning', 'running') order by r.id`
	sqlLateCandidates = sqlCandidateColumns + `
 where r.batch_token is not null and r.state not in ('submitted', 'provisioning', 'running') and r.changed_at >= $1
 order by r.id`
)

// ActiveCandidates returns the runs that Slurm has or may have.
func (s *Store) ActiveCandidates(ctx context.Context) ([]Candidate, error) {
	return collect[Candidate](ctx, s.pool, "runs in flight", sqlActiveCandidates)
}

// LateCandidates returns the runs that left Slurm since then: a manifest of
// theirs may still become visible.
func (s *Store) LateCandidates(ctx context.Context, since time.Time) ([]Candidate, error) {
	return collect[Candidate](ctx, s.pool, "runs that ended", sqlLateCandidates, since)
}

// Sealed is a sealed attempt that was verified.
type Sealed struct {
	Attempt NewAttempt
	Result  *result.Result // nil where nothing was measured
	Windows []result.Window
	// FingerprintHash is equal where the realized environments are.
	FingerprintHash string
	// ImageDigest and Flags are the realized image and what the engine said its
	// flags resolved to; nil where it says none.
	ImageDigest string
	Flags       map[string]string
}

const (
	sqlIngestRuns = `
select r.id, r.sweep_id, r.setting_hash, c.series_hash, r.repeat, s.hardware_class, s.quality_hash
  from run r join sweep s on s.id = r.sweep_id join setting c on c.setting_hash = r.setting_hash
 where r.id = any($1) order by r.id for update of r`
	sqlForgetRejected = `delete from rejected_attempt where dir = any($1)`
)

type ingestRun struct {
	ID, SweepID   int64
	SettingHash   string
	SeriesHash    string
	Repeat        int
	HardwareClass string
	QualityHash   string // of the sweep; "" where it asks for no answers
	axes          []any  // of axisRow; read only
}

// Ingest stores sealed attempts with their results and lets the lifecycle judge
// their runs, all in one transaction. It is idempotent: what is known changes
// nothing. The identity and the axes of a result come from the database, never
// from the file. It returns what became of the runs and how many attempts were new.
func (s *Store) Ingest(ctx context.Context, sealed []Sealed) (judged []Judged, added int, err error) {
	err = s.WithTx(ctx, func(tx *Tx) error {
		judged, added, err = tx.ingest(ctx, s.axes, sealed)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("ingest %d attempts: %w", len(sealed), err)
	}
	return judged, added, nil
}

func (tx *Tx) ingest(ctx context.Context, cache *axesCache, sealed []Sealed) ([]Judged, int, error) {
	if err := tx.agreeOnFlags(ctx, sealed); err != nil {
		return nil, 0, err
	}
	attempts := make([]NewAttempt, len(sealed))
	runIDs, dirs := make([]int64, len(sealed)), make([]string, len(sealed))
	ended := make([]Ended, len(sealed))
	for i := range sealed {
		a := &sealed[i].Attempt
		attempts[i], runIDs[i], dirs[i] = *a, a.RunID, a.Dir
		ended[i] = Ended{RunID: a.RunID, Token: a.Token, TaskIndex: a.TaskIndex}
	}
	runs, err := tx.lockIngestRuns(ctx, cache, runIDs)
	if err != nil {
		return nil, 0, err
	}
	ids, err := tx.insertAttempts(ctx, attempts, runIDs)
	if err != nil {
		return nil, 0, err
	}
	if err := tx.copyResults(ctx, sealed, ids, runs); err != nil {
		return nil, 0, err
	}
	judged, err := tx.Judge(ctx, ended, lifecycle.ActorCollect, nil)
	if err != nil {
		return nil, 0, err
	}
	if _, err := tx.Exec(ctx, sqlForgetRejected, dirs); err != nil {
		return nil, 0, fmt.Errorf("forget rejected folders: %w", err)
	}
	added := 0
	for _, id := range ids {
		if id != 0 {
			added++
		}
	}
	return judged, added, nil
}

// lockIngestRuns locks runs, as whoever adds attempts must, and reads what results
// take from them.
func (tx *Tx) lockIngestRuns(ctx context.Context, cache *axesCache, ids []int64) (map[int64]*ingestRun, error) {
	rows, err := tx.Query(ctx, sqlIngestRuns, ids)
	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	runs := make(map[int64]*ingestRun, len(ids))
	var keys []SettingKey
	for rows.Next() {
		var r ingestRun
		if err := rows.Scan(&r.ID, &r.SweepID, &r.SettingHash, &r.SeriesHash, &r.Repeat, &r.HardwareClass, &r.QualityHash); err != nil {
			return nil, fmt.Errorf("read runs: %w", err)
		}
		runs[r.ID] = &r
		keys = append(keys, SettingKey{r.SweepID, r.SettingHash})
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	axes, err := cache.rows(ctx, tx, keys)
	if err != nil {
		return nil, err
	}
	for _, r := range runs {
		r.axes = axes[SettingKey{r.SweepID, r.SettingHash}]
	}
	return runs, nil
}

func (tx *Tx) copyResults(ctx context.Context, sealed []Sealed, ids []int64, runs map[int64]*ingestRun) error {
	type window struct {
		of    int // index of sealed
		index int
	}
	var results []int // indices of sealed
	var windows []window
	for i := range sealed {
		if ids[i] == 0 || sealed[i].Result == nil {
			continue
		}
		results = append(results, i)
		for k := range sealed[i].Windows {
			windows = append(windows, window{i, k})
		}
	}
	// CopyFrom has encoded a row before it asks for the next one: one is enough.
	var row []any
	table, windowTable := metrics.Table(), metrics.WindowTable()
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"result"}, resultColumns, pgx.CopyFromSlice(len(results), func(n int) ([]any, error) {
		c := &sealed[results[n]]
		var err error
		row, err = appendResult(row[:0], c, ids[results[n]], runs[c.Attempt.RunID], table)
		return row, err
	}))
	if err != nil {
		return fmt.Errorf("copy results: %w", err)
	}
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"result_window"}, windowColumns, pgx.CopyFromSlice(len(windows), func(n int) ([]any, error) {
		w := windows[n]
		c := &sealed[w.of]
		var err error
		row, err = appendWindow(row[:0], &c.Windows[w.index], ids[w.of], runs[c.Attempt.RunID], windowTable)
		return row, err
	}))
	if err != nil {
		return fmt.Errorf("copy windows: %w", err)
	}
	return nil
}

// appendResult appends the values of resultColumns.
func appendResult(row []any, c *Sealed, id int64, run *ingestRun, table []metrics.Metric) ([]any, error) {
	reasons, err := json.Marshal(notNil(c.Result.NullReasons))
	if err != nil {
		return nil, fmt.Errorf("encode null reasons: %w", err)
	}
	a := &c.Attempt
	row = append(row,
		id, run.ID, run.SweepID, run.SettingHash, run.SeriesHash, int32(run.Repeat), a.Site, a.Cluster, run.HardwareClass,
		texts(a.Nodes), a.StartedAt, a.EndedAt, a.Valid, a.EnvVerified, texts(c.Result.Findings), c.Result.MetricsVersion,
		c.Result.PlanHash, c.FingerprintHash, orNull(c.Result.Fingerprint), reasons, run.QualityHash,
	)
	return appendMetrics(append(row, run.axes...), table, c.Result.Metrics), nil
}

// appendWindow appends the values of windowColumns.
func appendWindow(row []any, w *result.Window, id int64, run *ingestRun, table []metrics.Metric) ([]any, error) {
	reasons, err := json.Marshal(notNil(w.NullReasons))
	if err != nil {
		return nil, fmt.Errorf("encode null reasons: %w", err)
	}
	row = append(row, id, int32(w.Index), run.HardwareClass, w.OfferedRate, w.Start, w.End, texts(w.Findings), reasons)
	return appendMetrics(row, table, w.Metrics), nil
}

// appendMetrics appends the values themselves: pgx follows a pointer by reflection.
func appendMetrics(row []any, table []metrics.Metric, values result.Metrics) []any {
	for _, m := range table {
		if v := values[m.Name]; v != nil {
			row = append(row, *v)
		} else {
			row = append(row, nil)
		}
	}
	return row
}

func notNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func orNull(text json.RawMessage) any {
	if len(text) == 0 {
		return nil
	}
	return []byte(text)
}

// RejectedTorn is the kind of a folder whose files are missing or not what was
// sealed: a shared file system may still show them.
const RejectedTorn = "torn"

// Rejected is a folder that was not ingested.
type Rejected struct {
	Dir       string
	RunID     int64
	Kind      string // torn, hostile, foreign, unreadable
	Reason    string
	Mark      string // changes when the folder does
	FirstSeen time.Time
	LastSeen  time.Time
	Tries     int
}

const (
	sqlReject = `
insert into rejected_attempt (dir, run_id, kind, reason, mark, first_seen, last_seen)
values ($1, $2, $3, $4, $5, $6, $6)
on conflict (dir) do update set kind = excluded.kind, reason = excluded.reason, mark = excluded.mark,
       last_seen = excluded.last_seen, tries = rejected_attempt.tries + 1`
	sqlRejected = `
select dir, run_id, kind, reason, mark, first_seen, last_seen, tries from rejected_attempt
 where $1::bigint[] is null or run_id = any($1) order by last_seen desc, dir limit 1000`
)

// Reject notes that a folder was not ingested, and why.
func (s *Store) Reject(ctx context.Context, r Rejected) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlReject, r.Dir, r.RunID, r.Kind, r.Reason, r.Mark, tx.now)
		return err
	})
	if err != nil {
		return fmt.Errorf("note rejected folder %s: %w", r.Dir, err)
	}
	return nil
}

// RejectedAttempts lists the folders that were not ingested, of these runs or,
// without any, of all.
func (s *Store) RejectedAttempts(ctx context.Context, runs ...int64) ([]Rejected, error) {
	return collect[Rejected](ctx, s.pool, "rejected folders", sqlRejected, runs)
}
