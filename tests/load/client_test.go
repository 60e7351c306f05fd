//go:build load

package load_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sbench/internal/result"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// clientConfig is a load for either client.
type clientConfig struct {
	Address string
	Streams int     // closed loop: so many at once
	Rate    float64 // open loop: so many a second, without streams
	Process setting.Process
	// Burstiness is the shape of the gamma process.
	Burstiness float64
	Seconds    float64
	Output     int
	Stream     bool
	Warmup     float64
	Preopen    int
}

// clientResult is what a client saw and what it cost.
type clientResult struct {
	Events, Requests, Failed int
	CPU                      float64 // s
	Bytes                    int64
	Lateness                 []float64 // s, of each request in open loop
	Detail                   string
	PerStream                float64 // resident bytes
	InFlight                 int
	Mallocs                  uint64    // of the whole run, decoding included
	Gaps                     []float64 // s, between the sends of an open loop
	TTFT                     []float64 // s, from when each request was due
}

func (c clientConfig) workload() setting.Workload {
	s := setting.Default()
	w := s.Workload
	w.Request.Stream, w.Request.IgnoreEOS = c.Stream, false
	w.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: c.Streams}
	if c.Rate > 0 {
		w.Arrival = setting.Arrival{Process: c.Process, Rate: c.Rate, Burstiness: c.Burstiness}
	}
	w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 16}
	w.Output = setting.Lengths{Distribution: setting.DistConstant, Value: max(c.Output, 1)}
	w.Warmup, w.Ramp = time.Duration(c.Warmup*1e9), 0
	w.Duration, w.Drain = time.Duration(c.Seconds*1e9), 20*time.Second
	w.Seed = 5
	return w
}

func (c clientConfig) load() (loadgen.Config, error) {
	w := c.workload()
	plan, err := workload.New(w, 0, workload.Options{})
	if err != nil {
		return loadgen.Config{}, err
	}
	return loadgen.Config{
		Target: loadgen.Target{Network: "tcp", Address: c.Address, Host: c.Address}, Request: w.Request, Plan: plan,
		Served: loadgen.Served{
			UsageStream: true, Usage: true, TokenSource: "usage",
			Vocabulary: workload.Vocabulary{Words: strings.Fields("one two three four five six seven eight")},
		},
		Client: loadgen.Client{Preopen: c.Preopen, Spin: spinning},
	}, nil
}

// oursRole is the load generator, decoding included.
func oursRole(raw json.RawMessage) (any, error) {
	var c clientConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	config, err := c.load()
	if err != nil {
		return nil, err
	}
	if name := os.Getenv("SBENCH_LOAD_PROFILE"); name != "" {
		f, err := os.Create(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, err
		}
		defer pprof.StopCPUProfile()
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	mallocs, before := memory.Mallocs, cpuSeconds()
	rec, err := loadgen.Run(context.Background(), config, loadgen.NewClock())
	if err != nil {
		return nil, err
	}
	out := clientResult{CPU: cpuSeconds() - before}
	runtime.ReadMemStats(&memory)
	out.Mallocs = memory.Mallocs - mallocs
	var last int64
	for i := range rec.Requests {
		r := &rec.Requests[i]
		out.Requests++
		out.Events += len(r.EventTimes)
		out.Bytes += r.Bytes
		switch r.Outcome {
		case result.OutcomeOK, result.OutcomeCutOff, result.OutcomeCancelledByPlan:
		default:
			out.Failed++
			out.Detail = string(r.Outcome) + ": " + r.Detail
		}
		if c.Rate > 0 && r.TWritten != nil && r.Phase == result.PhaseMeasure {
			out.Lateness = append(out.Lateness, float64(*r.TWritten-r.TIntended)/1e9)
			if last != 0 {
				out.Gaps = append(out.Gaps, float64(*r.TWritten-last)/1e9)
			}
			last = *r.TWritten
			if r.TTokN != nil {
				out.TTFT = append(out.TTFT, float64(*r.TTokN-r.TIntended)/1e9)
			}
		}
	}
	return out, nil
}

func plainOursRole(raw json.RawMessage) (any, error) { return oursRole(raw) }

// body is what the bare clients send.
const body = `{"prompt":"one two three four five six seven eight","max_tokens":1,"stream":true}`

// bareRole reads bodies with net/http and counts bytes and line ends: nothing else.
func bareRole(raw json.RawMessage) (any, error) {
	var c clientConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: c.Streams, MaxConnsPerHost: c.Streams}}
	var bytesRead, requests, failed atomic.Int64
	stop := time.Now().Add(time.Duration(c.Seconds * 1e9))
	before := cpuSeconds()
	var work sync.WaitGroup
	for range c.Streams {
		work.Go(func() {
			buf := make([]byte, 32<<10)
			for time.Now().Before(stop) {
				resp, err := client.Post("http://"+c.Address+"/v1/completions", "application/json", strings.NewReader(body))
				if err != nil {
					failed.Add(1)
					return
				}
				for {
					n, err := resp.Body.Read(buf)
					bytesRead.Add(int64(n))
					if err != nil {
						break
					}
				}
				resp.Body.Close()
				requests.Add(1)
			}
		})
	}
	work.Wait()
	return clientResult{
		CPU: cpuSeconds() - before, Bytes: bytesRead.Load(), Events: int(bytesRead.Load() / int64(len(eventText))),
		Requests: int(requests.Load()), Failed: int(failed.Load()),
	}, nil
}

func bareRequestRole(raw json.RawMessage) (any, error) { return bareRole(raw) }

// spinning is how long before a request is due either sender ends its sleep: the
// client has a core.
const spinning = 200 * time.Microsecond

// senderRole is the bare sender: one locked thread that sleeps to absolute times
// and writes a ready request on the next of its connections, reading nothing.
func senderRole(raw json.RawMessage) (any, error) {
	var c clientConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	plan, err := workload.New(c.workload(), 0, workload.Options{})
	if err != nil {
		return nil, err
	}
	var fds []int
	var files []*os.File // what is not referred to is closed
	for range c.Preopen {
		conn, err := net.Dial("tcp", c.Address)
		if err != nil {
			return nil, err
		}
		file, err := conn.(*net.TCPConn).File()
		if err != nil {
			return nil, err
		}
		fds, files = append(fds, int(file.Fd())), append(files, file)
	}
	request := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: 48, Policy: 1, Priority: 1}, 0)
	out := clientResult{}
	start := time.Now().Add(50 * time.Millisecond)
	for i, r := range plan.Requests {
		due := start.Add(time.Duration(r.Due))
		for d := time.Until(due); d > 0; d = time.Until(due) {
			if d > spinning {
				ts := unix.NsecToTimespec(int64(d - spinning))
				_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
			}
		}
		if _, err := unix.Write(fds[i%len(fds)], request); err != nil {
			return nil, err
		}
		if r.Phase == result.PhaseMeasure {
			out.Lateness = append(out.Lateness, time.Since(due).Seconds())
		}
		if r.Phase == result.PhaseTail {
			break
		}
	}
	runtime.KeepAlive(files)
	return out, nil
}

// idleOursRole opens streams that say nothing, and weighs them.
func idleOursRole(raw json.RawMessage) (any, error) {
	var c clientConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	config, err := c.load()
	if err != nil {
		return nil, err
	}
	runtime.GC()
	before := residentBytes()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var out clientResult
	config.Progress = func(p loadgen.Progress) {
		if p.InFlight >= c.Streams && out.InFlight == 0 {
			out.InFlight = p.InFlight
			out.PerStream = (residentBytes() - before) / float64(c.Streams)
			cancel()
		}
	}
	_, err = loadgen.Run(ctx, config, loadgen.NewClock())
	if out.InFlight == 0 {
		return nil, fmt.Errorf("the streams did not come about: %w", err)
	}
	return out, nil
}

// idleBareRole is the same with net/http.
func idleBareRole(raw json.RawMessage) (any, error) {
	var c clientConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	raiseFiles()
	runtime.GC()
	before := residentBytes()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: c.Streams}}
	var open atomic.Int64
	for range c.Streams {
		go func() {
			resp, err := client.Post("http://"+c.Address+"/v1/completions", "application/json", bytes.NewReader([]byte(body)))
			if err != nil {
				return
			}
			open.Add(1)
			_, _ = io.Copy(io.Discard, resp.Body)
		}()
	}
	for deadline := time.Now().Add(60 * time.Second); open.Load() < int64(c.Streams); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d of %d streams came about", open.Load(), c.Streams)
		}
	}
	return clientResult{InFlight: c.Streams, PerStream: (residentBytes() - before) / float64(c.Streams)}, nil
}
