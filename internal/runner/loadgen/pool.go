package loadgen

import (
	"sync"
	"sync/atomic"
)

// coolTime is how long a connection rests behind an answer before it is used
// again, where others are idle: a server that closes behind each answer, against
// what it announced, has done so by then.
const coolTime = 5_000_000

// connState says who may touch a connection.
type connState = int32

const (
	connConnecting connState = iota // its loop waits for the connection
	connIdle                        // in the pool: whoever swaps the state away owns it
	connSending                     // the sender's
	connBusy                        // its loop's: an answer is awaited
	connDoomed                      // the sender gave it up: its loop closes it
	connDead
)

// pool holds the idle connections. The hottest is taken first, so that a server
// with few worker threads, or with a short idle time-out, sees few of them.
type pool struct {
	mu      sync.Mutex
	ready   []*conn // stack
	cooling []*conn // queue
	idle    atomic.Int32
}

func (p *pool) put(c *conn, now int64) {
	c.since = now
	p.idle.Add(1)
	c.state.Store(connIdle)
	p.mu.Lock()
	if c.used == 0 {
		p.ready = append(p.ready, c)
	} else {
		p.cooling = append(p.cooling, c)
	}
	p.mu.Unlock()
}

// take returns an idle connection in state connSending, or nil.
func (p *pool) take(now int64) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	cold := 0
	for cold < len(p.cooling) && p.cooling[cold].since+coolTime <= now {
		p.ready = append(p.ready, p.cooling[cold])
		cold++
	}
	if cold > 0 {
		p.cooling = append(p.cooling[:0], p.cooling[cold:]...)
	}
	for n := len(p.ready); n > 0; n = len(p.ready) {
		c := p.ready[n-1]
		p.ready[n-1] = nil
		p.ready = p.ready[:n-1]
		if c.state.CompareAndSwap(connIdle, connSending) {
			p.idle.Add(-1)
			return c
		}
	}
	for len(p.cooling) > 0 {
		c := p.cooling[0]
		p.cooling = append(p.cooling[:0], p.cooling[1:]...)
		if c.state.CompareAndSwap(connIdle, connSending) {
			p.idle.Add(-1)
			return c
		}
	}
	return nil
}
