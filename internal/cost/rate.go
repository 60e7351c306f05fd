// Package cost turns what Slurm accounted for into GPU-seconds and money: it
// splits what an allocation held over the runs in it, prices it by versioned
// rates, and sums it up by any dimension. It promises that parts add up to the
// whole exactly, that nothing is counted twice, and that what is not known comes
// out as unknown; it refuses to put real and emulated hardware into one row.
// The package is pure.
package cost

import (
	"cmp"
	"math"
	"math/big"
	"slices"
	"time"
)

// Micros is money in millionths of a US dollar.
type Micros int64

// USD is the amount in dollars.
func (m Micros) USD() float64 { return float64(m) / 1e6 }

// MaxRate bounds a rate: a million dollars per GPU-hour is a typing error.
const MaxRate Micros = 1e12

// Rate is what a GPU-hour costs from some time on. A rate is never changed: a
// later one takes its place from its own time on.
type Rate struct {
	ID int64
	// Site and Hardware narrow the rate; "" is every site, every hardware.
	Site, Hardware string
	PerGPUHour     Micros
	From           time.Time
}

// specificity orders rates that hold at one time: site and hardware before site,
// before hardware, before the general one.
func (r Rate) specificity() int {
	n := 0
	if r.Site != "" {
		n += 2
	}
	if r.Hardware != "" {
		n++
	}
	return n
}

// Book answers what a GPU-hour costs. It does not change after NewBook.
type Book struct{ rates []Rate }

// NewBook returns a book of these rates, in any order.
func NewBook(rates []Rate) *Book {
	sorted := slices.Clone(rates)
	slices.SortFunc(sorted, func(a, b Rate) int { return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.ID, b.ID)) })
	return &Book{sorted}
}

// At returns the rate of a kind of hardware at a site at an instant: the most
// specific one, and of those the latest. ok is false where none holds.
func (b *Book) At(site, hardware string, t time.Time) (rate Rate, ok bool) {
	for _, r := range b.rates {
		if r.From.After(t) {
			break
		}
		if (r.Site != "" && r.Site != site) || (r.Hardware != "" && r.Hardware != hardware) {
			continue
		}
		if !ok || r.specificity() >= rate.specificity() {
			rate, ok = r, true
		}
	}
	return rate, ok
}

// changes lists the instants strictly between from and to at which a rate of
// this hardware may change.
func (b *Book) changes(site, hardware string, from, to time.Time) []time.Time {
	var list []time.Time
	for _, r := range b.rates {
		if r.From.After(from) && r.From.Before(to) && (r.Site == "" || r.Site == site) && (r.Hardware == "" || r.Hardware == hardware) {
			list = append(list, r.From)
		}
	}
	return list
}

// price returns what gpus GPUs cost from start to each of the two instants, as
// a difference: the amount up to an instant is rounded once, so that adjacent
// periods add up to the whole. ok is false where a part of from..to has no rate.
func (b *Book) price(site, hardware string, gpus int64, start, from, to time.Time) (amount Micros, used []int64, ok bool) {
	if !from.Before(to) || gpus == 0 {
		return 0, nil, true
	}
	// In micro-dollars times nanoseconds: exact.
	var before, total big.Int
	known := true
	points := append(b.changes(site, hardware, start, to), to)
	if from.After(start) {
		points = append(points, from)
	}
	slices.SortFunc(points, time.Time.Compare)
	at := start
	for _, next := range points {
		if next.After(at) {
			r, found := b.At(site, hardware, at)
			counted := !at.Before(from)
			if found {
				part := new(big.Int).Mul(big.NewInt(int64(r.PerGPUHour)), big.NewInt(gpus))
				total.Add(&total, part.Mul(part, big.NewInt(next.Sub(at).Nanoseconds())))
			}
			if counted {
				known = known && found
				if found && !slices.Contains(used, r.ID) {
					used = append(used, r.ID)
				}
			}
		}
		at = next
		if next.Equal(from) {
			before.Set(&total)
		}
	}
	if !known {
		return 0, used, false
	}
	return rounded(&total) - rounded(&before), used, true
}

// rounded turns micro-dollars times nanoseconds per hour into micro-dollars,
// half up.
func rounded(v *big.Int) Micros {
	const hour = int64(time.Hour)
	q := new(big.Int).Add(v, big.NewInt(hour/2))
	q.Quo(q, big.NewInt(hour))
	if !q.IsInt64() {
		return math.MaxInt64
	}
	return Micros(q.Int64())
}

// Forecast prices GPU-seconds at the rate of one instant; ok is false where there
// is none.
func (b *Book) Forecast(site, hardware string, gpuSeconds float64, at time.Time) (Micros, bool) {
	r, ok := b.At(site, hardware, at)
	if !ok || math.IsNaN(gpuSeconds) || gpuSeconds < 0 {
		return 0, false
	}
	v := math.Round(gpuSeconds / 3600 * float64(r.PerGPUHour))
	if v > math.MaxInt64/2 {
		return math.MaxInt64 / 2, true
	}
	return Micros(v), true
}

// Split divides a whole among weights by largest remainders: the parts add up
// to it exactly. Where no weight is positive it is divided evenly; of equal
// remainders the earlier part gets more.
func Split(whole int64, weights []int64) []int64 {
	if len(weights) == 0 {
		return nil
	}
	w := slices.Clone(weights)
	var sum big.Int
	for i := range w {
		w[i] = max(w[i], 0)
		sum.Add(&sum, big.NewInt(w[i]))
	}
	if sum.Sign() == 0 {
		for i := range w {
			w[i] = 1
		}
		sum.SetInt64(int64(len(w)))
	}
	type rest struct {
		i int
		r *big.Int
	}
	parts, rests, given := make([]int64, len(w)), make([]rest, len(w)), int64(0)
	for i := range w {
		q, r := new(big.Int).QuoRem(new(big.Int).Mul(big.NewInt(whole), big.NewInt(w[i])), &sum, new(big.Int))
		parts[i], rests[i] = q.Int64(), rest{i, r}
		given += parts[i]
	}
	slices.SortStableFunc(rests, func(a, b rest) int { return b.r.Cmp(a.r) })
	for k := range whole - given {
		parts[rests[k].i]++
	}
	return parts
}
