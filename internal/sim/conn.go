package sim

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// conn is one client's connection. Its own goroutine reads requests; the
// engine writes answers without ever waiting for the client: what the socket
// does not take is queued and written by a goroutine of its own.
type conn struct {
	net    net.Conn
	raw    syscall.RawConn
	reader *bufio.Reader
	queued *sync.WaitGroup // of the goroutines that empty queues

	mu       sync.Mutex
	queue    []byte
	emptying bool
	closing  bool // close when the queue is empty
	broken   bool

	// Of the write in progress: a closure made once, since one for every token
	// would be garbage for every token.
	out     []byte
	n       int
	err     error
	attempt func(fd uintptr) bool
}

func newConn(c net.Conn, queued *sync.WaitGroup) (*conn, error) {
	sys, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("connection %T has no descriptor", c)
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("connection: %w", err)
	}
	w := &conn{net: c, raw: raw, reader: bufio.NewReader(c), queued: queued}
	w.attempt = func(fd uintptr) bool {
		for {
			w.n, w.err = syscall.Write(int(fd), w.out)
			if !errors.Is(w.err, syscall.EINTR) {
				return true // also when it would block
			}
		}
	}
	return w, nil
}

// write hands p to the kernel, or queues it; it never blocks. A broken
// connection swallows everything: its reader notices.
func (c *conn) write(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return
	}
	if c.emptying {
		c.queue = append(c.queue, p...)
		return
	}
	c.out = p
	if err := c.raw.Write(c.attempt); err != nil {
		c.broken = true
		return
	}
	c.out = nil
	if c.err != nil && !errors.Is(c.err, syscall.EAGAIN) {
		c.broken = true
		return
	}
	if n := max(c.n, 0); n < len(p) {
		c.queue = append(c.queue, p[n:]...)
		c.emptying = true
		c.queued.Go(c.empty)
	}
}

// empty writes the queue until there is none.
func (c *conn) empty() {
	for {
		c.mu.Lock()
		p := c.queue
		c.queue = nil
		if len(p) == 0 || c.broken {
			c.emptying = false
			if c.closing {
				_ = c.net.Close()
			}
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if _, err := c.net.Write(p); err != nil {
			c.mu.Lock()
			c.broken = true
			c.mu.Unlock()
		}
	}
}

// close ends the connection after what is queued.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.emptying {
		c.closing = true
		return
	}
	_ = c.net.Close()
}

// reset ends the connection at once; the peer of a TCP connection sees a reset.
func (c *conn) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = true
	if tcp, ok := c.net.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.net.Close()
}
