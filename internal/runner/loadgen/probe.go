package loadgen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"sbench/internal/setting"
	"sbench/internal/sse"
	"sbench/internal/workload"
)

// probeTimeout bounds one of the probe's requests.
const probeTimeout = 2 * time.Minute

// prober asks the server, one request at a time.
type prober struct {
	cfg    Config
	client *http.Client
	base   string
	model  string
}

func newProber(c Config) *prober {
	// No proxy: the server that is measured is the one that is named.
	scheme := "http"
	if c.Target.Network == "tls" {
		scheme = "https"
	}
	host := c.Target.Address
	if c.Target.Network == "unix" {
		host = "localhost"
	}
	p := &prober{cfg: c, base: scheme + "://" + host + c.Target.Base, model: c.Model}
	p.client = &http.Client{
		Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true, TLSClientConfig: c.Target.TLS, DialContext: p.dial},
		Timeout:   probeTimeout,
	}
	return p
}

// dial connects to the target, by whatever network that is.
func (p *prober) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	if p.cfg.Target.Network == "unix" {
		network, address = "unix", p.cfg.Target.Address
	}
	return d.DialContext(ctx, network, address)
}

// refusal is an answer that is not a 200.
type refusal struct {
	status int
	body   []byte
}

func (r *refusal) Error() string { return fmt.Sprintf("HTTP %d: %s", r.status, excerpt(r.body)) }

// Refused is the status of a server that answered the probe with an error; 0 where
// err is of another kind.
func Refused(err error) int {
	var r *refusal
	if errors.As(err, &r) {
		return r.status
	}
	return 0
}

// ask sends one request and returns the body of its answer.
func (p *prober) ask(ctx context.Context, method, path string, body any) ([]byte, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, in)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Host = p.cfg.Target.Host
	if a := p.cfg.Target.Authorization; a != "" {
		req.Header.Set("Authorization", a)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	const most = 64 << 20
	b, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &refusal{resp.StatusCode, b}
	}
	return b, nil
}

func probe(ctx context.Context, c Config) (Served, error) {
	p := newProber(c)
	defer p.client.CloseIdleConnections()
	served := Served{TokenSource: "none"}
	if p.model == "" {
		p.model = p.firstModel(ctx)
	}
	served.Model = p.model
	if err := p.usage(ctx, &served); err != nil {
		return Served{}, fmt.Errorf("probe %s: %w", c.Target.Address, err)
	}
	if c.Plan == nil || c.Plan.Workload.Prompts.Source != "file" {
		// A server whose tokens cannot be counted is served with approximate lengths:
		// the audit says so.
		p.calibrate(ctx, &served)
		if ctx.Err() != nil {
			return Served{}, fmt.Errorf("probe the tokenizer of %s: %w", c.Target.Address, ctx.Err())
		}
	}
	return served, nil
}

// firstModel is the name of the first model that the server lists, or "".
func (p *prober) firstModel(ctx context.Context) string {
	b, err := p.ask(ctx, http.MethodGet, "/v1/models", nil)
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err != nil || json.Unmarshal(b, &list) != nil || len(list.Data) == 0 {
		return ""
	}
	return list.Data[0].ID
}

// body is a request for n tokens.
func (p *prober) body(text string, n int, stream bool) (path string, body map[string]any) {
	body = map[string]any{"max_tokens": n, "temperature": p.cfg.Request.Temperature, "stream": stream}
	if p.model != "" {
		body["model"] = p.model
	}
	if p.cfg.Request.IgnoreEOS {
		body["ignore_eos"] = true
	}
	if p.cfg.Request.Endpoint == setting.EndpointChat {
		body["messages"] = []map[string]string{{"role": "user", "content": text}}
		return "/v1/chat/completions", body
	}
	body["prompt"] = text
	return "/v1/completions", body
}

// probeTokens is how many tokens the first request asks for: enough to see
// whether events hold several.
const probeTokens = 24

// usage finds out whether the server counts tokens, in streams too, and whether an
// event is a token.
func (p *prober) usage(ctx context.Context, served *Served) error {
	path, body := p.body("The", probeTokens, p.cfg.Request.Stream)
	if p.cfg.Request.Stream {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	served.UsageStream = p.cfg.Request.Stream
	answer, err := p.ask(ctx, http.MethodPost, path, body)
	var refused *refusal
	if errors.As(err, &refused) && refused.status == http.StatusBadRequest && bytes.Contains(refused.body, []byte("stream_options")) {
		served.UsageStream = false
		delete(body, "stream_options")
		answer, err = p.ask(ctx, http.MethodPost, path, body)
	}
	if errors.As(err, &refused) && refused.status == http.StatusBadRequest && bytes.Contains(refused.body, []byte("ignore_eos")) {
		return fmt.Errorf("the server refuses ignore_eos (set workload.request.ignore_eos to false): %w", err)
	}
	if err != nil {
		return err
	}
	told := readProbe(answer)
	served.Usage = told.counted
	if served.UsageStream && told.counted && told.usage.Completion > told.texts {
		body["stream_options"] = map[string]bool{"include_usage": true, "continuous_usage_stats": true}
		if answer, err := p.ask(ctx, http.MethodPost, path, body); err == nil {
			told := readProbe(answer)
			served.UsageEvents = told.texts > 0 && told.textsCounted == told.texts
		}
	}
	return ctx.Err()
}

// probeAnswer is what an answer to the probe says.
type probeAnswer struct {
	usage   sse.Usage // the last one
	counted bool      // there was one
	// texts are the events with text, textsCounted those of them with a usage.
	texts, textsCounted int
}

// readProbe reads an answer, streamed or whole.
func readProbe(answer []byte) (a probeAnswer) {
	var parser sse.Parser
	var c sse.Chunk
	take := func() {
		if c.HasUsage {
			a.usage, a.counted = c.Usage, true
		}
		if c.Text() {
			a.texts++
			if c.HasUsage {
				a.textsCounted++
			}
		}
	}
	if startsWithBrace(answer) {
		if parser.Parse(answer, &c) {
			take()
		}
		return a
	}
	var split sse.Splitter
	for {
		ev, rest, more, err := split.Next(answer)
		if !more || err != nil {
			return a
		}
		answer = rest
		if parser.Parse(ev.Data, &c) {
			take()
		}
	}
}

// counter counts the tokens of a prompt.
type counter func(ctx context.Context, text string) (int, error)

// byUsage counts by having the server answer.
func (p *prober) byUsage(ctx context.Context, text string) (int, error) {
	path, body := p.body(text, 1, false)
	answer, err := p.ask(ctx, http.MethodPost, path, body)
	if err != nil {
		return 0, err
	}
	told := readProbe(answer)
	if !told.counted || told.usage.Prompt < 0 {
		return 0, errors.New("the answer has no usage")
	}
	return told.usage.Prompt, nil
}

// byTokenizer counts with the server's tokenizer endpoint, as llama-server and
// vLLM have it.
func (p *prober) byTokenizer(ctx context.Context, text string) (int, error) {
	body := map[string]any{"content": text, "prompt": text}
	if p.model != "" {
		body["model"] = p.model
	}
	answer, err := p.ask(ctx, http.MethodPost, "/tokenize", body)
	if err != nil {
		return 0, err
	}
	var counted struct {
		Count  *int              `json:"count"`
		Tokens []json.RawMessage `json:"tokens"`
	}
	if err := json.Unmarshal(answer, &counted); err != nil {
		return 0, fmt.Errorf("answer of /tokenize: %w", err)
	}
	if counted.Count != nil {
		return *counted.Count, nil
	}
	return len(counted.Tokens), nil
}

// calibrate finds words that are one token each, and what a prompt has beyond
// them. Where the server counts nothing, lengths stay approximate.
func (p *prober) calibrate(ctx context.Context, served *Served) {
	count, source := p.byTokenizer, "tokenizer"
	if n, err := count(ctx, "the the"); err != nil || n < 2 {
		if !served.Usage {
			return
		}
		count, source = p.byUsage, "usage"
	}
	words, err := oneTokenWords(ctx, count)
	if err != nil || len(words) < 2 {
		return
	}
	if source == "tokenizer" {
		if n, err := count(ctx, words[0]); err == nil && n >= 1 {
			served.Tokenizer, served.TokenizerBase = true, n-1
		}
	}
	final := count
	if served.Usage {
		// What the server charges is what counts, the chat template included.
		final = p.byUsage
	} else if p.cfg.Request.Endpoint == setting.EndpointChat {
		return // the template's tokens cannot be known
	}
	vocabulary := workload.Vocabulary{Words: words}
	longest := p.longestPrompt()
	for i, n := range []int{1, min(8, longest), longest/2 + 1, longest} {
		got, err := final(ctx, sampleText(words, n, i))
		if err != nil {
			return
		}
		if i == 0 {
			vocabulary.Base = got - n
			if vocabulary.Base < 0 {
				return
			}
			continue
		}
		served.Verified = append(served.Verified, Verified{Planned: vocabulary.Base + n, Counted: got})
		if got != vocabulary.Base+n {
			return // words do not add up for this tokenizer
		}
	}
	served.Vocabulary, served.TokenSource = vocabulary, source
}

// longestPrompt is how many words the longest prompt is verified with: that of the
// plan, but for very long ones.
func (p *prober) longestPrompt() int {
	const most = 2000
	longest := 8
	if p.cfg.Plan != nil {
		for i := range p.cfg.Plan.Requests {
			longest = max(longest, int(p.cfg.Plan.Requests[i].Input))
		}
	}
	return min(longest, most)
}

// sampleText is n of the words, in an order of its own.
func sampleText(words []string, n, salt int) string {
	var b strings.Builder
	at := salt * 7
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		at = (at*31 + i + 17) % len(words)
		b.WriteString(words[at])
	}
	return b.String()
}

const (
	enoughWords = 64
	maxCounts   = 400 // calls that finding the words may take
)

// oneTokenWords picks the candidates that add exactly one token behind another
// word. Whole groups are counted at once: a group of n words behind a good one
// adds n tokens only if each of them adds one.
func oneTokenWords(ctx context.Context, count counter) ([]string, error) {
	candidates := unique(workload.Candidates())
	calls := 0
	tokens := func(text string) (int, error) {
		calls++
		return count(ctx, text)
	}
	// A first good word, and the tokens of a prompt that is only that word.
	first, base := "", 0
	for i, w := range candidates {
		one, err := tokens(w)
		if err != nil {
			return nil, err
		}
		many, err := tokens(strings.Repeat(w+" ", 16) + w)
		if err != nil {
			return nil, err
		}
		if many-one == 16 {
			first, base = w, one
			candidates = append(candidates[:i:i], candidates[i+1:]...)
			break
		}
		if calls >= maxCounts {
			return nil, nil
		}
	}
	if first == "" {
		return nil, nil
	}
	good := []string{first}
	var search func(group []string) error
	search = func(group []string) error {
		if len(group) == 0 || len(good) >= enoughWords || calls >= maxCounts {
			return nil
		}
		n, err := tokens(first + " " + strings.Join(group, " "))
		if err != nil {
			return err
		}
		if n == base+len(group) {
			good = append(good, group...)
			return nil
		}
		if len(group) == 1 {
			return nil
		}
		half := len(group) / 2
		if err := search(group[:half]); err != nil {
			return err
		}
		return search(group[half:])
	}
	for len(candidates) > 0 && len(good) < enoughWords && calls < maxCounts {
		n := min(32, len(candidates))
		if err := search(candidates[:n]); err != nil {
			return nil, err
		}
		candidates = candidates[n:]
	}
	return good, nil
}

// unique keeps the first of equal words.
func unique(words []string) []string {
	seen := map[string]bool{}
	var kept []string
	for _, w := range words {
		if !seen[w] {
			seen[w] = true
			kept = append(kept, w)
		}
	}
	return kept
}
