package workload

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
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
	// Requests are ordered by Due, the later turns of a session behind its first.
	// In a closed loop they are the part of the sequences that Hash covers.
	Requests []Request
	Windows  []Window
	Hash     string // 64 hex characters
	Length   int64  // ns from the plan's zero to the end of the drain

	// Closed is the number of slots of a closed loop, which offer the sessions of
	// the two sequences in turn; 0 means open loop, without sequences.
	Closed           int
	Warmup, Measured *Sequence
	// WarmupEnd is where the warm-up ends, ns from the plan's zero.
	WarmupEnd int64
	ThinkTime time.Duration
	Workload  setting.Workload
	Repeat    int

	prompts []prompt
}

// hash is the SHA-256 of everything that was planned: the same workload has the
// same hash on every machine.
func (p *Plan) hash(o Options) string {
	h := sha256.New()
	w := p.Workload
	fmt.Fprintf(h, "sbench plan v1\nclosed %d\nthink %d\nwarmup_end %d\nlength %d\nseed %d\nrepeat %d\nnonce %t\n",
		p.Closed, p.ThinkTime, p.WarmupEnd, p.Length, w.Seed, p.Repeat, w.Prompts.Nonce)
	fmt.Fprintf(h, "endpoint %s\nstream %t\nignore_eos %t\ntemperature %x\ntop_p %x\n", w.Request.Endpoint, w.Request.Stream,
		w.Request.IgnoreEOS, math.Float64bits(w.Request.Temperature), math.Float64bits(w.Request.TopP))
	fmt.Fprintf(h, "trace %x\nprompts %x\n", sha256.Sum256(o.Trace), sha256.Sum256(o.Prompts))
	for _, win := range p.Windows {
		fmt.Fprintf(h, "window %d %x %d %d %d\n", win.Index, math.Float64bits(win.Rate), win.RampStart, win.Start, win.End)
	}
	var row []byte
	for i := range p.Requests {
		r := &p.Requests[i]
		row = row[:0]
		for _, v := range []int64{
			int64(r.Window), r.Due, int64(r.Session), int64(r.Turn), int64(r.Group),
			int64(r.Input), int64(r.Prefix), int64(r.Output), int64(r.Prompt), int64(r.Seed),
		} {
			row = binary.LittleEndian.AppendUint64(row, uint64(v))
		}
		h.Write(append(row, r.Phase...))
	}
	return hex.EncodeToString(h.Sum(nil))
}
