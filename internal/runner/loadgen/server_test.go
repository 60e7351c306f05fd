package loadgen

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sbench/internal/setting"
	"sbench/internal/workload"
)

// script answers one request on a connection; it returns whether the connection
// goes on.
type script func(c net.Conn, req *http.Request, body []byte) bool

// fakeServer is an engine whose every byte the test decides.
type fakeServer struct {
	target Target
	conns  atomic.Int64
	served atomic.Int64
}

func serve(t *testing.T, network string, answer script) *fakeServer {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = t.TempDir() + "/s"
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeServer{target: Target{Network: network, Address: l.Addr().String(), Host: "test"}}
	var work sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			s.conns.Add(1)
			work.Go(func() {
				defer c.Close()
				in := bufio.NewReaderSize(c, 64<<10)
				for {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					body, err := io.ReadAll(req.Body)
					if err != nil {
						return
					}
					s.served.Add(1)
					if !answer(c, req, body) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return s
}

// chunked writes one chunk.
func chunked(c net.Conn, data string) bool {
	_, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(data), data)
	return err == nil
}

const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

func textEvent(text string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"text\":%q,\"finish_reason\":null}]}\n\n", text)
}

func lastEvents(prompt, completion int) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"+
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", prompt, completion)
}

// streamTokens answers with n tokens, gap apart.
func streamTokens(n int, gap time.Duration) script {
	return func(c net.Conn, _ *http.Request, _ []byte) bool {
		if _, err := io.WriteString(c, streamHead); err != nil {
			return false
		}
		for i := range n {
			if i > 0 && gap > 0 {
				time.Sleep(gap)
			}
			if !chunked(c, textEvent(" w")) {
				return false
			}
		}
		return chunked(c, lastEvents(7, n)) && chunked(c, "")
	}
}

// load is a small open-loop workload.
func load(rate float64, seconds float64, output int) setting.Workload {
	s := setting.Default()
	w := s.Workload
	w.Arrival.Rate = rate
	w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 16}
	w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: output}
	w.Warmup, w.Ramp = 100*time.Millisecond, 100*time.Millisecond
	w.Duration, w.Drain = time.Duration(seconds*1e9), 5*time.Second
	w.Seed = 1
	return w
}

// counted is what a probe would have found.
func counted() Served {
	return Served{UsageStream: true, Usage: true, TokenSource: "usage", Vocabulary: workload.Vocabulary{Words: strings.Fields("one two three four")}}
}

func offer(t *testing.T, s *fakeServer, w setting.Workload) *Recording {
	t.Helper()
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := Run(t.Context(), Config{Target: s.target, Request: w.Request, Plan: plan, Served: counted()}, NewClock())
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func itoa(n int) string { return strconv.Itoa(n) }

func bufioReader(p []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(p)) }
