package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/setting"
)

func serve(t *testing.T, h http.HandlerFunc) Running {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return Running{
		Host: u.Hostname(), Port: port, Endpoint: setting.EndpointCompletions, Model: "m",
		Done: make(chan struct{}), Owns: func(int) (bool, error) { return true, nil },
	}
}

func deadline(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

const token = `{"choices":[{"text":"yes"}],"usage":{"completion_tokens":1}}`

// TestWaitReady_TokenNotPort: everything that looks alive but has not generated
// a token is not ready.
func TestWaitReady_TokenNotPort(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	answers := []struct {
		status int
		body   string
	}{
		{503, `{"error":{"message":"Loading model"}}`},
		{200, `<html>starting</html>`},
		{200, `{"choices":[]}`},
		{200, `{"choices":[{"text":""}],"usage":{"completion_tokens":0}}`},
		{200, `{"error":{"message":"not yet"}}`},
		{500, `oops`},
		{200, token},
	}
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/v1/completions" {
			http.NotFound(w, req)
			return
		}
		a := answers[min(int(calls.Add(1)), len(answers))-1]
		w.WriteHeader(a.status)
		fmt.Fprint(w, a.body)
	})
	ready, err := WaitReady(deadline(t, 20*time.Second), r)
	if err != nil || ready.Model != "m" || ready.BaseURL != "http://"+net.JoinHostPort(r.Host, strconv.Itoa(r.Port)) {
		t.Fatalf("%+v, %v", ready, err)
	}
	if int(calls.Load()) != len(answers) {
		t.Errorf("ready after %d of %d answers", calls.Load(), len(answers))
	}
}

func TestWaitReady_NotInTimeSaysWhatItMet(t *testing.T) {
	t.Parallel()
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(503)
		fmt.Fprint(w, "Loading model")
	})
	_, err := WaitReady(deadline(t, 200*time.Millisecond), r)
	if !errors.Is(err, ErrNotInTime) || !strings.Contains(err.Error(), "503: Loading model") {
		t.Errorf("got %v", err)
	}
	r.Port = 1
	if _, err := WaitReady(deadline(t, 50*time.Millisecond), r); !errors.Is(err, ErrNotInTime) || !errors.Is(err, errNotYet) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestWaitReady_HangingAnswer(t *testing.T) {
	t.Parallel()
	r := serve(t, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		<-req.Context().Done()
	})
	if _, err := WaitReady(deadline(t, 200*time.Millisecond), r); !errors.Is(err, ErrNotInTime) {
		t.Errorf("got %v", err)
	}
}

func TestWaitReady_EngineEnds(t *testing.T) {
	t.Parallel()
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	done := make(chan struct{})
	close(done)
	r.Done = done
	if _, err := WaitReady(deadline(t, 20*time.Second), r); !errors.Is(err, ErrEnded) {
		t.Errorf("got %v", err)
	}
}

func TestWaitReady_ForeignPort(t *testing.T) {
	t.Parallel()
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, token) })
	r.Owns = func(int) (bool, error) { return false, nil }
	if _, err := WaitReady(deadline(t, 20*time.Second), r); !errors.Is(err, ErrForeign) {
		t.Errorf("got %v", err)
	}
}

func TestWaitReady_Cancelled(t *testing.T) {
	t.Parallel()
	r := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := WaitReady(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestWaitReady_ChatAndModelName(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		`{"data":[{"id":"a"},{"id":"m"}]}`: "m",
		`{"data":[{"id":"a"}]}`:            "a",
		`{"data":[]}`:                      "m",
		`nonsense`:                         "m",
	} {
		r := serve(t, func(w http.ResponseWriter, req *http.Request) {
			switch req.URL.Path {
			case "/v1/models":
				fmt.Fprint(w, list)
			case "/v1/chat/completions":
				fmt.Fprint(w, `{"choices":[{"message":{"content":null,"reasoning_content":"hm"}}]}`)
			default:
				http.NotFound(w, req)
			}
		})
		r.Endpoint = setting.EndpointChat
		if ready, err := WaitReady(deadline(t, 20*time.Second), r); err != nil || ready.Model != want {
			t.Errorf("%s: %+v, %v", list, ready, err)
		}
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/get_server_info" {
			http.NotFound(w, req)
			return
		}
		fmt.Fprint(w, `{"version":"0.5.1","tp_size":2,"dtype":"auto","flag":true,"none":null,"list":[1],"inner":{"a":1}}`)
	})
	base := "http://" + net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
	want := Identity{Version: "0.5.1", Flags: map[string]string{"version": "0.5.1", "tp_size": "2", "dtype": "auto", "flag": "true"}}
	if diff := cmp.Diff(want, Ask(t.Context(), sglang{}, base, "")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Ask(t.Context(), vllm{}, base, ""); got.Version != "" || got.Flags != nil {
		t.Errorf("%+v from a 404", got)
	}
}
