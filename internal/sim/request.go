package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// apiError is what a client is told.
type apiError struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    int    `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

func invalid(format string, args ...any) *apiError {
	return &apiError{fmt.Sprintf(format, args...), "invalid_request_error", http.StatusBadRequest}
}

// completionRequest is the part of the OpenAI API that matters here. Sampling
// parameters are accepted and change nothing.
type completionRequest struct {
	Model               string          `json:"model"`
	Prompt              json.RawMessage `json:"prompt"`
	Messages            []chatMessage   `json:"messages"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	N                   *int            `json:"n"`
	Stream              bool            `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage    bool `json:"include_usage"`
		ContinuousUsage bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	IgnoreEOS bool `json:"ignore_eos"`
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// render is the chat template: each message as "role: content" on a line of
// its own, then the beginning of the answer.
func render(messages []chatMessage) string {
	var b strings.Builder
	for _, m := range messages {
		b.WriteString(m.Role + ": " + m.Content + "\n")
	}
	b.WriteString("assistant:")
	return b.String()
}

// prompt returns the tokens of a prompt: a text, a list of token ids, or the
// messages of a chat.
func (q *completionRequest) prompt(chat bool) ([]int64, error) {
	if chat {
		if len(q.Messages) == 0 {
			return nil, invalid("messages is missing or empty")
		}
		return tokenize(render(q.Messages)), nil
	}
	var text string
	if json.Unmarshal(q.Prompt, &text) == nil {
		return tokenize(text), nil
	}
	var ids []int64
	if json.Unmarshal(q.Prompt, &ids) != nil {
		return nil, invalid("prompt: want a string or a list of token ids")
	}
	return ids, nil
}

// lastLine is the end of the prompt: of the last message of a chat, or of a text.
func (q *completionRequest) lastLine(chat bool) string {
	text := ""
	if chat {
		text = q.Messages[len(q.Messages)-1].Content
	} else if json.Unmarshal(q.Prompt, &text) != nil {
		return ""
	}
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// echo is a text as tokens that can stand in a JSON string. A token that would end
// within a character has all of it.
func echo(text string) ([]string, error) {
	var out []string
	for text != "" {
		n := nextToken(text)
		for n < len(text) && !utf8.RuneStart(text[n]) {
			n++
		}
		quoted, err := json.Marshal(text[:n])
		if err != nil {
			return nil, fmt.Errorf("echo: %w", err)
		}
		out = append(out, string(quoted[1:len(quoted)-1]))
		text = text[n:]
	}
	return out, nil
}

const defaultMaxTokens = 128

func (q *completionRequest) limit(room int) (int, error) {
	limit := min(defaultMaxTokens, max(room, 1))
	for _, v := range []*int{q.MaxTokens, q.MaxCompletionTokens} {
		if v != nil {
			limit = *v
		}
	}
	if limit < 1 {
		return 0, invalid("max_tokens %d: want at least 1", limit)
	}
	return limit, nil
}

// emission is one write of an answer: when, and how many tokens it carried.
type emission struct {
	at     int64
	tokens int
}

// request is one completion from arrival to its last byte. The engine's
// goroutine owns it from submission until done is closed.
type request struct {
	sequence
	conn       *conn
	number     int64
	id         string
	model      []byte // as JSON
	given      string // the client's X-Request-Id
	chat       bool
	stream     bool
	usage      bool
	continuous bool // usage in every event
	keepAlive  bool
	fate       fate
	received   int64
	finish     string

	echo []string // the answer's tokens, escaped for JSON; nil for words

	head      []byte // of every event, up to the text
	text      []byte // not yet in an event
	held      int    // tokens in text
	body      []byte // events not yet written
	bodyEvent int
	bodyToken int
	started   bool // headers were written
	ended     bool // nothing more will be written

	emissions []emission
	gone      atomic.Bool   // the client went away
	done      chan struct{} // closed when the engine is through with it
}

// newRequest reads a completion's body.
func (s *server) newRequest(c *conn, r *http.Request, body []byte, chat bool) (*request, error) {
	var q completionRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, invalid("parse body: %v", err)
	}
	if q.N != nil && *q.N != 1 {
		return nil, invalid("n: only 1 is supported")
	}
	if s.config.Model != "" && q.Model != "" && q.Model != s.config.Model {
		return nil, &apiError{fmt.Sprintf("the model %q does not exist", q.Model), "not_found_error", http.StatusNotFound}
	}
	tokens, err := q.prompt(chat)
	if err != nil {
		return nil, err
	}
	if len(tokens) == 0 {
		return nil, invalid("the prompt is empty")
	}
	limit, err := q.limit(s.config.Limits.Context - len(tokens))
	if err != nil {
		return nil, err
	}
	if err := s.engine.scheduler.fits(len(tokens), limit); err != nil {
		return nil, invalid("%v", err)
	}
	n := s.engine.numbers.Add(1)
	out := &request{
		conn: c, number: n, id: s.idPrefix + strconv.FormatInt(n, 10), given: r.Header.Get("X-Request-Id"),
		chat: chat, stream: q.Stream, keepAlive: !r.Close, fate: fateOf(s.config.Faults, s.config.Seed, n),
		done: make(chan struct{}),
	}
	if q.StreamOptions != nil {
		out.usage, out.continuous = q.StreamOptions.IncludeUsage, q.StreamOptions.ContinuousUsage
	}
	// The text and the length follow from the prompt, not from the order of
	// arrival, so that they are the same in every run.
	key := s.config.Seed
	for _, id := range tokens {
		key = mix(key, uint64(id))
	}
	out.sequence = sequence{
		stream: key, prompt: len(tokens), target: naturalLength(s.config, key, limit, q.IgnoreEOS),
		cancelled: out.gone.Load, owner: out,
	}
	if s.config.Echo && !q.IgnoreEOS {
		if out.echo, err = echo(q.lastLine(chat)); err != nil {
			return nil, invalid("%v", err)
		}
		out.target = min(max(len(out.echo), 1), limit)
	}
	out.finish = "length"
	if out.target < limit || out.echo != nil && out.target == len(out.echo) {
		out.finish = "stop"
	}
	if out.fate.short {
		out.target = max(1, int(float64(out.target)*out.fate.shorten))
		out.finish = "stop"
	}
	if s.config.Limits.PrefixCacheTokens > 0 {
		out.prefix = prefixHashes(tokens)
	}
	if out.model, err = json.Marshal(s.modelName(q.Model)); err != nil {
		return nil, invalid("model: %v", err)
	}
	out.head = s.head(out)
	return out, nil
}

// modelName is what an answer to a request for a model says.
func (s *server) modelName(asked string) string {
	if asked == "" {
		asked = s.config.Model
	}
	if asked == "" {
		return "sim"
	}
	return asked
}

// head is the beginning of each of a request's events.
func (s *server) head(r *request) []byte {
	object, choice := "text_completion", `{"index":0,"text":"`
	if r.chat {
		object, choice = "chat.completion.chunk", `{"index":0,"delta":{"content":"`
	}
	return fmt.Appendf(nil, `data: {"id":%q,"object":%q,"created":%d,"model":%s,"choices":[%s`, r.id, object, s.created, r.model, choice)
}

// appendToken appends the i-th token of the answer, as it stands in JSON.
func (r *request) appendToken(b []byte, i int) []byte {
	switch {
	case r.echo == nil:
		return append(append(b, ' '), word(r.sequence.stream, i)...)
	case i < len(r.echo):
		return append(b, r.echo[i]...)
	}
	return b
}

// event appends an event with a text that needs no escape.
func (r *request) event(b, text []byte, finish string) []byte {
	b = append(append(b, r.head...), text...)
	b = append(b, '"')
	if r.chat {
		b = append(b, '}')
	}
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if finish == "" {
		b = append(b, "null}]"...)
	} else {
		b = append(append(append(b, '"'), finish...), `"}]`...)
	}
	if r.continuous {
		b = r.appendUsage(append(b, ','))
	}
	return append(b, "}\n\n"...)
}

func (r *request) appendUsage(b []byte) []byte {
	b = append(b, `"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(r.prompt), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(r.made), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(r.prompt+r.made), 10)
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(r.cached), 10)
	return append(b, "}}"...)
}

// role is the first event of a chat.
func (r *request) role(b []byte) []byte {
	b = append(b, r.head[:len(r.head)-len(`"content":"`)]...)
	return append(b, `"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
}

// last appends what ends a stream: the usage where asked for, and [DONE].
func (r *request) last(b []byte) []byte {
	if r.usage && !r.fate.noUsage {
		choices := strings.Index(string(r.head), `"choices":[`) + len(`"choices":[`)
		b = append(append(b, r.head[:choices]...), "],"...)
		b = append(r.appendUsage(b), "}\n\n"...)
	}
	if !r.fate.noDone {
		b = append(b, "data: [DONE]\n\n"...)
	}
	return b
}

// whole is the body of an answer that is not streamed.
func (s *server) whole(r *request) []byte {
	object, choice := "text_completion", `{"index":0,"text":"%s","logprobs":null,"finish_reason":"%s"}`
	if r.chat {
		object, choice = "chat.completion", `{"index":0,"message":{"role":"assistant","content":"%s"},"logprobs":null,"finish_reason":"%s"}`
	}
	b := fmt.Appendf(nil, `{"id":%q,"object":%q,"created":%d,"model":%s,"choices":[`, r.id, object, s.created, r.model)
	b = fmt.Appendf(b, choice, r.text, r.finish)
	b = append(b, ']')
	if !r.fate.noUsage {
		b = r.appendUsage(append(b, ','))
	}
	return append(b, '}')
}
