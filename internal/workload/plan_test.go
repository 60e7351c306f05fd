package workload

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/result"
	"sbench/internal/setting"
)

var update = flag.Bool("update", false, "write the golden files")

// serving is a plain workload.
func serving(process setting.Process, rate float64) setting.Workload {
	s := setting.Default()
	w := s.Workload
	w.Arrival = setting.Arrival{Process: process, Rate: rate}
	w.Input = setting.Lengths{Distribution: setting.DistLognormal, Median: 200, Sigma: 0.6, Min: 1, Max: 4096}
	w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: 64}
	w.Warmup, w.Ramp, w.Duration, w.Drain = 5*time.Second, 5*time.Second, 60*time.Second, 10*time.Second
	w.Seed = 42
	return w
}

func plan(t *testing.T, w setting.Workload, repeat int) *Plan {
	t.Helper()
	p, err := New(w, repeat, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// measured are the times of the requests to be measured, in s from the window's
// start.
func measured(p *Plan, window int32) []float64 {
	var times []float64
	for _, r := range p.Requests {
		if r.Phase == result.PhaseMeasure && r.Window == window && r.Due != Dependent {
			times = append(times, float64(r.Due-p.Windows[window].Start)/1e9)
		}
	}
	return times
}

func gapsOf(times []float64) []float64 {
	var gaps []float64
	for i := 1; i < len(times); i++ {
		gaps = append(gaps, times[i]-times[i-1])
	}
	return gaps
}

func moments(x []float64) (mean, cv float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		cv += (v - mean) * (v - mean) / float64(len(x)-1)
	}
	return mean, math.Sqrt(cv) / mean
}

// kolmogorov is the largest distance of the sample's distribution from cdf.
func kolmogorov(x []float64, cdf func(float64) float64) float64 {
	sorted := slices.Sorted(slices.Values(x))
	d, n := 0.0, float64(len(sorted))
	for i, v := range sorted {
		f := cdf(v)
		d = max(d, f-float64(i)/n, float64(i+1)/n-f)
	}
	return d
}

// dispersion is the variance of the counts per interval by their mean: 1 for
// Poisson, 0 for constant.
func dispersion(times []float64, interval, length float64) float64 {
	counts := make([]float64, int(length/interval))
	for _, t := range times {
		if i := int(t / interval); i < len(counts) {
			counts[i]++
		}
	}
	mean, cv := moments(counts)
	return cv * cv * mean
}

// The processes are what they are called: gap distribution (KS), coefficient of
// variation, dispersion of counts. 30,000 arrivals each; the limits are beyond
// four standard deviations.
func TestArrivals_Distributions(t *testing.T) {
	t.Parallel()
	const rate, length = 50.0, 600.0
	for _, c := range []struct {
		name       string
		arrival    setting.Arrival
		cv         float64
		dispersion [2]float64
		cdf        func(float64) float64
	}{
		{"constant", setting.Arrival{Process: setting.ProcessConstant, Rate: rate}, 0, [2]float64{0, 0.01}, nil},
		{
			"poisson",
			setting.Arrival{Process: setting.ProcessPoisson, Rate: rate},
			1,
			[2]float64{0.75, 1.25},
			func(x float64) float64 { return 1 - math.Exp(-rate*x) },
		},
		{
			"gamma 1",
			setting.Arrival{Process: setting.ProcessGamma, Rate: rate, Burstiness: 1},
			1,
			[2]float64{0.75, 1.25},
			func(x float64) float64 { return 1 - math.Exp(-rate*x) },
		},
		{"gamma 0.25", setting.Arrival{Process: setting.ProcessGamma, Rate: rate, Burstiness: 0.25}, 2, [2]float64{2.8, 5.2}, nil},
		{
			"gamma 4",
			setting.Arrival{Process: setting.ProcessGamma, Rate: rate, Burstiness: 4},
			0.5,
			[2]float64{0.18, 0.36},
			// Erlang of order 4.
			func(x float64) float64 {
				y := 4 * rate * x
				return 1 - math.Exp(-y)*(1+y+y*y/2+y*y*y/6)
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := serving(c.arrival.Process, rate)
			w.Arrival, w.Duration = c.arrival, time.Duration(length*1e9)
			times := measured(plan(t, w, 0), 0)
			if n := float64(len(times)); math.Abs(n-rate*length) > 4*max(1, c.cv)*math.Sqrt(rate*length) {
				t.Errorf("%g arrivals, want about %g", n, rate*length)
			}
			mean, cv := moments(gapsOf(times))
			if math.Abs(mean*rate-1) > 0.03*max(1, c.cv) {
				t.Errorf("mean gap %g s, want %g s", mean, 1/rate)
			}
			if math.Abs(cv-c.cv) > 0.04*max(0.1, c.cv) {
				t.Errorf("coefficient of variation %g, want %g", cv, c.cv)
			}
			if d := dispersion(times, 1, length); d < c.dispersion[0] || d > c.dispersion[1] {
				t.Errorf("dispersion of the counts %g, want between %v", d, c.dispersion)
			}
			if c.cdf != nil {
				if d, limit := kolmogorov(gapsOf(times), c.cdf), 2.0/math.Sqrt(float64(len(times))); d > limit {
					t.Errorf("Kolmogorov distance %g, allowed %g", d, limit)
				}
			}
		})
	}
}

// A constant rate drifts by nothing, however long the run.
func TestArrivals_ConstantIsExact(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{3, 7, 8, 200, 333} {
		w := serving(setting.ProcessConstant, rate)
		w.Duration = 300 * time.Second
		times := measured(plan(t, w, 0), 0)
		if len(times) != int(rate*300) {
			t.Errorf("%g/s: %d arrivals in 300 s", rate, len(times))
		}
		for i, at := range times {
			if math.Abs(at-float64(i)/rate) > 1e-9 {
				t.Fatalf("%g/s: arrival %d at %.9f s, want %.9f s", rate, i, at, float64(i)/rate)
			}
		}
	}
}

// A ramp's arrivals follow its rising rate, and end where the load point begins.
func TestArrivals_Ramp(t *testing.T) {
	t.Parallel()
	w := serving(setting.ProcessPoisson, 200)
	w.Ramp = 100 * time.Second
	p := plan(t, w, 0)
	var times []float64
	for _, r := range p.Requests {
		if r.Phase == result.PhaseRamp {
			times = append(times, float64(r.Due-p.Windows[0].RampStart)/1e9)
		}
	}
	if n := float64(len(times)); math.Abs(n-10_000) > 400 {
		t.Errorf("%g arrivals in the ramp, want about 10,000", n)
	}
	// Times of a linear rate have a quadratic distribution function.
	if d := kolmogorov(times, func(x float64) float64 { return x * x / 10_000 }); d > 2/math.Sqrt(10_000) {
		t.Errorf("Kolmogorov distance %g", d)
	}
}

func TestArrivals_Stages(t *testing.T) {
	t.Parallel()
	w := serving(setting.ProcessStages, 0)
	w.Arrival = setting.Arrival{Process: setting.ProcessStages, Stages: []setting.Stage{
		{Rate: 10, Duration: 100 * time.Second}, {Rate: 110, Duration: 100 * time.Second}, {Rate: 0, Duration: 50 * time.Second},
	}}
	w.Duration = 250 * time.Second
	p := plan(t, w, 0)
	counts := [3]float64{}
	for _, at := range measured(p, 0) {
		counts[min(2, int(at/100))]++
	}
	for i, want := range []float64{1000, 6000, 2750} {
		if math.Abs(counts[i]-want) > 5*math.Sqrt(want) {
			t.Errorf("stage %d has %g arrivals, want about %g", i, counts[i], want)
		}
	}
	if got := p.Windows[0].Rate; math.Abs(got-9750.0/250) > 1e-9 {
		t.Errorf("mean rate %g", got)
	}
}

// Each load point of a ladder is a window with its own rate, in order.
func TestPlan_Ladder(t *testing.T) {
	t.Parallel()
	w := serving(setting.ProcessPoisson, 0)
	w.Ladder = []float64{5, 20, 80}
	p := plan(t, w, 0)
	if len(p.Windows) != 3 {
		t.Fatalf("%d windows", len(p.Windows))
	}
	for i, win := range p.Windows {
		if win.End-win.Start != int64(w.Duration) || win.Start-win.RampStart != int64(w.Ramp) || (i > 0 && win.RampStart != p.Windows[i-1].End) {
			t.Errorf("window %d: %+v", i, win)
		}
		n, want := float64(len(measured(p, int32(i)))), w.Ladder[i]*60
		if math.Abs(n-want) > 5*math.Sqrt(want) {
			t.Errorf("window %d has %g arrivals, want about %g", i, n, want)
		}
	}
	// The same arrivals, scaled, whatever the ladder: load points can be paired.
	w.Ladder = []float64{5, 40, 80}
	q := plan(t, w, 0)
	a, b := measured(p, 1), measured(q, 1)
	for i := range min(len(a), len(b)) {
		if math.Abs(a[i]-2*b[i]) > 1e-6 {
			t.Fatalf("arrival %d at %g s and %g s", i, a[i], b[i])
		}
	}
}

// A plan is in order, within its phases, and accounts for everything.
func TestPlan_Order(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := serving(rapid.SampledFrom([]setting.Process{setting.ProcessConstant, setting.ProcessPoisson, setting.ProcessGamma}).Draw(t, "process"), rapid.Float64Range(0.5, 50).Draw(t, "rate"))
		w.Arrival.Burstiness = 0.5
		w.Warmup = time.Duration(rapid.Int64Range(0, 5e9).Draw(t, "warmup"))
		w.Ramp = time.Duration(rapid.Int64Range(0, 5e9).Draw(t, "ramp"))
		w.Drain = time.Duration(rapid.Int64Range(0, 5e9).Draw(t, "drain"))
		w.Duration = time.Duration(rapid.Int64Range(1, 20e9).Draw(t, "duration"))
		w.Seed = rapid.Int64().Draw(t, "seed")
		w.Prompts.Turns = rapid.IntRange(1, 3).Draw(t, "turns")
		repeat := rapid.IntRange(0, 9).Draw(t, "repeat")
		p, err := New(w, repeat, Options{})
		if err != nil {
			t.Fatal(err)
		}
		last := int64(0)
		win := p.Windows[0]
		for i, r := range p.Requests {
			if int(r.Index) != i || r.Input < 1 || r.Output != 64 || r.Group != -1 || r.Prompt != -1 {
				t.Fatalf("request %d: %+v", i, r)
			}
			if (r.Turn > 0) != (r.Due == Dependent) {
				t.Fatalf("request %d: %+v", i, r)
			}
			if r.Turn > 0 {
				continue
			}
			if r.Due < last {
				t.Fatalf("request %d is due at %d, behind %d", i, r.Due, last)
			}
			last = r.Due
			low, high := map[result.Phase]int64{
				result.PhaseWarmup: 0, result.PhaseRamp: p.WarmupEnd, result.PhaseMeasure: win.Start, result.PhaseTail: win.End,
			}[r.Phase], map[result.Phase]int64{
				result.PhaseWarmup: p.WarmupEnd, result.PhaseRamp: win.Start, result.PhaseMeasure: win.End, result.PhaseTail: p.Length,
			}[r.Phase]
			if r.Due < low || r.Due >= high {
				t.Fatalf("request %d (%s) is due at %d, outside [%d, %d)", i, r.Phase, r.Due, low, high)
			}
		}
		again, err := New(w, repeat, Options{})
		if err != nil || again.Hash != p.Hash || !slices.Equal(again.Requests, p.Requests) {
			t.Fatalf("the same workload has another plan: %v", err)
		}
		other, err := New(w, repeat+1, Options{})
		if err != nil || other.Hash == p.Hash {
			t.Fatalf("two repeats have one plan: %v", err)
		}
	})
}

// Each purpose draws from a stream of its own: another hit ratio, another length
// or another warm-up moves nothing else.
func TestPlan_StreamsAreIndependent(t *testing.T) {
	t.Parallel()
	base := serving(setting.ProcessPoisson, 20)
	base.Prompts.Groups, base.Prompts.PrefixLen, base.Prompts.HitRatio = 4, 50, 0.5
	a := plan(t, base, 0)
	other := base
	other.Prompts.HitRatio = 0.9
	other.Output = setting.Lengths{Distribution: setting.DistUniform, Min: 1, Max: 100}
	other.Warmup, other.Ramp = 9*time.Second, 0
	b := plan(t, other, 0)
	pick := func(p *Plan) (times []float64, inputs []int32, seeds []uint64) {
		for _, r := range p.Requests {
			if r.Phase == result.PhaseMeasure {
				inputs, seeds = append(inputs, r.Input), append(seeds, r.Seed)
			}
		}
		return measured(p, 0), inputs, seeds
	}
	times, inputs, seeds := pick(a)
	times2, inputs2, seeds2 := pick(b)
	if !slices.Equal(inputs, inputs2) || !slices.Equal(seeds, seeds2) {
		t.Error("input lengths or prompts moved")
	}
	for i := range times {
		if math.Abs(times[i]-times2[i]) > 1e-8 {
			t.Fatalf("arrival %d moved", i)
		}
	}
}

func TestLengths_Distributions(t *testing.T) {
	t.Parallel()
	bins := []setting.Bin{{Min: 1, Max: 10, Weight: 1}, {Min: 100, Max: 109, Weight: 3}}
	for _, c := range []struct {
		lengths   setting.Lengths
		low, high int32
		mean      float64
	}{
		{setting.Lengths{Distribution: setting.DistConstant, Value: 77}, 77, 77, 77},
		{setting.Lengths{Distribution: setting.DistUniform, Min: 10, Max: 20}, 10, 20, 15},
		{setting.Lengths{Distribution: setting.DistNormal, Mean: 500, StdDev: 50, Min: 1, Max: 1000}, 200, 800, 500},
		{setting.Lengths{Distribution: setting.DistNormal, Mean: 1, StdDev: 100, Min: 1, Max: 1000}, 1, 600, 40.4},
		{setting.Lengths{Distribution: setting.DistLognormal, Median: 100, Sigma: 0.5, Min: 1, Max: 100_000}, 5, 2000, 100 * math.Exp(0.125)},
		{setting.Lengths{Distribution: setting.DistHistogram, Bins: bins}, 1, 109, 0.25*5.5 + 0.75*104.5},
	} {
		s := seeder{1, 0}.stream("input", 0)
		d, err := lengths("input_tokens", c.lengths, s)
		if err != nil {
			t.Fatal(err)
		}
		const n = 100_000
		low, high, sum := int32(math.MaxInt32), int32(0), 0.0
		for range n {
			v := d()
			low, high, sum = min(low, v), max(high, v), sum+float64(v)
		}
		if low < c.low || high > c.high || math.Abs(sum/n-c.mean) > 0.02*c.mean {
			t.Errorf("%+v: between %d and %d, mean %g; want between %d and %d, mean %g", c.lengths, low, high, sum/n, c.low, c.high, c.mean)
		}
	}
}

func TestPlan_Pairs(t *testing.T) {
	t.Parallel()
	w := serving(setting.ProcessPoisson, 100)
	w.Input = setting.Lengths{Distribution: setting.DistPairs, Pairs: []setting.Pair{{Input: 10, Output: 200, Weight: 1}, {Input: 900, Output: 5, Weight: 2}}}
	w.Output = setting.Lengths{Distribution: setting.DistPairs}
	short := 0.0
	p := plan(t, w, 0)
	for _, r := range p.Requests {
		switch {
		case r.Input == 10 && r.Output == 200:
			short++
		case r.Input != 900 || r.Output != 5:
			t.Fatalf("%+v is no pair", r)
		}
	}
	if share := short / float64(len(p.Requests)); math.Abs(share-1.0/3) > 0.03 {
		t.Errorf("the first pair has a share of %g", share)
	}
	w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: 5}
	if _, err := New(w, 0, Options{}); err == nil {
		t.Error("pairs on one side only are accepted")
	}
}

func TestPlan_Groups(t *testing.T) {
	t.Parallel()
	w := serving(setting.ProcessPoisson, 100)
	w.Prompts.Groups, w.Prompts.PrefixLen, w.Prompts.HitRatio = 5, 300, 0.7
	hits, n := 0.0, 0.0
	for _, r := range plan(t, w, 0).Requests {
		if r.Prefix != 300 || r.Input <= 300 {
			t.Fatalf("%+v has no prefix", r)
		}
		if r.Phase == result.PhaseWarmup {
			if r.Group >= 0 && r.Group < 5 {
				t.Fatal("warm-up warms a group of the measurement")
			}
			continue
		}
		n++
		if r.Group >= 0 {
			hits++
		}
	}
	if math.Abs(hits/n-0.7) > 0.03 {
		t.Errorf("hit ratio %g", hits/n)
	}
}

func TestPlan_Trace(t *testing.T) {
	t.Parallel()
	var jsonl, table strings.Builder
	table.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 200 {
		fmt.Fprintf(&jsonl, "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": %d, \"hash_ids\": [1]}\n", 5000+i*1000, 100+i, 10+i)
		fmt.Fprintf(&table, "%s,%d,%d\n", start.Add(time.Duration(i)*time.Second).Format("2006-01-02 15:04:05.000"), 100+i, 10+i)
	}
	for name, trace := range map[string]string{"jsonl": jsonl.String(), "csv": table.String()} {
		w := serving(setting.ProcessTrace, 0)
		w.Arrival = setting.Arrival{Process: setting.ProcessTrace, TraceScale: 2}
		w.Input, w.Output = setting.Lengths{Distribution: setting.DistFile}, setting.Lengths{Distribution: setting.DistFile}
		p, err := New(w, 0, Options{Trace: []byte(trace)})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		times := measured(p, 0)
		if len(times) != 120 {
			t.Fatalf("%s: %d requests in 60 s of a trace of 1/s at twice its speed", name, len(times))
		}
		for i, at := range times {
			if math.Abs(at-float64(i)/2) > 1e-9 {
				t.Fatalf("%s: request %d at %g s", name, i, at)
			}
		}
		tail := 0
		for _, r := range p.Requests {
			if r.Phase == result.PhaseMeasure && r.Output-r.Input != -90 {
				t.Fatalf("%s: lengths of two rows: %+v", name, r)
			}
			if r.Phase == result.PhaseTail {
				tail++
			}
		}
		if tail != 20 {
			t.Errorf("%s: %d requests behind the window, want 20", name, tail)
		}
		w.Duration = 300 * time.Second
		if _, err := New(w, 0, Options{Trace: []byte(trace)}); err == nil {
			t.Errorf("%s: a trace of 100 s fills 300 s", name)
		}
	}
}

func TestParseTrace_Refuses(t *testing.T) {
	t.Parallel()
	for _, trace := range []string{
		"", "{}", "{\"t\": \"x\"}", "{\"t\": 1e400}", "{\"t\": 1}\n{", "a,b\n1,2", "t\n1\n2,3", "{\"timestamp\": \"yesterday\"}", "[1]", "t\nNaN",
	} {
		if points, err := parseTrace([]byte(trace), 1); err == nil {
			t.Errorf("%q gives %v", trace, points)
		}
	}
	for _, scale := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := parseTrace([]byte("{\"t\": 1}"), scale); err == nil {
			t.Errorf("scale %v is accepted", scale)
		}
	}
}

func FuzzParseTrace(f *testing.F) {
	f.Add([]byte("{\"timestamp\": 5, \"input_length\": 1}\n"))
	f.Add([]byte("\xef\xbb\xbft,input_tokens\n1,2\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		points, err := parseTrace(data, 1)
		for i, p := range points {
			if err != nil || p.at < 0 || math.IsNaN(p.at) || (i > 0 && p.at < points[i-1].at) {
				t.Fatalf("%v, %v", points, err)
			}
		}
		_, _ = parsePrompts(data)
	})
}

func TestPlan_Closed(t *testing.T) {
	t.Parallel()
	w := serving(setting.ProcessClosed, 0)
	w.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: 4}
	p := plan(t, w, 0)
	if p.Closed != 4 || len(p.Windows) != 1 || p.Windows[0].Rate != 0 {
		t.Fatalf("%+v", p)
	}
	// The hash covers what the sequence begins with.
	for i := range 100 {
		got, want := p.Measured.Next()[0], p.Requests[hashedSessions+i]
		if got.Seed != want.Seed || got.Input != want.Input {
			t.Fatalf("session %d: %+v, hashed was %+v", i, got, want)
		}
	}
	if p.Warmup.Next()[0].Seed == p.Requests[hashedSessions].Seed {
		t.Error("warm-up has the measurement's prompts")
	}
}

func TestNew_Refuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*setting.Workload){
		"rate":         func(w *setting.Workload) { w.Arrival.Rate = 0 },
		"NaN":          func(w *setting.Workload) { w.Arrival.Rate = math.NaN() },
		"endless":      func(w *setting.Workload) { w.Arrival.Rate = 1e12 },
		"duration":     func(w *setting.Workload) { w.Duration = 0 },
		"warmup":       func(w *setting.Workload) { w.Warmup = -1 },
		"length":       func(w *setting.Workload) { w.Output.Value = 0 },
		"distribution": func(w *setting.Workload) { w.Input = setting.Lengths{Distribution: "zipf"} },
		"shape":        func(w *setting.Workload) { w.Arrival = setting.Arrival{Process: setting.ProcessGamma, Rate: 1} },
		"stages":       func(w *setting.Workload) { w.Arrival = setting.Arrival{Process: setting.ProcessStages} },
		"trace":        func(w *setting.Workload) { w.Arrival = setting.Arrival{Process: setting.ProcessTrace, TraceScale: 1} },
		"closed":       func(w *setting.Workload) { w.Arrival = setting.Arrival{Process: setting.ProcessClosed} },
		"ladder":       func(w *setting.Workload) { w.Ladder = []float64{1, -1} },
		"file":         func(w *setting.Workload) { w.Prompts.Source = "file" },
		"groups":       func(w *setting.Workload) { w.Prompts.Groups = 2 },
		"process":      func(w *setting.Workload) { w.Arrival.Process = "bursts" },
	} {
		w := serving(setting.ProcessPoisson, 10)
		change(&w)
		if p, err := New(w, 0, Options{}); err == nil {
			t.Errorf("%s: a plan of %d requests", name, len(p.Requests))
		}
	}
}

// golden are the hashes of plans, pinned for ever: a plan must not depend on the
// machine or on the version of the program.
func TestPlan_GoldenHashes(t *testing.T) {
	t.Parallel()
	const file = "../../tests/vectors/schedule/hashes.json"
	got := map[string]string{}
	for name, change := range map[string]func(*setting.Workload){
		"constant": func(w *setting.Workload) { w.Arrival.Process = setting.ProcessConstant },
		"poisson":  func(*setting.Workload) {},
		"gamma": func(w *setting.Workload) {
			w.Arrival.Process, w.Arrival.Burstiness = setting.ProcessGamma, 0.4
		},
		"ladder": func(w *setting.Workload) { w.Ladder = []float64{1, 2.5, 10} },
		"stages": func(w *setting.Workload) {
			w.Arrival = setting.Arrival{Process: setting.ProcessStages, Stages: []setting.Stage{{Rate: 4, Duration: 20 * time.Second}, {Rate: 16, Duration: 40 * time.Second}}}
		},
		"closed": func(w *setting.Workload) {
			w.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: 8}
		},
		"sessions": func(w *setting.Workload) { w.Prompts.Turns, w.Prompts.ThinkTime = 3, 2*time.Second },
		"groups": func(w *setting.Workload) {
			w.Prompts.Groups, w.Prompts.PrefixLen, w.Prompts.HitRatio = 10, 512, 0.8
		},
		"normal": func(w *setting.Workload) {
			w.Input = setting.Lengths{Distribution: setting.DistNormal, Mean: 300, StdDev: 80, Min: 1, Max: 2000}
		},
		"uniform": func(w *setting.Workload) {
			w.Input = setting.Lengths{Distribution: setting.DistUniform, Min: 3, Max: 999}
		},
		"histogram": func(w *setting.Workload) {
			w.Input = setting.Lengths{Distribution: setting.DistHistogram, Bins: []setting.Bin{{Min: 1, Max: 9, Weight: 0.3}, {Min: 10, Max: 99, Weight: 0.7}}}
		},
	} {
		w := serving(setting.ProcessPoisson, 8)
		change(&w)
		for repeat := range 2 {
			p, err := New(w, repeat, Options{})
			if err != nil {
				t.Fatal(err)
			}
			got[fmt.Sprintf("%s, repeat %d", name, repeat)] = p.Hash
		}
	}
	if *update {
		b, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll("../../tests/vectors/schedule", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]string
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plans changed (-want +got):\n%s", diff)
	}
}
