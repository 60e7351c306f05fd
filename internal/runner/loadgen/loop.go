package loadgen

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// conn is one connection. Its state says who may touch the rest.
type conn struct {
	fd    int
	loop  *loop
	index uint32
	epoch uint32 // of the index: events of an earlier connection are not ours
	state atomic.Int32
	x     *exchange
	used  int   // answers that came over it
	since int64 // idle or connecting since
	armed bool  // EPOLLOUT is wanted
	// stamped says that the kernel notes when data came in.
	stamped bool
}

// loop is a thread that reads answers: one epoll instance and its connections.
type loop struct {
	r     *runner
	epoll int
	tid   atomic.Int32

	mu    sync.Mutex // free and ended
	free  []uint32
	conns []atomic.Pointer[conn]

	buf    []byte
	ended  []*exchange
	desk   desk
	doubts doubts

	stamps  stamps
	drained drained
	wall    int64 // of the attempt's clock's zero, ns since 1970, as of this pass
	blur    int64 // the largest doubt about a time of this pass, ns
	// unstamped says that this pass read what the kernel did not stamp.
	unstamped bool
}

const (
	readBuffer  = 256 << 10
	pollMillis  = 50
	maxPolled   = 256
	readsPerTry = 4 // of a full buffer, before the other connections have their turn
)

func newLoop(r *runner, maxConns int) (*loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll instance: %w", err)
	}
	l := &loop{r: r, epoll: fd, conns: make([]atomic.Pointer[conn], maxConns), buf: make([]byte, readBuffer)}
	l.desk = desk{r: r, ended: l.giveBack}
	l.stamps.init(l.buf)
	for i := maxConns - 1; i >= 0; i-- {
		l.free = append(l.free, uint32(i))
	}
	return l, nil
}

// add registers a descriptor. The connection is visible to the loop from then on.
func (l *loop) add(c *conn, events uint32) error {
	l.mu.Lock()
	n := len(l.free)
	if n == 0 {
		l.mu.Unlock()
		return unix.EMFILE
	}
	c.index = l.free[n-1]
	l.free = l.free[:n-1]
	l.mu.Unlock()
	c.loop, c.epoch = l, l.r.epoch.Add(1)
	l.conns[c.index].Store(c)
	ev := c.event(events)
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, c.fd, &ev); err != nil {
		l.release(c)
		return err
	}
	return nil
}

func (c *conn) event(events uint32) unix.EpollEvent {
	return unix.EpollEvent{Events: events, Fd: int32(c.index), Pad: int32(c.epoch)}
}

func (l *loop) release(c *conn) {
	l.conns[c.index].Store(nil)
	l.mu.Lock()
	l.free = append(l.free, c.index)
	l.mu.Unlock()
}

// want sets whether the connection's readiness to be written is reported.
func (c *conn) want(out bool) {
	if c.armed == out {
		return
	}
	c.armed = out
	events := uint32(unix.EPOLLIN | unix.EPOLLRDHUP)
	if out {
		events |= unix.EPOLLOUT
	}
	ev := c.event(events)
	// It cannot fail for a registered descriptor.
	_ = unix.EpollCtl(c.loop.epoll, unix.EPOLL_CTL_MOD, c.fd, &ev)
}

// doubts sums up by how much the times of what came in were in doubt, by powers of
// two: because the thread was away from its poll and the kernel stamped nothing, or
// because several events had come together that one stamp stands for.
type doubts struct {
	total [doubtClasses]atomic.Int64 // ns in doubts of that class
	most  atomic.Int64
}

// doubtClasses covers doubts of up to 2^39 ns, nine minutes.
const doubtClasses = 40

func (d *doubts) note(ns int64) {
	class := min(bits.Len64(uint64(max(ns, 0))), doubtClasses-1)
	d.total[class].Add(ns)
	if ns > d.most.Load() {
		d.most.Store(ns)
	}
}

func (d *doubts) reset() {
	d.most.Store(0)
	for i := range d.total {
		d.total[i].Store(0)
	}
}

// add sums the doubts up in h, from the shortest class that matters.
func (d *doubts) add(h *Harness) {
	longest := float64(d.most.Load()) / 1e9
	if h.StallMax == nil || *h.StallMax < longest {
		h.StallMax = &longest
	}
	const shortest = 17 // 65 µs and more
	for class := shortest; class < doubtClasses; class++ {
		if i := class - shortest; i == len(h.Stalls) {
			h.Stalls = append(h.Stalls, Stall{Longer: float64(int64(1)<<(class-1)) / 1e9})
		}
		h.Stalls[class-shortest].Seconds += float64(d.total[class].Load()) / 1e9
	}
}

// close ends the connection. Only its loop does that, so that no descriptor is used
// again while another thread still means the old one.
func (c *conn) close() {
	c.state.Store(connDead)
	c.x = nil
	unix.Close(c.fd)
	c.loop.release(c)
	c.loop.r.open.Add(-1)
}

// run reads until the runner stops.
func (l *loop) run() {
	// Never unlocked: the thread's priority must not be another goroutine's.
	runtime.LockOSThread()
	l.tid.Store(int32(unix.Gettid()))
	l.r.prepareThread()
	// Beside a sender with a schedule on the same core it comes round at once: a core
	// that has gone to sleep wakes the sender late.
	spaced := l.r.plan.Closed > 0 || cores() > 1
	events := make([]unix.EpollEvent, maxPolled)
	lastSweep := l.r.now()
	for before := lastSweep; !l.r.stopped.Load(); {
		n, slept, err := l.poll(events)
		if err != nil && !errors.Is(err, unix.EINTR) {
			l.r.fail(fmt.Errorf("wait for answers: %w", err))
			return
		}
		back, wall := l.r.clock.nowAndWall()
		l.wall, l.blur, l.unstamped = wall-back, 0, false
		l.drained.begin(back, slept)
		if n == len(events) {
			l.drained.left() // there may be more that are ready
		}
		crowded := back-before < 4*spacing
		before = back
		waiting := false
		for i := range max(n, 0) {
			ev := &events[i]
			if c := l.conns[uint32(ev.Fd)].Load(); c != nil && c.epoch == uint32(ev.Pad) {
				waiting = !l.handle(c, ev.Events) || waiting
			}
		}
		now := l.r.now()
		if now-lastSweep >= pollMillis*1_000_000 {
			lastSweep = now
			l.sweep(now)
			now = l.r.now()
		}
		if l.unstamped {
			l.blur = max(l.blur, now-back)
		}
		l.doubts.note(l.blur)
		switch {
		case waiting:
			l.drained.left()
			nap(senderNap)
		case spaced && crowded && !l.unstamped && now-back < spacing:
			// Not sooner: a reader that wakes for every packet costs several times as
			// much, and what it does not stamp itself it need not be there for.
			nap(spacing - (now - back))
		}
	}
	l.finish()
}

// spacing is between the beginnings of two passes where they crowd, at least, ns:
// where events of one stream follow faster, their times are in doubt by that much.
const spacing = 50_000

// poll returns what is ready. It looks first, and sleeps only where there is
// nothing: so it is known that nothing had come before.
func (l *loop) poll(events []unix.EpollEvent) (n int, slept bool, err error) {
	got, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno == 0 && got > 0 {
		return int(got), false, nil
	}
	n, err = unix.EpollWait(l.epoll, events, pollMillis)
	return n, true, err
}

// drained tells since when what a pass reads can have come in.
type drained struct {
	since int64
	begun int64 // the last pass
	rest  bool  // of which something was left unread
}

// begin is called when a pass begins, after the poll; slept says that nothing was
// ready before it. (For how long the thread then waited for a processor is another
// check's business.)
func (d *drained) begin(now int64, slept bool) {
	switch {
	case slept:
		d.since = now
	case !d.rest:
		d.since = d.begun
	}
	d.begun, d.rest = now, false
}

// left says that the pass leaves something unread.
func (d *drained) left() { d.rest = true }

// senderNap is how long a loop waits for the sender to be done with a connection
// whose answer is already there.
const senderNap = 20_000

// handle takes the events of a connection. It returns false where the sender has
// the connection for a moment: the events come again.
func (l *loop) handle(c *conn, events uint32) bool {
	switch c.state.Load() {
	case connConnecting:
		if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			l.connected(c)
		}
	case connIdle:
		// An idle connection has nothing to say: it was closed.
		if c.state.CompareAndSwap(connIdle, connBusy) {
			l.r.pool.idle.Add(-1)
			c.close()
		}
	case connBusy:
		if events&unix.EPOLLOUT != 0 && !l.flush(c) {
			return true
		}
		if events&^unix.EPOLLOUT != 0 {
			l.read(c)
		}
	case connSending:
		return false
	case connDoomed:
		c.close()
	case connDead:
	}
	return true
}

// connected takes the outcome of a connection attempt.
func (l *loop) connected(c *conn) {
	code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	x, now := c.x, l.r.now()
	if err != nil {
		c.close()
		l.r.refused.Add(1)
		if x == nil {
			l.r.spareFailed(err)
			return
		}
		l.end(x, connectEnding(err), err.Error(), now)
		return
	}
	l.r.established.Add(1)
	if x == nil {
		c.want(false)
		l.r.pool.put(c, now)
		l.r.spares.Add(-1)
		return
	}
	x.conn, x.attempt = now, now
	c.state.Store(connBusy)
	l.flush(c)
}

// connectEnding tells the server's refusal from this machine's limits.
func connectEnding(err error) ending {
	for _, limit := range []error{unix.EADDRNOTAVAIL, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, limit) {
			return endingLimit
		}
	}
	if errors.Is(err, unix.ETIMEDOUT) {
		return endingTimeoutConnect
	}
	return endingConnect
}

// flush writes what is left of the request. It returns false when that ended the
// connection.
func (l *loop) flush(c *conn) bool {
	x := c.x
	if len(x.pending) == 0 {
		c.want(false)
		return true
	}
	n, err := write(c.fd, x.pending)
	x.pending = x.pending[n:]
	switch {
	case err != 0 && err != unix.EAGAIN:
		l.broken(c, endingReset, err.Error())
		return false
	case len(x.pending) > 0:
		c.want(true)
	default:
		x.pending = nil
		x.written = l.r.now()
		c.want(false)
	}
	return true
}

// read takes what has come in.
func (l *loop) read(c *conn) {
	for range readsPerTry {
		n, stamp, err := l.receive(c)
		switch {
		case err == unix.EAGAIN:
			return
		case err != 0:
			l.broken(c, endingReset, err.Error())
			return
		case n == 0:
			l.eof(c)
			return
		}
		x, now := c.x, l.r.now()
		done, fault := x.feed(&l.r.arena, l.buf[:n], l.arrival(x, l.buf[:n], stamp, now))
		switch {
		case fault != nil:
			c.close()
			l.end(x, endingMalformed, fault.Error(), now)
			return
		case done:
			l.answered(c, now)
			return
		case n < len(l.buf):
			return
		}
	}
	l.drained.left()
}

// answered hands the connection on behind a complete answer.
func (l *loop) answered(c *conn, now int64) {
	x := c.x
	c.x = nil
	c.used++
	if x.reply.keepAlive && x.extra == 0 && x.pending == nil && !l.r.stopped.Load() {
		c.want(false)
		l.r.pool.put(c, now)
	} else {
		c.close()
	}
	l.end(x, endingComplete, "", now)
}

// eof is the server's close.
func (l *loop) eof(c *conn) {
	x := c.x
	if x.reply.state == stateClose {
		now := l.r.now()
		c.used++
		c.close()
		l.end(x, endingComplete, "", now)
		return
	}
	l.broken(c, endingEOF, "the server closed the connection")
}

// staleTime is how soon behind a write a connection must turn out dead for the
// request to be written again.
const staleTime = 1_000_000_000

// broken ends a connection in the middle of an exchange. A connection that had
// been idle may have been closed by the server before it saw the request: where
// nothing came back, and at once, the request is written again, once, and the row
// says so.
func (l *loop) broken(c *conn, how ending, why string) {
	x, now := c.x, l.r.now()
	idled := c.used > 0 || x.attempt-c.since > staleTime
	c.close()
	if idled && !x.resent && x.last == 0 && now-x.attempt < staleTime && !l.r.sendingDone.Load() {
		x.resent, x.reply, x.pending = true, reply{}, nil
		l.r.stale.Add(1)
		l.r.sender.again(x)
		return
	}
	l.end(x, how, why, now)
}

// end closes the account of an exchange.
func (l *loop) end(x *exchange, how ending, why string, now int64) {
	x.ending, x.why, x.end, x.pending = how, why, now, nil
	l.giveBack(x)
	l.r.ended(x, &l.desk)
}

func (l *loop) giveBack(x *exchange) {
	l.mu.Lock()
	l.ended = append(l.ended, x)
	l.mu.Unlock()
}

// takeEnded takes over what has ended so far.
func (l *loop) takeEnded() []*exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	ended := l.ended
	l.ended = nil
	return ended
}

// sweep ends what took too long.
func (l *loop) sweep(now int64) {
	for i := range l.conns {
		c := l.conns[i].Load()
		if c == nil {
			continue
		}
		switch c.state.Load() {
		case connConnecting:
			if now-c.since > l.r.connectTimeout {
				x := c.x
				c.close()
				if x == nil {
					l.r.spareFailed(unix.ETIMEDOUT)
				} else {
					l.end(x, endingTimeoutConnect, "", now)
				}
			}
		case connDoomed:
			c.close()
		case connBusy:
			if how := l.r.overdue(c.x, now); how != endingNone {
				x := c.x
				c.close()
				l.end(x, how, "", now)
			}
		}
	}
}

// overdue says which limit an exchange has passed, if any.
func (r *runner) overdue(x *exchange, now int64) ending {
	if r.totalTimeout > 0 && now-x.due > r.totalTimeout {
		return endingTimeoutTotal
	}
	if r.firstTimeout > 0 && now-x.due > r.firstTimeout && !x.sawText {
		if x.size != x.looked {
			x.looked = x.size
			x.sawText = r.hasText(x)
		}
		if !x.sawText {
			return endingTimeoutFirst
		}
	}
	return endingNone
}

// finish cuts off what is still running.
func (l *loop) finish() {
	now := l.r.now()
	how := endingCutOff
	if l.r.cancelled.Load() {
		how = endingCancelled
	}
	for i := range l.conns {
		c := l.conns[i].Load()
		if c == nil {
			continue
		}
		x := c.x
		c.close()
		if x != nil {
			l.end(x, how, "", now)
		}
	}
	unix.Close(l.epoll)
}

// read and write do not tell the scheduler: the descriptors do not block.

func read(fd int, p []byte) (int, unix.Errno) {
	n, _, err := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

func write(fd int, p []byte) (int, unix.Errno) {
	written := 0
	for written < len(p) {
		rest := p[written:]
		n, _, err := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&rest[0])), uintptr(len(rest)))
		if err == unix.EINTR {
			continue
		}
		if err != 0 {
			return written, err
		}
		written += int(n)
	}
	return written, 0
}

// nap sleeps without telling the scheduler.
func nap(ns int64) {
	timeout := unix.NsecToTimespec(ns)
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&timeout)), 0, 0)
}
