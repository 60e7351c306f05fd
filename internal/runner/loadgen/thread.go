package loadgen

import (
	"os"
	"strconv"

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

// promptProcess asks the kernel to run every thread of the process as soon as it
// wakes. All of them, not only those that send and read: they share locks inside
// the runtime, and one that is kept from running while it holds one keeps the
// others. It returns whether that was granted. Threads that start later have what
// their creators have.
func promptProcess() bool {
	attr := unix.SchedAttr{Size: schedAttrSize, Policy: schedFIFO, Priority: fifoPriority}
	for _, tid := range threads() {
		if unix.SchedSetAttr(tid, &attr, 0) != nil {
			politeProcess()
			return false
		}
	}
	return true
}

// politeProcess takes that back.
func politeProcess() {
	attr := unix.SchedAttr{Size: schedAttrSize, Policy: schedOther}
	for _, tid := range threads() {
		_ = unix.SchedSetAttr(tid, &attr, 0)
	}
}

// threads are the ids of the process' threads.
func threads() []int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	var tids []int
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// preciseTimers has the calling thread's sleeps end when they should.
func preciseTimers() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0) }

// politeThread makes the calling thread an ordinary one, as prompt as those can
// be: one that has much to do must not starve its processor.
func politeThread() {
	attr := unix.SchedAttr{Size: schedAttrSize, Policy: schedOther, Nice: niceness, Runtime: shortSlice}
	if unix.SchedSetAttr(0, &attr, 0) == nil {
		return
	}
	// Without the privilege: the same priority as before, and the short slice.
	attr.Nice = 0
	_ = unix.SchedSetAttr(0, &attr, 0)
}
