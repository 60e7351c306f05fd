package unit_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sbench/internal/unit"
)

func TestDuration(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "300s": 300 * time.Second, "5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond,
		"250ms": 250 * time.Millisecond, "30d": 720 * time.Hour, "1d12h": 36 * time.Hour, "7us": 7 * time.Microsecond, "7µs": 7 * time.Microsecond,
		"0.1ns": -1, "100000h": 100000 * time.Hour, "2s500ms": 2500 * time.Millisecond, "0.5h": 30 * time.Minute, "1s1ms1us1ns": 1001001001,
		"": -1, "300": -1, "5:00": -1, "1e3s": -1, "-5s": -1, "+5s": -1, " 5s": -1, "5 s": -1, "5s ": -1, "s": -1, ".5s": -1, "5.s": -1, "1.2.3s": -1,
		"5S": -1, "5min": -1, "30m1h": -1, "1m1m": -1, "1h30": -1, "9999999999999999999999999999999999999999999999s": -1, "300000d": -1, "0x10s": -1,
		"NaN": -1, "inf": -1, "5s\n": -1, "５s": -1,
	} {
		got, err := unit.Duration(in)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
}

// TestDuration_Messages: what people read.
func TestDuration_Messages(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"300":   `duration "300" has no unit: write it like 300s, 5m or 1h30m`,
		"5:00":  `duration "5:00" is written like a time of day: write it like 300s, 5m or 1h30m`,
		"30m1h": `duration "30m1h" has its units out of order: write it like 300s, 5m or 1h30m`,
		"5min":  `duration "5min" has an unknown unit "min": write it like 300s, 5m or 1h30m`,
		"0.5ns": `duration "0.5ns" is finer than a nanosecond: write it like 300s, 5m or 1h30m`,
		"1e3":   `duration "1e3" has an unknown unit "e": write it like 300s, 5m or 1h30m`,
	} {
		if _, err := unit.Duration(in); err == nil || err.Error() != want {
			t.Errorf("%q: %v\nwant %s", in, err, want)
		}
	}
}

func TestFormatDuration_RoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "d"))
		text := unit.FormatDuration(d)
		if got, err := unit.Duration(text); err != nil || got != d {
			t.Fatalf("%d prints as %q, which reads as %d, %v", d, text, got, err)
		}
	})
	for d, want := range map[time.Duration]string{0: "0s", 300 * time.Second: "5m", 90 * time.Second: "1m30s", 1500 * time.Millisecond: "1.5s", 1: "1ns", 25 * time.Hour: "1d1h", -time.Second: "-1s", 1005 * time.Microsecond: "1.005ms"} {
		if got := unit.FormatDuration(d); got != want {
			t.Errorf("%d: %q, want %q", d, got, want)
		}
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]float64{
		"8/s": 8, "0.5/s": 0.5, "480/min": 8, "480/m": 8, "28800/h": 8, "1/min": 1.0 / 60, "8/sec": 8,
		"8": -1, "8/d": -1, "8 /s": -1, "/s": -1, "-8/s": -1, "1e3/s": -1, "8rps": -1, "": -1, "NaN/s": -1,
	} {
		got, err := unit.Rate(in)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.Float64Range(0, 1e6).Draw(t, "r")
		if got, err := unit.Rate(unit.FormatRate(r)); len(unit.FormatRate(r)) <= 40 && (err != nil || got != r) {
			t.Fatalf("%v prints as %s, which reads as %v, %v", r, unit.FormatRate(r), got, err)
		}
	})
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{
		"80GiB": 80 << 30, "16GB": 16e9, "1.5KiB": 1536, "100B": 100, "1kB": 1000, "1PiB": 1 << 50,
		"80": -1, "80G": -1, "0.5B": -1, "9PiB9": -1, "10000PiB": -1, "": -1,
	} {
		got, err := unit.Bytes(in)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
	for n, want := range map[int64]string{0: "0B", 1023: "1023B", 1 << 30: "1GiB", 3 << 20: "3MiB"} {
		if got := unit.FormatBytes(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

func TestMegahertzAndWatts(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{"1410MHz": 1410, "1.41GHz": 1410, "1410": -1, "1.5MHz": -1, "1410mhz": -1, "99999999GHz": -1} {
		got, err := unit.Megahertz(in)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for in, want := range map[string]int{"700W": 700, "0.7kW": 700, "700": -1, "0.5W": -1} {
		got, err := unit.Watts(in)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	if unit.FormatMegahertz(1410) != "1410MHz" || unit.FormatWatts(700) != "700W" || unit.FormatGPUHours(270000) != "75.0" {
		t.Error("formats differ")
	}
}

// FuzzQuantities: no input panics, and what is accepted is finite.
func FuzzQuantities(f *testing.F) {
	for _, s := range []string{"1h30m", "8/s", "80GiB", "1410MHz", "700W", "1.5µs", "0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := unit.Duration(s); err == nil {
			if back, err := unit.Duration(unit.FormatDuration(d)); err != nil || back != d {
				t.Fatalf("%q: %v, then %v, %v", s, d, back, err)
			}
		}
		if r, err := unit.Rate(s); err == nil && (math.IsInf(r, 0) || math.IsNaN(r) || r < 0) {
			t.Fatalf("%q: rate %v", s, r)
		}
		if n, err := unit.Bytes(s); err == nil && n < 0 {
			t.Fatalf("%q: %d bytes", s, n)
		}
		_, _ = unit.Megahertz(s)
		_, _ = unit.Watts(s)
	})
}
