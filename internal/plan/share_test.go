package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// cluster is a site in virtual time: a queue that is fed every minute and slots
// that start its tasks, those of the heavier tier first, in order of submission.
type cluster struct {
	slots, depth int
	weights      map[string]int // of accounts
	fair         bool           // false feeds in the order of the sweeps
	now          time.Duration
	sweeps       []*simSweep
	queue        []simTask
	ends         []simTask // running
	used         map[string]float64
	tierUsed     map[string]float64
}

type simSweep struct {
	id    int64
	owner Owner
	at    time.Duration // of its submission
	left  []Task
	waits []time.Duration // of its started tasks
}

type simTask struct {
	sweep *simSweep
	task  Task
	end   time.Duration
}

var tierWeights = map[string]int{"urgent": 100, "normal": 10, "bulk": 1}

func (c *cluster) submit(id int64, tier, account string, at time.Duration, tasks int, length time.Duration) *simSweep {
	s := &simSweep{id: id, owner: Owner{tier, account}, at: at}
	for i := range tasks {
		s.left = append(s.left, Task{Runs: []Run{{ID: int64(i), SettingHash: fmt.Sprint(i)}}, Limit: length})
	}
	c.sweeps = append(c.sweeps, s)
	return s
}

func (c *cluster) feed() {
	var batches []Batch
	owners := map[int64]Owner{}
	byID := map[int64]*simSweep{}
	for _, s := range c.sweeps {
		if s.at <= c.now && len(s.left) > 0 {
			batches = append(batches, newBatch(Shape{Sweep: s.id, Hardware: "h", GPUs: 1}, s.left))
			owners[s.id], byID[s.id] = s.owner, s
		}
	}
	free := c.depth - len(c.queue) - len(c.ends)
	var chosen []Batch
	if c.fair {
		f := Feed{
			Room: free, Hardware: map[string]int{"h": free}, Depth: func(string) int { return c.depth }, Owners: owners,
			TierWeight: tierWeights, AccountWeight: c.weights, TierUsed: c.tierUsed, AccountUsed: c.used,
		}
		chosen = f.Share(batches)
	} else if len(batches) > 0 && free > 0 {
		chosen = []Batch{batches[0].Head(free)}
	}
	for _, b := range chosen {
		s := byID[b.Shape.Sweep]
		s.left = s.left[len(b.Tasks):]
		for _, t := range b.Tasks {
			c.queue = append(c.queue, simTask{sweep: s, task: t})
		}
	}
}

func (c *cluster) run(until time.Duration) {
	for ; c.now < until; c.now += time.Minute {
		c.ends = slices.DeleteFunc(c.ends, func(t simTask) bool { return t.end <= c.now })
		c.feed()
		slices.SortStableFunc(c.queue, func(a, b simTask) int { return tierWeights[b.sweep.owner.Tier] - tierWeights[a.sweep.owner.Tier] })
		for len(c.queue) > 0 && len(c.ends) < c.slots {
			t := c.queue[0]
			c.queue = c.queue[1:]
			t.end = c.now + t.task.Limit
			t.sweep.waits = append(t.sweep.waits, c.now-t.sweep.at)
			c.ends = append(c.ends, t)
		}
	}
}

func newCluster(fair bool) *cluster {
	return &cluster{slots: 40, depth: 80, fair: fair, used: map[string]float64{}, tierUsed: map[string]float64{}}
}

// TestFeed_ALargeSweepStarvesNobody: 5,000 runs, 5 runs and an urgent sweep of
// three accounts on one kind of hardware. The promise is in the numbers: what
// comes later waits for the queue that is there, twice a task's length, and what
// is urgent for the tasks that run, once.
func TestFeed_ALargeSweepStarvesNobody(t *testing.T) {
	t.Parallel()
	const task = 15 * time.Minute
	longest := map[bool][]time.Duration{}
	for _, fair := range []bool{true, false} {
		c := newCluster(fair)
		c.submit(1, "normal", "big", 0, 5000, task)
		small := c.submit(2, "normal", "small", 2*time.Hour+3*time.Minute, 5, task)
		urgent := c.submit(3, "urgent", "urgent", 4*time.Hour+7*time.Minute, 10, task)
		c.run(48 * time.Hour)
		if len(small.waits) != 5 || len(urgent.waits) != 10 {
			t.Fatalf("fair %v: %d and %d runs have started", fair, len(small.waits), len(urgent.waits))
		}
		longest[fair] = []time.Duration{slices.Max(small.waits), slices.Max(urgent.waits)}
		t.Logf("fair %v: the small sweep waits %v, the urgent one %v", fair, longest[fair][0], longest[fair][1])
	}
	if got := longest[true]; got[0] > 2*task || got[1] > task+time.Minute {
		t.Errorf("the small sweep waits %v, the urgent one %v", got[0], got[1])
	}
	if got := longest[false]; got[0] < 24*time.Hour {
		t.Errorf("in the order of submission the small sweep waits %v: the simulation proves nothing", got[0])
	}
}

// TestFeed_SharesFollowWeights: accounts that always have work are given GPU-hours
// as their weights are, whatever the number and length of their tasks.
func TestFeed_SharesFollowWeights(t *testing.T) {
	t.Parallel()
	c := newCluster(true)
	c.weights = map[string]int{"a": 2, "b": 1, "c": 1}
	c.submit(1, "normal", "a", 0, 20000, 10*time.Minute)
	c.submit(2, "normal", "b", 0, 20000, 30*time.Minute)
	for i := range int64(10) { // ten sweeps are no more than one
		c.submit(3+i, "normal", "c", 0, 5000, 15*time.Minute)
	}
	c.run(48 * time.Hour)
	hours := map[string]float64{}
	for _, s := range c.sweeps {
		if len(s.left) == 0 {
			t.Fatalf("sweep %d ran dry", s.id)
		}
		hours[s.owner.Account] += float64(len(s.waits)) * s.left[0].Limit.Hours()
	}
	total := hours["a"] + hours["b"] + hours["c"]
	for account, share := range map[string]float64{"a": 0.5, "b": 0.25, "c": 0.25} {
		if got := hours[account] / total; math.Abs(got-share) > 0.02 {
			t.Errorf("account %s got %.3f of the GPU-hours, not %.3f", account, got, share)
		}
	}
	if most := 40 * 48.0; total < 0.97*most {
		t.Errorf("%.0f of %.0f GPU-hours were used", total, most)
	}
}

// TestFeed_BulkIsNotStarved: a tier gets its weight, and no less.
func TestFeed_BulkIsNotStarved(t *testing.T) {
	t.Parallel()
	c := newCluster(true)
	normal := c.submit(1, "normal", "a", 0, 50000, 10*time.Minute)
	bulk := c.submit(2, "bulk", "b", 0, 50000, 10*time.Minute)
	c.run(96 * time.Hour)
	if got := float64(len(bulk.waits)) / float64(len(bulk.waits)+len(normal.waits)); got < 0.07 || got > 0.12 {
		t.Errorf("bulk got %.3f of the work, not about 1 of 11", got)
	}
}

func feedOf(room int, owners map[int64]Owner) *Feed {
	return &Feed{
		Room: room, Hardware: map[string]int{"h": room}, Depth: func(string) int { return room }, Owners: owners, TierWeight: tierWeights,
		TierUsed: map[string]float64{}, AccountUsed: map[string]float64{}, Cold: map[string]int{},
	}
}

func batchOf(sweep int64, checkpoints ...string) Batch {
	var tasks []Task
	for i, c := range checkpoints {
		tasks = append(tasks, Task{Runs: []Run{{ID: sweep*1000 + int64(i), Checkpoint: c}}, Limit: time.Hour})
	}
	return newBatch(Shape{Sweep: sweep, Hardware: "h", GPUs: 1}, tasks)
}

// TestFeed_ColdCheckpoints: a checkpoint that the site has never served is started
// once, not on a hundred nodes, and others go on meanwhile.
func TestFeed_ColdCheckpoints(t *testing.T) {
	t.Parallel()
	f := feedOf(100, map[int64]Owner{1: {"normal", "a"}})
	f.Cold = map[string]int{"new": 1, "busy": 0}
	got := f.Share([]Batch{batchOf(1, "new", "new", "new", "old", "old", "busy")})
	var taken []string
	for _, b := range got {
		for _, task := range b.Tasks {
			taken = append(taken, checkpointOf(task))
		}
	}
	if strings.Join(taken, " ") != "new old old" {
		t.Errorf("took %v", taken)
	}
}

// TestFeed_NoSlivers: a full queue is left alone until a quarter is free, but for
// urgent work and for what fits whole.
func TestFeed_NoSlivers(t *testing.T) {
	t.Parallel()
	many := slices.Repeat([]string{"c"}, 50)
	for name, tc := range map[string]struct {
		tier string
		n    int
		room int
		want int
	}{
		"sliver": {"normal", 50, 3, 0}, "a quarter": {"normal", 50, 25, 25}, "urgent": {"urgent", 50, 3, 3}, "whole": {"normal", 2, 3, 2},
	} {
		f := feedOf(tc.room, map[int64]Owner{1: {tc.tier, "a"}})
		f.Depth = func(string) int { return 100 }
		got := 0
		for _, b := range f.Share([]Batch{batchOf(1, many[:tc.n]...)}) {
			got += len(b.Tasks)
		}
		if got != tc.want {
			t.Errorf("%s: took %d tasks, not %d", name, got, tc.want)
		}
	}
}
