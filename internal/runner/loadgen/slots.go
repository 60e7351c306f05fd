package loadgen

import (
	"context"
	"encoding/json"
	"sync"

	"sbench/internal/result"
	"sbench/internal/sse"
	"sbench/internal/workload"
)

// slot is a conversation under way: one of an open loop's sessions, or a slot of
// a closed loop, which has one conversation after the other. Only one of its
// requests exists at a time, and the slot belongs to whoever has that.
type slot struct {
	rest    []workload.Request // turns still to come
	history []message
	warmup  bool // the session began in the warm-up
	closed  bool // another session follows
}

// history is what the request's earlier turns said.
func (x *exchange) history() []message {
	if x.slot == nil {
		return nil
	}
	return x.slot.history
}

// slots guards the sequences that closed-loop slots draw from.
type slots struct {
	mu sync.Mutex
}

// failurePause is how long a slot rests behind a failed request, so that a server
// that refuses everything is not flooded.
const failurePause = 100_000_000

// startSlots makes the first request of each slot of a closed loop due. The slots
// start spread over the first half of the warm-up (or ramp), not all at once.
func (r *runner) startSlots() {
	n := r.plan.Closed
	span := r.plan.WarmupEnd / 2
	if span == 0 {
		span = r.plan.Windows[0].Start / 2
	}
	for i := range n {
		r.nextSession(&slot{closed: true}, r.zero+span*int64(i)/int64(n), nil)
	}
}

// nextSession begins a slot's next session, at that desk where it is due now.
func (r *runner) nextSession(s *slot, due int64, at *desk) {
	s.warmup = due-r.zero < r.plan.WarmupEnd
	seq := r.plan.Measured
	if s.warmup {
		seq = r.plan.Warmup
	}
	r.slots.mu.Lock()
	s.rest = seq.Next()
	r.slots.mu.Unlock()
	s.history = nil
	x := r.nextTurn(s, due)
	if at == nil || r.inFlight.Load() >= r.limit {
		r.sender.push(x)
		return
	}
	if x.phase == result.PhaseMeasure {
		r.measuring.Add(1)
	}
	at.render(x)
	at.dispatch(x)
}

// nextTurn makes the next turn of the slot's session.
func (r *runner) nextTurn(s *slot, due int64) *exchange {
	x := &exchange{req: s.rest[0], due: due, slot: s}
	s.rest = s.rest[1:]
	x.window, x.phase = r.phaseAt(due - r.zero)
	if s.warmup {
		x.phase, x.req.Phase = result.PhaseWarmup, result.PhaseWarmup
	}
	return x
}

// phaseAt is the phase of a time on the plan's clock.
func (r *runner) phaseAt(at int64) (window int32, phase result.Phase) {
	if at < r.plan.WarmupEnd {
		return 0, result.PhaseWarmup
	}
	for _, w := range r.plan.Windows {
		switch {
		case at < w.Start:
			return w.Index, result.PhaseRamp
		case at < w.End:
			return w.Index, result.PhaseMeasure
		}
	}
	return int32(len(r.plan.Windows) - 1), result.PhaseTail
}

// advance goes on with the session of an exchange that has ended. It runs on the
// thread that ended it: what takes longer is left to follow.
func (r *runner) advance(x *exchange, at *desk) {
	s := x.slot
	if s == nil || r.sendingDone.Load() {
		return
	}
	failed := x.ending != endingComplete || x.reply.status != 200
	switch {
	case !failed && len(s.rest) > 0:
		r.following.Add(1)
		r.followers.push(x)
	case s.closed && failed:
		r.nextSession(s, x.end+failurePause, nil)
	case s.closed:
		r.nextSession(s, x.end, at)
	}
}

// follow prepares the later turns of sessions: it reads what was answered while
// the user of the session thinks.
func (r *runner) follow(ctx context.Context) {
	var parser sse.Parser
	var body []byte
	for {
		x := r.followers.pop(ctx)
		if x == nil {
			return
		}
		s := x.slot
		user := r.renderer.prompts.Append(nil, &x.req)
		var text []byte
		parser.Answer = &text
		body = x.body(body[:0])
		readAnswer(&parser, x, body)
		x.followed.Store(true)
		s.history = append(s.history, message{"user", user}, message{"assistant", escape(text)})
		r.sender.push(r.nextTurn(s, x.end+int64(r.plan.ThinkTime)))
		r.following.Add(-1)
	}
}

// readAnswer collects the text of an answer in the parser's Answer.
func readAnswer(parser *sse.Parser, x *exchange, body []byte) {
	var c sse.Chunk
	if !x.reply.stream {
		parser.Parse(body, &c)
		return
	}
	var split sse.Splitter
	for {
		ev, rest, ok, err := split.Next(body)
		if !ok || err != nil {
			return
		}
		body = rest
		parser.Parse(ev.Data, &c)
	}
}

// escape makes text fit for the inside of a JSON string.
func escape(text []byte) []byte {
	quoted, err := json.Marshal(string(text))
	if err != nil {
		return nil
	}
	return quoted[1 : len(quoted)-1]
}

// queue is an unbounded queue of exchanges: what puts one in never waits.
type queue struct {
	mu    sync.Mutex
	items []*exchange
	ready chan struct{}
}

func newQueue() *queue { return &queue{ready: make(chan struct{}, 1)} }

func (q *queue) push(x *exchange) {
	q.mu.Lock()
	q.items = append(q.items, x)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// pop waits for an exchange; it returns nil when ctx is done.
func (q *queue) pop(ctx context.Context) *exchange {
	for {
		q.mu.Lock()
		if len(q.items) > 0 {
			x := q.items[0]
			q.items[0] = nil
			q.items = q.items[1:]
			q.mu.Unlock()
			return x
		}
		q.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-q.ready:
		}
	}
}
