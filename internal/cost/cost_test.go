package cost

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func at(s int64) time.Time { return epoch.Add(time.Duration(s) * time.Second) }

func ptr[T any](v T) *T { return &v }

func TestBook_At(t *testing.T) {
	t.Parallel()
	b := NewBook([]Rate{
		{ID: 1, PerGPUHour: 1_000_000, From: at(0)},
		{ID: 2, Hardware: "l4", PerGPUHour: 500_000, From: at(0)},
		{ID: 3, Site: "lab", PerGPUHour: 2_000_000, From: at(0)},
		{ID: 4, Site: "lab", Hardware: "l4", PerGPUHour: 700_000, From: at(100)},
		{ID: 5, PerGPUHour: 9_000_000, From: at(200)},
		{ID: 6, Site: "lab", Hardware: "l4", PerGPUHour: 800_000, From: at(100)}, // the later word
	})
	for _, tc := range []struct {
		site, hardware string
		at             int64
		want           int64
	}{
		{"lab", "l4", 50, 3},
		{"lab", "l4", 100, 6},
		{"lab", "h100-sxm", 300, 3},
		{"eu", "l4", 300, 2},
		{"eu", "h100-sxm", 199, 1},
		{"eu", "h100-sxm", 200, 5},
		{"eu", "l4", -1, 0},
	} {
		got, ok := b.At(tc.site, tc.hardware, at(tc.at))
		if got.ID != tc.want || ok != (tc.want != 0) {
			t.Errorf("%s %s at %d: got rate %d, %v; want %d", tc.site, tc.hardware, tc.at, got.ID, ok, tc.want)
		}
	}
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		whole         int64
		weights, want []int64
	}{
		{10, []int64{1, 1, 1}, []int64{4, 3, 3}},
		{10, []int64{0, 0}, []int64{5, 5}},
		{7, []int64{0, 3, 1}, []int64{0, 5, 2}},
		{0, []int64{2, 1}, []int64{0, 0}},
		{math.MaxInt64, []int64{math.MaxInt64, math.MaxInt64}, []int64{math.MaxInt64/2 + 1, math.MaxInt64 / 2}},
		{5, nil, nil},
	} {
		if diff := cmp.Diff(tc.want, Split(tc.whole, tc.weights)); diff != "" {
			t.Errorf("%d by %v: %s", tc.whole, tc.weights, diff)
		}
	}
}

func TestSplit_AddsUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.Int64Min(0).Draw(t, "whole")
		weights := rapid.SliceOfN(rapid.Int64(), 1, 12).Draw(t, "weights")
		sum := int64(0)
		for _, p := range Split(whole, weights) {
			if p < 0 {
				t.Fatalf("negative part %d", p)
			}
			sum += p
		}
		if sum != whole {
			t.Fatalf("parts add up to %d, not %d", sum, whole)
		}
	})
}

// one is a plain allocation: four GPUs for an hour, two runs of two GPUs.
func one() Allocation {
	return Allocation{
		Site: "lab", Account: "ml", Partition: "gpu", Hardware: "h100-sxm", Class: "emulated", Start: at(0), Held: time.Hour, GPUs: 4, StepsRead: true,
		Runs: []Run{
			{ID: 1, Sweep: 7, User: "ada", Model: "m", SettingHash: "a", GPUs: 2, Steps: []Step{{Start: at(100), Seconds: 1000}}, Windows: []Window{
				{Start: at(200), End: at(800), OutputTokens: ptr(60_000.0), MeetsSLO: true},
			}},
			{ID: 2, Sweep: 8, User: "bob", Model: "m", SettingHash: "b", GPUs: 2, Steps: []Step{{Start: at(1100), Seconds: 2000}}},
		},
	}
}

func whole() Period { return Period{at(0), at(100_000)} }

func TestLedger(t *testing.T) {
	t.Parallel()
	book := NewBook([]Rate{{ID: 1, PerGPUHour: 3_600_000, From: at(0)}}) // a thousandth of a dollar a second
	l := NewLedger(whole(), []Dimension{ByUser, BySweep}, book, nil)
	l.Add(one())
	got := l.Report()
	want := []Row{
		{
			Key: []string{"ada", "7"}, Class: "emulated", Allocations: 1, Runs: 1, Billable: 4800, Measured: 1200, Idle: ptr(int64(2800)),
			Cost: ptr(Micros(4_800_000)), Rates: []int64{1}, OutputTokens: ptr(60_000.0), Steady: ptr(20.0), Loaded: ptr(80.0), AtSLO: ptr(20.0), AtSLOSetting: "a",
		},
		{
			Key: []string{"bob", "8"}, Class: "emulated", Allocations: 1, Runs: 1, Billable: 9600, Lost: 9600, Idle: ptr(int64(5600)),
			Cost: ptr(Micros(9_600_000)), Rates: []int64{1},
		},
	}
	near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
	if diff := cmp.Diff(want, got.Rows, near); diff != "" {
		t.Error(diff)
	}
	if n := len(got.Totals); n != 1 || got.Totals[0].Billable != 4*3600 || got.Totals[0].Allocations != 1 || got.Totals[0].Runs != 2 {
		t.Errorf("totals: %+v", got.Totals)
	}
	if e := got.Rows[0].Efficiency(); e == nil || *e != 0.25 {
		t.Errorf("efficiency %v", e)
	}
	if s := got.Rows[1].IdleShare(); s == nil || math.Abs(*s-5600.0/9600) > 1e-12 {
		t.Errorf("idle share %v", s)
	}
}

// What is not known is not 0.
func TestLedger_Unknown(t *testing.T) {
	t.Parallel()
	l := NewLedger(whole(), []Dimension{ByAccount}, NewBook(nil), nil)
	a := one()
	a.StepsRead = false
	l.Add(a)
	lost := one()
	lost.Unknown, lost.Held, lost.GPUs, lost.Account = true, 0, 0, "lost"
	l.Add(lost)
	rows := l.Report().Rows
	if len(rows) != 2 {
		t.Fatalf("rows: %+v", rows)
	}
	r := rows[1]
	if r.Cost != nil || r.Idle != nil || r.Rate() != nil || r.Energy != nil || r.Window != nil || r.Loaded != nil || r.AtSLO != nil || r.Billable != 14400 {
		t.Errorf("without rates, steps and energy: %+v", r)
	}
	if r = rows[0]; r.Unknown != 1 || r.Complete() || r.Efficiency() != nil || r.IdleShare() != nil {
		t.Errorf("without accounting: %+v", r)
	}
}

// One of two windows that misses the SLO is no operating point.
func TestLedger_AtSLO(t *testing.T) {
	t.Parallel()
	book := NewBook([]Rate{{ID: 1, PerGPUHour: 3_600_000, From: at(0)}})
	a := one()
	a.Runs[1].Windows = []Window{{Start: at(1200), End: at(1500), OutputTokens: ptr(300_000.0)}} // cheaper, and too slow
	l := NewLedger(whole(), []Dimension{ByModel}, book, nil)
	l.Add(a)
	if r := l.Report().Rows[0]; r.AtSLO == nil || r.AtSLOSetting != "a" || math.Abs(*r.AtSLO-20) > 1e-9 {
		t.Errorf("got %v of %s", r.AtSLO, r.AtSLOSetting)
	}
	a.Runs[0].Windows = append(a.Runs[0].Windows, Window{Start: at(900), End: at(1000), OutputTokens: ptr(1.0)})
	l = NewLedger(whole(), []Dimension{ByModel}, book, nil)
	l.Add(a)
	if r := l.Report().Rows[0]; r.AtSLO != nil {
		t.Errorf("a setting that missed its SLO once: %v", *r.AtSLO)
	}
}

func TestLedger_Energy(t *testing.T) {
	t.Parallel()
	a := one()
	a.Runs[0].Steps[0].EnergyJ, a.Runs[1].Steps[0].EnergyJ, a.Runs[0].Windows[0].EnergyJ = ptr(10.0), ptr(20.0), ptr(5.0)
	l := NewLedger(whole(), []Dimension{ByModel}, NewBook(nil), nil)
	l.Add(a)
	if r := l.Report().Rows[0]; r.Energy == nil || *r.Energy != 30 || r.Window == nil || *r.Window != 5 {
		t.Errorf("got %v, %v", r.Energy, r.Window)
	}
	a.Runs[1].Steps[0].EnergyJ = nil
	l.Add(a)
	if r := l.Report().Rows[0]; r.Energy != nil {
		t.Errorf("with a step that has none: %v", *r.Energy)
	}
}

// allocations draws requeued and plain allocations of one cluster.
func allocations(t *rapid.T) []Allocation {
	var list []Allocation
	word := func(label string, words ...string) string { return rapid.SampledFrom(words).Draw(t, label) }
	for i := range rapid.IntRange(1, 8).Draw(t, "jobs") {
		clock := rapid.Int64Range(-2000, 2000).Draw(t, "submit")
		base := Allocation{
			Site: word("site", "lab", "eu"), Account: word("account", "ml", "nlp"), Partition: word("partition", "gpu", "l4"),
			Hardware: word("hardware", "h100-sxm", "l4"), Class: word("class", "real", "emulated"),
			GPUs: rapid.IntRange(0, 16).Draw(t, "gpus"), StepsRead: true,
		}
		// A requeue is another allocation of the same job, later.
		for range rapid.IntRange(1, 3).Draw(t, "starts") {
			a := base
			a.Start, a.Held = at(clock), time.Duration(rapid.Int64Range(0, 3000).Draw(t, "held"))*time.Second
			step := clock
			for k := range rapid.IntRange(0, 4).Draw(t, "runs") {
				r := Run{
					ID: int64(10*i + k + 1), Sweep: rapid.Int64Range(1, 3).Draw(t, "sweep"), User: word("user", "ada", "bob"),
					Model: word("model", "m", "n"), SettingHash: fmt.Sprint(k), GPUs: base.GPUs,
				}
				if rapid.Bool().Draw(t, "ran") {
					s := rapid.Int64Range(0, 800).Draw(t, "seconds")
					r.Steps = []Step{{Start: at(step), Seconds: s}}
					step += s
				}
				a.Runs = append(a.Runs, r)
			}
			list = append(list, a)
			clock += int64(a.Held/time.Second) + 5
		}
	}
	return list
}

func rates(t *rapid.T) *Book {
	list := []Rate{{ID: 1, PerGPUHour: 1_234_567, From: at(-10_000)}}
	for i := range rapid.IntRange(0, 4).Draw(t, "rates") {
		list = append(list, Rate{
			ID: int64(i + 2), Site: rapid.SampledFrom([]string{"", "lab"}).Draw(t, "rate site"),
			Hardware:   rapid.SampledFrom([]string{"", "l4"}).Draw(t, "rate hardware"),
			PerGPUHour: Micros(rapid.Int64Range(0, 50_000_000).Draw(t, "rate")), From: at(rapid.Int64Range(-3000, 6000).Draw(t, "from")),
		})
	}
	return NewBook(list)
}

func total(rows []Row) (billable int64, money Micros) {
	for _, r := range rows {
		billable += r.Billable
		money += *r.Cost
	}
	return billable, money
}

// However it is cut, by dimensions or into adjacent periods, the parts add up to
// the whole to the last micro-dollar, and the whole is what each allocation,
// requeues included, held once.
func TestLedger_PartsAddUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		list, book := allocations(t), rates(t)
		all := Period{at(-20_000), at(50_000)}
		report := func(p Period, by ...Dimension) Report {
			l := NewLedger(p, by, book, nil)
			for _, a := range list {
				l.Add(a)
			}
			return l.Report()
		}
		wantGPU, wantUSD := int64(0), Micros(0)
		for _, a := range list {
			wantGPU += int64(a.GPUs) * int64(a.Held/time.Second)
			amount, _, ok := book.price(a.Site, a.Hardware, int64(a.GPUs), a.Start, a.Start, a.Start.Add(a.Held))
			if !ok {
				t.Fatal("no price")
			}
			wantUSD += amount
		}
		by := rapid.SliceOfNDistinct(rapid.SampledFrom(Dimensions()), 1, 4, rapid.ID).Draw(t, "by")
		got := report(all, by...)
		for _, rows := range [][]Row{got.Rows, got.Totals} {
			if gpu, usd := total(rows); gpu != wantGPU || usd != wantUSD {
				t.Fatalf("by %v: %d GPU-s and %d, want %d and %d", by, gpu, usd, wantGPU, wantUSD)
			}
		}
		cuts := rapid.SliceOfN(rapid.Int64Range(-3000, 9000), 0, 4).Draw(t, "cuts")
		slices.Sort(cuts)
		start, gpu, usd := all.Start, int64(0), Micros(0)
		for _, c := range append(cuts, 50_000) {
			g, u := total(report(Period{start, at(c)}, by...).Rows)
			gpu, usd, start = gpu+g, usd+u, at(c)
		}
		if gpu != wantGPU || usd != wantUSD {
			t.Fatalf("in periods cut at %v: %d GPU-s and %d, want %d and %d", cuts, gpu, usd, wantGPU, wantUSD)
		}
		for _, r := range got.Rows {
			if len(r.Key) != len(by) || (r.Class != "real" && r.Class != "emulated") || r.Idle == nil || *r.Idle > r.Billable {
				t.Fatalf("row %+v", r)
			}
		}
	})
}

// Leaving others out changes nobody's share.
func TestLedger_OnlySome(t *testing.T) {
	t.Parallel()
	book := NewBook([]Rate{{ID: 1, PerGPUHour: 1, From: at(0)}})
	l := NewLedger(whole(), []Dimension{ByUser}, book, func(_ Allocation, r Run) bool { return r.User == "bob" })
	l.Add(one())
	if r := l.Report(); len(r.Rows) != 1 || r.Rows[0].Billable != 9600 || r.Totals[0].Billable != 9600 {
		t.Errorf("got %+v", r)
	}
}

func TestParseDimensions(t *testing.T) {
	t.Parallel()
	got, err := ParseDimensions("account, User")
	if diff := cmp.Diff([]Dimension{ByAccount, ByUser}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for _, bad := range []string{"", "account,account", "gpu"} {
		if _, err := ParseDimensions(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestBook_Forecast(t *testing.T) {
	t.Parallel()
	b := NewBook([]Rate{{ID: 1, Site: "lab", PerGPUHour: 2_500_000, From: at(0)}})
	if got, ok := b.Forecast("lab", "l4", 7200, at(1)); got != 5_000_000 || !ok {
		t.Errorf("got %d, %v", got, ok)
	}
	for _, seconds := range []float64{math.NaN(), -1} {
		if _, ok := b.Forecast("lab", "l4", seconds, at(1)); ok {
			t.Errorf("%g seconds have a price", seconds)
		}
	}
	if _, ok := b.Forecast("eu", "l4", 1, at(1)); ok {
		t.Error("a price without a rate")
	}
}
