package setting

import (
	"fmt"
	"slices"
	"strings"

	"sbench/internal/canon"
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
func (s *Setting) Canonical() []byte { return s.canonical(false) }

// Hash returns the setting_hash: the SHA-256 of the canonical spec, as 64 hex
// digits.
func (s *Setting) Hash() string { return canon.Hash(s.canonical(false)) }

// SeriesSpec is the canonical spec without the moving axes.
func (s *Setting) SeriesSpec() []byte { return s.canonical(true) }

// SeriesHash returns the series_hash: the SHA-256 of SeriesSpec, as 64 hex
// digits. It is what history and baselines follow.
func (s *Setting) SeriesHash() string { return canon.Hash(s.canonical(true)) }

func (s *Setting) canonical(series bool) []byte {
	out := make([]byte, 1, 3072)
	out[0] = '{'
	var open []string // the path of the object that is being written
	first := true
	for _, m := range canonicalOrder {
		var value any = int64(SpecVersion)
		if m.axis >= 0 {
			a := &table[m.axis]
			if series && a.Moving || !a.Applies(s) {
				continue
			}
			value = a.Value(s)
		}
		parents := m.path[:len(m.path)-1]
		shared := 0
		for shared < len(open) && shared < len(parents) && open[shared] == parents[shared] {
			shared++
		}
		for range open[shared:] {
			out, first = append(out, '}'), false
		}
		for _, name := range parents[shared:] {
			out = append(appendKey(out, name, first), '{')
			first = true
		}
		open = parents
		out = appendKey(out, m.path[len(m.path)-1], first)
		first = false
		var err error
		if out, err = canon.Append(out, value); err != nil {
			panic(fmt.Sprintf("canonical spec of a setting that was not validated: %v: %v", m.path, err))
		}
	}
	for range open {
		out = append(out, '}')
	}
	return append(out, '}')
}

// appendKey writes a name of the table, which needs no escapes.
func appendKey(out []byte, name string, first bool) []byte {
	if !first {
		out = append(out, ',')
	}
	out = append(append(out, '"'), name...)
	return append(out, '"', ':')
}
