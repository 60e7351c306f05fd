package playback

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"sbench/internal/result"
)

// Case is an answer with what a client must make of it, written down by hand.
type Case struct {
	Script
	Planned int // output tokens asked for; -1: free
	Outcome result.Outcome
	Text    string // generated, not reasoning
	Texts   int    // events with text of any kind
	Output  int    // tokens by the server's count; -1: it does not say
}

const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	plainHead  = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" // until the end of the connection
)

// chunked frames each part as one HTTP chunk and ends the body.
func chunked(parts ...string) string { return open(parts...) + "0\r\n\r\n" }

// open is chunked without the end.
func open(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String()
}

func text(s string) string {
	return `data: {"choices":[{"index":0,"text":` + strconv.Quote(s) + `,"finish_reason":null}]}` + "\n\n"
}

func delta(fields string) string {
	return `data: {"choices":[{"index":0,"delta":{` + fields + `},"finish_reason":null}]}` + "\n\n"
}

const (
	finish = `data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}` + "\n\n"
	done   = "data: [DONE]\n\n"
)

func usage(prompt, output int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`+"\n\n", prompt, output, prompt+output)
}

func document(status, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

// Cases are the shapes that clients get wrong. Each answer is small, so that it
// can be cut at every byte.
func Cases() []Case {
	const ok = result.OutcomeOK
	var all []Case
	add := func(name, response string, ending Ending, c Case) {
		c.Script = Whole(name, []byte(response), ending)
		all = append(all, c)
	}
	addFraming(add, ok)
	addShapes(add, ok)
	addFailures(add)
	return all
}

type adder func(name, response string, ending Ending, c Case)

func addFraming(add adder, ok result.Outcome) {
	plain := text("a") + text(" b") + finish + usage(3, 2) + done
	two := Case{Planned: 2, Outcome: ok, Text: "a b", Texts: 2, Output: 2}
	crlf := strings.ReplaceAll(plain, "\n", "\r\n")
	add("an event a chunk", streamHead+chunked(text("a"), text(" b"), finish, usage(3, 2), done), KeepOpen, two)
	add("one chunk", streamHead+chunked(plain), KeepOpen, two)
	add("chunks that cut events", streamHead+chunked(plain[:20], plain[20:21], plain[21:90], plain[90:]), KeepOpen, two)
	add("CRLF", streamHead+chunked(crlf), KeepOpen, two)
	add("CR", streamHead+chunked(strings.ReplaceAll(plain, "\n", "\r")), KeepOpen, two)
	add("no space behind the colon", streamHead+chunked(strings.ReplaceAll(plain, "data: ", "data:")), KeepOpen, two)
	add("byte order mark", streamHead+chunked("\xef\xbb\xbf"+plain), KeepOpen, two)
	add("comments", streamHead+chunked(":\n\n: ping\n\n", text("a"), ":\n\n", text(" b"), ": still here\n", finish, usage(3, 2), done), KeepOpen, two)
	add("other fields", streamHead+chunked("id: 7\nretry: 100\nevent: message\n"+plain), KeepOpen, two)
	add("data in several lines", streamHead+chunked("data: {\"choices\":[{\"index\":0,\ndata: \"text\":\"a\"}]}\n\n", text(" b"), finish, usage(3, 2), done), KeepOpen, two)
	add("empty events", streamHead+chunked("data\n\ndata:\n\n", plain), KeepOpen, two)
	add("no blank line at the end", streamHead+chunked(strings.TrimSuffix(plain, "\n")), KeepOpen, two)
	add("chunk extension and trailer", streamHead+fmt.Sprintf("%X;name=\"a;b\"\r\n%s\r\n000\r\nChecksum: 1\r\n\r\n", len(plain), plain), KeepOpen, two)
	add("lower-case head, LF alone", "HTTP/1.1 200 OK\ncontent-type: text/event-stream; charset=utf-8\ncontent-length: "+strconv.Itoa(len(plain))+"\n\n"+plain, KeepOpen, two)
	add("until the connection ends", plainHead+plain, Close, two)
	add("100 Continue before", "HTTP/1.1 100 Continue\r\n\r\n"+streamHead+chunked(plain), KeepOpen, two)
	add("no [DONE]", streamHead+chunked(text("a"), text(" b"), finish, usage(3, 2)), KeepOpen, two)
	add("cut off behind [DONE]", streamHead+open(plain), Close, two)
}

func addShapes(add adder, ok result.Outcome) {
	add("characters of several bytes", streamHead+chunked(text("größe")+text(" 世界")+text("🚀")+finish+usage(1, 3)+done), KeepOpen,
		Case{Planned: 3, Outcome: ok, Text: "größe 世界🚀", Texts: 3, Output: 3})
	add("escapes", streamHead+chunked(`data: {"choices":[{"text":"\u00e9\ud83d\ude80\n\"\\\/"}]}`+"\n\n"+finish+usage(1, 1)+done), KeepOpen,
		Case{Planned: 1, Outcome: ok, Text: "é🚀\n\"\\/", Texts: 1, Output: 1})
	add("chat with a role first", streamHead+chunked(delta(`"role":"assistant","content":""`), delta(`"content":"a"`), delta(``), finish, usage(5, 1), done), KeepOpen,
		Case{Planned: 1, Outcome: ok, Text: "a", Texts: 1, Output: 1})
	add("null fields", streamHead+chunked(`data: {"id":null,"choices":[{"index":0,"delta":{"role":null,"content":null,"tool_calls":null,"reasoning":null},"logprobs":null,"finish_reason":null}],"usage":null,"error":null}`+"\n\n",
		delta(`"content":"a","tool_calls":null`), finish, usage(5, 1), done), KeepOpen,
		Case{Planned: 1, Outcome: ok, Text: "a", Texts: 1, Output: 1})
	add("reasoning alone", streamHead+chunked(delta(`"reasoning_content":"hm"`), delta(`"reasoning":" so"`), finish, usage(5, 2), done), KeepOpen,
		Case{Planned: 2, Outcome: ok, Texts: 2, Output: 2})
	add("reasoning, then an answer", streamHead+chunked(delta(`"reasoning_content":"hm"`), delta(`"content":"a"`), finish, usage(5, 2), done), KeepOpen,
		Case{Planned: 2, Outcome: ok, Text: "a", Texts: 2, Output: 2})
	add("tool call", streamHead+chunked(delta(`"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"arguments":""}}]`), delta(`"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]`), finish, usage(5, 2), done), KeepOpen,
		Case{Planned: 2, Outcome: ok, Text: "{}", Texts: 1, Output: 2})
	add("refusal", streamHead+chunked(delta(`"refusal":"no"`), finish, usage(5, 1), done), KeepOpen,
		Case{Planned: 1, Outcome: ok, Text: "no", Texts: 1, Output: 1})
	add("several tokens an event", streamHead+chunked(text("a b c")+text(" d e")+finish+usage(1, 5)+done), KeepOpen,
		Case{Planned: 5, Outcome: ok, Text: "a b c d e", Texts: 2, Output: 5})
	add("usage in the last event with text", streamHead+chunked(`data: {"choices":[{"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":4,"completion_tokens":1}}`+"\n\n", done), KeepOpen,
		Case{Planned: 1, Outcome: ok, Text: "a", Texts: 1, Output: 1})
	add("usage in every event", streamHead+chunked(strings.Replace(text("a"), "]}", `],"usage":{"prompt_tokens":4,"completion_tokens":1}}`, 1), strings.Replace(text("b"), "]}", `],"usage":{"prompt_tokens":4,"completion_tokens":2}}`, 1), finish, done), KeepOpen,
		Case{Planned: 2, Outcome: ok, Text: "ab", Texts: 2, Output: 2})
	add("usage null at last", streamHead+chunked(text("a"), usage(1, 1), `data: {"choices":[{"text":"","finish_reason":"stop"}],"usage":null}`+"\n\n", done), KeepOpen,
		Case{Planned: 1, Outcome: ok, Text: "a", Texts: 1, Output: 1})
	add("no usage", streamHead+chunked(text("a"), finish, done), KeepOpen, Case{Planned: 1, Outcome: ok, Text: "a", Texts: 1, Output: -1})
	add("another length", streamHead+chunked(text("a"), finish, usage(1, 1), done), KeepOpen,
		Case{Planned: 2, Outcome: result.OutcomeLengthMismatch, Text: "a", Texts: 1, Output: 1})
	add("not streamed", document("200 OK", `{"choices":[{"index":0,"text":"a b","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`), KeepOpen,
		Case{Planned: 2, Outcome: ok, Text: "a b", Texts: 1, Output: 2})
	add("no text", streamHead+chunked(finish, usage(1, 0), done), KeepOpen, Case{Planned: -1, Outcome: result.OutcomeNoOutput, Output: 0})
	add("no event", streamHead+chunked(), KeepOpen, Case{Planned: -1, Outcome: result.OutcomeNoOutput, Output: -1})
}

func addFailures(add adder) {
	broken := Case{Planned: -1, Outcome: result.OutcomeBadPayload, Output: -1}
	truncated := Case{Planned: 2, Outcome: result.OutcomeTruncatedStream, Text: "a", Texts: 1, Output: -1}
	failed := Case{Planned: 2, Outcome: result.OutcomeStreamError, Text: "a", Texts: 1, Output: -1}
	failure := `data: {"error":{"message":"out of memory","type":"server_error","code":500}}` + "\n\n"
	add("an error object inside the stream", streamHead+chunked(text("a"), failure), KeepOpen, failed)
	add("an error object, then [DONE]", streamHead+chunked(text("a"), failure, done), KeepOpen, failed)
	add("an error event", streamHead+chunked(text("a"), "event: error\ndata: \"out of memory\"\n\n"), KeepOpen, failed)
	add("the object error", streamHead+chunked(text("a"), `data: {"object":"error","message":"out of memory"}`+"\n\n"), KeepOpen, failed)
	add("an error in place of a stream", document("200 OK", `{"error":{"message":"no"}}`), KeepOpen, Case{Planned: -1, Outcome: result.OutcomeStreamError, Output: -1})
	add("finish reason abort", streamHead+chunked(text("a"), strings.Replace(finish, "length", "abort", 1), done), KeepOpen, failed)
	add("the connection ends in a chunk", streamHead+open(text("a"))+"40\r\ndata: {\"choi", Close, truncated)
	add("the connection ends between chunks", streamHead+open(text("a")), Close, truncated)
	add("the body ends without an end of the answer", streamHead+chunked(text("a")), KeepOpen, truncated)
	add("reset", streamHead+open(text("a")), Reset, truncated)
	add("shorter than its Content-Length", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"choices\":[", Close,
		Case{Planned: -1, Outcome: result.OutcomeTruncatedStream, Output: -1})
	add("nothing", "", Close, Case{Planned: -1, Outcome: result.OutcomeTruncatedStream, Output: -1})
	add("half a head", "HTTP/1.1 200 OK\r\nContent-Ty", Close, Case{Planned: -1, Outcome: result.OutcomeTruncatedStream, Output: -1})
	add("not HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", Close, broken)
	add("an HTML page", "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 20\r\n\r\n<html>sorry</html>\r\n", KeepOpen, broken)
	add("HTML in an event stream", streamHead+chunked("<html>\n<body>sorry</body>\n</html>\n"), KeepOpen, broken)
	add("not JSON", document("200 OK", `{"choices":[`), KeepOpen, broken)
	add("an event that is not JSON", streamHead+chunked("data: {\"choices\":[{\"text\":\"\n\n", done), KeepOpen, broken)
	add("a raw line break in a string", streamHead+chunked("data: {\"choices\":[{\"text\":\"a\nb\"}]}\n\n", done), KeepOpen, broken)
	add("not a chunk size", streamHead+"zz\r\n"+text("a"), KeepOpen, broken)
	add("a chunk longer than it says", streamHead+"5\r\n"+text("a")+"\r\n0\r\n\r\n", KeepOpen, broken)
	for _, c := range []struct {
		status  string
		outcome result.Outcome
	}{
		{"400 Bad Request", result.OutcomeHTTP4xx},
		{"429 Too Many Requests", result.OutcomeHTTP429},
		{"500 Internal Server Error", result.OutcomeHTTP5xx},
		{"503 Service Unavailable", result.OutcomeHTTP5xx},
	} {
		add(c.status, document(c.status, `{"error":{"message":"no"}}`), KeepOpen, Case{Planned: -1, Outcome: c.outcome, Output: -1})
	}
	add("502 with a page", "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 14\r\n\r\n<html></html>\n", KeepOpen,
		Case{Planned: -1, Outcome: result.OutcomeHTTP5xx, Output: -1})
}

// Tick is an event with text of a timed stream.
type Tick struct {
	At   time.Duration // after the request was read
	Text string        // one token of ASCII letters and spaces
}

// Timed is a stream whose events come at stated times, an event a write; the last
// write also carries the finish, the usage and [DONE].
func Timed(name string, prompt int, ticks []Tick) Script {
	s := Script{Name: name}
	for i, tick := range ticks {
		part := open(text(tick.Text))
		if i == 0 {
			part = streamHead + part
		}
		if i == len(ticks)-1 {
			part += chunked(finish + usage(prompt, len(ticks)) + done)
		}
		s.Segments = append(s.Segments, Segment{tick.At, []byte(part)})
	}
	return s
}
