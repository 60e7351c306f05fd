package loadgen

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"sbench/internal/result"
	"sbench/internal/workload"
)

// Over TLS the rows are the same: first tokens, events, and what is cut off.
func TestRun_TLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			fmt.Fprint(w, textEvent(" w"))
			w.(http.Flusher).Flush()
			time.Sleep(2 * time.Millisecond)
		}
		fmt.Fprint(w, lastEvents(7, 3))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	target, err := ParseTarget(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	target.TLS = &tls.Config{RootCAs: roots, ServerName: "example.com"}
	s := &fakeServer{target: target}
	counts, rec := outcomes(t, s, load(100, 0.7, 3), nil)
	only(t, counts, result.OutcomeOK)
	reused := 0
	for _, r := range rec.Requests {
		if r.Phase == result.PhaseMeasure && (len(r.EventTimes) != 3 || r.TWritten == nil || *r.TTok1 < *r.TWritten) {
			t.Errorf("%+v", r)
		}
		if r.ReusedConn {
			reused++
		}
	}
	if reused == 0 {
		t.Error("no connection was used twice")
	}
	if h := rec.Harness; !h.TLS || h.SchedulerP99 == nil {
		t.Errorf("how late the reading goroutines were is not told: %+v", h)
	}

	// A certificate that nobody vouches for ends the run before it begins.
	s.target.TLS = &tls.Config{ServerName: "example.com"}
	w := load(20, 0.1, 1)
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), Config{Target: s.target, Request: w.Request, Plan: plan, Served: counted()}, NewClock()); err == nil {
		t.Error("an unknown certificate is accepted")
	}
}
