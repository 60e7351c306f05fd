package evaluate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sbench/internal/quality"
	"sbench/internal/setting"
)

func definition(method quality.Method) *quality.Definition {
	return &quality.Definition{
		Method: method, ItemsPath: "/q", ItemsDigest: "sha256:" + strings.Repeat("00", 32), Endpoint: setting.EndpointChat,
		MaxOutputTokens: 8, Seed: 3, Concurrency: 2, TimeLimit: time.Minute,
	}
}

func items(t *testing.T, n int) []quality.Item {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"id\":\"i%d\",\"prompt\":\"say %d\",\"reference\":\"%d\"}\n", i, i, i)
	}
	list, err := quality.ParseItems([]byte(b.String()), quality.ExactMatch)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func server(t *testing.T, answer http.HandlerFunc) Target {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return Target{BaseURL: s.URL, Model: "m"}
}

// TestAsk: each item is asked once, as the definition says, and scored.
func TestAsk(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []setting.Endpoint{setting.EndpointChat, setting.EndpointCompletions} {
		var asked, most, now atomic.Int32
		target := server(t, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer now.Add(-1)
			body, _ := io.ReadAll(r.Body)
			var q map[string]any
			if err := json.Unmarshal(body, &q); err != nil {
				t.Error(err)
			}
			if q["model"] != "m" || q["max_tokens"] != 8.0 || q["temperature"] != 0.0 || q["seed"] != 3.0 || q["stream"] != false {
				t.Errorf("asked %s", body)
			}
			prompt, _ := q["prompt"].(string)
			if endpoint == setting.EndpointChat {
				if r.URL.Path != "/v1/chat/completions" {
					t.Errorf("path %s", r.URL.Path)
				}
				prompt = q["messages"].([]any)[0].(map[string]any)["content"].(string)
			}
			text := strings.TrimPrefix(prompt, "say ")
			if text == "2" {
				text = "two"
			}
			fmt.Fprintf(w, `{"choices":[{"text":%q,"message":{"content":%q},"finish_reason":"stop"}],"usage":{"completion_tokens":5}}`, text, text)
		})
		d := definition(quality.ExactMatch)
		d.Endpoint = endpoint
		got := Ask(t.Context(), target, d, items(t, 5))
		if asked.Load() != 5 || most.Load() > 2 {
			t.Errorf("%s: asked %d times, up to %d at once", endpoint, asked.Load(), most.Load())
		}
		for i, x := range got {
			want := 1.0
			if i == 2 {
				want = 0
			}
			if x.Index != i || x.ID != fmt.Sprintf("i%d", i) || x.Score == nil || *x.Score != want || x.OutputTokens == nil || *x.OutputTokens != 5 || x.FinishReason != "stop" {
				t.Errorf("%s: item %d: %+v", endpoint, i, x)
			}
		}
	}
}

// TestAsk_Faults: what is no whole answer is no score of 0.
func TestAsk_Faults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int
		body   string
		reason string // "" for an answer
	}{
		"error":         {500, `{"error":{"message":"out of\nmemory"}}`, "HTTP 500"},
		"not found":     {404, "", "HTTP 404"},
		"no JSON":       {200, "<html>", "not readable"},
		"error in 200":  {200, `{"error":{"message":"x"}}`, "0 choices"},
		"no message":    {200, `{"choices":[{"finish_reason":"stop"}]}`, "no message"},
		"no text":       {200, `{"choices":[{"message":{"content":null},"finish_reason":"tool_calls"}]}`, "no text"},
		"reasoned away": {200, `{"choices":[{"message":{"content":null,"reasoning_content":"hm"},"finish_reason":"length"}]}`, ""},
		"empty":         {200, `{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}`, ""},
	} {
		target := server(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		})
		got := Ask(t.Context(), target, definition(quality.ExactMatch), items(t, 1))[0]
		switch {
		case tt.reason == "" && (got.Score == nil || *got.Score != 0):
			t.Errorf("%s: %+v, want a score of 0", name, got)
		case tt.reason != "" && (got.Score != nil || !strings.Contains(got.Reason, tt.reason)):
			t.Errorf("%s: %+v, want the reason %q", name, got, tt.reason)
		}
	}
}

// TestAsk_TimeIsOver: every item has an entry that says so.
func TestAsk_TimeIsOver(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	target := server(t, func(w http.ResponseWriter, r *http.Request) {
		// Only then does the server see that nobody waits any more.
		_, _ = io.Copy(io.Discard, r.Body)
		cancel(errors.New("the time is over"))
		<-r.Context().Done()
	})
	got := Ask(ctx, target, definition(quality.ExactMatch), items(t, 20))
	for i, x := range got {
		if x.Index != i || x.Score != nil || !strings.Contains(x.Reason, "the time is over") {
			t.Errorf("item %d: %+v", i, x)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"completion_tokens":5}}`), true)
	f.Add([]byte(`{"choices":[{"text":null,"finish_reason":"length"}]}`), false)
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		a, err := read(body, chat)
		if err == nil && a.tokens != nil && *a.tokens < 0 {
			t.Fatalf("%+v", a)
		}
	})
}
