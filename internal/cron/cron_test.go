package cron

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/setting"
	"sbench/internal/store"
)

// world is a database with a clock, and an admission that stores one-run sweeps.
type world struct {
	t     *testing.T
	clock *clockwork.FakeClock
	store *store.Store

	mu       sync.Mutex
	owner    auth.Identity
	identify error
	refuse   error
	admitted []api.SubmitRequest
}

func newWorld(t *testing.T, now time.Time) *world {
	t.Helper()
	clock := clockwork.NewFakeClockAt(now)
	return &world{t: t, clock: clock, store: pgtest.New(t).WithClock(clock.Now), owner: auth.Identity{UID: 1000, User: "ada"}}
}

func (w *world) service() *Service {
	return New(Config{
		Store: w.store, Clock: w.clock,
		Identify: func(context.Context, int) (auth.Identity, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.owner, w.identify
		},
		Admit: w.admit,
	})
}

func (w *world) admit(ctx context.Context, who auth.Identity, req api.SubmitRequest) (api.SubmitResponse, error) {
	w.mu.Lock()
	refuse := w.refuse
	w.mu.Unlock()
	if refuse != nil {
		return api.SubmitResponse{}, refuse
	}
	s := setting.Default()
	s.Workload.Seed = 7
	s.Normalize()
	id, created, err := w.store.CreateSweep(ctx, store.NewSweep{
		Name: "nightly", UserName: who.User, UID: who.UID, Site: "lab", HardwareClass: "emulated", IdempotencyKey: req.IdempotencyKey, File: req.File,
		Settings: []store.NewSetting{{Hash: s.Hash(), SeriesHash: s.SeriesHash(), CanonicalSpec: s.Canonical(), Setting: s, Repeats: 1}},
	})
	if err != nil {
		return api.SubmitResponse{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if created {
		w.admitted = append(w.admitted, req)
	}
	return api.SubmitResponse{SweepID: id, Repeated: !created}, nil
}

func (w *world) add(change func(*store.NewCron)) int64 {
	w.t.Helper()
	n := store.NewCron{
		Name: "nightly", UserName: "ada", UID: 1000, Schedule: "0 22 * * *", TimeZone: "UTC", Overlap: "skip", CatchUp: "last", AtWindowEnd: "continue",
		Site: "lab", FileName: "n.yaml", File: "sweep: v1\n", FileDigest: "sha256:00", SettingsDigest: "sha256:11", NSettings: 1, NRuns: 1,
		Options: json.RawMessage(`{"priority":"bulk"}`),
	}
	if change != nil {
		change(&n)
	}
	id, err := w.store.AddCron(w.t.Context(), n)
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

func (w *world) turn(s *Service) {
	w.t.Helper()
	if err := s.Turn(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// finish ends every sweep that is under way.
func (w *world) finish() {
	w.t.Helper()
	if _, err := w.store.Cancel(w.t.Context(), store.Scope{All: true}, "test", ""); err != nil {
		w.t.Fatal(err)
	}
	w.exec(`update sweep set state = 'complete', ended_at = $1 where state = 'active'`, w.clock.Now())
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	err := w.store.WithTx(w.t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(w.t.Context(), sql, args...)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// firings are the firings of a schedule, oldest first, as "due state".
func (w *world) firings(id int64) []string {
	w.t.Helper()
	list, err := w.store.Firings(w.t.Context(), id, 10_000)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, f := range slices.Backward(list) {
		out = append(out, f.Due.UTC().Format("01-02T15:04 ")+f.State)
	}
	return out
}

func (w *world) want(id int64, want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.firings(id)); diff != "" {
		w.t.Errorf("firings (-want +got):\n%s", diff)
	}
}

var evening = time.Date(2026, 11, 29, 21, 59, 0, 0, time.UTC)

func TestService_FiresWhenDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, evening)
	id := w.add(nil)
	s := w.service()
	w.turn(s)
	w.want(id)
	w.clock.Advance(time.Minute)
	w.turn(s)
	w.turn(s)
	w.want(id, "11-29T22:00 submitted")
	got := w.admitted[0]
	if got.File != "sweep: v1\n" || got.SettingsDigest != "sha256:11" || got.Options.Priority != "bulk" || !strings.HasPrefix(got.IdempotencyKey, "cron-") {
		t.Errorf("admitted %+v", got)
	}
	w.finish()
	w.clock.Advance(24 * time.Hour)
	w.turn(s)
	w.want(id, "11-29T22:00 submitted", "11-30T22:00 submitted")
}

func TestService_Overlap(t *testing.T) {
	t.Parallel()
	for overlap, want := range map[string][]string{
		"skip":       {"11-29T22:00 submitted", "11-30T22:00 skipped", "12-01T22:00 skipped", "12-02T22:00 submitted"},
		"queue":      {"11-29T22:00 submitted", "11-30T22:00 submitted", "12-01T22:00 skipped", "12-02T22:00 waiting"},
		"cancel-old": {"11-29T22:00 submitted", "11-30T22:00 submitted", "12-01T22:00 submitted", "12-02T22:00 submitted"},
	} {
		t.Run(overlap, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, evening)
			id := w.add(func(n *store.NewCron) { n.Overlap = overlap })
			s := w.service()
			for range 3 {
				w.clock.Advance(time.Minute)
				w.turn(s)
				w.clock.Advance(24*time.Hour - time.Minute)
			}
			if overlap == "cancel-old" {
				sweep, err := w.store.RunsOfSweep(t.Context(), 1, nil)
				if err != nil || sweep[0].State != lifecycle.RunCancelled {
					t.Errorf("the old sweep's run is %v, %v", sweep[0].State, err)
				}
			} else {
				w.finish()
				w.turn(s)
			}
			w.clock.Advance(time.Minute)
			w.turn(s)
			w.want(id, want...)
		})
	}
}

func TestService_CatchUp(t *testing.T) {
	t.Parallel()
	down := []string{"11-29T22:00 ", "11-30T22:00 ", "12-01T22:00 "}
	for policy, want := range map[string][]string{
		"none": {"skipped", "skipped", "skipped"},
		"last": {"skipped", "skipped", "submitted"},
		"all":  {"submitted", "waiting", "waiting"},
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, evening)
			id := w.add(func(n *store.NewCron) { n.CatchUp, n.Overlap = policy, "queue" })
			w.turn(w.service())
			w.clock.Advance(3 * 24 * time.Hour) // nobody acts
			w.clock.Advance(-12 * time.Hour)
			w.turn(w.service())
			var all []string
			for i := range down {
				all = append(all, down[i]+want[i])
			}
			w.want(id, all...)
		})
	}
}

// A schedule that came due more often than anybody waits for makes up for the
// latest due times only.
func TestService_LongDowntime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, evening)
	id := w.add(func(n *store.NewCron) { n.Schedule = "*/10 * * * *" })
	w.turn(w.service())
	w.clock.Advance(30 * 24 * time.Hour)
	w.turn(w.service())
	got := w.firings(id)
	if len(got) != 100 || got[99] != "12-29T21:50 submitted" {
		t.Errorf("%d firings, the last is %s", len(got), got[len(got)-1])
	}
}

func TestService_PauseResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, evening)
	id := w.add(nil)
	s := w.service()
	if err := w.store.PauseCron(t.Context(), id, "ada"); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(24 * time.Hour)
	w.turn(s)
	w.want(id)
	if err := w.store.ResumeCron(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.turn(s)
	w.want(id) // what passed meanwhile is not made up for
	w.clock.Advance(2 * time.Minute)
	w.turn(s)
	w.want(id, "11-30T22:00 submitted")
	if err := w.store.RemoveCron(t.Context(), id, "ada"); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(24 * time.Hour)
	w.turn(s)
	w.want(id, "11-30T22:00 submitted")
	if _, err := w.store.Cron(t.Context(), id); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("removed: %v", err)
	}
	w.add(nil) // the name is free again
}

func TestService_JitterAndRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, evening)
	id := w.add(func(n *store.NewCron) { n.Jitter = 30 * time.Minute })
	s := w.service()
	w.clock.Advance(time.Minute)
	w.turn(s)
	list, err := w.store.Firings(t.Context(), id, 1)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	delay := list[0].FireAt.Sub(list[0].Due)
	if delay <= 0 || delay >= 30*time.Minute {
		t.Fatalf("delay %v", delay)
	}
	w.clock.Advance(delay - time.Second)
	w.turn(s)
	w.want(id, "11-29T22:00 waiting")
	w.clock.Advance(time.Second)
	w.turn(s)
	w.want(id, "11-29T22:00 submitted")
	w.finish()
	c, err := w.store.Cron(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.FireCron(t.Context(), c, 0, "ada"); err != nil {
		t.Fatal(err)
	}
	w.turn(s) // what is asked for is not delayed
	if got := w.firings(id); len(got) != 2 || !strings.HasSuffix(got[1], "submitted") {
		t.Errorf("firings %v", got)
	}
}

func TestService_Window(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		atEnd string
		after time.Duration // when the sweep ends
		met   bool
	}{
		"met": {"continue", 7 * time.Hour, true}, "missed": {"continue", 9 * time.Hour, false}, "cancelled": {"cancel", 9 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, evening)
			id := w.add(func(n *store.NewCron) { n.Window, n.AtWindowEnd = 8*time.Hour, tc.atEnd })
			s := w.service()
			w.clock.Advance(time.Minute)
			w.turn(s)
			w.clock.Advance(tc.after)
			w.turn(s)
			runs, err := w.store.RunsOfSweep(t.Context(), 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := runs[0].State == lifecycle.RunCancelled, tc.atEnd == "cancel"; got != want {
				t.Errorf("run is %s", runs[0].State)
			}
			w.finish()
			w.turn(s)
			list, err := w.store.Firings(t.Context(), id, 1)
			if err != nil || list[0].WindowMet == nil || list[0].EndedAt == nil {
				t.Fatal(list, err)
			}
			if *list[0].WindowMet != tc.met {
				t.Errorf("window met: %v", *list[0].WindowMet)
			}
		})
	}
}

// TestService_OwnerIsCheckedAgain: an owner who left, or whose uid is another's
// now, spends nothing; an outage is waited for.
func TestService_OwnerIsCheckedAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		owner    auth.Identity
		identify error
		refuse   error
		want     string
	}{
		"gone":          {identify: auth.ErrUnknownUser, want: "11-29T22:00 refused"},
		"another":       {owner: auth.Identity{UID: 1000, User: "eve"}, want: "11-29T22:00 refused"},
		"outage":        {identify: context.DeadlineExceeded, want: "11-29T22:00 waiting"},
		"quota":         {owner: auth.Identity{UID: 1000, User: "ada"}, refuse: &api.Problem{Code: api.CodeRefused, Message: "over quota"}, want: "11-29T22:00 refused"},
		"database down": {owner: auth.Identity{UID: 1000, User: "ada"}, refuse: &api.Problem{Code: api.CodeUnavailable, Message: "later"}, want: "11-29T22:00 waiting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, evening)
			id := w.add(nil)
			w.owner, w.identify, w.refuse = tc.owner, tc.identify, tc.refuse
			s := w.service()
			w.clock.Advance(time.Minute)
			w.turn(s)
			w.want(id, tc.want)
			if len(w.admitted) > 0 {
				t.Errorf("admitted %v", w.admitted)
			}
			w.owner, w.identify, w.refuse = auth.Identity{UID: 1000, User: "ada"}, nil, nil
			w.clock.Advance(time.Hour)
			w.turn(s)
			w.want(id, strings.Replace(tc.want, "waiting", "submitted", 1))
		})
	}
}

// TestService_GivesUp: what does not answer for hours is refused in the end.
func TestService_GivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, evening)
	id := w.add(nil)
	w.refuse = &api.Problem{Code: api.CodeUnavailable, Message: "the site's file system does not answer"}
	s := w.service()
	w.clock.Advance(time.Minute)
	w.turn(s)
	w.clock.Advance(patience)
	w.turn(s)
	w.want(id, "11-29T22:00 refused")
}

// TestService_KilledBetween: a daemon that is killed after the admission and
// before it wrote that down does not submit again, even if the schedule was
// changed meanwhile.
func TestService_KilledBetween(t *testing.T) {
	t.Parallel()
	w := newWorld(t, evening)
	id := w.add(nil)
	s := w.service()
	w.clock.Advance(time.Minute)
	admit := s.Admit
	ctx, kill := context.WithCancel(t.Context())
	s.Admit = func(ctx context.Context, who auth.Identity, req api.SubmitRequest) (api.SubmitResponse, error) {
		resp, err := admit(ctx, who, req)
		kill()
		return resp, err
	}
	if err := s.Turn(ctx); err == nil {
		t.Fatal("the turn was not cut off")
	}
	w.want(id, "11-29T22:00 waiting")
	w.exec(`update cron set file = 'sweep: v1 # other', version = version + 1`)
	w.turn(w.service())
	w.want(id, "11-29T22:00 submitted")
	if len(w.admitted) != 1 {
		t.Errorf("%d sweeps of one due time", len(w.admitted))
	}
}

// TestService_OnceOverTheYear: two daemons that both believe to act, one of which
// is started anew every few days, submit every night of a year exactly once, over
// both changes of the clock.
func TestService_OnceOverTheYear(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 27, 0, 0, 0, 0, time.UTC)
	days := 6
	w := newWorld(t, start)
	id := w.add(func(n *store.NewCron) { n.Schedule, n.TimeZone, n.Overlap = "30 2 * * *", "Europe/Berlin", "queue" })
	daemons := []*Service{w.service(), w.service()}
	pass := func(days int) {
		for step := range days * 2 {
			w.clock.Advance(12 * time.Hour)
			if step%5 == 0 {
				daemons[1] = w.service()
			}
			var wg sync.WaitGroup
			for _, d := range daemons {
				wg.Go(func() {
					if err := d.Turn(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			w.exec(`update sweep set state = 'complete', ended_at = $1 where state = 'active'`, w.clock.Now())
		}
	}
	pass(days) // over 29 March
	autumn := time.Date(2026, 10, 23, 0, 0, 0, 0, time.UTC)
	w.exec(`update cron set decided_until = $1`, autumn)
	w.clock.Advance(autumn.Sub(w.clock.Now()))
	pass(days) // over 25 October
	got := w.firings(id)
	if len(got) != 2*days || len(w.admitted) != 2*days {
		t.Errorf("%d firings and %d sweeps in %d nights:\n%s", len(got), len(w.admitted), 2*days, strings.Join(got, "\n"))
	}
	for _, due := range []string{"03-28T01:30 submitted", "03-29T01:00 submitted", "03-30T00:30 submitted", "10-25T00:30 submitted", "10-26T01:30 submitted"} {
		if !slices.Contains(got, due) {
			t.Errorf("%s is missing:\n%s", due, strings.Join(got, "\n"))
		}
	}
}

// TestService_Run: the timers of gocron wake the service when a schedule is due,
// in virtual time.
func TestService_Run(t *testing.T) {
	t.Parallel()
	w := newWorld(t, evening)
	id := w.add(nil)
	s := w.service()
	s.Interval = time.Hour * 24 * 365 // only the schedule's own timer may wake it
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var ended atomic.Bool
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx); ended.Store(true) }()
	// The look at the start, the interval's timer and the schedule's.
	if err := w.clock.BlockUntilContext(ctx, 2); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Minute)
	deadline := time.Now().Add(20 * time.Second)
	for len(w.firings(id)) == 0 || !strings.HasSuffix(w.firings(id)[0], "submitted") {
		if time.Now().After(deadline) || ended.Load() {
			t.Fatalf("nothing was fired: %v", w.firings(id))
		}
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

// TestService_Fenced: a daemon that was deposed decides nothing.
func TestService_Fenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, evening)
	id := w.add(nil)
	term, err := w.store.Elect(t.Context(), "one", time.Minute)
	if err != nil || term == nil {
		t.Fatal(term, err)
	}
	old := w.service()
	old.Store = w.store.Fenced(term.Epoch)
	term.Release()
	next, err := w.store.Elect(t.Context(), "two", time.Minute)
	if err != nil || next == nil {
		t.Fatal(next, err)
	}
	defer next.Release()
	w.clock.Advance(time.Minute)
	if err := old.Turn(t.Context()); !errors.Is(err, store.ErrFenced) {
		t.Errorf("the deposed daemon: %v", err)
	}
	w.want(id)
	now := w.service()
	now.Store = w.store.Fenced(next.Epoch)
	w.turn(now)
	w.want(id, "11-29T22:00 submitted")
}

func TestKeyOf(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for i := range int64(3) {
		for d := range 3 {
			key := keyOf(store.CronFiring{CronID: i, Due: evening.Add(time.Duration(d) * time.Microsecond)})
			if seen[key] || len(key) < 16 || len(key) > 64 {
				t.Errorf("key %s", key)
			}
			seen[key] = true
		}
	}
}
