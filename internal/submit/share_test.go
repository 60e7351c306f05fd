package submit

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/plan"
	"sbench/internal/site"
	"sbench/internal/slurmtest"
	"sbench/internal/store"
)

// given counts the runs of sweeps that are not pending any more.
func (w *world) given(sweeps ...int64) []int {
	w.Helper()
	var out []int
	for _, id := range sweeps {
		n := 0
		for state, count := range w.states(id) {
			if state != "pending" {
				n += count
			}
		}
		out = append(out, n)
	}
	return out
}

// TestTurn_AccountWeights: accounts are fed as the site file weighs them, or as
// Slurm's own shares do.
func TestTurn_AccountWeights(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fair site.FairShare
		want []int
	}{
		"alike":          {site.FairShare{Source: site.SharesEqual}, []int{8, 8}},
		"weighed":        {site.FairShare{Source: site.SharesEqual, Weights: map[string]int{"big": 3}}, []int{12, 4}},
		"Slurm's":        {site.FairShare{Source: site.SharesSlurm}, []int{14, 2}},
		"Slurm's, times": {site.FairShare{Source: site.SharesSlurm, Weights: map[string]int{"small": 7}}, []int{8, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, slurmtest.Config{Shares: map[string]int{"big": 7, "small": 1}})
			w.site.Limits.MaxQueue, w.site.FairShare = 16, tc.fair
			big := w.sweep("l4", 1, 40, `{"account": "big"}`)
			small := w.sweep("l4", 1, 40, `{"account": "small"}`)
			w.mustTurn()
			if diff := cmp.Diff(tc.want, w.given(big, small)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTurn_SharesUnknown: accounts are fed alike where Slurm does not answer, and
// it is asked again no sooner than for its other limits.
func TestTurn_SharesUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{Shares: map[string]int{"big": 7, "small": 1}})
	w.site.Limits.MaxQueue, w.site.FairShare = 16, site.FairShare{Source: site.SharesSlurm}
	w.cluster.Fault(slurmtest.Faults{AccountingDown: true})
	big := w.sweep("l4", 1, 40, `{"account": "big"}`)
	small := w.sweep("l4", 1, 40, `{"account": "small"}`)
	w.mustTurn()
	if diff := cmp.Diff([]int{8, 8}, w.given(big, small)); diff != "" {
		t.Error(diff)
	}
}

func TestWeigh(t *testing.T) {
	t.Parallel()
	owners := map[int64]plan.Owner{1: {Account: "a"}, 2: {Account: "b"}, 3: {Account: "ada"}}
	for name, tc := range map[string]struct {
		fair   site.FairShare
		shares map[string]float64
		want   map[string]int
	}{
		"alike":      {site.FairShare{}, nil, map[string]int{"a": 1, "b": 1, "ada": 1}},
		"weights":    {site.FairShare{Weights: map[string]int{"b": 5}}, nil, map[string]int{"a": 1, "b": 5, "ada": 1}},
		"no account": {site.FairShare{}, map[string]float64{"a": 0.75, "b": 0.25}, map[string]int{"a": 750000, "b": 250000, "ada": 500000}},
		"no share":   {site.FairShare{}, map[string]float64{"a": 1, "b": 0}, map[string]int{"a": 1000000, "b": 1, "ada": 500000}},
	} {
		if diff := cmp.Diff(tc.want, weigh(tc.fair, tc.shares, owners)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestTurn_ColdCheckpoint: one task starts a checkpoint that the site has never
// served, whatever the number of sweeps, turns and daemons; when an engine has
// served it the others follow.
func TestTurn_ColdCheckpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.site.Limits.ColdStarts = 1
	first := w.sweep("l4", 1, 6, "")
	second := w.sweep("h100-sxm", 1, 3, "")
	for range 3 {
		w.mustTurn()
		w.restart()
	}
	if diff := cmp.Diff([]int{1, 0}, w.given(first, second)); diff != "" {
		t.Fatal(diff)
	}
	// It fails, and so does the next: one at a time still.
	for i := range 2 {
		b := w.open()[0]
		w.execute(`update task set state = 'running', actor = 'track', changed_at = now() where token = $1`, b.Token)
		w.execute(`update run set state = 'running', actor = 'track', changed_at = now() where batch_token = $1`, b.Token)
		w.attempt(b.Token, "engine_start")
		w.execute(`update run set state = 'dead', actor = 'track', changed_at = now() where batch_token = $1`, b.Token)
		w.execute(`update task set state = 'ended', actor = 'track', changed_at = now() where token = $1`, b.Token)
		w.execute(`update batch set state = 'ended', actor = 'track', changed_at = now() where token = $1`, b.Token)
		w.clock.advance(time.Minute)
		w.mustTurn()
		if given := w.given(first, second); given[0]+given[1] != i+2 {
			t.Fatalf("%v runs were submitted after %d failures", given, i+1)
		}
	}
	w.attempt(w.open()[0].Token, "invalid") // the engine served, whatever the number is worth
	w.mustTurn()
	if diff := cmp.Diff([]int{6, 3}, w.given(first, second)); diff != "" {
		t.Error(diff)
	}
}

// execute changes rows as another service does.
func (w *world) execute(sql string, args ...any) {
	w.Helper()
	err := w.store.WithTx(w.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(w.Context(), sql, args...)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
}

// attempt stores an attempt of the first run of a batch.
func (w *world) attempt(token, class string) {
	w.Helper()
	w.execute(fmt.Sprintf(`
insert into attempt (run_id, cluster, job_id_raw, restart_count, sealed, token, task_index, site, nodes, hardware_class, exit_class, valid,
                     env_verified, reasons, recorded_at)
select id, 'fake', id, 0, true, batch_token, task_index, 'lab', '{n1}', 'emulated', '%s', false, false, '{}', now()
  from run where batch_token = $1 order by id limit 1`, class), token)
}
