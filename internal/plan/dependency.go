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

// The kinds. They are about sweeps: one has begun when the first of its runs has
// started, and is complete when every run is.
const (
	After          DependencyKind = "after"      // it has begun, or ended
	AfterAny       DependencyKind = "afterany"   // it has ended
	AfterOK        DependencyKind = "afterok"    // it has ended and is complete
	AfterNotOK     DependencyKind = "afternotok" // it has ended and is not
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
	kinds := []DependencyKind{After, AfterAny, AfterOK, AfterNotOK}
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

// Sweeps lists the sweeps that are waited for, each once.
func (d Dependency) Sweeps() []int64 {
	var ids []int64
	for _, c := range d.Conditions {
		if c.Sweep != 0 && !slices.Contains(ids, c.Sweep) {
			ids = append(ids, c.Sweep)
		}
	}
	return ids
}

// Verdict is what is known of a dependency.
type Verdict int

// The verdicts.
const (
	Waiting Verdict = iota
	Met
	Never // it cannot come true any more, unless a sweep that has ended is requeued
)

// SweepProgress is what conditions are about.
type SweepProgress struct {
	State string // as users see it: active, complete, incomplete, cancelled
	Begun bool   // a run has started
}

func (p SweepProgress) ended() bool { return p.State != "active" }

// Verdict says whether the waiting sweep may start and, where it may not, why in
// words. earlier says that an earlier sweep of the same user and name is under
// way; a sweep that progress does not know is not there and never ends.
func (d Dependency) Verdict(progress map[int64]SweepProgress, earlier bool) (Verdict, string) {
	var waits, dead []string
	for _, c := range d.Conditions {
		switch v, why := c.verdict(progress, earlier); {
		case v == Waiting:
			waits = append(waits, why)
		case v == Never:
			dead = append(dead, why)
		case d.Any:
			return Met, ""
		}
	}
	switch {
	case len(waits)+len(dead) == 0:
		return Met, ""
	case d.Any && len(waits) == 0, !d.Any && len(dead) > 0:
		return Never, strings.Join(dead, "; ")
	case d.Any:
		return Waiting, strings.Join(waits, ", or ")
	}
	return Waiting, strings.Join(waits, ", and ")
}

func (c Condition) verdict(progress map[int64]SweepProgress, earlier bool) (Verdict, string) {
	if c.Kind == Singleton {
		if earlier {
			return Waiting, "waits for an earlier sweep of this name (singleton)"
		}
		return Met, ""
	}
	p, known := progress[c.Sweep]
	if !known {
		return Never, fmt.Sprintf("there is no sweep %d", c.Sweep)
	}
	met, until := p.ended(), "to end"
	switch c.Kind {
	case After:
		met, until = p.Begun || p.ended(), "to begin"
	case AfterOK:
		met, until = p.State == "complete", "to be complete"
	case AfterNotOK:
		met, until = p.ended() && p.State != "complete", "to end and not be complete"
	case AfterAny, Singleton:
	}
	switch {
	case met:
		return Met, ""
	case p.ended():
		return Never, fmt.Sprintf("sweep %d is %s, and %s waits for it %s", c.Sweep, p.State, c.Kind, until)
	}
	return Waiting, fmt.Sprintf("waits for sweep %d %s (%s)", c.Sweep, until, c.Kind)
}
