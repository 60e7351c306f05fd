package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"
)

// Overlap says what a due time does while the sweep of the last one still runs.
type Overlap string

// The overlap policies.
const (
	OverlapSkip      Overlap = "skip"       // nothing is submitted this time
	OverlapQueue     Overlap = "queue"      // it waits for the last one; at most one waits
	OverlapCancelOld Overlap = "cancel-old" // the last one is cancelled
)

// CatchUp says what becomes of due times that passed while no daemon ran.
type CatchUp string

// The catch-up policies.
const (
	CatchUpNone CatchUp = "none" // they are skipped
	CatchUpLast CatchUp = "last" // the latest is made up for, the others are skipped
	CatchUpAll  CatchUp = "all"  // all are made up for, oldest first
)

const (
	// Grace is how late a due time is still on time: a daemon that is elected anew
	// or waits for its database does not miss it.
	Grace = 5 * time.Minute
	// MostMissed is how many missed due times are looked at; older ones are as if
	// they had never been.
	MostMissed = 100
)

// Policy is how a schedule is followed.
type Policy struct {
	Overlap Overlap
	CatchUp CatchUp
	// Jitter delays each firing by less than this, always the same for one due
	// time; 0 is none.
	Jitter time.Duration
	// Window is how long after its due time a firing's sweep should have ended; 0
	// is no window.
	Window time.Duration
}

// Decision is what becomes of one due time.
type Decision struct {
	Due  time.Time
	Fire bool
	// Why says why it is not fired, or that it is late.
	Why string
}

// Decide says what becomes of due times that have come, oldest first. One that is
// late by more than Grace was missed, and one whose window is over cannot end in
// it any more: neither is fired without the policy asking for it.
func (p Policy) Decide(dues []time.Time, now time.Time) []Decision {
	out := make([]Decision, len(dues))
	for i, due := range dues {
		late := now.Sub(due)
		d := Decision{Due: due, Fire: true}
		switch {
		case late <= Grace:
		case p.Window > 0 && late >= p.Window:
			d.Fire, d.Why = false, fmt.Sprintf("missed by %v: its window of %v was over", late.Truncate(time.Second), p.Window)
		case p.CatchUp == CatchUpAll, p.CatchUp == CatchUpLast && i == len(dues)-1:
			d.Why = fmt.Sprintf("made up for, %v late", late.Truncate(time.Second))
		default:
			d.Fire, d.Why = false, fmt.Sprintf("missed by %v, and the catch-up policy is %s", late.Truncate(time.Second), p.CatchUp)
		}
		out[i] = d
	}
	return out
}

// Delay is the jitter of one due time of the schedule with a number: evenly spread
// over [0, most) in whole seconds, and the same for everybody who asks.
func Delay(id int64, due time.Time, most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "cron %d %d", id, due.Unix()))
	return time.Duration(binary.BigEndian.Uint64(sum[:8]) % uint64(most)).Truncate(time.Second)
}
