package cost

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Dimension is what costs are summed up by.
type Dimension string

// The dimensions. Site is beside those of the manual because rates are per site.
const (
	ByAccount   Dimension = "account"
	ByUser      Dimension = "user"
	ByModel     Dimension = "model"
	ByHardware  Dimension = "hardware"
	BySweep     Dimension = "sweep"
	ByPartition Dimension = "partition"
	BySite      Dimension = "site"
)

// Dimensions lists all of them.
func Dimensions() []Dimension {
	return []Dimension{ByAccount, ByUser, ByModel, ByHardware, BySweep, ByPartition, BySite}
}

// ParseDimensions reads "account,user". No dimension may come twice.
func ParseDimensions(text string) ([]Dimension, error) {
	var list []Dimension
	for word := range strings.SplitSeq(text, ",") {
		d := Dimension(strings.ToLower(strings.TrimSpace(word)))
		if !slices.Contains(Dimensions(), d) {
			names := make([]string, len(Dimensions()))
			for i, d := range Dimensions() {
				names[i] = string(d)
			}
			return nil, fmt.Errorf("unknown dimension %q: the dimensions are %s", word, strings.Join(names, ", "))
		}
		if slices.Contains(list, d) {
			return nil, fmt.Errorf("dimension %s is named twice", d)
		}
		list = append(list, d)
	}
	return list, nil
}

// Period is a span of time: from Start, before End.
type Period struct{ Start, End time.Time }

// clip returns the part of from..to inside the period; zero length outside.
func (p Period) clip(from, to time.Time) (time.Time, time.Time) {
	if from.Before(p.Start) {
		from = p.Start
	}
	if to.After(p.End) {
		to = p.End
	}
	if to.Before(from) {
		to = from
	}
	return from, to
}

// Allocation is one start of a Slurm job or array element, as the accounting
// database tells it.
type Allocation struct {
	Site, Account, Partition string
	// Hardware is the id that rates are looked up by.
	Hardware string
	// Class is real or emulated.
	Class string
	// Start is zero where it never started: it held nothing.
	Start time.Time
	// Held is how long it held its GPUs, in whole seconds; so far, where Open.
	Held time.Duration
	// GPUs are those held on all nodes.
	GPUs int
	// Unknown: it ran, but the accounting database has not said for how long, or
	// with how many GPUs.
	Unknown bool
	// Open: it has not ended.
	Open bool
	// StepsRead: Slurm's steps are known, so the time of each run is.
	StepsRead bool
	Runs      []Run
}

// Run is what one run did in an allocation.
type Run struct {
	ID, Sweep   int64
	User, Model string
	SettingHash string
	GPUs        int // that its engine uses, on all nodes
	Steps       []Step
	Windows     []Window // of its valid attempt in this allocation; empty for none
}

// Step is the srun that executed a run.
type Step struct {
	Start   time.Time
	Seconds int64
	// EnergyJ is what Slurm measured on the step's nodes; nil where it did not.
	EnergyJ *float64
}

// Window is a load point of a valid attempt: what was measured.
type Window struct {
	Start, End time.Time
	// OutputTokens in the window; nil where they are not known.
	OutputTokens *float64
	// EnergyJ is NVML's for the window; nil where it was not measured.
	EnergyJ *float64
	// MeetsSLO: the sweep has an SLO and the window met it.
	MeetsSLO bool
}

// Row sums up what has the same key. The parts of an allocation are counted in
// each row that they belong to.
type Row struct {
	// Key has one value for each dimension asked for.
	Key   []string
	Class string

	Allocations int // with a part in this row
	Open        int // of them not ended
	Unknown     int // of them ended without accounting: their GPU-seconds are missing
	Runs        int // starts of a run

	Billable int64    // GPU-seconds held
	Measured float64  // GPU-seconds of the windows of valid attempts
	Lost     int64    // GPU-seconds billed to starts of a run without a valid measurement
	Idle     *int64   // GPU-seconds held while no run used the GPU; nil where steps are not known
	Cost     *Micros  // nil where a part has no rate
	Rates    []int64  // the rates that were used
	Energy   *float64 // joules, Slurm's; nil where a step has none
	Window   *float64 // joules, NVML's over the windows; nil where one has none

	OutputTokens *float64 // of the windows that end in the period; nil where one is not known
	Steady       *float64 // dollars per million of them: GPUs of the engine, in the window
	Loaded       *float64 // the same of everything held
	AtSLO        *float64 // the cheapest steady operating point that met the sweep's SLO
	AtSLOSetting string   // its setting
}

// Efficiency is the measured share of what was billed; nil where there is none.
func (r *Row) Efficiency() *float64 { return share(r.Measured, r.Billable, r.Unknown) }

// IdleShare is the idle share of what was billed; nil where it is not known.
func (r *Row) IdleShare() *float64 {
	if r.Idle == nil {
		return nil
	}
	return share(float64(*r.Idle), r.Billable, r.Unknown)
}

// Rate is the mean price of a GPU-hour in micro-dollars; nil without a price.
func (r *Row) Rate() *float64 {
	if r.Cost == nil || r.Billable == 0 {
		return nil
	}
	v := float64(*r.Cost) / float64(r.Billable) * 3600
	return &v
}

// Complete: everything in the row has ended and is accounted for.
func (r *Row) Complete() bool { return r.Open == 0 && r.Unknown == 0 }

func share(part float64, whole int64, unknown int) *float64 {
	// More than the whole would be runs side by side on the same GPUs, or clocks
	// that disagree: no share of anything.
	if whole <= 0 || unknown > 0 || part > float64(whole) {
		return nil
	}
	v := part / float64(whole)
	return &v
}

// Report is what a ledger adds up to. Rows are ordered by class and key; Totals
// has one row for each class, without a key.
type Report struct {
	Period Period
	By     []Dimension
	Rows   []Row
	Totals []Row
}

// Ledger sums up allocations. It is not safe for concurrent use.
type Ledger struct {
	period Period
	by     []Dimension
	book   *Book
	only   func(Allocation, Run) bool
	rows   map[string]*sums
	totals map[string]*sums
}

// NewLedger returns an empty ledger of a period. only, where it is not nil,
// leaves out runs after the allocation was split: what is left keeps its share.
func NewLedger(p Period, by []Dimension, book *Book, only func(Allocation, Run) bool) *Ledger {
	return &Ledger{period: p, by: by, book: book, only: only, rows: map[string]*sums{}, totals: map[string]*sums{}}
}

// Add adds an allocation. Each must be added once.
func (l *Ledger) Add(a Allocation) {
	end := a.Start.Add(a.Held)
	from, to := l.period.clip(a.Start, end)
	if a.Start.IsZero() || (!a.Unknown && !from.Before(to)) || (a.Unknown && (a.Start.Before(l.period.Start) || !a.Start.Before(l.period.End))) {
		return
	}
	if a.Unknown {
		to = from
	}
	if len(a.Runs) == 0 {
		a.Runs = []Run{{}} // what nobody is known to have used is not lost
	}
	seconds := int64(to.Sub(from) / time.Second)
	billed := Split(seconds*int64(a.GPUs), a.weights())
	amount, rates, priced := l.book.price(a.Site, a.Hardware, int64(a.GPUs), a.Start, from, to)
	money := Split(int64(amount), billed)
	counted := map[*sums]bool{}
	for i, r := range a.Runs {
		if l.only != nil && !l.only(a, r) {
			continue
		}
		p := part{alloc: &a, run: &r, billed: billed[i], money: Micros(money[i]), priced: priced, rates: rates, from: from, to: to}
		for _, s := range []*sums{l.sum(l.rows, l.key(a, r), a.Class), l.sum(l.totals, nil, a.Class)} {
			s.add(&p, l.period, l.book, !counted[s])
			counted[s] = true
		}
	}
}

// weights are the seconds of each run's steps; the gaps between them are billed
// in the same proportion. Where steps took less than a second each, or none
// is known, the runs that have a step count alike, else all.
func (a *Allocation) weights() []int64 {
	weights, any := make([]int64, len(a.Runs)), false
	for i, r := range a.Runs {
		for _, s := range r.Steps {
			weights[i] += s.Seconds
		}
		any = any || weights[i] > 0
	}
	if !any {
		for i, r := range a.Runs {
			weights[i] = int64(min(len(r.Steps), 1))
		}
	}
	return weights
}

func (l *Ledger) key(a Allocation, r Run) []string {
	key := make([]string, len(l.by))
	for i, d := range l.by {
		switch d {
		case ByAccount:
			key[i] = a.Account
		case ByUser:
			key[i] = r.User
		case ByModel:
			key[i] = r.Model
		case ByHardware:
			key[i] = a.Hardware
		case BySweep:
			if r.Sweep != 0 {
				key[i] = strconv.FormatInt(r.Sweep, 10)
			}
		case ByPartition:
			key[i] = a.Partition
		case BySite:
			key[i] = a.Site
		}
	}
	return key
}

func (l *Ledger) sum(rows map[string]*sums, key []string, class string) *sums {
	id := class + "\x00" + strings.Join(key, "\x00")
	s := rows[id]
	if s == nil {
		s = &sums{key: key, class: class, points: map[string]*point{}}
		rows[id] = s
	}
	return s
}

// Report returns the sums so far.
func (l *Ledger) Report() Report {
	r := Report{Period: l.period, By: l.by, Rows: collected(l.rows), Totals: collected(l.totals)}
	slices.SortFunc(r.Rows, func(a, b Row) int { return cmp.Or(cmp.Compare(a.Class, b.Class), l.compare(a.Key, b.Key)) })
	slices.SortFunc(r.Totals, func(a, b Row) int { return cmp.Compare(a.Class, b.Class) })
	return r
}

// compare orders keys; sweeps by number.
func (l *Ledger) compare(a, b []string) int {
	for i, d := range l.by {
		c := cmp.Compare(a[i], b[i])
		if d == BySweep {
			c = cmp.Or(cmp.Compare(len(a[i]), len(b[i])), c)
		}
		if c != 0 {
			return c
		}
	}
	return 0
}

func collected(rows map[string]*sums) []Row {
	list := make([]Row, 0, len(rows))
	for _, s := range rows {
		list = append(list, s.row())
	}
	return list
}

// part is what one run of an allocation adds.
type part struct {
	alloc    *Allocation
	run      *Run
	billed   int64
	money    Micros
	priced   bool
	rates    []int64
	from, to time.Time // what of the allocation lies in the period
}

// sums are a row in the making.
type sums struct {
	key                          []string
	class                        string
	allocations, open, unknown   int
	runs                         int
	billable, lost, used         int64
	noSteps, noPrice             bool
	noEnergy, noWindow, noTokens bool
	measured, energy, windowJ    float64
	steps, windows               int
	tokens, steadyUSD            float64
	noSteady                     bool
	money                        Micros
	rates                        []int64
	points                       map[string]*point
}

// point is an operating point: one setting, with all its valid windows.
type point struct {
	usd, tokens float64
	bad         bool // a window missed the SLO, or is not priced
}

func (s *sums) add(p *part, period Period, book *Book, first bool) {
	a, r := p.alloc, p.run
	if first {
		s.allocations++
		if a.Open {
			s.open++
		}
		if a.Unknown {
			s.unknown++
		}
	}
	if r.ID != 0 {
		s.runs++
	}
	s.billable += p.billed
	s.money += p.money
	s.noPrice = s.noPrice || !p.priced
	for _, id := range p.rates {
		if !slices.Contains(s.rates, id) {
			s.rates = append(s.rates, id)
		}
	}
	if len(r.Windows) == 0 && !a.Open {
		s.lost += p.billed
	}
	s.noSteps = s.noSteps || !a.StepsRead
	for _, st := range r.Steps {
		from, to := clipTo(p.from, p.to, st.Start, st.Start.Add(time.Duration(st.Seconds)*time.Second))
		s.used += int64(to.Sub(from)/time.Second) * int64(min(r.GPUs, a.GPUs))
		s.steps++
		if st.EnergyJ == nil {
			s.noEnergy = true
			continue
		}
		s.energy += *st.EnergyJ
	}
	for _, w := range r.Windows {
		from, to := clipTo(p.from, p.to, w.Start, w.End)
		s.measured += to.Sub(from).Seconds() * float64(min(r.GPUs, a.GPUs))
		if !w.End.Before(period.Start) && w.End.Before(period.End) {
			s.window(a, r, w, book)
		}
	}
}

// window adds a load point that ended in the period.
func (s *sums) window(a *Allocation, r *Run, w Window, book *Book) {
	s.windows++
	if w.EnergyJ == nil {
		s.noWindow = true
	} else {
		s.windowJ += *w.EnergyJ
	}
	if w.OutputTokens == nil {
		s.noTokens = true
		return
	}
	s.tokens += *w.OutputTokens
	rate, ok := book.At(a.Site, a.Hardware, w.Start)
	usd := rate.PerGPUHour.USD() * float64(r.GPUs) * w.End.Sub(w.Start).Hours()
	s.noSteady = s.noSteady || !ok
	s.steadyUSD += usd
	pt := s.points[r.SettingHash]
	if pt == nil {
		pt = &point{}
		s.points[r.SettingHash] = pt
	}
	pt.usd += usd
	pt.tokens += *w.OutputTokens
	pt.bad = pt.bad || !ok || !w.MeetsSLO
}

func clipTo(from, to, a, b time.Time) (time.Time, time.Time) {
	return Period{from, to}.clip(a, b)
}

func (s *sums) row() Row {
	r := Row{
		Key: s.key, Class: s.class, Allocations: s.allocations, Open: s.open, Unknown: s.unknown, Runs: s.runs, Billable: s.billable,
		Measured: s.measured, Lost: s.lost, Rates: slices.Sorted(slices.Values(s.rates)),
	}
	if !s.noSteps {
		idle := max(s.billable-s.used, 0)
		r.Idle = &idle
	}
	if !s.noPrice {
		money := s.money
		r.Cost = &money
	}
	if s.steps > 0 && !s.noEnergy && !s.noSteps {
		r.Energy = &s.energy
	}
	if s.windows > 0 && !s.noWindow {
		r.Window = &s.windowJ
	}
	if s.windows == 0 || s.noTokens {
		return r
	}
	r.OutputTokens = &s.tokens
	if s.tokens > 0 && !s.noSteady {
		r.Steady = perMillion(s.steadyUSD, s.tokens)
	}
	if s.tokens > 0 && r.Cost != nil && s.unknown == 0 {
		r.Loaded = perMillion(r.Cost.USD(), s.tokens)
	}
	best := math.Inf(1)
	for hash, pt := range s.points {
		if pt.bad || pt.tokens <= 0 {
			continue
		}
		v := *perMillion(pt.usd, pt.tokens)
		if v < best || v == best && hash < r.AtSLOSetting {
			best, r.AtSLOSetting = v, hash
			r.AtSLO = &v
		}
	}
	return r
}

func perMillion(usd, tokens float64) *float64 {
	v := usd / tokens * 1e6
	return &v
}
