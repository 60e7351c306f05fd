package track

import (
	"context"
	"testing"
	"time"

	"sbench/internal/pgtest"
	"sbench/internal/slurm"
)

// waitingArray is a cluster whose one array waits.
type waitingArray struct {
	memory
	rows []slurm.Job
}

func (w *waitingArray) Queue(context.Context) (slurm.Queue, error) {
	return slurm.Queue{Jobs: w.rows}, nil
}

// BenchmarkTick30000 is a tick with 30,000 tasks in the queue of which none moves.
func BenchmarkTick30000(b *testing.B) {
	const tasks = 30_000
	w := &world{TB: b, dir: b.TempDir(), job: arrayID}
	w.store = pgtest.New(b).WithClock(w.clock.Now)
	each := make([]int, tasks)
	for i := range each {
		each[i] = 1
	}
	w.sweep, w.runs = createRuns(b, w.store, each...)
	w.commit()
	if ok, err := w.store.HoldBatch(b.Context(), token, arrayID, nil, "", nil); err != nil || !ok {
		b.Fatal(ok, err)
	}
	if _, err := w.store.ReleaseBatch(b.Context(), token); err != nil {
		b.Fatal(err)
	}
	w.restart(&waitingArray{rows: []slurm.Job{{
		ArrayID: arrayID, Raw: arrayID, Tasks: slurm.Indexes{{First: 0, Last: tasks - 1, Step: 1}}, State: slurm.Pending,
		Reason: "Priority", Submit: time.Now(), User: "u", Name: token,
	}}})
	w.tick()
	b.ReportAllocs()
	for b.Loop() {
		w.tick()
	}
}
