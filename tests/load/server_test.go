//go:build load

package load_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// serverConfig says how the stand-in for an engine answers.
type serverConfig struct {
	// Events is how many events with one token a stream has, PerWrite how many one
	// write carries.
	Events, PerWrite int
	// Rate paces all streams together, in events/s, one event a write; 0 writes as
	// fast as the client reads.
	Rate float64
	// Plain answers without a stream.
	Plain bool
	// StallFrom is when behind its first request the server answers nothing for
	// StallFor, in s; 0 never.
	StallFrom, StallFor float64
	// Hold sends the head of a stream and then nothing, until the client leaves.
	Hold bool
}

const eventText = "data: {\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1795962519,\"model\":\"llama-3.1-8b-instruct\",\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"

const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

func chunk(data string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(data), data) }

func streamEnd(events int) string {
	return chunk(fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"+
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", events)) + "0\r\n\r\n"
}

// serverRole serves until its standard input ends. It prints its address first.
func serverRole(raw json.RawMessage) (any, error) {
	var c serverConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	raiseFiles()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(os.Stdout).Encode(l.Addr().String()); err != nil {
		return nil, err
	}
	p := &pacer{config: c}
	if c.Rate > 0 {
		go p.run()
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serveConn(conn, c, p)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true, nil
}

func raiseFiles() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
}

func serveConn(conn net.Conn, c serverConfig, p *pacer) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	burst := []byte(chunkN(c.PerWrite))
	end := []byte(streamEnd(c.Events))
	plain := []byte("{\"choices\":[{\"index\":0,\"text\":\" word\",\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":1}}")
	plain = append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(plain)), plain...)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		p.stall()
		switch {
		case c.Plain:
			_, err = conn.Write(plain)
		case c.Hold:
			_, _ = io.WriteString(conn, streamHead)
			_, _ = io.Copy(io.Discard, in)
			return
		case c.Rate > 0:
			err = p.stream(conn)
		default:
			_, err = io.WriteString(conn, streamHead)
			for i := 0; i < c.Events && err == nil; i += c.PerWrite {
				_, err = conn.Write(burst)
			}
			if err == nil {
				_, err = conn.Write(end)
			}
		}
		if err != nil {
			return
		}
	}
}

// chunkN is n events, each a chunk of its own, as engines send them.
func chunkN(n int) string {
	var b bytes.Buffer
	for range n {
		b.WriteString(chunk(eventText))
	}
	return b.String()
}

// pacer writes one event at a time to the streams in turn, at an even rate over
// all of them.
type pacer struct {
	config  serverConfig
	first   sync.Once
	zero    time.Time
	mu      sync.Mutex
	streams []*pacedStream
}

// stall waits where the server answers nothing.
func (p *pacer) stall() {
	if p.config.StallFor == 0 {
		return
	}
	p.first.Do(func() { p.zero = time.Now() })
	from := p.zero.Add(time.Duration(p.config.StallFrom * 1e9))
	to := from.Add(time.Duration(p.config.StallFor * 1e9))
	if now := time.Now(); !now.Before(from) && now.Before(to) {
		time.Sleep(to.Sub(now))
	}
}

type pacedStream struct {
	conn net.Conn
	left int
	done chan error
}

// stream hands a connection to the pacer and waits for the stream's end.
func (p *pacer) stream(conn net.Conn) error {
	if _, err := io.WriteString(conn, streamHead); err != nil {
		return err
	}
	s := &pacedStream{conn, p.config.Events, make(chan error, 1)}
	p.mu.Lock()
	p.streams = append(p.streams, s)
	p.mu.Unlock()
	return <-s.done
}

func (p *pacer) run() {
	runtime.LockOSThread()
	event, end := []byte(chunk(eventText)), []byte(streamEnd(p.config.Events))
	start, n, at := time.Now(), 0, 0
	for {
		due := start.Add(time.Duration(float64(n) / p.config.Rate * 1e9))
		for d := time.Until(due); d > 0; d = time.Until(due) {
			if d > 200*time.Microsecond {
				ts := unix.NsecToTimespec(int64(d - 100*time.Microsecond))
				_ = unix.Nanosleep(&ts, nil)
			}
		}
		n++
		p.mu.Lock()
		if len(p.streams) == 0 {
			p.mu.Unlock()
			continue
		}
		at = (at + 1) % len(p.streams)
		s := p.streams[at]
		s.left--
		if s.left == 0 {
			p.streams[at] = p.streams[len(p.streams)-1]
			p.streams = p.streams[:len(p.streams)-1]
		}
		p.mu.Unlock()
		_, err := s.conn.Write(event)
		if s.left == 0 && err == nil {
			_, err = s.conn.Write(end)
		}
		if s.left == 0 || err != nil {
			s.done <- err
			if s.left > 0 {
				p.drop(s)
			}
		}
	}
}

func (p *pacer) drop(gone *pacedStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range p.streams {
		if s == gone {
			p.streams = append(p.streams[:i], p.streams[i+1:]...)
			return
		}
	}
}
