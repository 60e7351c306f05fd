package submit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/setting"
	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/slurmtest"
	"sbench/internal/store"
)

func TestMain(m *testing.M) {
	if status, ok := slurmtest.Command(); ok {
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// clock is the real one, moved on by the test.
type clock struct {
	mu    sync.Mutex
	moved time.Duration
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.moved)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved += d
}

// world is a site with a fake cluster and a real database.
type world struct {
	*testing.T
	clock   clock
	dsn     string
	store   *store.Store
	cluster *slurmtest.Cluster
	site    *site.Site
	fail    func(string)
	service *Service
}

func newWorld(t *testing.T, conf slurmtest.Config) *world {
	t.Helper()
	dir := t.TempDir()
	runner := filepath.Join(dir, "runner")
	if err := os.WriteFile(runner, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, cluster: slurmtest.New(t, conf), fail: func(string) {}}
	w.dsn = pgtest.DSN(t)
	s, err := store.Open(t.Context(), w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w.store = s.WithClock(w.clock.Now)
	w.site = &site.Site{
		Name: "lab", Cluster: "fake", HardwareClass: "emulated", Partitions: map[string]site.Partition{},
		Priorities: map[string]site.Priority{"normal": {}},
		Hardware: map[string]site.Hardware{
			"h100-sxm": {GRES: "gpu:h100", GPUsPerNode: 8, Partition: "gpu"},
			"l4":       {GRES: "gpu:l4", GPUsPerNode: 4, Partition: "l4"},
		},
		Paths:  site.Paths{Spool: filepath.Join(dir, "spool"), Results: filepath.Join(dir, "results"), Models: "/models", Images: "/images", Cache: "/cache"},
		Limits: site.Limits{MaxArraySize: 1001, MaxSubmit: 1000, MaxQueue: 500, TaskMinutes: 60},
		Jobs:   site.Jobs{Exclusive: "exclusive", Memory: "0", Requeue: true, Signal: 30 * time.Second},
	}
	w.service = w.start(runner)
	return w
}

// start makes a service as a new process would.
func (w *world) start(runner string) *Service {
	w.Helper()
	s, err := New(Config{
		Site: w.site, Store: w.store, Cluster: w.cluster.Client(), Runner: runner, Now: w.clock.Now, Settle: time.Minute,
		Failpoint: func(name string) { w.fail(name) },
	})
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *world) restart() { w.service = w.start(w.service.Runner) }

func (w *world) turn() error { return w.service.Turn(w.Context()) }

func (w *world) mustTurn() {
	w.Helper()
	if err := w.turn(); err != nil {
		w.Fatal(err)
	}
}

// sweep stores a sweep of settings on the given hardware.
func (w *world) sweep(hardware string, settings, repeats int, options string) int64 {
	w.Helper()
	n := store.NewSweep{
		Name: "nightly", UserName: "ada", UID: 1000, Site: "lab", HardwareClass: "emulated", File: "sweep: v1\n",
		Options: json.RawMessage(options), SLO: map[string]time.Duration{"ttft_p99": time.Second}, MaxErrorRate: 0.01,
	}
	if options == "" {
		n.Options = nil
	}
	for i := range settings {
		set := setting.Setting{
			Model:    setting.Model{Name: "m", Checkpoint: setting.Checkpoint{Path: "llama", Digest: "sha256:c"}},
			Image:    setting.Image{Kind: setting.ImageSIF, Path: "engine.sif"},
			Hardware: setting.Hardware{GPU: hardware, GPUs: 1, Nodes: 1, Placement: setting.PlacementNode},
			Workload: setting.Workload{Duration: time.Minute, Seed: int64(i)},
		}
		spec := fmt.Sprintf(`{"hardware":%q,"seed":%d}`, hardware, i)
		sum := sha256.Sum256([]byte(spec))
		n.Settings = append(n.Settings, store.NewSetting{
			Hash: hex.EncodeToString(sum[:]), SeriesHash: hex.EncodeToString(sum[:]), CanonicalSpec: []byte(spec), Setting: set, Repeats: repeats,
		})
	}
	id, _, err := w.store.CreateSweep(w.Context(), n)
	if err != nil {
		w.Fatal(err)
	}
	return id
}

// states counts the runs of a sweep.
func (w *world) states(sweep int64) map[string]int {
	w.Helper()
	runs, err := w.store.RunsOfSweep(w.Context(), sweep, nil)
	if err != nil {
		w.Fatal(err)
	}
	counts := map[string]int{}
	for _, r := range runs {
		counts[string(r.State)]++
	}
	return counts
}

func (w *world) open() []store.Batch {
	w.Helper()
	list, err := w.store.OpenBatches(w.Context(), "lab")
	if err != nil {
		w.Fatal(err)
	}
	return list
}

// free are the jobs that Slurm may start.
func (w *world) free() []slurmtest.Job {
	return slices.DeleteFunc(w.cluster.Jobs(), func(j slurmtest.Job) bool { return j.Held })
}

// expectOne: one batch is released, its job is the only one that may start, and
// every run is in it once.
func (w *world) expectOne(sweep int64, runs int) {
	w.Helper()
	open, free := w.open(), w.free()
	if len(open) != 1 || open[0].State != lifecycle.BatchReleased {
		w.Fatalf("open batches %+v", open)
	}
	if len(free) != 1 || open[0].JobID == nil || free[0].ID != *open[0].JobID || free[0].Name() != open[0].JobName {
		w.Fatalf("batch of job %v, jobs that may start: %+v", open[0].JobID, free)
	}
	if diff := cmp.Diff(map[string]int{"submitted": runs}, w.states(sweep)); diff != "" {
		w.Error(diff)
	}
}

func TestTurn_SubmitsHeldAndReleases(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	sweep := w.sweep("h100-sxm", 4, 3, "")
	w.mustTurn()
	w.expectOne(sweep, 12)
	b := w.open()[0]
	data, err := os.ReadFile(filepath.Join(b.Dir, batch.SpecFile))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := batch.Decode(data, b.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Tasks) != 3 || len(spec.Tasks[0].Runs) != 4 || spec.Token != b.Token || spec.UID != os.Getuid() {
		t.Errorf("%d tasks, %+v", len(spec.Tasks), spec)
	}
	r := spec.Tasks[1].Runs[2]
	if r.SeriesHash == "" || r.Repeat != 1 || r.SLO["ttft_p99"] != time.Second || r.MaxErrorRate != 0.01 || r.TimeLimit <= time.Minute {
		t.Errorf("%+v", r)
	}
	set := spec.Settings[r.SettingHash]
	if set.Image.Path != "/images/engine.sif" || set.Model.Checkpoint.Path != "/models/llama" {
		t.Errorf("paths %s, %s", set.Image.Path, set.Model.Checkpoint.Path)
	}
	for _, name := range []string{batch.ScriptFile, batch.TaskFile, batch.ClaimsDir, batch.LogsDir} {
		if _, err := os.Stat(filepath.Join(b.Dir, name)); err != nil {
			t.Error(err)
		}
	}
	script, err := os.ReadFile(filepath.Join(b.Dir, batch.ScriptFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"#SBATCH --array=0-2\n", "#SBATCH --gres=gpu:h100:1\n", "#SBATCH --exclusive\n", "#SBATCH --job-name=" + b.Token + "\n", "export SBENCH_DIGEST=" + b.Digest + "\n"} {
		if !strings.Contains(string(script), line) {
			t.Errorf("%q is missing in\n%s", line, script)
		}
	}
	w.mustTurn()
	if n := len(w.cluster.Jobs()); n != 1 {
		t.Errorf("%d jobs after a turn with nothing to do", n)
	}
}

// Whatever sbatch does, each batch has one job that may start, and no run is lost.
func TestTurn_AmbiguousOutcomes(t *testing.T) {
	t.Parallel()
	for _, fault := range []slurmtest.SubmitFault{
		slurmtest.SubmitWell, slurmtest.CreateThenHang, slurmtest.CreateThenFail, slurmtest.CreateLater, slurmtest.FailUnknown, slurmtest.Full,
	} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, slurmtest.Config{})
			w.cluster.Fault(slurmtest.Faults{Submit: []slurmtest.SubmitFault{fault}})
			sweep := w.sweep("l4", 2, 2, "")
			for range 8 {
				w.mustTurn()
				w.clock.advance(25 * time.Second)
				w.restart()
			}
			w.expectOne(sweep, 4)
			if fault == slurmtest.CreateLater {
				// The controller goes on after the batch was submitted again.
				w.cluster.Deliver()
				w.mustTurn()
				w.expectOne(sweep, 4)
			}
		})
	}
}

// A job that appears while we wait is adopted, not doubled.
func TestTurn_LateJobIsAdopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.cluster.Fault(slurmtest.Faults{Submit: []slurmtest.SubmitFault{slurmtest.CreateLater}})
	sweep := w.sweep("l4", 1, 1, "")
	w.mustTurn()
	w.clock.advance(30 * time.Second)
	w.mustTurn()
	w.cluster.Deliver()
	w.mustTurn()
	w.expectOne(sweep, 1)
	if n := len(w.cluster.Jobs()); n != 1 {
		t.Errorf("%d jobs", n)
	}
}

type killed string

// turnUntil runs a turn that is killed at a failpoint.
func (w *world) turnUntil(point string) {
	w.Helper()
	w.fail = func(name string) {
		if name == point {
			panic(killed(name))
		}
	}
	defer func() {
		w.fail = func(string) {}
		if r := recover(); r != killed(point) {
			w.Fatalf("failpoint %s was not reached: %v", point, r)
		}
	}()
	err := w.turn()
	w.Fatalf("failpoint %s was not reached: %v", point, err)
}

func TestTurn_KilledAtEveryFailpoint(t *testing.T) {
	t.Parallel()
	for _, point := range []string{FailFrozen, FailCommitted, FailTrying, FailSubmitted, FailHeld, FailReleased} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, slurmtest.Config{})
			sweep := w.sweep("h100-sxm", 3, 2, "")
			w.turnUntil(point)
			for range 4 {
				w.restart()
				w.mustTurn()
				w.clock.advance(time.Minute)
			}
			w.expectOne(sweep, 6)
			if n := len(w.cluster.Jobs()); n != 1 {
				t.Errorf("%d jobs", n)
			}
		})
	}
}

func TestTurn_ControllerDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	sweep := w.sweep("l4", 1, 2, "")
	w.cluster.Fault(slurmtest.Faults{ControllerDown: true})
	for range 3 {
		_ = w.turn() // its errors are reported, and tried again
		w.clock.advance(time.Minute)
	}
	w.cluster.Fault(slurmtest.Faults{AccountingDown: true})
	for range 3 {
		_ = w.turn()
		w.clock.advance(time.Minute)
	}
	w.cluster.Fault(slurmtest.Faults{})
	for range 3 {
		w.mustTurn()
		w.clock.advance(time.Minute)
	}
	w.expectOne(sweep, 2)
}

// A controller that loses its last submissions gives their ids to other jobs.
func TestTurn_ControllerForgetsHeldJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	sweep := w.sweep("l4", 1, 2, "")
	w.turnUntil(FailHeld)
	lost := *w.open()[0].JobID
	w.cluster.Crash(0)
	script := filepath.Join(t.TempDir(), "other.sbatch")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n#SBATCH --job-name=other\ntrue\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := w.cluster.Client().Submit(t.Context(), script, true)
	if err != nil || other.JobID != lost {
		t.Fatalf("%+v, %v: the id %d was to be given out again", other, err, lost)
	}
	w.restart()
	for range 6 {
		w.mustTurn()
		w.clock.advance(time.Minute)
	}
	// sacct still has the lost job; what counts is that the stranger is not released.
	for _, j := range w.free() {
		if j.Name() == "other" {
			t.Error("a stranger's job was released")
		}
	}
	if states := w.states(sweep); states["submitted"] != 2 {
		t.Errorf("%v", states)
	}
}

// A job that waited when the controller lost it stays in the accounting database for
// ever: it is submitted again.
func TestTurn_ControllerForgetsReleasedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	sweep := w.sweep("l4", 1, 2, "")
	w.turnUntil(FailReleased)
	if _, found, err := w.cluster.Client().Find(t.Context(), w.open()[0].JobName, "", time.Unix(0, 0)); err != nil || len(found) != 1 || !found[0].Queued {
		t.Fatalf("%+v, %v", found, err)
	}
	w.cluster.Crash(0)
	_, found, err := w.cluster.Client().Find(t.Context(), w.open()[0].JobName, "", time.Unix(0, 0))
	if want := []slurm.Found{{JobID: *w.open()[0].JobID}}; err != nil || cmp.Diff(want, found, cmpopts.IgnoreFields(slurm.Found{}, "Submit")) != "" {
		t.Fatalf("accounting says %+v, %v", found, err)
	}
	w.restart()
	for range 6 {
		w.mustTurn()
		w.clock.advance(time.Minute)
	}
	if b := w.open(); len(b) != 1 || b[0].State != lifecycle.BatchReleased || b[0].SubmitTries != 2 {
		t.Errorf("%+v", b)
	}
	if states := w.states(sweep); states["submitted"] != 2 || len(w.cluster.Jobs()) != 1 {
		t.Errorf("%v, jobs %+v", states, w.cluster.Jobs())
	}
}

// A job that was released, which nobody recorded, and has begun before the controller
// lost it is not submitted again: the tracker settles it.
func TestTurn_ControllerForgetsJobThatBegan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	sweep := w.sweep("l4", 1, 2, "")
	w.turnUntil(FailReleased)
	w.cluster.Fault(slurmtest.Faults{AccountingLag: 100 * time.Hour})
	token := w.open()[0].Token
	w.directly(`update run set state = 'provisioning', actor = 'track', changed_at = now() where batch_token = $1`, token)
	w.directly(`update task set state = 'running', actor = 'track', changed_at = now() where token = $1`, token)
	w.cluster.Crash(0)
	w.restart()
	for range 6 {
		w.mustTurn()
		w.clock.advance(time.Minute)
	}
	if b := w.open(); len(b) != 1 || b[0].State != lifecycle.BatchReleased || b[0].JobID == nil {
		t.Errorf("%+v", b)
	}
	if states := w.states(sweep); states["provisioning"] != 2 {
		t.Errorf("%v", states)
	}
}

func TestTurn_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{Partitions: []string{"gpu"}})
	sweep := w.sweep("l4", 1, 2, "")
	for range mostRefusals {
		w.mustTurn()
		if states := w.states(sweep); states["dead"] > 0 && w.service.refusals != nil && len(w.open()) > 0 {
			t.Errorf("given up too early: %v", states)
		}
		w.clock.advance(time.Minute)
	}
	if diff := cmp.Diff(map[string]int{"dead": 2}, w.states(sweep)); diff != "" {
		t.Error(diff)
	}
	runs, err := w.store.RunsOfSweep(t.Context(), sweep, nil)
	if err != nil || len(runs) != 2 || !strings.Contains(runs[0].Reason, "partition") {
		t.Errorf("%+v, %v", runs, err)
	}
	if len(w.cluster.Jobs()) != 0 || len(w.open()) != 0 {
		t.Errorf("jobs %v, batches %v", w.cluster.Jobs(), w.open())
	}
}

// A limit below the array's size is found out, and the runs come in smaller arrays.
func TestTurn_SubmitLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{MaxSubmit: 3})
	w.site.Limits.MaxQueue = 8
	sweep := w.sweep("l4", 1, 8, "")
	w.service.limits.known = true // as where sacctmgr cannot be asked
	w.service.limits.asked = w.clock.Now().Add(time.Hour)
	for range 20 {
		w.mustTurn()
		w.clock.advance(fullWait + time.Second)
		for _, j := range w.free() {
			w.cluster.Play(j.ID, 0)
		}
	}
	queued := 0
	for _, j := range w.cluster.Jobs() {
		queued += len(j.Tasks)
	}
	if queued == 0 || w.states(sweep)["dead"] > 0 {
		t.Errorf("%d tasks reached Slurm: %v", queued, w.states(sweep))
	}
}

func TestTurn_CancelledBeforeItWasSubmitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	sweep := w.sweep("l4", 1, 2, "")
	w.turnUntil(FailCommitted)
	if _, err := w.store.Cancel(t.Context(), store.Scope{Sweeps: []int64{sweep}}, "ada", ""); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.mustTurn()
	if diff := cmp.Diff(map[string]int{"cancelled": 2}, w.states(sweep)); diff != "" {
		t.Error(diff)
	}
	if len(w.cluster.Jobs()) != 0 || len(w.open()) != 0 {
		t.Errorf("jobs %v, batches %v", w.cluster.Jobs(), w.open())
	}
}

func TestTurn_Unplannable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	bad := w.sweep("b200", 1, 2, "")
	good := w.sweep("l4", 1, 2, "")
	w.mustTurn()
	if diff := cmp.Diff(map[string]int{"dead": 2}, w.states(bad)); diff != "" {
		t.Error(diff)
	}
	w.expectOne(good, 2)
}

// TestTurn_TimeLimits: what no partition or QOS lets end is not submitted to wait
// for ever; the site file says nothing of it.
func TestTurn_TimeLimits(t *testing.T) {
	t.Parallel()
	for reason, conf := range map[string]slurmtest.Config{
		"partition l4 allows at most 2m0s": {MaxTime: 2, MaxWall: 600},
		"QOS normal allows at most 1m0s":   {MaxTime: 2, MaxWall: 1},
	} {
		w := newWorld(t, conf)
		sweep := w.sweep("l4", 1, 2, "")
		w.mustTurn()
		if diff := cmp.Diff(map[string]int{"dead": 2}, w.states(sweep)); diff != "" {
			t.Error(diff)
		}
		runs, err := w.store.RunsOfSweep(t.Context(), sweep, nil)
		if err != nil || !strings.Contains(runs[0].Reason, reason) {
			t.Errorf("%q, %v; want %q", runs[0].Reason, err, reason)
		}
		if n := len(w.cluster.Jobs()); n != 0 {
			t.Errorf("%d jobs", n)
		}
	}
}

func TestTurn_QueueLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.site.Limits.MaxQueue = 8
	sweep := w.sweep("l4", 1, 20, "")
	w.mustTurn()
	w.mustTurn()
	if diff := cmp.Diff(map[string]int{"submitted": 8, "pending": 12}, w.states(sweep)); diff != "" {
		t.Error(diff)
	}
	if n := len(w.cluster.Jobs()); n != 1 {
		t.Errorf("%d jobs: the queue was filled in slivers", n)
	}
}

// What Slurm says that it takes of a user is not exceeded, and nothing is refused.
func TestTurn_SubmitLimitAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{MaxSubmit: 3})
	sweep := w.sweep("l4", 1, 8, "")
	other := w.sweep("l4", 1, 2, "")
	for range 3 {
		w.mustTurn()
	}
	if diff := cmp.Diff(map[string]int{"submitted": 3, "pending": 5}, w.states(sweep)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int{"pending": 2}, w.states(other)); diff != "" {
		t.Error(diff)
	}
	for _, b := range w.open() {
		if b.LastError != "" {
			t.Errorf("refused: %s", b.LastError)
		}
	}
}

// TestTurn_Throttle changes how many tasks run at once of arrays that Slurm has.
func TestTurn_Throttle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.site.Limits.MaxArraySize = 3
	sweep := w.sweep("l4", 1, 8, "")
	w.mustTurn()
	throttles := func() []int {
		var list []int
		for _, j := range w.cluster.Jobs() {
			list = append(list, j.Throttle)
		}
		slices.Sort(list)
		return list
	}
	if diff := cmp.Diff([]int{0, 0, 0}, throttles()); diff != "" {
		t.Fatal(diff)
	}
	for _, tt := range []struct {
		most int
		want []int
	}{{7, []int{2, 2, 3}}, {2, []int{1, 1, 1}}, {0, []int{0, 0, 0}}} {
		if n, err := w.store.ThrottleSweep(t.Context(), sweep, tt.most); err != nil || n != 3 {
			t.Fatal(n, err)
		}
		w.mustTurn()
		if diff := cmp.Diff(tt.want, throttles()); diff != "" {
			t.Errorf("%d: %s", tt.most, diff)
		}
		if left, err := w.store.ThrottlesWanted(t.Context(), "lab"); err != nil || len(left) > 0 {
			t.Errorf("not noted: %v, %v", left, err)
		}
	}
	if _, err := w.store.ThrottleSweep(t.Context(), 99, 1); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestTurn_MaxInflight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.site.Limits.MaxArraySize = 3
	sweep := w.sweep("l4", 1, 8, `{"max_inflight": 2, "job_name": "a b"}`)
	w.mustTurn()
	open := w.open()
	if len(open) != 1 || open[0].Throttle != 2 || open[0].JobName != "a_b."+open[0].Token {
		t.Fatalf("%+v", open)
	}
	if states := w.states(sweep); states["pending"] != 5 {
		t.Errorf("%v: arrays of one sweep exceed its limit together", states)
	}
}

func TestTurn_Modes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	sweep := w.sweep("l4", 1, 1, "")
	for _, mode := range []string{store.SitePaused, store.SiteDrain} {
		if _, err := w.store.SetSiteMode(t.Context(), store.SiteMode{Site: "lab", Mode: mode, ChangedBy: "root"}); err != nil {
			t.Fatal(err)
		}
		w.mustTurn()
		if states := w.states(sweep); states["pending"] != 1 {
			t.Errorf("%s: %v", mode, states)
		}
	}
	if _, err := w.store.SetSiteMode(t.Context(), store.SiteMode{Site: "lab", Mode: store.SiteActive, ChangedBy: "root"}); err != nil {
		t.Fatal(err)
	}
	w.mustTurn()
	w.expectOne(sweep, 1)
}

// What a killed daemon left is removed, and nothing else.
func TestTurn_TidiesTheSpool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.sweep("l4", 1, 1, "")
	w.turnUntil(FailFrozen)
	w.restart()
	w.mustTurn()
	batches := filepath.Join(w.site.Paths.Spool, "batches")
	if err := os.Mkdir(filepath.Join(batches, ".sb-half.123"), 0o755); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(batches); err != nil || len(entries) != 3 {
		t.Fatalf("%v, %v", entries, err)
	}
	w.clock.advance(2 * time.Hour)
	w.mustTurn()
	entries, err := os.ReadDir(batches)
	if err != nil || len(entries) != 1 || entries[0].Name() != w.open()[0].Token {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestRun_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	sweep := w.sweep("l4", 1, 1, "")
	ctx, cancel := context.WithCancel(t.Context())
	reached := make(chan struct{})
	w.fail = func(name string) {
		if name == FailReleased {
			close(reached)
		}
	}
	done := make(chan error, 1)
	go func() { done <- w.service.Run(ctx) }()
	<-reached
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if states := w.states(sweep); states["submitted"] != 1 {
		t.Errorf("%v", states)
	}
}

// A daemon that was replaced writes nothing, and stops.
func TestRun_Fenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{})
	w.sweep("l4", 1, 1, "")
	w.service.Store = w.store.Fenced(12345)
	if err := w.service.Run(t.Context()); !errors.Is(err, store.ErrFenced) {
		t.Errorf("error is %v", err)
	}
	if n := len(w.cluster.Jobs()); n != 0 {
		t.Errorf("%d jobs", n)
	}
}

var _ cluster = (*slurm.Client)(nil)
