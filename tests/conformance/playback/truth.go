package playback

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sbench/internal/result"
)

// Truth is what an answer says, by a reading that is slow and plain on purpose:
// the whole of it at once, no state across reads, encoding/json for every event.
type Truth struct {
	Status   int
	Head     int  // bytes up to and including the blank line
	Stream   bool // an event stream
	Complete bool // the body ended as its framing announced
	Events   []Event
	Text     string // generated text that is not reasoning
	Thoughts string // reasoning
	Finish   string // last finish_reason
	Prompt   *int   // of the last usage that is not null
	Output   *int
	Done     bool
	Failed   bool   // the server reported an error inside a 200
	Broken   string // why the body is not to be believed, "" if it is
}

// Event is one event of a stream, or the one document of an answer that is none.
type Event struct {
	Data     string
	Name     string
	End      int  // bytes of the answer up to and including the one that ended it
	Text     bool // with generated text of any kind
	Content  bool // with text that is not reasoning
	Usage    bool
	Done     bool
	complete bool // ended by its blank line
}

// Known reads a script.
func Known(s Script) Truth { return Read(s.Bytes()) }

// Read reads an answer.
func Read(answer []byte) Truth {
	var t Truth
	head, found := headLength(answer)
	if !found {
		t.Broken = "no whole head"
		return t
	}
	t.Head = head
	fields := map[string]string{}
	for i, line := range strings.Split(string(answer[:head]), "\n") {
		line = strings.TrimRight(line, "\r")
		if i == 0 {
			words := strings.SplitN(line, " ", 3)
			if len(words) < 2 || !strings.HasPrefix(words[0], "HTTP/1.") {
				t.Broken = "not HTTP/1"
				return t
			}
			t.Status, _ = strconv.Atoi(words[1])
			continue
		}
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.ToLower(name)] = strings.TrimSpace(value)
		}
	}
	if t.Status == 100 { // an interim answer: the real one follows
		rest := Read(answer[head:])
		rest.shift(head)
		return rest
	}
	body, where, complete, wrong := deframe(answer[head:], fields)
	t.Complete = complete
	if wrong != "" {
		t.Broken = wrong
	}
	for i := range where {
		where[i] += head
	}
	media, _, _ := strings.Cut(fields["content-type"], ";")
	switch media = strings.ToLower(strings.TrimSpace(media)); {
	case t.Status != 200:
	case media == "text/event-stream":
		t.Stream = true
		t.events(body, where)
	case media == "application/json" || bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")):
		t.document(body, where)
	case len(body) > 0:
		t.Broken = "not an event stream"
	}
	return t
}

func (t *Truth) shift(by int) {
	t.Head += by
	for i := range t.Events {
		t.Events[i].End += by
	}
}

// headLength finds the end of the head: a blank line, with or without CRs.
func headLength(answer []byte) (int, bool) {
	offset := 0
	for line := range bytes.Lines(answer) {
		offset += len(line)
		if offset > len(line) && len(bytes.TrimRight(line, "\r\n")) == 0 && bytes.HasSuffix(line, []byte("\n")) {
			return offset, true
		}
	}
	return 0, false
}

// deframe undoes the transfer coding: the body, where each of its bytes was, and
// whether it ended as announced.
func deframe(raw []byte, fields map[string]string) (body []byte, where []int, complete bool, wrong string) {
	take := func(from, to int) {
		for i := from; i < to; i++ {
			body = append(body, raw[i])
			where = append(where, i)
		}
	}
	if strings.EqualFold(fields["transfer-encoding"], "chunked") {
		at := 0
		for {
			end := bytes.IndexByte(raw[at:], '\n')
			if end < 0 {
				return body, where, false, ""
			}
			size, _, _ := strings.Cut(strings.TrimSpace(string(raw[at:at+end])), ";")
			n, err := strconv.ParseUint(strings.TrimSpace(size), 16, 31)
			if err != nil {
				return body, where, false, "not a chunk size: " + strconv.Quote(size)
			}
			at += end + 1
			if n == 0 {
				// Trailers, then a blank line.
				for {
					end := bytes.IndexByte(raw[at:], '\n')
					if end < 0 {
						return body, where, false, ""
					}
					line := bytes.TrimRight(raw[at:at+end], "\r")
					at += end + 1
					if len(line) == 0 {
						return body, where, true, ""
					}
				}
			}
			if at+int(n) > len(raw) {
				take(at, len(raw))
				return body, where, false, ""
			}
			take(at, at+int(n))
			at += int(n)
			switch rest := raw[at:]; {
			case bytes.HasPrefix(rest, []byte("\r\n")):
				at += 2
			case bytes.HasPrefix(rest, []byte("\n")):
				at++
			case len(rest) == 0 || string(rest) == "\r":
				return body, where, false, ""
			default:
				return body, where, false, "no line end behind a chunk"
			}
		}
	}
	if text, ok := fields["content-length"]; ok {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return nil, nil, false, "not a length: " + strconv.Quote(text)
		}
		take(0, min(int(n), len(raw)))
		return body, where, len(raw) >= int(n), ""
	}
	take(0, len(raw)) // until the connection ends
	return body, where, true, ""
}

type line struct {
	text     []byte
	end      int // offset in the body behind the byte that ended it
	complete bool
}

// lines splits at LF, CRLF and CR. A line ends at its CR already.
func lines(body []byte) (all []line) {
	from := 0
	for i := 0; i < len(body); i++ {
		if body[i] != '\n' && body[i] != '\r' {
			continue
		}
		all = append(all, line{body[from:i], i + 1, true})
		if body[i] == '\r' && i+1 < len(body) && body[i+1] == '\n' {
			i++
		}
		from = i + 1
	}
	if from < len(body) {
		all = append(all, line{body[from:], len(body), false})
	}
	return all
}

// events reads an event stream by the WHATWG rules.
func (t *Truth) events(body []byte, where []int) {
	body = append([]byte(nil), body...)
	bom := 0
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		bom = 3
	}
	var data, name []byte
	pending, stray := false, 0
	dispatch := func(end int, complete bool) {
		if pending {
			t.Events = append(t.Events, Event{Data: string(data), Name: string(name), End: where[end-1] + 1, complete: complete})
		}
		data, name, pending = nil, nil, false
	}
	for _, l := range lines(body[bom:]) {
		l.end += bom
		if len(l.text) == 0 && l.complete {
			dispatch(l.end, true)
			continue
		}
		if l.text[0] == ':' {
			continue
		}
		field, value, _ := bytes.Cut(l.text, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if pending {
				data = append(data, '\n')
			}
			data = append(data, value...)
			pending = true
		case "event":
			name = value
		case "id", "retry":
		default:
			stray++
		}
	}
	dispatch(len(body), false)
	for i := range t.Events {
		if !t.event(&t.Events[i]) {
			t.Events = t.Events[:i+1]
			break
		}
	}
	if stray > 0 && t.texts() == 0 && t.Broken == "" {
		t.Broken = "not an event stream"
	}
}

func (t *Truth) texts() (n int) {
	for _, e := range t.Events {
		if e.Text {
			n++
		}
	}
	return n
}

// event reads what one event says; false where nothing behind it is to be
// believed.
func (t *Truth) event(e *Event) bool {
	trimmed := strings.Trim(e.Data, " \t\r\n")
	switch {
	case trimmed == "[DONE]":
		e.Done, t.Done = true, true
		return true
	case trimmed == "":
		return true
	case t.Done:
		return false
	}
	var object map[string]any
	if !utf8.ValidString(e.Data) || json.Unmarshal([]byte(e.Data), &object) != nil || object == nil {
		switch {
		case !e.complete: // the end of the stream cut it off
			return true
		case e.Name == "error":
			t.Failed = true
		default:
			t.Broken = "an event that is not a JSON object"
		}
		return false
	}
	t.object(e, object)
	if e.Name == "error" {
		t.Failed = true
	}
	return !t.Failed
}

// object reads one chunk, or a whole answer.
func (t *Truth) object(e *Event, object map[string]any) {
	text := func(v any, into *string, content bool) {
		if s, ok := v.(string); ok && s != "" {
			*into += s
			e.Text = true
			e.Content = e.Content || content
		}
	}
	if object["error"] != nil || object["object"] == "error" {
		t.Failed = true
	}
	text(object["content"], &t.Text, true)
	choices, _ := object["choices"].([]any)
	for _, c := range choices {
		choice, _ := c.(map[string]any)
		if s, ok := choice["finish_reason"].(string); ok && s != "" {
			t.Finish = s
		}
		text(choice["text"], &t.Text, true)
		for _, key := range []string{"delta", "message"} {
			part, _ := choice[key].(map[string]any)
			text(part["content"], &t.Text, true)
			text(part["refusal"], &t.Text, true)
			text(part["reasoning"], &t.Thoughts, false)
			text(part["reasoning_content"], &t.Thoughts, false)
			calls, _ := part["tool_calls"].([]any)
			for _, call := range calls {
				function, _ := call.(map[string]any)
				f, _ := function["function"].(map[string]any)
				text(f["arguments"], &t.Text, true)
			}
		}
	}
	if usage, ok := object["usage"].(map[string]any); ok {
		count := func(key string) *int {
			n, ok := usage[key].(float64)
			if !ok {
				return nil
			}
			v := int(n)
			return &v
		}
		e.Usage = true
		t.Prompt, t.Output = count("prompt_tokens"), count("completion_tokens")
	}
}

func (t *Truth) document(body []byte, where []int) {
	if !t.Complete {
		return
	}
	var object map[string]any
	if !utf8.Valid(body) || json.Unmarshal(body, &object) != nil || object == nil {
		t.Broken = "not a JSON object"
		return
	}
	e := Event{Data: string(body), End: where[len(where)-1] + 1, complete: true}
	t.object(&e, object)
	t.Events = []Event{e}
}

// Outcome is the class of the answer to a request for planned output tokens that
// ignores the end of the text; planned < 0 where the length is free. It is for
// answers that the server ended: no time limits and no cancelling.
func (t Truth) Outcome(planned int) result.Outcome {
	switch {
	case t.Status == 0 && strings.HasPrefix(t.Broken, "no whole head"):
		return result.OutcomeTruncatedStream
	case t.Status == 0:
		return result.OutcomeBadPayload
	case t.Status == 429:
		return result.OutcomeHTTP429
	case t.Status >= 500:
		return result.OutcomeHTTP5xx
	case t.Status >= 400:
		return result.OutcomeHTTP4xx
	case t.Status != 200:
		return result.OutcomeBadPayload
	case t.Failed:
		return result.OutcomeStreamError
	case t.Broken != "":
		return result.OutcomeBadPayload
	case t.Finish == "abort" || t.Finish == "error":
		return result.OutcomeStreamError
	case t.Stream && !t.Done && t.Finish == "":
		if t.Complete && len(t.Events) == 0 {
			return result.OutcomeNoOutput
		}
		return result.OutcomeTruncatedStream
	case !t.Stream && !t.Complete:
		return result.OutcomeTruncatedStream
	case t.texts() == 0:
		return result.OutcomeNoOutput
	case planned >= 0 && t.Output != nil && *t.Output != planned:
		return result.OutcomeLengthMismatch
	}
	return result.OutcomeOK
}

// Times is when what came, after the request was read whole; nil where it never
// did. An event comes with the segment that ends it.
type Times struct {
	Head, Chunk1, Tok1, Content1, TokN, Usage, Done *time.Duration
	Texts                                           []time.Duration // of every event with text
}

// Times are exact but for what the machine adds.
func (t Truth) Times(s Script) Times {
	at := func(end int) *time.Duration {
		for _, seg := range s.Segments {
			if end -= len(seg.Bytes); end <= 0 {
				v := seg.At
				return &v
			}
		}
		return nil
	}
	var out Times
	if t.Head > 0 {
		out.Head = at(t.Head)
	}
	for _, e := range t.Events {
		when := at(e.End)
		if out.Chunk1 == nil {
			out.Chunk1 = when
		}
		if e.Text {
			if out.Tok1 == nil {
				out.Tok1 = when
			}
			out.TokN = when
			out.Texts = append(out.Texts, *when)
		}
		if e.Content && out.Content1 == nil {
			out.Content1 = when
		}
		if e.Usage {
			out.Usage = when
		}
		if e.Done && out.Done == nil {
			out.Done = when
		}
	}
	return out
}

// ReadEvents reads the body of an event stream alone; offsets are in it.
func ReadEvents(body []byte) Truth {
	where := make([]int, len(body))
	for i := range where {
		where[i] = i
	}
	t := Truth{Status: 200, Stream: true, Complete: true}
	t.events(body, where)
	return t
}

// Complete says whether the event was ended by its blank line.
func (e Event) Complete() bool { return e.complete }

// Body is an answer's body without its framing.
func Body(answer []byte) []byte {
	head, found := headLength(answer)
	if !found {
		return nil
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(answer[:head])) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.ToLower(name)] = strings.TrimSpace(value)
		}
	}
	body, _, _, _ := deframe(answer[head:], fields)
	return body
}
