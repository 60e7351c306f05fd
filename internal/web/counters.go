package web

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// counters count requests by endpoint and status. They are safe for concurrent use.
type counters struct {
	mu       sync.Mutex
	requests map[string]int64 // ready-made label set to count
}

func newCounters() *counters { return &counters{requests: map[string]int64{}} }

// request counts one answer. pattern is the route's, so labels are bounded.
func (c *counters) request(pattern string, status int) {
	labels := fmt.Sprintf("{endpoint=%q,status=\"%d\"}", pattern, status)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[labels]++
}

// metrics answers in Prometheus' text format.
func (s *server) metrics(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	metric := func(name, kind, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	flag := func(on bool) int {
		if on {
			return 1
		}
		return 0
	}
	metric("sbench_leader", "gauge", "1 where this daemon is the one that acts.")
	fmt.Fprintf(&b, "sbench_leader %d\n", flag(s.Leader != nil && s.Leader()))
	counts, err := s.Store.RunCounts(r.Context())
	metric("sbench_database_up", "gauge", "1 where the database answers.")
	fmt.Fprintf(&b, "sbench_database_up %d\n", flag(err == nil))
	if err == nil {
		metric("sbench_runs", "gauge", "Runs by site and state.")
		for _, c := range counts {
			fmt.Fprintf(&b, "sbench_runs{site=%q,state=%q} %d\n", c.Site, c.State, c.N)
		}
	}
	metric("sbench_requests_total", "counter", "Requests by endpoint and HTTP status.")
	s.counts.mu.Lock()
	for _, labels := range slices.Sorted(maps.Keys(s.counts.requests)) {
		fmt.Fprintf(&b, "sbench_requests_total%s %d\n", labels, s.counts.requests[labels])
	}
	s.counts.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = w.Write([]byte(b.String()))
}
