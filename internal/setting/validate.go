package setting

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sbench/internal/canon"
	"sbench/internal/unit"
)

// Fault is one thing that is wrong with a setting.
type Fault struct {
	// Keys are the axes that it is about, the most telling first. An entry of a
	// map axis is written as its own axis: engine.args.max-num-seqs.
	Keys    []string
	Message string // a sentence without full stop that names the axis
	Hint    string // "" where there is none
	// Secret: the value looks like a secret, and must not be shown.
	Secret bool
}

// Limits of what a setting may hold.
const (
	MaxPhase       = 24 * time.Hour // each of warmup, ramp, duration, drain
	MaxRate        = 1e6            // requests/s
	MaxTokens      = 10_000_000     // of one prompt or answer
	MaxRequests    = 10_000_000     // of one run
	MaxTextLength  = 1024           // bytes of one string
	MaxEntries     = 1000           // of one map or list
	maxGPUsPerNode = 64
	maxNodes       = 4096
	maxRanks       = maxGPUsPerNode * maxNodes
)

// Validate returns everything that is wrong with a normalized setting, in the
// order of the axes table; none if it can be run.
func (s *Setting) Validate() []Fault {
	v := validator{s: s}
	v.forms()
	v.variants()
	v.software()
	v.hardware()
	v.workload()
	slices.SortStableFunc(v.faults, func(a, b Fault) int { return rank(a) - rank(b) })
	return v.faults
}

// rank is the place of a fault's axis in the table.
func rank(f Fault) int {
	if axis, _, ok := LookupAxis(f.Keys[0]); ok {
		return byKey[axis.Key]
	}
	return len(table)
}

type validator struct {
	s      *Setting
	faults []Fault
}

func (v *validator) fault(hint string, keys []string, format string, args ...any) {
	v.faults = append(v.faults, Fault{Keys: keys, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// fail is fault about one axis, whose key begins the message.
func (v *validator) fail(key, hint, format string, args ...any) {
	v.fault(hint, []string{key}, "%s %s", key, fmt.Sprintf(format, args...))
}

var (
	hardwareForm   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	constraintForm = regexp.MustCompile(`^[A-Za-z0-9_.:,|&*()\[\]!=-]+$`)
	argForm        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	envForm        = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// forms checks each value against the type of its axis.
func (v *validator) forms() {
	for i := range table {
		a := &table[i]
		if !a.Applies(v.s) {
			continue
		}
		switch p := a.field(v.s).(type) {
		case *string:
			v.stringForm(a, *p)
		case *float64:
			if math.IsNaN(*p) || math.IsInf(*p, 0) {
				v.fail(a.Key, "", "is not a number")
			}
		case *int64:
			if *p > canon.MaxInt || *p < -canon.MaxInt {
				v.fail(a.Key, "", "is beyond ±(2^53−1)")
			}
		default:
		}
	}
}

// isDigest reports whether s is sha256: and 64 lower-case hex digits.
func isDigest(s string) bool {
	digits, ok := strings.CutPrefix(s, "sha256:")
	if !ok || len(digits) != 64 {
		return false
	}
	for i := range len(digits) {
		if c := digits[i]; !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}

// CheckText says what is wrong with a string that ends up in files, scripts or
// tables: "" if nothing.
func CheckText(s string) string {
	switch {
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case len(s) > MaxTextLength:
		return fmt.Sprintf("is longer than %d bytes", MaxTextLength)
	case strings.TrimSpace(s) != s:
		return "begins or ends with a blank"
	}
	for _, r := range s {
		switch {
		case ' ' <= r && r <= '~':
		case r == '\n' || r == '\r':
			return "contains a line break"
		case !unicode.IsPrint(r):
			return fmt.Sprintf("contains the unprintable character %U", r)
		}
	}
	return ""
}

func (v *validator) stringForm(a *Axis, value string) {
	if problem := CheckText(value); problem != "" {
		v.fail(a.Key, "", "%s", problem)
		return
	}
	if value == "" || a.Pin && value == Unpinned {
		return
	}
	switch a.Type {
	case TypeWord:
		if !slices.Contains(a.Words, value) {
			v.fail(a.Key, "", "is %q, not one of %s", value, strings.Join(a.Words, ", "))
		}
	case TypeDigest:
		if !isDigest(value) {
			v.fail(a.Key, "a digest is sha256: and 64 hex digits, as sha256sum prints them", "is not a digest: %q", value)
		}
	case TypeFrequency:
		if _, err := unit.Megahertz(value); err != nil {
			v.fail(a.Key, "", "is wrong: %v", err)
		}
	case TypePower:
		if _, err := unit.Watts(value); err != nil {
			v.fail(a.Key, "", "is wrong: %v", err)
		}
	case TypePath:
		v.path(a.Key, value)
	default:
	}
}

func (v *validator) path(key, value string) {
	if strings.Contains(value, "..") && slices.Contains(strings.Split(value, "/"), "..") {
		v.fail(key, "name it from the site's folder, or give an absolute path", "leads upwards: %q", value)
	}
	if strings.HasPrefix(value, "-") || strings.HasPrefix(value, "~") {
		v.fail(key, "", "begins with %q, which programs would not read as a path", value[:1])
	}
	if strings.ContainsAny(value, ":,") && !(key == "image.path" && registryForm.MatchString(value)) {
		v.fail(key, "rename the file, or link to it", "contains : or , which cannot be bound into a container: %q", value)
	}
}

// variants refuses fields of another variant: the rate of a closed loop.
func (v *validator) variants() {
	for i := range table {
		a := &table[i]
		if a.Applies(v.s) || a.isZero(v.s) {
			continue
		}
		switch {
		case strings.HasPrefix(a.Key, "workload.arrival."):
			if a.Key == "workload.arrival.rate" && hasRate(v.s) {
				v.fault("leave the rate out: the ladder gives the rates", []string{a.Key, "workload.ladder"},
					"workload.arrival.rate and workload.ladder are both given")
				continue
			}
			v.other(a.Key, "workload.arrival.process", string(v.s.Workload.Arrival.Process))
		case strings.HasPrefix(a.Key, "workload.input_tokens."):
			v.other(a.Key, "workload.input_tokens.distribution", string(v.s.Workload.Input.Distribution))
		case strings.HasPrefix(a.Key, "workload.output_tokens."):
			v.other(a.Key, "workload.output_tokens.distribution", string(v.s.Workload.Output.Distribution))
		case a.Key == "engine.command":
			v.other(a.Key, "engine.kind", string(v.s.Engine.Kind))
		case strings.HasPrefix(a.Key, "workload.prompts.file_"):
			v.other(a.Key, "workload.prompts.source", v.s.Workload.Prompts.Source)
		case a.Key == "workload.prompts.think_time":
			v.fault("", []string{a.Key, "workload.prompts.turns"}, "%s needs workload.prompts.turns above 1", a.Key)
		default:
			v.fault("", []string{a.Key, "workload.prompts.groups"}, "%s needs workload.prompts.groups above 0", a.Key)
		}
	}
}

func (v *validator) other(key, chooser, value string) {
	if value == "" {
		return // the missing choice is reported itself
	}
	block := chooser[:strings.LastIndexByte(chooser, '.')]
	v.fault(fmt.Sprintf("leave it out; to vary it together with %s, give whole blocks: %s: [{…}, {…}]", chooser, block),
		[]string{key, chooser}, "%s has no meaning with %s %s", key, chooser, value)
}

func (v *validator) required(key, value, hint string) bool {
	if value == "" {
		v.fail(key, hint, "is missing")
		return false
	}
	return true
}

func (v *validator) between(key string, value, low, high int) {
	if value < low || value > high {
		v.fail(key, "", "is %d, not between %d and %d", value, low, high)
	}
}

func (v *validator) positive(key string, value float64) {
	if !(value > 0) {
		v.fail(key, "", "must be above 0")
	}
}

func (v *validator) rate(key string, value float64) {
	switch {
	case value == 0:
		v.fail(key, "write a rate, as in 8/s", "is missing")
	case !(value > 0 && value <= MaxRate):
		v.fail(key, "", "is not above 0 and at most %g/s", float64(MaxRate))
	}
}
