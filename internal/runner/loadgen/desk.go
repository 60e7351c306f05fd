package loadgen

import "golang.org/x/sys/unix"

// desk writes requests: the sender's, and each loop's, where a closed loop's slot
// goes on at once. It belongs to one thread.
type desk struct {
	r     *runner
	buf   []byte
	ended func(x *exchange) // takes what ended at the desk
}

// render writes the request out in memory.
func (d *desk) render(x *exchange) {
	d.buf = d.r.renderer.render(d.buf, &x.req, x.history())
}

// dispatch writes the rendered request on an idle connection, or begins a new one.
func (d *desk) dispatch(x *exchange) {
	r := d.r
	now := r.now()
	if x.dispatch == 0 {
		x.dispatch = now
		n := r.inFlight.Add(1)
		for most := r.inFlightMax.Load(); n > most && !r.inFlightMax.CompareAndSwap(most, n); most = r.inFlightMax.Load() {
		}
	}
	if r.tls != nil {
		r.tls.send(x, d.buf)
		return
	}
	for !x.resent {
		c := r.pool.take(now)
		if c == nil {
			break
		}
		x.conn, x.reused = now, c.used > 0
		if d.send(c, x) {
			r.refill()
			return
		}
		// It died unnoticed; nothing was sent.
		now = r.now()
	}
	d.connect(x)
	r.refill()
}

// send writes on a connection that the desk's thread owns. It returns false when
// the connection was dead.
func (d *desk) send(c *conn, x *exchange) bool {
	x.attempt = d.r.now()
	n, err := write(c.fd, d.buf)
	if err != 0 && err != unix.EAGAIN {
		c.state.Store(connDoomed)
		if n == 0 {
			return false
		}
		d.end(x, endingReset, err.Error())
		return true
	}
	c.x = x
	if n < len(d.buf) {
		x.pending = append([]byte(nil), d.buf[n:]...)
		c.want(true)
	} else {
		x.written = d.r.now()
	}
	c.state.Store(connBusy)
	return true
}

// connect begins a connection for the exchange; its loop writes the request.
func (d *desk) connect(x *exchange) {
	x.pending = append([]byte(nil), d.buf...)
	x.attempt, x.reused = d.r.now(), false
	if err := d.r.begin(x); err != nil {
		d.end(x, connectEnding(err), err.Error())
	}
}

func (d *desk) end(x *exchange, how ending, why string) {
	x.ending, x.why, x.end, x.pending = how, why, d.r.now(), nil
	d.ended(x)
	d.r.ended(x, nil)
}
