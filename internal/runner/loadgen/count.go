package loadgen

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sbench/internal/result"
	"sbench/internal/sse"
)

// Output tokens come from the server's usage. Where an answer has none, the
// server's own tokenizer is asked, when the load is over: METRICS v1. It counts the
// text, which may differ by a token or two from what was generated.

const (
	countingTime = 2 * time.Minute // for all answers together; what is left stays unknown
	counters     = 8
)

// untold is the text of an answer in full whose tokens the server did not count; ""
// where the row needs none, or the text is not all that was generated.
func (d *decoder) untold(x *exchange, r *result.Request) string {
	if !d.tokenizer || r.OutputTokens != nil || r.Outcome != result.OutcomeOK {
		return ""
	}
	d.body = x.body(d.body[:0])
	var text []byte
	parser := sse.Parser{Answer: &text}
	var c sse.Chunk
	whole := true
	take := func() {
		// Reasoning and the arguments of tool calls are generated, and not in the text.
		whole = whole && !c.Reasoning && (!c.Content || len(text) > 0)
	}
	if !x.reply.stream {
		if parser.Parse(d.body, &c) {
			take()
		}
		return textIf(whole, text)
	}
	var split sse.Splitter
	for rest := d.body; ; {
		ev, more, ok, err := split.Next(rest)
		if !ok || err != nil {
			return textIf(whole, text)
		}
		rest = more
		before := len(text)
		if parser.Parse(ev.Data, &c) {
			take()
			whole = whole && (!c.Content || len(text) > before)
		}
	}
}

func textIf(whole bool, text []byte) string {
	if !whole {
		return ""
	}
	return string(text)
}

// countUntold asks the server's tokenizer for the tokens of the texts, and notes
// them in the rows of the same index.
func (r *runner) countUntold(ctx context.Context, rows []result.Request, texts []string) {
	ctx, cancel := context.WithTimeout(ctx, countingTime)
	defer cancel()
	p := newProber(r.cfg)
	p.client.Transport = &http.Transport{
		Proxy: nil, TLSClientConfig: r.cfg.Target.TLS, DialContext: p.dial, MaxIdleConnsPerHost: counters,
	}
	defer p.client.CloseIdleConnections()
	var next atomic.Int64
	var work sync.WaitGroup
	for range counters {
		work.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(texts)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if texts[i] == "" {
					continue
				}
				n, err := p.byTokenizer(ctx, texts[i])
				if n -= r.cfg.Served.TokenizerBase; err == nil && n > 0 {
					countRow(&rows[i], int32(n))
				}
			}
		})
	}
	work.Wait()
}

// countRow notes the tokens of an answer, and of its events where each carries one.
func countRow(row *result.Request, n int32) {
	row.OutputTokens, row.TokenSource = &n, "tokenizer"
	switch events := len(row.EventTimes); {
	case events == int(n):
		row.EventTokens = make([]int32, events)
		for i := range row.EventTokens {
			row.EventTokens[i] = 1
		}
	case events == 1:
		row.EventTokens = []int32{n}
	default:
		return
	}
	first := row.EventTokens[0]
	row.TokensFirst = &first
}
