package sim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fast is an engine whose steps take a millisecond.
func fast() Config {
	c := DefaultConfig()
	c.Listen = "127.0.0.1:0"
	c.Cost = Cost{PrefillRate: 1e6, DecodeRate: 1000, Efficiency: 1}
	c.Spin = 0
	return c
}

// start runs an engine until the test ends; stop ends it earlier and returns
// what Run returned.
func start(t *testing.T, c Config, faults ...string) (url string, stop func() error) {
	t.Helper()
	for _, text := range faults {
		f, err := ParseFault(text)
		if err != nil {
			t.Fatal(err)
		}
		c.Faults = append(c.Faults, f)
	}
	ctx, cancel := context.WithCancel(context.Background())
	address, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- Run(ctx, c, func(a string) { address <- a }) }()
	stopped := false
	var result error
	stop = func() error {
		if !stopped {
			cancel()
			stopped, result = true, <-done
		}
		return result
	}
	t.Cleanup(func() {
		if err := stop(); err != nil && !errors.Is(err, errDied) {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case a := <-address:
		return "http://" + a, stop
	case err := <-done:
		stopped, result = true, err
		t.Fatalf("Run: %v", err)
		return "", nil
	}
}

// exchange posts a body on a connection of its own and returns the status, the
// body and the error of reading it.
func exchange(t *testing.T, url, path, body string) (status int, contentType, answer string, err error) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}, Timeout: 20 * time.Second}
	response, err := client.Post(url+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", "", err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header.Get("Content-Type"), string(b), err
}

const streamed = `{"prompt":"one two three","max_tokens":5,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`

type frame struct {
	ID      string `json:"id"`
	Choices []struct {
		Text   string  `json:"text"`
		Finish *string `json:"finish_reason"`
		Delta  struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"delta"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *apiError `json:"error"`
}

// frames parses a streamed body and says whether it ended with [DONE].
func frames(t *testing.T, body string) (list []frame, done bool) {
	t.Helper()
	for event := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			t.Fatalf("event %q", event)
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		var f frame
		if err := json.Unmarshal([]byte(data), &f); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		list = append(list, f)
	}
	return list, done
}

func TestServer_Stream(t *testing.T) {
	t.Parallel()
	url, _ := start(t, fast())
	status, contentType, body, err := exchange(t, url, "/v1/completions", streamed)
	if err != nil || status != 200 || !strings.HasPrefix(contentType, "text/event-stream") {
		t.Fatalf("status %d, %s, %v", status, contentType, err)
	}
	list, done := frames(t, body)
	if len(list) != 7 || !done {
		t.Fatalf("%d frames, done %v: want 5 tokens, the finish, the usage and [DONE]\n%s", len(list), done, body)
	}
	text := ""
	for _, f := range list[:5] {
		text += f.Choices[0].Text
	}
	if countTokens(text) != 5 || list[5].Choices[0].Finish == nil || *list[5].Choices[0].Finish != "length" {
		t.Errorf("text %q, finish %v", text, list[5].Choices[0].Finish)
	}
	if u := list[6].Usage; u == nil || u.Prompt != countTokens("one two three") || u.Completion != 5 || len(list[6].Choices) != 0 {
		t.Errorf("usage %+v", u)
	}

	_, _, whole, err := exchange(t, url, "/v1/completions", `{"prompt":"one two three","max_tokens":5}`)
	if err != nil {
		t.Fatal(err)
	}
	var f frame
	if err := json.Unmarshal([]byte(whole), &f); err != nil || f.Choices[0].Text != text || f.Usage.Completion != 5 {
		t.Errorf("not streamed: %s, %v, want the same text %q", whole, err, text)
	}
}

func TestServer_Chat(t *testing.T) {
	t.Parallel()
	url, _ := start(t, fast())
	_, _, body, err := exchange(t, url, "/v1/chat/completions", `{"messages":[{"role":"user","content":"hello"}],"max_completion_tokens":3,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	list, done := frames(t, body)
	if len(list) != 5 || !done || list[0].Choices[0].Delta.Role != "assistant" || list[0].Choices[0].Delta.Content != "" {
		t.Fatalf("frames %+v, done %v", list, done)
	}
	for _, f := range list {
		if f.Usage != nil {
			t.Error("usage, which nobody asked for")
		}
	}
	var tokens struct{ Count int }
	_, _, answer, _ := exchange(t, url, "/tokenize", `{"messages":[{"role":"user","content":"hello"}]}`)
	if err := json.Unmarshal([]byte(answer), &tokens); err != nil {
		t.Fatal(err)
	}
	_, _, whole, _ := exchange(t, url, "/v1/chat/completions", `{"messages":[{"role":"user","content":"hello"}],"max_tokens":3}`)
	var f frame
	if err := json.Unmarshal([]byte(whole), &f); err != nil || f.Usage.Prompt != tokens.Count || countTokens(f.Choices[0].Message.Content) != 3 {
		t.Errorf("%s, %v, want %d prompt tokens", whole, err, tokens.Count)
	}
}

// TestServer_Echo: the last line of the prompt comes back where the answer may end
// by itself, streamed or not, and words come where it may not.
func TestServer_Echo(t *testing.T) {
	t.Parallel()
	c := fast()
	c.Echo = true
	url, _ := start(t, c)
	const last = `say "naïve" <ok> 日本語`
	text := func(path string, body map[string]any) (answer, finish string) {
		t.Helper()
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		_, _, got, err := exchange(t, url, path, string(b))
		if err != nil {
			t.Fatal(err)
		}
		list := []frame{{}}
		if body["stream"] == true {
			list, _ = frames(t, got)
		} else if err := json.Unmarshal([]byte(got), &list[0]); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		for _, f := range list {
			for _, choice := range f.Choices {
				answer += choice.Text + choice.Delta.Content + choice.Message.Content
				if choice.Finish != nil {
					finish = *choice.Finish
				}
			}
		}
		return answer, finish
	}
	chat := []map[string]string{{"role": "user", "content": "first\n" + last + "\n"}}
	for _, stream := range []bool{false, true} {
		if got, finish := text("/v1/completions", map[string]any{"prompt": "x\n" + last, "max_tokens": 50, "stream": stream}); got != last || finish != "stop" {
			t.Errorf("completion: %q, %q", got, finish)
		}
		if got, finish := text("/v1/chat/completions", map[string]any{"messages": chat, "max_tokens": 50, "stream": stream}); got != last || finish != "stop" {
			t.Errorf("chat: %q, %q", got, finish)
		}
	}
	if got, finish := text("/v1/completions", map[string]any{"prompt": last, "max_tokens": 2}); !strings.HasPrefix(last, got) || got == "" || finish != "length" {
		t.Errorf("cut off: %q, %q", got, finish)
	}
	if got, _ := text("/v1/completions", map[string]any{"prompt": last, "max_tokens": 3, "ignore_eos": true}); strings.Contains(last, got) {
		t.Errorf("with ignore_eos: %q", got)
	}
}

func TestServer_StreamShapes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Config)
		events int // with text
	}{
		"interval":         {func(c *Config) { c.StreamInterval = 3 }, 5}, // 1, 3, 3, 3, 2 tokens
		"events per write": {func(c *Config) { c.EventsPerWrite = 4 }, 12},
		"early headers":    {func(c *Config) { c.EarlyHeaders = true }, 12},
		"speculative":      {func(c *Config) { c.Limits.Speculative, c.Limits.Acceptance = 10, 1 }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := fast()
			c.change(&config)
			url, _ := start(t, config)
			_, _, body, err := exchange(t, url, "/v1/completions",
				`{"prompt":"a","max_tokens":12,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
			if err != nil {
				t.Fatal(err)
			}
			list, done := frames(t, body)
			events, tokens := 0, 0
			for _, f := range list {
				if len(f.Choices) > 0 && f.Choices[0].Text != "" {
					events++
					tokens += countTokens(f.Choices[0].Text)
					if f.Usage == nil || (config.EventsPerWrite == 1 && f.Usage.Completion != tokens) {
						t.Errorf("usage %+v after %d tokens", f.Usage, tokens)
					}
				}
			}
			if events != c.events || tokens != 12 || !done {
				t.Errorf("%d events of %d tokens, done %v, want %d of 12", events, tokens, done, c.events)
			}
		})
	}
}

func TestServer_Refusals(t *testing.T) {
	t.Parallel()
	c := fast()
	c.Limits.Context = 100
	c.Model = "sim"
	url, _ := start(t, c)
	for body, want := range map[string]int{
		`{`:                                    400,
		`{"prompt":""}`:                        400,
		`{"prompt":7}`:                         400,
		`{"prompt":"a","n":2}`:                 400,
		`{"prompt":"a","max_tokens":0}`:        400,
		`{"prompt":"a","max_tokens":100}`:      400,
		`{"prompt":"a","model":"other"}`:       404,
		`{"prompt":[1,2,3],"max_tokens":2}`:    200,
		`{"prompt":"a","model":"sim","n":1}`:   200,
		`{"prompt":"a b","temperature":"hot"}`: 200, // sampling is accepted unread
	} {
		status, _, answer, err := exchange(t, url, "/v1/completions", body)
		if err != nil || status != want {
			t.Errorf("%s: status %d, %v, want %d: %s", body, status, err, want, answer)
		}
	}
	if status, _, _, _ := exchange(t, url, "/nowhere", `{}`); status != 404 {
		t.Errorf("/nowhere: status %d", status)
	}
	if status, _, _, _ := exchange(t, url, "/v1/chat/completions", `{"messages":[]}`); status != 400 {
		t.Errorf("no messages: status %d", status)
	}
}

func TestServer_Faults(t *testing.T) {
	t.Parallel()
	for fault, check := range map[string]func(t *testing.T, status int, contentType, body string, err error){
		"http:status=429": func(t *testing.T, status int, _, body string, err error) {
			if err != nil || status != 429 || !strings.Contains(body, `"error"`) {
				t.Errorf("status %d, %v: %s", status, err, body)
			}
		},
		"html:status=502": func(t *testing.T, status int, contentType, body string, err error) {
			if err != nil || status != 502 || contentType != "text/html" || !strings.HasPrefix(body, "<html>") {
				t.Errorf("status %d, %s, %v: %s", status, contentType, err, body)
			}
		},
		"stream-error:after=2": func(t *testing.T, status int, _, body string, err error) {
			list, done := frames(t, body)
			if err != nil || status != 200 || len(list) != 3 || list[2].Error == nil || done {
				t.Errorf("status %d, %v, done %v: %s", status, err, done, body)
			}
		},
		"drop:after=2": func(t *testing.T, status int, _, body string, err error) {
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("status %d, %v: %s", status, err, body)
			}
		},
		"truncate:after=2": func(t *testing.T, status int, _, body string, err error) {
			if list, done := frames(t, body); !errors.Is(err, io.ErrUnexpectedEOF) || len(list) != 2 || done {
				t.Errorf("status %d, %v, done %v: %s", status, err, done, body)
			}
		},
		"no-done": func(t *testing.T, _ int, _, body string, err error) {
			if list, done := frames(t, body); err != nil || len(list) != 7 || done {
				t.Errorf("%v, done %v: %s", err, done, body)
			}
		},
		"no-usage": func(t *testing.T, _ int, _, body string, err error) {
			if list, done := frames(t, body); err != nil || len(list) != 6 || !done {
				t.Errorf("%v, done %v: %s", err, done, body)
			}
		},
		"short:factor=0.5": func(t *testing.T, _ int, _, body string, err error) {
			list, done := frames(t, body)
			if err != nil || len(list) != 4 || !done || list[3].Usage.Completion != 2 {
				t.Errorf("%v, done %v: %s", err, done, body)
			}
		},
		"loading:for=1h": func(t *testing.T, status int, _, body string, _ error) {
			if status != 503 || !strings.Contains(body, "Loading model") {
				t.Errorf("status %d: %s", status, body)
			}
		},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			url, _ := start(t, fast(), fault)
			status, contentType, body, err := exchange(t, url, "/v1/completions", streamed)
			check(t, status, contentType, body, err)
		})
	}
}

// TestServer_Hang: nothing comes after the tokens, until the client leaves; the
// place in the batch is free again.
func TestServer_Hang(t *testing.T) {
	t.Parallel()
	url, _ := start(t, fast(), "hang:after=2")
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if list, _ := frames(t, string(body)); !errors.Is(err, context.DeadlineExceeded) || len(list) != 2 {
		t.Errorf("%v: %s", err, body)
	}
	waitFor(t, func() bool { return strings.Contains(get(t, url+"/metrics"), "sim:num_requests_running 0\n") })
}

func TestServer_Dies(t *testing.T) {
	t.Parallel()
	c := fast()
	c.Cost.DecodeRate = 10
	url, stop := start(t, c, "die:at=200ms")
	_, _, body, err := exchange(t, url, "/v1/completions", `{"prompt":"a","max_tokens":1000,"stream":true}`)
	if err == nil {
		t.Errorf("no error: %s", body)
	}
	if err := stop(); !errors.Is(err, errDied) {
		t.Errorf("Run: %v", err)
	}
}

// TestServer_Dies_Idle: also with nobody there.
func TestServer_Dies_Idle(t *testing.T) {
	t.Parallel()
	f, err := ParseFault("die:at=20ms")
	if err != nil {
		t.Fatal(err)
	}
	c := fast()
	c.Faults = []Fault{f}
	if err := Run(t.Context(), c, func(string) {}); !errors.Is(err, errDied) {
		t.Errorf("Run: %v", err)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition did not come true in a minute")
		}
	}
}

// TestServer_ClientLeaves: its place in the batch is free at the next step.
func TestServer_ClientLeaves(t *testing.T) {
	t.Parallel()
	c := fast()
	c.Limits.Slots = 1
	url, _ := start(t, c)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(`{"prompt":"a","max_tokens":30000,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	cancel()
	if status, _, _, err := exchange(t, url, "/v1/completions", streamed); status != 200 || err != nil {
		t.Errorf("the next request: status %d, %v", status, err)
	}
}

// TestServer_SlowClient: one that does not read costs the others nothing, and
// gets everything when it reads at last.
func TestServer_SlowClient(t *testing.T) {
	t.Parallel()
	c := fast()
	c.Cost.DecodeRate = 100_000
	url, _ := start(t, c)
	slow, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if err := slow.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	const tokens = 30000 // 5 MB: more than the socket's buffers hold
	body := fmt.Sprintf(`{"prompt":"a","max_tokens":%d,"stream":true}`, tokens)
	fmt.Fprintf(slow, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	waitFor(t, func() bool {
		return strings.Contains(get(t, url+"/metrics"), fmt.Sprintf("sim:generation_tokens_total %d\n", tokens))
	})
	if status, _, _, err := exchange(t, url, "/v1/completions", streamed); status != 200 || err != nil {
		t.Errorf("the other client: status %d, %v", status, err)
	}
	response, err := http.ReadResponse(bufio.NewReader(slow), nil)
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(response.Body)
	if err != nil || bytes.Count(all, []byte("data: ")) != tokens+2 || !bytes.HasSuffix(all, []byte("data: [DONE]\n\n")) {
		t.Errorf("%d events, %v", bytes.Count(all, []byte("data: ")), err)
	}
}

// TestServer_KeepAlive: many answers on one connection, streamed and whole, by
// TCP and by Unix socket, also pipelined.
func TestServer_KeepAlive(t *testing.T) {
	t.Parallel()
	c := fast()
	c.Listen = "unix:" + filepath.Join(t.TempDir(), "s")
	start(t, c)
	connection, err := net.Dial("unix", strings.TrimPrefix(c.Listen, "unix:"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	one := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(streamed), streamed)
	if _, err := io.WriteString(connection, strings.Repeat(one, 20)); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(connection)
	for i := range 20 {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
			t.Fatalf("answer %d: %v: %s", i, err, body)
		}
	}
}

func TestServer_PrefixCache(t *testing.T) {
	t.Parallel()
	c := fast()
	c.Limits.PrefixCacheTokens = 10_000
	url, _ := start(t, c)
	for i, want := range []int{0, 48} {
		_, _, body, err := exchange(t, url, "/v1/completions", `{"prompt":"`+strings.Repeat("abcd", 50)+`","max_tokens":1}`)
		var f frame
		if err != nil || json.Unmarshal([]byte(body), &f) != nil || f.Usage.Details.Cached != want {
			t.Errorf("request %d: %s, %v, want %d cached tokens", i, body, err, want)
		}
	}
}

// TestJournal: what the log says is what a client sees, on the same clock.
func TestJournal(t *testing.T) {
	t.Parallel()
	c := fast()
	c.Cost.DecodeRate = 200
	c.Log = filepath.Join(t.TempDir(), "log")
	c.Noise = Noise{Run: 0.1}
	url, stop := start(t, c, "drop:rate=0")
	clock, err := newClock()
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Request-Id", "mine")
	sent := clock.now()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var seen []int64
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"text":" `) {
			seen = append(seen, clock.now())
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(c.Log)
	if err != nil {
		t.Fatal(err)
	}
	records := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if len(records) != 3 {
		t.Fatalf("%d lines:\n%s", len(records), text)
	}
	var first startRecord
	var r requestRecord
	var last stopRecord
	for i, into := range []any{&first, &r, &last} {
		if err := json.Unmarshal(records[i], into); err != nil {
			t.Fatal(err)
		}
	}
	if first.Kind != "start" || first.Factors.Run == 1 || first.Factors.Node != 1 || last.Kind != "stop" || last.Finished != 1 {
		t.Errorf("first %+v, last %+v", first, last)
	}
	if r.RequestID != "mine" || r.Completion != 5 || r.Finish != "length" || len(r.Emissions) != 5 || len(seen) != 5 {
		t.Fatalf("%d seen, %+v", len(seen), r)
	}
	if r.Admitted == nil || sent >= r.Received || r.Received >= *r.Admitted || *r.Admitted >= r.Emissions[0][0] {
		t.Errorf("sent %d, %+v", sent, r)
	}
	for i, e := range r.Emissions {
		if e[0] > seen[i] {
			t.Errorf("token %d was seen %d ns before it was sent", i, e[0]-seen[i])
		}
	}
}

// TestEngine_Deadlines: steps end at absolute times, so the mean gap between
// tokens is the model's, however late a single one is.
func TestEngine_Deadlines(t *testing.T) {
	t.Parallel()
	c := fast()
	c.Cost = Cost{PrefillRate: 1e6, DecodeRate: 500, Overhead: 3 * time.Millisecond, Efficiency: 1}
	c.Log = filepath.Join(t.TempDir(), "log")
	url, stop := start(t, c)
	if _, _, _, err := exchange(t, url, "/v1/completions", `{"prompt":"a","max_tokens":101,"stream":true}`); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(c.Log)
	if err != nil {
		t.Fatal(err)
	}
	records := bytes.Split(text, []byte("\n"))
	var r requestRecord
	if err := json.Unmarshal(records[1], &r); err != nil {
		t.Fatal(err)
	}
	var last stopRecord
	if err := json.Unmarshal(records[2], &last); err != nil {
		t.Fatal(err)
	}
	gap := time.Duration(r.Emissions[100][0]-r.Emissions[0][0]) / 100
	if last.Overruns == 0 && (gap < 4900*time.Microsecond || gap > 5300*time.Microsecond) {
		t.Errorf("mean gap %v, want 5ms", gap)
	}
}

// TestMain_CommandLine: exit codes, and what is said where.
func TestMain_CommandLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"--version", 0, "sbench-sim ", ""},
		{"--help", 0, "-prefill-rate", ""},
		{"--slots 0", 2, "", "error: --slots"},
		{"--nonsense", 2, "", "flag provided but not defined"},
		{"stray", 2, "", `unexpected argument "stray"`},
		{"--fault http:status=1", 2, "", "want status in [400, 599]"},
		{"--fault drop:rate=0.1;die:at=1ms --listen 127.0.0.1:0", 9, "", "`die` ended the engine"},
		{"--listen 127.0.0.1:none", 1, "", "error: listen"},
		{"--log /no/such/folder/log --listen 127.0.0.1:0", 1, "", "error: open log"},
	} {
		var stdout, stderr bytes.Buffer
		code := Main(t.Context(), strings.Fields(c.args), nil, &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%s: code %d, want %d\nstdout: %s\nstderr: %s", c.args, code, c.code, stdout.String(), stderr.String())
		}
	}
}
