package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// timeLimit reads sbatch's -t: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.
func timeLimit(s string) (time.Duration, error) {
	bad := func() (time.Duration, error) {
		return 0, fmt.Errorf("%q is not a time limit: write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS", s)
	}
	days, rest, hasDays := strings.Cut(s, "-")
	if !hasDays {
		days, rest = "0", s
	}
	parts := strings.Split(rest, ":")
	if len(parts) > 3 {
		return bad()
	}
	n := make([]int64, len(parts))
	for i, p := range append([]string{days}, parts...) {
		v, err := strconv.ParseUint(p, 10, 31)
		if err != nil {
			return bad()
		}
		if i == 0 {
			days = strconv.FormatUint(v, 10)
			continue
		}
		n[i-1] = int64(v)
	}
	d, _ := strconv.ParseInt(days, 10, 64)
	var h, m, sec int64
	switch {
	case hasDays:
		h = n[0]
		if len(n) > 1 {
			m = n[1]
		}
		if len(n) > 2 {
			sec = n[2]
		}
	case len(n) == 1:
		m = n[0]
	case len(n) == 2:
		m, sec = n[0], n[1]
	default:
		h, m, sec = n[0], n[1], n[2]
	}
	total := time.Duration(d)*24*time.Hour + time.Duration(h)*time.Hour + time.Duration(m)*time.Minute + time.Duration(sec)*time.Second
	if total <= 0 || total > 365*24*time.Hour {
		return 0, fmt.Errorf("time limit %q is not between a second and a year", s)
	}
	return total, nil
}

// beginTime reads sbatch's -b in the zone of now: now[+COUNT[UNIT]], today,
// tomorrow, midnight, noon, HH:MM[:SS], YYYY-MM-DD[THH:MM[:SS]], or RFC 3339.
func beginTime(s string, now time.Time) (time.Time, error) {
	day := func(offset, h, m int) time.Time {
		return time.Date(now.Year(), now.Month(), now.Day()+offset, h, m, 0, 0, now.Location())
	}
	next := func(h, m, sec int) time.Time {
		t := time.Date(now.Year(), now.Month(), now.Day(), h, m, sec, 0, now.Location())
		if !t.After(now) {
			t = time.Date(now.Year(), now.Month(), now.Day()+1, h, m, sec, 0, now.Location())
		}
		return t
	}
	switch s {
	case "now", "today":
		return now, nil
	case "tomorrow":
		return day(1, 0, 0), nil
	case "midnight":
		return day(1, 0, 0), nil
	case "noon":
		return next(12, 0, 0), nil
	}
	if rest, ok := strings.CutPrefix(s, "now+"); ok {
		d, err := sinceNow(rest)
		if err != nil {
			return time.Time{}, fmt.Errorf("%q is not a begin time: %w", s, err)
		}
		return now.Add(d), nil
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, err := time.Parse(layout, s); err == nil {
			return next(t.Hour(), t.Minute(), t.Second()), nil
		}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02", "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a begin time: write now+1hour, 16:00, tomorrow or 2026-01-31T22:00", s)
}

// sinceNow reads the COUNT[UNIT] of now+COUNT[UNIT]; without a unit, seconds.
func sinceNow(s string) (time.Duration, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyz")
	unit := strings.TrimSuffix(s[len(digits):], "s")
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q does not begin with a count", s)
	}
	scale, ok := map[string]time.Duration{
		"": time.Second, "second": time.Second, "minute": time.Minute, "hour": time.Hour,
		"day": 24 * time.Hour, "week": 7 * 24 * time.Hour,
	}[unit]
	if !ok {
		return 0, fmt.Errorf("unknown unit %q", s[len(digits):])
	}
	return time.Duration(n) * scale, nil
}
