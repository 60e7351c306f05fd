package regress

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"sbench/internal/setting"
	"sbench/internal/stats"
)

// Report is everything that is said of a night.
type Report struct {
	Screened
	Nodes         []NodeEffect   `json:"nodes"`      // outliers
	References    []Reference    `json:"references"` // of the reference setting, node by node
	Confirmations []Confirmation `json:"confirmations"`
	Alerts        []Alert        `json:"alerts"`
	// Environments are the unpinned differences between tonight and the nights
	// before, for candidates of which nothing pinned changed.
	Environments []Unlike `json:"environments"`
	// NotRun are candidates that were not run again, and why.
	NotRun []Unconfirmed `json:"not_run_again"`
}

// Unlike lists how the environments of a series differ from those of the nights
// before.
type Unlike struct {
	Series string   `json:"series_hash"`
	Lines  []string `json:"differences"`
}

// Unconfirmed is a candidate that was not run again.
type Unconfirmed struct {
	Series string `json:"series_hash"`
	Reason string `json:"reason"`
}

// StratumOf names what may share a cause: hardware, engine and image.
func StratumOf(s *setting.Setting) string {
	image := cmp.Or(s.Image.Digest, s.Image.Path)
	if name, digest, ok := strings.Cut(image, ":"); ok && name == "sha256" && len(digest) > 12 {
		image = digest[:12]
	}
	return strings.Join([]string{s.Hardware.GPU, string(s.Engine.Kind), image}, " ")
}

// maxWitnesses are run again for one drift.
const maxWitnesses = 3

// Witnesses are series of strata that got worse as a whole: as the common shift is
// taken out of each, none is suspected by itself, and yet something got slower.
// Three of each are run again, those in the middle of the shift; three that confirm
// are one alert.
func (s Screened) Witnesses(all []Series) []Candidate {
	known, seen := map[string]bool{}, map[string]bool{}
	for _, c := range s.Candidates {
		known[c.Series] = true
	}
	var out []Candidate
	for _, d := range s.Drifts {
		if d.Shift <= 0 || seen[d.Stratum] { // another metric of the same is no other cause
			continue
		}
		seen[d.Stratum] = true
		var lines []line
		for i := range all {
			if all[i].Stratum != d.Stratum || known[all[i].Hash] {
				continue
			}
			if l, why := lineOf(&all[i], d.Metric); why == "" {
				lines = append(lines, l)
			}
		}
		middle := math.Log1p(d.Shift)
		slices.SortStableFunc(lines, func(a, b line) int {
			return cmp.Compare(math.Abs(a.residual()-middle), math.Abs(b.residual()-middle))
		})
		for _, l := range lines[:min(maxWitnesses, len(lines))] {
			known[l.series.Hash] = true
			out = append(out, Candidate{
				Series: l.series.Hash, Stratum: d.Stratum, Metric: d.Metric, P: d.P, Estimate: math.Expm1(l.residual()), Since: 1, Witness: true,
				Tonight: l.series.Nights[len(l.series.Nights)-1].SettingHash, Before: l.series.Nights[len(l.series.Nights)-2].SettingHash,
				Runs: min(maxConfirm, max(minConfirm, stats.Detect(l.run, lookFor, confirmP, 0.8))), Synthetic: synthetic(l.series.Nights),
			})
		}
	}
	return out
}

func synthetic(nights []Night) int {
	n := 0
	for _, night := range nights {
		if night.Synthetic {
			n++
		}
	}
	return n
}

// Differences lists the properties of which tonight's environments have values that
// none of the nights before had, in the order of their names. Each environment is
// its properties by name.
func Differences(before, tonight []map[string]string) []string {
	if len(before) == 0 {
		return nil
	}
	seen, now := map[string]map[string]bool{}, map[string]map[string]bool{}
	collect := func(into map[string]map[string]bool, list []map[string]string) {
		for _, facts := range list {
			for name, value := range facts {
				if into[name] == nil {
					into[name] = map[string]bool{}
				}
				into[name][value] = true
			}
		}
	}
	collect(seen, before)
	collect(now, tonight)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		for _, value := range slices.Sorted(maps.Keys(now[name])) {
			if !seen[name][value] {
				earlier := strings.Join(slices.Sorted(maps.Keys(seen[name])), ", ")
				out = append(out, fmt.Sprintf("%s: %s tonight, %s before", name, value, cmp.Or(earlier, "unknown")))
			}
		}
	}
	return out
}
