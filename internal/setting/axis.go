package setting

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sbench/internal/unit"
)

// Type says what an axis holds and how it is written in a sweep file.
type Type string

// The types. Word, Version, Digest, Path, Frequency and Power are strings with
// a form of their own.
const (
	TypeText      Type = "text"
	TypeWord      Type = "word" // one of Axis.Words
	TypeVersion   Type = "version"
	TypeDigest    Type = "digest" // sha256:<64 hex digits>
	TypePath      Type = "path"
	TypeFrequency Type = "frequency" // 1410MHz
	TypePower     Type = "power"     // 700W
	TypeInt       Type = "int"
	TypeFloat     Type = "float"
	TypeBool      Type = "bool"
	TypeDuration  Type = "duration" // 300s; a number of seconds as a value
	TypeRate      Type = "rate"     // 8/s; a number of requests/s as a value
	TypeMap       Type = "map"      // names to strings
	TypeStrings   Type = "strings"
	TypeRates     Type = "rates"
	TypeStages    Type = "stages"
	TypeBins      Type = "bins"
	TypePairs     Type = "pairs"
)

// Storage is how a value is kept in SQL and Parquet.
type Storage string

// The storages. JSON is text in RFC 8785 form.
const (
	StoreString Storage = "string"
	StoreInt    Storage = "int"   // 64 bits
	StoreFloat  Storage = "float" // 64 bits
	StoreBool   Storage = "bool"
	StoreJSON   Storage = "json"
)

// Storage says how values of the type are kept.
func (t Type) Storage() Storage {
	switch t {
	case TypeInt:
		return StoreInt
	case TypeFloat, TypeDuration, TypeRate:
		return StoreFloat
	case TypeBool:
		return StoreBool
	case TypeMap, TypeStrings, TypeRates, TypeStages, TypeBins, TypePairs:
		return StoreJSON
	default:
		return StoreString
	}
}

// Axis is one row of the axes table: a field of Setting under its dotted path.
type Axis struct {
	Key  string // dotted path in the sweep file: workload.arrival.rate
	Type Type
	// Unit of the value: s, 1/s, tokens, …; "" for none.
	Unit string
	// Column is the name in SQL and Parquet: dots as underscores, then _s or
	// _per_s where the unit is one of these.
	Column string
	// Identity: the axis is part of the canonical spec and so of setting_hash.
	// An axis that is not is a label.
	Identity bool
	// Moving: the axis is part of setting_hash and not of series_hash.
	Moving bool
	// Pin: the user may leave it out, and it is then Unpinned.
	Pin bool
	// Words are the values of TypeWord, in the order of the manual.
	Words []string
	// Default is what a sweep file that leaves the axis out gets, as written
	// there; "" where there is none.
	Default string
	Doc     string // one line, no full stop

	field   func(*Setting) any // pointer to the field
	applies func(*Setting) bool
}

// Axes returns the table, in the order of the manual.
func Axes() []Axis { return slices.Clone(table) }

// LookupAxis finds an axis by its dotted path. The entries of map axes are axes
// too: for engine.args.max-num-seqs it returns engine.args and "max-num-seqs".
func LookupAxis(key string) (axis *Axis, entry string, ok bool) {
	if i, ok := byKey[key]; ok {
		return &table[i], "", true
	}
	for _, i := range mapIndexes {
		if entry, ok := strings.CutPrefix(key, table[i].Key+"."); ok && entry != "" {
			return &table[i], entry, true
		}
	}
	return nil, "", false
}

// Applies reports whether the axis has a meaning in s: the rate of a closed
// loop, for example, has none.
func (a *Axis) Applies(s *Setting) bool { return a.applies == nil || a.applies(s) }

// Value returns the axis' value in s, nil where it does not apply: string,
// int64, float64 (seconds, requests/s), bool, map[string]string, []string,
// []float64, or []any of map[string]any. Maps and slices of strings are s's own:
// they must not be changed.
func (a *Axis) Value(s *Setting) any {
	if !a.Applies(s) {
		return nil
	}
	switch p := a.field(s).(type) {
	case *string:
		return *p
	case *int:
		return int64(*p)
	case *int64:
		return *p
	case *float64:
		return *p
	case *bool:
		return *p
	case *time.Duration:
		return unit.Seconds(*p)
	case *map[string]string:
		return *p
	case *[]string:
		return *p
	case *[]float64:
		return *p
	case *[]Stage:
		return stageValues(*p)
	case *[]Bin:
		return binValues(*p)
	case *[]Pair:
		return pairValues(*p)
	default:
		panic(fmt.Sprintf("axis %s: field of type %T", a.Key, p))
	}
}

func stageValues(stages []Stage) []any {
	out := make([]any, len(stages))
	for i, s := range stages {
		out[i] = map[string]any{"rate": s.Rate, "duration": unit.Seconds(s.Duration)}
	}
	return out
}

func binValues(bins []Bin) []any {
	out := make([]any, len(bins))
	for i, b := range bins {
		out[i] = map[string]any{"min": int64(b.Min), "max": int64(b.Max), "weight": b.Weight}
	}
	return out
}

func pairValues(pairs []Pair) []any {
	out := make([]any, len(pairs))
	for i, p := range pairs {
		out[i] = map[string]any{"input": int64(p.Input), "output": int64(p.Output), "weight": p.Weight}
	}
	return out
}

// Set puts a value into s. v has the field's own Go type (time.Duration for
// durations, int64 for integers, []Stage for stages); anything else is a fault
// of the program and panics. Maps and slices are kept, not copied.
func (a *Axis) Set(s *Setting, v any) {
	switch p := a.field(s).(type) {
	case *string:
		*p = v.(string)
	case *int:
		*p = int(v.(int64))
	case *int64:
		*p = v.(int64)
	case *float64:
		*p = v.(float64)
	case *bool:
		*p = v.(bool)
	case *time.Duration:
		*p = v.(time.Duration)
	case *map[string]string:
		*p = v.(map[string]string)
	case *[]string:
		*p = v.([]string)
	case *[]float64:
		*p = v.([]float64)
	case *[]Stage:
		*p = v.([]Stage)
	case *[]Bin:
		*p = v.([]Bin)
	case *[]Pair:
		*p = v.([]Pair)
	default:
		panic(fmt.Sprintf("axis %s: field of type %T", a.Key, p))
	}
}

// SetEntry puts one entry into a map axis. The map is copied first, so that
// settings which share it stay as they are.
func (a *Axis) SetEntry(s *Setting, entry, v string) {
	p := a.field(s).(*map[string]string)
	m := make(map[string]string, len(*p)+1)
	for k, old := range *p {
		m[k] = old
	}
	m[entry] = v
	*p = m
}

// Clear resets the axis to what Default has.
func (a *Axis) Clear(s *Setting) {
	d := Default()
	switch p := a.field(s).(type) {
	case *string:
		*p = *a.field(&d).(*string)
	case *int:
		*p = *a.field(&d).(*int)
	case *int64:
		*p = *a.field(&d).(*int64)
	case *float64:
		*p = *a.field(&d).(*float64)
	case *bool:
		*p = *a.field(&d).(*bool)
	case *time.Duration:
		*p = *a.field(&d).(*time.Duration)
	case *map[string]string:
		*p = *a.field(&d).(*map[string]string)
	case *[]string:
		*p = nil
	case *[]float64:
		*p = nil
	case *[]Stage:
		*p = nil
	case *[]Bin:
		*p = nil
	case *[]Pair:
		*p = nil
	}
}

// isZero reports whether the field holds nothing.
func (a *Axis) isZero(s *Setting) bool {
	switch p := a.field(s).(type) {
	case *string:
		return *p == ""
	case *int:
		return *p == 0
	case *int64:
		return *p == 0
	case *float64:
		return *p == 0
	case *bool:
		return !*p
	case *time.Duration:
		return *p == 0
	case *map[string]string:
		return len(*p) == 0
	case *[]string:
		return len(*p) == 0
	case *[]float64:
		return len(*p) == 0
	case *[]Stage:
		return len(*p) == 0
	case *[]Bin:
		return len(*p) == 0
	case *[]Pair:
		return len(*p) == 0
	}
	return false
}

// AxisValues returns the value of every axis of the table by key, as
// Axis.Value: nil where an axis does not apply.
func (s *Setting) AxisValues() map[string]any {
	out := make(map[string]any, len(table))
	for i := range table {
		out[table[i].Key] = table[i].Value(s)
	}
	return out
}

// FlatValues is AxisValues with the map axes replaced by one axis per entry
// (engine.args.max-num-seqs): what two settings are compared by.
func (s *Setting) FlatValues() map[string]any {
	out := s.AxisValues()
	for _, i := range mapIndexes {
		a := &table[i]
		delete(out, a.Key)
		for k, v := range *a.field(s).(*map[string]string) {
			out[a.Key+"."+k] = v
		}
	}
	return out
}

// Normalized is Value after Normalize, of an axis that was set alone: how a
// value of a sweep file compares with that of a normalized setting. It ignores
// whether the axis applies.
func (a *Axis) Normalized(s *Setting) any {
	c := *s
	c.Normalize()
	forced := Axis{Key: a.Key, field: a.field}
	return forced.Value(&c)
}
