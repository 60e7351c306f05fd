package setting

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sbench/internal/canon"
	"sbench/internal/unit"
)

// specVersionKey stands among the axes in the canonical spec.
const specVersionKey = "spec_version"

// member is a line of the canonical spec: an axis, or the version where axis is
// negative.
type member struct {
	path []string
	axis int
}

// orderTable lists the axes of identity in the order of their nested keys.
func orderTable() []member {
	order := []member{{path: []string{specVersionKey}, axis: -1}}
	for i := range table {
		if table[i].Identity {
			order = append(order, member{path: strings.Split(table[i].Key, "."), axis: i})
		}
	}
	slices.SortFunc(order, func(a, b member) int { return slices.CompareFunc(a.path, b.path, canon.CompareKeys) })
	return order
}

// Canonical returns the canonical spec: RFC 8785 JSON of every axis of identity
// that applies, and spec_version. The setting must be normalized and valid;
// what has no JSON form (NaN, invalid UTF-8) panics.
func (s *Setting) Canonical() []byte {
	spec, _ := s.canonical()
	return spec
}

// SeriesSpec is the canonical spec without the moving axes.
func (s *Setting) SeriesSpec() []byte {
	_, series := s.canonical()
	return series
}

// Hash returns the setting_hash: the SHA-256 of the canonical spec, as 64 hex
// digits.
func (s *Setting) Hash() string { return canon.Hash(s.Canonical()) }

// SeriesHash returns the series_hash: the SHA-256 of SeriesSpec, as 64 hex
// digits. It is what history and baselines follow.
func (s *Setting) SeriesHash() string { return canon.Hash(s.SeriesSpec()) }

// Hashes returns Hash and SeriesHash for little more than the price of one.
func (s *Setting) Hashes() (hash, series string) {
	spec, seriesSpec := s.canonical()
	return canon.Hash(spec), canon.Hash(seriesSpec)
}

// specSize is more than most canonical specs take.
const specSize = 3072

// canonical writes the spec and the series' spec.
func (s *Setting) canonical() (spec, series []byte) {
	buffer := make([]byte, 2*specSize)
	full := writer{out: append(buffer[:0:specSize], '{')}
	fixed := writer{out: append(buffer[specSize:specSize:2*specSize], '{')}
	scratch := make([]byte, 0, 256)
	for i := range canonicalOrder {
		m := &canonicalOrder[i]
		scratch = scratch[:0]
		moving := false
		if m.axis < 0 {
			scratch = strconv.AppendInt(scratch, SpecVersion, 10)
		} else {
			a := &table[m.axis]
			if !a.Applies(s) {
				continue
			}
			moving = a.Moving
			var err error
			if scratch, err = a.appendValue(scratch, s); err != nil {
				panic(fmt.Sprintf("canonical spec of a setting that was not validated: %s: %v", a.Key, err))
			}
		}
		full.add(m.path, scratch)
		if !moving {
			fixed.add(m.path, scratch)
		}
	}
	return full.end(), fixed.end()
}

// writer writes nested objects from members in the order of their paths.
type writer struct {
	out  []byte
	open []string // the path of the object that is being written
	some bool     // it has members already
}

func (w *writer) add(path []string, value []byte) {
	parents := path[:len(path)-1]
	shared := 0
	for shared < len(w.open) && shared < len(parents) && w.open[shared] == parents[shared] {
		shared++
	}
	for range w.open[shared:] {
		w.out, w.some = append(w.out, '}'), true
	}
	for _, name := range parents[shared:] {
		w.key(name)
		w.out, w.some = append(w.out, '{'), false
	}
	w.open = parents
	w.key(path[len(path)-1])
	w.out, w.some = append(w.out, value...), true
}

// key writes a name of the table, which needs no escapes.
func (w *writer) key(name string) {
	if w.some {
		w.out = append(w.out, ',')
	}
	w.out = append(append(w.out, '"'), name...)
	w.out = append(w.out, '"', ':')
}

func (w *writer) end() []byte {
	for range w.open {
		w.out = append(w.out, '}')
	}
	return append(w.out, '}')
}

// appendValue writes Value in canonical form, without boxing it.
func (a *Axis) appendValue(dst []byte, s *Setting) ([]byte, error) {
	switch p := a.field(s).(type) {
	case *string:
		return canon.AppendString(dst, *p)
	case *int:
		return strconv.AppendInt(dst, int64(*p), 10), nil
	case *bool:
		return strconv.AppendBool(dst, *p), nil
	case *float64:
		return canon.AppendFloat(dst, *p)
	case *time.Duration:
		return canon.AppendFloat(dst, unit.Seconds(*p))
	default:
		return canon.Append(dst, a.Value(s))
	}
}
