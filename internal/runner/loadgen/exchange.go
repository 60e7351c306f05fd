package loadgen

import (
	"sync"
	"sync/atomic"

	"sbench/internal/result"
	"sbench/internal/workload"
)

// mark says that the body was size bytes long once the read at time t was done.
type mark struct {
	t    int64
	size uint32
}

const (
	blockBytes = 4000
	blockMarks = 60
	// maxBody bounds an answer, so that a server that never stops cannot fill the
	// client's memory.
	maxBody = 256 << 20
)

// block is a piece of a body; a body is a list of them.
type block struct {
	next *block
	n    int
	data [blockBytes]byte
}

// markBlock is a piece of the list of marks.
type markBlock struct {
	next  *markBlock
	n     int
	marks [blockMarks]mark
}

// arena hands out blocks and takes them back. It is safe for concurrent use: the
// lists are only touched when a block is full.
type arena struct {
	mu     sync.Mutex
	blocks *block
	marks  *markBlock
	held   atomic.Int64 // bytes handed out
}

// slab is how many blocks are allocated at a time.
const slab = 64

func (a *arena) block() *block {
	a.held.Add(blockBytes)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.blocks == nil {
		fresh := make([]block, slab)
		for i := range slab - 1 {
			fresh[i].next = &fresh[i+1]
		}
		a.blocks = &fresh[0]
	}
	b := a.blocks
	a.blocks = b.next
	b.next, b.n = nil, 0
	return b
}

func (a *arena) markBlock() *markBlock {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.marks == nil {
		fresh := make([]markBlock, slab)
		for i := range slab - 1 {
			fresh[i].next = &fresh[i+1]
		}
		a.marks = &fresh[0]
	}
	m := a.marks
	a.marks = m.next
	m.next, m.n = nil, 0
	return m
}

// take puts the blocks of x back.
func (a *arena) take(x *exchange) {
	var bytes int64
	a.mu.Lock()
	for b := x.first; b != nil; {
		next := b.next
		b.next, a.blocks = a.blocks, b
		b = next
		bytes += blockBytes
	}
	for m := x.firstMark; m != nil; {
		next := m.next
		m.next, a.marks = a.marks, m
		m = next
	}
	a.mu.Unlock()
	a.held.Add(-bytes)
	x.first, x.lastBlock, x.firstMark, x.lastMark = nil, nil, nil, nil
}

// ending says how the transport of an exchange ended; what the answer means is
// decided when it is decoded.
type ending uint8

const (
	endingNone     ending = iota
	endingComplete        // the answer's framing was complete
	endingEOF             // the server closed the connection
	endingReset           // the connection broke
	endingConnect         // no connection came about
	endingLimit           // this machine has no more descriptors or ports
	endingTimeoutConnect
	endingTimeoutFirst
	endingTimeoutTotal
	endingCutOff
	endingCancelled
	endingMalformed // not HTTP, or broken framing
	endingNotSent
)

// exchange is one offered request and the raw answer to it. Until it has ended it
// belongs to the owner of its connection, or to the sender.
type exchange struct {
	req    workload.Request
	due    int64 // t_intended on the attempt's clock
	window int32
	phase  result.Phase
	held   bool // the limit on requests in flight held it back
	resent bool // written again, because an idle connection turned out dead
	reused bool
	slot   *slot // closed loop and sessions: what goes on when it ends

	dispatch int64
	conn     int64 // 0 until it has a connection
	written  int64 // 0 until the last byte is with the kernel
	headers  int64
	byte1    int64
	last     int64 // last read that brought anything
	end      int64

	sawText  bool        // text had come when it was last looked for
	looked   int         // size of the body then
	followed atomic.Bool // its session has read the answer

	pending []byte // of the request, not yet written; owned by the connection's thread
	attempt int64  // when the present write was begun

	reply     reply
	ending    ending
	why       string // the transport's error
	size      int
	extra     int // bytes behind the end of the answer
	first     *block
	lastBlock *block
	firstMark *markBlock
	lastMark  *markBlock
}

// feed takes the bytes of one read at time t. It returns true when the answer is
// complete.
func (x *exchange) feed(a *arena, p []byte, t int64) (done bool, err error) {
	x.last = t
	before := x.size
	for len(p) > 0 && err == nil {
		if x.reply.state == stateDone {
			x.extra += len(p)
			break
		}
		inHeader := x.reply.state == stateHeader
		var body []byte
		body, p, err = x.reply.step(p)
		if inHeader && x.reply.state != stateHeader && x.headers == 0 {
			x.headers = t
		}
		if len(body) > 0 {
			if x.size+len(body) > maxBody {
				err = errBodyTooLong
				break
			}
			x.append(a, body)
		}
	}
	if x.size > before {
		if x.byte1 == 0 {
			x.byte1 = t
		}
		x.mark(a, t)
	}
	return x.reply.state == stateDone && err == nil, err
}

func (x *exchange) append(a *arena, p []byte) {
	x.size += len(p)
	for len(p) > 0 {
		if x.lastBlock == nil || x.lastBlock.n == blockBytes {
			b := a.block()
			if x.lastBlock == nil {
				x.first = b
			} else {
				x.lastBlock.next = b
			}
			x.lastBlock = b
		}
		n := copy(x.lastBlock.data[x.lastBlock.n:], p)
		x.lastBlock.n += n
		p = p[n:]
	}
}

func (x *exchange) mark(a *arena, t int64) {
	if x.lastMark == nil || x.lastMark.n == blockMarks {
		m := a.markBlock()
		if x.lastMark == nil {
			x.firstMark = m
		} else {
			x.lastMark.next = m
		}
		x.lastMark = m
	}
	x.lastMark.marks[x.lastMark.n] = mark{t, uint32(x.size)}
	x.lastMark.n++
}

// body appends the whole body to p.
func (x *exchange) body(p []byte) []byte {
	for b := x.first; b != nil; b = b.next {
		p = append(p, b.data[:b.n]...)
	}
	return p
}
