package sim

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// errDied says that a fault ended the engine.
var errDied = errors.New("the fault `die` ended the engine")

// engine drives the scheduler in real time on a thread of its own.
type engine struct {
	config    Config
	clock     clock
	scheduler *scheduler
	journal   *journal
	whole     func(*request) []byte
	factor    float64 // of the run, night and node
	ready     int64   // when the engine began, on the clock
	numbers   atomic.Int64

	mu       sync.Mutex
	incoming []*request
	state    state
	wake     chan struct{} // of capacity 1
	forget   bool          // empty the prefix cache before anything else
	stopped  bool

	death <-chan time.Time // nil: none is due

	scratch []byte // of the write in progress
	late    histogram
}

// state is what /metrics shows of the last step.
type state struct {
	tally            tally
	running, waiting int
	kvUsed           int // blocks
	overruns         int64
	finished         int64
}

// submit hands a request over; the engine closes its done.
func (e *engine) submit(r *request) {
	e.mu.Lock()
	stopped := e.stopped
	if !stopped {
		e.incoming = append(e.incoming, r)
	}
	e.mu.Unlock()
	if stopped {
		e.end(r, abandoned)
		return
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// arrivals moves submitted requests to the scheduler, and returns when there is
// something to do or the context ended.
func (e *engine) arrivals(ctx context.Context) {
	for {
		e.mu.Lock()
		if e.forget {
			e.scheduler.cache.clear()
			e.forget = false
		}
		for _, r := range e.incoming {
			e.scheduler.add(&r.sequence)
		}
		clear(e.incoming)
		e.incoming = e.incoming[:0]
		e.mu.Unlock()
		e.scheduler.drop(func(q *sequence) { e.end(q.owner, "cancelled") })
		e.mu.Lock()
		e.state.tally = e.scheduler.tally
		e.state.running, e.state.waiting, e.state.kvUsed = len(e.scheduler.running), len(e.scheduler.waiting), e.scheduler.used
		e.mu.Unlock()
		if len(e.scheduler.running) > 0 || len(e.scheduler.waiting) > 0 {
			return
		}
		select {
		case <-e.wake:
		case <-e.death:
			return
		case <-ctx.Done():
			return
		}
	}
}

// run steps until the context ends, or a fault ends the engine. Steps end at
// absolute times: that emitting takes time does not make the engine slower,
// unless it takes longer than a step, which is counted as an overrun.
func (e *engine) run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The kernel's default of 50 µs is not accurate enough; a refusal only
	// leaves that.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for _, f := range e.config.Faults {
		if f.Kind == Die {
			timer := time.NewTimer(f.At)
			defer timer.Stop()
			e.death = timer.C
		}
	}
	var previous, length int64 // the end of the last step, 0 after a pause; and how long it was
	for {
		before := previous
		e.arrivals(ctx)
		if ctx.Err() != nil {
			return nil
		}
		now := e.clock.now()
		if e.dead(now) {
			return errDied
		}
		begin := before
		if lag := now - before; before == 0 || lag > max(length, int64(time.Millisecond)) {
			begin = now
			if before != 0 && len(e.scheduler.running) > 0 {
				e.mu.Lock()
				e.state.overruns++
				e.mu.Unlock()
			}
		}
		duration := e.scheduler.plan(begin)
		if duration == 0 { // only waiting requests that do not fit yet
			previous = 0
			continue
		}
		factor := e.factor * e.config.Noise.step(e.config.Seed, e.config.Names.Run, e.scheduler.tally.steps)
		length = int64(float64(duration) * factor)
		end := e.ready + int64(disturb(e.config.Faults, time.Duration(begin-e.ready), time.Duration(begin+length-e.ready)))
		if err := e.sleep(ctx, end); err != nil {
			return err
		}
		e.late.add(e.clock.now() - end)
		e.scheduler.complete(e.emit)
		previous = end
		if len(e.scheduler.running) == 0 && len(e.scheduler.waiting) == 0 {
			previous = 0
		}
	}
}

// sleep returns at t, or soon after the context ended, or when the engine dies.
func (e *engine) sleep(ctx context.Context, t int64) error {
	const slice = int64(20 * time.Millisecond)
	for {
		now := e.clock.now()
		if e.dead(now) {
			return errDied
		}
		if ctx.Err() != nil || now >= t {
			return nil
		}
		e.clock.sleepUntil(min(t, now+slice), min(e.config.Spin, time.Duration(slice)))
	}
}

// emit writes what a sequence made in a step.
func (e *engine) emit(q *sequence, tokens int, done bool) {
	r := q.owner
	if r.ended {
		return
	}
	if r.fate.cut != "" && q.made-tokens >= r.fate.after {
		e.cut(r)
		return
	}
	for i := q.made - tokens; i < q.made; i++ {
		r.text = r.appendToken(r.text, i)
	}
	r.held += tokens
	if !r.stream {
		if done {
			e.write(r, e.response(r), r.held)
			e.end(r, r.finish)
		}
		return
	}
	first := q.made == tokens
	if first && r.chat && !e.config.EarlyHeaders {
		r.body = r.role(r.body)
	}
	if first || done || r.held >= e.config.StreamInterval {
		r.body = r.event(r.body, r.text, "")
		r.bodyEvent++
		r.bodyToken += r.held
		r.text, r.held = r.text[:0], 0
	}
	if done {
		r.body = r.last(r.event(r.body, nil, r.finish))
	}
	if first || done || r.bodyEvent >= e.config.EventsPerWrite {
		e.flush(r, done)
	}
	if done {
		e.end(r, r.finish)
	}
}

const streamHeaders = "HTTP/1.1 200 OK\r\nServer: sbench-sim\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n"

// headers appends the head of a streamed answer.
func (r *request) headers(b []byte) []byte {
	b = append(b, streamHeaders...)
	if !r.keepAlive {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, "\r\n"...)
}

// chunk appends p in HTTP's chunked framing.
func chunk(b, p []byte) []byte {
	if len(p) == 0 {
		return b
	}
	b = strconv.AppendInt(b, int64(len(p)), 16)
	b = append(b, "\r\n"...)
	b = append(b, p...)
	return append(b, "\r\n"...)
}

// flush writes the gathered events of a stream as one chunk, and its end.
func (e *engine) flush(r *request, done bool) {
	b := e.scratch[:0]
	if !r.started {
		b = r.headers(b)
		r.started = true
	}
	b = chunk(b, r.body)
	if done {
		b = append(b, "0\r\n\r\n"...)
	}
	e.scratch = b
	e.write(r, b, r.bodyToken)
	r.body, r.bodyEvent, r.bodyToken = r.body[:0], 0, 0
}

// write notes the time and writes. The time is read before the call: a client
// on this machine may have the bytes before the call returns.
func (e *engine) write(r *request, b []byte, tokens int) {
	if e.journal != nil && tokens > 0 {
		r.emissions = append(r.emissions, emission{e.clock.now(), tokens})
	}
	r.conn.write(b)
}

// response is the whole answer of a request that is not streamed.
func (e *engine) response(r *request) []byte {
	return appendResponse(e.scratch[:0], 200, "application/json", e.whole(r), r.keepAlive)
}

// cut ends a request as its fate says.
func (e *engine) cut(r *request) {
	r.gone.Store(true) // the scheduler lets it go at the next step
	switch r.fate.cut {
	case Drop:
		r.conn.reset()
	case Truncate:
		if r.stream {
			e.flush(r, false)
		} else {
			b := e.response(r)
			e.write(r, b[:len(b)-len(b)/4], 0)
		}
		r.conn.close()
	case StreamError:
		if r.stream {
			r.body = append(r.body, `data: {"error":{"message":"injected fault","type":"server_error","code":500}}`+"\n\n"...)
			e.flush(r, true)
		} else {
			e.write(r, appendError(nil, &apiError{"injected fault", "server_error", 500}, r.keepAlive), 0)
		}
	case Hang:
		if r.stream {
			e.flush(r, false)
		}
	case Loading, Cold, Stall, Die, HTTPStatus, HTML, NoDone, NoUsage, Short: // cut nothing
	}
	e.end(r, string(r.fate.cut))
}

// end is the last thing that happens to a request.
func (e *engine) end(r *request, finish string) {
	if r.ended {
		return
	}
	r.ended, r.finish = true, finish
	if !r.keepAlive && r.fate.cut != Hang {
		r.conn.close()
	}
	e.mu.Lock()
	e.state.finished++
	e.mu.Unlock()
	if e.journal != nil {
		e.journal.request(r, e.clock.now())
	}
	close(r.done)
}

func (e *engine) dead(now int64) bool {
	for _, f := range e.config.Faults {
		if f.Kind == Die && time.Duration(now-e.ready) >= f.At {
			return true
		}
	}
	return false
}

// abandoned is the finish of a request that the end of the engine cut off.
const abandoned = "abandoned"

// abandon ends every request that is left, after run returned, and all that are
// submitted later.
func (e *engine) abandon() {
	e.mu.Lock()
	e.stopped = true
	left := e.incoming
	e.mu.Unlock()
	for _, r := range left {
		e.end(r, abandoned)
	}
	for _, list := range [][]*sequence{e.scheduler.running, e.scheduler.waiting} {
		for _, q := range list {
			e.end(q.owner, abandoned)
		}
	}
}
