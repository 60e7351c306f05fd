package track

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/slurm"
	"sbench/internal/spool"
	"sbench/internal/store"
)

// mostRestarts bounds the starts of a task that are looked for: Slurm itself
// stops requeueing long before.
const mostRestarts = 64

// start is one start of a task, as far as it is known.
type start struct {
	raw      int64
	restart  int
	alloc    store.Allocation
	record   batch.Record
	recorded bool // it left a record
	unseen   bool // Slurm never told of it: only the spool has it
}

// endedTask is a task that has ended, with the runs that nobody has decided about.
type endedTask struct {
	key    store.TaskKey
	batch  store.Batch
	ended  time.Time
	starts []start
	runs   []store.TrackedRun
}

// settle decides about the runs of ended tasks that sealed nothing.
func (t *Tracker) settle(ctx context.Context, batches map[string]store.Batch) error {
	runs, err := t.Store.UnsettledRuns(ctx, t.Site.Name)
	if err != nil || len(runs) == 0 {
		return err
	}
	tasks, ids := group(runs, batches)
	if len(tasks) == 0 {
		return nil
	}
	keys := make([]store.TaskKey, len(tasks))
	for i := range tasks {
		keys[i] = tasks[i].key
	}
	allocations, err := t.Store.AllocationsOfTasks(ctx, keys)
	if err != nil {
		return err
	}
	attempts, err := t.Store.KnownAttempts(ctx, ids)
	if err != nil {
		return err
	}
	rejected, err := t.Store.RejectedAttempts(ctx, ids...)
	if err != nil {
		return err
	}
	known := map[store.KnownAttempt]bool{}
	for _, a := range attempts {
		a.Sealed = false
		known[a] = true
	}
	refused := map[string]store.Rejected{}
	for _, r := range rejected {
		refused[r.Dir] = r
	}
	var errs []error
	for i := range tasks {
		task := &tasks[i]
		task.find(allocations)
		v := verdicts{tracker: t, task: task, known: known, refused: refused}
		for _, r := range task.runs {
			v.decide(r)
		}
		if err := v.write(ctx); err != nil {
			errs = append(errs, err)
			if errors.Is(err, store.ErrFenced) || ctx.Err() != nil {
				return err
			}
		}
	}
	return errors.Join(errs...)
}

func group(runs []store.TrackedRun, batches map[string]store.Batch) ([]endedTask, []int64) {
	var tasks []endedTask
	var ids []int64
	for _, r := range runs {
		b, open := batches[r.BatchToken]
		if !open || r.TaskEnded == nil {
			continue
		}
		key := store.TaskKey{Token: r.BatchToken, Index: r.TaskIndex}
		if n := len(tasks); n == 0 || tasks[n-1].key != key {
			tasks = append(tasks, endedTask{key: key, batch: b, ended: *r.TaskEnded})
		}
		last := &tasks[len(tasks)-1]
		last.runs = append(last.runs, r)
		ids = append(ids, r.ID)
	}
	return tasks, ids
}

// find lists the starts of the task: those that Slurm told of, and those that
// left a record.
func (task *endedTask) find(allocations []store.Allocation) {
	byRaw := map[int64][]store.Allocation{}
	var raws []int64
	for _, a := range allocations {
		if a.Token != task.key.Token || a.TaskIndex != task.key.Index {
			continue
		}
		if byRaw[a.JobIDRaw] == nil {
			raws = append(raws, a.JobIDRaw)
		}
		byRaw[a.JobIDRaw] = append(byRaw[a.JobIDRaw], a)
	}
	for _, raw := range raws {
		own := byRaw[raw]
		missing := 0
		for n := 0; n < mostRestarts && (n < len(own) || missing < 3); n++ {
			s := start{raw: raw, restart: n, alloc: own[min(n, len(own)-1)]}
			s.record, s.recorded = readRecord(task.batch, task.key.Index, raw, n)
			if n >= len(own) && !s.recorded {
				missing++
				continue
			}
			missing = 0
			task.starts = append(task.starts, s)
		}
	}
}

// verdicts collects what becomes of the runs of one ended task.
type verdicts struct {
	tracker *Tracker
	task    *endedTask
	known   map[store.KnownAttempt]bool
	refused map[string]store.Rejected // folders that the collector refused

	lost    []store.NewAttempt
	judge   []store.Ended
	back    map[string][]int64 // never started, by reason
	stopped []int64            // never started, because somebody ended the job
	limit   []store.Allocation // ended by the time limit, as only the record shows
	open    bool               // something is left for a later tick
	err     error              // why it is
}

// startsOf returns the starts of the task that matter for a run, and which of
// them have begun it for certain. A run that is undecided is given up here first:
// what has not begun it by now never will, so that "never started" is a fact, and
// not only what nobody has seen.
func (v *verdicts) startsOf(r store.TrackedRun) (starts []start, begun map[startID]bool, err error) {
	if !r.Here {
		return v.task.starts, nil, nil
	}
	jobs, err := spool.Close(v.task.batch.Dir, r.ID, "its task has ended", v.tracker.Now())
	if err != nil {
		return nil, nil, err
	}
	starts, begun = v.task.starts, map[startID]bool{}
	for _, j := range jobs {
		id := startID{j.JobIDRaw, j.Restart}
		if begun[id] {
			continue
		}
		begun[id] = true
		if slices.ContainsFunc(starts, func(s start) bool { return s.raw == id.raw && s.restart == id.restart }) {
			continue
		}
		s := start{raw: id.raw, restart: id.restart, unseen: true}
		if j.Node != "" {
			s.alloc.Nodes = []string{j.Node}
		}
		s.record, s.recorded = readRecord(v.task.batch, v.task.key.Index, id.raw, id.restart)
		starts = append(slices.Clip(starts), s)
	}
	return starts, begun, nil
}

type startID struct {
	raw     int64
	restart int
}

// decide says what becomes of a run, or leaves it for a later tick.
func (v *verdicts) decide(r store.TrackedRun) {
	waited := v.tracker.Now().Sub(v.task.ended)
	tried, reason := false, "its task ended before it began"
	starts, begun, err := v.startsOf(r)
	if err != nil {
		v.open, v.err = true, errors.Join(v.err, err)
		return
	}
	var cause lifecycle.Cause
	var lost []store.NewAttempt
	for i := range starts {
		s := &starts[i]
		last := i == len(starts)-1
		cause = s.alloc.Cause
		key := store.KnownAttempt{RunID: r.ID, JobIDRaw: s.raw, RestartCount: s.restart}
		rr, mentioned := runRecord(s.record, r.ID)
		began := begun[startID{s.raw, s.restart}]
		switch {
		case v.known[key]:
			tried = true
			v.noteLimit(s, rr)
			continue
		case manifestThere(v.task.batch, r.ID, s.raw, s.restart):
			why, final := v.unaccepted(r, s, waited)
			if !final {
				v.open = true
				return // the collector will see it
			}
			tried = true
			lost = append(lost, v.lose(r, s, rr, "what was sealed was not accepted: "+why))
		case !began && s.recorded && s.record.Claim == "held" && !s.record.Done.IsZero() && rr.Started.IsZero():
			// The task says so itself: it was not started.
			if rr.Reason == "time" {
				reason = "no time was left in its task"
			}
		case waited < v.tracker.Visibility && (last || mentioned || began), s.unseen && waited < v.tracker.Collect:
			// A shared file system may show it late; and what Slurm never told of may
			// still be under way on a node that the controller has forgotten.
			v.open = true
			return
		case began, mentioned && !rr.Started.IsZero():
			tried = true
			lost = append(lost, v.lose(r, s, rr, unsealed(s, rr)))
		case !r.Here:
		case s.recorded && s.record.Claim == "none" && v.triedBy(r.ID, s.raw):
			// The task was started again and found everything sealed by itself.
		case s.recorded && s.record.Claim == "none" && last && waited < v.tracker.Collect:
			v.open = true
			return // another job measures the task: its attempts come under its own id
		case s.recorded && (s.record.Claim == "failed" || s.record.Claim == ""):
			// It is charged: what fails before the claim may fail for ever.
			tried = true
			lost = append(lost, v.lose(r, s, rr, "the task could not claim itself"+because(s.alloc)+": see its log"))
		case !s.recorded:
			tried = true
			lost = append(lost, v.lose(r, s, rr, "the task left no record"+because(s.alloc)))
		}
	}
	switch {
	case tried:
		v.lost = append(v.lost, lost...)
		v.judge = append(v.judge, store.Ended{RunID: r.ID, Token: v.task.key.Token, TaskIndex: v.task.key.Index})
	case !r.Here:
	case cause == lifecycle.CauseUser:
		v.stopped = append(v.stopped, r.ID)
	default:
		if v.back == nil {
			v.back = map[string][]int64{}
		}
		v.back[reason] = append(v.back[reason], r.ID)
	}
}

// unaccepted says why the collector did not take what a start has sealed, and
// false where it may still do so. Time alone gives nothing up: only after the
// collector has looked, and a torn folder only after it had time to become whole.
func (v *verdicts) unaccepted(r store.TrackedRun, s *start, waited time.Duration) (why string, final bool) {
	dir := batch.AttemptDir(v.task.batch.AttemptsDir, r.ID, s.raw, s.restart)
	refused, bad := v.refused[dir]
	if bad {
		return refused.Reason, refused.Kind != store.RejectedTorn || waited >= v.tracker.Collect
	}
	if waited < v.tracker.Collect {
		return "", false
	}
	first, seen := v.tracker.unread[dir]
	if !seen {
		first = v.tracker.Now()
		v.tracker.unread[dir] = first
	}
	if v.tracker.Collected != nil && !v.tracker.Collected().After(first) {
		return "", false
	}
	delete(v.tracker.unread, dir)
	return "it was looked at and not read", true
}

// triedBy reports whether an attempt of the run on any start of the job is known.
func (v *verdicts) triedBy(run, raw int64) bool {
	for k := range v.known {
		if k.RunID == run && k.JobIDRaw == raw {
			return true
		}
	}
	return false
}

func runRecord(rec batch.Record, run int64) (batch.RunRecord, bool) {
	i := slices.IndexFunc(rec.Runs, func(r batch.RunRecord) bool { return r.Run == run })
	if i < 0 {
		return batch.RunRecord{}, false
	}
	return rec.Runs[i], true
}

// noteLimit recognises Slurm's warning before the time limit: it reaches the run
// alone, and the job then ends by itself.
func (v *verdicts) noteLimit(s *start, rr batch.RunRecord) {
	if s.alloc.Cause == lifecycle.CauseNone && s.alloc.Ended && rr.Exit == lifecycle.ExitCancelled.Code() {
		s.alloc.Cause = lifecycle.CauseTimeLimit
		v.limit = append(v.limit, s.alloc)
	}
}

// unsealed says why a run that was started sealed nothing.
func unsealed(s *start, rr batch.RunRecord) string {
	switch {
	case rr.Ended.IsZero():
		return "nothing was sealed" + because(s.alloc)
	case rr.Exit == 1:
		return "nothing was sealed: srun could not start it or lost it, see the task's log" + because(s.alloc)
	case rr.Exit > 128 && rr.Exit < 160:
		return fmt.Sprintf("nothing was sealed: killed by signal %d%s", rr.Exit-128, because(s.alloc))
	}
	return fmt.Sprintf("nothing was sealed: exit status %d%s", rr.Exit, because(s.alloc))
}

func because(a store.Allocation) string {
	switch a.Cause {
	case lifecycle.CauseNode:
		return " (the node failed)"
	case lifecycle.CausePreempted:
		return " (preempted or requeued)"
	case lifecycle.CauseTimeLimit:
		return " (the time limit was reached)"
	case lifecycle.CauseUser:
		return " (cancelled in Slurm)"
	default:
		return ""
	}
}

func (v *verdicts) lose(r store.TrackedRun, s *start, rr batch.RunRecord, reason string) store.NewAttempt {
	b := v.task.batch
	a := result.Attempt{
		RunID: r.ID, Sweep: r.SweepID, SettingHash: r.SettingHash, SeriesHash: r.SeriesHash, Repeat: r.Repeat, Token: b.Token,
		TaskIndex: v.task.key.Index, Site: b.Site, Cluster: b.Cluster, JobIDRaw: s.raw, RestartCount: s.restart,
		Nodes: s.alloc.Nodes, HardwareClass: r.HardwareClass, StartedAt: rr.Started, EndedAt: rr.Ended,
	}
	if a.EndedAt.IsZero() && s.alloc.EndTime != nil && !a.StartedAt.IsZero() {
		a.EndedAt = *s.alloc.EndTime
	}
	if !a.EndedAt.IsZero() && a.EndedAt.Before(a.StartedAt) {
		a.EndedAt = a.StartedAt // two clocks
	}
	return store.LostAttempt(a, reason)
}

// write applies the verdicts in one transaction.
func (v *verdicts) write(ctx context.Context) error {
	if v.open && len(v.lost)+len(v.judge)+len(v.back)+len(v.stopped) == 0 {
		return v.err
	}
	err := v.tracker.Store.WithTx(ctx, func(tx *store.Tx) error {
		for _, reason := range sortedKeys(v.back) {
			if err := tx.ReturnRuns(ctx, v.back[reason], lifecycle.RunPending, reason); err != nil {
				return err
			}
		}
		if err := tx.ReturnRuns(ctx, v.stopped, lifecycle.RunCancelled, "cancelled in Slurm before it began"); err != nil {
			return err
		}
		if _, err := tx.InsertAttempts(ctx, v.lost); err != nil {
			return err
		}
		if err := tx.UpsertAllocations(ctx, v.limit); err != nil {
			return err
		}
		evidence := map[string]any{"task": v.task.key.Token + "/" + strconv.Itoa(v.task.key.Index)}
		if n := len(v.task.starts); n > 0 {
			s := v.task.starts[n-1]
			evidence["job_id_raw"], evidence["restart_count"], evidence["slurm_state"] = s.raw, s.restart, s.alloc.State
		}
		if _, err := tx.Judge(ctx, v.judge, lifecycle.ActorTrack, evidence); err != nil || v.open {
			return err
		}
		return tx.SettleTask(ctx, v.task.key)
	})
	if err = errors.Join(err, v.err); err != nil {
		return fmt.Errorf("settle task %s/%d: %w", v.task.key.Token, v.task.key.Index, err)
	}
	return nil
}

func sortedKeys(m map[string][]int64) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

const (
	stepsAfter = 15 * time.Second // after the end: the database's lag
	stepsEvery = 10 * time.Second
	stepPrefix = "sb-run-"
)

// steps stores what Slurm accounted for each run, once per ended allocation.
func (t *Tracker) steps(ctx context.Context) error {
	now := t.Now()
	if t.noRecords || now.Sub(t.lastSteps) < stepsEvery {
		return nil
	}
	t.lastSteps = now
	list, err := t.Store.StepsToRead(ctx, t.Site.Cluster, now.Add(-stepsAfter), t.accountable(), slurm.MaxStepJobs)
	if err != nil || len(list) == 0 {
		return err
	}
	since := now
	var jobs []int64
	for _, a := range list {
		if !slices.Contains(jobs, a.JobIDRaw) {
			jobs = append(jobs, a.JobIDRaw)
		}
		if a.SubmitTime.Before(since) {
			since = a.SubmitTime
		}
	}
	begun := time.Now()
	found, err := t.Cluster.Steps(ctx, since.Add(-skew), jobs...)
	t.ask(begun)
	if errors.Is(err, slurm.ErrNoAccounting) {
		t.noRecords = true
		return nil
	}
	if err != nil {
		return err
	}
	var steps []store.Step
	for _, s := range found {
		if s.Start.IsZero() {
			continue // it never ran
		}
		step := store.Step{
			Cluster: t.Site.Cluster, JobIDRaw: s.Raw, StartTime: s.Start, StepID: s.Step, Name: s.Name, State: string(s.State),
			EndTime: instant(s.End), ElapsedS: int64(s.Elapsed / time.Second), ExitCode: s.ExitCode, ExitSignal: s.ExitSignal, Nodes: s.Nodes,
			EnergyJ: s.EnergyJ,
		}
		if id, ok := runOfStep(s.Name); ok {
			step.RunID = &id
		}
		steps = append(steps, step)
	}
	return t.Store.StoreSteps(ctx, t.Site.Cluster, steps, jobs)
}

func runOfStep(name string) (int64, bool) {
	if len(name) <= len(stepPrefix) || name[:len(stepPrefix)] != stepPrefix {
		return 0, false
	}
	id, err := strconv.ParseInt(name[len(stepPrefix):], 10, 64)
	return id, err == nil && id > 0
}

// cancelEvery is how long a cancelled job may take to go before it is cancelled
// again.
const cancelEvery = 30 * time.Second

// cancel ends what users have cancelled, and the strays. Only jobs that the queue
// shows under our name are touched.
func (t *Tracker) cancel(ctx context.Context, batches map[string]store.Batch, views map[string]view, orphans []string) error {
	targets := orphans
	now := t.Now()
	due := func(token string) bool { return now.Sub(t.cancelled[token]) >= cancelEvery }
	for token, v := range views {
		if len(v.strays)+len(v.again) == 0 || !due(token+strayMark) {
			continue
		}
		t.Log.WarnContext(ctx, "cancelling what should not be in the queue", "token", token, "jobs", v.strays, "tasks", v.again)
		for _, id := range v.strays {
			targets = append(targets, strconv.FormatInt(id, 10))
		}
		if len(v.again) > 0 {
			targets = append(targets, tasksOf(*batches[token].JobID, v.again))
		}
		t.cancelled[token+strayMark] = now
	}
	runs, err := t.Store.RunsToCancel(ctx, t.Site.Name)
	if err != nil {
		return err
	}
	var errs []error
	for token, whole := range wanted(runs) {
		b, open := batches[token]
		if !open || !views[token].known() || !due(token) {
			continue
		}
		for _, run := range whole.partly {
			if err := markCancelled(b, run); err != nil {
				errs = append(errs, fmt.Errorf("mark run %d cancelled in %s: %w", run, filepath.Base(b.Dir), err))
			}
		}
		job := strconv.FormatInt(*b.JobID, 10)
		switch {
		case len(whole.tasks) == 0:
			continue
		case whole.all:
			targets = append(targets, job)
		default:
			targets = append(targets, tasksOf(*b.JobID, whole.tasks))
		}
		t.cancelled[token] = now
		t.Log.InfoContext(ctx, "cancelling", "token", token, "job", *b.JobID, "tasks", len(whole.tasks), "all", whole.all)
	}
	slices.Sort(targets)
	return errors.Join(append(errs, t.Cluster.Cancel(ctx, targets...))...)
}

// strayMark keeps apart when strays of a batch were cancelled.
const strayMark = " strays"

// tasksOf names tasks of an array as scancel reads them.
func tasksOf(array int64, tasks []int) string {
	return strconv.FormatInt(array, 10) + "_[" + slurm.IndexesOf(tasks).String() + "]"
}

// cancellation is what of a batch is to be cancelled.
type cancellation struct {
	all    bool    // every task that has not ended
	tasks  []int   // all of whose runs are cancelled, ascending
	partly []int64 // runs of the other tasks
}

func wanted(runs []store.TrackedRun) map[string]cancellation {
	type count struct {
		cancelled []int64
		others    int
	}
	perTask := map[store.TaskKey]*count{}
	var order []store.TaskKey
	for _, r := range runs {
		key := store.TaskKey{Token: r.BatchToken, Index: r.TaskIndex}
		if perTask[key] == nil {
			perTask[key] = &count{}
			order = append(order, key)
		}
		if r.CancelRequested {
			perTask[key].cancelled = append(perTask[key].cancelled, r.ID)
		} else {
			perTask[key].others++
		}
	}
	all := map[string]cancellation{}
	for _, key := range order {
		c, seen := all[key.Token]
		if !seen {
			c.all = true
		}
		switch n := perTask[key]; {
		case n.others == 0:
			c.tasks = append(c.tasks, key.Index)
		default:
			c.all = false
			c.partly = append(c.partly, n.cancelled...)
		}
		all[key.Token] = c
	}
	return all
}
