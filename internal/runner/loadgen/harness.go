package loadgen

// Harness is what the client observed of itself while the windows ran. A nil
// pointer was not measured.
type Harness struct {
	Threads  int  `json:"threads"`
	Realtime bool `json:"realtime"` // the sending thread had a real-time class
	TLS      bool `json:"tls"`      // goroutines read the answers, and no reading threads

	InFlightMax     int   `json:"in_flight_max"`
	Limit           int   `json:"limit"`                   // on requests in flight
	AtLimit         int64 `json:"at_limit_ns"`             // during which the limit held requests back
	StaleResent     int   `json:"stale_resent"`            // requests written again on a fresh connection
	Connections     int   `json:"connections"`             // opened in all
	DescriptorsMax  int   `json:"descriptors_max"`         // limit of the process
	PortsFree       *int  `json:"ports_free"`              // at the start; nil for Unix sockets
	DecodedInWindow int64 `json:"decoded_in_window_bytes"` // because memory ran short

	WindowSeconds  float64  `json:"window_s"`
	CPUSeconds     *float64 `json:"cpu_s"`              // of the process, over the windows
	CPUAvailable   *float64 `json:"cpu_available_s"`    // processors it may use x time
	Throttled      *float64 `json:"throttled"`          // times that the cgroup held it back
	StealRatio     *float64 `json:"steal_ratio"`        // of all processor time, taken by a hypervisor
	SchedulerP99   *float64 `json:"scheduler_p99_s"`    // goroutines waiting for a processor of the runtime
	ThreadDelayP99 *float64 `json:"thread_delay_p99_s"` // of a reading thread for a processor, by the means of intervals of 0.1 s
	GCPauseMax     *float64 `json:"gc_pause_max_s"`
	GCPauseTotal   *float64 `json:"gc_pause_total_s"`
	StallMax       *float64 `json:"stall_max_s"`   // largest doubt about a time: see Stall
	Stalls         []Stall  `json:"stalls"`        // doubts by their size
	ClockDrift     *float64 `json:"clock_drift_s"` // wall clock against monotonic clock
}

// Stall sums up the passes of the reading threads that leave a doubt longer than
// Longer, and at most twice as long, about when something came in: because the
// kernel did not stamp it and the thread was away from its poll for so long, or
// because several events of a stream were read together.
type Stall struct {
	Longer  float64 `json:"longer_s"`
	Seconds float64 `json:"seconds"`
}
