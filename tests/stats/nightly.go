package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"sbench/internal/compare"
	"sbench/internal/regress"
	"sbench/internal/stats"
)

// fleet is many series with the noise of runs, of nights and of nodes. Each night
// each series runs five times; the nodes are new every night, as Slurm places them.
type fleet struct {
	r        *rand.Rand
	run      float64 // deviation of the logarithm of a run
	night    float64
	node     float64
	series   []regress.Series
	last     []regress.Night // of each series: what the fixed rule compares with
	heavy    bool            // t5 instead of normal runs
	shifted  int             // the first so many series get shift
	shift    float64         // of the logarithm of latency
	silenced map[string]bool
}

const (
	latency    = "ttft_p95"
	throughput = "output_tokens_per_s"
	runsANight = 5
)

func newFleet(seed uint64, series, history int, cv float64) *fleet {
	r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // a simulation is repeated by its seed
	f := &fleet{r: r, run: logSD(cv), night: logSD(cv) / 2, node: logSD(cv) / 4, silenced: map[string]bool{}}
	f.series, f.last = make([]regress.Series, series), make([]regress.Night, series)
	for i := range f.series {
		f.series[i] = regress.Series{Hash: fmt.Sprintf("s%05d", i), Stratum: fmt.Sprint("stratum ", i%20)}
		for n := range history {
			f.series[i].Nights = append(f.series[i].Nights, f.measure(int64(n), 0, runsANight))
		}
	}
	return f
}

func (f *fleet) noise() float64 {
	if f.heavy {
		return f.run * t5(f.r)
	}
	return f.run * f.r.NormFloat64()
}

// measure is one night of one series.
func (f *fleet) measure(sweep int64, shift float64, runs int) regress.Night {
	n := regress.Night{Sweep: sweep, SettingHash: "h", Values: map[string][]float64{latency: make([]float64, runs), throughput: make([]float64, runs)}}
	for _, metric := range []string{latency, throughput} { // in order: the noise has a seed
		values := n.Values[metric]
		sign := 1.0
		if metric == throughput {
			sign = -1
		}
		effect := f.night * f.r.NormFloat64()
		for i := range values {
			values[i] = math.Exp(sign*shift + effect + f.node*f.r.NormFloat64() + f.noise())
		}
	}
	return n
}

// alarms are what a night raised.
type alarms struct {
	falseOnes, found int
	fixedFalse       int // of the fixed 5 % rule against the night before
	fixedFound       int
	extra            int // runs of the confirmations
	candidates       int
}

// pass runs one night: a share of the series is measured (1 for all), screened,
// run again where the screen says so, and published.
func (f *fleet) pass(sweep int64, share float64) alarms {
	var out alarms
	var tonight []regress.Series
	for i := range f.series {
		s := &f.series[i]
		if f.r.Float64() >= share {
			continue
		}
		shift := 0.0
		if i < f.shifted {
			shift = f.shift
		}
		s.Nights = append(s.Nights, f.measure(sweep, shift, runsANight))
		before, now := s.Nights[len(s.Nights)-2], s.Nights[len(s.Nights)-1]
		if stats.Mean(now.Values[latency])/stats.Mean(before.Values[latency]) > 1.05 ||
			stats.Mean(now.Values[throughput])/stats.Mean(before.Values[throughput]) < 0.95 {
			if i < f.shifted {
				out.fixedFound++
			} else {
				out.fixedFalse++
			}
		}
		if !f.silenced[s.Hash] {
			tonight = append(tonight, *s)
		}
	}
	screened := regress.Screen(tonight)
	out.candidates = len(screened.Candidates)
	var list []regress.Confirmation
	for _, c := range screened.Candidates {
		list = append(list, f.confirm(c))
		out.extra += 2 * c.Runs
	}
	regress.Publish(list)
	for _, c := range list {
		if !c.Published {
			continue
		}
		f.silenced[c.Series] = true
		if f.index(c.Series) < f.shifted {
			out.found++
		} else {
			out.falseOnes++
		}
	}
	return out
}

func (f *fleet) index(hash string) int {
	i, _ := slices.BinarySearchFunc(f.series, hash, func(s regress.Series, h string) int {
		switch {
		case s.Hash < h:
			return -1
		case s.Hash > h:
			return 1
		}
		return 0
	})
	return i
}

// confirm runs both sides interleaved, on one node in one night: those effects
// are common to them.
func (f *fleet) confirm(c regress.Candidate) regress.Confirmation {
	shift := 0.0
	if f.index(c.Series) < f.shifted {
		shift = f.shift
	}
	side := func(hash string, shift float64) compare.Row {
		row := compare.Row{SettingHash: hash, HardwareClass: "emulated"}
		for k := range c.Runs {
			l, t := math.Exp(shift+f.noise()), math.Exp(-shift+f.noise())
			row.Runs = append(row.Runs, compare.Run{Repeat: k, Metrics: map[string]*float64{latency: &l, throughput: &t}})
		}
		return row
	}
	return regress.Confirm(c, regress.Fresh{Now: side("new", shift), Before: side("old", 0)})
}

// quiet is a fleet in which nothing changed, for so many nights.
func quiet(seed uint64, series, history, nights int, cv float64, heavy bool) (falseANight, fixedANight, extraANight float64) {
	f := newFleet(seed, series, history, cv)
	f.heavy = heavy
	for n := range nights {
		a := f.pass(int64(history+n), 1)
		falseANight += float64(a.falseOnes)
		fixedANight += float64(a.fixedFalse)
		extraANight += float64(a.extra)
	}
	k := float64(nights)
	return falseANight / k, fixedANight / k, extraANight / k
}

// stepped is a fleet in which the first so many series get slower at night 0. It
// returns the share found in the same night and within the nights, in percent.
func stepped(seed uint64, series, changed, history, nights int, cv, step, share float64) (same, within, fixedSame float64) {
	f := newFleet(seed, series, history, cv)
	f.shifted, f.shift = changed, math.Log1p(step)
	found := 0
	for n := range nights {
		a := f.pass(int64(history+n), share)
		found += a.found
		if n == 0 {
			same, fixedSame = float64(a.found), float64(a.fixedFound)
		}
	}
	k := 100 / float64(changed)
	return same * k, float64(found) * k, fixedSame * k
}
