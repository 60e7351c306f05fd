package web

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sbench/internal/api"
	"sbench/internal/cost"
	"sbench/internal/lifecycle"
	"sbench/internal/store"
)

const (
	// countsAge and spendAge are how long what the database said is shown again:
	// several scrapers, and hasty ones, cost it no more than one.
	countsAge = 10 * time.Second
	spendAge  = 5 * time.Minute
	// lastDay is what metrics of the last day cover.
	lastDay = 24 * time.Hour
	// scrapeTimeout is below Prometheus' own of 10 s.
	scrapeTimeout = 8 * time.Second
)

// instruments are what this process counts itself. They are safe for concurrent
// use. No label has a user's, an account's or a sweep's name: the metrics are for
// whoever reaches the daemon.
type instruments struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	submitted *prometheus.HistogramVec
}

// refusalClasses are the values of the label class of sbench_refusals_total.
func refusalClasses() []string {
	return []string{classQuota, string(api.CodeRefused), string(api.CodeInvalid), string(api.CodeLimited), string(api.CodeConflict), string(api.CodeUnavailable), string(api.CodeInternal)}
}

// classQuota is apart from the other refusals: it passes with time.
const classQuota = "quota"

func newInstruments(s *server) *instruments {
	m := &instruments{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sbench_requests_total", Help: "Requests by endpoint and HTTP status.",
		}, []string{"endpoint", "status"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sbench_refusals_total", Help: "Requests that were not granted, by class: quota, permission (refused), a faulty file (invalid), and the others.",
		}, []string{"class"}),
		submitted: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sbench_submit_latency_seconds", Help: "Time from the commit of a batch until Slurm may start it.",
			Buckets: []float64{0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600},
		}, []string{"site"}),
	}
	for _, class := range refusalClasses() {
		m.refusals.WithLabelValues(class) // 0 is a number, and absent would be none
	}
	for _, st := range s.Sites {
		m.submitted.WithLabelValues(st.Name)
	}
	m.registry.MustRegister(m.requests, m.refusals, m.submitted, collectors.NewGoCollector(), &gauges{server: s, described: described()},
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// request counts one answer. pattern is the route's, so labels are bounded.
func (m *instruments) request(pattern string, status int) {
	m.requests.WithLabelValues(pattern, strconv.Itoa(status)).Inc()
}

// refused counts a request that was not granted. What was not found was not refused.
func (m *instruments) refused(err error, p *api.Problem) {
	class := string(p.Code)
	var over *store.QuotaError
	if errors.As(err, &over) {
		class = classQuota
	}
	if slices.Contains(refusalClasses(), class) {
		m.refusals.WithLabelValues(class).Inc()
	}
}

// metrics answers in Prometheus' text format.
func (s *server) metrics(w http.ResponseWriter, r *http.Request) {
	promhttp.HandlerFor(s.counts.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
}

// ObserveSubmit notes how long a batch took from its commit to its release.
func (s *server) ObserveSubmit(site string, took time.Duration) {
	s.counts.submitted.WithLabelValues(site).Observe(took.Seconds())
}

// SlurmCalls is how often one of Slurm's commands was called for a site.
type SlurmCalls struct {
	Site, Command             string
	Calls, Failures, Timeouts int64
	Seconds                   float64 // spent, in all
}

// gauges reads what others know when it is asked: the leader, Slurm's clients, the
// database. What the database does not say is left out, never shown as before.
type gauges struct {
	*server
	described map[string]*prometheus.Desc

	mu       sync.Mutex // held while the database is asked: one scrape at a time
	counts   store.Operations
	alarms   []store.Alarm
	countsAt time.Time
	spend    []cost.Row
	spendAt  time.Time
}

// described are the metrics of gauges with their labels.
func described() map[string]*prometheus.Desc {
	list := map[string]*prometheus.Desc{}
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"sbench_build_info", "1, with the version of this build.", []string{"version"}},
		{"sbench_leader", "1 where this daemon is the one that acts.", nil},
		{"sbench_database_up", "1 where the database answers.", nil},
		{"sbench_site_mode", "1 for the mode that a site is in.", []string{"site", "mode"}},
		{"sbench_slurm_calls_total", "Calls of Slurm's commands; each is one request to the controller or the database.", []string{"site", "command"}},
		{"sbench_slurm_failures_total", "Calls of Slurm's commands that failed.", []string{"site", "command"}},
		{"sbench_slurm_timeouts_total", "Calls of Slurm's commands that got no answer in time.", []string{"site", "command"}},
		{"sbench_slurm_seconds_total", "Time spent in calls of Slurm's commands.", []string{"site", "command"}},
		{"sbench_runs", "Runs that are not over or on the dead-letter list, by site and state.", []string{"site", "state"}},
		{"sbench_pending_runs", "Runs that could be fed now.", []string{"site", "priority"}},
		{"sbench_pending_oldest_seconds", "How long the run has waited that waits longest to be fed.", []string{"site", "priority"}},
		{"sbench_queue_tasks", "Tasks in Slurm's queue by kind of hardware and state.", []string{"site", "hardware", "state"}},
		{"sbench_queue_limit_tasks", "Tasks that sbench keeps at most in the queue of a kind of hardware.", []string{"site", "hardware"}},
		{"sbench_queue_oldest_seconds", "Age of the oldest task in Slurm's queue.", []string{"site", "hardware", "state"}},
		{"sbench_batches", "Batches that are not over, by site and state.", []string{"site", "state"}},
		{"sbench_batch_oldest_seconds", "Age of the oldest batch in a state.", []string{"site", "state"}},
		{"sbench_sweeps_active", "Sweeps that are not over.", []string{"site"}},
		{"sbench_sweeps_ended_last_day", "Sweeps that ended in the last day, by how.", []string{"site", "state"}},
		{"sbench_makespan_last_day_seconds", "How long the sweeps took that ended in the last day.", []string{"site", "quantile"}},
		{"sbench_firings_last_day", "Due times of schedules in the last day, by what became of them.", []string{"site", "state"}},
		{"sbench_windows_last_day", "Firings of the last day whose sweep should end within a window: met, missed, open.", []string{"site", "outcome"}},
		{"sbench_alarms", "What sbench alarms lists, by kind.", []string{"site", "kind"}},
		{"sbench_attempts_last_day", "Attempts recorded in the last day, by exit class.", []string{"site", "class"}},
		{"sbench_preflights_last_day", "Attempts of the last day by what the verification of their environment said.", []string{"site", "outcome"}},
		{"sbench_task_starts_last_day", "Starts of tasks in the last day, by whether the node had run the checkpoint right before.", []string{"site", "checkpoint"}},
		{"sbench_gpu_seconds_last_day", "GPU-seconds of the last day: billable, and of them measured and lost.", []string{"site", "hardware", "hardware_class", "kind"}},
		{"sbench_cost_last_day_usd", "What the last day cost by the rates; absent where a part has no rate.", []string{"site", "hardware", "hardware_class"}},
	} {
		list[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
	}
	return list
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range g.described {
		out <- d
	}
}

// emit sends one value.
type emit func(name string, value float64, labels ...string)

// Collect implements prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType) emit {
		return func(name string, value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(g.described[name], kind, value, labels...)
		}
	}
	gauge := send(prometheus.GaugeValue)
	// The registry hands no context on.
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	gauge("sbench_build_info", 1, g.Version)
	gauge("sbench_leader", flag(g.Leader != nil && g.Leader()))
	for _, st := range g.Sites {
		for id := range st.Hardware {
			gauge("sbench_queue_limit_tasks", float64(st.QueueLimit(id)), st.Name, id)
		}
	}
	g.slurm(send(prometheus.CounterValue))
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.Now()
	up := g.database(ctx, now, gauge)
	gauge("sbench_database_up", flag(up))
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// slurm shows what we cost the controllers.
func (g *gauges) slurm(counter emit) {
	if g.Config.SlurmCalls == nil {
		return
	}
	for _, c := range g.Config.SlurmCalls() {
		counter("sbench_slurm_calls_total", float64(c.Calls), c.Site, c.Command)
		counter("sbench_slurm_failures_total", float64(c.Failures), c.Site, c.Command)
		counter("sbench_slurm_timeouts_total", float64(c.Timeouts), c.Site, c.Command)
		counter("sbench_slurm_seconds_total", c.Seconds, c.Site, c.Command)
	}
}

// database shows what the database says; false where it says nothing.
func (g *gauges) database(ctx context.Context, now time.Time, gauge emit) bool {
	if err := g.Store.Ping(ctx); err != nil {
		return false
	}
	modes, err := g.Store.SiteModes(ctx)
	if err == nil && (g.countsAt.IsZero() || now.Sub(g.countsAt) > countsAge) {
		if g.counts, err = g.Store.Operations(ctx, now.Add(-lastDay)); err == nil {
			g.alarms, err = g.Store.Alarms(ctx, g.alarmLimits())
		}
		if err == nil {
			g.countsAt = now
		}
	}
	if err != nil {
		g.countsAt = time.Time{}
		g.Log.WarnContext(ctx, "metrics are incomplete", "error", err)
		return false
	}
	for _, st := range g.Sites {
		mode := store.SiteActive
		if m := modes[st.Name].Mode; m != "" {
			mode = m
		}
		for _, m := range []string{store.SiteActive, store.SiteDrain, store.SitePaused} {
			gauge("sbench_site_mode", flag(m == mode), st.Name, m)
		}
	}
	g.waiting(now, gauge)
	g.past(gauge)
	g.spent(ctx, now, gauge)
	return true
}

// waiting shows what there is to do, and how long it has waited.
func (g *gauges) waiting(now time.Time, gauge emit) {
	age := func(since time.Time) float64 { return max(0, now.Sub(since).Seconds()) }
	for _, c := range g.counts.Runs {
		gauge("sbench_runs", float64(c.N), c.Site, c.State)
	}
	for _, c := range g.counts.Pending {
		gauge("sbench_pending_runs", float64(c.N), c.Site, c.Priority)
		gauge("sbench_pending_oldest_seconds", age(c.Since), c.Site, c.Priority)
	}
	for _, c := range g.counts.Queue {
		gauge("sbench_queue_tasks", float64(c.N), c.Site, c.Hardware, c.State)
		gauge("sbench_queue_oldest_seconds", age(c.Since), c.Site, c.Hardware, c.State)
	}
	for _, c := range g.counts.Batches {
		gauge("sbench_batches", float64(c.N), c.Site, c.State)
		gauge("sbench_batch_oldest_seconds", age(c.Since), c.Site, c.State)
	}
}

// past shows what became of the last day's work. A site's own zeros are shown: a
// rate of what is absent would be no number.
func (g *gauges) past(gauge emit) {
	type key struct{ name, site, label string }
	sums := map[key]float64{}
	for _, st := range g.Sites {
		for _, kind := range alarmKinds() {
			n := 0
			for _, a := range g.alarms {
				if a.Kind == kind && a.Site == st.Name {
					n++
				}
			}
			gauge("sbench_alarms", float64(n), st.Name, kind)
		}
		sums[key{"sbench_sweeps_active", st.Name, ""}] = 0
		for name, labels := range map[string][]string{
			"sbench_sweeps_ended_last_day": {"complete", "incomplete", "cancelled"},
			"sbench_firings_last_day":      {store.FiringWaiting, store.FiringSubmitted, store.FiringSkipped, store.FiringRefused},
			"sbench_windows_last_day":      {"met", "missed", "open"},
			"sbench_preflights_last_day":   {"passed", "refused", "unfinished"},
			"sbench_task_starts_last_day":  {"warm", "cold"},
		} {
			for _, label := range labels {
				sums[key{name, st.Name, label}] = 0
			}
		}
	}
	for _, c := range g.counts.Sweeps {
		if c.State == string(store.SweepActive) {
			sums[key{"sbench_sweeps_active", c.Site, ""}] += float64(c.N)
			continue
		}
		sums[key{"sbench_sweeps_ended_last_day", c.Site, c.State}] += float64(c.N)
	}
	for _, c := range g.counts.Firings {
		sums[key{"sbench_firings_last_day", c.Site, c.State}] += float64(c.N)
		if c.Window != "none" && c.State != store.FiringSkipped {
			sums[key{"sbench_windows_last_day", c.Site, c.Window}] += float64(c.N)
		}
	}
	for _, c := range g.counts.Attempts {
		sums[key{"sbench_attempts_last_day", c.Site, c.ExitClass}] += float64(c.N)
		sums[key{"sbench_preflights_last_day", c.Site, preflight(c)}] += float64(c.N)
	}
	for _, c := range g.counts.Locality {
		sums[key{"sbench_task_starts_last_day", c.Site, "warm"}] += float64(c.Warm)
		sums[key{"sbench_task_starts_last_day", c.Site, "cold"}] += float64(c.Starts - c.Warm)
	}
	for k, n := range sums {
		if k.label == "" {
			gauge(k.name, n, k.site)
			continue
		}
		gauge(k.name, n, k.site, k.label)
	}
	for _, m := range g.counts.Makespans {
		gauge("sbench_makespan_last_day_seconds", m.Median, m.Site, "0.5")
		gauge("sbench_makespan_last_day_seconds", m.P95, m.Site, "0.95")
		gauge("sbench_makespan_last_day_seconds", m.Longest, m.Site, "1")
	}
}

// preflight is what the verification of an attempt said. An attempt that ended
// before it was over, by another fault, says nothing about the environment.
func preflight(c store.AttemptCount) string {
	switch {
	case c.EnvVerified:
		return "passed"
	case c.ExitClass == string(lifecycle.ExitDriftArtefact), c.ExitClass == string(lifecycle.ExitDriftNode):
		return "refused"
	}
	return "unfinished"
}

// spent shows what the last day held and cost.
func (g *gauges) spent(ctx context.Context, now time.Time, gauge emit) {
	if g.spendAt.IsZero() || now.Sub(g.spendAt) > spendAge {
		rows, err := g.spendOf(ctx, cost.Period{Start: now.Add(-lastDay).Truncate(time.Second), End: now.Truncate(time.Second)}, now)
		if err != nil {
			g.spendAt = time.Time{}
			g.Log.WarnContext(ctx, "spend is missing in the metrics", "error", err)
			return
		}
		g.spend, g.spendAt = rows, now
	}
	for i := range g.spend {
		r := &g.spend[i]
		site, hardware := r.Key[0], r.Key[1]
		gauge("sbench_gpu_seconds_last_day", float64(r.Billable), site, hardware, r.Class, "billable")
		gauge("sbench_gpu_seconds_last_day", r.Measured, site, hardware, r.Class, "measured")
		gauge("sbench_gpu_seconds_last_day", float64(r.Lost), site, hardware, r.Class, "lost")
		if r.Cost != nil {
			gauge("sbench_cost_last_day_usd", r.Cost.USD(), site, hardware, r.Class)
		}
	}
}

func (g *gauges) spendOf(ctx context.Context, period cost.Period, now time.Time) ([]cost.Row, error) {
	book, err := g.Store.Book(ctx)
	if err != nil {
		return nil, err
	}
	ledger := cost.NewLedger(period, []cost.Dimension{cost.BySite, cost.ByHardware}, book, nil)
	if err := g.Store.EachHeld(ctx, period, now, ledger.Add); err != nil {
		return nil, err
	}
	return ledger.Report().Rows, nil
}
