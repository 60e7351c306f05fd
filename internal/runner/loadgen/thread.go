package loadgen

import (
	"bytes"
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
	// autogroup weighs the process' session against others, where the kernel
	// schedules sessions as groups: niceness counts only inside of one.
	autogroup = "/proc/self/autogroup"
)

// promptProcess asks the kernel to run every thread of the process soon when it
// wakes, and returns the function that takes that back. All of them, not only
// those that send and read: they share locks inside the runtime, and one that is
// kept from running while it holds one keeps the others. Threads that start later
// have what their creators have.
//
// Note: not a real-time class. Real-time threads that wait for one another by
// polling, or for an ordinary one, can starve a small machine for good.
func promptProcess() (restore func()) {
	before := sessionNiceness()
	if before != "" {
		_ = os.WriteFile(autogroup, []byte(strconv.Itoa(niceness)), 0)
	}
	ask(unix.SchedAttr{Size: schedAttrSize, Policy: schedOther, Nice: niceness, Runtime: shortSlice})
	return func() {
		ask(unix.SchedAttr{Size: schedAttrSize, Policy: schedOther})
		if before != "" {
			_ = os.WriteFile(autogroup, []byte(before), 0)
		}
	}
}

// ask gives every thread the attributes, or at least the short slice.
func ask(attr unix.SchedAttr) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if unix.SchedSetAttr(tid, &attr, 0) != nil {
			attr.Nice = 0
			_ = unix.SchedSetAttr(tid, &attr, 0)
		}
	}
}

// sessionNiceness is the present niceness of the session's group, "" where
// sessions are not scheduled as groups. The file says: /autogroup-9 nice 0.
func sessionNiceness() string {
	b, err := os.ReadFile(autogroup)
	if err != nil {
		return ""
	}
	_, nice, ok := bytes.Cut(bytes.TrimSpace(b), []byte(" nice "))
	if !ok {
		return ""
	}
	return string(nice)
}

// promptSender gives the calling thread a real-time class, or takes it back. It
// returns whether the thread has it then. A thread that sleeps between requests
// may have it; one that is behind its schedule does not sleep, and would keep the
// reading threads from their processor.
func promptSender(on bool) bool {
	attr := unix.SchedAttr{Size: schedAttrSize, Policy: schedFIFO, Priority: fifoPriority}
	if on {
		return unix.SchedSetAttr(0, &attr, 0) == nil
	}
	attr = unix.SchedAttr{Size: schedAttrSize, Policy: schedOther, Nice: niceness, Runtime: shortSlice}
	if unix.SchedSetAttr(0, &attr, 0) != nil {
		attr.Nice = 0
		_ = unix.SchedSetAttr(0, &attr, 0)
	}
	return false
}

// preciseTimers has the calling thread's sleeps end when they should.
func preciseTimers() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0) }

// cores is how many processors the calling thread may use; 1 where that is unknown.
func cores() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return 1
	}
	return set.Count()
}
