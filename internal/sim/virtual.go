package sim

import (
	"container/heap"
	"fmt"
	"math"
	"time"

	"sbench/internal/result"
	"sbench/internal/workload"
)

// Simulate offers a plan to the engine's model in virtual time and returns the rows
// that a punctual client beside an engine without a network would have recorded,
// and the plan's load points, on the plan's clock. The same plan and configuration
// give the same rows on every machine. Of the faults only stalls count.
func Simulate(plan *workload.Plan, c Config) ([]result.Request, []result.Window, error) {
	if err := c.check(); err != nil {
		return nil, nil, err
	}
	v := &virtual{
		plan: plan, config: c, scheduler: newScheduler(c.Limits, c.Cost),
		factor: c.Noise.draw(c.Seed, c.Names).product(), tasks: map[*sequence]*task{},
	}
	v.arrivals()
	v.run()
	var windows []result.Window
	for _, w := range plan.Windows {
		windows = append(windows, result.Window{Index: int(w.Index), OfferedRate: w.Rate, Start: w.Start, End: w.End})
	}
	return v.rows, windows, nil
}

// virtual is one simulation.
type virtual struct {
	plan      *workload.Plan
	config    Config
	scheduler *scheduler
	factor    float64
	tasks     map[*sequence]*task
	due       taskHeap
	order     int
	measuring int // measured requests that are due or running
	now       int64
	rows      []result.Request
}

// task is one request on its way.
type task struct {
	sequence
	request workload.Request
	row     result.Request
	order   int                // breaks ties of the due time
	rest    []workload.Request // later turns of the session
	history []int64            // tokens of the session so far
	tokens  []int64            // of this prompt; nil where no cache looks at them
	closed  bool               // another session follows
	warmup  bool

	pending, gathered int // tokens not yet in an event, events not yet written
}

type taskHeap []*task

func (h taskHeap) Len() int { return len(h) }
func (h taskHeap) Less(i, j int) bool {
	if h[i].row.TIntended != h[j].row.TIntended {
		return h[i].row.TIntended < h[j].row.TIntended
	}
	return h[i].order < h[j].order
}
func (h taskHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *taskHeap) Push(x any)   { *h = append(*h, x.(*task)) }
func (h *taskHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}

// push makes a task due.
func (v *virtual) push(t *task, due int64) {
	t.row.TIntended, t.order = due, v.order
	v.order++
	if t.row.Phase == result.PhaseMeasure {
		v.measuring++
	}
	heap.Push(&v.due, t)
}

// arrivals makes due what does not depend on an answer: the schedule, or the first
// request of each slot, spread over half of what comes before the window.
func (v *virtual) arrivals() {
	if n := v.plan.Closed; n > 0 {
		span := v.plan.WarmupEnd / 2
		if span == 0 {
			span = v.plan.Windows[0].Start / 2
		}
		for i := range n {
			v.session(span * int64(i) / int64(n))
		}
		return
	}
	for i := 0; i < len(v.plan.Requests); {
		next := i + 1
		for next < len(v.plan.Requests) && v.plan.Requests[next].Turn > 0 {
			next++
		}
		r := v.plan.Requests[i]
		t := v.task(r, v.plan.Requests[i+1:next])
		t.warmup = r.Phase == result.PhaseWarmup
		t.row.Window, t.row.Phase = r.Window, r.Phase
		v.push(t, r.Due)
		i = next
	}
}

// session starts the next session of a closed loop's slot.
func (v *virtual) session(due int64) {
	sequence, warmup := v.plan.Measured, due < v.plan.WarmupEnd
	if warmup {
		sequence = v.plan.Warmup
	}
	turns := sequence.Next()
	t := v.task(turns[0], turns[1:])
	t.closed, t.warmup = true, warmup
	v.place(t, due)
	v.push(t, due)
}

// place says which phase and load point a dependent request belongs to.
func (v *virtual) place(t *task, due int64) {
	windows := v.plan.Windows
	t.row.Window, t.row.Phase = int32(len(windows)-1), result.PhaseTail
	for _, w := range windows {
		if due < w.End {
			t.row.Window, t.row.Phase = w.Index, result.PhaseMeasure
			if due < w.Start {
				t.row.Phase = result.PhaseRamp
			}
			break
		}
	}
	if t.warmup || due < v.plan.WarmupEnd {
		t.row.Phase = result.PhaseWarmup
	}
}

func (v *virtual) task(r workload.Request, rest []workload.Request) *task {
	t := &task{request: r, rest: rest}
	t.row = result.Request{
		Index: r.Index, Session: r.Session, Turn: r.Turn, Group: r.Group, InputPlanned: r.Input, OutputPlanned: r.Output,
		TokenSource: "usage", ReusedConn: true,
	}
	return t
}

// join hands a task to the engine.
func (v *virtual) join(t *task) {
	t.row.TDispatch, t.row.TConn, t.row.TWritten = at(t.row.TIntended), at(t.row.TIntended), at(t.row.TIntended)
	prompt := len(t.history) + int(t.request.Input)
	key := mix(v.config.Seed, t.request.Seed)
	target := naturalLength(v.config, key, int(t.request.Output), v.plan.Workload.Request.IgnoreEOS)
	if err := v.scheduler.fits(prompt, target); err != nil {
		t.row.HTTPStatus, t.row.Outcome, t.row.Detail = 400, result.OutcomeHTTP4xx, err.Error()
		v.end(t, t.row.TIntended)
		return
	}
	t.tokens = v.promptTokens(t)
	t.sequence = sequence{stream: key, prompt: prompt, target: target}
	if v.config.Limits.PrefixCacheTokens > 0 {
		t.prefix = prefixHashes(t.tokens)
	}
	v.tasks[&t.sequence] = t
	v.scheduler.add(&t.sequence)
}

// promptTokens are the tokens of a prompt: what the session said before, the
// group's prefix, and tokens of its own.
func (v *virtual) promptTokens(t *task) []int64 {
	tokens := append([]int64(nil), t.history...)
	for i := range int(t.request.Input) {
		of := t.request.Seed
		if i < int(t.request.Prefix) && t.request.Group >= 0 {
			of = uint64(t.request.Group) + 1
		}
		tokens = append(tokens, int64(mix(of, uint64(i))>>1))
	}
	return tokens
}

// run steps until every measured request has ended, or the drain has.
func (v *virtual) run() {
	last := v.plan.Windows[len(v.plan.Windows)-1].End
	for {
		for len(v.due) > 0 && v.due[0].row.TIntended <= v.now {
			v.join(heap.Pop(&v.due).(*task))
		}
		if v.now >= last && (v.measuring == 0 || v.now >= v.plan.Length) {
			break
		}
		duration := v.scheduler.plan(v.now)
		if duration == 0 {
			// Nothing to do: on to what is due next, or to the end of it all.
			switch {
			case len(v.due) > 0:
				v.now = v.due[0].row.TIntended
			case v.now < last:
				v.now = last
			default:
				v.now = v.plan.Length
			}
			continue
		}
		factor := v.factor * v.config.Noise.step(v.config.Seed, v.config.Names.Run, v.scheduler.tally.steps)
		length := max(1, int64(float64(duration)*factor))
		v.now = int64(disturb(v.config.Faults, time.Duration(v.now), time.Duration(v.now+length)))
		v.scheduler.complete(v.emit)
	}
	v.cutOff()
}

// cutOff accounts for what was still running.
func (v *virtual) cutOff() {
	for _, list := range [][]*sequence{v.scheduler.running, v.scheduler.waiting} {
		for _, q := range list {
			t := v.tasks[q]
			written := len(t.row.EventTimes) - t.gathered
			t.row.EventTimes, t.row.EventTokens, t.row.EventBytes = t.row.EventTimes[:written], t.row.EventTokens[:written], t.row.EventBytes[:written]
			t.row.Outcome, t.row.Detail, t.row.TEnd = result.OutcomeCutOff, "still running when the drain ended", at(v.now)
			v.rows = append(v.rows, t.row)
		}
	}
}

// emit notes what a sequence made in the step that ends now.
func (v *virtual) emit(q *sequence, tokens int, done bool) {
	t := v.tasks[q]
	r := &t.row
	first := q.made == tokens
	t.pending += tokens
	if v.plan.Workload.Request.Stream && (first || done || t.pending >= v.config.StreamInterval) {
		r.EventTimes = append(r.EventTimes, 0)
		r.EventTokens = append(r.EventTokens, int32(t.pending))
		r.EventBytes = append(r.EventBytes, 0)
		t.pending = 0
		t.gathered++
		if first || done || t.gathered >= v.config.EventsPerWrite {
			for i := len(r.EventTimes) - t.gathered; i < len(r.EventTimes); i++ {
				r.EventTimes[i] = v.now
			}
			t.gathered = 0
		}
	}
	if first && v.plan.Workload.Request.Stream {
		r.THeaders, r.TByte1, r.TChunk1, r.TTok1, r.TContent1 = at(v.now), at(v.now), at(v.now), at(v.now), at(v.now)
		tokens := r.EventTokens[0]
		r.TokensFirst = &tokens
	}
	if !done {
		return
	}
	delete(v.tasks, q)
	prompt, made, cached := int32(q.prompt), int32(q.made), int32(q.cached)
	r.HTTPStatus, r.Outcome, r.FinishReason = 200, result.OutcomeOK, "length"
	r.InputTokens, r.OutputTokens, r.TTokN = &prompt, &made, at(v.now)
	if v.config.Limits.PrefixCacheTokens > 0 {
		r.CachedTokens = &cached
	}
	if r.TUsage, r.TDone = at(v.now), at(v.now); !v.plan.Workload.Request.Stream {
		r.THeaders, r.TByte1, r.TUsage, r.TDone = at(v.now), at(v.now), nil, nil
	}
	if made != t.request.Output {
		r.FinishReason = "stop"
	}
	v.end(t, v.now)
}

// end closes the account of a request and goes on with its session or slot.
func (v *virtual) end(t *task, now int64) {
	t.row.TEnd = at(now)
	v.rows = append(v.rows, t.row)
	if t.row.Phase == result.PhaseMeasure {
		v.measuring--
	}
	failed := t.row.Outcome != result.OutcomeOK
	switch {
	case !failed && len(t.rest) > 0:
		next := v.task(t.rest[0], t.rest[1:])
		next.closed, next.warmup, next.history = t.closed, t.warmup, t.tokens
		for i := range t.made {
			next.history = append(next.history, int64(mix(t.stream, uint64(1)<<33+uint64(i))>>1))
		}
		due := now + int64(v.plan.ThinkTime)
		v.place(next, due)
		v.push(next, due)
	case t.closed && failed:
		v.session(now + failurePause)
	case t.closed:
		v.session(now)
	}
}

// failurePause is how long a slot rests behind a refusal, as the load generator's.
const failurePause = 100_000_000

func at(t int64) *int64 { return &t }

// naturalLength is the number of tokens of an answer: the limit, or an
// exponentially distributed length where the answer may end by itself.
func naturalLength(c Config, key uint64, limit int, ignoreEOS bool) int {
	if ignoreEOS || c.MeanOutput == 0 {
		return limit
	}
	natural := -math.Log(1-unit(mix(key, 1<<40))) * float64(c.MeanOutput)
	return max(1, min(limit, int(math.Round(natural))))
}

// String names what is simulated, for a person.
func (c Config) String() string {
	cost := fmt.Sprintf("prefill %g tokens/s, decode %g steps/s + %v a sequence", c.Cost.PrefillRate, c.Cost.DecodeRate, c.Cost.PerSequence)
	if c.Cost.PeakFLOPS > 0 {
		cost = fmt.Sprintf("roofline of %.3g FLOP/s and %.3g bytes/s for %.3g weights", c.Cost.PeakFLOPS, c.Cost.Bandwidth, c.Cost.Parameters)
	}
	return fmt.Sprintf("%s batching, %d slots, %s", c.Limits.Batching, c.Limits.Slots, cost)
}
