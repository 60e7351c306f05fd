// Package gang connects the runners of one step, one per node: rank 0 leads, the
// others do what it asks. It promises that nobody waits without an end (every
// wait has a deadline, and a rank that falls silent is lost within the patience)
// and that only the runners of the attempt take part: the leader is known by its
// certificate, the others by a secret, and both are in a file that only the
// batch's user can read.
package gang

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Member is one runner of the gang.
type Member struct {
	Rank int    `json:"rank"`
	Node string `json:"node"` // as Slurm names it
	// Via is the leader's address at which this member reached it.
	Via string `json:"via"`
}

// Timing bounds the waits. The zero value of a field is its default.
type Timing struct {
	Meet     time.Duration // until all members have joined; 3 minutes
	Beat     time.Duration // between signs of life; 2 s
	Patience time.Duration // without one until a member is lost; 20 s
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, otherwise time.Duration) {
		if *d <= 0 {
			*d = otherwise
		}
	}
	set(&t.Meet, 3*time.Minute)
	set(&t.Beat, 2*time.Second)
	set(&t.Patience, 20*time.Second)
	return t
}

// ErrLost is wrapped by the error about a member that is gone or silent.
var ErrLost = errors.New("lost")

// message is one frame: four bytes of length, then JSON.
type message struct {
	Kind string          `json:"kind"` // hello, welcome, beat, call, answer, event, end
	ID   int64           `json:"id,omitempty"`
	Verb string          `json:"verb,omitempty"`
	Body json.RawMessage `json:"body,omitempty"`
	Err  string          `json:"error,omitempty"`
}

// maxFrame bounds one message: the samples of a long run of eight devices fit.
const maxFrame = 128 << 20

// link is one connection, with signs of life in both directions.
type link struct {
	conn   net.Conn
	in     *bufio.Reader
	timing Timing
	mu     sync.Mutex // of writing
	once   sync.Once
	closed chan struct{}
}

func newLink(conn net.Conn, t Timing) *link {
	return &link{conn: conn, in: bufio.NewReader(conn), timing: t, closed: make(chan struct{})}
}

func (l *link) send(m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(text) > maxFrame {
		return fmt.Errorf("message of %d bytes is longer than the limit %d", len(text), maxFrame)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, len(text)+4), uint32(len(text)))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(l.timing.Patience)); err != nil {
		return err
	}
	_, err = l.conn.Write(append(frame, text...))
	return err
}

// receive returns the next message; the error is a time-out where the other side
// was silent for the patience.
func (l *link) receive() (message, error) {
	var m message
	if err := l.conn.SetReadDeadline(time.Now().Add(l.timing.Patience)); err != nil {
		return m, err
	}
	var head [4]byte
	if _, err := io.ReadFull(l.in, head[:]); err != nil {
		return m, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return m, fmt.Errorf("message of %d bytes is longer than the limit %d", size, maxFrame)
	}
	// A long message may take longer than the pause between two.
	if err := l.conn.SetReadDeadline(time.Now().Add(l.timing.Patience + time.Duration(size/(1<<20))*time.Second)); err != nil {
		return m, err
	}
	// Read as it comes: the length is a claim, not a promise.
	text, err := io.ReadAll(io.LimitReader(l.in, int64(size)))
	if err != nil {
		return m, err
	}
	if len(text) != int(size) {
		return m, io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("not understood: %w", err)
	}
	return m, nil
}

// beat sends signs of life until the link is closed.
func (l *link) beat() {
	ticker := time.NewTicker(l.timing.Beat)
	defer ticker.Stop()
	for {
		select {
		case <-l.closed:
			return
		case <-ticker.C:
			if l.send(message{Kind: "beat"}) != nil {
				return // the reading side finds out why
			}
		}
	}
}

func (l *link) close() {
	l.once.Do(func() { close(l.closed); _ = l.conn.Close() })
}

// lostWhy says in people's words why reading from the other side failed.
func lostWhy(err error, patience time.Duration) error {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w: no sign of life for %v", ErrLost, patience)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return fmt.Errorf("%w: its runner ended", ErrLost)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}
