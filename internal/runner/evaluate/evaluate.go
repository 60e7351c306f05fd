// Package evaluate asks the engine that was measured for answers, and scores them.
// It promises an entry for every item, with a score or with the reason for having
// none, whatever the engine does and whenever the time is over; it never asks an
// item twice, and takes nothing for an answer that is not a whole one.
package evaluate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"sbench/internal/quality"
	"sbench/internal/result"
	"sbench/internal/setting"
)

// maxBody is how many bytes of a response are read.
const maxBody = 16 << 20

// Target is the engine.
type Target struct {
	BaseURL string // http://host:port, without /v1
	Model   string // the name to use in requests
}

// Ask asks every item and scores the answers, d.Concurrency at a time. It returns
// when all are answered or ctx ends; the list is in the items' order.
func Ask(ctx context.Context, target Target, d *quality.Definition, items []quality.Item) []result.QualityItem {
	// A connection for each request: an idle one takes a thread of some servers, and
	// one that the server has closed would fail an item for nothing.
	client := &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	out := make([]result.QualityItem, len(items))
	next := make(chan int)
	var group sync.WaitGroup
	for range min(d.Concurrency, len(items)) {
		group.Go(func() {
			for i := range next {
				out[i] = ask(ctx, client, target, d, items[i])
			}
		})
	}
	for i := range items {
		next <- i
	}
	close(next)
	group.Wait()
	return out
}

// ask asks one item.
func ask(ctx context.Context, client *http.Client, target Target, d *quality.Definition, item quality.Item) result.QualityItem {
	if ctx.Err() != nil {
		return quality.Unscored(item, "not asked: "+why(ctx))
	}
	a, err := exchange(ctx, client, target, d, item.Prompt)
	switch {
	case err != nil && ctx.Err() != nil:
		return quality.Unscored(item, "not answered: "+why(ctx))
	case err != nil:
		return quality.Unscored(item, err.Error())
	}
	return quality.Answered(d.Method, item, a.text, a.finish, a.tokens)
}

func why(ctx context.Context) string { return context.Cause(ctx).Error() }

// answer is what the engine said.
type answer struct {
	text   string
	finish string
	tokens *int64 // nil where it does not say
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// request is the body of a question. Nothing is streamed: nobody looks at times.
type request struct {
	Model       string    `json:"model"`
	Prompt      string    `json:"prompt,omitempty"`
	Messages    []message `json:"messages,omitempty"`
	MaxTokens   int       `json:"max_tokens"`
	Temperature float64   `json:"temperature"`
	TopP        float64   `json:"top_p"`
	Seed        int64     `json:"seed"`
	Stream      bool      `json:"stream"`
}

func exchange(ctx context.Context, client *http.Client, target Target, d *quality.Definition, prompt string) (answer, error) {
	q := request{Model: target.Model, MaxTokens: d.MaxOutputTokens, Temperature: d.Temperature, TopP: 1, Seed: d.Seed}
	chat := d.Endpoint == setting.EndpointChat
	path := "/v1/completions"
	if chat {
		path, q.Messages = "/v1/chat/completions", []message{{"user", prompt}}
	} else {
		q.Prompt = prompt
	}
	body, err := json.Marshal(q)
	if err != nil {
		return answer{}, fmt.Errorf("encode the question: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(target.BaseURL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("read the answer: %w", err)
	case len(text) > maxBody:
		return answer{}, fmt.Errorf("the answer has more than %d bytes", maxBody)
	case resp.StatusCode != http.StatusOK:
		return answer{}, fmt.Errorf("HTTP %d: %.300s", resp.StatusCode, oneLine(string(text)))
	}
	return read(text, chat)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// response is the part of an answer that matters here.
type response struct {
	Choices []struct {
		Text    *string `json:"text"`
		Message *struct {
			Content *string `json:"content"`
		} `json:"message"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		CompletionTokens *int64 `json:"completion_tokens"`
	} `json:"usage"`
}

// cutOff is the finish reason of an answer that reached the limit on tokens.
const cutOff = "length"

// read takes a response apart. An engine that reasoned until its tokens were spent
// has answered nothing, and that is its answer; text that is missing without such a
// reason is a fault and no empty answer.
func read(body []byte, chat bool) (answer, error) {
	var r response
	if err := json.Unmarshal(body, &r); err != nil {
		return answer{}, fmt.Errorf("the answer is not readable: %w", err)
	}
	if len(r.Choices) != 1 {
		return answer{}, fmt.Errorf("the answer has %d choices, not one", len(r.Choices))
	}
	c := r.Choices[0]
	a := answer{}
	if c.FinishReason != nil {
		a.finish = *c.FinishReason
	}
	text := c.Text
	if chat {
		if c.Message == nil {
			return answer{}, errors.New("the answer has no message")
		}
		text = c.Message.Content
	}
	switch {
	case text != nil:
		a.text = *text
	case a.finish != cutOff:
		return answer{}, fmt.Errorf("the answer has no text and ended with %q", a.finish)
	}
	if r.Usage != nil && r.Usage.CompletionTokens != nil && *r.Usage.CompletionTokens >= 0 {
		a.tokens = r.Usage.CompletionTokens
	}
	return a, nil
}
