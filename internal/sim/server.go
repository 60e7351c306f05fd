package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// server speaks HTTP/1.1 by hand, so that an answer is one system call from
// the engine's thread and every fault of the wire can be made.
type server struct {
	config   Config
	engine   *engine
	idPrefix string
	created  int64

	mu    sync.Mutex
	conns map[*conn]bool
	wait  sync.WaitGroup // readers and queues
}

const maxBody = 64 << 20

// serve accepts until the listener is closed.
func (s *server) serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			// Out of descriptors: those who wait are served when some are free.
			var temporary net.Error
			if errors.As(err, &temporary) {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			return fmt.Errorf("accept: %w", err)
		}
		w, err := newConn(c, &s.wait)
		if err != nil {
			_ = c.Close()
			return err
		}
		s.mu.Lock()
		s.conns[w] = true
		s.mu.Unlock()
		s.wait.Go(func() {
			s.read(w)
			s.mu.Lock()
			delete(s.conns, w)
			s.mu.Unlock()
		})
	}
}

// closeAll ends every connection; their goroutines end soon after.
func (s *server) closeAll(reset bool) {
	s.mu.Lock()
	for c := range s.conns {
		if reset {
			c.reset()
		} else {
			_ = c.net.Close()
		}
	}
	s.mu.Unlock()
}

// read serves one connection's requests, one after the other.
func (s *server) read(c *conn) {
	defer c.close()
	for {
		r, err := http.ReadRequest(c.reader)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				c.write(appendError(nil, invalid("malformed HTTP request"), false))
			}
			return
		}
		if !r.ProtoAtLeast(1, 1) {
			c.write(appendError(nil, &apiError{"want HTTP/1.1", "invalid_request_error", http.StatusHTTPVersionNotSupported}, false))
			return
		}
		if strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
			c.write([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
		if err != nil {
			return
		}
		if len(body) > maxBody {
			c.write(appendError(nil, &apiError{"request body over 64 MiB", "invalid_request_error", http.StatusRequestEntityTooLarge}, false))
			return
		}
		if !s.answer(c, r, body) || r.Close {
			return
		}
	}
}

// answer serves one request and says whether the connection may go on.
func (s *server) answer(c *conn, r *http.Request, body []byte) bool {
	if s.loading() {
		c.write(appendError(nil, &apiError{"Loading model", "unavailable_error", http.StatusServiceUnavailable}, !r.Close))
		return true
	}
	switch r.Method + " " + r.URL.Path {
	case "POST /v1/completions":
		return s.complete(c, r, body, false)
	case "POST /v1/chat/completions":
		return s.complete(c, r, body, true)
	}
	status, contentType, out := s.plain(r, body)
	c.write(appendResponse(nil, status, contentType, out, !r.Close))
	return true
}

func (s *server) loading() bool {
	since := time.Duration(s.engine.clock.now() - s.engine.ready)
	for _, f := range s.config.Faults {
		if f.Kind == Loading && since < f.For {
			return true
		}
	}
	return false
}

func (s *server) complete(c *conn, r *http.Request, body []byte, chat bool) bool {
	q, err := s.newRequest(c, r, body, chat)
	if err != nil {
		var api *apiError
		if !errors.As(err, &api) {
			api = invalid("%v", err)
		}
		c.write(appendError(nil, api, !r.Close))
		return true
	}
	q.received = s.engine.clock.now()
	if f := q.fate.reject; f != nil {
		if f.Kind == HTML {
			page := []byte("<html><head><title>Error</title></head><body><h1>The server is temporarily unable to service your request.</h1></body></html>\n")
			c.write(appendResponse(nil, f.Status, "text/html", page, q.keepAlive))
		} else {
			c.write(appendError(nil, &apiError{"injected fault", "server_error", f.Status}, q.keepAlive))
		}
		s.engine.end(q, string(f.Kind))
		return q.keepAlive
	}
	if q.stream && s.config.EarlyHeaders {
		var role []byte
		if q.chat {
			role = q.role(nil)
		}
		c.write(chunk(q.headers(nil), role))
		q.started = true
	}
	s.engine.submit(q)
	// A client that goes away is seen at once, since nothing else reads.
	_, err = c.reader.Peek(1)
	if err != nil {
		q.gone.Store(true)
		// Waiting for the engine here would keep the goroutine; the request
		// belongs to the engine, which finds it gone.
		return false
	}
	<-q.done
	return q.keepAlive
}

// appendResponse appends a whole HTTP response.
func appendResponse(b []byte, status int, contentType string, body []byte, keepAlive bool) []byte {
	b = fmt.Appendf(b, "HTTP/1.1 %d %s\r\nServer: sbench-sim\r\nContent-Type: %s\r\nContent-Length: %d\r\n", status, http.StatusText(status), contentType, len(body))
	if !keepAlive {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(append(b, "\r\n"...), body...)
}

func appendError(b []byte, err *apiError, keepAlive bool) []byte {
	body, marshal := json.Marshal(map[string]*apiError{"error": err})
	if marshal != nil {
		body = []byte(`{"error":{}}`)
	}
	return appendResponse(b, err.Code, "application/json", body, keepAlive)
}

// plain answers everything that is not a completion.
func (s *server) plain(r *http.Request, body []byte) (status int, contentType string, out []byte) {
	var v any
	switch r.Method + " " + r.URL.Path {
	case "GET /health":
		v = map[string]string{"status": "ok"}
	case "GET /version":
		v = map[string]string{"version": build()}
	case "GET /v1/models":
		v = map[string]any{"object": "list", "data": []any{map[string]any{
			"id": s.modelName(""), "object": "model", "owned_by": "sbench-sim", "max_model_len": s.config.Limits.Context,
		}}}
	case "GET /props":
		v = map[string]any{
			"build_info": "sbench-sim " + build(), "model_alias": s.modelName(""), "total_slots": s.config.Limits.Slots,
			"default_generation_settings": map[string]any{"n_ctx": s.config.Limits.Context},
		}
	case "GET /metrics":
		return http.StatusOK, "text/plain; version=0.0.4", s.metrics()
	case "POST /reset_prefix_cache":
		// It takes effect before the next request is looked at.
		s.engine.mu.Lock()
		s.engine.forget = true
		s.engine.mu.Unlock()
		v = map[string]string{}
	case "POST /tokenize":
		v = s.tokenize(body)
	case "POST /detokenize":
		v = detokenizeBody(body)
	default:
		v = &apiError{"no such route", "not_found_error", http.StatusNotFound}
	}
	status = http.StatusOK
	if api, failed := v.(*apiError); failed {
		status, v = api.Code, map[string]*apiError{"error": api}
	}
	out, err := json.Marshal(v)
	if err != nil {
		return http.StatusInternalServerError, "text/plain", []byte(err.Error())
	}
	return status, "application/json", out
}

// tokenize takes the request of llama.cpp (content) and of vLLM (prompt or
// messages), and answers both.
func (s *server) tokenize(body []byte) any {
	var q struct {
		Content    *string       `json:"content"`
		Prompt     *string       `json:"prompt"`
		Messages   []chatMessage `json:"messages"`
		WithPieces bool          `json:"with_pieces"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return invalid("parse body: %v", err)
	}
	var text string
	switch {
	case q.Content != nil:
		text = *q.Content
	case q.Prompt != nil:
		text = *q.Prompt
	case q.Messages != nil:
		text = render(q.Messages)
	default:
		return invalid("want content, prompt or messages")
	}
	ids := tokenize(text)
	var tokens any = ids
	if q.WithPieces {
		type piece struct {
			ID    int64  `json:"id"`
			Piece string `json:"piece"`
		}
		pieces := make([]piece, len(ids))
		for i, id := range ids {
			pieces[i] = piece{id, detokenize(ids[i : i+1])}
		}
		tokens = pieces
	}
	return map[string]any{"tokens": tokens, "count": len(ids), "max_model_len": s.config.Limits.Context}
}

func detokenizeBody(body []byte) any {
	var q struct {
		Tokens []int64 `json:"tokens"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return invalid("parse body: %v", err)
	}
	text := detokenize(q.Tokens)
	return map[string]string{"content": text, "prompt": text}
}

// metrics is the exporter's text; the names say what vLLM's of the same ending
// say.
func (s *server) metrics() []byte {
	e := s.engine
	e.mu.Lock()
	state, queued := e.state, len(e.incoming)
	e.mu.Unlock()
	var b strings.Builder
	line := func(kind, name, help string, value float64) {
		fmt.Fprintf(&b, "# HELP sim:%s %s\n# TYPE sim:%s %s\nsim:%s %s\n", name, help, name, kind, name, strconv.FormatFloat(value, 'g', -1, 64))
	}
	t := state.tally
	line("gauge", "num_requests_running", "Requests in the batch.", float64(state.running))
	line("gauge", "num_requests_waiting", "Requests waiting for a place.", float64(state.waiting+queued))
	if capacity := e.scheduler.capacity(); e.config.Limits.KVTokens > 0 {
		line("gauge", "kv_cache_usage_perc", "Part of the KV memory in use, 0 to 1.", float64(state.kvUsed)/float64(capacity))
	}
	line("counter", "num_preemptions_total", "Sequences put back for want of KV memory.", float64(t.preemptions))
	line("counter", "prompt_tokens_total", "Prompt tokens admitted.", float64(t.promptTokens))
	line("counter", "generation_tokens_total", "Tokens generated.", float64(t.generated))
	line("counter", "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", float64(t.promptTokens))
	line("counter", "prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", float64(t.cachedTokens))
	line("counter", "spec_decode_num_draft_tokens_total", "Tokens drafted.", float64(t.drafted))
	line("counter", "spec_decode_num_accepted_tokens_total", "Drafted tokens that were accepted.", float64(t.accepted))
	line("counter", "engine_steps_total", "Steps.", float64(t.steps))
	line("counter", "engine_overruns_total", "Steps that began late because writing took longer than a step.", float64(state.overruns))
	line("counter", "requests_finished_total", "Requests the engine is through with.", float64(state.finished))
	return []byte(b.String())
}

// listen opens host:port or unix:PATH.
func listen(ctx context.Context, address string) (net.Listener, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}
