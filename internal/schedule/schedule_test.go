package schedule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

func parsed(t testing.TB, text, loc string) Schedule {
	t.Helper()
	s, err := Parse(text, zone(t, loc))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParse_Faults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                        "has 0 fields",
		"* * * *":                 "has 4 fields",
		"0 0 * * * *":             "has 6 fields",
		"60 * * * *":              `minute: "60" is not between 0 and 59`,
		"* 24 * * *":              `hour: "24"`,
		"* * 0 * *":               `day of month: "0"`,
		"* * * 13 *":              `month: "13"`,
		"* * * * 8":               `day of week: "8"`,
		"*/0 * * * *":             `"0" is not a step`,
		"5-1 * * * *":             "goes backwards",
		"a * * * *":               `"a" is not between`,
		"+1 * * * *":              `"+1" is not between`,
		"1,,2 * * * *":            `"" is not between`,
		"0 0 31 2 *":              "is never due",
		"@every 5m":               "write @hourly",
		"@reboot":                 "write @hourly",
		strings.Repeat("1,", 300): "longer than",
	} {
		if _, err := Parse(text, time.UTC); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestSchedule_Next(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ text, after, want string }{
		{"0 22 * * *", "2026-11-29T21:59:59Z", "2026-11-29T22:00:00Z"},
		{"0 22 * * *", "2026-11-29T22:00:00Z", "2026-11-30T22:00:00Z"},
		{"*/15 * * * *", "2026-11-29T22:01:00Z", "2026-11-29T22:15:00Z"},
		{"30 6 * * mon-fri", "2026-11-27T07:00:00Z", "2026-11-30T06:30:00Z"},
		{"0 12 * * fri-sun", "2026-11-28T12:00:00Z", "2026-11-29T12:00:00Z"},
		{"0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"0 0 29 2 *", "2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"0 0 13 * 5", "2026-11-01T00:00:00Z", "2026-11-06T00:00:00Z"}, // either, where both are restricted
		{"0 0 13 * *", "2026-11-01T00:00:00Z", "2026-11-13T00:00:00Z"},
		{"0 0 * * 7", "2026-11-23T00:00:00Z", "2026-11-29T00:00:00Z"},
		{"5/20 3 1 JAN,jul *", "2026-02-01T00:00:00Z", "2026-07-01T03:05:00Z"},
		{"@weekly", "2026-11-23T00:00:00Z", "2026-11-29T00:00:00Z"},
		{"59 23 31 12 *", "2026-12-31T23:59:00Z", "2027-12-31T23:59:00Z"},
	} {
		after, err := time.Parse(time.RFC3339, tc.after)
		if err != nil {
			t.Fatal(err)
		}
		if got := parsed(t, tc.text, "UTC").Next(after).Format(time.RFC3339); got != tc.want {
			t.Errorf("%s after %s: got %s, want %s", tc.text, tc.after, got, tc.want)
		}
	}
}

// TestSchedule_ClockChanges states the rules for both changes of the year.
func TestSchedule_ClockChanges(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		why, zone, text, from string
		want                  []string // in local time
	}{
		{
			"a time that is left out is due at the change", "Europe/Berlin", "30 2 * * *", "2026-03-28T00:00:00+01:00",
			[]string{"2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"},
		},
		{
			"a time that is repeated is due the first time", "Europe/Berlin", "30 2 * * *", "2026-10-24T00:00:00+02:00",
			[]string{"2026-10-24T02:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"},
		},
		{
			"two times that are left out are one due time", "Europe/Berlin", "0,30 2 * * *", "2026-03-29T00:00:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"},
		},
		{
			"the hour after the change is not doubled", "Europe/Berlin", "0 2,3 * * *", "2026-03-29T00:00:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00", "2026-03-30T03:00:00+02:00"},
		},
		{
			"every hour goes by real hours over the missing one", "Europe/Berlin", "30 * * * *", "2026-03-29T00:45:00+01:00",
			[]string{"2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-29T04:30:00+02:00"},
		},
		{
			"every hour goes by real hours through the repeated one", "Europe/Berlin", "30 * * * *", "2026-10-25T01:45:00+02:00",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:30:00+01:00"},
		},
		{
			"a nightly at 22:00 is due every night", "America/New_York", "0 22 * * *", "2026-03-07T12:00:00-05:00",
			[]string{"2026-03-07T22:00:00-05:00", "2026-03-08T22:00:00-04:00"},
		},
		{
			"a change at midnight", "America/Santiago", "0 0 * * *", "2026-09-05T12:00:00-04:00",
			[]string{"2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00"},
		},
		{
			"a change back at midnight", "America/Santiago", "30 23 * * *", "2026-04-04T12:00:00-03:00",
			[]string{"2026-04-04T23:30:00-03:00", "2026-04-05T23:30:00-04:00"},
		},
		{
			"half an hour", "Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00:00+10:30",
			[]string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"},
		},
		{
			"a day that does not exist", "Pacific/Apia", "0 9 * * *", "2011-12-29T12:00:00-10:00",
			[]string{"2011-12-31T00:00:00+14:00", "2011-12-31T09:00:00+14:00"},
		},
	} {
		s := parsed(t, tc.text, tc.zone)
		at, err := time.Parse(time.RFC3339, tc.from)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range tc.want {
			at = s.Next(at)
			got = append(got, at.In(s.Location()).Format(time.RFC3339))
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s in %s (-want +got):\n%s", tc.why, tc.text, tc.zone, diff)
		}
	}
}

// TestSchedule_EveryDayOnce: over two years in any zone, a daily schedule is due
// once on every day that exists, and Next agrees with Between.
func TestSchedule_EveryDayOnce(t *testing.T) {
	t.Parallel()
	zones := []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kolkata", "UTC", "Africa/Casablanca"}
	rapid.Check(t, func(rt *rapid.T) {
		loc := zone(t, rapid.SampledFrom(zones).Draw(rt, "zone"))
		hour, minute := rapid.IntRange(0, 23).Draw(rt, "hour"), rapid.IntRange(0, 59).Draw(rt, "minute")
		s, err := Parse(fmt.Sprintf("%d %d * * *", minute, hour), loc)
		if err != nil {
			rt.Fatal(err)
		}
		from := time.Date(2026, 1, 1, 0, 0, 0, 0, loc).Add(-time.Second)
		until := time.Date(2028, 1, 1, 0, 0, 0, 0, loc).Add(-time.Second)
		dues := s.Between(from, until, 2000)
		if len(dues) != 730 {
			rt.Fatalf("%s in %s: due %d times in 730 days", s, loc, len(dues))
		}
		for i := 1; i < len(dues); i++ {
			if gap := dues[i].Sub(dues[i-1]); gap < 21*time.Hour || gap > 27*time.Hour {
				rt.Fatalf("%s in %s: %v after %v", s, loc, dues[i].In(loc), dues[i-1].In(loc))
			}
		}
	})
}

func TestPolicy_Decide(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 22, 0, 0, 0, time.UTC)
	ago := func(d ...time.Duration) []time.Time {
		var out []time.Time
		for _, v := range d {
			out = append(out, now.Add(-v))
		}
		return out
	}
	for name, tc := range map[string]struct {
		policy Policy
		dues   []time.Time
		want   []bool
	}{
		"on time":           {Policy{CatchUp: CatchUpNone}, ago(time.Minute), []bool{true}},
		"missed":            {Policy{CatchUp: CatchUpNone}, ago(2*time.Hour, time.Hour), []bool{false, false}},
		"missed and now":    {Policy{CatchUp: CatchUpNone}, ago(time.Hour, 0), []bool{false, true}},
		"last":              {Policy{CatchUp: CatchUpLast}, ago(2*time.Hour, time.Hour), []bool{false, true}},
		"all":               {Policy{CatchUp: CatchUpAll}, ago(2*time.Hour, time.Hour), []bool{true, true}},
		"window over":       {Policy{CatchUp: CatchUpAll, Window: 90 * time.Minute}, ago(2*time.Hour, time.Hour), []bool{false, true}},
		"window open":       {Policy{CatchUp: CatchUpLast, Window: 8 * time.Hour}, ago(time.Hour), []bool{true}},
		"nothing came due":  {Policy{CatchUp: CatchUpAll}, nil, nil},
		"exactly the grace": {Policy{CatchUp: CatchUpNone}, ago(Grace), []bool{true}},
	} {
		var got []bool
		for i, d := range tc.policy.Decide(tc.dues, now) {
			got = append(got, d.Fire)
			if !d.Due.Equal(tc.dues[i]) || !d.Fire && d.Why == "" {
				t.Errorf("%s: decision %d is %+v", name, i, d)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestDelay(t *testing.T) {
	t.Parallel()
	due := time.Date(2026, 11, 29, 22, 0, 0, 0, time.UTC)
	seen := map[time.Duration]bool{}
	var sum time.Duration
	const n, most = 1000, 10 * time.Minute
	for i := range n {
		at := due.Add(time.Duration(i) * 24 * time.Hour)
		d := Delay(7, at, most)
		if d < 0 || d >= most || d != Delay(7, at.In(zone(t, "Europe/Berlin")), most) {
			t.Fatalf("delay %v", d)
		}
		seen[d] = true
		sum += d
	}
	if mean := sum / n; len(seen) < 300 || mean < 4*time.Minute || mean > 6*time.Minute {
		t.Errorf("%d values with mean %v are no even spread over %v", len(seen), mean, most)
	}
	if Delay(7, due, 0) != 0 || Delay(7, due, most) == Delay(8, due, most) {
		t.Error("no jitter asked for, or the same for two schedules")
	}
}

// FuzzParse: whatever parses is due some time, later and later.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"0 22 * * *", "*/5 1-3,7 29 feb sun", "@weekly", "0 0 31 2 *", "1-5/2 * * * 7"} {
		f.Add(s)
	}
	berlin := zone(f, "Europe/Berlin")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text, berlin)
		if err != nil {
			return
		}
		at := time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC)
		for range 5 {
			next := s.Next(at)
			if !next.After(at) || next.Second() != 0 {
				t.Fatalf("%q after %v: %v", text, at, next)
			}
			at = next
		}
	})
}
