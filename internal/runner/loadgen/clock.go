package loadgen

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock is an attempt's clock: int64 nanoseconds on the kernel's monotonic clock
// since one origin, and the wall clock's time of that origin.
type Clock struct {
	origin    time.Time
	monotonic int64
}

// NewClock starts a clock: its zero is now.
func NewClock() Clock {
	// The runtime hides the value of the clock that it reads: the tightest of
	// several brackets around a reading of our own tells it.
	var c Clock
	best := time.Duration(1<<63 - 1)
	for range 16 {
		var ts unix.Timespec
		before := time.Now()
		if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
			continue
		}
		if width := time.Since(before); width < best {
			best = width
			c = Clock{origin: before, monotonic: ts.Nano() - int64(width/2)}
		}
	}
	if c.origin.IsZero() {
		c.origin = time.Now()
	}
	return c
}

// Now is the nanoseconds since the clock's origin.
func (c Clock) Now() int64 { return int64(time.Since(c.origin)) }

// nowAndWall reads the clock and the wall clock (ns since 1970) at one moment.
func (c Clock) nowAndWall() (now, wall int64) {
	t := time.Now()
	return int64(t.Sub(c.origin)), t.UnixNano()
}

// Wall is the wall-clock time of the origin: an anchor, never used for differences.
func (c Clock) Wall() time.Time { return c.origin.Round(0) }

// Monotonic is CLOCK_MONOTONIC at the origin, in nanoseconds: what other processes
// of the machine read on the same clock, less this, is on the attempt's.
func (c Clock) Monotonic() int64 { return c.monotonic }
