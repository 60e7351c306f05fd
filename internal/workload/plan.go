package workload

import (
	"time"

	"sbench/internal/result"
	"sbench/internal/setting"
)

// Dependent is the Due of a request whose time is not on the schedule: a later
// turn of a session, or any request of a closed loop.
const Dependent = -1

// Options hold the bytes of the files that a workload names.
type Options struct {
	Trace   []byte // arrival.process trace: JSONL or CSV
	Prompts []byte // prompts.source file: JSONL
}

// Request is one planned request.
type Request struct {
	Index   int32
	Window  int32 // load point, from 0
	Phase   result.Phase
	Due     int64 // ns from the plan's zero, or Dependent
	Session int32
	Turn    int32 // from 0
	Group   int32 // shared-prefix group, -1 for none
	Input   int32 // tokens of the prompt that this turn adds
	Prefix  int32 // tokens of them that the group's prefix has, or a prefix of its own
	Output  int32 // tokens to generate
	Prompt  int32 // row of the prompt file, -1 for synthetic text
	Seed    uint64
}

// Window is one load point of the plan: [Start, End) in ns from the plan's zero.
type Window struct {
	Index      int32
	Rate       float64 // requests/s that the schedule aims at; 0 in a closed loop
	RampStart  int64   // where this load point's arrivals begin
	Start, End int64
}

// Plan is everything that is decided before the first request leaves.
type Plan struct {
	Requests []Request // by Due, dependent turns behind their first turn
	Windows  []Window
	Hash     string // 64 hex characters
	Length   int64  // ns from the plan's zero to the end of the drain

	// Closed is the number of slots of a closed loop; 0 means open loop. In a
	// closed loop Requests is the start of an endless sequence: see At.
	Closed int
	// WarmupEnd is where the warm-up ends, ns from the plan's zero.
	WarmupEnd int64
	ThinkTime time.Duration
	Workload  setting.Workload
	Repeat    int
}
