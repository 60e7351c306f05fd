package runner

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sbench/internal/proc"
	"sbench/internal/result"
	"sbench/internal/runner/engine"
	"sbench/internal/runner/loadgen"
)

// samplePeriod is how often the host is sampled: reading /proc is cheap, but not
// free, and it is on the client's CPUs.
const samplePeriod = time.Second

// scrapePeriod is how often the engine is asked for its own metrics, which costs
// it a little.
const scrapePeriod = 5 * time.Second

// sampler samples engine, client and host until it is stopped.
type sampler struct {
	tree    *proc.Tree
	clock   loadgen.Clock
	quit    chan struct{}
	wait    sync.WaitGroup
	rows    []result.Telemetry
	scraped []result.Telemetry
}

func (a *attempt) startTelemetry(ctx context.Context) *sampler {
	s := &sampler{tree: a.engine.tree, clock: a.clock, quit: make(chan struct{})}
	s.wait.Go(func() {
		ticker := time.NewTicker(samplePeriod)
		defer ticker.Stop()
		for {
			s.sample()
			select {
			case <-ticker.C:
			case <-s.quit:
				return
			}
		}
	})
	base := a.engine.ready.BaseURL
	s.wait.Go(func() {
		ticker := time.NewTicker(scrapePeriod)
		defer ticker.Stop()
		// An engine that has no metrics is not asked again.
		for s.scrape(ctx, base) {
			select {
			case <-ticker.C:
			case <-s.quit:
				s.scrape(ctx, base)
				return
			}
		}
	})
	return s
}

// stop ends the sampling and returns the rows.
func (s *sampler) stop() []result.Telemetry {
	close(s.quit)
	s.wait.Wait()
	s.sample()
	return append(s.rows, s.scraped...)
}

// scrape keeps the engine's own metrics under their own names.
func (s *sampler) scrape(ctx context.Context, base string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	found := engine.Scrape(ctx, base)
	now := s.clock.Now()
	for _, name := range slices.Sorted(maps.Keys(found)) {
		v := found[name]
		s.scraped = append(s.scraped, result.Telemetry{T: now, Source: "engine_metrics", Name: name, Value: &v})
	}
	return found != nil
}

func (s *sampler) sample() {
	now := s.clock.Now()
	add := func(source, name string, value *float64) {
		s.rows = append(s.rows, result.Telemetry{T: now, Source: source, Name: name, Value: value})
	}
	some := func(v float64) *float64 { return &v }
	if u, err := s.tree.Usage(); err == nil && u.Processes > 0 {
		add("engine", "cpu_seconds", some(u.CPUSeconds))
		add("engine", "rss_bytes", some(float64(u.RSSBytes)))
		add("engine", "threads", some(float64(u.Threads)))
		add("engine", "processes", some(float64(u.Processes)))
	} else {
		add("engine", "cpu_seconds", nil)
	}
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) == nil {
		add("client", "cpu_seconds", some(float64(r.Utime.Nano()+r.Stime.Nano())/1e9))
	}
	for name, value := range hostSample() {
		add("host", name, value)
	}
}

// hostSample reads load and CPU time of the whole node; nil where it cannot be
// read.
func hostSample() map[string]*float64 {
	out := map[string]*float64{"load_1m": nil, "busy_cpu_seconds": nil, "steal_cpu_seconds": nil}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		out["load_1m"] = number(strings.Fields(string(b)), 0, 1)
	}
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return out
	}
	line, _, _ := strings.Cut(string(b), "\n")
	// cpu user nice system idle iowait irq softirq steal
	f := strings.Fields(line)
	const ticks = 100 // USER_HZ
	out["steal_cpu_seconds"] = number(f, 8, ticks)
	var busy float64
	for _, i := range []int{1, 2, 3, 6, 7} {
		v := number(f, i, ticks)
		if v == nil {
			return out
		}
		busy += *v
	}
	out["busy_cpu_seconds"] = &busy
	return out
}

func number(fields []string, i int, divisor float64) *float64 {
	if i >= len(fields) {
		return nil
	}
	v, err := strconv.ParseFloat(fields[i], 64)
	if err != nil {
		return nil
	}
	v /= divisor
	return &v
}
