package loadgen

import (
	"container/heap"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"sbench/internal/result"
)

// sender is the one thread that keeps the schedule. It takes what is due from the
// schedule and from the heap of what became due while the load runs: turns of
// sessions, slots of a closed loop, requests to be written again.
type sender struct {
	r    *runner
	wake int // eventfd
	desk desk

	mu      sync.Mutex
	dynamic dueHeap

	next    int // of the plan's requests
	current *exchange
	ended   []*exchange
	lead    int64
	blocked int64 // since when the limit holds requests back; 0 where it does not
	atLimit int64

	spinning spinning
	realtime bool
	inTime   int // requests in time since it was behind
	unrested int // requests since it slept last
}

// dueHeap is a heap of exchanges by due time.
type dueHeap []*exchange

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(*exchange)) }
func (h *dueHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return x
}

func newSender(r *runner) (*sender, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create event descriptor: %w", err)
	}
	s := &sender{r: r, wake: fd, lead: longLead}
	s.desk = desk{r: r, ended: func(x *exchange) { s.ended = append(s.ended, x) }}
	if r.plan.Closed > 0 || r.plan.Workload.Prompts.Turns > 1 {
		s.lead = shortLead
	}
	return s, nil
}

// push makes an exchange due. It may be called from any thread.
func (s *sender) push(x *exchange) {
	s.mu.Lock()
	heap.Push(&s.dynamic, x)
	s.mu.Unlock()
	s.rouse()
}

// again has an exchange written once more, at once.
func (s *sender) again(x *exchange) { s.push(x) }

var one = [8]byte{1}

func (s *sender) rouse() { _, _ = write(s.wake, one[:]) }

// first returns what is due next, or nil where nothing is planned.
func (s *sender) first() *exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil && s.next < len(s.r.schedule) {
		s.current = s.r.scheduled(s.next)
		s.next++
		for s.next < len(s.r.schedule) && s.r.schedule[s.next].Turn > 0 {
			s.next++ // later turns follow their session
		}
	}
	if len(s.dynamic) > 0 && (s.current == nil || s.dynamic[0].due < s.current.due) {
		return s.dynamic[0]
	}
	return s.current
}

// taken removes what first returned, and counts it if it is to be measured.
func (s *sender) taken(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.phase == result.PhaseMeasure && !x.resent {
		s.r.measuring.Add(1)
	}
	if x == s.current {
		s.current = nil
		return
	}
	for i, y := range s.dynamic {
		if y == x {
			heap.Remove(&s.dynamic, i)
			return
		}
	}
}

// passed says whether nothing that is due before end is still to be sent.
func (s *sender) passed(end int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.current != nil && s.current.due < end:
		return false
	case s.current == nil && s.next < len(s.r.schedule) && s.r.zero+s.r.schedule[s.next].Due < end:
		return false
	}
	for _, x := range s.dynamic {
		if x.due < end {
			return false
		}
	}
	return true
}

// run sends until the runner has it stopped.
func (s *sender) run() {
	// Never unlocked: the thread's priority must not be another goroutine's.
	runtime.LockOSThread()
	s.r.prepareThread()
	s.spinning = newSpinning(s.r.spin, cores(), s.r.now())
	if s.r.spin == 0 || s.spinning.shared {
		s.realtime = promptSender(true)
		s.r.realtime.Store(s.realtime)
	}
	for !s.r.sendingDone.Load() {
		x := s.first()
		if x == nil {
			s.sleep(pollMillis * 1_000_000)
			continue
		}
		now := s.r.now()
		if s.leftOut(x) {
			s.sleep(pollMillis * 1_000_000)
			continue
		}
		if lead := x.due - now; lead > s.lead {
			s.sleep(lead - s.lead)
			continue
		}
		if !s.admitted(x, now) {
			s.sleep(limitPoll)
			continue
		}
		s.pace(now - x.due)
		s.desk.render(x)
		if s.until(x.due) {
			s.unrested = 0
		}
		s.taken(x)
		s.desk.dispatch(x)
	}
	s.cancelRest()
	unix.Close(s.wake)
}

const (
	// behind is how late a request must be for the sender to give up its real-time
	// class, if it has sent restless ones without sleeping: what one pause of the
	// machine left behind is sent sooner with it. punctual in time win it back.
	behind   = 5_000_000
	restless = 64
	punctual = 200
)

// pace takes note of how late the next request is.
func (s *sender) pace(late int64) {
	s.unrested++
	switch {
	case late > behind && s.unrested <= restless:
		s.inTime = 0
	case late > behind:
		s.inTime = 0
		if s.realtime {
			s.realtime = promptSender(false)
		}
	case !s.realtime && s.r.realtime.Load():
		if s.inTime++; s.inTime > punctual {
			s.realtime = promptSender(true)
		}
	}
}

// leftOut says whether the request belongs to what a stopped ladder does not offer.
func (s *sender) leftOut(x *exchange) bool {
	return s.r.truncated.Load() && x.dispatch == 0 && x.due-s.r.zero >= s.r.lastWindow.Load()
}

const (
	// A request is written out in memory that long before its time: from then on
	// the sender's thread no longer gives its processor back to the scheduler of the
	// runtime. Longer, where nothing can become due in between.
	shortLead = 150_000
	longLead  = 1_000_000
	// limitPoll is how often the sender looks whether it is still at the limit.
	limitPoll = 200_000
)

// admitted holds requests back at the limit on requests in flight.
func (s *sender) admitted(x *exchange, now int64) bool {
	if x.resent || s.r.inFlight.Load() < s.r.limit {
		if s.blocked != 0 {
			s.atLimit += now - s.blocked
			s.blocked = 0
		}
		return true
	}
	if x.due <= now {
		if s.blocked == 0 {
			s.blocked = now
		}
		x.held = true
	}
	return false
}

// sleep waits that long, or until something becomes due.
func (s *sender) sleep(ns int64) {
	s.unrested = 0
	timeout := unix.NsecToTimespec(ns)
	fds := [1]unix.PollFd{{Fd: int32(s.wake), Events: unix.POLLIN}}
	if n, err := unix.Ppoll(fds[:], &timeout, nil); err == nil && n > 0 {
		var b [8]byte
		_, _ = read(s.wake, b[:])
	}
}

// until returns at the deadline: it sleeps without telling the runtime, whose
// processor it keeps, and spins through the last stretch if it was given a core. It
// returns whether there was anything to wait for.
func (s *sender) until(deadline int64) (waited bool) {
	now := s.r.now()
	spin := s.spinning.most(now)
	for now < deadline {
		waited = true
		if rest := deadline - now; rest > spin {
			nap(rest - spin)
			now = s.r.now()
			continue
		}
		from := now
		for now < deadline {
			now = s.r.now()
		}
		s.spinning.spent(now - from)
	}
	return waited
}

// spinning bounds the time that the sender spins where its one core is the readers'
// too: to a share of the time that passes.
type spinning struct {
	longest int64 // before one deadline
	shared  bool
	saved   int64 // what may be spun now
	at      int64 // when that was
}

const (
	spinShare = 4  // a quarter of the time
	spinSaved = 10 // times the longest
)

func newSpinning(longest int64, cores int, now int64) spinning {
	return spinning{longest: longest, shared: cores < 2, at: now}
}

// most is how long the sender may spin before the next deadline.
func (s *spinning) most(now int64) int64 {
	if !s.shared {
		return s.longest
	}
	s.saved = min(s.saved+(now-s.at)/spinShare, spinSaved*s.longest)
	s.at = now
	return min(s.longest, max(0, s.saved))
}

func (s *spinning) spent(ns int64) { s.saved -= ns }

// cancelRest accounts for what was not sent. What was due is the client's fault,
// unless it was only to keep the load up; what a stopped ladder left out was
// cancelled by the plan; what lies behind the last window, or follows on an answer
// that never came, was never offered.
func (s *sender) cancelRest() {
	now := s.r.now()
	for x := s.first(); x != nil; x = s.first() {
		s.taken(x)
		if x.dispatch == 0 && (x.due > now || s.leftOut(x)) && (x.phase != result.PhaseMeasure || x.req.Due < 0) {
			continue
		}
		switch {
		case x.dispatch != 0:
			x.ending = endingCutOff
			s.r.inFlight.Add(-1)
		case s.leftOut(x) || x.due > now:
			x.ending, x.why = endingCancelled, "the load point was left out"
		case x.phase == result.PhaseTail:
			// It became due while the sender was told that all measured ones had ended.
			x.ending, x.why = endingCancelled, "the measurement had ended"
		default:
			x.ending = endingNotSent
		}
		x.end = now
		s.ended = append(s.ended, x)
	}
	if s.blocked != 0 {
		s.atLimit += now - s.blocked
	}
}

// left are the requests that were to be written again when sending had ended.
func (s *sender) left() []*exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []*exchange
	for _, x := range s.dynamic {
		if x.dispatch != 0 {
			x.ending, x.end = endingCutOff, s.r.now()
			left = append(left, x)
		}
	}
	return left
}
