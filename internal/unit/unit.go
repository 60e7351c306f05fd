// Package unit reads and prints quantities as people write them: durations,
// rates, sizes, frequencies and powers. A number without its unit is refused,
// and so is everything that could be read in two ways.
package unit

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// number splits "12.5ms" into its exact value and its unit. Digits, one point
// and nothing else: no sign, no exponent, no separators, no blanks.
func number(s string) (*big.Rat, string, error) {
	end := 0
	for end < len(s) && (s[end] == '.' || '0' <= s[end] && s[end] <= '9') {
		end++
	}
	digits, rest := s[:end], s[end:]
	whole, fraction, point := strings.Cut(digits, ".")
	switch {
	case s == "":
		return nil, "", errors.New("is empty")
	case strings.HasPrefix(s, "-"):
		return nil, "", errors.New("is negative")
	case whole == "" || point && (fraction == "" || strings.Contains(fraction, ".")):
		return nil, "", errors.New("does not begin with a number")
	case len(digits) > 40:
		return nil, "", errors.New("has too many digits")
	}
	v, ok := new(big.Rat).SetString(digits)
	if !ok {
		return nil, "", errors.New("does not begin with a number")
	}
	return v, rest, nil
}

// scale is a unit and its size, num/den of the base unit.
type scale struct {
	name     string
	num, den int64
}

// scaled reads a number with one unit of the table and returns it in the base
// unit. example is how it should look.
func scaled(s, what, example string, units []scale) (*big.Rat, error) {
	v, name, err := number(s)
	if err != nil {
		return nil, fmt.Errorf("%s %q %w: write it like %s", what, s, err, example)
	}
	for _, u := range units {
		if u.name == name {
			return v.Mul(v, big.NewRat(u.num, u.den)), nil
		}
	}
	switch {
	case name == "":
		return nil, fmt.Errorf("%s %q has no unit: write it like %s", what, s, example)
	default:
		return nil, fmt.Errorf("%s %q has an unknown unit %q: write it like %s", what, s, name, example)
	}
}

// Duration reads "300s", "1h30m", "250ms", "1.5s" or "30d" (days of 24 hours).
// Units go from large to small, each at most once; ns, us, µs, ms, s, m, h, d.
// It must be a whole number of nanoseconds below 292 years.
func Duration(s string) (time.Duration, error) {
	const example = "300s, 5m or 1h30m"
	order := []struct {
		name string
		size time.Duration
	}{
		{"d", 24 * time.Hour},
		{"h", time.Hour},
		{"m", time.Minute},
		{"s", time.Second},
		{"ms", time.Millisecond},
		{"us", time.Microsecond},
		{"µs", time.Microsecond},
		{"ns", time.Nanosecond},
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("duration %q %s: write it like %s", s, fmt.Sprintf(format, args...), example)
	}
	if s == "0" {
		return 0, nil
	}
	total, next := new(big.Rat), 0
	for rest := s; ; {
		v, after, err := number(rest)
		if err != nil {
			return 0, fail("%v", err)
		}
		end := strings.IndexAny(after, ".0123456789")
		if end < 0 {
			end = len(after)
		}
		name := after[:end]
		i := next
		for i < len(order) && order[i].name != name {
			i++
		}
		if i == len(order) {
			switch {
			case name == "":
				return 0, fail("has no unit")
			case strings.HasPrefix(name, ":"):
				return 0, fail("is written like a time of day")
			case next > 0 && isDurationUnit(name):
				return 0, fail("has its units out of order")
			}
			return 0, fail("has an unknown unit %q", name)
		}
		total.Add(total, v.Mul(v, big.NewRat(int64(order[i].size), 1)))
		next, rest = i+1, after[end:]
		if rest == "" {
			break
		}
	}
	if !total.IsInt() {
		return 0, fail("is finer than a nanosecond")
	}
	if !total.Num().IsInt64() {
		return 0, fail("is too long")
	}
	return time.Duration(total.Num().Int64()), nil
}

func isDurationUnit(name string) bool {
	switch name {
	case "d", "h", "m", "s", "ms", "us", "µs", "ns":
		return true
	}
	return false
}

// FormatDuration prints d so that Duration reads it back: "1h30m", "300s" as
// "5m", "1.5s", "0s".
func FormatDuration(d time.Duration) string {
	if d < 0 {
		return "-" + FormatDuration(-d)
	}
	if d == 0 {
		return "0s"
	}
	var b strings.Builder
	for _, u := range []struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if n := d / u.size; n > 0 {
			b.WriteString(strconv.FormatInt(int64(n), 10) + u.name)
			d %= u.size
		}
	}
	switch {
	case d == 0:
	case d >= time.Second:
		b.WriteString(fractional(d, time.Second) + "s")
	case d >= time.Millisecond:
		b.WriteString(fractional(d, time.Millisecond) + "ms")
	case d >= time.Microsecond:
		b.WriteString(fractional(d, time.Microsecond) + "us")
	default:
		b.WriteString(strconv.FormatInt(int64(d), 10) + "ns")
	}
	return b.String()
}

// fractional prints d/unit exactly; unit is a power of ten.
func fractional(d, size time.Duration) string {
	whole, rest := int64(d/size), int64(d%size)
	if rest == 0 {
		return strconv.FormatInt(whole, 10)
	}
	width := len(strconv.FormatInt(int64(size), 10)) - 1
	fraction := strconv.FormatInt(rest, 10)
	fraction = strings.Repeat("0", width-len(fraction)) + fraction
	return strconv.FormatInt(whole, 10) + "." + strings.TrimRight(fraction, "0")
}

// Seconds is how durations are written in results: a number of seconds.
func Seconds(d time.Duration) float64 { return float64(d) / 1e9 }

// FromSeconds is the duration of a number of seconds, to the nanosecond.
func FromSeconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }

// Rate reads "8/s", "0.5/s", "480/min", "480/m" or "3600/h" as a number of
// events per second.
func Rate(s string) (float64, error) {
	v, err := scaled(s, "rate", "8/s or 480/min", []scale{
		{"/s", 1, 1}, {"/sec", 1, 1}, {"/m", 1, 60}, {"/min", 1, 60}, {"/h", 1, 3600},
	})
	if err != nil {
		return 0, err
	}
	f, _ := v.Float64()
	return f, nil
}

// FormatRate prints events per second so that Rate reads it back: "8/s". It
// expects a finite number that is not negative.
func FormatRate(perSecond float64) string {
	return strconv.FormatFloat(perSecond, 'f', -1, 64) + "/s"
}

// Bytes reads "80GiB", "16GB", "512KiB" or "100B" as a number of bytes; K, M, G,
// T and P are powers of ten with B and of two with iB.
func Bytes(s string) (int64, error) {
	units := []scale{{"B", 1, 1}, {"kB", 1000, 1}}
	ten, two := int64(1), int64(1)
	for _, prefix := range []string{"K", "M", "G", "T", "P"} {
		ten, two = ten*1000, two*1024
		units = append(units, scale{prefix + "B", ten, 1}, scale{prefix + "iB", two, 1})
	}
	v, err := scaled(s, "size", "80GiB or 500MB", units)
	if err != nil {
		return 0, err
	}
	if !v.IsInt() || !v.Num().IsInt64() {
		return 0, fmt.Errorf("size %q is not a whole number of bytes below 8 EiB", s)
	}
	return v.Num().Int64(), nil
}

// FormatBytes prints a size so that Bytes reads it back: the largest binary
// unit that divides it, else bytes.
func FormatBytes(n int64) string {
	names := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i+1 < len(names) {
		n, i = n/1024, i+1
	}
	return strconv.FormatInt(n, 10) + names[i]
}

// Megahertz reads "1410MHz" or "1.41GHz" as a whole number of MHz.
func Megahertz(s string) (int, error) {
	return whole(s, "frequency", "1410MHz", []scale{{"MHz", 1, 1}, {"GHz", 1000, 1}})
}

// FormatMegahertz prints a frequency so that Megahertz reads it back: "1410MHz".
func FormatMegahertz(mhz int) string { return strconv.Itoa(mhz) + "MHz" }

// Watts reads "700W" or "0.7kW" as a whole number of watts.
func Watts(s string) (int, error) {
	return whole(s, "power", "700W", []scale{{"W", 1, 1}, {"kW", 1000, 1}})
}

// FormatWatts prints a power so that Watts reads it back: "700W".
func FormatWatts(w int) string { return strconv.Itoa(w) + "W" }

func whole(s, what, example string, units []scale) (int, error) {
	// The form that settings hold is read without arithmetic of fractions.
	if digits, ok := strings.CutSuffix(s, units[0].name); ok && len(digits) <= 9 && !strings.HasPrefix(digits, "+") {
		if n, err := strconv.Atoi(digits); err == nil && n >= 0 && digits != "-0" {
			return n, nil
		}
	}
	v, err := scaled(s, what, example, units)
	if err != nil {
		return 0, err
	}
	if !v.IsInt() || !v.Num().IsInt64() || v.Num().Int64() > math.MaxInt32 {
		return 0, fmt.Errorf("%s %q is not a whole number of the unit: write it like %s", what, s, example)
	}
	return int(v.Num().Int64()), nil
}

// FormatGPUHours prints GPU-seconds as GPU-hours with one decimal: "75.0".
func FormatGPUHours(gpuSeconds float64) string {
	return strconv.FormatFloat(gpuSeconds/3600, 'f', 1, 64)
}
