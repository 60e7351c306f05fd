package loadgen

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	timerSlack    = 1      // ns; the kernel's default of 50 µs is added to every sleep
	niceness      = -15    // where it is permitted
	shortSlice    = 100000 // ns: a short slice gives a thread that wakes the processor sooner (Linux 6.12)
	fifoPriority  = 1
	schedOther    = 0
	schedFIFO     = 1
	schedAttrSize = 48
)

// promptThread asks the kernel to run the calling thread as soon as it wakes.
// mostlySleeping threads ask for a real-time class; one that may run for long
// does not, because it would starve its processor.
func promptThread(mostlySleeping bool, realtime *atomic.Bool) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0)
	if mostlySleeping {
		attr := unix.SchedAttr{Size: schedAttrSize, Policy: schedFIFO, Priority: fifoPriority}
		if unix.SchedSetAttr(0, &attr, 0) == nil {
			realtime.Store(true)
			return
		}
	}
	attr := unix.SchedAttr{Size: schedAttrSize, Policy: schedOther, Nice: niceness, Runtime: shortSlice}
	if unix.SchedSetAttr(0, &attr, 0) == nil {
		return
	}
	// Without the privilege: the same priority as before, and the short slice.
	attr.Nice = 0
	_ = unix.SchedSetAttr(0, &attr, 0)
}
