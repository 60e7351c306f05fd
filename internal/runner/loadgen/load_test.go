package loadgen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// A closed loop keeps its slots busy and no more, and each request is due when
// its slot became free.
func TestRun_ClosedLoop(t *testing.T) {
	t.Parallel()
	s := serve(t, "tcp", streamTokens(3, 3*time.Millisecond))
	w := load(0, 1, 3)
	w.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: 5}
	counts, rec := outcomes(t, s, w, nil)
	only(t, counts, result.OutcomeOK)
	if rec.Harness.InFlightMax > 5 {
		t.Errorf("%d requests at once in 5 slots", rec.Harness.InFlightMax)
	}
	if n := counts[result.OutcomeOK]; n < 100 {
		t.Errorf("%d requests in 1 s of 5 slots at 6 ms each", n)
	}
	ends := map[int64]bool{}
	for _, r := range rec.Requests {
		if r.TEnd != nil {
			ends[*r.TEnd] = true
		}
	}
	for _, r := range rec.Requests {
		if r.Phase == result.PhaseMeasure && !ends[r.TIntended] {
			t.Fatalf("a request was due at %d, when no slot became free", r.TIntended)
		}
	}
}

// The turns of a session follow one another by the think time, with everything
// said before; sessions do not wait for one another.
func TestRun_Sessions(t *testing.T) {
	t.Parallel()
	type call struct {
		messages []struct{ Role, Content string }
		at       time.Time
	}
	var mu sync.Mutex
	var calls []call
	answer := streamTokens(2, time.Millisecond)
	s := serve(t, "tcp", func(c net.Conn, r *http.Request, b []byte) bool {
		var body struct {
			Messages []struct{ Role, Content string }
		}
		if r.URL.Path != "/v1/chat/completions" || json.Unmarshal(b, &body) != nil {
			t.Errorf("%s %s", r.URL.Path, b)
			return false
		}
		mu.Lock()
		calls = append(calls, call{body.Messages, time.Now()})
		mu.Unlock()
		return answer(c, r, b)
	})
	w := load(60, 1.5, 2)
	w.Request.Endpoint = setting.EndpointChat
	w.Prompts.Turns, w.Prompts.ThinkTime = 3, 80*time.Millisecond
	counts, rec := outcomes(t, s, w, nil)
	only(t, counts, result.OutcomeOK)
	ends := map[[2]int32]int64{}
	for _, r := range rec.Requests {
		if r.TEnd != nil {
			ends[[2]int32{r.Session, r.Turn}] = *r.TEnd
		}
	}
	later := 0
	for _, r := range rec.Requests {
		if r.Turn == 0 {
			continue
		}
		later++
		if before := ends[[2]int32{r.Session, r.Turn - 1}]; r.TIntended != before+80_000_000 {
			t.Errorf("turn %d is due %d ns behind the end of the one before", r.Turn, r.TIntended-before)
		}
	}
	if later < 50 {
		t.Errorf("%d later turns", later)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, c := range calls {
		for i, m := range c.messages {
			want := "user"
			if i%2 == 1 {
				want = "assistant"
				if m.Content != " w w" {
					t.Errorf("the answer is told as %q", m.Content)
				}
			}
			if m.Role != want || m.Content == "" {
				t.Errorf("message %d of %d: %+v", i, len(c.messages), m)
			}
		}
		if len(c.messages)%2 != 1 || len(c.messages) > 5 {
			t.Errorf("%d messages", len(c.messages))
		}
	}
}

// A ladder ends behind the load point that the engine could not keep up with; the
// rest is accounted for as cancelled.
func TestRun_LadderStops(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{}, 1) // one at a time, 10 ms each: 100/s
	s := serve(t, "tcp", func(c net.Conn, r *http.Request, b []byte) bool {
		gate <- struct{}{}
		time.Sleep(10 * time.Millisecond)
		<-gate
		return streamTokens(1, 0)(c, r, b)
	})
	w := load(0, 2.2, 1)
	w.Arrival = setting.Arrival{Process: setting.ProcessConstant}
	w.Ladder = []float64{20, 250, 300}
	w.Drain = 20 * time.Second
	counts, rec := outcomes(t, s, w, func(c *Config) { c.StopWhenSaturated = true })
	if len(rec.Windows) != 2 || !strings.Contains(rec.Stopped, "250") {
		t.Fatalf("%d windows, stopped %q", len(rec.Windows), rec.Stopped)
	}
	if counts[result.OutcomeCancelledByPlan] < 600 || counts[result.OutcomeOK] < 500 {
		t.Errorf("outcomes %v", counts)
	}
	for _, r := range rec.Requests {
		if r.Outcome == result.OutcomeCancelledByPlan && r.Window != 2 {
			t.Fatalf("a request of load point %d was cancelled", r.Window)
		}
	}
}

func TestSaturating(t *testing.T) {
	t.Parallel()
	series := func(f func(i int) int64) []sample {
		var s []sample
		for i := range 100 {
			s = append(s, sample{at: int64(i), n: f(i)})
		}
		return s
	}
	for name, c := range map[string]struct {
		samples []sample
		want    bool
	}{
		"grows":      {series(func(i int) int64 { return int64(i) }), true},
		"falls":      {series(func(i int) int64 { return int64(100 - i) }), false},
		"flat":       {series(func(i int) int64 { return 50 + int64(i*7%11) }), false},
		"idle":       {series(func(int) int64 { return 0 }), false},
		"too few":    {series(func(i int) int64 { return int64(i) })[:10], false},
		"one or two": {series(func(i int) int64 { return int64(i / 60) }), false},
	} {
		if why, got := saturating(c.samples); got != c.want {
			t.Errorf("%s: %v (%s)", name, got, why)
		}
	}
}

// Ctrl-C ends a run at once; nothing is published.
func TestRun_Cancelled(t *testing.T) {
	t.Parallel()
	s := serve(t, "tcp", hang(streamHead))
	w := load(50, 60, 2)
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = Run(ctx, Config{Target: s.target, Request: w.Request, Plan: plan, Served: counted()}, NewClock())
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// The request is what the workload says, in valid JSON.
func TestRenderer_Body(t *testing.T) {
	t.Parallel()
	w := load(5, 1, 9)
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	prompts, err := workload.NewPrompter(plan, counted().Vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	for _, endpoint := range []setting.Endpoint{setting.EndpointCompletions, setting.EndpointChat} {
		w.Request.Endpoint = endpoint
		r, err := newRenderer(Config{
			Target: Target{Host: "h:1", Base: "/p", Authorization: "Bearer x"}, Model: "a \"b\"", Request: w.Request, Served: counted(),
		}, prompts)
		if err != nil {
			t.Fatal(err)
		}
		raw := r.render(nil, &plan.Requests[0], []message{{"user", []byte("one")}, {"assistant", []byte(`t\"wo`)}})
		head, body, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
		if !bytes.HasPrefix(head, []byte("POST /p/v1/")) || !bytes.Contains(head, []byte("Authorization: Bearer x\r\n")) {
			t.Errorf("head %q", head)
		}
		req, err := http.ReadRequest(bufioReader(raw))
		if err != nil || req.ContentLength != int64(len(body)) || req.Host != "h:1" {
			t.Fatalf("%v, %+v", err, req)
		}
		var got map[string]any
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if got["model"] != `a "b"` || got["max_tokens"] != 9.0 || got["ignore_eos"] != true || got["stream"] != true {
			t.Errorf("%s", body)
		}
		if endpoint == setting.EndpointChat {
			if m := got["messages"].([]any); len(m) != 3 || m[1].(map[string]any)["content"] != `t"wo` {
				t.Errorf("%s", body)
			}
		}
	}
}

// Prompts are exact: what the probe learned is what the tokenizer counts.
func TestProbe_FindsWordsOfOneToken(t *testing.T) {
	t.Parallel()
	// A tokenizer that cuts words into pieces of four letters, behind a template of
	// five tokens in chats.
	count := func(text string) int {
		n := 0
		for _, word := range strings.Fields(text) {
			n += (len(word) + 3) / 4
		}
		return n
	}
	for name, tokenizer := range map[string]bool{"tokenizer": true, "usage": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			s := serve(t, "tcp", func(c net.Conn, r *http.Request, b []byte) bool {
				calls.Add(1)
				var body struct {
					Content, Prompt string
					Messages        []struct{ Content string }
					Stream          bool
				}
				if r.Method == http.MethodPost && json.Unmarshal(b, &body) != nil {
					return false
				}
				answer := func(v any) bool {
					text, err := json.Marshal(v)
					if err != nil {
						t.Error(err)
					}
					_, err = c.Write(append([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "+itoa(len(text))+"\r\n\r\n"), text...))
					return err == nil
				}
				switch {
				case r.URL.Path == "/v1/models":
					return answer(map[string]any{"data": []any{map[string]any{"id": "m1"}}})
				case r.URL.Path == "/tokenize" && tokenizer:
					return answer(map[string]any{"tokens": slices.Repeat([]int{1}, count(body.Content))})
				case r.URL.Path == "/v1/chat/completions" && body.Stream:
					return streamTokens(4, 0)(c, r, b)
				case r.URL.Path == "/v1/chat/completions":
					return answer(map[string]any{
						"choices": []any{map[string]any{"message": map[string]any{"content": "x"}}},
						"usage":   map[string]any{"prompt_tokens": 5 + count(body.Messages[0].Content), "completion_tokens": 1},
					})
				}
				return reply500("404 Not Found")(c, r, b)
			})
			w := load(5, 1, 4)
			w.Request.Endpoint = setting.EndpointChat
			plan, err := workload.New(w, 0, workload.Options{})
			if err != nil {
				t.Fatal(err)
			}
			served, err := Probe(t.Context(), Config{Target: s.target, Request: w.Request, Plan: plan})
			if err != nil {
				t.Fatal(err)
			}
			if served.Model != "m1" || !served.UsageStream || served.TokenSource != name || served.Vocabulary.Base != 5 || len(served.Vocabulary.Words) < 60 || len(served.Verified) != 3 {
				t.Errorf("%+v", served)
			}
			for _, word := range served.Vocabulary.Words {
				if count(word) != 1 {
					t.Errorf("%q is %d tokens", word, count(word))
				}
			}
			if n := calls.Load(); n > 300 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// An engine that packs several tokens into an event is asked for a count with each.
func TestProbe_AsksForCountsWhereEventsArePacked(t *testing.T) {
	t.Parallel()
	s := serve(t, "tcp", func(c net.Conn, r *http.Request, b []byte) bool {
		var body struct {
			Max     int `json:"max_tokens"`
			Options struct {
				Each bool `json:"continuous_usage_stats"`
			} `json:"stream_options"`
		}
		if r.Method != http.MethodPost || json.Unmarshal(b, &body) != nil || body.Max < 12 {
			return reply500("404 Not Found")(c, r, b)
		}
		if _, err := io.WriteString(c, streamHead); err != nil {
			return false
		}
		for n := 4; n <= body.Max; n += 4 {
			usage := "null"
			if body.Options.Each {
				usage = fmt.Sprintf(`{"prompt_tokens":7,"completion_tokens":%d}`, n)
			}
			if !chunked(c, fmt.Sprintf("data: {\"choices\":[{\"text\":\"a b c d\"}],\"usage\":%s}\n\n", usage)) {
				return false
			}
		}
		return chunked(c, lastEvents(7, body.Max)) && chunked(c, "")
	})
	w := load(50, 0.3, 12)
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	served, err := Probe(t.Context(), Config{Target: s.target, Request: w.Request, Plan: plan})
	if err != nil || !served.UsageEvents {
		t.Fatalf("%+v, %v", served, err)
	}
	_, rec := outcomes(t, s, w, func(c *Config) { c.Served.UsageEvents = true })
	for _, r := range rec.Requests {
		if r.Phase == result.PhaseMeasure && (!slices.Equal(r.EventTokens, []int32{4, 4, 4}) || *r.TokensFirst != 4) {
			t.Fatalf("%+v", r)
		}
	}
}

// What this machine cannot carry is refused before it starts.
func TestRun_RefusesWhatTheMachineCannotCarry(t *testing.T) {
	t.Parallel()
	w := load(0, 1, 1)
	w.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: 1_000_000}
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Target: Target{Network: "tcp", Address: "127.0.0.1:1", Host: "x"}, Request: w.Request, Plan: plan, Served: counted()}
	if _, err := Run(t.Context(), c, NewClock()); err == nil || !strings.Contains(err.Error(), "1000000 connections") {
		t.Errorf("%v", err)
	}
}

func TestParseTarget(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]Target{
		"http://127.0.0.1:8000":       {Network: "tcp", Address: "127.0.0.1:8000", Host: "127.0.0.1:8000"},
		"http://h/v1/":                {Network: "tcp", Address: "h:80", Host: "h"},
		"http://[::1]:9/p/v1":         {Network: "tcp", Address: "[::1]:9", Host: "[::1]:9", Base: "/p"},
		"https://h":                   {Network: "tls", Address: "h:443", Host: "h"},
		"unix:///run/e.sock":          {Network: "unix", Address: "/run/e.sock", Host: "localhost"},
		"unix:///run/e.sock:/prefix/": {Network: "unix", Address: "/run/e.sock", Host: "localhost", Base: "/prefix"},
	} {
		if got, err := ParseTarget(raw); err != nil || got != want {
			t.Errorf("%s: %+v, %v", raw, got, err)
		}
	}
	for _, raw := range []string{"", "h:80", "ftp://h", "http://", "http://u:secret@h", "http://h?x=1", "unix://", "unix://h/x", "http://h:x"} {
		got, err := ParseTarget(raw)
		if err == nil {
			t.Errorf("%q gives %+v", raw, got)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the password is in the message", raw)
		}
	}
}
