package loadgen

import (
	"sync/atomic"

	"sbench/internal/result"
	"sbench/internal/workload"
)

// maxBody bounds an answer, so that a server that never stops cannot fill the
// client's memory.
const maxBody = 256 << 20

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
	extra     int    // bytes behind the end of the answer
	first     *block // of the packed body
	lastBlock *block
	pattern   []byte // the packed body's, in one of its blocks
	prefix    uint16 // of the pattern, in the last piece that was like it
	suffix    uint16
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
