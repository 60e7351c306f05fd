package store_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/store"
)

func TestSweepViews(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	first, runs := create(t, s, sweepOf("a", 2, 1))
	other := sweepOf("b", 1)
	other.UserName, other.UID, other.Account, other.Held = "bob", 1001, "physics", true
	second, _ := create(t, s, other)
	submit(t, s, batchToken, runs[:1])

	view, err := s.SweepView(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if view.NRuns != 3 || view.RunsByState["pending"] != 2 || view.RunsByState["submitted"] != 1 || view.RunsHeld != 0 || view.State != store.SweepActive {
		t.Errorf("got %+v", view)
	}
	if _, err := s.SweepView(t.Context(), 99); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("unknown sweep: %v", err)
	}
	list := func(f store.SweepFilter) []int64 {
		t.Helper()
		f.EndedSince = time.Now()
		views, err := s.SweepViews(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		ids := []int64{}
		for _, v := range views {
			ids = append(ids, v.ID)
		}
		return ids
	}
	for name, tc := range map[string]struct {
		filter store.SweepFilter
		want   []int64
	}{
		"all":     {store.SweepFilter{}, []int64{second, first}},
		"user":    {store.SweepFilter{UserNames: []string{"ada"}}, []int64{first}},
		"account": {store.SweepFilter{Accounts: []string{"physics", "x"}}, []int64{second}},
		"ids":     {store.SweepFilter{IDs: []int64{second}}, []int64{second}},
		"site":    {store.SweepFilter{Site: "nowhere"}, []int64{}},
		"limit":   {store.SweepFilter{Limit: 1}, []int64{second}},
	} {
		if diff := cmp.Diff(tc.want, list(tc.filter)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestSettingViewsAndSpecs(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	n := sweepOf("a", 2, 1)
	id, runs := create(t, s, n)
	again, _ := create(t, s, sweepOf("b", 1))
	execute(t, s, `update run set state = 'dead', actor = 'submit', reason = 'no such node', changed_at = now() where id = any($1)`, runs[:2])
	views, err := s.SettingViews(t.Context(), id)
	if err != nil || len(views) != 2 {
		t.Fatalf("got %v, %v", views, err)
	}
	if v := views[0]; v.SettingHash != n.Settings[0].Hash || v.Repeats != 2 || v.RunsByState["dead"] != 2 || v.Setting.Model.Name != "m0" {
		t.Errorf("got %+v", v)
	}
	reasons, err := s.SettingReasons(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]store.SettingReason{{SettingHash: n.Settings[0].Hash, Reason: "no such node", N: 2}}, reasons); diff != "" {
		t.Error(diff)
	}
	specs, err := s.SettingSpecs(t.Context(), n.Settings[0].Hash[:8])
	if err != nil || len(specs) != 1 {
		t.Fatalf("got %v, %v", specs, err)
	}
	if diff := cmp.Diff([]int64{id, again}, specs[0].Sweeps); diff != "" || string(specs[0].CanonicalSpec) != string(n.Settings[0].CanonicalSpec) {
		t.Errorf("%s%s", diff, specs[0].CanonicalSpec)
	}
	dead, err := s.DeadRuns(t.Context(), 0, 10)
	if err != nil || len(dead) != 2 || dead[0].Reason != "no such node" {
		t.Errorf("got %v, %v", dead, err)
	}
	if of, err := s.RunsOfSetting(t.Context(), n.Settings[0].Hash, 2); err != nil || len(of) != 2 || of[0].SweepID != again {
		t.Errorf("got %v, %v", of, err)
	}
	if of, err := s.RunsOfSweep(t.Context(), id, []string{"pending"}); err != nil || len(of) != 1 {
		t.Errorf("got %v, %v", of, err)
	}
}

func TestPlacesAttemptsHistory(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	id, runs := create(t, s, sweepOf("a", 2))
	if places, err := s.Places(t.Context(), runs...); err != nil || len(places) != 0 {
		t.Errorf("before any batch: %v, %v", places, err)
	}
	submit(t, s, batchToken, runs[:1])
	execute(t, s, `insert into allocation (cluster, job_id_raw, submit_time, array_job_id, restart_count, token, task_index, state, nodes, last_seen_at)
values ('c1', 71, now(), 70, 0, $1, 0, 'RUNNING', '{n1}', now())`, batchToken)
	places, err := s.Places(t.Context(), runs...)
	if err != nil || len(places) != 1 {
		t.Fatalf("got %v, %v", places, err)
	}
	if p := places[0]; p.RunID != runs[0] || *p.ArrayJobID != 70 || *p.JobIDRaw != 71 || p.AttemptsDir != "/results" || *p.SlurmState != "RUNNING" {
		t.Errorf("got %+v", p)
	}
	judge(t, s, lifecycle.ActorCollect, attempt(runs[0], 71, lifecycle.ExitDriftArtefact, false))
	attempts, err := s.AttemptViews(t.Context(), runs...)
	if err != nil || len(attempts) != 1 {
		t.Fatalf("got %v, %v", attempts, err)
	}
	if a := attempts[0]; a.RunID != runs[0] || *a.ArrayJobID != 70 || a.TaskIndex != 0 || a.ExitClass != lifecycle.ExitDriftArtefact || a.Valid {
		t.Errorf("got %+v", a)
	}
	history, err := s.RunHistory(t.Context(), runs[0])
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, h := range history {
		got = append(got, string(h.Entity)+" "+h.FromState+">"+h.ToState)
	}
	if diff := cmp.Diff([]string{"run >pending", "batch >intent", "task >waiting", "run pending>submitted", "task waiting>ended", "run submitted>dead"}, got); diff != "" {
		t.Error(diff)
	}
	if all, err := s.SweepHistory(t.Context(), id); err != nil || len(all) != 4 {
		t.Errorf("got %v, %v", all, err)
	}
	counts, err := s.RunCounts(t.Context())
	if diff := cmp.Diff([]store.StateCount{{"lab", "dead", 1}, {"lab", "pending", 1}}, counts); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

func TestMarks(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	n := sweepOf("a", 2, 1)
	id, runs := create(t, s, n)
	other := sweepOf("b", 1)
	other.UserName, other.UID = "bob", 1001
	foreign, foreignRuns := create(t, s, other)
	submit(t, s, batchToken, runs[:1])
	ada := 1000
	do := func(want store.Marked, act func(ctx context.Context) (store.Marked, error)) {
		t.Helper()
		got, err := act(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	do(store.Marked{Sweeps: []int64{id}, Runs: 3}, func(ctx context.Context) (store.Marked, error) {
		return s.Hold(ctx, store.Scope{Sweeps: []int64{id}})
	})
	do(store.Marked{Sweeps: []int64{id}, Runs: 2}, func(ctx context.Context) (store.Marked, error) {
		return s.Release(ctx, store.Scope{Sweeps: []int64{id}, Settings: []string{n.Settings[0].Hash}})
	})
	// The setting is in both sweeps; the uid keeps the other's out.
	do(store.Marked{Sweeps: []int64{id}, Runs: 2}, func(ctx context.Context) (store.Marked, error) {
		return s.Cancel(ctx, store.Scope{Settings: []string{n.Settings[0].Hash}, UID: &ada}, "ada", "wrong model")
	})
	if a, b, c, d := stateOf(t, s, runs[0]), stateOf(t, s, runs[1]), stateOf(t, s, runs[2]), stateOf(t, s, foreignRuns[0]); a != "submitted" || b != "cancelled" || c != "pending" || d != "pending" {
		t.Errorf("states %s %s %s %s", a, b, c, d)
	}
	do(store.Marked{Sweeps: []int64{id}, Runs: 1, Unchanged: 1}, func(ctx context.Context) (store.Marked, error) {
		return s.Requeue(ctx, store.Scope{Runs: []int64{runs[0], runs[1]}}, "ada", "")
	})
	do(store.Marked{Sweeps: []int64{foreign}, Runs: 1}, func(ctx context.Context) (store.Marked, error) {
		return s.Cancel(ctx, store.Scope{All: true, UserName: "bob"}, "root", "")
	})
	do(store.Marked{}, func(ctx context.Context) (store.Marked, error) {
		return s.Cancel(ctx, store.Scope{All: true, Site: "nowhere"}, "root", "")
	})
	do(store.Marked{}, func(ctx context.Context) (store.Marked, error) {
		return s.Cancel(ctx, store.Scope{}, "root", "")
	})
	history, err := s.Transitions(t.Context(), lifecycle.EntityRun, "2")
	if err != nil {
		t.Fatal(err)
	}
	if last := history[len(history)-2]; last.Reason != "cancelled by ada: wrong model" || string(last.Evidence) != `{"user": "ada"}` {
		t.Errorf("got %+v", last)
	}
}

func TestSiteModes(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	if modes, err := s.SiteModes(t.Context()); err != nil || len(modes) != 0 {
		t.Errorf("got %v, %v", modes, err)
	}
	for _, mode := range []string{store.SitePaused, store.SiteDrain} {
		if _, err := s.SetSiteMode(t.Context(), store.SiteMode{Site: "lab", Mode: mode, Reason: "power cut", ChangedBy: "root"}); err != nil {
			t.Fatal(err)
		}
	}
	modes, err := s.SiteModes(t.Context())
	if err != nil || len(modes) != 1 || modes["lab"].Mode != store.SiteDrain || modes["lab"].ChangedAt.IsZero() {
		t.Errorf("got %v, %v", modes, err)
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		&pgconn.PgError{Code: "57P01"}: true, &pgconn.PgError{Code: "53300"}: true, &pgconn.PgError{Code: "23505"}: false, &pgconn.PgError{}: false,
		io.ErrUnexpectedEOF: true, &net.OpError{Op: "dial", Err: io.EOF}: true, store.ErrNotFound: false, io.ErrClosedPipe: false,
		&os.PathError{Op: "open", Path: "x", Err: syscall.EACCES}: false, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}: true,
	} {
		if got := store.Unavailable(err); got != want {
			t.Errorf("%v (%T): got %v", err, err, got)
		}
	}
	if _, err := store.Open(t.Context(), "host=/nonexistent dbname=x"); !store.Unavailable(err) {
		t.Errorf("no server: %v", err)
	}
}
