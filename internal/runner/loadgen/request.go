package loadgen

import (
	"encoding/json"
	"strconv"

	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// renderer writes requests. It is safe for concurrent use once made: what varies
// is in the arguments.
type renderer struct {
	prompts *workload.Prompter
	chat    bool
	head    []byte // request line and headers, up to the value of X-Request-Id
	id      string // of the plan, in that value
	open    []byte // JSON up to the prompt or the messages
	tail    []byte // JSON from behind max_tokens' value
}

// message is one earlier turn of a session, its text escaped for JSON.
type message struct {
	role string
	text []byte
}

func newRenderer(c Config, prompts *workload.Prompter) (*renderer, error) {
	r := &renderer{prompts: prompts, chat: c.Request.Endpoint == setting.EndpointChat}
	path, open := "/v1/completions", ""
	if r.chat {
		path = "/v1/chat/completions"
	}
	r.head = requestHead(c.Target, "POST", path)
	if c.Model != "" {
		model, err := json.Marshal(c.Model)
		if err != nil {
			return nil, err
		}
		open = `"model":` + string(model) + `,`
	}
	r.open = []byte(`{` + open)
	if c.Plan != nil {
		r.id = c.Plan.Hash[:8]
	}
	tail := `,"temperature":` + number(c.Request.Temperature) + `,"top_p":` + number(c.Request.TopP) + `,"stream":` + strconv.FormatBool(c.Request.Stream)
	if c.Request.Stream && c.Served.UsageStream {
		tail += `,"stream_options":{"include_usage":true`
		if c.Served.UsageEvents {
			tail += `,"continuous_usage_stats":true`
		}
		tail += `}`
	}
	if c.Request.IgnoreEOS {
		tail += `,"ignore_eos":true`
	}
	r.tail = []byte(tail + `}`)
	return r, nil
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// requestHead is the start of a request, up to the value of X-Request-Id.
func requestHead(t Target, method, path string) []byte {
	head := method + " " + t.Base + path + " HTTP/1.1\r\nHost: " + t.Host +
		"\r\nUser-Agent: sbench\r\nAccept: text/event-stream, application/json\r\nContent-Type: application/json\r\n"
	if t.Authorization != "" {
		head += "Authorization: " + t.Authorization + "\r\n"
	}
	return []byte(head + "X-Request-Id: ")
}

// maxLengthDigits is the room for the body's length in front of the body.
const maxLengthDigits = 12

// render writes the whole request into buf, whose capacity is used again.
func (r *renderer) render(buf []byte, req *workload.Request, history []message) []byte {
	buf = append(append(append(buf[:0], r.head...), r.id...), '-')
	if req.Phase == result.PhaseWarmup {
		buf = append(buf, 'w')
	}
	buf = strconv.AppendInt(buf, int64(req.Session), 10)
	buf = strconv.AppendInt(append(buf, '.'), int64(req.Turn), 10)
	buf = append(buf, "\r\nContent-Length: "...)
	// The body's length is only known behind it: leave room and pad with spaces,
	// which a header value may begin with.
	at := len(buf)
	buf = append(buf, "            \r\n\r\n"...)
	from := len(buf)
	buf = append(buf, r.open...)
	if r.chat {
		buf = append(buf, `"messages":[`...)
		for _, m := range history {
			buf = append(append(append(buf, `{"role":"`...), m.role...), `","content":"`...)
			buf = append(append(buf, m.text...), `"},`...)
		}
		buf = append(buf, `{"role":"user","content":"`...)
		buf = append(r.prompts.Append(buf, req), `"}]`...)
	} else {
		buf = append(buf, `"prompt":"`...)
		for _, m := range history {
			buf = append(append(buf, m.text...), `\n`...)
		}
		buf = append(r.prompts.Append(buf, req), '"')
	}
	buf = append(buf, `,"max_tokens":`...)
	buf = strconv.AppendInt(buf, int64(req.Output), 10)
	buf = append(buf, r.tail...)
	var digits [maxLengthDigits]byte
	length := strconv.AppendInt(digits[:0], int64(len(buf)-from), 10)
	copy(buf[at+maxLengthDigits-len(length):], length)
	return buf
}
