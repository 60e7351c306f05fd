package sim

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"
)

// clock reads and sleeps on CLOCK_MONOTONIC, in nanoseconds, which processes of
// one machine share.
//
// Note: time.Now reads the same clock through the vDSO, but hides its value; so
// the origin is read once by a system call and the differences by package time.
type clock struct {
	origin int64
	start  time.Time
}

func newClock() (clock, error) {
	var best clock
	tightest := time.Duration(1<<63 - 1)
	for range 16 { // the tightest of several brackets bounds the error
		var ts unix.Timespec
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return clock{}, fmt.Errorf("read the monotonic clock: %w", err)
		}
		width := time.Since(before)
		if width < tightest {
			tightest = width
			best = clock{origin: ts.Nano(), start: before.Add(width / 2)}
		}
	}
	return best, nil
}

// now is safe for concurrent use.
func (c clock) now() int64 { return c.origin + int64(time.Since(c.start)) }

// sleepUntil returns at time t or as soon after as the machine allows; the last
// spin of it burns the processor, since a sleeping thread wakes late.
func (c clock) sleepUntil(t int64, spin time.Duration) {
	if wake := t - int64(spin); wake > c.now() {
		ts := unix.NsecToTimespec(wake)
		for errors.Is(unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil), unix.EINTR) {
		}
	}
	for c.now() < t {
	}
}

// histogram counts times by powers of two.
type histogram struct {
	counts [64]int64
	total  int64
}

func (h *histogram) add(ns int64) {
	h.counts[bits.Len64(uint64(max(ns, 0)))%64]++
	h.total++
}

// quantile is an upper bound of the percentile, 0 where there is none.
func (h *histogram) quantile(percent int64) int64 {
	seen := int64(0)
	for i, n := range h.counts {
		seen += n
		if n > 0 && seen*100 >= h.total*percent {
			return 1<<i - 1
		}
	}
	return 0
}
