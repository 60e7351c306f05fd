package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hybridgroup/yzma/pkg/llama"
)

// completionRequest is the part of the OpenAI API that is honoured.
type completionRequest struct {
	Prompt   json.RawMessage `json:"prompt"`
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	MaxTokens           *int     `json:"max_tokens"`
	MaxCompletionTokens *int     `json:"max_completion_tokens"`
	Temperature         *float64 `json:"temperature"`
	TopP                *float64 `json:"top_p"`
	N                   *int     `json:"n"`
	Seed                int64    `json:"seed"`
	Stream              bool     `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	IgnoreEOS bool `json:"ignore_eos"`
}

// apiError is an error that a client is told, with its HTTP status.
type apiError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Type    string `json:"type"`
}

func (e *apiError) Error() string { return e.Message }

func invalid(format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, fmt.Sprintf(format, args...), "invalid_request_error"}
}

const maxBody = 16 << 20

func decodeBody(r *http.Request, into any) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return &apiError{http.StatusRequestEntityTooLarge, "request body over 16 MiB", "invalid_request_error"}
		}
		return invalid("read body: %v", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return invalid("parse body: %v", err)
	}
	return nil
}

// tokenize refuses what the library cannot take as a C string.
func (s *server) tokenize(text string) ([]llama.Token, error) {
	if strings.ContainsRune(text, 0) {
		return nil, invalid("text contains a NUL byte")
	}
	if text == "" {
		return nil, nil
	}
	return llama.Tokenize(s.vocab, text, false, true), nil
}

// prompt renders a request's prompt: the model's chat template, a text, or a
// list of token ids.
func (s *server) prompt(q *completionRequest, chat bool) ([]llama.Token, error) {
	if chat {
		if len(q.Messages) == 0 {
			return nil, invalid("messages is missing or empty")
		}
		var b strings.Builder
		b.WriteString("<|bos|>")
		for _, m := range q.Messages {
			switch m.Role {
			case "system", "user", "assistant":
			default:
				return nil, invalid("role %q: want system, user or assistant", m.Role)
			}
			b.WriteString("<|" + m.Role + "|>" + m.Content + "<|eos|>")
		}
		b.WriteString("<|assistant|>")
		return s.tokenize(b.String())
	}
	var text string
	if json.Unmarshal(q.Prompt, &text) == nil {
		return s.tokenize(text)
	}
	var tokens []llama.Token
	if json.Unmarshal(q.Prompt, &tokens) != nil {
		return nil, invalid("prompt: want a string or a list of token ids")
	}
	for _, token := range tokens {
		if token < 0 || int32(token) >= s.vocabSize {
			return nil, invalid("prompt: token id %d is not in [0, %d)", token, s.vocabSize)
		}
	}
	return tokens, nil
}

func (s *server) job(r *http.Request, q *completionRequest, chat bool) (*job, error) {
	if q.N != nil && *q.N != 1 {
		return nil, invalid("n: only 1 is supported")
	}
	if q.TopP != nil && *q.TopP != 1 {
		return nil, invalid("top_p: only 1 is supported")
	}
	if t := q.Temperature; t != nil && (*t < 0 || *t > 2) {
		return nil, invalid("temperature %v is not in [0, 2]", *t)
	}
	tokens, err := s.prompt(q, chat)
	if err != nil {
		return nil, err
	}
	if len(tokens) == 0 {
		return nil, invalid("the prompt is empty")
	}
	room := s.slotContext - len(tokens)
	limit := s.options.Predict
	for _, v := range []*int{q.MaxTokens, q.MaxCompletionTokens} {
		if v != nil {
			limit = *v
		}
	}
	if limit == 0 || limit < -1 {
		return nil, invalid("max_tokens %d: want at least 1", limit)
	}
	if room < 1 {
		return nil, &apiError{
			http.StatusBadRequest,
			fmt.Sprintf("request (%d tokens) exceeds the available context size (%d tokens), try increasing it", len(tokens), s.slotContext),
			"exceed_context_size_error",
		}
	}
	if limit == -1 || limit > room {
		limit = room // a full context ends the answer, as in llama-server
	}
	j := &job{
		ctx: r.Context(), prompt: tokens, max: limit, seed: uint32(q.Seed & math.MaxUint32),
		ignoreEOS: q.IgnoreEOS, events: make(chan event, limit+1),
	}
	if q.Temperature != nil {
		j.temperature = *q.Temperature
	}
	return j, nil
}

type usageBlock struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

type responseFrame struct {
	ID      string      `json:"id"`
	Object  string      `json:"object"`
	Created int64       `json:"created"`
	Model   string      `json:"model"`
	Choices []any       `json:"choices"`
	Usage   *usageBlock `json:"usage,omitempty"`
}

type textChoice struct {
	Index  int     `json:"index"`
	Text   string  `json:"text"`
	Finish *string `json:"finish_reason"`
}

type message struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chatChoice struct {
	Index   int      `json:"index"`
	Delta   *message `json:"delta,omitempty"`
	Message *message `json:"message,omitempty"`
	Finish  *string  `json:"finish_reason"`
}

// complete serves /v1/completions and /v1/chat/completions.
func (s *server) complete(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q completionRequest
		if err := decodeBody(r, &q); err != nil {
			writeError(w, err)
			return
		}
		j, err := s.job(r, &q, chat)
		if err != nil {
			writeError(w, err)
			return
		}
		s.batcher.counters.deferred.Add(1)
		select {
		case s.batcher.incoming <- j:
		case <-r.Context().Done():
			s.batcher.counters.deferred.Add(-1)
			return
		}
		frame := responseFrame{
			ID: fmt.Sprintf("cmpl-%d", s.ids.Add(1)), Object: "text_completion",
			Created: time.Now().Unix(), Model: s.options.Alias,
		}
		if chat {
			frame.Object = "chat.completion"
		}
		if q.Stream {
			s.stream(w, j, frame, chat, q.StreamOptions.IncludeUsage)
			return
		}
		s.whole(w, j, frame, chat)
	}
}

// pieces joins tokens to texts that end on a rune's end; invalid bytes become
// U+FFFD.
type pieces struct{ held []byte }

func (p *pieces) add(piece []byte) string {
	p.held = append(p.held, piece...)
	if r, size := utf8.DecodeLastRune(p.held); r == utf8.RuneError && size <= 1 && len(p.held) < utf8.UTFMax {
		return ""
	}
	return p.rest()
}

func (p *pieces) rest() string {
	text := strings.ToValidUTF8(string(p.held), "\ufffd")
	p.held = p.held[:0]
	return text
}

func (s *server) stream(w http.ResponseWriter, j *job, frame responseFrame, chat, withUsage bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	out := http.NewResponseController(w)
	send := func(v any) {
		b, err := json.Marshal(v)
		if err != nil {
			return // the types above always marshal
		}
		// A client that is gone cancels the job through its request's context.
		_, _ = w.Write(append(append([]byte("data: "), b...), "\n\n"...))
		_ = out.Flush()
	}
	choice := func(delta *message, text string, finish *string) any {
		if chat {
			return chatChoice{Delta: delta, Finish: finish}
		}
		return textChoice{Text: text, Finish: finish}
	}
	if chat {
		frame.Object = "chat.completion.chunk"
		empty := ""
		frame.Choices = []any{choice(&message{Role: "assistant", Content: &empty}, "", nil)}
		send(frame)
	}
	emit := func(text string) {
		if text != "" {
			frame.Choices = []any{choice(&message{Content: &text}, text, nil)}
			send(frame)
		}
	}
	var p pieces
	n := 0
	for ev := range j.events {
		if ev.finish == "" {
			n++
			emit(p.add(ev.piece))
			continue
		}
		emit(p.rest())
		if ev.finish == "error" || ev.finish == "abort" {
			send(map[string]any{"error": apiError{http.StatusInternalServerError, "the engine stopped this request", "server_error"}})
			return
		}
		frame.Choices = []any{choice(&message{}, "", &ev.finish)}
		send(frame)
	}
	if withUsage {
		frame.Choices = []any{}
		frame.Usage = &usageBlock{len(j.prompt), n, len(j.prompt) + n}
		send(frame)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

func (s *server) whole(w http.ResponseWriter, j *job, frame responseFrame, chat bool) {
	var p pieces
	var all strings.Builder
	n, finish := 0, ""
	for ev := range j.events {
		if ev.finish == "" {
			n++
			all.WriteString(p.add(ev.piece))
			continue
		}
		all.WriteString(p.rest())
		finish = ev.finish
	}
	if finish == "error" || finish == "abort" {
		writeError(w, &apiError{http.StatusInternalServerError, "the engine stopped this request", "server_error"})
		return
	}
	answer := all.String()
	frame.Usage = &usageBlock{len(j.prompt), n, len(j.prompt) + n}
	if chat {
		frame.Choices = []any{chatChoice{Message: &message{Role: "assistant", Content: &answer}, Finish: &finish}}
	} else {
		frame.Choices = []any{textChoice{Text: answer, Finish: &finish}}
	}
	writeJSON(w, http.StatusOK, frame)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

func writeError(w http.ResponseWriter, err error) {
	var api *apiError
	if !errors.As(err, &api) {
		api = &apiError{http.StatusInternalServerError, err.Error(), "server_error"}
	}
	writeJSON(w, api.Code, map[string]any{"error": api})
}
