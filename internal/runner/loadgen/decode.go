package loadgen

import (
	"fmt"
	"strings"

	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/sse"
)

// decoder turns exchanges into rows. It is used when the load is over (or when
// memory runs short), by one goroutine at a time.
type decoder struct {
	request setting.Request
	body    []byte
	events  []event
	parser  sse.Parser
	content bool // the last event had text that is not reasoning
	// tokenizer says that the server counts tokens of texts: those without a count
	// are wanted.
	tokenizer bool
}

// answer is what the body of an answer says.
type answer struct {
	events    []event
	chunk1    int64
	content1  int64
	usageAt   int64
	doneAt    int64
	usage     sse.Usage
	hasUsage  bool
	finish    string
	failure   string // an error that the server reported
	failed    bool
	malformed string // why the body is not what it should be
	warnings  []string
	wholeAt   int64 // an answer in one piece: when it was complete
	whole     bool
}

// event is one event with text. before counts the empty events in front of it
// that may have carried a token each.
type event struct {
	t      int64
	bytes  int32
	before int32
	total  int32 // completion tokens that the server counted up to it, -1 if it did not say
}

// row decodes an exchange.
func (d *decoder) row(x *exchange) result.Request {
	r := result.Request{
		Window: x.window, Phase: x.phase, Session: x.req.Session, Turn: x.req.Turn, Group: x.req.Group,
		Index: x.req.Index, ReusedConn: x.reused, Resent: x.resent, Held: x.held,
		TIntended: x.due, TDispatch: known(x.dispatch), TConn: known(x.conn), TWritten: known(x.written),
		THeaders: known(x.headers), TByte1: known(x.byte1), TEnd: known(x.end),
		HTTPStatus: int32(x.reply.status), InputPlanned: x.req.Input, OutputPlanned: x.req.Output,
		TokenSource: "none", Bytes: int64(x.size),
	}
	var a answer
	if x.reply.status == 200 {
		a = d.answer(x)
		d.events = a.events
		a.fill(&r)
	}
	r.Outcome, r.Detail = d.outcome(x, &a, &r)
	if x.resent {
		a.warnings = append(a.warnings, "written again: an idle connection had been closed")
	}
	if len(a.warnings) > 0 {
		r.Detail = strings.TrimPrefix(r.Detail+"; "+strings.Join(a.warnings, "; "), "; ")
	}
	return r
}

// known is a time, or nil for one that never came.
func known(t int64) *int64 {
	if t == 0 {
		return nil
	}
	return &t
}

// answer reads the body of a 200, whole or not.
func (d *decoder) answer(x *exchange) answer {
	a := answer{events: d.events[:0], usage: sse.Usage{Prompt: -1, Completion: -1, Cached: -1, Reasoning: -1}}
	switch {
	case x.reply.encoded:
		a.malformed = "the body is compressed, which was not asked for"
	case x.reply.stream:
		d.stream(x, &a)
		return a
	}
	d.body = x.body(d.body[:0])
	switch {
	case a.malformed != "":
	case equalFold(x.reply.mediaType, "application/json") || startsWithBrace(d.body):
		d.document(x, &a)
	case len(d.body) > 0:
		a.malformed = fmt.Sprintf("%s instead of an event stream: %s", orNothing(x.reply.mediaType), excerpt(d.body))
	}
	return a
}

func startsWithBrace(body []byte) bool {
	for _, b := range body {
		switch b {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return b == '{'
	}
	return false
}

func orNothing(mediaType []byte) string {
	if len(mediaType) == 0 {
		return "a body without a type"
	}
	return string(mediaType)
}

const excerptBytes = 1000

// excerpt is the beginning of a body, as a person can read it in one line.
func excerpt(body []byte) string {
	if len(body) > excerptBytes {
		return fmt.Sprintf("%q…", body[:excerptBytes])
	}
	return fmt.Sprintf("%q", body)
}

// document reads an answer in one piece.
func (d *decoder) document(x *exchange, a *answer) {
	if x.ending != endingComplete {
		return // not whole: nothing to read
	}
	var c sse.Chunk
	if !d.parser.Parse(d.body, &c) || c.Done {
		a.malformed = "not a JSON object: " + excerpt(d.body)
		return
	}
	a.take(&c, x.last)
	a.whole = true
	if c.Text() {
		a.wholeAt = x.last
	}
}

// stream reads the events.
func (d *decoder) stream(x *exchange, a *answer) {
	var split sse.Splitter
	clock := clockOf(x)
	var empty int32
	body := x.unpack()
	var known familiar
	for {
		record, ok := body.next()
		if !ok {
			break
		}
		if record.literal == nil && split.Between() && a.doneAt == 0 {
			if n := known.event(record, len(body.like)); n > 0 {
				split.Skip(n)
				a.text(event{t: clock.at(split.Offset()), bytes: int32(n - eventFrame), total: -1}, known.content, &empty)
				continue
			}
		}
		between := split.Between()
		d.body = body.bytes(d.body[:0], record)
		events := len(a.events)
		for rest := d.body; ; {
			ev, more, ok, err := split.Next(rest)
			if err != nil {
				a.malformed = err.Error()
				return
			}
			if !ok {
				break
			}
			rest = more
			if !d.event(&ev, a, clock.at(ev.End), &empty) {
				return
			}
		}
		if isPattern(record.literal) {
			known = familiar{}
			if between && split.Between() && len(a.events) == events+1 {
				known = d.familiar(record.literal)
			}
		}
	}
	switch x.ending {
	case endingComplete, endingEOF, endingReset:
		ev, ok, err := split.End()
		switch {
		case err != nil:
			a.malformed = err.Error()
			return
		case ok:
			// An event that the stream's end cut off counts if it is whole JSON.
			var c sse.Chunk
			if d.parser.Parse(ev.Data, &c) {
				a.warnings = append(a.warnings, "the last event lacks its blank line")
				d.event(&ev, a, clock.at(ev.End), &empty)
			}
		}
	default: // it might have gone on
	}
	if split.Stray > 0 && len(a.events) == 0 {
		a.malformed = "not an event stream: " + excerpt(x.begin(nil, excerptBytes+1))
	} else if split.Stray > 0 {
		a.warnings = append(a.warnings, fmt.Sprintf("%d lines that are no field", split.Stray))
	}
}

// event takes one event; it returns false when the stream is not to be believed
// beyond it.
func (d *decoder) event(ev *sse.Event, a *answer, t int64, empty *int32) bool {
	if a.chunk1 == 0 {
		a.chunk1 = t
	}
	var c sse.Chunk
	if !d.parser.Parse(ev.Data, &c) {
		if string(ev.Name) == "error" {
			a.failed, a.failure = true, excerpt(ev.Data)
			return false
		}
		if len(ev.Data) == 0 {
			return true // an event that says nothing
		}
		a.malformed = "an event that is not a JSON object: " + excerpt(ev.Data)
		return false
	}
	if c.Done {
		if a.doneAt == 0 {
			a.doneAt = t
		}
		return true
	}
	if a.doneAt != 0 {
		a.warnings = append(a.warnings, "an event behind [DONE]")
		return false
	}
	if string(ev.Name) == "error" {
		c.Error = true
	}
	a.take(&c, t)
	if c.Error {
		return false
	}
	switch {
	case c.Text():
		e := event{t: t, bytes: int32(len(ev.Data)), total: -1}
		if c.HasUsage {
			e.total = int32(c.Usage.Completion)
		}
		d.content = c.Content
		a.text(e, c.Content, empty)
	case c.Choices && !c.Role && c.Finish == "":
		*empty++
	}
	return true
}

// text notes an event with text.
func (a *answer) text(e event, content bool, empty *int32) {
	if a.chunk1 == 0 {
		a.chunk1 = e.t
	}
	if content && a.content1 == 0 {
		a.content1 = e.t
	}
	e.before, *empty = *empty, 0
	a.events = append(a.events, e)
}

// take notes what a chunk says beside its text.
func (a *answer) take(c *sse.Chunk, t int64) {
	if c.HasUsage {
		a.usage, a.hasUsage, a.usageAt = c.Usage, true, t
	}
	if c.Finish != "" {
		a.finish = c.Finish
	}
	if c.Error {
		a.failed, a.failure = true, c.Message
	}
}

// fill writes what the answer says into the row.
func (a *answer) fill(r *result.Request) {
	r.TChunk1, r.TUsage, r.TDone, r.TContent1 = known(a.chunk1), known(a.usageAt), known(a.doneAt), known(a.content1)
	r.FinishReason = a.finish
	if a.wholeAt != 0 {
		r.TTokN = known(a.wholeAt)
	}
	if n := len(a.events); n > 0 {
		r.TTok1, r.TTokN = known(a.events[0].t), known(a.events[n-1].t)
		r.EventTimes, r.EventBytes = make([]int64, n), make([]int32, n)
		for i, e := range a.events {
			r.EventTimes[i], r.EventBytes[i] = e.t, e.bytes
		}
	}
	if !a.hasUsage {
		return
	}
	r.InputTokens, r.CachedTokens, r.ReasoningTokens = tokens(a.usage.Prompt), tokens(a.usage.Cached), tokens(a.usage.Reasoning)
	if r.OutputTokens = tokens(a.usage.Completion); r.OutputTokens != nil {
		r.TokenSource = "usage"
		if r.EventTokens = a.perEvent(*r.OutputTokens); r.EventTokens != nil {
			first := r.EventTokens[0]
			r.TokensFirst = &first
		}
	}
}

func tokens(n int) *int32 {
	if n < 0 {
		return nil
	}
	v := int32(n)
	return &v
}

// perEvent is the number of tokens of each event with text, or nil where it
// cannot be told. It can where the server counts along, and where there are as
// many events as tokens: each then carries one, and an empty one (of an
// incomplete character) belongs to the next with text.
func (a *answer) perEvent(n int32) []int32 {
	if len(a.events) == 0 {
		return nil
	}
	counts := make([]int32, len(a.events))
	var before, carried int32
	counted := true
	for i, e := range a.events {
		counts[i] = e.total - before
		counted = counted && e.total >= before
		before = e.total
		carried += 1 + e.before
	}
	if counted {
		return counts
	}
	// The token that ended the answer may have had no event with text of its own.
	ended := n - 1
	switch {
	case int(n) == len(a.events), int(ended) == len(a.events) && a.finish == "stop":
		for i := range counts {
			counts[i] = 1
		}
	case n == carried, ended == carried && a.finish == "stop":
		for i, e := range a.events {
			counts[i] = 1 + e.before
		}
	case len(a.events) == 1:
		counts[0] = n
	default:
		return nil
	}
	return counts
}

// arrivals tells when the byte at an offset of the body came in. Offsets must not
// go back.
type arrivals struct {
	m *markBlock
	i int
	t int64
}

func clockOf(x *exchange) *arrivals { return &arrivals{m: x.firstMark} }

func (a *arrivals) at(end int64) int64 {
	for a.m != nil {
		if a.i == a.m.n {
			a.m, a.i = a.m.next, 0
			continue
		}
		a.t = a.m.marks[a.i].t
		if int64(a.m.marks[a.i].size) >= end {
			break
		}
		a.i++
	}
	return a.t
}
