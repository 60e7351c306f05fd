package track

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/slurmtest"
	"sbench/internal/spool"
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

const token = "sb-aaaaaaaaaaaaaaaaaaaa"

// world is a released batch of one or more tasks on a fake cluster.
type world struct {
	testing.TB
	clock   clock
	store   *store.Store
	cluster *slurmtest.Cluster
	client  *slurm.Client
	tracker *Tracker
	dir     string
	job     int64
	runs    [][]int64 // by task
	sweep   int64
}

func testSite() *site.Site {
	return &site.Site{Name: "lab", Cluster: "fake", PollInterval: time.Second}
}

// newWorld has tasks of the given numbers of runs.
func newWorld(t testing.TB, conf slurmtest.Config, runs ...int) *world {
	t.Helper()
	w := &world{TB: t, cluster: slurmtest.New(t, conf), dir: t.TempDir()}
	w.store = pgtest.New(t).WithClock(w.clock.Now)
	w.client = w.cluster.Client()
	w.restart(w.client)
	w.sweep, w.runs = createRuns(t, w.store, runs...)
	w.commit()
	script := filepath.Join(w.dir, "batch.sbatch")
	text := fmt.Sprintf("#!/bin/sh\n#SBATCH --job-name=%s\n#SBATCH --comment='sbench %s'\n#SBATCH --array=0-%d\ntrue\n", token, token, len(runs)-1)
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := w.client.Submit(t.Context(), script, true)
	if err != nil || s.Outcome != slurm.Created {
		t.Fatalf("%+v, %v", s, err)
	}
	w.job = s.JobID
	w.release()
	return w
}

func (w *world) restart(c cluster) {
	w.tracker = New(Config{Site: testSite(), Store: w.store, Cluster: c, Now: w.clock.Now})
}

// createRuns stores one sweep whose settings have a run in each task.
func createRuns(t testing.TB, s *store.Store, runs ...int) (int64, [][]int64) {
	t.Helper()
	n := store.NewSweep{Name: "n", UserName: "ada", UID: 1000, Site: "lab", HardwareClass: "emulated", File: "x"}
	total := 0
	for _, r := range runs {
		total += r
	}
	for i := range total {
		spec := fmt.Sprintf(`{"i":%d}`, i)
		sum := sha256.Sum256([]byte(spec))
		hash := hex.EncodeToString(sum[:])
		n.Settings = append(n.Settings, store.NewSetting{Hash: hash, SeriesHash: hash, CanonicalSpec: []byte(spec), Setting: setting.Setting{}, Repeats: 1})
	}
	id, _, err := s.CreateSweep(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.RunsOfSweep(t.Context(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	var byTask [][]int64
	for _, r := range runs {
		var ids []int64
		for range r {
			ids, list = append(ids, list[0].ID), list[1:]
		}
		byTask = append(byTask, ids)
	}
	return id, byTask
}

func (w *world) commit() {
	w.Helper()
	commitBatch(w.TB, w.store, w.dir, w.runs)
}

func commitBatch(t testing.TB, s *store.Store, dir string, runs [][]int64) {
	t.Helper()
	b := store.NewBatch{
		Token: token, Site: "lab", Cluster: "fake", UID: os.Getuid(), UserName: "ada", Dir: dir, AttemptsDir: filepath.Join(dir, "attempts"),
		Digest: "sha256:0", TimeLimit: time.Hour, JobName: token,
	}
	for _, ids := range runs {
		b.Tasks = append(b.Tasks, store.NewTask{TimeLimit: time.Hour, GPUs: 1, Runs: ids})
	}
	if err := s.CreateBatch(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, batch.LogsDir), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (w *world) release() {
	w.Helper()
	if ok, err := w.store.HoldBatch(w.Context(), token, w.job, nil, "", nil); err != nil || !ok {
		w.Fatal(ok, err)
	}
	if err := w.client.Release(w.Context(), w.job); err != nil {
		w.Fatal(err)
	}
	if ok, err := w.store.ReleaseBatch(w.Context(), token); err != nil || !ok {
		w.Fatal(ok, err)
	}
}

func (w *world) tick() {
	w.Helper()
	if err := w.tracker.Tick(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// ticks looks as often as it takes for everything to be decided.
func (w *world) ticks() {
	w.Helper()
	for range 8 {
		w.tick()
		w.clock.advance(90 * time.Second)
	}
}

// raw is the job id of a task that was started.
func (w *world) raw(task int) int64 {
	w.Helper()
	q, err := w.client.Queue(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	for _, j := range q.Jobs {
		if i, ok := (slurm.JobID{Tasks: j.Tasks}).Task(); ok && i == task && j.ArrayID == w.job {
			return j.Raw
		}
	}
	w.Fatalf("task %d was not started", task)
	return 0
}

// record appends lines to the record of a start of a task.
func (w *world) record(task int, raw int64, restart int, lines ...string) {
	w.Helper()
	f, err := os.OpenFile(filepath.Join(w.dir, batch.LogsDir, batch.RecordName(task, raw, restart)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		w.Fatal(err)
	}
	defer f.Close()
	for _, l := range lines {
		fmt.Fprintf(f, "%d %s\n", time.Now().Unix(), l)
	}
}

// seal writes a manifest; collect is the collector that has seen it.
func (w *world) seal(run, raw int64, restart int) {
	w.Helper()
	dir := batch.AttemptDir(filepath.Join(w.dir, "attempts"), run, raw, restart)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, result.ManifestName), []byte("{}"), 0o644); err != nil {
		w.Fatal(err)
	}
}

func (w *world) collect(run, raw int64, restart, task int, class lifecycle.ExitClass) {
	w.Helper()
	w.seal(run, raw, restart)
	a := store.NewAttempt{
		Attempt: result.Attempt{
			RunID: run, Token: token, TaskIndex: task, Site: "lab", Cluster: "fake", JobIDRaw: raw, RestartCount: restart,
			HardwareClass: "emulated", Nodes: []string{"gpu1"}, StartedAt: time.Now(), EndedAt: time.Now(),
		},
		Sealed: true, ExitClass: class, Valid: class == lifecycle.ExitMeasured, Reasons: []string{string(class)},
	}
	err := w.store.WithTx(w.Context(), func(tx *store.Tx) error {
		if _, err := tx.InsertAttempts(w.Context(), []store.NewAttempt{a}); err != nil {
			return err
		}
		_, err := tx.Judge(w.Context(), []store.Ended{{RunID: run, Token: token, TaskIndex: task}}, lifecycle.ActorCollect, nil)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) expect(run int64, want lifecycle.RunState) {
	w.Helper()
	if got, err := w.store.Run(w.Context(), run); err != nil || got.State != want {
		w.Errorf("run %d is %s (%s), want %s; %v", run, got.State, got.Reason, want, err)
	}
}

func (w *world) batchState() lifecycle.BatchState {
	w.Helper()
	list, err := w.store.Batches(w.Context(), token)
	if err != nil || len(list) != 1 {
		w.Fatal(list, err)
	}
	return list[0].State
}

func (w *world) allocations(task int) []store.Allocation {
	w.Helper()
	list, err := w.store.AllocationsOfTasks(w.Context(), []store.TaskKey{{Token: token, Index: task}})
	if err != nil {
		w.Fatal(err)
	}
	return list
}

func (w *world) attempts(run int64) []store.KnownAttempt {
	w.Helper()
	list, err := w.store.KnownAttempts(w.Context(), []int64{run})
	if err != nil {
		w.Fatal(err)
	}
	return list
}

func TestTick_LifeOfATask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 2)
	a, b := w.runs[0][0], w.runs[0][1]
	w.tick()
	w.expect(a, lifecycle.RunSubmitted)
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.tick()
	w.expect(a, lifecycle.RunProvisioning)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a))
	w.tick()
	w.expect(a, lifecycle.RunRunning)
	w.expect(b, lifecycle.RunProvisioning)
	w.collect(a, raw, 0, 0, lifecycle.ExitMeasured)
	w.expect(a, lifecycle.RunComplete)
	w.record(0, raw, 0, fmt.Sprintf("end %d 0", a), fmt.Sprintf("start %d", b))
	w.tick()
	w.expect(b, lifecycle.RunRunning)
	w.collect(b, raw, 0, 0, lifecycle.ExitEngineDied)
	w.expect(b, lifecycle.RunRunning) // its task is not over
	w.record(0, raw, 0, fmt.Sprintf("end %d 14", b), "done")
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.tick()
	w.expect(a, lifecycle.RunComplete)
	w.expect(b, lifecycle.RunPending)
	if got := w.batchState(); got != lifecycle.BatchEnded {
		t.Errorf("the batch is %s", got)
	}
	list := w.allocations(0)
	if len(list) != 1 || !list[0].Ended || list[0].JobIDRaw != raw || *list[0].RestartCount != 0 || list[0].State != "COMPLETED" {
		t.Errorf("%+v", list)
	}
}

// The accounting database may come to know of an end long behind everything else:
// the batch waits for it, and the steps of the run are read then.
func TestTick_LateAccounting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	a := w.runs[0][0]
	w.cluster.Fault(slurmtest.Faults{AccountingLag: time.Hour})
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a), fmt.Sprintf("end %d 0", a), "done")
	w.tick()
	w.collect(a, raw, 0, 0, lifecycle.ExitMeasured)
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.ticks() // for twelve minutes
	w.expect(a, lifecycle.RunComplete)
	if got := w.allocations(0); len(got) != 1 || got[0].ExitCode != nil || w.batchState() != lifecycle.BatchReleased {
		t.Fatalf("without accounting: %+v, the batch is %s", got, w.batchState())
	}
	w.cluster.Forget(w.job)
	w.cluster.Fault(slurmtest.Faults{})
	w.ticks()
	if got := w.allocations(0); len(got) != 1 || got[0].ExitCode == nil || got[0].SeenIn != "sacct" || w.batchState() != lifecycle.BatchEnded {
		t.Errorf("with accounting: %+v, the batch is %s", got, w.batchState())
	}
	if left, err := w.store.StepsToRead(t.Context(), "fake", w.clock.Now(), w.clock.Now(), 10); err != nil || len(left) != 0 {
		t.Errorf("steps to be read: %+v, %v", left, err)
	}
}

// What never comes is not waited for longer than accountingFor.
func TestTick_NoAccountingEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	a := w.runs[0][0]
	w.cluster.Fault(slurmtest.Faults{AccountingLag: 100 * time.Hour})
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a), fmt.Sprintf("end %d 0", a), "done")
	w.tick()
	w.collect(a, raw, 0, 0, lifecycle.ExitMeasured)
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.ticks()
	w.cluster.Forget(w.job)
	w.ticks()
	w.clock.advance(accountingFor)
	w.ticks()
	if got := w.batchState(); got != lifecycle.BatchEnded {
		t.Errorf("the batch is %s", got)
	}
}

// A steady tick is one squeue; an ending one is one sacct more.
func TestTick_Calls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1, 1, 1)
	calls := func() map[string]int64 {
		n := map[string]int64{}
		for name, s := range w.client.Stats() {
			n[name] = s.Calls
		}
		return n
	}
	w.tick()
	w.cluster.Start(w.job, "gpu1", 0)
	w.tick()
	before := calls()
	for range 5 {
		w.tick()
	}
	after := calls()
	if after["squeue"]-before["squeue"] != 5 || after["sacct"] != before["sacct"] || after["scontrol"] != before["scontrol"] {
		t.Errorf("five steady ticks: from %v to %v", before, after)
	}
}

func TestTick_StartedAndSealedNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 2)
	a, b := w.runs[0][0], w.runs[0][1]
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a), fmt.Sprintf("end %d 137", a), fmt.Sprintf("skip %d time", b), "done")
	w.tick()
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.tick()
	w.expect(a, lifecycle.RunRunning) // its manifest may be hidden yet
	w.expect(b, lifecycle.RunPending) // the record says that it was not started
	w.ticks()
	w.expect(a, lifecycle.RunPending)
	if got := w.attempts(a); len(got) != 1 || got[0].Sealed || got[0].JobIDRaw != raw {
		t.Errorf("%+v", got)
	}
	if got := w.attempts(b); len(got) != 0 {
		t.Errorf("an attempt of a run that was not started: %+v", got)
	}
	run, err := w.store.Run(t.Context(), a)
	if err != nil || run.Charged != 1 || run.Reason != "nothing was sealed: killed by signal 9" {
		t.Errorf("%+v, %v", run, err)
	}
	if got := w.batchState(); got != lifecycle.BatchEnded {
		t.Errorf("the batch is %s", got)
	}
}

// nextSecond waits for the next second: Slurm tells one start from another by it.
func nextSecond() { time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) }

func TestTick_NodeLostAndRequeued(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	a := w.runs[0][0]
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a))
	w.tick()
	w.expect(a, lifecycle.RunRunning)
	nextSecond()
	w.cluster.Requeue(w.job, slurm.NodeFail, 0)
	w.tick()
	w.expect(a, lifecycle.RunSubmitted)
	w.clock.advance(time.Minute)
	w.cluster.Start(w.job, "gpu2", 0)
	w.record(0, raw, 1, "begin gpu2", "claim held", fmt.Sprintf("start %d", a))
	w.tick()
	w.tick()
	w.expect(a, lifecycle.RunRunning)
	w.collect(a, raw, 1, 0, lifecycle.ExitMeasured)
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.ticks()
	w.expect(a, lifecycle.RunComplete)
	var got []string
	for _, x := range w.allocations(0) {
		got = append(got, fmt.Sprint(x.State, " ", x.Cause, " ", *x.RestartCount, " ", x.Ended, " ", x.Nodes))
	}
	want := []string{"NODE_FAIL node_fail 0 true [gpu1]", "COMPLETED  1 true [gpu2]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A task that a controller starts again after its end finds everything sealed, and
// says that there is nothing to claim: no other job is waited for.
func TestTick_RequeuedAfterItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 2)
	a, b := w.runs[0][0], w.runs[0][1]
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a), fmt.Sprintf("end %d 15", a), fmt.Sprintf("start %d", b), fmt.Sprintf("end %d 0", b), "done")
	w.tick()
	w.collect(a, raw, 0, 0, lifecycle.ExitInvalid)
	w.collect(b, raw, 0, 0, lifecycle.ExitMeasured)
	nextSecond()
	w.cluster.Requeue(w.job, slurm.NodeFail, 0)
	w.tick()
	w.clock.advance(time.Minute)
	w.cluster.Start(w.job, "gpu1", 0)
	w.record(0, raw, 1, "begin gpu1", "claim none", "done")
	w.tick()
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	for range 3 { // not until an attempt of another job has had its time
		w.tick()
		w.clock.advance(90 * time.Second)
	}
	w.expect(a, lifecycle.RunPending)
	w.expect(b, lifecycle.RunComplete)
	if state := w.batchState(); state != lifecycle.BatchEnded {
		t.Errorf("the batch is %s", state)
	}
	if got := w.attempts(a); len(got) != 1 {
		t.Errorf("attempts of run %d: %+v", a, got)
	}
}

func TestTick_Ends(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		state   slurm.State
		want    lifecycle.RunState
		charged int
	}{
		{slurm.NodeFail, lifecycle.RunPending, 0},
		{slurm.Preempted, lifecycle.RunPending, 0},
		{slurm.Timeout, lifecycle.RunPending, 1},
		{slurm.OutOfMemory, lifecycle.RunPending, 1},
		{slurm.Cancelled, lifecycle.RunCancelled, 1},
	} {
		t.Run(string(tt.state), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, slurmtest.Config{}, 2)
			a, b := w.runs[0][0], w.runs[0][1]
			w.cluster.Start(w.job, "gpu1", 0)
			w.record(0, w.raw(0), 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a))
			w.tick()
			w.cluster.End(w.job, tt.state, 0, 0)
			w.ticks()
			w.expect(a, tt.want)
			w.expect(b, tt.want) // at no cost, or stopped with its task
			run, err := w.store.Run(t.Context(), a)
			if err != nil || run.Charged != tt.charged {
				t.Errorf("charged %d (%s), want %d; %v", run.Charged, run.Reason, tt.charged, err)
			}
			if got := w.attempts(b); len(got) != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// Slurm's warning before the time limit reaches the run alone: the job completes.
func TestTick_TimeLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	a := w.runs[0][0]
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a), fmt.Sprintf("end %d 16", a), "done")
	w.tick()
	w.collect(a, raw, 0, 0, lifecycle.ExitCancelled)
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.ticks()
	w.expect(a, lifecycle.RunPending)
	if got := w.allocations(0); len(got) != 1 || got[0].Cause != lifecycle.CauseTimeLimit {
		t.Errorf("%+v", got)
	}
}

func TestTick_SealedButNotCollected(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	a := w.runs[0][0]
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a), fmt.Sprintf("end %d 0", a), "done")
	w.tick()
	w.seal(a, raw, 0)
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.tick()
	w.clock.advance(5 * time.Minute)
	w.tick()
	w.expect(a, lifecycle.RunRunning)
	w.clock.advance(6 * time.Minute)
	w.tick()
	w.expect(a, lifecycle.RunPending)
	// It was read after all.
	w.collect(a, raw, 0, 0, lifecycle.ExitMeasured)
	w.expect(a, lifecycle.RunComplete)
}

// TestTick_NotLookedAt: time alone gives nothing up that is sealed.
func TestTick_NotLookedAt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	a := w.runs[0][0]
	looked := w.clock.Now()
	w.tracker.Collected = func() time.Time { return looked }
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a), fmt.Sprintf("end %d 0", a), "done")
	w.tick()
	w.seal(a, raw, 0)
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.ticks()
	w.expect(a, lifecycle.RunRunning)
	looked = w.clock.Now()
	w.tick()
	w.expect(a, lifecycle.RunPending)
}

// TestTick_Torn: what a shared file system shows in part is not given up at once.
func TestTick_Torn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1, 1)
	w.cluster.Start(w.job, "gpu1", 0)
	w.cluster.Start(w.job, "gpu1", 1)
	w.tick()
	for i, kind := range []string{store.RejectedTorn, "foreign"} {
		a, raw := w.runs[i][0], w.raw(i)
		w.record(i, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a), fmt.Sprintf("end %d 0", a), "done")
		w.seal(a, raw, 0)
		dir := batch.AttemptDir(filepath.Join(w.dir, "attempts"), a, raw, 0)
		if err := w.store.Reject(t.Context(), store.Rejected{Dir: dir, RunID: a, Kind: kind, Reason: "so"}); err != nil {
			t.Fatal(err)
		}
	}
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.cluster.End(w.job, slurm.Completed, 0, 1)
	w.tick()
	w.clock.advance(2 * time.Minute)
	w.tick()
	w.expect(w.runs[0][0], lifecycle.RunProvisioning)
	w.expect(w.runs[1][0], lifecycle.RunPending)
	w.clock.advance(10 * time.Minute)
	w.tick()
	w.expect(w.runs[0][0], lifecycle.RunPending)
}

// TestTick_BegunUnseen: jobs started, and the controller crashed before it told
// anybody. What they have begun is known all the same, and what they have not is
// begun by nobody any more.
func TestTick_BegunUnseen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1, 1, 1)
	sealed, cut, idle := w.runs[0][0], w.runs[1][0], w.runs[2][0]
	w.tick()
	for i, run := range []int64{sealed, cut} {
		raw := int64(900 + i)
		if closed, err := spool.Start(w.dir, run, spool.Job{JobIDRaw: raw, Node: "gpu1"}); err != nil || closed != "" {
			t.Fatal(closed, err)
		}
		w.record(i, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", run))
	}
	w.seal(sealed, 900, 0)
	w.cluster.Crash(0)
	for range 4 { // it takes some time to believe that Slurm knows nothing
		w.tick()
		w.clock.advance(90 * time.Second)
	}
	w.tick()
	w.expect(sealed, lifecycle.RunSubmitted) // the collector will see it
	w.expect(cut, lifecycle.RunSubmitted)    // it may go on where nobody sees it
	w.expect(idle, lifecycle.RunPending)
	w.collect(sealed, 900, 0, 0, lifecycle.ExitMeasured)
	w.expect(sealed, lifecycle.RunComplete)
	w.clock.advance(10 * time.Minute)
	w.ticks()
	w.expect(cut, lifecycle.RunPending)
	if got := w.attempts(cut); len(got) != 1 || got[0].JobIDRaw != 901 || got[0].Sealed {
		t.Errorf("%+v", got)
	}
	w.expect(sealed, lifecycle.RunComplete)
	for _, run := range []int64{cut, idle} {
		closed, err := spool.Start(w.dir, run, spool.Job{JobIDRaw: 950})
		if err != nil || closed == "" {
			t.Errorf("run %d can still be begun here: %v", run, err)
		}
	}
}

// TestTick_UnreadableSpool: where it cannot be seen what has begun, nothing is
// decided.
func TestTick_UnreadableSpool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	a := w.runs[0][0]
	w.cluster.Start(w.job, "gpu1", 0)
	w.tick()
	claims := filepath.Join(w.dir, batch.ClaimsDir)
	if err := os.WriteFile(claims, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.cluster.End(w.job, slurm.Failed, 0, 0)
	for range 8 {
		_ = w.tracker.Tick(t.Context())
		w.clock.advance(90 * time.Second)
	}
	if err := w.tracker.Tick(t.Context()); err == nil || !strings.Contains(err.Error(), "give run") {
		t.Errorf("%v", err)
	}
	w.expect(a, lifecycle.RunProvisioning)
	if err := os.Remove(claims); err != nil {
		t.Fatal(err)
	}
	w.tick()
	w.expect(a, lifecycle.RunPending)
}

// TestTick_CompleteElsewhere: an attempt that was given up is read after all,
// while the run waits in another batch: that does not measure it again.
func TestTick_CompleteElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	a := w.runs[0][0]
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a))
	w.tick()
	w.cluster.End(w.job, slurm.NodeFail, 0, 0)
	w.ticks()
	w.expect(a, lifecycle.RunPending)
	other := store.NewBatch{
		Token: "sb-bbbbbbbbbbbbbbbbbbbb", Site: "lab", Cluster: "fake", UID: os.Getuid(), UserName: "ada", Dir: t.TempDir(), AttemptsDir: filepath.Join(w.dir, "attempts"),
		Digest: "sha256:0", TimeLimit: time.Hour, JobName: "sb-bbbbbbbbbbbbbbbbbbbb", Tasks: []store.NewTask{{TimeLimit: time.Hour, Runs: []int64{a}}},
	}
	if err := w.store.CreateBatch(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	w.collect(a, raw, 0, 0, lifecycle.ExitMeasured)
	w.expect(a, lifecycle.RunComplete)
	w.tick()
	if closed, err := spool.Start(other.Dir, a, spool.Job{JobIDRaw: 950}); err != nil || closed == "" {
		t.Errorf("it can be measured again: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(other.Dir, batch.CancelDir, fmt.Sprint(a))); err != nil {
		t.Error(err)
	}
	if left, err := w.store.MootRuns(t.Context(), "lab"); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestTick_OrphansAreCancelled: what a controller creates long after a batch is
// over is nobody's.
func TestTick_OrphansAreCancelled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	w.cluster.Start(w.job, "gpu1", 0)
	w.tick()
	w.cluster.End(w.job, slurm.Failed, 0, 0)
	w.ticks()
	if got := w.batchState(); got != lifecycle.BatchEnded {
		t.Fatal(got)
	}
	ghost, err := w.client.Submit(t.Context(), filepath.Join(w.dir, "batch.sbatch"), true)
	if err != nil {
		t.Fatal(err)
	}
	other := store.NewBatch{
		Token: "sb-bbbbbbbbbbbbbbbbbbbb", Site: "lab", Cluster: "fake", UID: os.Getuid(), UserName: "ada", Dir: t.TempDir(), AttemptsDir: "/x",
		Digest: "sha256:0", TimeLimit: time.Hour, JobName: "sb-bbbbbbbbbbbbbbbbbbbb", Tasks: []store.NewTask{{TimeLimit: time.Hour, Runs: w.runs[0]}},
	}
	if err := w.store.CreateBatch(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if ok, err := w.store.HoldBatch(t.Context(), other.Token, 777, nil, "", nil); err != nil || !ok {
		t.Fatal(ok, err)
	}
	w.tick()
	for _, j := range w.cluster.Jobs() {
		if j.ID == ghost.JobID && j.Tasks[0].State != slurm.Cancelled {
			t.Errorf("job %d is %s", j.ID, j.Tasks[0].State)
		}
	}
}

func TestTick_SlurmDoesNotAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1, 1)
	w.cluster.Start(w.job, "gpu1", 0)
	w.tick()
	w.cluster.Fault(slurmtest.Faults{ControllerDown: true})
	for range 10 {
		if err := w.tracker.Tick(t.Context()); !errors.Is(err, slurm.ErrUnreachable) {
			t.Errorf("error is %v", err)
		}
		w.clock.advance(time.Hour)
	}
	w.expect(w.runs[0][0], lifecycle.RunProvisioning)
	w.expect(w.runs[1][0], lifecycle.RunSubmitted)
	// The queue answers, the accounting database does not: a task that the queue
	// has forgotten stays as it is.
	w.cluster.Fault(slurmtest.Faults{})
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.cluster.Start(w.job, "gpu1", 1)
	w.cluster.End(w.job, slurm.Completed, 0, 1)
	w.cluster.Forget(w.job)
	w.cluster.Fault(slurmtest.Faults{AccountingDown: true})
	for range 10 {
		_ = w.tracker.Tick(t.Context())
		w.clock.advance(time.Hour)
	}
	w.expect(w.runs[0][0], lifecycle.RunProvisioning)
	w.cluster.Fault(slurmtest.Faults{})
	w.ticks()
	w.expect(w.runs[0][0], lifecycle.RunPending)
	if got := w.batchState(); got != lifecycle.BatchEnded {
		t.Errorf("the batch is %s", got)
	}
	if got := w.allocations(0); len(got) != 1 || got[0].ExitCode == nil || got[0].SeenIn != "sacct" {
		t.Errorf("%+v", got)
	}
}

func TestTick_WithoutAccounting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{NoAccounting: true}, 1)
	a := w.runs[0][0]
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a), fmt.Sprintf("end %d 0", a), "done")
	w.tick()
	w.collect(a, raw, 0, 0, lifecycle.ExitMeasured)
	w.cluster.End(w.job, slurm.Completed, 0, 0)
	w.cluster.Forget(w.job)
	w.ticks()
	w.expect(a, lifecycle.RunComplete)
	if got := w.batchState(); got != lifecycle.BatchEnded {
		t.Errorf("the batch is %s", got)
	}
}

// The controller crashes and gives the ids to somebody else.
func TestTick_JobForgottenAndIdGivenAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1, 1)
	w.tick()
	w.cluster.Crash(0)
	script := filepath.Join(t.TempDir(), "other.sbatch")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n#SBATCH --job-name=other\n#SBATCH --array=0-1\ntrue\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := w.client.Submit(t.Context(), script, false)
	if err != nil || other.JobID != w.job {
		t.Fatalf("%+v, %v", other, err)
	}
	w.tick()
	w.expect(w.runs[0][0], lifecycle.RunSubmitted)
	w.ticks()
	for _, task := range w.runs {
		w.expect(task[0], lifecycle.RunPending)
		if got := w.attempts(task[0]); len(got) != 0 {
			t.Errorf("charged for what never began: %+v", got)
		}
	}
	for _, j := range w.cluster.Jobs() {
		for _, task := range j.Tasks {
			if task.State != slurm.Pending {
				t.Errorf("the other's job is %s", task.State)
			}
		}
	}
}

func TestTick_StraysAreCancelled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	ghost, err := w.client.Submit(t.Context(), filepath.Join(w.dir, "batch.sbatch"), true)
	if err != nil {
		t.Fatal(err)
	}
	w.tick()
	w.tick()
	for _, j := range w.cluster.Jobs() {
		ended := !slices.ContainsFunc(j.Tasks, func(x slurmtest.Task) bool { return x.State.Phase() != slurm.PhaseEnded })
		if want := j.ID == ghost.JobID; ended != want {
			t.Errorf("job %d has ended: %v, want %v", j.ID, ended, want)
		}
	}
	w.expect(w.runs[0][0], lifecycle.RunSubmitted)
}

func TestTick_CancelWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 2, 1)
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	a := w.runs[0][0]
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a))
	w.tick()
	if _, err := w.store.Cancel(t.Context(), store.Scope{Sweeps: []int64{w.sweep}}, "ada", ""); err != nil {
		t.Fatal(err)
	}
	w.tick()
	if n := w.client.Stats()["scancel"].Calls; n != 1 {
		t.Errorf("%d calls of scancel", n)
	}
	w.record(0, raw, 0, fmt.Sprintf("end %d 16", a), "done")
	w.collect(a, raw, 0, 0, lifecycle.ExitCancelled)
	w.ticks()
	for _, task := range w.runs {
		for _, run := range task {
			w.expect(run, lifecycle.RunCancelled)
		}
	}
	if got := w.batchState(); got != lifecycle.BatchEnded {
		t.Errorf("the batch is %s", got)
	}
}

func TestTick_CancelPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 2, 1, 1)
	w.tick()
	// One of two runs of task 0, and all of task 1.
	half, whole := w.runs[0][1], w.runs[1][0]
	if _, err := w.store.Cancel(t.Context(), store.Scope{Runs: []int64{half, whole}}, "ada", ""); err != nil {
		t.Fatal(err)
	}
	w.ticks()
	w.expect(whole, lifecycle.RunCancelled)
	w.expect(half, lifecycle.RunSubmitted)
	w.expect(w.runs[0][0], lifecycle.RunSubmitted)
	w.expect(w.runs[2][0], lifecycle.RunSubmitted)
	if _, err := os.Stat(filepath.Join(w.dir, batch.CancelDir, fmt.Sprint(half))); err != nil {
		t.Error(err)
	}
	// task.sh passes it over.
	w.cluster.Start(w.job, "gpu1", 0)
	raw := w.raw(0)
	a := w.runs[0][0]
	w.record(0, raw, 0, "begin gpu1", "claim held", fmt.Sprintf("start %d", a), fmt.Sprintf("end %d 0", a), fmt.Sprintf("skip %d cancelled", half), "done")
	w.collect(a, raw, 0, 0, lifecycle.ExitMeasured)
	w.ticks() // nothing but cancelled runs is left of it: the task is ended
	w.expect(half, lifecycle.RunCancelled)
	w.expect(a, lifecycle.RunComplete)
}

func TestTick_TaskThatCannotClaimIsCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	w.cluster.Start(w.job, "gpu1", 0)
	w.record(0, w.raw(0), 0, "begin gpu1", "claim failed", "done")
	w.tick()
	w.cluster.End(w.job, slurm.Failed, 17, 0)
	w.ticks()
	w.expect(w.runs[0][0], lifecycle.RunPending)
	if got := w.attempts(w.runs[0][0]); len(got) != 1 {
		t.Errorf("%+v: it could go on for ever", got)
	}
}

// unlaunchable is a cluster that cannot launch its waiting tasks.
type unlaunchable struct {
	*slurm.Client
	reason   string
	released int
}

func (u *unlaunchable) Queue(ctx context.Context) (slurm.Queue, error) {
	q, err := u.Client.Queue(ctx)
	for i := range q.Jobs {
		if q.Jobs[i].State == slurm.Pending {
			q.Jobs[i].Reason = u.reason
		}
	}
	return q, err
}

func (u *unlaunchable) ReleaseTasks(ctx context.Context, array int64, tasks ...int) error {
	u.released += len(tasks)
	return u.Client.ReleaseTasks(ctx, array, tasks...)
}

// What Slurm could not launch it holds for ever: it is released a few times, then
// its runs go elsewhere and the job is ended.
func TestTick_LaunchFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	u := &unlaunchable{Client: w.client, reason: "launch failed requeued held"}
	w.restart(u)
	for range 2 {
		w.ticks()
	}
	w.expect(w.runs[0][0], lifecycle.RunPending)
	if u.released != mostLaunches {
		t.Errorf("released %d times", u.released)
	}
	for _, j := range w.cluster.Jobs() {
		if j.Tasks[0].State != slurm.Cancelled {
			t.Errorf("the task is %s", j.Tasks[0].State)
		}
	}
}

func (w *world) setMode(mode string) {
	w.Helper()
	if _, err := w.store.SetSiteMode(w.Context(), store.SiteMode{Site: "lab", Mode: mode, ChangedBy: "root"}); err != nil {
		w.Fatal(err)
	}
}

// TestTick_Paused: on a paused site what runs is followed, cancelled and ended.
func TestTick_Paused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1, 1)
	w.setMode(store.SitePaused)
	w.cluster.Start(w.job, "gpu1", 0)
	w.tick()
	w.expect(w.runs[0][0], lifecycle.RunProvisioning)
	if _, err := w.store.Cancel(t.Context(), store.Scope{Runs: []int64{w.runs[1][0]}}, "ada", ""); err != nil {
		t.Fatal(err)
	}
	w.cluster.End(w.job, slurm.Failed, 1, 0)
	w.ticks()
	w.expect(w.runs[0][0], lifecycle.RunPending)
	w.expect(w.runs[1][0], lifecycle.RunCancelled)
}

// A controller that crashed after the release has forgotten it.
func TestTick_HeldAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1, 1)
	if err := w.client.Hold(t.Context(), w.job); err != nil {
		t.Fatal(err)
	}
	w.setMode(store.SitePaused)
	w.tick()
	if !w.cluster.Jobs()[0].Held {
		t.Error("a job of a paused site was released")
	}
	w.setMode(store.SiteDrain)
	w.tick()
	if w.cluster.Jobs()[0].Held {
		t.Error("the job is still held")
	}
	// Once something has begun, whoever holds the rest means it.
	w.cluster.Start(w.job, "gpu1", 0)
	w.tick()
	if err := w.client.Hold(t.Context(), w.job); err != nil {
		t.Fatal(err)
	}
	w.ticks()
	if !w.cluster.Jobs()[0].Held {
		t.Error("a job that somebody holds was released")
	}
}

// A controller that forgot a task's end brings it back: its runs are decided.
func TestTick_EndedTaskComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1, 1)
	w.cluster.Start(w.job, "gpu1", 0)
	w.tick()
	err := w.store.WithTx(t.Context(), func(tx *store.Tx) error {
		return tx.MoveTasks(t.Context(), []store.TaskKey{{Token: token, Index: 0}}, []string{""}, lifecycle.TaskEnded)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.tick()
	job := w.cluster.Jobs()[0]
	if job.Tasks[0].State != slurm.Cancelled || job.Tasks[1].State != slurm.Pending {
		t.Errorf("tasks are %s and %s", job.Tasks[0].State, job.Tasks[1].State)
	}
}

func TestTick_NoRecordAtAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	w.cluster.Start(w.job, "gpu1", 0)
	w.tick()
	w.cluster.End(w.job, slurm.Failed, 0, 0)
	w.ticks()
	run, err := w.store.Run(t.Context(), w.runs[0][0])
	if err != nil || run.State != lifecycle.RunPending || run.Charged != 1 || !strings.Contains(run.Reason, "no record") {
		t.Errorf("%+v, %v", run, err)
	}
}

// A record is a file on a shared file system.
func TestReadRecord_Hostile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := store.Batch{Dir: dir, UID: os.Getuid()}
	logs := filepath.Join(dir, batch.LogsDir)
	if err := os.Mkdir(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(logs, batch.RecordName(0, 1, 0))
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("1 begin x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, name); err != nil {
		t.Fatal(err)
	}
	if _, ok := readRecord(b, 0, 1, 0); ok {
		t.Error("a link is followed")
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(name, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, ok := readRecord(b, 0, 1, 0); ok {
		t.Error("a folder is read")
	}
	big := filepath.Join(logs, batch.RecordName(1, 1, 0))
	if err := os.WriteFile(big, []byte("1 begin x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 1<<40); err != nil {
		t.Fatal(err)
	}
	if rec, ok := readRecord(b, 1, 1, 0); !ok || rec.Node != "x" {
		t.Error("the beginning of a large record is not read")
	}
	b.UID++
	if _, ok := readRecord(b, 1, 1, 0); ok {
		t.Error("another's file is believed")
	}
}

func TestTracker_Next(t *testing.T) {
	t.Parallel()
	tr := New(Config{Site: testSite(), Interval: 15 * time.Second})
	failed := fmt.Errorf("sacct: %w", slurm.ErrUnreachable)
	other := errors.Join(errors.New("settle task x/3: permission denied"))
	for _, tt := range []struct {
		name       string
		last, took time.Duration
		err        error
		want       time.Duration
	}{
		{"a quick tick", 15 * time.Second, 100 * time.Millisecond, nil, 15 * time.Second},
		{"a slow controller", 15 * time.Second, 3 * time.Second, nil, time.Minute},
		{"a very slow one", time.Minute, time.Minute, nil, longest},
		{"no answer", 15 * time.Second, 10 * time.Second, failed, 30 * time.Second},
		{"no answer for long", 4 * time.Minute, 0, failed, longest},
		{"a folder that cannot be read", 15 * time.Second, 100 * time.Millisecond, other, 15 * time.Second},
		{"both", 15 * time.Second, 100 * time.Millisecond, errors.Join(other, failed), 30 * time.Second},
		{"well again", longest, 50 * time.Millisecond, nil, 15 * time.Second},
	} {
		if got := tr.next(tt.last, tt.took, tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestTick_BatchTakenBack: what Slurm told of a job means nothing once the submitter
// has taken it back.
func TestTick_BatchTakenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	w.cluster.Start(w.job, "gpu1", 0)
	w.tracker.Failpoint = func(name string) {
		if name == FailObserved {
			if ok, err := w.store.ForgetBatch(t.Context(), token, "the controller forgot it"); err != nil || !ok {
				t.Error(ok, err)
			}
		}
	}
	if err := w.tracker.Tick(t.Context()); !errors.Is(err, store.ErrForgotten) {
		t.Errorf("error is %v", err)
	}
	w.expect(w.runs[0][0], lifecycle.RunSubmitted)
	if len(w.allocations(0)) != 0 || w.batchState() != lifecycle.BatchIntent {
		t.Errorf("%+v, the batch is %s", w.allocations(0), w.batchState())
	}
}

// TestTick_BatchBegan: one that has begun cannot be taken back.
func TestTick_BatchBegan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	w.cluster.Start(w.job, "gpu1", 0)
	w.tick()
	if ok, err := w.store.ForgetBatch(t.Context(), token, "the controller forgot it"); err != nil || ok {
		t.Error(ok, err)
	}
}

func TestRun_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	reached := make(chan struct{}, 100)
	w.tracker.Failpoint = func(name string) {
		if name == FailSettled {
			reached <- struct{}{}
		}
	}
	done := make(chan error, 1)
	go func() { done <- w.tracker.Run(ctx) }()
	<-reached
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestRun_Fenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, slurmtest.Config{}, 1)
	w.cluster.Start(w.job, "gpu1", 0)
	w.tracker.Store = w.store.Fenced(12345)
	if err := w.tracker.Run(t.Context()); !errors.Is(err, store.ErrFenced) {
		t.Errorf("error is %v", err)
	}
	w.expect(w.runs[0][0], lifecycle.RunSubmitted)
}

var _ cluster = (*slurm.Client)(nil)
