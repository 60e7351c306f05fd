package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Condition is one sweep that another waits for.
type Condition struct {
	Kind  DependencyKind
	Sweep int64 // 0 for singleton
}

// DependencyKind says what is waited for, in sbatch's words.
type DependencyKind string

// The kinds. They are about sweeps: one has begun when none of its runs is
// pending any more, and is complete when every run is.
const (
	After          DependencyKind = "after"      // it has begun, or ended
	AfterAny       DependencyKind = "afterany"   // it has ended
	AfterOK        DependencyKind = "afterok"    // it has ended and is complete
	AfterNotOK     DependencyKind = "afternotok" // it has ended and is not
	AfterCorr      DependencyKind = "aftercorr"  // setting by setting: its setting at the same place is complete
	Singleton      DependencyKind = "singleton"  // no earlier sweep of the same user and name is under way
	mostWaited                    = 100
	dependencyForm                = "write type:ID[:ID…][,type:ID…], as afterok:17:18,afterany:19"
)

// Dependency is what has to come true before a sweep starts.
type Dependency struct {
	Conditions []Condition
	// Any: one condition is enough, instead of all.
	Any bool
}

// ParseDependency reads the value of --dependency: conditions that must all hold
// are separated by commas, those of which one is enough by question marks. "" is
// no dependency.
func ParseDependency(text string) (Dependency, error) {
	var d Dependency
	if text == "" {
		return d, nil
	}
	separator := ","
	if strings.Contains(text, "?") {
		if strings.Contains(text, ",") {
			return d, fmt.Errorf("%q mixes , and ?", text)
		}
		separator, d.Any = "?", true
	}
	kinds := []DependencyKind{After, AfterAny, AfterOK, AfterNotOK, AfterCorr}
	for part := range strings.SplitSeq(text, separator) {
		words := strings.Split(part, ":")
		kind := DependencyKind(words[0])
		switch {
		case kind == Singleton && len(words) == 1:
			d.Conditions = append(d.Conditions, Condition{Kind: Singleton})
			continue
		case !slices.Contains(kinds, kind), len(words) < 2:
			return d, fmt.Errorf("%q is not a dependency: %s", part, dependencyForm)
		}
		for _, w := range words[1:] {
			id, err := strconv.ParseInt(w, 10, 64)
			if err != nil || id <= 0 {
				return d, fmt.Errorf("%q is not the number of a sweep: %s", w, dependencyForm)
			}
			d.Conditions = append(d.Conditions, Condition{Kind: kind, Sweep: id})
		}
	}
	if len(d.Conditions) > mostWaited {
		return d, fmt.Errorf("a sweep waits for at most %d others", mostWaited)
	}
	return d, nil
}

// Verdict is what is known of a dependency.
type Verdict int

// The verdicts.
const (
	Waiting Verdict = iota
	Met
	Never // it cannot come true any more
)

// SweepProgress is what conditions are about.
type SweepProgress struct {
	Begun    bool // no run is pending, or the sweep has ended
	Ended    bool
	Complete bool // with Ended: every run is complete
	// CompleteSettings are the places of the settings whose runs are all complete,
	// EndedSettings of those whose runs have all ended.
	CompleteSettings, EndedSettings map[int]bool
}

// Verdict says whether the setting at a place of the waiting sweep may start.
// earlier says that an earlier sweep of the same user and name is under way; a
// sweep that progress does not know is not there any more and never ends.
func (d Dependency) Verdict(place int, progress map[int64]SweepProgress, earlier bool) Verdict {
	if len(d.Conditions) == 0 {
		return Met
	}
	met, never := 0, 0
	for _, c := range d.Conditions {
		switch c.verdict(place, progress, earlier) {
		case Met:
			met++
		case Never:
			never++
		case Waiting:
		}
	}
	switch {
	case d.Any && met > 0, !d.Any && met == len(d.Conditions):
		return Met
	case d.Any && never == len(d.Conditions), !d.Any && never > 0:
		return Never
	}
	return Waiting
}

func (c Condition) verdict(place int, progress map[int64]SweepProgress, earlier bool) Verdict {
	if c.Kind == Singleton {
		if earlier {
			return Waiting
		}
		return Met
	}
	p, known := progress[c.Sweep]
	ended := func(ok bool) Verdict {
		switch {
		case !p.Ended:
			return Waiting
		case ok:
			return Met
		}
		return Never
	}
	switch {
	case !known:
		return Never
	case c.Kind == After && p.Begun:
		return Met
	case c.Kind == AfterAny:
		return ended(true)
	case c.Kind == AfterOK:
		return ended(p.Complete)
	case c.Kind == AfterNotOK:
		return ended(!p.Complete)
	case c.Kind == AfterCorr && p.CompleteSettings[place]:
		return Met
	case c.Kind == AfterCorr && (p.Ended || p.EndedSettings[place]):
		return Never
	}
	return Waiting
}
