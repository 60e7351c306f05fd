package store_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sbench/internal/cost"
	"sbench/internal/pgtest"
	"sbench/internal/store"
)

func setQuota(t *testing.T, s *store.Store, q store.Quota) {
	t.Helper()
	q.SetBy = "root"
	if err := s.SetQuota(t.Context(), &q); err != nil {
		t.Fatal(err)
	}
}

func forecast(key string, hours float64) store.NewSweep {
	n := sweepOf(key, 1)
	n.Account, n.GPUHours = "ml", &hours
	return n
}

// However many submit at once, what is admitted fits.
func TestQuota_Race(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	limit := 10.0
	setQuota(t, s, store.Quota{Account: "ml", Period: "year", GPUHours: &limit})
	const n = 8
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, _, errs[i] = s.CreateSweep(t.Context(), forecast(fmt.Sprintf("race-%d-0000000000000000", i), 4))
		})
	}
	wg.Wait()
	admitted := 0
	for _, err := range errs {
		var over *store.QuotaError
		switch {
		case err == nil:
			admitted++
		case !errors.As(err, &over):
			t.Errorf("got %v", err)
		}
	}
	if admitted != 2 {
		t.Errorf("%d sweeps of 4 GPU-hours fit into 10", admitted)
	}
}

func TestQuota_Binds(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	hours := func(v float64) *float64 { return &v }
	setQuota(t, s, store.Quota{Account: "other", Period: "day", GPUHours: hours(0)})
	setQuota(t, s, store.Quota{Site: "moon", Period: "day", GPUHours: hours(0)})
	setQuota(t, s, store.Quota{UserName: "bob", Period: "day", GPUHours: hours(0)})
	setQuota(t, s, store.Quota{UserName: store.EachUser, Period: "week", GPUHours: hours(5)})
	if err := s.CheckQuota(t.Context(), "lab", "ml", "ada", 5); err != nil {
		t.Errorf("what binds others: %v", err)
	}
	err := s.CheckQuota(t.Context(), "lab", "ml", "ada", 5.5)
	if err == nil || !strings.Contains(err.Error(), "each user may hold 5.0 GPU-hours a week") || !strings.Contains(err.Error(), "0.5 too many") {
		t.Errorf("got %v", err)
	}
	if _, _, err := s.CreateSweep(t.Context(), sweepOf("unknown-00000000000000", 1)); err == nil {
		t.Error("a sweep without a forecast is admitted")
	}
	setQuota(t, s, store.Quota{UserName: store.EachUser, Period: "week"})
	if err := s.CheckQuota(t.Context(), "lab", "ml", "ada", 1e9); err != nil {
		t.Errorf("after it was taken away: %v", err)
	}
}

// held is an allocation of a sweep's batch, with a run of it, as the tracker and
// the collector store them.
func held(t *testing.T, s *store.Store, sweep int64, runs []int64, name string, job int64, start time.Time, elapsed, gpus int64) {
	t.Helper()
	execute(t, s, `
insert into batch (token, site, cluster, uid, user_name, account, dir, attempts_dir, digest, shape, time_limit_s, n_tasks, created_at, state, actor, changed_at)
values ($1, 'lab', 'c1', 1000, 'ada', 'ml', '/spool/' || $1, '/results', 'sha256:00',
        jsonb_build_object('sweep', $2::bigint, 'hardware', 'l4', 'partition', 'l4'), 60, 1, now(), 'intent', 'submit', now())
on conflict do nothing`, name, sweep)
	execute(t, s, `insert into task (token, task_index, time_limit_s, gpus, state, actor, changed_at) values ($1, 0, 60, $2, 'waiting', 'submit', now())
on conflict do nothing`, name, gpus)
	execute(t, s, `update run set state = 'submitted', actor = 'submit', changed_at = now(), batch_token = $1, task_index = 0 where id = any($2) and state = 'pending'`, name, runs)
	execute(t, s, `
insert into allocation (cluster, job_id_raw, submit_time, token, task_index, state, start_time, end_time, elapsed_s, alloc_gpus, alloc_tres, account,
       user_name, last_seen_at, seen_in, ended, steps_read)
values ('c1', $1, $2, $3, 0, 'COMPLETED', $2, $2::timestamptz + make_interval(secs => $4::bigint), $4, $5, 'x', 'ml', 'ada', now(), 'sacct', true, true)`, job, start, name, elapsed, gpus)
}

// What Slurm accounted for takes the place of what was reserved.
func TestQuota_SettledFromAccounting(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	limit := 10.0
	setQuota(t, s, store.Quota{Account: "ml", Period: "month", GPUHours: &limit})
	now := time.Now().UTC()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	n := forecast("settled-00000000000000", 8)
	id, runs := create(t, s, n)
	usage := func() store.QuotaUse {
		t.Helper()
		list, err := s.QuotaUsage(t.Context(), "ada")
		if err != nil || len(list) != 1 {
			t.Fatalf("got %+v, %v", list, err)
		}
		return list[0]
	}
	if u := usage(); u.UsedHours != 0 || u.ReservedHours != 8 || !u.PeriodStart.Equal(month) || !u.PeriodEnd.Equal(month.AddDate(0, 1, 0)) {
		t.Errorf("reserved: %+v", u)
	}
	// Half of it lies in the month before: it is that month's.
	held(t, s, id, runs, batchToken, 11, month.Add(-time.Hour), 7200, 2)
	if u := usage(); u.UsedHours != 2 || u.ReservedHours != 8 {
		t.Errorf("running: %+v", u)
	}
	execute(t, s, `update run set state = 'failed', actor = 'track', changed_at = now() where id = any($1)`, runs)
	if u := usage(); u.UsedHours != 2 || u.ReservedHours != 0 {
		t.Errorf("ended: %+v", u)
	}
	if err := s.CheckQuota(t.Context(), "lab", "ml", "ada", 8); err != nil {
		t.Error(err)
	}
	var over *store.QuotaError
	if err := s.CheckQuota(t.Context(), "lab", "ml", "ada", 8.5); !errors.As(err, &over) {
		t.Errorf("got %v", err)
	}
}

// Each start of a requeued job is counted once, and its steps with it.
func TestEachHeld(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	id, runs := create(t, s, forecast("held-0000000000000000", 8))
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	held(t, s, id, runs, batchToken, 11, start, 100, 2)
	held(t, s, id, runs, batchToken, 11, start.Add(10*time.Minute), 300, 2)
	for k, at := range []time.Time{start.Add(10 * time.Second), start.Add(11 * time.Minute)} {
		execute(t, s, `
insert into step (cluster, job_id_raw, start_time, step_id, name, run_id, state, elapsed_s, exit_code, exit_signal, nodes)
values ('c1', 11, $1, '0', 'sb-run', $2, 'COMPLETED', $3, 0, 0, '{n1}')`, at, runs[0], 40*(k+1))
	}
	var got []cost.Allocation
	period := cost.Period{Start: start.Add(-time.Hour), End: start.Add(time.Hour)}
	if err := s.EachHeld(t.Context(), period, start.Add(time.Hour), func(a cost.Allocation) { got = append(got, a) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 {
		t.Fatalf("got %+v", got)
	}
	for k, a := range got {
		if a.Account != "ml" || a.Partition != "l4" || a.Hardware != "l4" || a.Class != "emulated" || a.GPUs != 2 || a.Unknown || a.Open || len(a.Runs) != 1 ||
			len(a.Runs[0].Steps) != 1 || a.Runs[0].Steps[0].Seconds != int64(40*(k+1)) || a.Runs[0].User != "ada" || a.Runs[0].Sweep != id {
			t.Errorf("start %d: %+v", k, a)
		}
	}
	ledger := cost.NewLedger(period, []cost.Dimension{cost.BySweep}, cost.NewBook(nil), nil)
	if err := s.EachHeld(t.Context(), period, start.Add(time.Hour), ledger.Add); err != nil {
		t.Fatal(err)
	}
	if r := ledger.Report().Rows; len(r) != 1 || r[0].Billable != 800 || r[0].Allocations != 2 || r[0].Lost != 800 {
		t.Errorf("got %+v", r)
	}
	// A cluster that accounts for no GPUs, or has lost the record: unknown, not 0.
	execute(t, s, `update allocation set alloc_gpus = 0 where submit_time = $1`, start)
	ledger = cost.NewLedger(period, []cost.Dimension{cost.BySweep}, cost.NewBook(nil), nil)
	if err := s.EachHeld(t.Context(), period, start.Add(time.Hour), ledger.Add); err != nil {
		t.Fatal(err)
	}
	if r := ledger.Report().Rows; len(r) != 1 || r[0].Unknown != 1 || r[0].Complete() || r[0].Efficiency() != nil {
		t.Errorf("got %+v", r)
	}
}

// The database itself refuses to change what was recorded.
func TestRecords_AppendOnly(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	r := store.Rate{Site: "lab", MicrosPerGPUHour: 5, ValidFrom: time.Now().UTC(), SetBy: "root"}
	if err := s.WithTx(t.Context(), func(tx *store.Tx) error { return tx.AddRate(t.Context(), &r) }); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"update rate set micros_per_gpu_hour = 1", "delete from rate", "update audit set user_name = 'bob'", "delete from audit", "truncate audit cascade", "update quota set gpu_hours = 1", "delete from token"} {
		if _, err := s.Pool().Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	for i, want := range []bool{true, false} {
		if got, err := s.Once(t.Context(), "d", time.Now().Add(time.Minute)); got != want || err != nil {
			t.Errorf("time %d: %v, %v", i, got, err)
		}
	}
	late := s.WithClock(func() time.Time { return time.Now().Add(time.Hour) })
	if _, err := late.Once(t.Context(), "e", time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if first, err := late.Once(t.Context(), "d", time.Now().Add(2*time.Hour)); !first || err != nil {
		t.Errorf("what expired is kept: %v, %v", first, err)
	}
}
