package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"sbench/internal/setting"
)

// The ways of not becoming ready.
var (
	ErrEnded      = errors.New("the engine ended before it was ready")
	ErrForeign    = errors.New("the engine's port belongs to another process")
	ErrNotInTime  = errors.New("the engine was not ready in time")
	errNotYet     = errors.New("not listening yet")
	errNoTokenYet = errors.New("no token generated")
)

// Running is a started engine, as WaitReady sees it.
type Running struct {
	Host     string
	Port     int
	Endpoint setting.Endpoint
	Model    string // the model's name in the setting
	// Done is closed when the engine has ended. Owns reports whether its
	// processes listen on the port.
	Done <-chan struct{}
	Owns func(port int) (bool, error)
}

// Ready is an engine that has generated a token.
type Ready struct {
	BaseURL string
	// Model is the name to use in requests: the setting's where the server lists
	// it or lists nothing, else the first that it lists.
	Model string
}

// WaitReady waits until the engine has generated one token for a prompt that no
// measurement uses. The deadline is ctx's; the error is then ErrNotInTime and
// says what the last try met.
func WaitReady(ctx context.Context, r Running) (Ready, error) {
	base := "http://" + net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
	client := &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	last := errNotYet
	for wait := 5 * time.Millisecond; ; wait = min(wait*3/2, 250*time.Millisecond) {
		ready, err := try(ctx, client, base, r)
		if err == nil {
			return ready, nil
		}
		if errors.Is(err, ErrForeign) {
			return Ready{}, err
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-r.Done:
			return Ready{}, ErrEnded
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return Ready{}, fmt.Errorf("%w: %w", ErrNotInTime, last)
			}
			return Ready{}, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// try asks once for a token.
func try(ctx context.Context, client *http.Client, base string, r Running) (Ready, error) {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", net.JoinHostPort(r.Host, strconv.Itoa(r.Port)))
	if err != nil {
		return Ready{}, errNotYet
	}
	_ = conn.Close()
	// Only now is there a listener to look for.
	if owns, err := r.Owns(r.Port); err != nil {
		return Ready{}, fmt.Errorf("look for the owner of port %d: %w", r.Port, err)
	} else if !owns {
		return Ready{}, fmt.Errorf("port %d: %w", r.Port, ErrForeign)
	}
	// A server that has just begun to listen may never answer its first request,
	// so that no single try takes all the time there is.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	model := servedModel(ctx, client, base, r.Model)
	if err := oneToken(ctx, client, base, r.Endpoint, model); err != nil {
		return Ready{}, err
	}
	return Ready{BaseURL: base, Model: model}, nil
}

func servedModel(ctx context.Context, client *http.Client, base, want string) string {
	status, answer, err := get(ctx, client, base+"/v1/models")
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(answer, &list) != nil || len(list.Data) == 0 {
		return want
	}
	for _, m := range list.Data {
		if m.ID == want {
			return want
		}
	}
	return list.Data[0].ID
}

const readyPrompt = "Are you ready?"

func oneToken(ctx context.Context, client *http.Client, base string, endpoint setting.Endpoint, model string) error {
	body := map[string]any{"model": model, "max_tokens": 1, "temperature": 0, "stream": false}
	path := "/v1/completions"
	if endpoint == setting.EndpointChat {
		path = "/v1/chat/completions"
		body["messages"] = []map[string]string{{"role": "user", "content": readyPrompt}}
	} else {
		body["prompt"] = readyPrompt
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	status, answer, err := do(client, req)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("%s answers %d: %s", path, status, firstLine(answer))
	}
	return tokenIn(answer)
}

// tokenIn accepts an answer that proves a token: by the server's own count, or by
// text.
func tokenIn(answer []byte) error {
	var a struct {
		Error   json.RawMessage `json:"error"`
		Choices []struct {
			Text    string `json:"text"`
			Message struct {
				Content          string `json:"content"`
				ReasoningContent string `json:"reasoning_content"`
			} `json:"message"`
		} `json:"choices"`
		Usage struct {
			CompletionTokens int `json:"completion_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return fmt.Errorf("answer is not JSON: %s", firstLine(answer))
	}
	if len(a.Error) > 0 && string(a.Error) != "null" {
		return fmt.Errorf("answer is an error: %s", firstLine(a.Error))
	}
	for _, c := range a.Choices {
		if c.Text != "" || c.Message.Content != "" || c.Message.ReasoningContent != "" {
			return nil
		}
	}
	if len(a.Choices) > 0 && a.Usage.CompletionTokens > 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", errNoTokenYet, firstLine(answer))
}

// Identity is what a running server says of itself.
type Identity struct {
	Version string // "" where it does not say
	// Flags are the options as the server resolved them; nil where it says none.
	Flags map[string]string
}

// Ask asks the running server what it is; log is the beginning of its log.
func Ask(ctx context.Context, e Engine, base, log string) Identity {
	path, read := e.VersionPath()
	if path == "" {
		return Identity{}
	}
	client := &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	status, answer, err := get(ctx, client, base+path)
	if err != nil || status != http.StatusOK {
		return Identity{Flags: e.Resolved(nil, log)}
	}
	return Identity{Version: read(answer), Flags: e.Resolved(answer, log)}
}

// plainValues returns the strings, numbers and booleans of a JSON object, bounded
// in number and length.
func plainValues(answer []byte) map[string]string {
	const most, longest = 400, 300
	var object map[string]json.RawMessage
	if json.Unmarshal(answer, &object) != nil {
		return nil
	}
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		text := string(object[name])
		var s string
		switch {
		case len(out) == most || len(name) > longest || text == "null" || text == "" || text[0] == '{' || text[0] == '[':
			continue
		case json.Unmarshal(object[name], &s) == nil:
			text = s
		}
		if len(text) <= longest {
			out[name] = text
		}
	}
	return out
}

func get(ctx context.Context, client *http.Client, url string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	return do(client, req)
}

func do(client *http.Client, req *http.Request) (int, []byte, error) {
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, answer, err
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	const most = 200
	if len(line) > most {
		line = line[:most] + "…"
	}
	return strings.ToValidUTF8(line, "\uFFFD")
}
