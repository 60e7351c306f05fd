package playback

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// Play is one playing of the script. Times have a monotonic part.
type Play struct {
	Request  []byte      // body of the request
	Received time.Time   // the request was read whole
	Sent     []time.Time // just before each segment was written; shorter where the client left
}

// Server plays a script on every connection, and again for every request.
type Server struct {
	Addr string // host:port

	mu    sync.Mutex
	plays []Play
	conns map[net.Conn]bool
}

// Serve plays the script until the test ends and returns the server's address.
func Serve(t testing.TB, s Script) string {
	t.Helper()
	return Start(t, s).Addr
}

// Start is Serve for tests that want to know when what was sent.
func Start(t testing.TB, s Script) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("playback: %v", err)
	}
	server := &Server{Addr: l.Addr().String(), conns: map[net.Conn]bool{}}
	var players sync.WaitGroup
	players.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed below
			}
			server.mu.Lock()
			server.conns[c] = true
			server.mu.Unlock()
			players.Go(func() { server.serve(c, s) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		server.mu.Lock()
		for c := range server.conns {
			_ = c.Close()
		}
		server.mu.Unlock()
		players.Wait()
	})
	return server
}

// Plays is what was played so far; safe for concurrent use.
func (s *Server) Plays() []Play {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.plays)
}

func (s *Server) serve(c net.Conn, script Script) {
	defer func() {
		_ = c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	in := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		play := Play{Request: body, Received: time.Now()}
		left := false
		for _, seg := range script.Segments {
			sleepUntil(play.Received.Add(seg.At))
			play.Sent = append(play.Sent, time.Now())
			if _, err := c.Write(seg.Bytes); err != nil {
				left = true
				break
			}
		}
		s.mu.Lock()
		s.plays = append(s.plays, play)
		s.mu.Unlock()
		if left {
			return
		}
		switch script.Ending {
		case KeepOpen:
		case Close:
			// Closing with unread input would reset the connection.
			if tcp, ok := c.(*net.TCPConn); ok && tcp.CloseWrite() == nil {
				_, _ = io.Copy(io.Discard, in)
			}
			return
		case Reset:
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			return
		case Silence:
			_, _ = io.Copy(io.Discard, in)
			return
		}
	}
}

// sleepUntil spins for the last half millisecond: timers alone are late.
func sleepUntil(t time.Time) {
	if d := time.Until(t) - 500*time.Microsecond; d > 0 {
		time.Sleep(d)
	}
	for time.Now().Before(t) {
	}
}

// Reader gives the script's segments one by one, each to as many reads as it
// takes, with no time between them: for parsers that read from an io.Reader.
func (s Script) Reader() io.Reader {
	return &reader{segments: s.Segments, reset: s.Ending == Reset}
}

// ErrReset is what Reader ends with where the script's end is a reset.
var ErrReset = errors.New("connection reset by peer")

type reader struct {
	segments []Segment
	used     int
	reset    bool
}

func (r *reader) Read(p []byte) (int, error) {
	for len(r.segments) > 0 && r.used == len(r.segments[0].Bytes) {
		r.segments, r.used = r.segments[1:], 0
	}
	switch {
	case len(r.segments) > 0:
		n := copy(p, r.segments[0].Bytes[r.used:])
		r.used += n
		return n, nil
	case r.reset:
		return 0, ErrReset
	}
	return 0, io.EOF
}
