package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/runner/audit"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
	"sbench/internal/sim"
)

// engine starts the simulated engine and returns its URL.
func engine(t *testing.T, change func(*sim.Config)) string {
	t.Helper()
	c := sim.DefaultConfig()
	c.Listen = "127.0.0.1:0"
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	address := make(chan string, 1)
	done := make(chan error, 1)
	go func() { done <- sim.Run(ctx, c, func(a string) { address <- a }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("engine: %v", err)
		}
	})
	select {
	case a := <-address:
		return "http://" + a
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return ""
}

func options(url string) Options {
	s := setting.Default()
	w := s.Workload
	w.Arrival.Rate = 60
	w.Input = setting.Lengths{Distribution: setting.DistUniform, Min: 20, Max: 60}
	w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: 6}
	w.Warmup, w.Ramp, w.Duration, w.Drain, w.Seed = 300*time.Millisecond, 300*time.Millisecond, 4*time.Second, 5*time.Second, 11
	return Options{URL: url, Workload: w, SLO: map[string]time.Duration{"ttft_p95": 10 * time.Second}}
}

// A whole run against a server: exact prompts, every metric or a reason, an
// audit, and the three ways out.
func TestRun(t *testing.T) {
	t.Parallel()
	report, err := Run(t.Context(), options(engine(t, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Windows) != 1 || len(report.Checks) < 15 || report.PlanHash == "" || report.Served.TokenSource != "tokenizer" {
		t.Fatalf("%d windows, %d checks, %+v", len(report.Windows), len(report.Checks), report.Served)
	}
	for _, c := range report.Checks {
		if c.Name == audit.TokenCount && (c.Value == nil || *c.Value != 0) {
			t.Errorf("%+v", c)
		}
	}
	w := report.Windows[0]
	for _, name := range []string{"ttft_p50", "ttft_p95", "tpot_p95", "itl_p99", "output_tokens_per_s", "goodput", "little_ratio"} {
		if w.Metrics[name] == nil {
			t.Errorf("%s is null: %s", name, w.NullReasons[name])
		}
	}
	if w.Metrics["ttft_p99"] != nil || !strings.Contains(w.NullReasons["ttft_p99"], "needs 1000") {
		t.Errorf("ttft_p99 of 240 requests: %q", w.NullReasons["ttft_p99"])
	}
	if got := *w.Metrics["output_tokens_mean"]; got != 6 {
		t.Errorf("%g output tokens, 6 were asked for", got)
	}

	var doc bytes.Buffer
	if err := json.NewEncoder(&doc).Encode(report.Document()); err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Valid   *bool
		Windows []struct {
			TargetRate *float64            `json:"target_rate_per_s"`
			Metrics    map[string]*float64 `json:"metrics"`
		}
		Units map[string]string
	}
	if err := json.Unmarshal(doc.Bytes(), &parsed); err != nil {
		t.Fatal(err)
	}
	if parsed.Valid == nil || len(parsed.Windows) != 1 || *parsed.Windows[0].TargetRate != 60 || len(parsed.Windows[0].Metrics) != len(metrics.WindowTable()) || parsed.Units["ttft_p95"] != "s" {
		t.Errorf("%s", doc.String())
	}

	var log bytes.Buffer
	report.WriteHistograms(&log)
	reader := hdrhistogram.NewHistogramLogReader(&log)
	h, err := reader.NextIntervalHistogram()
	if err != nil || h == nil || h.TotalCount() == 0 {
		t.Errorf("HdrHistogram's own reader: %v, %v", h, err)
	}
}

// What the client measures is what the engine's model says: a decoding rate of
// 50/s is a time per token of 20 ms.
func TestRun_AgreesWithTheModel(t *testing.T) {
	t.Parallel()
	o := options(engine(t, func(c *sim.Config) { c.Cost.DecodeRate, c.Cost.PerSequence = 50, 0 }))
	o.Workload.Arrival = setting.Arrival{Process: setting.ProcessConstant, Rate: 6}
	o.Workload.Output.Value = 20
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	got := report.Windows[0].Metrics["tpot_p50"]
	if got == nil || math.Abs(*got-0.020) > 0.002 {
		t.Errorf("tpot_p50 is %v, want 0.020 s (%s)", got, report.Windows[0].NullReasons["tpot_p50"])
	}
}

// An engine that cannot keep up is a finding, and the ladder ends there.
func TestRun_LadderFindsSaturation(t *testing.T) {
	t.Parallel()
	o := options(engine(t, func(c *sim.Config) { c.Limits.Slots = 2 })) // about 33 requests/s
	o.Workload.Arrival = setting.Arrival{Process: setting.ProcessConstant}
	o.Workload.Ladder = []float64{10, 120, 200}
	o.Workload.Duration, o.Workload.Drain = 3*time.Second, 30*time.Second
	o.StopWhenSaturated = true
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Windows) != 2 || report.Stopped == "" || len(report.Windows[0].Findings) > 0 {
		t.Fatalf("%d windows, %q, findings %v", len(report.Windows), report.Stopped, report.Windows[0].Findings)
	}
	found := slices.Contains(report.Windows[1].Findings, audit.Saturated)
	for _, c := range report.Checks {
		if c.Name == audit.Saturated && c.Verdict == result.VerdictUnknown && strings.Contains(c.Reason, "client") {
			found = true // a busy machine: the client was late, and blames nobody
		}
	}
	if !found {
		t.Errorf("findings %v, checks %+v", report.Windows[1].Findings, report.Checks)
	}
}

func TestRun_Errors(t *testing.T) {
	t.Parallel()
	o := options("http://127.0.0.1:1")
	if _, err := Run(t.Context(), o); err == nil || !loadgen.Unreachable(err) {
		t.Errorf("nobody listens: %v", err)
	}
	o.URL = "gopher://x"
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("another protocol is accepted")
	}
	o = options("http://127.0.0.1:1")
	o.Workload.Arrival = setting.Arrival{Process: setting.ProcessTrace, TraceScale: 1, TraceDigest: "sha256:" + strings.Repeat("0", 64)}
	o.Trace = []byte("{\"t\": 1}\n")
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "sha256:"+strings.Repeat("0", 64)+" expected") {
		t.Errorf("another trace than pinned: %v", err)
	}
}
