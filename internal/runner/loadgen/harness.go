package loadgen

// Harness is what the client observed of itself while the windows ran. Times are
// in nanoseconds unless the name says otherwise; nil means not measured.
type Harness struct {
	Threads        int
	InFlightMax    int
	AtLimit        int64 // time during which MaxInFlight held requests back
	StaleResent    int   // requests written again after an idle connection turned out dead
	Connections    int   // opened in all
	DescriptorsMax int   // limit of the process
	PortsFree      *int  // ephemeral ports that were free at the start; nil for Unix sockets

	CPUSeconds      *float64 // of the process, over the windows
	CPUAvailable    *float64 // cores it may use x window length
	Throttled       *float64 // periods the cgroup throttled it
	StealRatio      *float64
	RunQueueP99     *float64 // Go scheduler latency, s
	ThreadDelayMax  *float64 // the kernel's run-queue delay of the busiest thread, s
	GCPauseMax      *float64 // s
	GCPauseTotal    *float64 // s
	StallMax        *float64 // longest time the reading thread was not at its poll, s
	ClockDrift      *float64 // wall against monotonic over the run, s
	WindowSeconds   float64
	DecodedInWindow int64 // bytes decoded before the windows ended, because memory ran short
}
