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

// SlurmCalls is how often one of Slurm's commands was called for a site.
type SlurmCalls struct {
	Site, Command             string
	Calls, Failures, Timeouts int64
	Seconds                   float64 // spent, in all
}

// slurmMetrics shows what we cost the controllers.
func (s *server) slurmMetrics(b *strings.Builder, metric func(name, kind, help string)) {
	if s.Config.SlurmCalls == nil {
		return
	}
	calls := s.Config.SlurmCalls()
	for _, m := range []struct {
		name, help string
		value      func(SlurmCalls) any
	}{
		{"sbench_slurm_calls_total", "Calls of Slurm's commands; each is one request to the controller or the database.", func(c SlurmCalls) any { return c.Calls }},
		{"sbench_slurm_failures_total", "Calls of Slurm's commands that failed.", func(c SlurmCalls) any { return c.Failures }},
		{"sbench_slurm_timeouts_total", "Calls of Slurm's commands that got no answer in time.", func(c SlurmCalls) any { return c.Timeouts }},
		{"sbench_slurm_seconds_total", "Time spent in calls of Slurm's commands.", func(c SlurmCalls) any { return c.Seconds }},
	} {
		metric(m.name, "counter", m.help)
		for _, c := range calls {
			fmt.Fprintf(b, "%s{site=%q,command=%q} %v\n", m.name, c.Site, c.Command, m.value(c))
		}
	}
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
	s.slurmMetrics(&b, metric)
	metric("sbench_requests_total", "counter", "Requests by endpoint and HTTP status.")
	s.counts.mu.Lock()
	for _, labels := range slices.Sorted(maps.Keys(s.counts.requests)) {
		fmt.Fprintf(&b, "sbench_requests_total%s %d\n", labels, s.counts.requests[labels])
	}
	s.counts.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = w.Write([]byte(b.String()))
}
