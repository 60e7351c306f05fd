//go:build load

package load_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/runner/audit"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// truthConfig is a load on the simulated engine.
type truthConfig struct {
	Address string
	Streams int
	Output  int
	Seconds float64
	Round   int // each has requests, and names of them, of its own
}

// stream is what one client saw of one stream: CLOCK_MONOTONIC, ns.
type stream struct {
	ID     string
	Sent   int64
	Events []int64
}

// seen is what one client saw, and whether it vouches for it itself.
type seen struct {
	Streams []stream
	Valid   bool
	Reasons []string // of its audit's harness checks that failed
}

// truthOursRole offers a closed loop and returns what its rows say.
func truthOursRole(raw json.RawMessage) (any, error) {
	var c truthConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	s := setting.Default()
	w := s.Workload
	w.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: c.Streams}
	w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 16}
	w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: c.Output}
	w.Warmup, w.Ramp, w.Duration, w.Drain, w.Seed = time.Second, time.Second, time.Duration(c.Seconds*1e9), 30*time.Second, int64(9+c.Round)
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		return nil, err
	}
	clock := loadgen.NewClock()
	rec, err := loadgen.Run(context.Background(), loadgen.Config{
		Target: loadgen.Target{Network: "tcp", Address: c.Address, Host: c.Address}, Request: w.Request, Plan: plan,
		Served: loadgen.Served{
			UsageStream: true, Usage: true, TokenSource: "usage",
			Vocabulary: workload.Vocabulary{Words: strings.Fields("one two six ten")},
		},
	}, clock)
	if err != nil {
		return nil, err
	}
	windows := []result.Window{metrics.Compute(rec.Requests, rec.Windows[0], nil)}
	checks := audit.Run(audit.Input{Workload: w, Plan: plan, Recording: rec, Windows: windows})
	out := seen{Valid: audit.Valid(checks)}
	for _, c := range checks {
		if c.Verdict == result.VerdictFail && c.Kind == result.CheckHarness {
			out.Reasons = append(out.Reasons, c.Name+": "+c.Reason)
		}
	}
	for i := range rec.Requests {
		r := &rec.Requests[i]
		if r.Outcome != result.OutcomeOK || r.Phase == result.PhaseWarmup {
			continue
		}
		one := stream{ID: fmt.Sprintf("%s-%d.%d", plan.Hash[:8], r.Session, r.Turn), Sent: *r.TWritten + clock.Monotonic()}
		for _, t := range r.EventTimes {
			one.Events = append(one.Events, t+clock.Monotonic())
		}
		out.Streams = append(out.Streams, one)
	}
	return out, nil
}

// truthBareRole reads bytes with net/http and notes the time of each event's end.
func truthBareRole(raw json.RawMessage) (any, error) {
	var c truthConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	raiseFiles()
	start := time.Now()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return nil, err
	}
	origin := ts.Nano()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: c.Streams}}
	stop := start.Add(time.Duration((c.Seconds + 2) * 1e9))
	var mu sync.Mutex
	var out seen
	var work sync.WaitGroup
	for i := range c.Streams {
		work.Go(func() {
			buf := make([]byte, 32<<10)
			time.Sleep(time.Duration(i) * time.Second / time.Duration(c.Streams)) // not all at once
			for n := 0; time.Now().Before(stop); n++ {
				one := stream{ID: fmt.Sprintf("bare-%d-%d-%d", c.Round, i, n)}
				text := fmt.Sprintf(`{"prompt":"one two six ten one two six ten one two six ten one two six ten","max_tokens":%d,"ignore_eos":true,"stream":true}`, c.Output)
				req, err := http.NewRequest(http.MethodPost, "http://"+c.Address+"/v1/completions", strings.NewReader(text))
				if err != nil {
					return
				}
				req.Header.Set("X-Request-Id", one.ID)
				req.Header.Set("Content-Type", "application/json")
				one.Sent = origin + int64(time.Since(start))
				resp, err := client.Do(req)
				if err != nil {
					time.Sleep(10 * time.Millisecond)
					continue // on a machine this busy a connection may be refused
				}
				for {
					n, err := resp.Body.Read(buf)
					now := origin + int64(time.Since(start))
					for range strings.Count(string(buf[:n]), "\n\n") {
						one.Events = append(one.Events, now)
					}
					if err != nil {
						break
					}
				}
				resp.Body.Close()
				mu.Lock()
				out.Streams = append(out.Streams, one)
				mu.Unlock()
			}
		})
	}
	work.Wait()
	return out, nil
}

// emitted are the true times of each request's events, by its id.
func emitted(t *testing.T, journal string) map[string][]int64 {
	t.Helper()
	f, err := os.Open(journal)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	times := map[string][]int64{}
	lines := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		var r struct {
			Kind      string
			RequestID string `json:"request_id"`
			Finish    string
			Emissions [][2]int64
		}
		if len(line) > 0 {
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatal(err)
			}
			if r.Kind == "request" && r.Finish == "length" {
				var at []int64
				for _, e := range r.Emissions {
					at = append(at, e[0])
				}
				times[r.RequestID] = at
			}
		}
		if err == io.EOF {
			return times
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// compared is what a client saw beside the truth, in s: errors of the first event's
// time and of the gaps, and both sides' times to first token and gaps.
type compared struct {
	first, gaps         []float64
	ttftSeen, ttftTrue  []float64
	gapsSeen, gapsTrue  []float64
	streams, unfinished int
	valid               bool // its audit accepts it
}

func compare(t *testing.T, streams []stream, truth map[string][]int64) (c compared) {
	t.Helper()
	for _, s := range streams {
		at, ok := truth[s.ID]
		if !ok || len(at) == 0 || len(s.Events) < len(at) {
			c.unfinished++
			continue
		}
		c.streams++
		c.first = append(c.first, float64(s.Events[0]-at[0])/1e9)
		c.ttftSeen = append(c.ttftSeen, float64(s.Events[0]-s.Sent)/1e9)
		c.ttftTrue = append(c.ttftTrue, float64(at[0]-s.Sent)/1e9)
		for i := 1; i < len(at); i++ {
			a, b := float64(s.Events[i]-s.Events[i-1])/1e9, float64(at[i]-at[i-1])/1e9
			c.gapsSeen, c.gapsTrue = append(c.gapsSeen, a), append(c.gapsTrue, b)
			c.gaps = append(c.gaps, max(a-b, b-a))
		}
	}
	if c.streams < 50 {
		t.Fatalf("%d of %d streams have a true time", c.streams, len(streams))
	}
	return c
}

// simulated starts the simulated engine on its core and returns its address and a
// function that ends it and reads its log of true times.
func simulated(t *testing.T, streams int) (address string, truth func() map[string][]int64) {
	t.Helper()
	journal := filepath.Join(t.TempDir(), "journal")
	cmd := exec.Command("taskset", "-c", strconv.Itoa(serverCPU), binary(t, "sbench-sim"), "-listen", "127.0.0.1:0", "-log", journal,
		"-slots", strconv.Itoa(streams), "-decode-rate", "20", "-sequence-cost", "5us", "-prefill-rate", "1000000", "-step-tokens", "65536")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, out)
	fields := strings.Fields(line)
	return fields[len(fields)-1], func() map[string][]int64 {
		ended = true
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		return emitted(t, journal)
	}
}

// Measured against true times, beside a reader that does nothing but read.
func TestTruth_SimulatedEngine(t *testing.T) {
	measuring(t)
	for _, streams := range []int{100, 2000} {
		address, end := simulated(t, streams)
		c := truthConfig{Address: address, Streams: streams, Output: 40, Seconds: 6}
		var ours, bare []seen
		for c.Round = range rounds {
			ours = append(ours, do[seen](t, "truth-ours", c))
			bare = append(bare, do[seen](t, "truth-bare", c))
		}
		truth := end()
		best, other := bestOf(t, ours, truth), bestOf(t, bare, truth)
		for _, f := range []struct {
			name string
			a, b []float64
		}{{"ttft", best.first, other.first}, {"gap", best.gaps, other.gaps}} {
			a, b := quantile(f.a, 0.99), quantile(f.b, 0.99)
			figure(t, fmt.Sprintf("%s_error_p99_bare_us_at_%d", f.name, streams), b*1e6, "-")
			figure(t, fmt.Sprintf("%s_error_p99_us_at_%d", f.name, streams), a*1e6, "-")
			figure(t, fmt.Sprintf("%s_error_p99_ratio_at_%d", f.name, streams), a/b, "<=1.5")
		}
		for _, f := range []struct {
			name       string
			seen, real []float64
		}{{"ttft", best.ttftSeen, best.ttftTrue}, {"gap", best.gapsSeen, best.gapsTrue}} {
			for _, q := range []float64{0.5, 0.9, 0.95, 0.99} {
				bias := quantile(f.seen, q)/quantile(f.real, q) - 1
				target := "<=1"
				if !best.valid {
					target = "-" // the audit refused it: nothing of it is printed
				}
				figure(t, fmt.Sprintf("%s_p%g_bias_percent_at_%d", f.name, q*100, streams), 100*max(bias, -bias), target)
			}
		}
		figure(t, fmt.Sprintf("ttft_p50_ms_at_%d", streams), quantile(best.ttftSeen, 0.5)*1e3, "-")
		figure(t, fmt.Sprintf("ttft_p50_true_ms_at_%d", streams), quantile(best.ttftTrue, 0.5)*1e3, "-")
		// Every round: the median is the true one, within what the audit tolerates
		// (1 % or 1 ms), or the audit refuses the attempt.
		good := 0
		for _, s := range ours {
			one := compare(t, s.Streams, truth)
			saw, real := quantile(one.ttftSeen, 0.5), quantile(one.ttftTrue, 0.5)
			if math.Abs(saw-real) < max(0.001, 0.01*real) || !s.Valid {
				good++
			}
			for _, why := range s.Reasons {
				t.Log(why)
			}
		}
		figure(t, fmt.Sprintf("ttft_p50_true_or_refused_at_%d", streams), float64(good)/rounds, ">=1")
	}
}

// bestOf is the round whose gaps were seen best, of those that the audit accepts if
// it accepts one.
func bestOf(t *testing.T, all []seen, truth map[string][]int64) (best compared) {
	t.Helper()
	for i, s := range all {
		c := compare(t, s.Streams, truth)
		c.valid = s.Valid
		if i == 0 || (c.valid && !best.valid) || (c.valid == best.valid && quantile(c.gaps, 0.99) < quantile(best.gaps, 0.99)) {
			best = c
		}
	}
	return best
}

// What a client as they are commonly written reports of the same engine.
func TestPeer_Truth(t *testing.T) {
	measuring(t)
	for _, streams := range []int{100, 2000} {
		address, end := simulated(t, streams)
		p := peer(t, peerConfig{URL: "http://" + address, Output: 40, Streams: streams, Seconds: 6, Spread: 1, Times: true})
		c := compare(t, p.Streams, end())
		figure(t, fmt.Sprintf("aiohttp_ttft_p50_ms_at_%d", streams), quantile(c.ttftSeen, 0.5)*1e3, "-")
		figure(t, fmt.Sprintf("aiohttp_ttft_p50_true_ms_at_%d", streams), quantile(c.ttftTrue, 0.5)*1e3, "-")
		figure(t, fmt.Sprintf("aiohttp_gap_error_p99_us_at_%d", streams), quantile(c.gaps, 0.99)*1e6, "-")
	}
}
