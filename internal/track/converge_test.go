package track

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/slurm"
)

// memory is a cluster in memory whose answers are late, missing or refused at
// random, with the truth about every attempt beside it.
type memory struct {
	w     *world
	rnd   *rand.Rand
	now   time.Time
	next  int64
	tasks []*memoryTask
	truth map[int64][]lifecycle.Attempt // by run
	late  []sealedAttempt               // sealed, not collected yet
	calm  bool                          // every question is answered
	// lostIn says in which start each true attempt was.
	lostIn map[lostKey]startKey
}

type lostKey struct {
	run int64
	n   int
}

type startKey struct {
	raw     int64
	restart int
}

type memoryTask struct {
	index     int
	raw       int64
	restart   int
	state     slurm.State // PENDING, RUNNING or how it ended
	submit    time.Time
	forgotten bool // by the controller
	running   int64
	next      int // of its runs
	records   []slurm.Record
	recordAt  []time.Time // when the database has it
}

type sealedAttempt struct {
	run, raw      int64
	restart, task int
	class         lifecycle.ExitClass
	signature     string
}

const arrayID = 100

var errDown = fmt.Errorf("%w: down", slurm.ErrUnreachable)

func (m *memory) Queue(context.Context) (slurm.Queue, error) {
	if !m.calm && m.rnd.IntN(5) == 0 {
		return slurm.Queue{}, errDown
	}
	var q slurm.Queue
	for _, t := range m.tasks {
		if t.forgotten {
			continue
		}
		j := slurm.Job{
			ArrayID: arrayID, Raw: t.raw, Tasks: slurm.IndexesOf([]int{t.index}), State: t.state, Submit: t.submit, User: "u", Name: token,
		}
		if t.state == slurm.Pending {
			j.Raw = arrayID
		} else {
			j.Nodes = []string{"gpu1"}
		}
		q.Jobs = append(q.Jobs, j)
	}
	return q, nil
}

func (m *memory) Accounting(_ context.Context, q slurm.AccountingQuery) (slurm.Accounting, error) {
	if !m.calm && m.rnd.IntN(3) == 0 {
		return slurm.Accounting{}, errDown
	}
	var a slurm.Accounting
	for _, t := range m.tasks {
		for i, r := range t.records {
			if m.now.After(t.recordAt[i]) && (r.End.IsZero() || r.End.After(q.Since)) {
				a.Records = append(a.Records, r)
			}
		}
	}
	return a, nil
}

func (m *memory) Steps(context.Context, time.Time, ...int64) ([]slurm.Step, error) { return nil, nil }

func (m *memory) Cancel(_ context.Context, ids ...string) error {
	if len(ids) > 0 {
		m.w.Errorf("scancel %v", ids)
	}
	return nil
}

func (m *memory) Release(context.Context, int64) error { return nil }

func (m *memory) ReleaseTasks(context.Context, int64, ...int) error { return nil }

func (m *memory) pass(d time.Duration) {
	m.now = m.now.Add(d)
	m.w.clock.advance(d)
}

func (m *memory) start(t *memoryTask) {
	if t.raw == 0 {
		m.next++
		t.raw = m.next
	}
	t.state, t.next = slurm.Running, 0
	m.w.record(t.index, t.raw, t.restart, "begin gpu1", "claim held")
}

// step lets a running task go on by one event.
func (m *memory) step(t *memoryTask) {
	runs := m.w.runs[t.index]
	if t.running != 0 {
		classes := []lifecycle.ExitClass{lifecycle.ExitMeasured, lifecycle.ExitEngineDied, lifecycle.ExitStaging, lifecycle.ExitDriftArtefact, lifecycle.ExitLost}
		m.finish(t, classes[m.rnd.IntN(len(classes))], lifecycle.CauseNone)
		return
	}
	for t.next < len(runs) && m.done(runs[t.next]) {
		t.next++
	}
	if t.next == len(runs) {
		m.w.record(t.index, t.raw, t.restart, "done")
		m.end(t, slurm.Completed)
		return
	}
	t.running = runs[t.next]
	t.next++
	m.w.record(t.index, t.raw, t.restart, fmt.Sprintf("start %d", t.running))
}

// done is what the runner's claim looks at: sealed attempts that were not cut short.
func (m *memory) done(run int64) bool {
	for _, a := range m.truth[run] {
		if a.Class != lifecycle.ExitCancelled && a.Class != lifecycle.ExitLost {
			return true
		}
	}
	return false
}

// finish ends the run under way: it seals, unless it is lost.
func (m *memory) finish(t *memoryTask, class lifecycle.ExitClass, cause lifecycle.Cause) {
	run := t.running
	t.running = 0
	a := lifecycle.Attempt{Class: class, Valid: class == lifecycle.ExitMeasured, Cause: cause}
	m.lostIn[lostKey{run, len(m.truth[run])}] = startKey{t.raw, t.restart}
	m.truth[run] = append(m.truth[run], a)
	if class != lifecycle.ExitLost {
		m.w.seal(run, t.raw, t.restart)
		m.late = append(m.late, sealedAttempt{run, t.raw, t.restart, t.index, class, ""})
	}
	if cause == lifecycle.CauseNone {
		code := max(class.Code(), 0)
		if class == lifecycle.ExitLost {
			code = 137
		}
		m.w.record(t.index, t.raw, t.restart, "end "+strconv.FormatInt(run, 10)+" "+strconv.Itoa(code))
	}
}

// end closes the allocation, with its record somewhat later.
func (m *memory) end(t *memoryTask, state slurm.State) {
	id, err := slurm.ParseJobID(fmt.Sprintf("%d_%d", arrayID, t.index))
	if err != nil {
		m.w.Fatal(err)
	}
	t.records = append(t.records, slurm.Record{
		Raw: t.raw, ID: id, State: state, ByUID: -1, Submit: t.submit, Start: t.submit, End: m.now, Nodes: []string{"gpu1"}, User: "u", Name: token,
	})
	t.recordAt = append(t.recordAt, m.now.Add(time.Duration(m.rnd.IntN(60))*time.Second))
	t.state = state
}

// interrupt ends a running task from outside; the run under way seals or is lost.
func (m *memory) interrupt(t *memoryTask) {
	state := []slurm.State{slurm.NodeFail, slurm.Preempted, slurm.Timeout}[m.rnd.IntN(3)]
	if t.running != 0 {
		class := lifecycle.ExitLost
		if state != slurm.NodeFail && m.rnd.IntN(2) == 0 {
			class = lifecycle.ExitCancelled
		}
		m.finish(t, class, causeOf(state))
	}
	// What the node did not survive to explain is put down to the node, also where
	// a run was killed on its own before.
	for run, attempts := range m.truth {
		for i := range attempts {
			if a := &m.truth[run][i]; a.Class == lifecycle.ExitLost && a.Cause == lifecycle.CauseNone && m.lostIn[lostKey{run, i}] == (startKey{t.raw, t.restart}) {
				a.Cause = causeOf(state)
			}
		}
	}
	m.end(t, state)
	if state != slurm.Timeout && m.rnd.IntN(3) > 0 {
		m.pass(time.Second)
		t.state, t.submit = slurm.Pending, m.now
		t.restart++
	}
}

func (m *memory) collectOne() {
	if len(m.late) == 0 {
		return
	}
	i := m.rnd.IntN(len(m.late))
	s := m.late[i]
	m.late = append(m.late[:i], m.late[i+1:]...)
	m.w.collect(s.run, s.raw, s.restart, s.task, s.class)
}

func (m *memory) event() {
	t := m.tasks[m.rnd.IntN(len(m.tasks))]
	switch n := m.rnd.IntN(12); {
	case n < 6 && t.state == slurm.Pending:
		m.start(t)
	case n < 6 && t.state == slurm.Running:
		m.step(t)
	case n == 6 && t.state == slurm.Running:
		m.interrupt(t)
	case n == 7 && t.state.Phase() == slurm.PhaseEnded:
		t.forgotten = true
	case n == 8:
		m.collectOne()
	case n == 9:
		m.w.restart(m) // the daemon was killed
	}
	m.pass(time.Duration(m.rnd.IntN(30)) * time.Second)
	if err := m.w.tracker.Tick(context.WithoutCancel(m.w.Context())); err != nil && !errors.Is(err, slurm.ErrUnreachable) {
		m.w.Fatal(err)
	}
}

// TestTick_Converges: whatever is seen late, twice or never, the end is what the
// set of true attempts says.
func TestTick_Converges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(16) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			w := &world{TB: t, dir: t.TempDir(), job: arrayID}
			w.store = pgtest.New(t).WithClock(w.clock.Now)
			w.sweep, w.runs = createRuns(t, w.store, 2, 1, 3)
			w.commit()
			m := &memory{w: w, rnd: rand.New(rand.NewPCG(seed, 1)), now: w.clock.Now().Truncate(time.Second), next: arrayID, truth: map[int64][]lifecycle.Attempt{}, lostIn: map[lostKey]startKey{}}
			for i := range w.runs {
				m.tasks = append(m.tasks, &memoryTask{index: i, state: slurm.Pending, submit: m.now})
			}
			if ok, err := w.store.HoldBatch(t.Context(), token, arrayID, nil, "", nil); err != nil || !ok {
				t.Fatal(ok, err)
			}
			if _, err := w.store.ReleaseBatch(t.Context(), token); err != nil {
				t.Fatal(err)
			}
			w.restart(m)
			for range 30 {
				m.event()
			}
			m.finishAll()
			m.check()
		})
	}
}

// finishAll lets all end, and all that was sealed be collected, early or late.
func (m *memory) finishAll() {
	m.calm = true
	for _, t := range m.tasks {
		for t.state.Phase() != slurm.PhaseEnded {
			if t.state == slurm.Pending {
				m.start(t)
			} else {
				m.step(t)
			}
			m.pass(time.Second)
		}
	}
	for i := range 12 {
		m.w.tick()
		m.pass(2 * time.Minute)
		if i%2 == 0 {
			m.collectOne()
		}
	}
	for len(m.late) > 0 {
		m.collectOne()
		m.w.tick()
	}
}

func (m *memory) check() {
	w := m.w
	w.Helper()
	if got := w.batchState(); got != lifecycle.BatchEnded {
		w.Errorf("the batch is %s", got)
	}
	for _, task := range w.runs {
		for _, id := range task {
			run, err := w.store.Run(w.Context(), id)
			if err != nil {
				w.Fatal(err)
			}
			want := lifecycle.Judge(m.truth[id], lifecycle.DefaultBudget(), false)
			if run.State != want.State || run.Charged != want.Charged {
				w.Errorf("run %d is %s, charged %d (%s), want %s, %d, of %+v", id, run.State, run.Charged, run.Reason, want.State, want.Charged, m.truth[id])
			}
			lost, sealed := map[string]bool{}, map[string]bool{}
			for _, a := range w.attempts(id) {
				key := fmt.Sprint(a.JobIDRaw, " ", a.RestartCount)
				if a.Sealed {
					sealed[key] = true
				} else {
					lost[key] = true
				}
			}
			for key := range sealed {
				delete(lost, key) // it was taken for lost until it was read
			}
			if len(lost)+len(sealed) != len(m.truth[id]) {
				w.Errorf("run %d has %d sealed and %d lost attempts: %v", id, len(sealed), len(lost), m.truth[id])
			}
		}
	}
	for i := range w.runs {
		for _, a := range w.allocations(i) {
			if !a.Ended || strings.Contains(a.State, "UNKNOWN") {
				w.Errorf("allocation %+v", a)
			}
		}
	}
}
