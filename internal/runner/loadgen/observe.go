package loadgen

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sbench/internal/result"
	"sbench/internal/stats"
)

// observer watches the client itself while the windows run.
type observer struct {
	r           *runner
	gcPercent   int
	memoryLimit int64
	begin, end  *snapshot
	ports       *int
	inFlight    []sample // of the present load point
	stoppedWhy  string
	judged      int // load points judged so far
	rows        []result.Request
	texts       []string // of the rows whose tokens the server did not count
	decoder     decoder
	decodedLive int64
	lastShown   int64
	delays      map[int]schedstat // of our threads at the last look
	waits       []wait            // for a processor, by interval
}

// schedstat is what the kernel counts for a thread: ns that it waited for a
// processor, and how often it got one.
type schedstat struct{ delay, slices uint64 }

// wait is the mean wait of a thread for a processor in an interval, in s, and how
// often it woke in it.
type wait struct {
	mean  float64
	wakes uint64
}

// sample is the number of requests in flight at a time on the plan's clock.
type sample struct{ at, n int64 }

const sampleInterval = 100 * time.Millisecond

// snapshot is what the operating system and the runtime count.
type snapshot struct {
	at        int64         // on the attempt's clock
	wall      time.Duration // on the wall clock, since its anchor
	cpu       float64
	gcPauses  *metrics.Float64Histogram
	latencies *metrics.Float64Histogram
	steal     *stealCount
	throttled *float64
}

type stealCount struct{ stolen, total float64 }

func newObserver(r *runner) *observer {
	o := &observer{r: r, decoder: decoder{request: r.cfg.Request, tokenizer: r.cfg.Served.Tokenizer}, delays: map[int]schedstat{}, ports: freePorts(r.addr)}
	runtime.GC()
	// No collection in the window unless memory asks for one: the little that is
	// allocated while the load runs fits beside what is there.
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	o.gcPercent = debug.SetGCPercent(-1)
	o.memoryLimit = debug.SetMemoryLimit(int64(m.Sys) + spillAt + spillAt/2)
	return o
}

func (o *observer) restore() {
	debug.SetMemoryLimit(o.memoryLimit)
	debug.SetGCPercent(o.gcPercent)
}

// start forgets what the preparations did.
func (o *observer) start() {
	for _, l := range o.r.loops {
		l.doubts.reset()
	}
}

// run samples until ctx is done.
func (o *observer) run(ctx context.Context) {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	first := o.r.plan.Windows[0].Start
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		at := o.r.now() - o.r.zero
		if o.begin == nil && at >= first {
			o.begin = o.snapshot()
			o.start()
		}
		if o.begin != nil && at < o.r.lastWindow.Load() {
			o.threadDelays()
		}
		if o.begin != nil && o.end == nil && at >= o.r.lastWindow.Load() {
			o.end = o.snapshot()
		}
		o.r.arena.stock()
		o.spill()
		o.progress(at)
	}
}

// spillAt is how many bytes of answers are kept before they are decoded while
// the load runs.
const spillAt = 256 << 20

// spill decodes what has ended when memory runs short.
func (o *observer) spill() {
	if o.r.arena.held.Load() < spillAt {
		return
	}
	for _, l := range o.r.loops {
		for _, x := range l.takeEnded() {
			if x.slot != nil && !x.followed.Load() {
				l.giveBack(x)
				continue
			}
			o.decodedLive += int64(x.size)
			row := o.decoder.row(x)
			o.texts = append(o.texts, o.decoder.untold(x, &row))
			o.rows = append(o.rows, row)
			o.r.arena.take(x)
		}
	}
}

func (o *observer) progress(at int64) {
	r := o.r
	if r.cfg.Progress == nil || at-o.lastShown < 500_000_000 {
		return
	}
	o.lastShown = at
	window, phase := r.phaseAt(at)
	done, inFlight := r.doneN.Load(), r.inFlight.Load()
	r.cfg.Progress(Progress{
		At: r.zero + at, Phase: phase, Window: int(window), Windows: len(r.plan.Windows), Offered: int(done + inFlight), Done: int(done),
		Failed: int(r.failedN.Load()), InFlight: int(inFlight), End: r.zero + r.lastWindow.Load(),
	})
}

// ladder notes the load in the system, and judges each load point at its end: the
// next one is not offered where this one was already too much.
func (o *observer) ladder(at int64) {
	windows := o.r.plan.Windows
	if len(windows) < 2 || !o.r.cfg.StopWhenSaturated || o.judged >= len(windows)-1 {
		return
	}
	w := windows[o.judged]
	if at >= w.Start && at < w.End {
		o.inFlight = append(o.inFlight, sample{at: at, n: o.r.inFlight.Load()})
	}
	if at < w.End {
		return
	}
	if why, over := saturating(o.inFlight); over {
		o.stoppedWhy = fmt.Sprintf("stopped behind load point %d (%g requests/s): %s", w.Index, w.Rate, why)
		o.r.lastWindow.Store(w.End)
		o.r.truncated.Store(true)
		o.judged = len(windows)
		return
	}
	o.judged++
	o.inFlight = o.inFlight[:0]
}

// saturationBlocks is how many blocks a load point is cut into for the trend.
const saturationBlocks = 20

// saturating tests the number of requests in the system for growth: a trend that
// chance does not explain, of more than a tenth of the mean and more than two
// requests.
func saturating(samples []sample) (string, bool) {
	if len(samples) < saturationBlocks {
		return "", false
	}
	blocks := make([]float64, saturationBlocks)
	var mean float64
	for b := range blocks {
		from, to := b*len(samples)/saturationBlocks, (b+1)*len(samples)/saturationBlocks
		for _, s := range samples[from:to] {
			blocks[b] += float64(s.n) / float64(to-from)
		}
		mean += blocks[b] / saturationBlocks
	}
	trend := stats.MannKendall(blocks)
	growth := stats.SenSlope(blocks) * (saturationBlocks - 1)
	if trend.S <= 0 || trend.P >= 0.01 || growth < max(2, 0.1*mean) {
		return "", false
	}
	return fmt.Sprintf("the requests in the system grew by %.0f within the window (p = %.2g)", growth, trend.P), true
}

func (o *observer) snapshot() *snapshot {
	// One reading has both clocks.
	now := time.Now()
	s := &snapshot{
		at: int64(now.Sub(o.r.clock.origin)), wall: now.Round(0).Sub(o.r.clock.Wall()),
		steal: readSteal(), throttled: readThrottled(),
	}
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		s.cpu = float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
	}
	samples := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}, {Name: "/sched/latencies:seconds"}}
	metrics.Read(samples)
	if samples[0].Value.Kind() == metrics.KindFloat64Histogram {
		s.gcPauses = samples[0].Value.Float64Histogram()
	}
	if samples[1].Value.Kind() == metrics.KindFloat64Histogram {
		s.latencies = samples[1].Value.Float64Histogram()
	}
	return s
}

// threadDelays looks at how long our reading threads waited for a processor when
// they had something to do.
func (o *observer) threadDelays() {
	for _, l := range o.r.loops {
		tid := int(l.tid.Load())
		b, err := os.ReadFile(filepath.Join("/proc/self/task", strconv.Itoa(tid), "schedstat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b))
		if len(fields) < 3 {
			continue
		}
		delay, err1 := strconv.ParseUint(fields[1], 10, 64)
		slices, err2 := strconv.ParseUint(fields[2], 10, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		if before, seen := o.delays[tid]; seen && slices > before.slices {
			n := slices - before.slices
			o.waits = append(o.waits, wait{float64(delay-before.delay) / float64(n) / 1e9, n})
		}
		o.delays[tid] = schedstat{delay, slices}
	}
}

// waitP99 is the wait that 99 % of the wakes stayed within, taking each as long as
// the mean of its interval.
func waitP99(waits []wait) float64 {
	slices.SortFunc(waits, func(a, b wait) int { return cmp.Compare(a.mean, b.mean) })
	var total, seen uint64
	for _, w := range waits {
		total += w.wakes
	}
	for _, w := range waits {
		if seen += w.wakes; seen*100 >= total*99 {
			return w.mean
		}
	}
	return 0
}

// readSteal is the time that a hypervisor took away, over all processors.
func readSteal() *stealCount {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 9 || fields[0] != "cpu" {
		return nil
	}
	var s stealCount
	for i, f := range fields[1:9] {
		v, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return nil
		}
		s.total += v
		if i == 7 {
			s.stolen = v
		}
	}
	return &s
}

// readThrottled is how often the cgroup held this process back, or nil.
func readThrottled() *float64 {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	for _, line := range strings.Split(string(b), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		var file string
		switch {
		case parts[0] == "0" && parts[1] == "":
			file = filepath.Join("/sys/fs/cgroup", parts[2], "cpu.stat")
		case strings.Contains(","+parts[1]+",", ",cpu,"):
			file = filepath.Join("/sys/fs/cgroup", parts[1], parts[2], "cpu.stat")
		default:
			continue
		}
		stat, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(stat), "\n") {
			if value, ok := strings.CutPrefix(line, "nr_throttled "); ok {
				if n, err := strconv.ParseFloat(value, 64); err == nil {
					return &n
				}
			}
		}
	}
	return nil
}

// reserveDescriptors are left for everything that is not a connection.
const reserveDescriptors = 64

// budget checks descriptors and ports before anything starts, and returns how
// many connections one loop may have.
func (r *runner) budget() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Cur < limit.Max {
		limit.Cur = limit.Max
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
			_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
		}
	}
	available := int(min(limit.Cur, 1<<20)) - reserveDescriptors
	need := max(r.plan.Closed, r.cfg.Client.Preopen, 1)
	if available < need {
		return 0, fmt.Errorf("this process may open %d files, but the load needs %d connections: raise the limit of open files (ulimit -n %d)",
			limit.Cur, need, need+reserveDescriptors)
	}
	if free := freePorts(r.addr); free != nil && *free < need {
		return 0, fmt.Errorf("%d local ports are free, but the load needs %d connections: wait for closed ones, or widen net.ipv4.ip_local_port_range", *free, need)
	}
	r.descriptors = int(min(limit.Cur, math.MaxInt32))
	most := r.cfg.MaxInFlight
	if most == 0 {
		most = r.plan.Workload.MaxConcurrency
	}
	if most == 0 {
		most = DefaultMaxInFlight
	}
	r.limit = int64(max(most, 1))
	// Idle connections count too.
	return min(available, most+256+r.preopen()), nil
}

// harness sums up what was observed.
func (o *observer) harness() Harness {
	r := o.r
	h := Harness{
		Threads: len(r.loops) + 1, Realtime: r.realtime.Load(), TLS: r.tls != nil,
		InFlightMax: int(r.inFlightMax.Load()), Limit: int(r.limit), AtLimit: r.sender.atLimit,
		StaleResent: int(r.stale.Load()), Connections: int(r.opened.Load()), DescriptorsMax: r.descriptors,
		PortsFree: o.ports, DecodedInWindow: o.decodedLive,
	}
	if o.begin == nil {
		return h
	}
	if o.end == nil {
		o.end = o.snapshot()
	}
	seconds := float64(o.end.at-o.begin.at) / 1e9
	h.WindowSeconds = seconds
	cpu, cores := o.end.cpu-o.begin.cpu, float64(usableCPUs())*seconds
	h.CPUSeconds, h.CPUAvailable = &cpu, &cores
	if a, b := o.begin.throttled, o.end.throttled; a != nil && b != nil {
		n := *b - *a
		h.Throttled = &n
	}
	if a, b := o.begin.steal, o.end.steal; a != nil && b != nil && b.total > a.total {
		ratio := (b.stolen - a.stolen) / (b.total - a.total)
		h.StealRatio = &ratio
	}
	if longest, total, ok := difference(o.begin.gcPauses, o.end.gcPauses).pauses(); ok {
		h.GCPauseMax, h.GCPauseTotal = &longest, &total
	}
	if p99, ok := difference(o.begin.latencies, o.end.latencies).quantile(0.99); ok {
		h.SchedulerP99 = &p99
	}
	if len(o.waits) > 0 {
		p99 := waitP99(o.waits)
		h.ThreadDelayP99 = &p99
	}
	for _, l := range r.loops {
		l.doubts.add(&h)
	}
	drift := (o.end.wall - o.begin.wall).Seconds() - seconds
	h.ClockDrift = &drift
	return h
}

// usableCPUs is how many processors the process may use.
func usableCPUs() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		return max(1, set.Count())
	}
	return runtime.NumCPU()
}

// counts is the difference of two histograms of the runtime.
type counts struct {
	n       []uint64
	buckets []float64
}

func difference(a, b *metrics.Float64Histogram) counts {
	if a == nil || b == nil || len(a.Counts) != len(b.Counts) {
		return counts{}
	}
	n := make([]uint64, len(b.Counts))
	for i := range n {
		n[i] = b.Counts[i] - a.Counts[i]
	}
	return counts{n, b.Buckets}
}

// upper is the upper bound of a bucket, its lower one for the last.
func (c counts) upper(i int) float64 {
	if math.IsInf(c.buckets[i+1], 1) {
		return c.buckets[i]
	}
	return c.buckets[i+1]
}

func (c counts) pauses() (longest, total float64, ok bool) {
	for i, n := range c.n {
		if n > 0 {
			longest = c.upper(i)
			total += float64(n) * c.upper(i)
		}
	}
	return longest, total, c.n != nil
}

func (c counts) quantile(q float64) (float64, bool) {
	var total, seen uint64
	for _, n := range c.n {
		total += n
	}
	if total == 0 {
		return 0, false
	}
	for i, n := range c.n {
		if seen += n; float64(seen) >= q*float64(total) {
			return c.upper(i), true
		}
	}
	return 0, false
}
