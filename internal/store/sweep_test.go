package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/store"
)

func TestCreateSweep_ReadBack(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	s := pgtest.New(t).WithClock(func() time.Time { return at })
	n := sweepOf("key", 2, 1)
	n.SLO = map[string]time.Duration{"ttft_p99": 500 * time.Millisecond}
	n.Options = json.RawMessage(`{"qos": "high"}`)
	id, runs := create(t, s, n)
	if len(runs) != 3 {
		t.Fatalf("%d runs, want 3", len(runs))
	}
	got, err := s.Sweep(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	want := store.Sweep{
		ID: id, Name: "nightly", UserName: "ada", UID: 1000, Site: "lab", Priority: "normal", Options: n.Options, SLO: n.SLO,
		HardwareClass: "emulated", SubmittedAt: at, State: store.SweepActive,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sweep (-want +got):\n%s", diff)
	}
	settings, err := s.SettingViews(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if len(settings) != 2 || settings[0].Setting.Model.Name != "m0" || settings[1].Repeats != 1 {
		t.Errorf("settings %+v", settings)
	}
	history, err := s.Transitions(t.Context(), lifecycle.EntityRun, "1", "2", "3")
	if err != nil {
		t.Fatal(err)
	}
	if len(history) != 3 || history[0].ToState != "pending" || history[0].Actor != lifecycle.ActorAdmit || !history[0].At.Equal(at) {
		t.Errorf("transitions %+v", history)
	}
	if _, err := s.Sweep(t.Context(), 99); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("unknown sweep: %v", err)
	}
}

func TestCreateSweep_Idempotent(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	var wg sync.WaitGroup
	ids, fresh := make([]int64, 8), make([]bool, 8)
	for i := range ids {
		wg.Go(func() {
			var err error
			if ids[i], fresh[i], err = s.CreateSweep(t.Context(), sweepOf("same", 3, 3)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	created := 0
	for i := range ids {
		if ids[i] != ids[0] {
			t.Errorf("sweeps %v, want one", ids)
		}
		if fresh[i] {
			created++
		}
	}
	if created != 1 {
		t.Errorf("created %d times", created)
	}
	if _, _, err := s.CreateSweep(t.Context(), sweepOf("same", 3, 4)); !errors.Is(err, store.ErrConflict) {
		t.Errorf("key with another request: %v", err)
	}
	other := sweepOf("same", 3, 3)
	other.UID = 1001
	if _, created, err := s.CreateSweep(t.Context(), other); err != nil || !created {
		t.Errorf("another user's key: %v, %v", created, err)
	}
	// Without a key every submission is a new sweep, and settings are shared.
	if a, _ := create(t, s, sweepOf("", 1)); a == ids[0] {
		t.Error("a submission without a key found a sweep")
	}
}

func TestPendingRuns(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	s := pgtest.New(t).WithClock(func() time.Time { return now })
	later := now.Add(time.Hour)
	normal, normalRuns := create(t, s, sweepOf("a", 2, 1))
	urgent := sweepOf("b", 1)
	urgent.Priority = "urgent"
	_, urgentRuns := create(t, s, urgent)
	for key, change := range map[string]func(*store.NewSweep){
		"c": func(n *store.NewSweep) { n.Held = true },
		"d": func(n *store.NewSweep) { n.Site = "elsewhere" },
		"e": func(n *store.NewSweep) { n.BeginAt = &later },
		"f": func(n *store.NewSweep) { n.Dependency = "afterok:1" },
	} {
		n := sweepOf(key, 1)
		change(&n)
		create(t, s, n)
	}
	submit(t, s, batchToken, normalRuns[:1])
	p, err := s.PendingRuns(t.Context(), "lab", 10)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, r := range p.Runs {
		got = append(got, r.ID)
	}
	// Urgent first; within a sweep every setting's first repeat before any second.
	want := []int64{urgentRuns[0], normalRuns[2], normalRuns[1]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pending runs (-want +got):\n%s", diff)
	}
	for _, r := range p.Runs {
		if c := p.Settings[store.SettingKey{SweepID: r.SweepID, SettingHash: r.SettingHash}]; c.Model.Name == "" {
			t.Errorf("run %d has no setting", r.ID)
		}
	}
	if p.Sweeps[normal].Name != "nightly" {
		t.Errorf("sweeps %+v", p.Sweeps)
	}
	now = later
	if p, err = s.PendingRuns(t.Context(), "lab", 2); err != nil || len(p.Runs) != 2 {
		t.Errorf("limit: %d runs, %v", len(p.Runs), err)
	}
	if p, err = s.PendingRuns(t.Context(), "lab", 10); err != nil || len(p.Runs) != 4 {
		t.Errorf("after begin: %d runs, %v", len(p.Runs), err)
	}
}

func TestSetRunStates(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	_, runs := create(t, s, sweepOf("", 2))
	submit(t, s, batchToken, runs)
	change := store.Change{Runs: runs, To: lifecycle.RunRunning, By: lifecycle.ActorTrack, Reason: "step started", Evidence: map[string]string{"step": "1.0"}}
	if n, err := s.SetRunState(t.Context(), change); err != nil || n != 2 {
		t.Fatalf("changed %d, %v", n, err)
	}
	if n, err := s.SetRunState(t.Context(), change); err != nil || n != 0 {
		t.Errorf("again: changed %d, %v", n, err)
	}
	history, err := s.Transitions(t.Context(), lifecycle.EntityRun, "1")
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	for _, h := range history {
		steps = append(steps, h.FromState+">"+h.ToState)
	}
	if diff := cmp.Diff([]string{">pending", "pending>submitted", "submitted>running"}, steps); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if string(history[2].Evidence) != `{"step": "1.0"}` {
		t.Errorf("evidence %s", history[2].Evidence)
	}
	change.To, change.By = lifecycle.RunComplete, lifecycle.ActorSubmit
	if _, err := s.SetRunState(t.Context(), change); !errors.Is(err, store.ErrIllegalTransition) {
		t.Errorf("illegal actor: %v", err)
	}
}

// TestSQLRefuses: what the store never does is refused to everybody else too.
func TestSQLRefuses(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	_, runs := create(t, s, sweepOf("", 2))
	submit(t, s, batchToken, runs)
	inTx(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.InsertAttempts(ctx, []store.NewAttempt{attempt(runs[0], 7, lifecycle.ExitStaging, false)})
		return err
	})
	for name, sql := range map[string]string{
		"illegal transition":    `update run set state = 'skipped', actor = 'admit' where id = 1`,
		"illegal actor":         `update run set state = 'running', actor = 'submit' where id = 1`,
		"unknown state":         `update run set state = 'nonsense', actor = 'track' where id = 1`,
		"illegal creation":      `insert into run (sweep_id, setting_hash, repeat, state, actor, changed_at) select sweep_id, setting_hash, 7, 'complete', 'collect', now() from run limit 1`,
		"batch leap":            `update batch set state = 'ended', actor = 'track'`,
		"task by a stranger":    `update task set state = 'running', actor = 'collect'`,
		"one of many":           `update run set state = case when id = 1 then 'running' else 'complete' end, actor = 'track'`,
		"attempt changed":       `update attempt set valid = true`,
		"attempt deleted":       `delete from attempt`,
		"transition changed":    `update transition set reason = 'other'`,
		"transitions truncated": `truncate transition`,
		"result deleted":        `delete from result`,
		"aggregate changed":     `update aggregate set n_valid = 9`,
		"setting changed":       `update setting set series_hash = setting_hash`,
		"run deleted":           `delete from run`,
		"lost and valid":        `insert into attempt (run_id, cluster, job_id_raw, restart_count, sealed, token, task_index, site, nodes, hardware_class, exit_class, valid, env_verified, reasons, recorded_at) values (1, 'c1', 9, 0, false, '', 0, '', '{}', 'real', 'lost', true, true, '{}', now())`,
	} {
		if _, err := s.Pool().Exec(t.Context(), sql); err == nil {
			t.Errorf("%s: accepted: %s", name, sql)
		}
	}
	if got := stateOf(t, s, runs[0]); got != lifecycle.RunSubmitted {
		t.Errorf("run is %s", got)
	}
}

// TestSQLRefuses_Orphans: no attempt without a run, no result without an attempt.
func TestSQLRefuses_Orphans(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	_, runs := create(t, s, sweepOf("", 1))
	submit(t, s, batchToken, runs)
	known := runs[0]
	for _, sql := range []string{
		`insert into attempt (run_id, cluster, job_id_raw, restart_count, sealed, token, task_index, site, nodes, hardware_class, exit_class, valid, env_verified, reasons, recorded_at)
values (%[1]d, 'c1', 9, 0, false, '', 0, '', '{}', 'real', 'lost', false, false, '{}', now())`,
		`insert into result (attempt_id, run_id, sweep_id, setting_hash, series_hash, repeat, site, cluster, hardware_class, nodes, started_at, ended_at, valid, env_verified, findings, metrics_version, plan_hash, fingerprint_hash)
values (%[1]d, 1, 1, '', '', 0, '', '', 'real', '{}', now(), now(), true, true, '{}', 'v1', '', '')`,
		`insert into result_window (attempt_id, window_index, hardware_class, offered_rate_per_s, start_ns, end_ns, findings)
values (%[1]d, 0, 'real', 1, 0, 1, '{}')`,
	} {
		_, err := s.Pool().Exec(t.Context(), fmt.Sprintf(sql, 999))
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "23503" {
			t.Errorf("%v: %s", err, sql)
		}
		execute(t, s, fmt.Sprintf(sql, known))
		if err := s.Pool().QueryRow(t.Context(), "select max(id) from attempt").Scan(&known); err != nil {
			t.Fatal(err)
		}
	}
}
