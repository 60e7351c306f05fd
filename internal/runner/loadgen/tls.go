package loadgen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// tlsTransport carries exchanges over TLS: a goroutine for each connection. Its
// timing is a little coarser than that of the clear-text loops, because the
// runtime's scheduler stands between the socket and the clock.
type tlsTransport struct {
	r      *runner
	dialer tls.Dialer

	mu    sync.Mutex
	idle  []*tlsConn
	all   map[*tlsConn]bool
	ended []*exchange
	work  sync.WaitGroup
	done  bool
}

type tlsConn struct {
	net.Conn
	jobs  chan tlsJob
	used  int
	since int64
}

type tlsJob struct {
	x       *exchange
	request []byte
}

func newTLSTransport(r *runner) *tlsTransport {
	t := &tlsTransport{r: r, all: map[*tlsConn]bool{}}
	config := r.cfg.Target.TLS.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	config.NextProtos = []string{"http/1.1"}
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(r.cfg.Target.Address)
		if err == nil {
			config.ServerName = host
		}
	}
	t.dialer = tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Duration(r.connectTimeout)}, Config: config}
	return t
}

// open opens the connections that the schedule starts with, 16 at a time.
func (t *tlsTransport) open(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(t.r.connectTimeout))
	defer cancel()
	var wait sync.WaitGroup
	errs := make(chan error, max(n, 1))
	gate := make(chan struct{}, 16)
	for range n {
		wait.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			c, err := t.dial(ctx)
			if err != nil {
				errs <- err
				return
			}
			t.mu.Lock()
			t.idle = append(t.idle, c)
			t.mu.Unlock()
		})
	}
	wait.Wait()
	if len(t.idle) == 0 && n > 0 {
		return fmt.Errorf("connect to %s: %w", t.r.cfg.Target.Address, <-errs)
	}
	return nil
}

// dial opens a connection and starts its goroutine.
func (t *tlsTransport) dial(ctx context.Context) (*tlsConn, error) {
	raw, err := t.dialer.DialContext(ctx, "tcp", t.r.addr.text)
	if err != nil {
		return nil, err
	}
	c := &tlsConn{Conn: raw, jobs: make(chan tlsJob, 1), since: t.r.now()}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		raw.Close()
		return nil, net.ErrClosed
	}
	t.all[c] = true
	t.r.opened.Add(1)
	t.work.Go(func() { t.serve(c) })
	return c, nil
}

// send gives an exchange to an idle connection, or to a new one.
func (t *tlsTransport) send(x *exchange, request []byte) {
	job := tlsJob{x, append([]byte(nil), request...)}
	t.mu.Lock()
	if n := len(t.idle); n > 0 && !x.resent {
		c := t.idle[n-1]
		t.idle = t.idle[:n-1]
		t.mu.Unlock()
		c.jobs <- job
		return
	}
	t.mu.Unlock()
	t.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(t.r.connectTimeout))
		defer cancel()
		c, err := t.dial(ctx)
		if err != nil {
			how := endingConnect
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				how = endingTimeoutConnect
			}
			t.end(x, how, err.Error())
			return
		}
		c.jobs <- job
	})
}

func (t *tlsTransport) end(x *exchange, how ending, why string) {
	x.ending, x.why, x.end = how, why, t.r.now()
	t.mu.Lock()
	t.ended = append(t.ended, x)
	t.mu.Unlock()
	t.r.ended(x, nil)
}

// serve carries one exchange after the other until the connection ends.
func (t *tlsTransport) serve(c *tlsConn) {
	defer func() {
		c.Close()
		t.mu.Lock()
		delete(t.all, c)
		t.mu.Unlock()
	}()
	buf := make([]byte, 32<<10)
	for job := range c.jobs {
		if !t.carry(c, job, buf) {
			return
		}
		c.used++
		c.since = t.r.now()
		t.mu.Lock()
		if t.done {
			t.mu.Unlock()
			return
		}
		t.idle = append(t.idle, c)
		t.mu.Unlock()
	}
}

// carry makes one exchange; it returns whether the connection can be used again.
func (t *tlsTransport) carry(c *tlsConn, job tlsJob, buf []byte) bool {
	x, r := job.x, t.r
	x.attempt = r.now()
	x.conn, x.reused = x.attempt, c.used > 0
	if _, err := c.Write(job.request); err != nil {
		t.broken(c, x, endingReset, err)
		return false
	}
	x.written = r.now()
	for {
		if deadline := t.deadline(x); !deadline.IsZero() {
			_ = c.SetReadDeadline(deadline)
		}
		n, err := c.Read(buf)
		now := r.now()
		if n > 0 {
			done, fault := x.feed(&r.arena, buf[:n], now)
			switch {
			case fault != nil:
				t.end(x, endingMalformed, fault.Error())
				return false
			case done:
				again := x.reply.keepAlive && x.extra == 0
				t.end(x, endingComplete, "")
				return again
			}
		}
		var timeout net.Error
		switch {
		case err == nil:
		case errors.As(err, &timeout) && timeout.Timeout():
			if how := r.overdue(x, now); how != endingNone {
				t.end(x, how, "")
				return false
			}
		case errors.Is(err, io.EOF) && x.reply.state == stateClose:
			t.end(x, endingComplete, "")
			return false
		case errors.Is(err, io.EOF):
			t.broken(c, x, endingEOF, errors.New("the server closed the connection"))
			return false
		default:
			t.broken(c, x, endingReset, err)
			return false
		}
	}
}

// deadline is when the exchange must be looked at again.
func (t *tlsTransport) deadline(x *exchange) time.Time {
	var at int64
	if t.r.totalTimeout > 0 {
		at = x.due + t.r.totalTimeout
	}
	if first := x.due + t.r.firstTimeout; t.r.firstTimeout > 0 && !x.sawText && (at == 0 || first < at) && first > t.r.now() {
		at = first
	}
	if at == 0 {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(at-t.r.now()) + time.Millisecond)
}

func (t *tlsTransport) broken(c *tlsConn, x *exchange, how ending, err error) {
	now := t.r.now()
	t.mu.Lock()
	done := t.done
	t.mu.Unlock()
	if done {
		how = endingCutOff
		if t.r.cancelled.Load() {
			how = endingCancelled
		}
		t.end(x, how, "")
		return
	}
	idled := c.used > 0 || x.attempt-c.since > staleTime
	if idled && !x.resent && x.last == 0 && now-x.attempt < staleTime && !t.r.sendingDone.Load() {
		x.resent, x.reply = true, reply{}
		t.r.stale.Add(1)
		t.r.sender.again(x)
		return
	}
	t.end(x, how, err.Error())
}

// finish cuts off what is still running and waits for every goroutine.
func (t *tlsTransport) finish() {
	t.mu.Lock()
	t.done = true
	for _, c := range t.idle {
		close(c.jobs)
	}
	t.idle = nil
	for c := range t.all {
		c.Close()
	}
	t.mu.Unlock()
	t.work.Wait()
}
