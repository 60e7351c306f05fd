package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/plan"
	"sbench/internal/setting"
	"sbench/internal/store"
)

// checkpoints returns a sweep whose settings load these checkpoints.
func checkpoints(key string, list ...setting.Checkpoint) store.NewSweep {
	n := sweepOf(key, make([]int, len(list))...)
	for i, c := range list {
		n.Settings[i].Repeats = 4
		n.Settings[i].Setting.Model.Checkpoint = c
	}
	return n
}

// TestLocality: a start of a task is warm where the node's last run of another job
// was of the same checkpoint; settings without a checkpoint do not count, and the
// later runs of a task are no starts.
func TestLocality(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	a, b := setting.Checkpoint{Digest: "sha256:a"}, setting.Checkpoint{Digest: "unpinned", Path: "models/b"}
	id, runs := create(t, s, checkpoints("locality", a, b, setting.Checkpoint{}))
	submit(t, s, batchToken, runs)
	base := time.Now().UTC().Truncate(time.Second).Add(-10 * time.Hour)
	hour := 0
	put := func(run, job int64, node string) {
		at := attempt(run, job, lifecycle.ExitMeasured, true)
		at.Nodes = []string{node}
		at.StartedAt = base.Add(time.Duration(hour) * time.Hour)
		at.EndedAt = at.StartedAt.Add(30 * time.Minute)
		hour++
		inTx(t, s, func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.InsertAttempts(ctx, []store.NewAttempt{at})
			return err
		})
	}
	// runs 0-3 are of checkpoint a, 4-7 of b, 8-11 of none.
	put(runs[0], 1, "n1") // cold: nothing before
	put(runs[1], 1, "n1") // the same job: no start
	put(runs[2], 2, "n1") // warm
	put(runs[4], 3, "n1") // cold: a was before
	put(runs[5], 4, "n2") // cold: nothing before
	put(runs[6], 5, "n2") // warm
	put(runs[8], 6, "n2") // loads nothing
	put(runs[7], 7, "n2") // cold: what was before it loaded nothing
	want := store.Locality{Site: "lab", Starts: 6, Warm: 2}
	got, err := s.LocalityOf(t.Context(), id)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	since, err := s.LocalitySince(t.Context(), base)
	if diff := cmp.Diff([]store.Locality{want}, since); diff != "" || err != nil {
		t.Error(err, diff)
	}
	since, err = s.LocalitySince(t.Context(), base.Add(time.Hour)) // in the middle of the first task
	if diff := cmp.Diff([]store.Locality{{Site: "lab", Starts: 5, Warm: 2}}, since); diff != "" || err != nil {
		t.Error(err, diff)
	}
	other, _ := create(t, s, checkpoints("other", a))
	if got, err := s.LocalityOf(t.Context(), other); got != (store.Locality{}) || err != nil {
		t.Errorf("%+v, %v: a sweep that has not begun", got, err)
	}
}

// TestColdStarts: the database names checkpoints as the planner does, and knows
// which an engine has served, and how many tasks are about to start one.
func TestColdStarts(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	list := []setting.Checkpoint{{Digest: "sha256:a", Path: "x"}, {Digest: setting.Unpinned, Path: "models/b"}, {Path: "models/c"}, {}}
	n := checkpoints("cold", list...)
	id, runs := create(t, s, n)
	var names, stored []string
	for i := range n.Settings {
		names = append(names, plan.Checkpoint(&n.Settings[i].Setting))
	}
	err := s.Pool().QueryRow(t.Context(), `select array_agg(coalesce(checkpoint, '') order by ordinal) from sweep_setting where sweep_id = $1`, id).Scan(&stored)
	// What loads no file has no name here, and the planner knows it by its own.
	for i, name := range names {
		if plan.LoadsFiles(name) != (stored[i] != "") {
			t.Errorf("%q loads files: %v", name, plan.LoadsFiles(name))
		}
	}
	if diff := cmp.Diff(append(append([]string{}, names[:3]...), ""), stored); diff != "" || err != nil {
		t.Fatal(err, diff)
	}
	check := func(want map[string]int) {
		t.Helper()
		got, err := s.ColdStarts(t.Context(), "lab", names[:3])
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Error(err, diff)
		}
	}
	check(map[string]int{names[0]: 0, names[1]: 0, names[2]: 0})
	submit(t, s, batchToken, runs[:2])
	check(map[string]int{names[0]: 1, names[1]: 0, names[2]: 0})
	inTx(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.InsertAttempts(ctx, []store.NewAttempt{
			attempt(runs[0], 1, lifecycle.ExitMeasured, true), attempt(runs[1], 1, lifecycle.ExitInvalid, false),
			attempt(runs[4], 2, lifecycle.ExitStaging, false),
		})
		return err
	})
	check(map[string]int{names[1]: 0, names[2]: 0})
	if got, err := s.ColdStarts(t.Context(), "elsewhere", names[:1]); got[names[0]] != 0 || len(got) != 1 || err != nil {
		t.Errorf("%v, %v: another site has not served it", got, err)
	}
}
