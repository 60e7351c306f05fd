package submit

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/lifecycle"
	"sbench/internal/slurm"
	"sbench/internal/slurmtest"
	"sbench/internal/store"
)

const (
	inactive = "sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)"
	policy   = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)

// TestTurn_RefusedForNow: a partition that an admin drains for a night kills no
// run; it keeps nobody else's from being submitted, and Slurm is not pestered.
func TestTurn_RefusedForNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.cluster.Fault(slurmtest.Faults{Refuse: map[string]string{"l4": inactive}})
	waiting := w.sweep("l4", 1, 2, "")
	w.mustTurn()
	other := w.sweep("h100-sxm", 1, 2, "")
	client := w.service.Cluster.(*slurm.Client)
	before := client.Stats()
	for range 720 { // an hour
		w.clock.advance(5 * time.Second)
		w.mustTurn()
	}
	if diff := cmp.Diff(map[string]int{"submitted": 2}, w.states(waiting)); diff != "" {
		t.Fatal(diff)
	}
	if free := w.free(); len(free) != 1 || free[0].Options["partition"] != "gpu" {
		t.Fatalf("jobs that may start: %+v", free)
	}
	if diff := cmp.Diff(map[string]int{"submitted": 2}, w.states(other)); diff != "" {
		t.Error(diff)
	}
	for _, b := range w.open() {
		if b.State == lifecycle.BatchIntent && !strings.Contains(b.LastError, "Required partition not available") {
			t.Errorf("its reason is %q", b.LastError)
		}
	}
	after := client.Stats()
	if n := after["sbatch"].Calls - before["sbatch"].Calls; n < 10 || n > 25 {
		t.Errorf("sbatch was called %d times", n)
	}
	if n := after["squeue"].Calls - before["squeue"].Calls; n > 2 {
		t.Errorf("squeue was called %d times about a job that is not there", n)
	}
	w.cluster.Fault(slurmtest.Faults{})
	w.clock.advance(longest)
	w.mustTurn()
	if n := len(w.free()); n != 2 {
		t.Errorf("%d jobs may start", n)
	}
}

// TestTurn_FullAccount: what is at the limit of its account or QOS waits, and holds
// nobody else up; what a limit of size forbids is not waited for.
func TestTurn_FullAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.service.limits.known, w.service.limits.asked = true, w.clock.Now().Add(24*time.Hour) // sacctmgr tells nothing
	w.cluster.Fault(slurmtest.Faults{Refuse: map[string]string{"l4": "sbatch: error: AssocGrpSubmitJobsLimit\n" + policy}})
	full := w.sweep("l4", 1, 1, `{"account": "full"}`)
	w.mustTurn()
	other := w.sweep("h100-sxm", 1, 2, `{"account": "other"}`)
	for range 12 {
		w.clock.advance(11 * time.Second)
		w.mustTurn()
	}
	if diff := cmp.Diff(map[string]int{"submitted": 1}, w.states(full)); diff != "" {
		t.Error(diff)
	}
	if free := w.free(); len(free) != 1 || len(free[0].Tasks) != 2 {
		t.Errorf("another account waits: %+v, %v", free, w.states(other))
	}
	w.cluster.Fault(slurmtest.Faults{Refuse: map[string]string{"l4": "sbatch: error: QOSMaxGRESPerJob\n" + policy}})
	for range 2 * mostRefusals {
		w.clock.advance(fullWait)
		w.mustTurn()
	}
	runs, err := w.store.RunsOfSweep(t.Context(), full, nil)
	if err != nil || runs[0].State != lifecycle.RunDead || !strings.Contains(runs[0].Reason, "QOSMaxGRESPerJob") {
		t.Errorf("%+v, %v", runs, err)
	}
}

// TestTurn_ShorterArrays: a site that lowers MaxArraySize kills no run, and one that
// raises it again gets long arrays again.
func TestTurn_ShorterArrays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.mustTurn() // the limits are known
	w.cluster.Reconfigure(3)
	sweep := w.sweep("l4", 1, 8, "")
	for range 3 {
		w.mustTurn()
	}
	if diff := cmp.Diff(map[string]int{"submitted": 8}, w.states(sweep)); diff != "" {
		t.Fatal(diff)
	}
	for _, j := range w.free() {
		if len(j.Tasks) > 3 {
			t.Errorf("an array of %d tasks", len(j.Tasks))
		}
	}
	jobs := len(w.free())
	w.cluster.Reconfigure(1001)
	w.clock.advance(limitsAge + time.Second)
	w.sweep("l4", 1, 9, "")
	w.mustTurn()
	if free := w.free(); len(free) != jobs+1 || len(free[jobs].Tasks) != 9 {
		t.Errorf("%d arrays, the last of %d tasks", len(free)-jobs, len(free[len(free)-1].Tasks))
	}
	w.cluster.Reconfigure(0) // as MaxArraySize=0 in slurm.conf
	w.clock.advance(limitsAge + time.Second)
	off := w.sweep("l4", 1, 2, "")
	if err := w.turn(); err == nil || !strings.Contains(err.Error(), "MaxArraySize is 0") {
		t.Errorf("%v", err)
	}
	if diff := cmp.Diff(map[string]int{"pending": 2}, w.states(off)); diff != "" {
		t.Error(diff)
	}
}

// TestTurn_RenamedByTheSite: a job whose name the site has rewritten is found by the
// token in its comment.
func TestTurn_RenamedByTheSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.cluster.Fault(slurmtest.Faults{Rename: "ml_job", Submit: []slurmtest.SubmitFault{slurmtest.CreateThenFail}})
	sweep := w.sweep("l4", 1, 2, "")
	for range 8 {
		w.mustTurn()
		w.clock.advance(25 * time.Second)
	}
	open, jobs := w.open(), w.cluster.Jobs()
	if len(jobs) != 1 || jobs[0].Held || len(open) != 1 || open[0].State != lifecycle.BatchReleased || *open[0].JobID != jobs[0].ID {
		t.Errorf("jobs %+v, batches %+v", jobs, open)
	}
	if diff := cmp.Diff(map[string]int{"submitted": 2}, w.states(sweep)); diff != "" {
		t.Error(diff)
	}
}

func (w *world) setMode(mode string) {
	w.Helper()
	if _, err := w.store.SetSiteMode(w.Context(), store.SiteMode{Site: "lab", Mode: mode, ChangedBy: "root"}); err != nil {
		w.Fatal(err)
	}
}

// TestTurn_PausedInTheMiddle: the kill switch works between two batches, wherever
// these are, and drain lets what is committed go on.
func TestTurn_PausedInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, point := range []string{FailFrozen, FailCommitted, FailTrying, FailSubmitted, FailHeld, FailReleased} {
		for _, mode := range []string{store.SitePaused, store.SiteDrain} {
			t.Run(mode+" at "+point, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, slurmtest.Config{})
				w.site.Limits.MaxArraySize = 2
				sweep := w.sweep("l4", 1, 6, "")
				w.fail = func(name string) {
					if name == point {
						w.setMode(mode)
					}
				}
				w.mustTurn()
				w.mustTurn()
				if n := len(w.cluster.Jobs()); n != 1 {
					t.Errorf("%d arrays were submitted", n)
				}
				if diff := cmp.Diff(map[string]int{"submitted": 2, "pending": 4}, w.states(sweep)); diff != "" {
					t.Error(diff)
				}
				w.fail = func(string) {}
				w.setMode(store.SiteActive)
				for range 3 {
					w.mustTurn()
				}
				if diff := cmp.Diff(map[string]int{"submitted": 6}, w.states(sweep)); diff != "" || len(w.free()) != 3 {
					t.Errorf("%s, %d jobs may start", diff, len(w.free()))
				}
			})
		}
	}
}

// TestTurn_PausedAndCancelled: what a paused site has committed and not submitted can
// be cancelled; a job that may be there is not touched before the site goes on.
func TestTurn_PausedAndCancelled(t *testing.T) {
	t.Parallel()
	for point, want := range map[string]string{FailCommitted: "cancelled", FailTrying: "submitted", FailHeld: "submitted"} {
		w := newWorld(t, slurmtest.Config{})
		sweep := w.sweep("l4", 1, 2, "")
		w.turnUntil(point)
		w.restart()
		w.setMode(store.SitePaused)
		if _, err := w.store.Cancel(t.Context(), store.Scope{Sweeps: []int64{sweep}}, "ada", ""); err != nil {
			t.Fatal(err)
		}
		w.clock.advance(time.Hour)
		w.mustTurn()
		if diff := cmp.Diff(map[string]int{want: 2}, w.states(sweep)); diff != "" || len(w.free()) != 0 {
			t.Errorf("%s: %s, %d jobs may start", point, diff, len(w.free()))
		}
	}
}

// TestTurn_ThrottleRefused: a job that takes no limit is asked once a minute.
func TestTurn_ThrottleRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	sweep := w.sweep("l4", 1, 2, "")
	w.mustTurn()
	if _, err := w.store.ThrottleSweep(t.Context(), sweep, 1); err != nil {
		t.Fatal(err)
	}
	client := w.service.Cluster.(*slurm.Client)
	w.cluster.Fault(slurmtest.Faults{ControllerDown: true})
	before := client.Stats()["scontrol"].Calls
	for range 24 {
		_ = w.turn()
		w.clock.advance(5 * time.Second)
	}
	if n := client.Stats()["scontrol"].Calls - before; n > 3 {
		t.Errorf("%d calls in two minutes", n)
	}
	w.cluster.Fault(slurmtest.Faults{})
	w.clock.advance(throttleWait)
	w.mustTurn()
	if jobs := w.cluster.Jobs(); jobs[0].Throttle != 1 {
		t.Errorf("%+v", jobs)
	}
}
