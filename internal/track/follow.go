package track

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/slurm"
	"sbench/internal/store"
)

// accountingFor is how long the accounting data of an ended allocation is waited
// for, and recordsEvery how often it is asked for where nothing depends on it.
const (
	accountingFor = time.Hour
	recordsEvery  = 30 * time.Second
)

// changes is what a look at Slurm makes of the tasks.
type changes struct {
	allocations []store.Allocation
	toRunning   []store.TaskKey
	toWaiting   []store.TaskKey
	toEnded     []store.TaskKey
	reasons     []string         // of toEnded
	refused     []store.TaskKey  // of toEnded: cancelled in Slurm before they began
	progress    []holding        // tasks whose record says which run is under way
	launch      map[string][]int // tasks that Slurm could not launch and holds, by token
	// restarts are the restart counts that Slurm itself has told.
	restarts map[allocationKey]int
}

// record notes what sacct says of an allocation.
func (c *changes) record(b store.Batch, i int, r slurm.Record) {
	c.allocations = append(c.allocations, recorded(b, i, r))
	if r.Restarts != nil {
		c.restarts[allocationKey{r.Raw, r.Submit.Unix()}] = *r.Restarts
	}
}

type holding struct {
	key     store.TaskKey
	raw     int64
	restart int
}

// follow asks Slurm and writes what it says about allocations, tasks and runs.
func (t *Tracker) follow(ctx context.Context, batches map[string]store.Batch) error {
	tokens := make([]string, 0, len(batches))
	for token := range batches {
		tokens = append(tokens, token)
	}
	slices.Sort(tokens)
	tasks, err := t.Store.OpenTasks(ctx, tokens...)
	if err != nil {
		return err
	}
	known, err := t.Store.AllocationsToFollow(ctx, tokens, t.accountable())
	if err != nil {
		return err
	}
	begun := time.Now()
	q, err := t.Cluster.Queue(ctx)
	t.ask(begun)
	if err != nil {
		return err
	}
	for _, s := range q.Skipped {
		t.Log.WarnContext(ctx, "a row of squeue is not understood", "row", s.Row, "error", s.Err)
		// One of ours may stand for any of its tasks: nothing is known. Others do
		// not keep us from our work.
		if slices.ContainsFunc(tokens, func(token string) bool { return strings.Contains(s.Row, token) }) {
			return fmt.Errorf("read the queue: a row is not understood: %w", s.Err)
		}
	}
	views := map[string]view{}
	for _, b := range batches {
		views[b.Token] = look(q, b)
	}
	recs, answered, err := t.records(ctx, batches, views, tasks, known)
	if err != nil {
		t.Log.WarnContext(ctx, "no accounting records", "error", err)
	}
	t.Failpoint(FailObserved)
	c := &changes{launch: map[string][]int{}, restarts: map[allocationKey]int{}}
	for _, open := range tasks {
		b := batches[open.Token]
		for _, i := range open.Running {
			t.task(c, b, views[b.Token], recs, answered, i, lifecycle.TaskRunning)
		}
		for _, i := range open.Waiting {
			t.task(c, b, views[b.Token], recs, answered, i, lifecycle.TaskWaiting)
		}
	}
	for _, a := range known {
		t.allocation(c, batches[a.Token], views[a.Token], recs, a)
	}
	if err := t.apply(ctx, batches, c); err != nil {
		return err
	}
	t.Failpoint(FailApplied)
	for token, v := range views {
		v.strayTasks(tasks, c.toEnded, token)
		views[token] = v
	}
	orphans, err := t.orphans(ctx, q, batches)
	return errors.Join(err, t.explain(ctx, batches, views), t.releaseAll(ctx, batches, views, tasks, c), t.cancel(ctx, batches, views, orphans))
}

// accountable is since when an ended allocation must have been seen for its
// accounting to be waited for: where no records are kept, none is.
func (t *Tracker) accountable() time.Time {
	if t.noRecords {
		return t.Now().Add(time.Second)
	}
	return t.Now().Add(-accountingFor)
}

// records asks sacct where something depends on it. answered is false where
// nothing is known; it is true where the cluster keeps no records.
func (t *Tracker) records(ctx context.Context, batches map[string]store.Batch, views map[string]view, tasks []store.OpenTasks, known []store.Allocation) (records, bool, error) {
	if t.noRecords {
		return records{}, true, nil
	}
	now := t.Now()
	urgent, casual := map[string]bool{}, map[string]bool{}
	wide := false
	for _, open := range tasks {
		b := batches[open.Token]
		if b.State != lifecycle.BatchReleased {
			continue
		}
		v := views[b.Token]
		for _, i := range slices.Concat(open.Waiting, open.Running) {
			if t.absent(v, i) {
				urgent[b.Token] = true
				first, missed := t.since[store.TaskKey{Token: b.Token, Index: i}]
				wide = wide || missed && now.Sub(first) > 4*t.Interval
			}
		}
	}
	oldest := now // end that is not accounted for
	for _, a := range known {
		switch {
		case a.Ended:
			casual[a.Token] = true
			if a.EndTime != nil && a.EndTime.Before(oldest) {
				oldest = *a.EndTime
			}
		case !t.held(views[a.Token], a):
			urgent[a.Token] = true
		}
	}
	if len(urgent) == 0 && (len(casual) == 0 || now.Sub(t.asked) < recordsEvery) {
		return records{}, false, nil
	}
	q := slurm.AccountingQuery{Since: now}
	for token, b := range batches {
		if !urgent[token] && !casual[token] {
			continue
		}
		q.Jobs = append(q.Jobs, *b.JobID)
		if first := b.CreatedAt.Add(-skew); first.Before(q.Since) {
			q.Since = first
		}
	}
	slices.Sort(q.Jobs)
	// What ended before the last answer was in it, but for what is known to lack.
	last := t.asked
	if oldest.Before(last) {
		last = oldest
	}
	if last = last.Add(-skew); !wide && !t.asked.IsZero() && last.After(q.Since) {
		q.Since = last
	}
	begun := time.Now()
	a, err := t.Cluster.Accounting(ctx, q)
	t.ask(begun)
	if errors.Is(err, slurm.ErrNoAccounting) {
		t.noRecords = true
		t.Log.WarnContext(ctx, "the cluster keeps no accounting: causes, exit statuses and costs come from our own records alone")
		return records{}, true, nil
	}
	if err != nil {
		return records{}, false, err
	}
	for _, s := range a.Skipped {
		t.Log.WarnContext(ctx, "a record of sacct is not understood", "record", s.Row, "error", s.Err)
	}
	t.asked = now
	return index(a), true, nil
}

// absent reports whether the queue says nothing about a task.
func (t *Tracker) absent(v view, task int) bool {
	if _, ok := v.waits(task); ok {
		return false
	}
	if _, ok := v.holding[task]; ok {
		return false
	}
	_, ok := v.endedRow(task)
	return !ok
}

// held reports whether the queue shows the allocation as holding its nodes.
func (t *Tracker) held(v view, a store.Allocation) bool {
	j, ok := v.holding[a.TaskIndex]
	return ok && j.Raw == a.JobIDRaw && j.Submit.Equal(a.SubmitTime)
}

// task decides about a task that has not ended.
func (t *Tracker) task(c *changes, b store.Batch, v view, recs records, answered bool, i int, state lifecycle.TaskState) {
	key := store.TaskKey{Token: b.Token, Index: i}
	if j, ok := v.waits(i); ok {
		delete(t.since, key)
		if t.unlaunched(c, key, j) {
			return
		}
		if state == lifecycle.TaskRunning {
			c.toWaiting = append(c.toWaiting, key)
		}
		return
	}
	if j, ok := v.holding[i]; ok {
		delete(t.since, key)
		t.observed(c, b, i, j)
		if state == lifecycle.TaskWaiting {
			c.toRunning = append(c.toRunning, key)
		}
		c.progress = append(c.progress, holding{key: key, raw: j.Raw})
		return
	}
	if b.State != lifecycle.BatchReleased {
		return // the submitter sees to a held job that is not there
	}
	first, missed := t.since[key]
	if !missed {
		first = t.Now()
		t.since[key] = first
	}
	waited := t.Now().Sub(first)
	end := func(reason string, refused bool) {
		delete(t.since, key)
		c.toEnded, c.reasons = append(c.toEnded, key), append(c.reasons, reason)
		if refused {
			c.refused = append(c.refused, key)
		}
	}
	if j, ok := v.endedRow(i); ok {
		if mayComeBack(j.State) && waited < t.Requeue {
			return
		}
		if len(j.Nodes) > 0 {
			t.observed(c, b, i, j)
		}
		end(words(j.State), j.State == slurm.Cancelled && len(j.Nodes) == 0)
		return
	}
	t.missing(c, b, recs, answered, i, waited, end)
}

// missing decides about a task that the queue says nothing about.
func (t *Tracker) missing(c *changes, b store.Batch, recs records, answered bool, i int, waited time.Duration, end func(string, bool)) {
	own := recs.of(b, i)
	if n := len(own); n > 0 {
		last := own[n-1]
		if last.Ended() && (!mayComeBack(last.State) || waited >= t.Requeue) {
			for _, r := range own {
				c.record(b, i, r)
			}
			end(words(last.State), last.State == slurm.Cancelled && last.Start.IsZero())
			return
		}
	} else if r, ok := recs.whole(b, i); ok {
		end(words(r.State), r.State == slurm.Cancelled)
		return
	}
	if answered && waited >= t.Absent {
		end("Slurm knows nothing of it any more", false)
	}
}

// words names the end of an allocation for people.
func words(s slurm.State) string {
	switch s {
	case slurm.Completed:
		return ""
	case slurm.Cancelled:
		return "cancelled in Slurm"
	default:
		return "Slurm says " + string(s)
	}
}

// observed notes what squeue says of an allocation, if it is news.
func (t *Tracker) observed(c *changes, b store.Batch, i int, j slurm.Job) {
	key := allocationKey{j.Raw, j.Submit.Unix()}
	text := string(j.State) + " " + strings.Join(j.Nodes, ",")
	if t.seen[key] == text {
		return
	}
	t.seen[key] = text
	array := j.ArrayID
	a := store.Allocation{
		Cluster: b.Cluster, JobIDRaw: j.Raw, SubmitTime: j.Submit, ArrayJobID: &array, Token: b.Token, TaskIndex: i,
		State: string(j.State), SlurmReason: j.Reason, Nodes: j.Nodes, StartTime: instant(j.Start), UserName: j.User, SeenIn: "squeue",
	}
	if j.State.Phase() == slurm.PhaseEnded {
		now := t.Now()
		a.Ended, a.EndTime, a.Cause = true, &now, causeOf(j.State)
	}
	c.allocations = append(c.allocations, a)
}

// recorded is what sacct says of an allocation.
func recorded(b store.Batch, i int, r slurm.Record) store.Allocation {
	array := r.ID.Job
	a := store.Allocation{
		Cluster: b.Cluster, JobIDRaw: r.Raw, SubmitTime: r.Submit, ArrayJobID: &array, Token: b.Token, TaskIndex: i,
		State: string(r.State), Nodes: r.Nodes, StartTime: instant(r.Start), AllocTRES: r.AllocTRES,
		Account: r.Account, UserName: r.User, Partition: r.Partition, SeenIn: "sacct",
	}
	if r.AllocTRES != "" {
		gpus := r.GPUs
		a.AllocGPUs = &gpus
	}
	if r.Ended() {
		elapsed := int64(r.Elapsed / time.Second)
		code, signal := r.ExitCode, r.ExitSignal
		a.Ended, a.EndTime, a.ElapsedS, a.ExitCode, a.ExitSignal, a.Cause = true, instant(r.End), &elapsed, &code, &signal, causeOf(r.State)
	}
	return a
}

func instant(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

// allocation decides about an allocation that is known and not closed.
func (t *Tracker) allocation(c *changes, b store.Batch, v view, recs records, a store.Allocation) {
	if t.held(v, a) {
		return
	}
	for _, r := range recs.of(b, a.TaskIndex) {
		if r.Raw == a.JobIDRaw && r.Submit.Equal(a.SubmitTime) && r.Ended() {
			c.record(b, a.TaskIndex, r)
			return
		}
	}
	if a.Ended {
		return
	}
	_, waits := v.waits(a.TaskIndex)
	_, holds := v.holding[a.TaskIndex]
	key := store.TaskKey{Token: a.Token, Index: a.TaskIndex}
	now := t.Now()
	switch {
	case waits || holds:
		// The task is back in the queue, or has started anew: this start is over.
		// Why is what sacct will say; that it was nobody's fault is likely.
		a.State, a.Cause = string(slurm.Requeued), lifecycle.CausePreempted
	case slices.Contains(c.toEnded, key):
		if j, ok := v.endedRow(a.TaskIndex); ok && j.Raw == a.JobIDRaw && j.Submit.Equal(a.SubmitTime) {
			return // observed
		}
		a.State, a.Cause = "UNKNOWN", lifecycle.CauseNode
	default:
		return
	}
	a.Ended, a.EndTime, a.SeenIn = true, &now, "squeue"
	c.allocations = append(c.allocations, a)
}

// apply writes the changes in one transaction, and which runs are under way.
func (t *Tracker) apply(ctx context.Context, batches map[string]store.Batch, c *changes) error {
	if err := t.number(ctx, c); err != nil {
		return err
	}
	tasks := slices.Concat(c.toRunning, c.toWaiting, c.toEnded, keysOf(c.progress))
	runs, err := t.Store.RunsOfTasks(ctx, tasks)
	if err != nil {
		return err
	}
	byTask := map[store.TaskKey][]store.TrackedRun{}
	for _, r := range runs {
		key := store.TaskKey{Token: r.BatchToken, Index: r.TaskIndex}
		byTask[key] = append(byTask[key], r)
	}
	underWay := t.underWay(batches, c, byTask)
	if len(c.allocations)+len(c.toRunning)+len(c.toWaiting)+len(c.toEnded)+len(underWay) == 0 {
		return nil
	}
	err = t.Store.WithTx(ctx, func(tx *store.Tx) error {
		// Runs before batches before tasks before allocations, as everybody locks them.
		if err := tx.LockSubmitted(ctx, slices.Concat(idsOf(byTask, tasks), underWay), tokensOf(tasks)); err != nil {
			return err
		}
		for _, m := range []struct {
			tasks []store.TaskKey
			from  []lifecycle.RunState
			to    lifecycle.RunState
		}{
			{c.toWaiting, []lifecycle.RunState{lifecycle.RunProvisioning, lifecycle.RunRunning}, lifecycle.RunSubmitted},
			{c.toRunning, []lifecycle.RunState{lifecycle.RunSubmitted}, lifecycle.RunProvisioning},
		} {
			if err := tx.FollowRuns(ctx, idsOf(byTask, m.tasks), m.from, m.to, ""); err != nil {
				return err
			}
		}
		begun := []lifecycle.RunState{lifecycle.RunSubmitted, lifecycle.RunProvisioning}
		if err := tx.FollowRuns(ctx, underWay, begun, lifecycle.RunRunning, ""); err != nil {
			return err
		}
		if err := tx.ReturnRuns(ctx, idsOf(byTask, c.refused), lifecycle.RunCancelled, "cancelled in Slurm before it began"); err != nil {
			return err
		}
		if err := tx.MoveTasks(ctx, c.toWaiting, make([]string, len(c.toWaiting)), lifecycle.TaskWaiting); err != nil {
			return err
		}
		if err := tx.MoveTasks(ctx, c.toRunning, make([]string, len(c.toRunning)), lifecycle.TaskRunning); err != nil {
			return err
		}
		if err := tx.MoveTasks(ctx, c.toEnded, c.reasons, lifecycle.TaskEnded); err != nil {
			return err
		}
		return tx.UpsertAllocations(ctx, c.allocations)
	})
	if err != nil {
		clear(t.seen) // what was not written is news again
		return fmt.Errorf("write what Slurm said: %w", err)
	}
	return nil
}

// tokensOf are the batches of tasks, each once.
func tokensOf(tasks []store.TaskKey) []string {
	tokens := make([]string, len(tasks))
	for i, k := range tasks {
		tokens[i] = k.Token
	}
	slices.Sort(tokens)
	return slices.Compact(tokens)
}

func keysOf(list []holding) []store.TaskKey {
	keys := make([]store.TaskKey, len(list))
	for i, h := range list {
		keys[i] = h.key
	}
	return keys
}

func idsOf(byTask map[store.TaskKey][]store.TrackedRun, tasks []store.TaskKey) []int64 {
	var ids []int64
	for _, key := range tasks {
		for _, r := range byTask[key] {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// number counts the starts of each allocation's job: a job's n-th start has the
// restart count n-1.
func (t *Tracker) number(ctx context.Context, c *changes) error {
	var keys []store.TaskKey
	for _, a := range c.allocations {
		keys = append(keys, store.TaskKey{Token: a.Token, Index: a.TaskIndex})
	}
	keys = append(keys, keysOf(c.progress)...)
	known, err := t.Store.AllocationsOfTasks(ctx, keys)
	if err != nil {
		return err
	}
	starts := map[store.TaskKey]map[allocationKey]bool{}
	for _, a := range slices.Concat(known, c.allocations) {
		key := store.TaskKey{Token: a.Token, Index: a.TaskIndex}
		if starts[key] == nil {
			starts[key] = map[allocationKey]bool{}
		}
		starts[key][allocationKey{a.JobIDRaw, a.SubmitTime.Unix()}] = true
	}
	earlier := func(key store.TaskKey, raw, submit int64) int {
		n := 0
		for s := range starts[key] {
			if s.raw == raw && s.submit < submit {
				n++
			}
		}
		return n
	}
	for i := range c.allocations {
		a := &c.allocations[i]
		n := earlier(store.TaskKey{Token: a.Token, Index: a.TaskIndex}, a.JobIDRaw, a.SubmitTime.Unix())
		if told, ok := c.restarts[allocationKey{a.JobIDRaw, a.SubmitTime.Unix()}]; ok {
			n = told
		}
		a.RestartCount = &n
	}
	for i := range c.progress {
		h := &c.progress[i]
		h.restart = max(0, earlier(h.key, h.raw, 1<<62)-1)
	}
	return nil
}

// underWay reads the records of tasks that hold an allocation: which of their
// runs have been started.
func (t *Tracker) underWay(batches map[string]store.Batch, c *changes, byTask map[store.TaskKey][]store.TrackedRun) []int64 {
	var ids []int64
	for _, h := range c.progress {
		if !slices.ContainsFunc(byTask[h.key], func(r store.TrackedRun) bool { return r.State != lifecycle.RunRunning }) {
			continue
		}
		rec, ok := readRecord(batches[h.key.Token], h.key.Index, h.raw, h.restart)
		if !ok {
			continue
		}
		for _, run := range byTask[h.key] {
			if run.State != lifecycle.RunRunning && started(rec, run.ID) {
				ids = append(ids, run.ID)
			}
		}
	}
	return ids
}

func started(rec batch.Record, run int64) bool {
	return slices.ContainsFunc(rec.Runs, func(r batch.RunRecord) bool { return r.Run == run && !r.Started.IsZero() })
}

// explain keeps in words why batches wait.
func (t *Tracker) explain(ctx context.Context, batches map[string]store.Batch, views map[string]view) error {
	var errs []error
	for token, b := range batches {
		text, stuck := views[token].reason()
		if b.State != lifecycle.BatchReleased || text == t.lastReason[token] && text == b.Reason {
			continue
		}
		if stuck && text != t.lastReason[token] {
			t.Log.WarnContext(ctx, "a job will not start by itself", "token", token, "job", *b.JobID, "reason", text)
		}
		t.lastReason[token] = text
		if text != b.Reason {
			errs = append(errs, t.Store.StallBatch(ctx, token, text))
		}
	}
	return errors.Join(errs...)
}
