package loadgen

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sbench/internal/result"
	"sbench/internal/workload"
)

// runner is one load run: what its threads share.
type runner struct {
	cfg      Config
	clock    Clock
	plan     *workload.Plan
	zero     int64 // the plan's zero on the attempt's clock
	schedule []workload.Request
	renderer *renderer
	addr     address
	tls      *tlsTransport

	loops  []*loop
	sender *sender
	pool   pool
	arena  arena
	epoch  atomic.Uint32
	robin  atomic.Uint32

	limit          int64
	descriptors    int
	spin           int64
	spare          int32
	firstTimeout   int64
	totalTimeout   int64
	connectTimeout int64

	inFlight, inFlightMax atomic.Int64
	open, opened          atomic.Int64
	established, refused  atomic.Int64
	spares                atomic.Int32 // being connected for the pool
	stale, doneN, failedN atomic.Int64
	measuring             atomic.Int64 // measured requests that have not ended
	stopped, sendingDone  atomic.Bool
	truncated             atomic.Bool // a ladder was stopped: nothing behind lastWindow is offered
	cancelled             atomic.Bool
	more                  chan struct{} // spare connections are wanted
	followers             *queue
	following             atomic.Int64 // sessions between two turns, in the followers' hands
	slots                 slots
	spareError            atomic.Pointer[error]
	realtime              atomic.Bool // the sending thread has a real-time class
	faultOnce             sync.Once
	fault                 error
	faulted               chan struct{}
	lastWindow            atomic.Int64 // end of the last load point that is offered
}

func (r *runner) now() int64 { return r.clock.Now() }

// fail ends the run with an error of its own.
func (r *runner) fail(err error) {
	r.faultOnce.Do(func() {
		r.fault = err
		close(r.faulted)
	})
}

// defaultConnectTimeout is how long a connection may take to come about.
const defaultConnectTimeout = 10 * time.Second

func run(ctx context.Context, c Config, clock Clock) (*Recording, error) {
	if c.Plan == nil {
		return nil, errors.New("no plan")
	}
	if c.Served.TokenSource == "" {
		served, err := probe(ctx, c)
		if err != nil {
			return nil, err
		}
		c.Served = served
	}
	if c.Model == "" {
		c.Model = c.Served.Model
	}
	r, err := newRunner(ctx, c, clock)
	if err != nil {
		return nil, err
	}
	return r.run(ctx)
}

func newRunner(ctx context.Context, c Config, clock Clock) (*runner, error) {
	prompts, err := workload.NewPrompter(c.Plan, c.Served.Vocabulary)
	if err != nil {
		return nil, err
	}
	r := &runner{
		cfg: c, clock: clock, plan: c.Plan,
		spin:           int64(c.Client.Spin),
		firstTimeout:   int64(c.Request.TimeoutFirstToken),
		totalTimeout:   int64(c.Request.TimeoutTotal),
		connectTimeout: int64(defaultConnectTimeout),
		more:           make(chan struct{}, 1),
		faulted:        make(chan struct{}),
		followers:      newQueue(),
	}
	if t := r.firstTimeout; t > 0 {
		r.connectTimeout = min(r.connectTimeout, t)
	}
	if r.renderer, err = newRenderer(c, prompts); err != nil {
		return nil, err
	}
	if r.addr, err = resolve(ctx, c.Target); err != nil {
		return nil, err
	}
	if c.Plan.Closed == 0 {
		r.schedule = c.Plan.Requests
	}
	r.lastWindow.Store(c.Plan.Windows[len(c.Plan.Windows)-1].End)
	budget, err := r.budget()
	if err != nil {
		return nil, err
	}
	for range max(1, c.Client.Readers) {
		l, err := newLoop(r, budget)
		if err != nil {
			return nil, err
		}
		r.loops = append(r.loops, l)
	}
	if r.sender, err = newSender(r); err != nil {
		return nil, err
	}
	return r, nil
}

// preopen is how many connections are there when the schedule starts.
func (r *runner) preopen() int {
	switch n := r.cfg.Client.Preopen; {
	case n < 0:
		return 0
	case n > 0:
		return n
	case r.plan.Closed > 0:
		return min(r.plan.Closed, int(r.limit))
	}
	rate := 0.0
	for _, w := range r.plan.Windows {
		rate = max(rate, w.Rate)
	}
	return int(min(max(8, math.Ceil(2*rate)), 1024, float64(r.limit)))
}

// run starts the threads, waits for the plan's end, and collects.
func (r *runner) run(ctx context.Context) (*Recording, error) {
	if n := runtime.GOMAXPROCS(0); n < len(r.loops)+5 {
		// A thread that comes back from a wait must find a processor of the runtime
		// at once, however busy the others are.
		runtime.GOMAXPROCS(len(r.loops) + 5)
		defer runtime.GOMAXPROCS(n)
	}
	r.arena.stock()
	defer r.arena.release()
	watch := newObserver(r)
	defer watch.restore()
	defer promptProcess()()

	var readers sync.WaitGroup
	for _, l := range r.loops {
		readers.Go(l.run)
	}
	stopReaders := func() {
		r.stopped.Store(true)
		readers.Wait()
	}
	if err := r.openFirst(ctx); err != nil {
		stopReaders()
		return nil, err
	}
	helpers, stopHelpers := context.WithCancel(context.WithoutCancel(ctx))
	var helping sync.WaitGroup
	helping.Go(func() { r.openSpares(helpers) })
	helping.Go(func() { r.follow(helpers) })

	watch.start()
	r.zero = r.now() + startLead
	r.startSlots()
	var sending sync.WaitGroup
	sending.Go(r.sender.run)
	helping.Go(func() { watch.run(helpers) })

	err := r.wait(ctx, watch)
	r.sendingDone.Store(true)
	r.sender.rouse()
	sending.Wait()
	stopReaders()
	stopHelpers()
	helping.Wait()
	if r.tls != nil {
		r.tls.finish()
	}
	if err != nil {
		return nil, err
	}
	watch.restore() // what follows is no longer timed
	return r.collect(ctx, watch), nil
}

// startLead is between the last preparation and the plan's zero.
const startLead = 20_000_000

// wait returns when every measured request has ended, when the drain's limit has
// passed, or when the run is cancelled or broken.
func (r *runner) wait(ctx context.Context, watch *observer) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			r.cancelled.Store(true)
			return ctx.Err()
		case <-r.faulted:
			return r.fault
		case <-tick.C:
		}
		at := r.now() - r.zero
		watch.ladder(at)
		end := r.lastWindow.Load()
		if at >= end && (at >= end+int64(r.plan.Workload.Drain) || r.measured(r.zero+end)) {
			return nil
		}
	}
}

// measured says whether every request due before end has been sent and has ended.
func (r *runner) measured(end int64) bool {
	return r.following.Load() == 0 && r.sender.passed(end) && r.measuring.Load() == 0
}

// scheduled makes the exchange of a planned request.
func (r *runner) scheduled(i int) *exchange {
	req := &r.schedule[i]
	x := &exchange{req: *req, due: r.zero + req.Due, window: req.Window, phase: req.Phase}
	turns := i + 1
	for turns < len(r.schedule) && r.schedule[turns].Turn > 0 {
		turns++
	}
	if turns > i+1 {
		x.slot = &slot{rest: r.schedule[i+1 : turns], warmup: req.Phase == result.PhaseWarmup}
	}
	return x
}

// ended accounts for an exchange, on the thread that ended it; at is that thread's
// desk, where it has one that can go on at once.
func (r *runner) ended(x *exchange, at *desk) {
	if x.dispatch != 0 {
		r.inFlight.Add(-1)
	}
	r.doneN.Add(1)
	if x.ending != endingComplete || x.reply.status != 200 {
		r.failedN.Add(1)
	}
	r.advance(x, at)
	if x.phase == result.PhaseMeasure && x.dispatch != 0 {
		// Last, so that what follows in the same session is counted before.
		r.measuring.Add(-1)
	}
}

// openFirst opens the connections that the schedule starts with. That none can be
// opened means that there is no server.
func (r *runner) openFirst(ctx context.Context) error {
	if r.cfg.Target.Network == "tls" {
		r.tls = newTLSTransport(r)
		return r.tls.open(ctx, r.preopen())
	}
	n := r.preopen()
	if n == 0 {
		return nil
	}
	r.spare = int32(min(max(2, n/8), 64))
	deadline := r.now() + r.connectTimeout
	for i := range n {
		r.spares.Add(1)
		if err := r.begin(nil); err != nil {
			r.spares.Add(-1)
			if i == 0 || connectEnding(err) == endingLimit {
				return fmt.Errorf("open connection %d of %d to %s: %w", i+1, n, r.cfg.Target.Address, err)
			}
			break
		}
	}
	for r.spares.Load() > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if r.now() > deadline {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if r.established.Load() == 0 {
		err := r.lastSpareError()
		return fmt.Errorf("connect to %s: %w", r.cfg.Target.Address, err)
	}
	return nil
}

// refill asks for spare connections where few are idle.
func (r *runner) refill() {
	if r.pool.idle.Load()+r.spares.Load() >= r.spare {
		return
	}
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// openSpares opens connections off the sender's thread.
func (r *runner) openSpares(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.more:
		}
		for r.pool.idle.Load()+r.spares.Load() < r.spare && ctx.Err() == nil && !r.stopped.Load() {
			r.spares.Add(1)
			if err := r.begin(nil); err != nil {
				r.spares.Add(-1)
				break
			}
		}
	}
}

// collect decodes what is not decoded yet and puts the rows into order.
func (r *runner) collect(ctx context.Context, watch *observer) *Recording {
	all := append(r.sender.ended, r.sender.left()...)
	for _, l := range r.loops {
		all = append(all, l.ended...)
	}
	if r.tls != nil {
		all = append(all, r.tls.ended...)
	}
	decoded, texts := r.decode(all)
	rows := slices.Concat(watch.rows, decoded)
	if texts = slices.Concat(watch.texts, texts); slices.ContainsFunc(texts, func(text string) bool { return text != "" }) {
		r.countUntold(ctx, rows, texts)
	}
	slices.SortStableFunc(rows, func(a, b result.Request) int {
		switch {
		case a.TIntended != b.TIntended:
			return int(max(-1, min(1, a.TIntended-b.TIntended)))
		case a.Index != b.Index:
			return int(a.Index - b.Index)
		}
		return int(a.Session - b.Session)
	})
	if r.plan.Closed > 0 {
		for i := range rows {
			rows[i].Index = int32(i)
		}
	}
	rec := &Recording{
		Requests: rows, Served: r.cfg.Served, Harness: watch.harness(), PlanHash: r.plan.Hash, Stopped: watch.stoppedWhy,
	}
	for i, w := range r.plan.Windows {
		if w.End > r.lastWindow.Load() {
			break
		}
		rec.Windows = append(rec.Windows, result.Window{Index: i, OfferedRate: w.Rate, Start: r.zero + w.Start, End: r.zero + w.End})
	}
	return rec
}

// decode turns exchanges into rows, on every processor there is: the load is over.
// texts are those of the rows whose tokens the server did not count.
func (r *runner) decode(all []*exchange) (rows []result.Request, texts []string) {
	rows, texts = make([]result.Request, len(all)), make([]string, len(all))
	var next atomic.Int64
	var work sync.WaitGroup
	for range min(runtime.NumCPU(), 1+len(all)/64) {
		work.Go(func() {
			d := decoder{request: r.cfg.Request, tokenizer: r.cfg.Served.Tokenizer}
			for i := next.Add(1) - 1; i < int64(len(all)); i = next.Add(1) - 1 {
				rows[i] = d.row(all[i])
				texts[i] = d.untold(all[i], &rows[i])
				r.arena.take(all[i])
			}
		})
	}
	work.Wait()
	return rows, texts
}

// hasText says whether an answer that is still coming in has text already.
func (r *runner) hasText(x *exchange) bool {
	if x.reply.status != 200 {
		return false
	}
	d := decoder{request: r.cfg.Request}
	a := d.answer(x)
	return len(a.events) > 0
}

// prepareThread binds the calling thread to the client's cores and lets it sleep
// exactly.
func (r *runner) prepareThread() {
	if cpus := r.cfg.Client.CPUs; len(cpus) > 0 {
		var set unix.CPUSet
		for _, c := range cpus {
			set.Set(c)
		}
		_ = unix.SchedSetaffinity(0, &set)
	}
	preciseTimers()
}
