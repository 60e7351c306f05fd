// Package schedule says when a cron expression is due in a time zone, and what is
// done about due times that were missed. It promises the same due times to
// whoever asks, on any day of the year: a local time that a clock change leaves
// out is due at the change, one that it repeats is due once. It refuses
// expressions that are never due. The package is pure.
package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Schedule is a parsed cron expression in a time zone. The zero value is never due.
type Schedule struct {
	text string
	loc  *time.Location

	minutes, hours, days, months, weekdays uint64 // bit n: the value n matches
	// everyHour: the hour field is *. The schedule then goes by real hours.
	everyHour bool
	// anyDay, anyWeekday: the field begins with *. A day must match both fields;
	// where both are restricted, either.
	anyDay, anyWeekday bool
}

// maxText bounds an expression: lists of all minutes fit.
const maxText = 400

// horizon is how far ahead a due time is looked for: 29 February comes every
// eight years at the latest, and on a given weekday every forty.
const horizon = 41 * 366

type field struct {
	name      string
	low, high int
	names     []string // of the values from low on
}

var (
	minuteField  = field{"minute", 0, 59, nil}
	hourField    = field{"hour", 0, 23, nil}
	dayField     = field{"day of month", 1, 31, nil}
	monthField   = field{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}}
	weekdayField = field{"day of week", 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun"}}
)

// shorthand returns what @daily and the like stand for.
func shorthand(word string) (string, bool) {
	text, ok := map[string]string{
		"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
		"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
	}[strings.ToLower(word)]
	return text, ok
}

// Parse reads the five fields of crontab(5): minute, hour, day of month, month,
// day of week; lists, ranges, steps, the English names of months and days, and
// @hourly, @daily, @weekly, @monthly, @yearly. Local times are those of loc.
func Parse(text string, loc *time.Location) (Schedule, error) {
	s := Schedule{text: text, loc: loc}
	if len(text) > maxText {
		return s, fmt.Errorf("schedule is longer than %d bytes", maxText)
	}
	body := strings.TrimSpace(text)
	if strings.HasPrefix(body, "@") {
		long, ok := shorthand(body)
		if !ok {
			return s, fmt.Errorf("schedule %q: write @hourly, @daily, @weekly, @monthly or @yearly, or five fields", text)
		}
		body = long
	}
	words := strings.Fields(body)
	if len(words) != 5 {
		return s, fmt.Errorf("schedule %q has %d fields, not five: minute, hour, day of month, month, day of week", text, len(words))
	}
	var errs []error
	for i, f := range []struct {
		field
		into *uint64
	}{{minuteField, &s.minutes}, {hourField, &s.hours}, {dayField, &s.days}, {monthField, &s.months}, {weekdayField, &s.weekdays}} {
		bits, err := f.parse(words[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("schedule %q: %s: %w", text, f.name, err))
		}
		*f.into = bits
	}
	if len(errs) > 0 {
		return s, errors.Join(errs...)
	}
	if s.weekdays&(1<<7) != 0 { // 7 is Sunday too
		s.weekdays |= 1
	}
	s.everyHour = words[1] == "*" || words[1] == "*/1"
	s.anyDay, s.anyWeekday = strings.HasPrefix(words[2], "*"), strings.HasPrefix(words[4], "*")
	if s.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return s, fmt.Errorf("schedule %q is never due", text)
	}
	return s, nil
}

// parse reads one field.
func (f field) parse(text string) (uint64, error) {
	var bits uint64
	for item := range strings.SplitSeq(text, ",") {
		span, stepText, hasStep := strings.Cut(item, "/")
		step := 1
		if hasStep {
			n, err := strconv.Atoi(stepText)
			if err != nil || n < 1 || n > f.high {
				return 0, fmt.Errorf("%q is not a step between 1 and %d", stepText, f.high)
			}
			step = n
		}
		low, high := f.low, f.high
		if span != "*" {
			from, to, isRange := strings.Cut(span, "-")
			var err error
			if low, err = f.value(from); err != nil {
				return 0, err
			}
			switch {
			case isRange:
				if high, err = f.value(to); err != nil {
					return 0, err
				}
				// A week that ends on Sunday: fri-sun.
				if f.high == 7 && high == 0 && low > 0 {
					high = 7
				}
			case !hasStep:
				high = low
			}
			if low > high {
				return 0, fmt.Errorf("the range %q goes backwards", span)
			}
		}
		for v := low; v <= high; v += step {
			bits |= 1 << v
		}
	}
	return bits, nil
}

func (f field) value(text string) (int, error) {
	if i := slices.Index(f.names, strings.ToLower(text)); i >= 0 {
		return f.low + i, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.low || n > f.high || strings.HasPrefix(text, "+") {
		return 0, fmt.Errorf("%q is not between %d and %d", text, f.low, f.high)
	}
	return n, nil
}

// String is the expression as it was written.
func (s Schedule) String() string { return s.text }

// Location is the time zone that the expression's local times are of.
func (s Schedule) Location() *time.Location { return s.loc }

// Next is the first due time after an instant; the zero time where there is none.
//
// A schedule whose hour field lists hours is due at every local time that it
// names, exactly once: a local time that does not exist, because the clock was
// set forward over it, is due at the moment of the change; one that exists twice,
// because the clock was set back, is due the first time. A schedule whose hour
// field is * goes by real hours: it is due whenever the clock shows one of its
// minutes, in an hour that is repeated as well, and not in one that is left out.
func (s Schedule) Next(after time.Time) time.Time {
	if s.loc == nil || s.minutes == 0 {
		return time.Time{}
	}
	// The day before too: a change at midnight moves its last times into the next.
	y, m, d := after.In(s.loc).Date()
	day := time.Date(y, m, d-1, 0, 0, 0, 0, time.UTC)
	for range horizon {
		if s.onDay(day) {
			if t := s.firstOf(day, after); !t.IsZero() {
				return t
			}
		}
		day = day.AddDate(0, 0, 1)
	}
	return time.Time{}
}

// Between lists the due times after an instant and not after another, at most so
// many.
func (s Schedule) Between(after, until time.Time, most int) []time.Time {
	var all []time.Time
	for len(all) < most {
		t := s.Next(after)
		if t.IsZero() || t.After(until) {
			break
		}
		all = append(all, t)
		after = t
	}
	return all
}

// onDay reports whether a calendar day matches.
func (s Schedule) onDay(day time.Time) bool {
	if s.months&(1<<day.Month()) == 0 {
		return false
	}
	dom := s.days&(1<<day.Day()) != 0
	dow := s.weekdays&(1<<day.Weekday()) != 0
	if s.anyDay || s.anyWeekday {
		return dom && dow
	}
	return dom || dow
}

// firstOf is the earliest due time of a calendar day after an instant.
func (s Schedule) firstOf(day, after time.Time) time.Time {
	var first time.Time
	for hour := range 24 {
		if s.hours&(1<<hour) == 0 {
			continue
		}
		for minute := range 60 {
			if s.minutes&(1<<minute) == 0 {
				continue
			}
			for _, t := range s.instants(day, hour, minute) {
				if t.After(after) && (first.IsZero() || t.Before(first)) {
					first = t
				}
			}
		}
		// Hours come in order but around a change, which moves less than four.
		if !first.IsZero() && time.Duration(hour)*time.Hour > sinceDay(first.In(s.loc), day)+4*time.Hour {
			break
		}
	}
	return first
}

// sinceDay is how far a local time lies behind the beginning of a calendar day.
func sinceDay(local, day time.Time) time.Duration {
	y, m, d := local.Date()
	return time.Date(y, m, d, local.Hour(), local.Minute(), 0, 0, time.UTC).Sub(day)
}

// instants are when a local time is due.
func (s Schedule) instants(day time.Time, hour, minute int) []time.Time {
	wall := day.Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute) // as if of UTC
	guess := time.Date(day.Year(), day.Month(), day.Day(), hour, minute, 0, 0, s.loc)
	start, end := guess.ZoneBounds()
	offsets := []time.Duration{offset(guess)}
	if !start.IsZero() {
		offsets = append(offsets, offset(start.Add(-time.Nanosecond)))
	}
	if !end.IsZero() {
		offsets = append(offsets, offset(end))
	}
	var found []time.Time
	for _, o := range offsets {
		t := wall.Add(-o)
		if _, at := t.In(s.loc).Zone(); time.Duration(at)*time.Second == o && !slices.ContainsFunc(found, t.Equal) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, time.Time.Compare)
	switch {
	case len(found) == 0 && s.everyHour:
		return nil
	case len(found) == 0:
		return s.change(start, end, wall)
	case s.everyHour:
		return found
	}
	return found[:1]
}

// change is the moment at which the clock jumped over a local time.
func (s Schedule) change(start, end, wall time.Time) []time.Time {
	for _, at := range []time.Time{start, end} {
		if at.IsZero() {
			continue
		}
		before, after := offset(at.In(s.loc).Add(-time.Nanosecond)), offset(at.In(s.loc))
		if !wall.Add(-before).Before(at) && wall.Add(-after).Before(at) {
			return []time.Time{at.UTC()}
		}
	}
	return nil
}

func offset(t time.Time) time.Duration {
	_, o := t.Zone()
	return time.Duration(o) * time.Second
}
