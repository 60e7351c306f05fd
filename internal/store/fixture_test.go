package store_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/store"
)

// batchToken names a batch in the tests.
const batchToken = "sb-aaaaaaaaaaaaaaaaaaaa"

// sweepOf returns a sweep with settings of the given repeats.
func sweepOf(key string, repeats ...int) store.NewSweep {
	n := store.NewSweep{
		Name: "nightly", UserName: "ada", UID: 1000, Site: "lab", HardwareClass: "emulated",
		IdempotencyKey: key, File: "sweep: v1\n",
	}
	for i, r := range repeats {
		spec := fmt.Sprintf(`{"model":{"name":"m%d"},"spec_version":1}`, i)
		sum := sha256.Sum256([]byte(spec))
		hash := hex.EncodeToString(sum[:])
		n.Settings = append(n.Settings, store.NewSetting{
			Hash: hash, SeriesHash: hash, CanonicalSpec: []byte(spec), Repeats: r,
			Setting: setting.Setting{Model: setting.Model{Name: fmt.Sprintf("m%d", i)}},
		})
	}
	return n
}

// create stores a sweep and returns its id and the ids of its runs.
func create(t testing.TB, s *store.Store, n store.NewSweep) (int64, []int64) {
	t.Helper()
	id, _, err := s.CreateSweep(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	var runs []int64
	err = s.Pool().QueryRow(t.Context(), `select array_agg(id order by id) from run where sweep_id = $1`, id).Scan(&runs)
	if err != nil {
		t.Fatal(err)
	}
	return id, runs
}

// submit puts runs into task 0 of a batch, as the submission service does.
func submit(t testing.TB, s *store.Store, name string, runs []int64) {
	t.Helper()
	execute(t, s, `
insert into batch (token, site, cluster, uid, user_name, dir, attempts_dir, digest, time_limit_s, n_tasks, created_at, state, actor, changed_at)
values ($1, 'lab', 'c1', 1000, 'ada', '/spool/' || $1, '/results', 'sha256:00', 60, 1, now(), 'intent', 'submit', now())
on conflict do nothing`, name)
	execute(t, s, `insert into task (token, task_index, time_limit_s, state, actor, changed_at) values ($1, 0, 60, 'waiting', 'submit', now())
on conflict do nothing`, name)
	execute(t, s, `update run set state = 'submitted', actor = 'submit', changed_at = now(), batch_token = $1, task_index = 0 where id = any($2)`, name, runs)
}

func execute(t testing.TB, s *store.Store, sql string, args ...any) {
	t.Helper()
	if _, err := s.Pool().Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// attempt is a sealed attempt of a run in the batch of submit.
func attempt(run, job int64, class lifecycle.ExitClass, valid bool) store.NewAttempt {
	return store.NewAttempt{
		Attempt: result.Attempt{
			RunID: run, Token: batchToken, Site: "lab", Cluster: "c1", JobIDRaw: job, HardwareClass: "emulated", Nodes: []string{"n1"},
		},
		Sealed: true, ExitClass: class, Valid: valid, EnvVerified: valid, Reasons: []string{string(class)},
	}
}

func inTx(t testing.TB, s *store.Store, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := s.WithTx(t.Context(), func(tx *store.Tx) error { return fn(t.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
}

func stateOf(t testing.TB, s *store.Store, run int64) lifecycle.RunState {
	t.Helper()
	runs, err := s.Runs(t.Context(), run)
	if err != nil || len(runs) != 1 {
		t.Fatalf("run %d: %v, %v", run, runs, err)
	}
	return runs[0].State
}

func contextOf(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}
