package sweep

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sbench/internal/diag"
	"sbench/internal/setting"
	"sbench/internal/strictyaml"
)

// Limits of what a matrix may hold; the number of settings has its own.
const (
	maxAxes    = 100  // varied axes, zip groups included
	maxEntries = 100  // axes of one included or excluded point
	maxExclude = 1000 // excluded points
)

// The keys of matrix that are not axes.
var matrixWords = []string{"zip", "where", "exclude", "include"}

func (p *parser) matrix(n *strictyaml.Node) {
	if !p.Map(n, "matrix") {
		return
	}
	m := &p.file.doc.matrix
	var zips, axes []strictyaml.Entry
	for _, e := range n.Entries {
		switch e.Key {
		case "zip":
			zips = append(zips, e)
		case "where":
			p.where(e.Value)
		case "exclude":
			m.exclude = p.points(e.Value, "matrix.exclude")
			if len(m.exclude) > maxExclude {
				p.Faults.Errorf(e.Value.At, "say it in where", "matrix.exclude has more than %d points", maxExclude)
			}
		case "include":
			m.include = p.points(e.Value, "matrix.include")
		default:
			axes = append(axes, e)
		}
	}
	varied := len(axes)
	for _, z := range zips {
		for _, group := range z.Value.Items {
			varied += len(group.Entries)
		}
	}
	if varied > maxAxes {
		p.Faults.Errorf(n.At, "", "the matrix varies %d axes; at most %d can be", varied, maxAxes)
		return
	}
	for _, e := range axes {
		if f, ok := p.factor([]strictyaml.Entry{e}, e.KeyAt); ok {
			m.factors = append(m.factors, f)
		}
	}
	for _, e := range zips {
		p.zip(e.Value)
	}
	p.overlaps()
}

func (p *parser) zip(n *strictyaml.Node) {
	if n.Kind == strictyaml.Map {
		p.Faults.Errorf(n.At, "write a list of groups: zip: [{a: […], b: […]}]", "matrix.zip is a mapping, not a list")
		return
	}
	if !p.List(n, "matrix.zip") {
		return
	}
	for _, group := range n.Items {
		if !p.Map(group, "a group of matrix.zip") {
			continue
		}
		if len(group.Entries) == 0 {
			p.Faults.Errorf(group.At, "", "a group of matrix.zip is empty")
			continue
		}
		if f, ok := p.factor(group.Entries, group.At); ok {
			p.file.doc.matrix.factors = append(p.file.doc.matrix.factors, f)
		}
	}
}

// factor reads axes whose values go together; one alone is an axis of the
// product.
func (p *parser) factor(entries []strictyaml.Entry, at diag.Pos) (factor, bool) {
	f, good := factor{at: at}, true
	for i, e := range entries {
		f.keys = append(f.keys, e.Key)
		if !p.known(e) {
			good = false
			continue
		}
		if e.Value.Kind != strictyaml.List {
			hint := "give the base setting the value instead"
			if e.Value.Kind == strictyaml.Scalar && !e.Value.Null {
				hint = "write [" + clipped(e.Value.Text) + "], or " + hint
			}
			p.Faults.Errorf(e.Value.At, hint, "matrix: %s is %s, not a list of values", e.Key, e.Value.Kind)
			p.taint(e.Key)
			good = false
			continue
		}
		values := e.Value.Items
		if len(values) == 0 {
			p.Faults.Errorf(e.Value.At, "", "matrix: %s has no values", e.Key)
			good = false
			continue
		}
		if i == 0 {
			f.rows = make([][]change, len(values))
		} else if f.rows != nil && len(values) != len(f.rows) {
			p.Faults.Errorf(e.Value.At, "", "matrix.zip: %s has %d values, but %s has %d", e.Key, len(values), entries[0].Key, len(f.rows))
			good = false
		}
		for row, n := range values {
			if p.Faults.Full() {
				return f, false
			}
			changes, ok := p.assign(e.Key, n)
			good = good && ok
			if row < len(f.rows) {
				f.rows[row] = append(f.rows[row], changes...)
			}
		}
	}
	return f, good
}

// known reports a key of the matrix that is no axis and no block.
func (p *parser) known(e strictyaml.Entry) bool {
	if why := reserved(e.Key); why != "" {
		p.Faults.Errorf(e.KeyAt, "", "%s", why)
		return false
	}
	if _, _, ok := setting.LookupAxis(e.Key); ok || isBlock(e.Key) {
		return true
	}
	p.Faults.Errorf(e.KeyAt, suggestAxis(e.Key, matrixWords), "unknown axis %s", strconv.Quote(e.Key))
	return false
}

// suggestAxis is a hint for a misspelt axis: one with the same last word, or a
// near one.
func suggestAxis(key string, more []string) string {
	names := slices.Clone(more)
	var same []string
	for _, a := range setting.Axes() {
		names = append(names, a.Key)
		if a.Key[strings.LastIndexByte(a.Key, '.')+1:] == key {
			same = append(same, a.Key)
		}
	}
	if len(same) > 0 {
		return "did you mean " + strconv.Quote(same[0]) + "?"
	}
	return diag.Suggest(key, names)
}

// assign reads a value of an axis, of an entry of a map axis, or of a whole
// block, which replaces the base's.
func (p *parser) assign(key string, n *strictyaml.Node) ([]change, bool) {
	axis, entry, ok := setting.LookupAxis(key)
	switch {
	case ok && entry != "":
		v, ok := p.renderedText(n, key)
		if !ok {
			p.taint(key)
		}
		return []change{{axis: axis, entry: entry, value: v, at: n.At}}, ok
	case ok:
		v, ok := p.value(n, axis)
		return []change{{axis: axis, value: v, at: n.At}}, ok
	}
	before := p.Faults.Count()
	var out []change
	for _, a := range setting.Axes() {
		if strings.HasPrefix(a.Key, key+".") {
			axis, _, _ := setting.LookupAxis(a.Key)
			out = append(out, change{axis: axis, at: n.At})
		}
	}
	out = append(out, p.block(n, key+".", map[string]diag.Pos{})...)
	return out, p.Faults.Count() == before
}

// points reads a list of mappings from axes to values.
func (p *parser) points(n *strictyaml.Node, what string) []point {
	if !p.List(n, what) {
		return nil
	}
	var out []point
	for _, item := range n.Items {
		if p.Faults.Full() {
			break
		}
		if !p.Map(item, "a point of "+what) {
			continue
		}
		if n := len(item.Entries); n == 0 || n > maxEntries {
			why := "is empty"
			if n > 0 {
				why = fmt.Sprintf("has %d axes, more than %d", n, maxEntries)
			}
			p.Faults.Errorf(item.At, "", "a point of %s %s", what, why)
			continue
		}
		pt, good := point{at: item.At}, true
		for _, e := range item.Entries {
			if !p.known(e) {
				good = false
				continue
			}
			changes, ok := p.assign(e.Key, e.Value)
			pt.changes, good = append(pt.changes, changes...), good && ok
		}
		for i, a := range item.Entries {
			for _, b := range item.Entries[:i] {
				if below(a.Key, b.Key) || below(b.Key, a.Key) {
					p.Faults.Errorf(a.KeyAt, "", "%s: %s and %s contain one another", what, b.Key, a.Key)
					good = false
				}
			}
		}
		if good {
			out = append(out, pt)
		}
	}
	return out
}

func below(key, block string) bool { return strings.HasPrefix(key, block+".") }

// overlaps refuses an axis that is varied twice.
func (p *parser) overlaps() {
	type use struct {
		key string
		at  diag.Pos
	}
	var seen []use
	for _, f := range p.file.doc.matrix.factors {
		for _, key := range f.keys {
			for _, u := range seen {
				switch {
				case u.key == key:
					p.Faults.Errorf(f.at, "", "matrix: %s is varied twice (the other is in line %d)", key, u.at.Line)
				case below(u.key, key), below(key, u.key):
					p.Faults.Errorf(f.at, "vary the block alone, or the axis alone", "matrix: %s and %s contain one another", u.key, key)
				}
			}
			seen = append(seen, use{key, f.at})
		}
	}
}
