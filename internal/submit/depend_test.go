package submit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"sbench/internal/slurmtest"
	"sbench/internal/store"
)

// execute does what other services would have done.
func (w *world) directly(sql string, args ...any) {
	w.Helper()
	conn, err := pgx.Connect(w.Context(), w.dsn)
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close(w.Context())
	if _, err := conn.Exec(w.Context(), sql, args...); err != nil {
		w.Fatal(err)
	}
}

// depends makes a sweep wait for another.
func (w *world) depends(sweep int64, on string) {
	w.Helper()
	w.directly(`update sweep set dependency = $2, dependency_state = 'waiting' where id = $1`, sweep, on)
}

func (w *world) view(sweep int64) store.SweepView {
	w.Helper()
	v, err := w.store.SweepView(w.Context(), sweep)
	if err != nil {
		w.Fatal(err)
	}
	return v
}

// end ends a sweep as the collector does when its settings are summed up.
func (w *world) end(sweep int64, state string) {
	w.Helper()
	w.directly(`update sweep set state = $2, ended_at = now() where id = $1`, sweep, state)
}

func TestTurn_Dependency(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	first := w.sweep("l4", 1, 1, "")
	if _, err := w.store.Hold(t.Context(), store.Scope{Sweeps: []int64{first}}); err != nil {
		t.Fatal(err)
	}
	waits := map[string]int64{}
	for _, on := range []string{"after:1", "afterany:1", "afterok:1", "afternotok:1", "singleton", "afterok:1?afternotok:1"} {
		waits[on] = w.sweep("l4", 1, 1, "")
		w.depends(waits[on], on)
	}
	expect := func(when string, want map[string]string) {
		t.Helper()
		w.mustTurn()
		got := map[string]string{}
		for on, id := range waits {
			for state := range w.states(id) {
				got[on] = state
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	expect("while the first waits", map[string]string{
		"after:1": "pending", "afterany:1": "pending", "afterok:1": "pending", "afternotok:1": "pending", "singleton": "pending",
		"afterok:1?afternotok:1": "pending",
	})
	if v := w.view(waits["afterok:1"]); v.DependencyReason != "waits for sweep 1 to be complete (afterok)" || v.Dependency != "afterok:1" {
		t.Errorf("got %+v", v)
	}
	// A daemon that was killed begins again with what is stored.
	w.restart()
	if _, err := w.store.Release(t.Context(), store.Scope{Sweeps: []int64{first}}); err != nil {
		t.Fatal(err)
	}
	w.mustTurn()
	w.directly(`update run set state = 'running', actor = 'track', changed_at = now() where sweep_id = $1`, first)
	expect("while the first runs", map[string]string{
		"after:1": "submitted", "afterany:1": "pending", "afterok:1": "pending", "afternotok:1": "pending", "singleton": "pending",
		"afterok:1?afternotok:1": "pending",
	})
	w.end(first, "incomplete")
	// Those that were submitted before the singleton, and of its name, go on; it waits for them.
	expect("after the first ended incomplete", map[string]string{
		"after:1": "submitted", "afterany:1": "submitted", "afterok:1": "cancelled", "afternotok:1": "submitted", "singleton": "pending",
		"afterok:1?afternotok:1": "submitted",
	})
	runs, err := w.store.RunsOfSweep(t.Context(), waits["afterok:1"], nil)
	if err != nil || !strings.Contains(runs[0].Reason, "can never be satisfied: sweep 1 is incomplete, and afterok waits for it to be complete") {
		t.Errorf("%v: got %+v", err, runs)
	}
	for _, id := range waits {
		if id < waits["singleton"] {
			w.end(id, "cancelled")
		}
	}
	expect("after all earlier ones ended", map[string]string{
		"after:1": "submitted", "afterany:1": "submitted", "afterok:1": "cancelled", "afternotok:1": "submitted", "singleton": "submitted",
		"afterok:1?afternotok:1": "submitted",
	})

	// Requeued, the first one may be complete after all: so may what waits for it.
	w.directly(`update sweep set state = 'active', ended_at = null where id = any($1)`, []int64{first, waits["afterok:1"]})
	if _, err := w.store.Requeue(t.Context(), store.Scope{Sweeps: []int64{waits["afterok:1"]}}, "ada", ""); err != nil {
		t.Fatal(err)
	}
	w.mustTurn()
	if diff := cmp.Diff(map[string]int{"pending": 1}, w.states(waits["afterok:1"])); diff != "" {
		t.Error(diff)
	}
	w.end(first, "complete")
	w.mustTurn()
	if diff := cmp.Diff(map[string]int{"submitted": 1}, w.states(waits["afterok:1"])); diff != "" {
		t.Error(diff)
	}
}
