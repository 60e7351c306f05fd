package loadgen

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// outcomes offers a small load and counts what became of the requests that were
// to be measured.
func outcomes(t *testing.T, s *fakeServer, w setting.Workload, change func(*Config)) (map[result.Outcome]int, *Recording) {
	t.Helper()
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Target: s.target, Request: w.Request, Plan: plan, Served: counted()}
	if change != nil {
		change(&c)
	}
	rec, err := Run(t.Context(), c, NewClock())
	if err != nil {
		t.Fatal(err)
	}
	counts := map[result.Outcome]int{}
	rows := map[int32]int{}
	for _, r := range rec.Requests {
		if r.Phase == result.PhaseMeasure {
			counts[r.Outcome]++
			rows[r.Index]++
			if r.Outcome != result.OutcomeOK && r.Detail == "" {
				t.Errorf("%s without a reason", r.Outcome)
			}
		}
	}
	for _, r := range plan.Requests {
		if r.Phase == result.PhaseMeasure && r.Turn == 0 && plan.Closed == 0 && rows[r.Index] != 1 {
			t.Errorf("planned request %d has %d rows", r.Index, rows[r.Index])
		}
	}
	return counts, rec
}

// only says that every request had that outcome.
func only(t *testing.T, counts map[result.Outcome]int, want result.Outcome) {
	t.Helper()
	if len(counts) != 1 || counts[want] == 0 {
		t.Errorf("outcomes %v, want only %s", counts, want)
	}
}

func reply500(status string) script {
	return func(c net.Conn, _ *http.Request, _ []byte) bool {
		body := `{"error":{"message":"no"}}`
		_, err := fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
		return err == nil
	}
}

// hang reads the request and says nothing, or only what is given.
func hang(first string) script {
	return func(c net.Conn, _ *http.Request, _ []byte) bool {
		if _, err := io.WriteString(c, first); err != nil {
			return false
		}
		_, _ = io.Copy(io.Discard, c)
		return false
	}
}

func TestRun_Outcomes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer script
		want   result.Outcome
		change func(*setting.Workload)
	}{
		"ok":          {streamTokens(2, 0), result.OutcomeOK, nil},
		"mismatch":    {streamTokens(3, 0), result.OutcomeLengthMismatch, nil},
		"429":         {reply500("429 Too Many Requests"), result.OutcomeHTTP429, nil},
		"400":         {reply500("400 Bad Request"), result.OutcomeHTTP4xx, nil},
		"503":         {reply500("503 Service Unavailable"), result.OutcomeHTTP5xx, nil},
		"first token": {hang(""), result.OutcomeTimeoutFirstToken, func(w *setting.Workload) { w.Request.TimeoutFirstToken = 200 * time.Millisecond }},
		"role only": {
			hang(streamHead + chunkOf("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n")), result.OutcomeTimeoutFirstToken,
			func(w *setting.Workload) { w.Request.TimeoutFirstToken = 200 * time.Millisecond },
		},
		"total": {
			hang(streamHead + chunkOf(textEvent("a"))), result.OutcomeTimeoutTotal,
			func(w *setting.Workload) {
				w.Request.TimeoutFirstToken, w.Request.TimeoutTotal = 200*time.Millisecond, 400*time.Millisecond
			},
		},
		"cut off": {
			hang(streamHead + chunkOf(textEvent("a"))), result.OutcomeCutOff,
			func(w *setting.Workload) { w.Drain = 300 * time.Millisecond },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := load(100, 0.3, 2)
			if c.change != nil {
				c.change(&w)
			}
			counts, _ := outcomes(t, serve(t, "tcp", c.answer), w, nil)
			only(t, counts, c.want)
		})
	}
}

func chunkOf(data string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(data), data) }

// A server that is not there is an error before anything is measured; one that
// goes away is connection errors.
func TestRun_NoServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	w := load(50, 0.2, 2)
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Target: Target{Network: "tcp", Address: address, Host: address}, Request: w.Request, Plan: plan, Served: counted()}
	if _, err := Run(t.Context(), c, NewClock()); err == nil || !Unreachable(err) || !strings.Contains(err.Error(), address) {
		t.Errorf("error %v", err)
	}
	c.Client.Preopen = -1
	rec, err := Run(t.Context(), c, NewClock())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rec.Requests {
		if r.Phase == result.PhaseMeasure && r.Outcome != result.OutcomeConnectError {
			t.Errorf("%s: %s", r.Outcome, r.Detail)
		}
	}
}

// A server that closes each connection behind its answer, against what it
// announces, costs connections and no failures.
func TestRun_ServerClosesBehindEachAnswer(t *testing.T) {
	t.Parallel()
	answer := streamTokens(2, 0)
	s := serve(t, "tcp", func(c net.Conn, r *http.Request, b []byte) bool {
		answer(c, r, b)
		return false
	})
	counts, rec := outcomes(t, s, load(300, 1, 2), nil)
	only(t, counts, result.OutcomeOK)
	if rec.Harness.Connections < 300 {
		t.Errorf("%d connections for %d requests", rec.Harness.Connections, len(rec.Requests))
	}
}

// A connection that the server closes just as a request is written on it: the
// request is written again, once, and its row says so.
func TestRun_StaleConnection(t *testing.T) {
	t.Parallel()
	answer := streamTokens(2, 0)
	var n atomic.Int64
	perConn := func(c net.Conn, r *http.Request, b []byte) bool {
		// Each connection answers once; the next request on it meets a close.
		if n.Add(1)%2 == 0 {
			return false
		}
		return answer(c, r, b)
	}
	s := serve(t, "tcp", perConn)
	w := load(100, 0.5, 2)
	counts, rec := outcomes(t, s, w, func(c *Config) { c.Client.Preopen = 1 })
	resent := 0
	for _, r := range rec.Requests {
		if r.Resent {
			resent++
			if !strings.Contains(r.Detail, "written again") {
				t.Errorf("a request was written again and its row does not say so: %q", r.Detail)
			}
		}
	}
	if resent == 0 || resent != rec.Harness.StaleResent {
		t.Errorf("%d rows were written again, the harness counts %d; outcomes %v", resent, rec.Harness.StaleResent, counts)
	}
}

// The limit on requests in flight holds back, and says so.
func TestRun_LimitHoldsBack(t *testing.T) {
	t.Parallel()
	s := serve(t, "tcp", streamTokens(2, 100*time.Millisecond))
	_, rec := outcomes(t, s, load(100, 0.5, 2), func(c *Config) { c.MaxInFlight = 4 })
	if rec.Harness.InFlightMax > 4 || rec.Harness.AtLimit == 0 {
		t.Errorf("%d in flight, %d ns at the limit", rec.Harness.InFlightMax, rec.Harness.AtLimit)
	}
	held := false
	for _, r := range rec.Requests {
		held = held || r.Held
	}
	if !held {
		t.Error("no row says that it was held back")
	}
}

// Coordinated omission: a server that stalls for 500 ms makes every request that
// became due meanwhile slow, not one.
func TestRun_StallShowsInEveryLatency(t *testing.T) {
	t.Parallel()
	start := time.Now()
	stallFrom := 700 * time.Millisecond
	s := serve(t, "tcp", func(c net.Conn, _ *http.Request, _ []byte) bool {
		if since := time.Since(start); since >= stallFrom && since < stallFrom+500*time.Millisecond {
			time.Sleep(stallFrom + 500*time.Millisecond - since)
		}
		return streamTokens(1, 0)(c, nil, nil)
	})
	w := load(200, 2, 1)
	w.Arrival.Process, w.Drain = setting.ProcessConstant, 30*time.Second
	counts, rec := outcomes(t, s, w, nil)
	only(t, counts, result.OutcomeOK)
	slow, worst := 0, int64(0)
	for _, r := range rec.Requests {
		if r.TTok1 == nil {
			continue // the tail, cut off when the last measured request had ended
		}
		if ttft := *r.TTok1 - r.TIntended; ttft > 50_000_000 {
			slow++
			worst = max(worst, ttft)
		}
	}
	// 100 requests became due in the stall; those in its last 50 ms wait less.
	if slow < 80 || slow > 130 || worst < 400_000_000 {
		t.Errorf("%d slow requests, the slowest %d ms; want about 90, up to 500 ms", slow, worst/1_000_000)
	}
}

// A prompt larger than the socket takes at once is written to its end.
func TestRun_LargePrompts(t *testing.T) {
	t.Parallel()
	var short atomic.Int64
	answer := streamTokens(1, 0)
	s := serve(t, "tcp", func(c net.Conn, r *http.Request, body []byte) bool {
		if len(body) < 4*500_000 || int64(len(body)) != r.ContentLength || !strings.HasSuffix(string(body), "}") {
			short.Add(1)
		}
		return answer(c, r, body)
	})
	w := load(10, 0.5, 1)
	w.Input.Value = 500_000
	counts, _ := outcomes(t, s, w, nil)
	only(t, counts, result.OutcomeOK)
	if short.Load() > 0 {
		t.Errorf("%d requests came short", short.Load())
	}
}
