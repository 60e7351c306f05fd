// Package reuse decides which settings of a sweep need not run again, which of
// them run all the same as canaries, and whether the canaries say that something
// changed that nobody pinned. It promises the same answer for the same day and
// settings in any order, and refuses to skip a stratum without a canary unless
// the share of canaries is 0. The package is pure.
package reuse

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"sbench/internal/setting"
)

// The policy of a sweep that says nothing.
const (
	DefaultMaxAge = 30 * 24 * time.Hour
	DefaultCanary = 0.02
)

// Action is what becomes of a setting.
type Action string

// The actions.
const (
	Run    Action = "run"    // there is no fresh result
	Carry  Action = "carry"  // the fresh result stands
	Canary Action = "canary" // there is one, and it is measured again to see whether it still holds
)

// Candidate is a setting of a sweep.
type Candidate struct {
	Hash    string
	Stratum string // StratumOf
	Fresh   bool   // a final, complete, clean and precise result of it is young enough
}

// StratumOf names the settings whose canaries speak for each other: one kind of
// hardware, one engine, one model.
func StratumOf(s *setting.Setting) string {
	return s.Hardware.GPU + "/" + string(s.Engine.Kind) + "/" + s.Model.Name
}

// Decide says for every candidate what becomes of it. share is the share of the
// fresh settings of each stratum that runs as canaries, rounded up, and at least
// two of twenty or more; 0 is none. A sixth of the canaries is the same every
// day, for the trend; the others rotate with day.
func Decide(candidates []Candidate, share float64, day int64) map[string]Action {
	actions := make(map[string]Action, len(candidates))
	strata := map[string][]string{}
	for _, c := range candidates {
		actions[c.Hash] = Run
		if c.Fresh {
			actions[c.Hash] = Carry
			strata[c.Stratum] = append(strata[c.Stratum], c.Hash)
		}
	}
	if share <= 0 {
		return actions
	}
	for _, hashes := range strata {
		k := int(math.Ceil(share * float64(len(hashes))))
		if len(hashes) >= 20 {
			k = max(k, 2)
		}
		k = min(k, len(hashes))
		fixed := k / 6
		slices.SortFunc(hashes, func(a, b string) int { return cmp.Compare(draw(a, 0), draw(b, 0)) })
		rest := hashes[fixed:]
		slices.SortFunc(rest, func(a, b string) int { return cmp.Compare(draw(a, day), draw(b, day)) })
		for _, h := range hashes[:k] {
			actions[h] = Canary
		}
	}
	return actions
}

// draw is a number that depends on nothing but the setting and the day.
func draw(hash string, day int64) uint64 {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(hash), uint64(day)))
	return binary.BigEndian.Uint64(sum[:8])
}

// Sample is a metric over the runs of one setting.
type Sample struct {
	N            int
	Mean, StdDev float64
}

// Pair is a metric of a canary: what was carried, and what it is now.
type Pair struct {
	Before, After Sample
}

// The bounds of a deviation: as unlikely as this by chance, over all metrics
// that are looked at, and as large.
const (
	deviationP     = 0.001
	deviationRatio = 0.02
)

// Deviation is how far the canaries of a stratum are from what was carried.
type Deviation struct {
	Canaries int
	Ratio    float64 // geometric mean of after/before
	P        float64 // two-sided, of no difference, before the correction for several metrics
	Found    bool    // beyond the bounds
}

// Deviates pools the canaries of a stratum on one of looks metrics: the mean of
// the log ratios against its standard error, by Student's t with the degrees of
// freedom of all groups together. A pair without two runs on each side, or
// without a positive mean, says nothing and is left out.
func Deviates(pairs []Pair, looks int) Deviation {
	var sum, variance, freedom float64
	d := Deviation{Ratio: 1, P: 1}
	for _, p := range pairs {
		if p.Before.N < 2 || p.After.N < 2 || !(p.Before.Mean > 0) || !(p.After.Mean > 0) {
			continue
		}
		sum += math.Log(p.After.Mean / p.Before.Mean)
		for _, s := range []Sample{p.Before, p.After} {
			// The variance of the logarithm of a mean, by the delta method.
			variance += s.StdDev * s.StdDev / (s.Mean * s.Mean * float64(s.N))
			freedom += float64(s.N - 1)
		}
		d.Canaries++
	}
	if d.Canaries == 0 {
		return d
	}
	d.Ratio = math.Exp(sum / float64(d.Canaries))
	switch {
	case variance > 0:
		t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}
		d.P = 2 * t.CDF(-math.Abs(sum)/math.Sqrt(variance))
	case sum != 0:
		d.P = 0 // runs that were equal to the last digit, and now are not
	}
	d.Found = d.P < deviationP/float64(max(looks, 1)) && math.Abs(math.Log(d.Ratio)) > math.Log1p(deviationRatio)
	return d
}
