package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/store"
	"sbench/schema"
)

// migrateTo brings a database to an old schema.
func migrateTo(t testing.TB, s *store.Store, version int64) {
	t.Helper()
	db := stdlib.OpenDBFromPool(s.Pool())
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, schema.FS, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
}

// inFlight is a sweep of the first schema with a run in every state that Slurm has
// or may have, one that is complete and one that failed.
var inFlight = []string{
	`insert into sweep (name, user_name, uid, site, request_digest, file, hardware_class, submitted_at, changed_at, n_settings, n_runs)
 values ('old', 'ada', 1000, 'lab', '', '', 'emulated', now(), now(), 1, 6)`,
	`insert into setting values (repeat('a', 64), repeat('b', 64), '{}')`,
	`insert into sweep_setting (sweep_id, setting_hash, ordinal, repeats, setting) values (1, repeat('a', 64), 0, 6, '{}')`,
	`insert into batch (token, site, cluster, uid, user_name, dir, attempts_dir, digest, shape, time_limit_s, n_tasks, job_name, created_at, state, actor, changed_at)
 values ('sb-aaaaaaaaaaaaaaaaaaaa', 'lab', 'c1', 1000, 'ada', '/spool', '/attempts', 'sha256:00', '{"sweep": 1}', 60, 5, 'x', now(), 'intent', 'submit', now())`,
	`insert into task (token, task_index, time_limit_s, state, actor, changed_at)
 select 'sb-aaaaaaaaaaaaaaaaaaaa', i, 60, 'waiting', 'submit', now() from generate_series(0, 4) i`,
	`insert into run (sweep_id, setting_hash, repeat, state, actor, changed_at)
 select 1, repeat('a', 64), i, 'pending', 'admit', now() from generate_series(0, 5) i`,
	`update run set state = 'submitted', actor = 'submit', batch_token = 'sb-aaaaaaaaaaaaaaaaaaaa', task_index = repeat where repeat < 5`,
	`update batch set state = 'held', actor = 'submit', job_id = 7`,
	`update batch set state = 'released', actor = 'submit'`,
	`update task set state = 'running', actor = 'track' where task_index > 0`,
	`insert into allocation (cluster, job_id_raw, submit_time, token, task_index, state, last_seen_at, seen_in)
 select 'c1', 7 + i, now(), 'sb-aaaaaaaaaaaaaaaaaaaa', i, 'RUNNING', now(), 'squeue' from generate_series(1, 4) i`,
	`update run set state = 'provisioning', actor = 'track' where repeat between 1 and 4`,
	`update run set state = 'running', actor = 'track' where repeat between 2 and 4`,
	`insert into attempt (run_id, cluster, job_id_raw, restart_count, sealed, token, task_index, site, nodes, hardware_class, started_at, ended_at, exit_class, valid, env_verified, reasons, recorded_at)
 select id, 'c1', 7 + repeat, 0, true, 'sb-aaaaaaaaaaaaaaaaaaaa', repeat, 'lab', '{n1}', 'emulated', now(), now(),
        case repeat when 3 then 'measured' else 'drift_node' end, repeat = 3, repeat = 3, '{x}', now() from run where repeat in (3, 4)`,
	`update run set state = 'complete', actor = 'collect' where repeat = 3`,
	`update run set state = 'failed', actor = 'track' where repeat = 4`,
}

// TestMigrate_WithJobsRunning: the first schema, with work in every state, comes to
// the newest one with nothing lost, and the work goes on.
func TestMigrate_WithJobsRunning(t *testing.T) {
	t.Parallel()
	s, err := store.Open(t.Context(), pgtest.EmptyDSN(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	migrateTo(t, s, 3) // the tables and the legal transitions
	for _, sql := range inFlight {
		execute(t, s, sql)
	}
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const token = "sb-aaaaaaaaaaaaaaaaaaaa"
	open, err := s.OpenBatches(t.Context(), "lab")
	if err != nil || len(open) != 1 || open[0].State != lifecycle.BatchReleased || *open[0].JobID != 7 {
		t.Fatalf("%+v, %v", open, err)
	}
	runs, err := s.RunsOfSweep(t.Context(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	var states []lifecycle.RunState
	for _, r := range runs {
		states = append(states, r.State)
	}
	want := []lifecycle.RunState{
		lifecycle.RunSubmitted, lifecycle.RunProvisioning, lifecycle.RunRunning, lifecycle.RunComplete, lifecycle.RunFailed, lifecycle.RunPending,
	}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Error(diff)
	}
	if pending, err := s.PendingRuns(t.Context(), "lab", 10); err != nil || len(pending.Runs) != 1 {
		t.Errorf("%+v, %v", pending.Runs, err)
	}
	if active, err := s.ActiveCandidates(t.Context()); err != nil || len(active) != 3 {
		t.Errorf("%+v, %v", active, err)
	}
	allocations, err := s.AllocationsToFollow(t.Context(), []string{token}, time.Now().Add(-time.Hour))
	if err != nil || len(allocations) != 4 {
		t.Errorf("%+v, %v", allocations, err)
	}
	if drifts, err := s.NodeDrifts(t.Context(), "lab", time.Now().Add(-time.Hour)); err != nil || len(drifts) != 1 {
		t.Errorf("%+v, %v", drifts, err)
	}
	// The daemon after the upgrade: a running task is requeued, a waiting one ends.
	err = s.WithTx(t.Context(), func(tx *store.Tx) error {
		if err := tx.FollowRuns(t.Context(), []int64{runs[2].ID}, []lifecycle.RunState{lifecycle.RunRunning}, lifecycle.RunSubmitted, ""); err != nil {
			return err
		}
		if err := tx.MoveTasks(t.Context(), []store.TaskKey{{Token: token, Index: 2}}, []string{""}, lifecycle.TaskWaiting); err != nil {
			return err
		}
		if err := tx.ReturnRuns(t.Context(), []int64{runs[0].ID}, lifecycle.RunPending, "its task ended before it began"); err != nil {
			return err
		}
		return tx.MoveTasks(t.Context(), []store.TaskKey{{Token: token, Index: 0}}, []string{""}, lifecycle.TaskEnded)
	})
	if err != nil {
		t.Error(err)
	}
	if history, err := s.Transitions(t.Context(), "run", "1"); err != nil || len(history) != 3 {
		t.Errorf("history %+v, %v", history, err)
	}
}

// TestMigrate_Newer: an old daemon leaves the database of a new one alone.
func TestMigrate_Newer(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, s, `insert into goose_db_version (version_id, is_applied) values (999999, true)`)
	if err := s.Migrate(t.Context()); !errors.Is(err, store.ErrNewer) {
		t.Errorf("%v", err)
	}
}
