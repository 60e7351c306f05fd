package loadgen

import "time"

// Clock is an attempt's clock: int64 nanoseconds on the kernel's monotonic clock
// since one origin, and the wall clock's time of that origin.
type Clock struct {
	origin time.Time
}

// NewClock starts a clock: its zero is now.
func NewClock() Clock { return Clock{origin: time.Now()} }

// Now is the nanoseconds since the clock's origin.
func (c Clock) Now() int64 { return int64(time.Since(c.origin)) }

// Wall is the wall-clock time of the origin: an anchor, never used for differences.
func (c Clock) Wall() time.Time { return c.origin.Round(0) }
