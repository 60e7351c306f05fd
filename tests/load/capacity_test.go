//go:build load

package load_test

import (
	"fmt"
	"testing"
)

// serve starts the stand-in for an engine on its core and returns its address.
func serve(t *testing.T, c serverConfig) string {
	t.Helper()
	s := start(t, "server", serverCPU, c)
	var address string
	s.line(t, &address)
	return address
}

// Events for each second of the client's processor, decoding included, where a
// write of the engine carries many.
func TestCapacity_Burst(t *testing.T) {
	measuring(t)
	for _, perWrite := range []int{16, 64} {
		address := serve(t, serverConfig{Events: 6400, PerWrite: perWrite})
		c := clientConfig{Address: address, Streams: 64, Seconds: 1.5, Output: 6400, Stream: true}
		a, b := perCPU(t, "ours", "bare", c, events)
		figure(t, fmt.Sprintf("burst_%d_bare_events_per_cpu_s", perWrite), b, "-")
		figure(t, fmt.Sprintf("burst_%d_events_per_cpu_s", perWrite), a, "-")
		figure(t, fmt.Sprintf("burst_%d_ratio_to_bare", perWrite), a/b, ">=0.6")
		ours := do[clientResult](t, "ours", c)
		figure(t, fmt.Sprintf("burst_%d_allocations_per_event", perWrite), float64(ours.Mallocs)/float64(ours.Events), "<=0.05")
	}
}

func events(r clientResult) int   { return r.Events }
func requests(r clientResult) int { return r.Requests }

// Processor time for the same paced events, one a write.
func TestCapacity_Paced(t *testing.T) {
	measuring(t)
	for _, rate := range []int{25_000, 100_000} {
		streams := 500
		each := rate * 5 / 2 / streams // 2.5 s of each stream
		address := serve(t, serverConfig{Events: each, PerWrite: 1, Rate: float64(rate)})
		a, b := perCPU(t, "ours", "bare", clientConfig{Address: address, Streams: streams, Seconds: 4, Output: each, Stream: true}, events)
		figure(t, fmt.Sprintf("paced_%d_bare_cpu_us_per_event", rate), 1e6/b, "-")
		figure(t, fmt.Sprintf("paced_%d_cpu_us_per_event", rate), 1e6/a, "-")
		figure(t, fmt.Sprintf("paced_%d_ratio_to_bare", rate), b/a, "<=1.5")
	}
}

// Requests for each second of the client's processor, without streams.
func TestCapacity_Requests(t *testing.T) {
	measuring(t)
	address := serve(t, serverConfig{Plain: true})
	a, b := perCPU(t, "plain-ours", "bare-request", clientConfig{Address: address, Streams: 32, Seconds: 2, Output: 1}, requests)
	figure(t, "requests_bare_per_cpu_s", b, "-")
	figure(t, "requests_per_cpu_s", a, "-")
	figure(t, "requests_ratio_to_net_http", a/b, "-")
}

// Ten thousand streams in one process, and what one weighs.
func TestCapacity_IdleStreams(t *testing.T) {
	measuring(t)
	const streams = 10_000
	address := serve(t, serverConfig{Hold: true})
	c := clientConfig{Address: address, Streams: streams, Seconds: 60, Output: 1, Stream: true, Preopen: 100}
	ours := do[clientResult](t, "idle-ours", c)
	bare := do[clientResult](t, "idle-bare", c)
	figure(t, "simultaneous_streams", float64(ours.InFlight), fmt.Sprintf(">=%d", streams))
	figure(t, "idle_stream_bare_bytes", bare.PerStream, "-")
	figure(t, "idle_stream_bytes", ours.PerStream, fmt.Sprintf("<=%.0f", bare.PerStream))
}
