package plan

import (
	"cmp"
	"time"
)

// Owner is in whose name a sweep's work is fed.
type Owner struct {
	Tier    string // urgent, normal, bulk
	Account string
}

// Feed is how much a site takes now, and who has had how much of it.
type Feed struct {
	Room     int            // tasks that the site takes
	Hardware map[string]int // tasks that the queue of a kind of hardware takes
	// Depth is how many tasks that queue holds in all.
	Depth func(hardware string) int
	// Owners by sweep.
	Owners map[int64]Owner
	// Weights are the shares of tiers and accounts among their like; one that is
	// missing has 1.
	TierWeight, AccountWeight map[string]int
	// Used are the GPU-seconds that the tiers and accounts were given lately, what
	// is in the queue included.
	TierUsed, AccountUsed map[string]float64
	// Cold are the checkpoints that the site has never served, with how many tasks
	// of each may be started before one of them is ready.
	Cold map[string]int
}

// Share chooses the tasks that are submitted now: the next task is always that of
// the tier which has had least for its weight, of the account in it which has had
// least for its own, and of the sweep of that account which this turn gave least.
// It returns the batches cut to those tasks, in the order in which they were
// first chosen. The tasks of a batch keep their order, so that those of one
// checkpoint stay neighbours.
//
// A queue that is full is left alone until a quarter of it is free, so that arrays
// do not become slivers; urgent work goes as soon as there is room for it.
func (f *Feed) Share(batches []Batch) []Batch {
	flows := make([]*flow, len(batches))
	waiting := map[string]int{}
	for i, b := range batches {
		flows[i] = &flow{batch: b, owner: f.Owners[b.Shape.Sweep]}
		waiting[b.Shape.Hardware] += len(b.Tasks)
	}
	open := map[string]bool{}
	for hw, n := range waiting {
		depth := f.Depth(hw)
		open[hw] = min(f.Room, f.Hardware[hw]) >= min(n, max(1, depth/4))
	}
	given := map[int64]float64{}
	var order []*flow
	for f.Room > 0 {
		next := f.next(flows, open, given)
		if next == nil {
			break
		}
		if len(next.taken) == 0 {
			order = append(order, next)
		}
		given[next.batch.Shape.Sweep] += f.take(next)
	}
	chosen := make([]Batch, len(order))
	for i, fl := range order {
		chosen[i] = newBatch(fl.batch.Shape, fl.taken)
	}
	return chosen
}

// flow is a batch with what was taken of it.
type flow struct {
	batch Batch
	owner Owner
	at    int // of the task that is next
	taken []Task
}

// next is the flow whose turn it is; nil where nothing fits.
func (f *Feed) next(flows []*flow, open map[string]bool, given map[int64]float64) *flow {
	var best *flow
	for _, fl := range flows {
		hw := fl.batch.Shape.Hardware
		if f.Hardware[hw] <= 0 || !open[hw] && fl.owner.Tier != "urgent" || !f.warm(fl) {
			continue
		}
		if best == nil || f.before(fl, best, given) {
			best = fl
		}
	}
	return best
}

// warm moves a flow over tasks whose checkpoint must not be started any more times
// now; false where none is left.
func (f *Feed) warm(fl *flow) bool {
	for ; fl.at < len(fl.batch.Tasks); fl.at++ {
		if most, cold := f.Cold[checkpointOf(fl.batch.Tasks[fl.at])]; !cold || most > 0 {
			return true
		}
	}
	return false
}

func checkpointOf(t Task) string {
	if len(t.Runs) == 0 {
		return ""
	}
	return t.Runs[0].Checkpoint
}

// before reports whether a's turn is before b's; b comes first in the plan.
func (f *Feed) before(a, b *flow, given map[int64]float64) bool {
	used := func(amount map[string]float64, weight map[string]int, name string) float64 {
		return amount[name] / float64(max(weight[name], 1))
	}
	return cmp.Or(
		cmp.Compare(used(f.TierUsed, f.TierWeight, a.owner.Tier), used(f.TierUsed, f.TierWeight, b.owner.Tier)),
		// Of tiers that have had nothing, the heaviest.
		cmp.Compare(f.TierWeight[b.owner.Tier], f.TierWeight[a.owner.Tier]),
		cmp.Compare(used(f.AccountUsed, f.AccountWeight, a.owner.Account), used(f.AccountUsed, f.AccountWeight, b.owner.Account)),
		cmp.Compare(given[a.batch.Shape.Sweep], given[b.batch.Shape.Sweep]),
	) < 0
}

// take gives a flow room for its next task, and returns the GPU-seconds of it.
func (f *Feed) take(fl *flow) float64 {
	task := fl.batch.Tasks[fl.at]
	fl.at++
	fl.taken = append(fl.taken, task)
	f.Room--
	f.Hardware[fl.batch.Shape.Hardware]--
	if c := checkpointOf(task); f.Cold[c] > 0 {
		f.Cold[c]--
	}
	cost := Cost(fl.batch.Shape, task.Limit)
	f.TierUsed[fl.owner.Tier] += cost
	f.AccountUsed[fl.owner.Account] += cost
	return cost
}

// Cost is what a task counts against a share: its GPUs, or one where it has none,
// times seconds.
func Cost(shape Shape, d time.Duration) float64 { return float64(max(shape.GPUs, 1)) * d.Seconds() }
