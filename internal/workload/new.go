package workload

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"sbench/internal/result"
	"sbench/internal/setting"
)

// Parts of a plan that draw from streams of their own. Load point w draws from
// part partWindow + 2w, the ramp before it from one more.
const (
	partWarmup = 0
	partWindow = 1
)

// New plans a workload for repeat k, counted from 0.
func New(w setting.Workload, repeat int, o Options) (*Plan, error) {
	p := &planner{w: w, seeds: seeder{w.Seed, repeat}, plan: &Plan{
		Workload: w, Repeat: repeat, WarmupEnd: int64(w.Warmup), ThinkTime: w.Prompts.ThinkTime,
	}}
	if err := p.check(); err != nil {
		return nil, err
	}
	if w.Prompts.Source == "file" {
		prompts, err := parsePrompts(o.Prompts)
		if err != nil {
			return nil, err
		}
		if err := fileGives(w, len(prompts), func(i int) size { return prompts[i].size }); err != nil {
			return nil, fmt.Errorf("prompt file: %w", err)
		}
		p.plan.prompts = prompts
		p.shuffle()
	}
	if w.Arrival.Process == setting.ProcessTrace {
		trace, err := parseTrace(o.Trace, w.Arrival.TraceScale)
		if err != nil {
			return nil, err
		}
		if w.Prompts.Source != "file" {
			if err := fileGives(w, len(trace), func(i int) size { return trace[i].size }); err != nil {
				return nil, fmt.Errorf("trace: %w", err)
			}
		}
		p.trace = trace
	}
	p.windows()
	if w.Arrival.Process == setting.ProcessClosed {
		if err := p.closed(); err != nil {
			return nil, err
		}
	} else if err := p.open(); err != nil {
		return nil, err
	}
	p.plan.Hash = p.plan.hash(o)
	return p.plan, nil
}

// planner builds one plan.
type planner struct {
	w     setting.Workload
	seeds seeder
	plan  *Plan
	trace []tracePoint
	order []int32 // of the prompt file's rows
	used  int     // rows used so far

	sessions int32
}

func (p *planner) check() error {
	w := p.w
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"warmup", w.Warmup}, {"ramp", w.Ramp}, {"drain", w.Drain}, {"think_time", w.Prompts.ThinkTime}} {
		if d.d < 0 {
			return fmt.Errorf("%s %v is negative", d.name, d.d)
		}
	}
	switch {
	case w.Duration <= 0:
		return fmt.Errorf("duration %v: want a positive time", w.Duration)
	case w.Arrival.Process == setting.ProcessClosed && w.Arrival.Concurrency < 1:
		return errors.New("a closed loop needs a concurrency of at least 1")
	case len(w.Ladder) > 0 && !rated(w.Arrival.Process):
		return fmt.Errorf("a ladder needs an arrival process with a rate, not %s", w.Arrival.Process)
	case len(w.Ladder) == 0 && rated(w.Arrival.Process) && !(w.Arrival.Rate > 0):
		return fmt.Errorf("arrival rate %v: want a positive rate", w.Arrival.Rate)
	case w.Arrival.Process == setting.ProcessStages && len(w.Arrival.Stages) == 0:
		return errors.New("arrival process stages: no stages")
	case w.Prompts.Groups > 0 && (w.Prompts.PrefixLen < 1 || w.Prompts.HitRatio < 0 || w.Prompts.HitRatio > 1):
		return errors.New("prefix groups need prefix_tokens >= 1 and a hit_ratio between 0 and 1")
	}
	for _, r := range w.Ladder {
		if !(r > 0) {
			return fmt.Errorf("ladder rate %v: want a positive rate", r)
		}
	}
	return nil
}

func rated(p setting.Process) bool {
	return p == setting.ProcessConstant || p == setting.ProcessPoisson || p == setting.ProcessGamma
}

// windows lays the load points out on the plan's clock.
func (p *planner) windows() {
	rates := p.w.Ladder
	if len(rates) == 0 {
		rates = []float64{p.rate()}
	}
	at := int64(p.w.Warmup)
	for i, rate := range rates {
		start := at + int64(p.w.Ramp)
		end := start + int64(p.w.Duration)
		p.plan.Windows = append(p.plan.Windows, Window{Index: int32(i), Rate: rate, RampStart: at, Start: start, End: end})
		at = end
	}
	p.plan.Length = at + int64(p.w.Drain)
}

// rate is the mean rate that the single load point aims at.
func (p *planner) rate() float64 {
	switch p.w.Arrival.Process {
	case setting.ProcessClosed:
		return 0
	case setting.ProcessStages:
		var area float64
		for _, piece := range p.stages(0) {
			area += piece.area()
		}
		return area / p.w.Duration.Seconds()
	case setting.ProcessTrace:
		return float64(len(p.traced(0, p.w.Duration.Seconds()))) / p.w.Duration.Seconds()
	case setting.ProcessConstant, setting.ProcessPoisson, setting.ProcessGamma:
	}
	return p.w.Arrival.Rate
}

// traced are the trace's requests in [from, to), in seconds.
func (p *planner) traced(from, to float64) []tracePoint {
	byTime := func(t tracePoint, at float64) int {
		if t.at < at {
			return -1
		}
		return 1
	}
	i, _ := slices.BinarySearchFunc(p.trace, from, byTime)
	j, _ := slices.BinarySearchFunc(p.trace, to, byTime)
	return p.trace[i:j]
}

// stages are the pieces of the stages process from a start in seconds. The first
// stage holds its rate.
func (p *planner) stages(start float64) []piece {
	var pieces []piece
	before := p.w.Arrival.Stages[0].Rate
	for _, s := range p.w.Arrival.Stages {
		end := start + s.Duration.Seconds()
		pieces = append(pieces, piece{start, end, before, s.Rate})
		before, start = s.Rate, end
	}
	return pieces
}

// open plans warm-up, ramps, load points and tail, one after the other.
func (p *planner) open() error {
	first := p.plan.Windows[0]
	base := first.Rate
	if p.w.Arrival.Process == setting.ProcessStages {
		base = p.w.Arrival.Stages[0].Rate
	}
	if w := p.w.Warmup.Seconds(); w > 0 && base > 0 {
		if err := p.part(partWarmup, 0, []phased{{result.PhaseWarmup, []piece{{0, w, base, base}}}}); err != nil {
			return err
		}
	}
	before := 0.0
	for i, win := range p.plan.Windows {
		rate := win.Rate
		if i == 0 {
			rate = base
		}
		part := partWindow + 2*i
		rampStart, start, end := seconds(win.RampStart), seconds(win.Start), seconds(win.End)
		if start > rampStart && before+rate > 0 {
			if err := p.part(part+1, win.Index, []phased{{result.PhaseRamp, []piece{{rampStart, start, before, rate}}}}); err != nil {
				return err
			}
		}
		before = rate
		phases := []phased{{result.PhaseMeasure, []piece{{start, end, rate, rate}}}}
		if p.w.Arrival.Process == setting.ProcessStages {
			phases[0].pieces = p.stages(start)
			before = p.w.Arrival.Stages[len(p.w.Arrival.Stages)-1].Rate
		}
		if i == len(p.plan.Windows)-1 && p.w.Drain > 0 && before > 0 {
			phases = append(phases, phased{result.PhaseTail, []piece{{end, end + p.w.Drain.Seconds(), before, before}}})
		}
		if err := p.part(part, win.Index, phases); err != nil {
			return err
		}
	}
	return nil
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// phased are the pieces of one phase.
type phased struct {
	phase  result.Phase
	pieces []piece
}

// part plans one part: arrivals from one process across its phases, and a
// session's first turn, or a single request, for each.
func (p *planner) part(part int, window int32, phases []phased) error {
	d, err := p.drawing(part)
	if err != nil {
		return err
	}
	all, err := p.arrivals(part, window, phases)
	if err != nil {
		return err
	}
	for _, a := range all {
		from := len(p.plan.Requests)
		p.plan.Requests = p.session(p.plan.Requests, d, Request{Window: window, Phase: a.phase, Due: a.due}, a.row)
		for i := from; i < len(p.plan.Requests); i++ {
			p.plan.Requests[i].Index = int32(i)
		}
		if len(p.plan.Requests) > maxRequests {
			return fmt.Errorf("the plan has more than %d requests", maxRequests)
		}
	}
	return nil
}

// arrival is when a session begins; row are the lengths that came with it.
type arrival struct {
	due   int64
	phase result.Phase
	row   size
}

// arrivals decides when the sessions of a part begin.
func (p *planner) arrivals(part int, window int32, phases []phased) ([]arrival, error) {
	if p.w.Arrival.Process == setting.ProcessTrace && phases[0].phase == result.PhaseMeasure {
		return p.replayed(p.plan.Windows[window])
	}
	turns := float64(max(p.w.Prompts.Turns, 1))
	var pieces []piece
	var ends []int64
	for _, ph := range phases {
		for _, pc := range ph.pieces {
			// The rate is of requests: a session makes one for each turn.
			pc.rateAt, pc.rateTo = pc.rateAt/turns, pc.rateTo/turns
			pieces = append(pieces, pc)
		}
		ends = append(ends, nanoseconds(ph.pieces[len(ph.pieces)-1].end))
	}
	first, gap, err := process(p.w.Arrival, p.seeds.stream("arrival", part))
	if err != nil {
		return nil, err
	}
	dues, err := arrivals(pieces, first, gap)
	if err != nil {
		return nil, err
	}
	all := make([]arrival, 0, len(dues))
	i := 0
	for _, due := range dues {
		for due >= ends[i] {
			i++
		}
		row := size{}
		if p.trace != nil {
			row = p.trace[len(all)%len(p.trace)].size
		}
		all = append(all, arrival{due, phases[i].phase, row})
	}
	return all, nil
}

// replayed are the arrivals of a trace: its beginning falls on the window's.
func (p *planner) replayed(w Window) ([]arrival, error) {
	if last := p.trace[len(p.trace)-1].at; last < 0.9*p.w.Duration.Seconds() {
		return nil, fmt.Errorf("the trace covers %.1f s, but the duration is %.1f s", last, p.w.Duration.Seconds())
	}
	var all []arrival
	for _, t := range p.traced(0, seconds(p.plan.Length-w.Start)) {
		due, phase := w.Start+nanoseconds(t.at), result.PhaseMeasure
		if due >= w.End {
			phase = result.PhaseTail
		}
		all = append(all, arrival{due, phase, t.size})
	}
	return all, nil
}

// drawing completes requests with lengths and prompts, in one part of the plan.
type drawing struct {
	size          func(row size) size
	groups, texts *stream
	warmup        bool
}

func (p *planner) drawing(part int) (*drawing, error) {
	size, err := sizes(p.w, p.seeds, part)
	if err != nil {
		return nil, err
	}
	return &drawing{size, p.seeds.stream("group", part), p.seeds.stream("prompt", part), part == partWarmup}, nil
}

// session appends the turns of the session that begins with r.
func (p *planner) session(to []Request, d *drawing, r Request, row size) []Request {
	r.Group, r.Prompt, r.Session = -1, -1, p.sessions
	p.sessions++
	if g := p.w.Prompts.Groups; g > 0 {
		r.Prefix = int32(p.w.Prompts.PrefixLen)
		// Both draws are made whatever the first says, so that another hit ratio
		// moves no other request's prompt.
		hit, group := d.groups.uniform() < p.w.Prompts.HitRatio, d.groups.below(uint64(g))
		if hit {
			r.Group = int32(group)
			if d.warmup {
				r.Group += int32(g) // warm-up has groups of its own
			}
		}
	}
	for turn := range int32(max(p.w.Prompts.Turns, 1)) {
		t := r
		t.Turn, t.Seed = turn, d.texts.source.Uint64()
		if p.order != nil {
			t.Prompt = p.row(d.warmup)
			row = p.plan.prompts[t.Prompt].size
		}
		drawn := d.size(row)
		t.Input, t.Output = drawn.input, drawn.output
		if turn > 0 {
			t.Due, t.Prefix = Dependent, 0
		} else {
			t.Input += t.Prefix
		}
		to = append(to, t)
	}
	return to
}

// shuffle orders the prompt file's rows for this repeat.
func (p *planner) shuffle() {
	s := p.seeds.stream("file", 0)
	p.order = make([]int32, len(p.plan.prompts))
	for i := range p.order {
		j := int(s.below(uint64(i) + 1))
		p.order[i] = p.order[j]
		p.order[j] = int32(i)
	}
}

// row is the next row of the prompt file: from the front of the order, for
// warm-up from its back.
func (p *planner) row(warmup bool) int32 {
	i := p.used % len(p.order)
	p.used++
	if warmup {
		return p.order[len(p.order)-1-i]
	}
	return p.order[i]
}

// Sequence is an endless sequence of sessions: what a closed loop offers.
type Sequence struct {
	planner *planner
	drawing *drawing
}

// Next returns the turns of the next session. Their Index and Due are not set.
func (s *Sequence) Next() []Request {
	return s.planner.session(nil, s.drawing, Request{Due: Dependent, Phase: result.PhaseMeasure}, size{})
}

// sequence starts one of the two sequences of a closed loop.
func (p *planner) sequence(part int) (*Sequence, error) {
	own := *p
	own.used, own.sessions = 0, 0
	d, err := own.drawing(part)
	if err != nil {
		return nil, err
	}
	return &Sequence{&own, d}, nil
}

// hashedSessions is how much of a closed loop's endless sequences the plan's hash
// covers; what follows is decided by the same seeds.
const hashedSessions = 1000

// closed starts the two endless sequences of a closed loop.
func (p *planner) closed() (err error) {
	p.plan.Closed = p.w.Arrival.Concurrency
	for _, part := range []int{partWarmup, partWindow} {
		seq, err := p.sequence(part)
		if err != nil {
			return err
		}
		for range hashedSessions {
			p.plan.Requests = append(p.plan.Requests, seq.Next()...)
		}
	}
	if p.plan.Warmup, err = p.sequence(partWarmup); err != nil {
		return err
	}
	p.plan.Measured, err = p.sequence(partWindow)
	return err
}
