package loadgen

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// What other clients get wrong where several workers share a load, and where the
// network is not what it seems. The list of all such faults, with the tests that
// hold us to them, is in tests/conformance.

// recorded answers like streamTokens and keeps the prompts.
func recorded(n int, gap time.Duration) (script, func() []string) {
	var mu sync.Mutex
	var prompts []string
	answer := streamTokens(n, gap)
	return func(c net.Conn, r *http.Request, b []byte) bool {
			var body struct{ Prompt string }
			if json.Unmarshal(b, &body) == nil {
				mu.Lock()
				prompts = append(prompts, body.Prompt)
				mu.Unlock()
			}
			return answer(c, r, b)
		}, func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Sorted(slices.Values(prompts))
		}
}

// The number of reading threads changes nothing of what is offered: every planned
// prompt, each once, at its planned time.
func TestRun_WorkersOfferOnePlan(t *testing.T) {
	t.Parallel()
	w := load(150, 0.6, 2)
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	prompter, err := workload.NewPrompter(plan, counted().Vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	for _, readers := range []int{1, 4} {
		answer, prompts := recorded(2, 0)
		s := serve(t, "tcp", answer)
		_, rec := outcomes(t, s, w, func(c *Config) { c.Client.Readers = readers })
		seen := map[string]int{}
		for _, p := range prompts() {
			seen[p]++
		}
		zero := rec.Windows[0].Start - plan.Windows[0].Start
		rows := map[int32]int64{}
		for _, r := range rec.Requests {
			rows[r.Index] = r.TIntended - zero
		}
		for i := range plan.Requests {
			r := &plan.Requests[i]
			if r.Phase == result.PhaseTail {
				continue // the tail ends when the last measured request does
			}
			if n := seen[string(prompter.Append(nil, r))]; n != 1 {
				t.Errorf("%d readers: the prompt of request %d was offered %d times", readers, i, n)
			}
			if rows[r.Index] != r.Due {
				t.Errorf("%d readers: request %d was due at %d, planned for %d", readers, i, rows[r.Index], r.Due)
			}
		}
	}
}

// The slots of a closed loop are shared by all threads: never more at once than
// asked for, and not fewer where the server is slower than the client.
func TestRun_WorkersShareTheSlots(t *testing.T) {
	t.Parallel()
	s := serve(t, "tcp", streamTokens(2, 20*time.Millisecond))
	w := load(0, 1, 2)
	w.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: 7}
	_, rec := outcomes(t, s, w, func(c *Config) { c.Client.Readers = 4 })
	if rec.Harness.InFlightMax != 7 {
		t.Errorf("%d requests at once in 7 slots", rec.Harness.InFlightMax)
	}
	seen := map[[2]int32]bool{}
	for _, r := range rec.Requests {
		key := [2]int32{r.Session, r.Turn}
		if r.Phase != result.PhaseWarmup && seen[key] {
			t.Errorf("session %d was offered twice", r.Session)
		}
		seen[key] = r.Phase != result.PhaseWarmup || seen[key]
	}
}

// A stream that runs into its time limit keeps the times and tokens it had; they
// count for throughput and never for a latency of a whole answer.
func TestRun_TimedOutStreamKeepsItsTimes(t *testing.T) {
	t.Parallel()
	w := load(50, 0.3, 2)
	w.Request.TimeoutTotal = 300 * time.Millisecond
	_, rec := outcomes(t, serve(t, "tcp", hang(streamHead+chunkOf(textEvent("a")))), w, nil)
	for _, r := range rec.Requests {
		if r.Phase != result.PhaseMeasure {
			continue
		}
		if r.Outcome != result.OutcomeTimeoutTotal || r.TTok1 == nil || len(r.EventTimes) != 1 || r.OutputTokens != nil {
			t.Errorf("%s: %d events, first text %v, %v tokens", r.Outcome, len(r.EventTimes), r.TTok1, r.OutputTokens)
		}
	}
}

// A request that is written again keeps the time at which it was first due.
func TestRun_ResentKeepsItsFirstTime(t *testing.T) {
	t.Parallel()
	answer := streamTokens(2, 0)
	var mu sync.Mutex
	answers := map[string]int{}
	s := serve(t, "tcp", func(c net.Conn, r *http.Request, b []byte) bool {
		mu.Lock()
		answers[c.RemoteAddr().String()]++
		second := answers[c.RemoteAddr().String()] == 2
		mu.Unlock()
		return !second && answer(c, r, b)
	})
	w := load(100, 0.5, 2)
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := Run(t.Context(), Config{Target: s.target, Request: w.Request, Plan: plan, Served: counted(), Client: Client{Preopen: 1}}, NewClock())
	if err != nil {
		t.Fatal(err)
	}
	zero, resent := rec.Windows[0].Start-plan.Windows[0].Start, 0
	for _, r := range rec.Requests {
		if !r.Resent {
			continue
		}
		resent++
		if r.TIntended != zero+plan.Requests[r.Index].Due {
			t.Errorf("request %d is due at %d, was planned for %d", r.Index, r.TIntended-zero, plan.Requests[r.Index].Due)
		}
	}
	if resent == 0 {
		t.Error("no request was written again")
	}
}

// A tail request that the end of the run overtook is no fault of the client's.
func TestSender_TailIsNotTheClientsFault(t *testing.T) {
	t.Parallel()
	w := load(100, 1, 2)
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for phase, want := range map[result.Phase]ending{result.PhaseTail: endingCancelled, result.PhaseMeasure: endingNotSent} {
		r := &runner{plan: plan, clock: NewClock()}
		s := &sender{r: r, current: &exchange{phase: phase, due: 0}}
		time.Sleep(time.Microsecond)
		s.cancelRest()
		if len(s.ended) != 1 || s.ended[0].ending != want {
			t.Errorf("%s: %+v", phase, s.ended)
		}
	}
}

// TestProxy is no test of its own: it is what a process with a proxy in its
// environment does.
func TestProxy(t *testing.T) {
	target := os.Getenv("SBENCH_TEST_TARGET")
	if target == "" {
		t.Skip("run by TestRun_IgnoresProxies")
	}
	parsed, err := ParseTarget(target)
	if err != nil {
		t.Fatal(err)
	}
	w := load(20, 0.3, 2)
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Target: parsed, Request: w.Request, Plan: plan}
	if c.Served, err = Probe(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	rec, err := Run(t.Context(), c, NewClock())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rec.Requests {
		if r.Phase == result.PhaseMeasure && r.Outcome != result.OutcomeOK {
			t.Errorf("%s: %s", r.Outcome, r.Detail)
		}
	}
}

// A proxy in the environment is not asked: what is measured is the server that was
// named. Of a process of its own, because Go reads the environment once.
func TestRun_IgnoresProxies(t *testing.T) {
	t.Parallel()
	proxied, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxied.Close()
	asked := make(chan struct{}, 1)
	go func() {
		for {
			c, err := proxied.Accept()
			if err != nil {
				return
			}
			select {
			case asked <- struct{}{}:
			default:
			}
			_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
			c.Close()
		}
	}()
	s := serve(t, "tcp", streamTokens(2, 0))
	// A name that is not loopback to net/http's own rules, which spare that.
	_, port, err := net.SplitHostPort(s.target.Address)
	if err != nil {
		t.Fatal(err)
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if addrs, err := net.LookupHost(name); err != nil || !slices.ContainsFunc(addrs, func(a string) bool { return strings.HasPrefix(a, "127.") }) {
		name = "127.0.0.1"
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxy$", "-test.v")
	proxy := "http://" + proxied.Addr().String()
	cmd.Env = append(os.Environ(), "HTTP_PROXY="+proxy, "http_proxy="+proxy, "ALL_PROXY="+proxy, "NO_PROXY=", "no_proxy=",
		"SBENCH_TEST_TARGET=http://"+net.JoinHostPort(name, port))
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "--- SKIP") {
		t.Errorf("%v: %s", err, out)
	}
	select {
	case <-asked:
		t.Error("the proxy was asked")
	default:
	}
}
