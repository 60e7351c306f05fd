package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/setting"
)

// serve answers on a Unix socket.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Close()
		<-done
	})
	return NewClient(socket)
}

// drop breaks the connection without an answer.
func drop(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		c.Close()
	}
}

// A submission whose answer is lost is asked for again with the same key.
func TestClient_SubmitSurvivesALostAnswer(t *testing.T) {
	t.Parallel()
	var keys []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var req SubmitRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		if keys = append(keys, req.IdempotencyKey); len(keys) == 1 {
			drop(w)
			return
		}
		io.WriteString(w, `{"sweep_id":17,"repeated":true}`)
	})
	resp, err := c.Submit(t.Context(), SubmitRequest{IdempotencyKey: "k"})
	if err != nil || resp.SweepID != 17 || !resp.Repeated {
		t.Errorf("got %+v, %v", resp, err)
	}
	if diff := cmp.Diff([]string{"k", "k"}, keys); diff != "" {
		t.Error(diff)
	}
}

func TestClient_SubmitGivesUpAfterTheSecondTry(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		drop(w)
	})
	_, err := c.Submit(t.Context(), SubmitRequest{IdempotencyKey: "k"})
	var u *UnreachableError
	if !errors.As(err, &u) || !u.Connected || calls.Load() != 2 {
		t.Errorf("got %v after %d calls", err, calls.Load())
	}
}

func TestClient_Unreachable(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "none")
	_, err := NewClient(socket).Version(t.Context())
	var u *UnreachableError
	if !errors.As(err, &u) || u.Connected || err.Error() != "cannot reach the daemon at "+socket+": connect: no such file or directory" {
		t.Errorf("got %v", err)
	}
	// A truncated answer is no answer.
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"version":`) })
	if _, err := c.Version(t.Context()); !errors.As(err, &u) || !u.Connected {
		t.Errorf("truncated: %v", err)
	}
}

func TestClient_Problems(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/runs/1":
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, `{"code":"refused","message":"no","reasons":["a","b"]}`)
		default:
			w.WriteHeader(http.StatusBadGateway)
			io.WriteString(w, "<html>"+strings.Repeat("x", 1000))
		}
	})
	_, err := c.Run(t.Context(), 1)
	var p *Problem
	if !errors.As(err, &p) || p.Code != CodeRefused || p.Error() != "no: a; b" {
		t.Errorf("got %v", err)
	}
	if _, err = c.Run(t.Context(), 2); !errors.As(err, &p) || p.Code != CodeInternal || len(p.Message) > 300 {
		t.Errorf("got %v", err)
	}
}

func TestClient_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	if _, err := c.Version(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestClient_Log(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.RawQuery) })
	var b bytes.Buffer
	if err := c.Log(t.Context(), &b, 7, LogEngine, true); err != nil || b.String() != "follow=1&kind=engine" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

func TestAxes(t *testing.T) {
	t.Parallel()
	s := setting.Default()
	s.Engine.Args = map[string]string{"parallel": "4"}
	s.Workload.Duration = 90 * time.Second
	s.Normalize()
	axes := Axes(&s)
	for key, want := range map[string]any{"engine.args.parallel": "4", "workload.duration": 90.0, "parallel.tensor": int64(1)} {
		if axes[key] != want {
			t.Errorf("%s: got %v (%T), want %v", key, axes[key], axes[key], want)
		}
	}
	for key, v := range axes {
		if v == nil {
			t.Errorf("%s is null", key)
		}
	}
}

func TestSweepSummary(t *testing.T) {
	t.Parallel()
	at := time.Now()
	s := SweepSummary{State: "complete", EndedAt: &at, SettingsTotal: 2, SettingsComplete: 2, Runs: map[string]int{"complete": 4}}
	if !s.Terminal() || !s.Complete() || s.RunsOpen() != 0 {
		t.Errorf("got %+v", s)
	}
	s.SettingsComplete = 1
	if s.Complete() {
		t.Error("a missing setting is complete")
	}
	s = SweepSummary{State: "running", Runs: map[string]int{"pending": 1, "submitted": 2, "provisioning": 3, "running": 4, "dead": 5}}
	if s.Terminal() || s.Complete() || s.RunsOpen() != 10 {
		t.Errorf("got %+v", s)
	}
}
