package workload

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"sbench/internal/setting"
)

// log writes a plan as a request log.
func requestLog(p *Plan) []byte {
	var b strings.Builder
	for _, r := range p.Requests {
		fmt.Fprintf(&b, "{\"t\": %.9f, \"input_tokens\": %d, \"output_tokens\": %d}\n", float64(r.Due)/1e9, r.Input, r.Output)
	}
	return []byte(b.String())
}

// A workload that was drawn, logged and profiled is found again.
func TestProfileLog_FindsTheWorkload(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*setting.Workload)
		check  func(setting.Workload) string
	}{
		"poisson": {func(*setting.Workload) {}, func(w setting.Workload) string {
			if w.Arrival.Process != setting.ProcessPoisson || math.Abs(w.Arrival.Rate-20) > 1 {
				return fmt.Sprintf("%+v", w.Arrival)
			}
			if w.Input.Distribution != setting.DistLognormal || math.Abs(w.Input.Median-200) > 15 || math.Abs(w.Input.Sigma-0.6) > 0.05 {
				return fmt.Sprintf("%+v", w.Input)
			}
			if w.Output.Distribution != setting.DistConstant || w.Output.Value != 64 {
				return fmt.Sprintf("%+v", w.Output)
			}
			return ""
		}},
		"bursts": {func(w *setting.Workload) { w.Arrival.Process, w.Arrival.Burstiness = setting.ProcessGamma, 0.25 }, func(w setting.Workload) string {
			if w.Arrival.Process != setting.ProcessGamma || math.Abs(w.Arrival.Burstiness-0.25) > 0.06 {
				return fmt.Sprintf("%+v", w.Arrival)
			}
			return ""
		}},
		"constant": {func(w *setting.Workload) { w.Arrival.Process = setting.ProcessConstant }, func(w setting.Workload) string {
			if w.Arrival.Process != setting.ProcessConstant || math.Abs(w.Arrival.Rate-20) > 0.1 {
				return fmt.Sprintf("%+v", w.Arrival)
			}
			return ""
		}},
		"two heaps": {func(w *setting.Workload) {
			w.Input = setting.Lengths{Distribution: setting.DistHistogram, Bins: []setting.Bin{{Min: 10, Max: 20, Weight: 1}, {Min: 1000, Max: 1100, Weight: 1}}}
		}, func(w setting.Workload) string {
			low, high := 0.0, 0.0
			for _, b := range w.Input.Bins {
				if b.Max <= 20 {
					low += b.Weight
				} else if b.Min >= 1000 {
					high += b.Weight
				}
			}
			if w.Input.Distribution != setting.DistHistogram || len(w.Input.Bins) > 2*histogramBins || low == 0 || math.Abs(low/high-1) > 0.2 {
				return fmt.Sprintf("%g to %g: %+v", low, high, w.Input)
			}
			return ""
		}},
		"joint": {func(w *setting.Workload) {
			w.Input = setting.Lengths{Distribution: setting.DistPairs, Pairs: []setting.Pair{{Input: 10, Output: 20, Weight: 1}, {Input: 1000, Output: 2000, Weight: 1}}}
			w.Output = setting.Lengths{Distribution: setting.DistPairs}
		}, func(w setting.Workload) string {
			if w.Input.Distribution != setting.DistPairs || w.Output.Distribution != setting.DistPairs {
				return fmt.Sprintf("%+v", w.Input)
			}
			for _, p := range w.Input.Pairs {
				if p.Output != 2*p.Input {
					return fmt.Sprintf("%+v", w.Input.Pairs)
				}
			}
			return ""
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serving(setting.ProcessPoisson, 20)
			w.Warmup, w.Ramp, w.Drain = 0, 0, 0
			w.Duration = 200e9
			c.change(&w)
			p, err := ProfileLog(requestLog(plan(t, w, 0)))
			if err != nil {
				t.Fatal(err)
			}
			found := p.Workload()
			if fault := c.check(found); fault != "" {
				t.Error(fault)
			}
			if _, err := New(found, 0, Options{}); err != nil {
				t.Errorf("the workload that was found cannot be planned: %v", err)
			}
		})
	}
}

// BurstGPT's times are in seconds, and its failures, without answers, are no
// requests of length 0.
func TestProfileLog_BurstGPT(t *testing.T) {
	t.Parallel()
	const log = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n118,GPT-4,417,276,693,Conversation log\n"
	p, err := ProfileLog([]byte(log))
	if err != nil {
		t.Fatal(err)
	}
	if p.Requests != 2 || p.Skipped != 1 || p.Seconds != 113 || p.Input.Max != 472 || p.Output.Min != 18 {
		t.Errorf("%+v", p)
	}
	if points, err := parseTrace([]byte(log), 1); err != nil || points[2].at != 113 {
		t.Errorf("as a trace: %v, %v", points, err)
	}
	for _, bad := range []string{"", "t\n1\n", "t\n1\n1\n", "a\n1\n", "{\"t\": \"x\"}"} {
		if p, err := ProfileLog([]byte(bad)); err == nil {
			t.Errorf("%q gives %+v", bad, p)
		}
	}
}

// Whatever a log holds, a profile is refused or can be planned.
func FuzzProfileLog(f *testing.F) {
	f.Add([]byte("t,input_tokens,output_tokens\n1,2,3\n2,3,4\n4,5,6\n"))
	f.Add([]byte("{\"timestamp\": 5, \"input_length\": 1}\n{\"timestamp\": 9}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ProfileLog(data)
		if err != nil || p.Rate > 1000 {
			return
		}
		w := p.Workload()
		if w.Input.Distribution == "" {
			w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 1}
		}
		if w.Output.Distribution == "" {
			w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: 1}
		}
		if w.Arrival.Rate == 0 {
			return // a log of ages
		}
		w.Warmup, w.Ramp, w.Drain = 0, 0, 0
		if _, err := New(w, 0, Options{}); err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
	})
}
