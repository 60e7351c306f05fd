package loadgen

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/workload"
)

// uncounted streams those events, without a usage, and counts words at /tokenize,
// with one token before them.
func uncounted(events ...string) script {
	return func(c net.Conn, r *http.Request, b []byte) bool {
		switch r.URL.Path {
		case "/tokenize":
			var body struct{ Content string }
			if json.Unmarshal(b, &body) != nil {
				return false
			}
			text := fmt.Sprintf(`{"count":%d}`, 1+len(strings.Fields(body.Content)))
			_, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
			return err == nil
		case "/v1/completions":
		default:
			return reply500("404 Not Found")(c, r, b)
		}
		if _, err := io.WriteString(c, streamHead); err != nil {
			return false
		}
		for _, e := range events {
			if !chunked(c, e) {
				return false
			}
		}
		return chunked(c, "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n") && chunked(c, "")
	}
}

// A server that does not say how many tokens it generated is asked to count the
// text; what is not all in the text stays unknown, and no chunk is a token.
func TestRun_CountsWithTheTokenizer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []string
		tokens int32 // 0: unknown
		each   bool  // every event's tokens are known
	}{
		"a token an event":       {[]string{textEvent(" a"), textEvent(" b"), textEvent(" c")}, 3, true},
		"several tokens a event": {[]string{textEvent(" a b"), textEvent(" c")}, 3, false},
		"one event":              {[]string{textEvent(" a b c d")}, 4, true},
		"reasoning":              {[]string{"data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm\"}}]}\n\n", textEvent(" a")}, 0, false},
		"a tool call":            {[]string{"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{}\"}}]}}]}\n\n"}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "tcp", uncounted(c.events...))
			w := load(40, 0.3, 3)
			plan, err := workload.New(w, 0, workload.Options{})
			if err != nil {
				t.Fatal(err)
			}
			config := Config{Target: s.target, Request: w.Request, Plan: plan}
			if config.Served, err = Probe(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			if !config.Served.Tokenizer || config.Served.TokenizerBase != 1 || config.Served.Usage {
				t.Fatalf("%+v", config.Served)
			}
			rec, err := Run(t.Context(), config, NewClock())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rec.Requests {
				if r.Phase != result.PhaseMeasure {
					continue
				}
				switch {
				case r.Outcome != result.OutcomeOK:
					t.Errorf("%s: %s", r.Outcome, r.Detail)
				case c.tokens == 0 && (r.OutputTokens != nil || r.TokenSource != "none"):
					t.Errorf("%d tokens by %s", *r.OutputTokens, r.TokenSource)
				case c.tokens > 0 && (r.OutputTokens == nil || *r.OutputTokens != c.tokens || r.TokenSource != "tokenizer"):
					t.Errorf("%v tokens by %s, want %d", r.OutputTokens, r.TokenSource, c.tokens)
				case c.each != (len(r.EventTokens) == len(c.events)):
					t.Errorf("tokens of the events: %v", r.EventTokens)
				}
			}
			m := metrics.Compute(rec.Requests, rec.Windows[0], nil).Metrics
			if (m["output_tokens_per_s"] != nil) != (c.tokens > 0) || (m["tpot_mean"] != nil) != (c.each && len(c.events) > 1) {
				t.Errorf("throughput %v, time per token %v", m["output_tokens_per_s"], m["tpot_mean"])
			}
		})
	}
}
