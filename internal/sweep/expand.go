package sweep

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/expr-lang/expr/vm"

	"sbench/internal/diag"
	"sbench/internal/setting"
)

// DefaultLimit is how many settings a sweep may have unless told otherwise.
const DefaultLimit = 100_000

// MaxRuns is how many runs a sweep may have: five of each of DefaultLimit
// settings. A factor as small as repeats must not make a submission that no
// memory and no cluster holds.
const MaxRuns = 500_000

// searchFactor is how many points may be looked at for each setting that may be
// left after where and exclude.
const searchFactor = 10

// maxWork bounds the comparisons of points with exclude; an expression counts as
// searchFactor comparisons.
const maxWork = 20_000_000

// Expanded is one setting of a sweep.
type Expanded struct {
	Setting setting.Setting // normalized and valid
	Hash    string          // setting_hash
	Series  string          // series_hash
}

// Axes returns the setting's axes for people and programs: setting.FlatValues.
func (e *Expanded) Axes() map[string]any { return e.Setting.FlatValues() }

// Expansion is what a sweep asks for.
type Expansion struct {
	// Settings are in a fixed order: the first axis of the matrix varies slowest,
	// zip groups come after the axes, included points at the end.
	Settings []Expanded
	Repeats  Repeats
	// Runs is Repeats.Runs for each setting.
	Runs     int
	Warnings diag.List
}

// Only returns the expansion with the one setting of this hash, or with none.
func (x Expansion) Only(hash string) Expansion {
	at := slices.IndexFunc(x.Settings, func(s Expanded) bool { return s.Hash == hash })
	if at < 0 {
		x.Settings, x.Runs = nil, 0
		return x
	}
	x.Settings, x.Runs = x.Settings[at:at+1:at+1], x.Repeats.Runs()
	return x
}

// Expand returns the settings of the file in their fixed order. The list holds
// errors, and then there is no expansion, or warnings.
func Expand(f *File, o Options) (Expansion, diag.List) {
	faults := diag.NewCollector(f.filename, f.data)
	e := &expander{file: f, faults: faults, repeats: f.Repeats, limit: o.Limit, seen: map[string]int{}}
	if e.limit <= 0 {
		e.limit = DefaultLimit
	}
	optionFaults := e.options(o)
	e.run()
	list := append(optionFaults, faults.List()...)
	if list.HasErrors() {
		return Expansion{}, list
	}
	return Expansion{
		Settings: e.out, Repeats: e.repeats, Runs: len(e.out) * e.repeats.Runs(), Warnings: list.Warnings(),
	}, list
}

// probe adds what Expand would find in a file that has errors already, as far
// as it does not follow from them.
func (f *File) probe(faults *diag.Collector) {
	e := &expander{file: f, faults: faults, repeats: f.Repeats, limit: 100, seen: map[string]int{}, probing: true}
	if f.doc.base == nil {
		return
	}
	e.run()
}

type expander struct {
	file      *File
	faults    *diag.Collector
	repeats   Repeats
	limit     int
	overrides []change
	exclude   []matcher
	probing   bool

	out    []Expanded
	seen   map[string]int // hash to index in out
	merged int
	first  diag.Pos // of the first merged point
	reach  reach
}

// origin is where the values of a point come from.
type origin struct {
	at      diag.Pos
	changes [][]change
}

func (e *expander) run() {
	base := setting.Default()
	for _, c := range e.file.doc.base {
		c.apply(&base)
	}
	m := &e.file.doc.matrix
	for _, p := range m.exclude {
		e.exclude = append(e.exclude, p.matcher())
	}
	factors := e.varied(m.factors)
	total, ok := e.count(factors)
	if !ok {
		return
	}
	e.out = make([]Expanded, 0, min(total+len(m.include), e.limit))
	var machine vm.VM
	index := make([]int, len(factors))
	rows := make([][]change, len(factors), len(factors)+1)
	for range total {
		s := base
		at := e.file.doc.at.setting
		for i, f := range factors {
			rows[i] = f.rows[index[i]]
			for _, c := range rows[i] {
				c.apply(&s)
			}
			if n := len(rows[i]); n > 0 {
				at = rows[i][n-1].at
			}
		}
		advance(index, factors)
		if !e.keep(&machine, &s) {
			continue
		}
		if !e.add(&s, origin{at, rows}) {
			return
		}
	}
	for _, p := range m.include {
		s := base
		for _, c := range p.changes {
			c.apply(&s)
		}
		e.finish(&s)
		if !e.add(&s, origin{p.at, [][]change{p.changes}}) {
			return
		}
	}
	e.end()
}

// advance counts up, the last factor fastest.
func advance(index []int, factors []factor) {
	for i := len(index) - 1; i >= 0; i-- {
		if index[i]++; index[i] < len(factors[i].rows) {
			return
		}
		index[i] = 0
	}
}

// varied drops the factors that the command line fixes.
func (e *expander) varied(factors []factor) []factor {
	if len(e.overrides) == 0 {
		return factors
	}
	fixed := map[string]bool{}
	for _, c := range e.overrides {
		fixed[c.key()] = true
	}
	return slices.DeleteFunc(slices.Clone(factors), func(f factor) bool {
		gone := !slices.ContainsFunc(f.keys, func(key string) bool { return !fixed[key] })
		if gone && len(f.rows) > 1 {
			e.faults.Warnf(f.at, "", "the command line fixes %s: its %d values in the matrix are not used", strings.Join(f.keys, ", "), len(f.rows))
		}
		return gone
	})
}

// count is the number of points of the product, refused where it is too large.
func (e *expander) count(factors []factor) (int, bool) {
	m := &e.file.doc.matrix
	filtered := len(m.where) > 0 || len(m.exclude) > 0
	most := e.limit
	if filtered {
		most = min(e.limit, math.MaxInt/searchFactor) * searchFactor
	}
	total := 1
	for _, f := range factors {
		if total > most/len(f.rows) { // before anything is built
			if e.probing {
				return 0, false
			}
			what := "settings"
			if filtered {
				what = "points before where and exclude"
			}
			e.faults.Errorf(e.file.doc.at.matrix, "take values away, zip axes that go together, or split the sweep",
				"the matrix has more than %d %s", most, what)
			return 0, false
		}
		total *= len(f.rows)
	}
	if work := len(m.exclude) + searchFactor*len(m.where); work > 0 && total > maxWork/work {
		e.faults.Errorf(e.file.doc.at.matrix, "say it in fewer expressions, or split the sweep",
			"the matrix has %d points to hold against %d excluded points and %d expressions", total, len(m.exclude), len(m.where))
		return 0, false
	}
	return total, true
}

// finish applies the command line and makes the setting whole.
func (e *expander) finish(s *setting.Setting) {
	for _, c := range e.overrides {
		c.apply(s)
	}
	s.Normalize()
}

// keep finishes a point of the product and asks where and exclude.
func (e *expander) keep(machine *vm.VM, s *setting.Setting) bool {
	e.finish(s)
	for _, c := range e.file.doc.matrix.where {
		ok, err := c.holds(machine, s)
		if err != nil {
			e.faults.Errorf(c.at, "test first what gives it a meaning: workload.arrival.process == 'closed' && …", "matrix.where: %v", err)
			return false
		}
		if !ok {
			return false
		}
	}
	for _, m := range e.exclude {
		if m.matches(s) {
			return false
		}
	}
	return true
}

// matcher is a point of exclude with its values in normal form.
type matcher []want

type want struct {
	axis  *setting.Axis
	entry string
	value any
}

func (p point) matcher() matcher {
	var m matcher
	for _, c := range p.changes {
		switch {
		case c.value == nil: // the reset of a block: only what it names counts
		case c.entry != "":
			m = append(m, want{c.axis, c.entry, c.value})
		default:
			var s setting.Setting
			c.axis.Set(&s, c.value)
			m = append(m, want{axis: c.axis, value: c.axis.Normalized(&s)})
		}
	}
	return m
}

// matches reports whether a setting has all the values.
func (m matcher) matches(s *setting.Setting) bool {
	for _, w := range m {
		got := w.axis.Value(s)
		if w.entry != "" {
			value, ok := got.(map[string]string)[w.entry]
			if !ok || value != w.value {
				return false
			}
			continue
		}
		if !equalValues(w.value, got) {
			return false
		}
	}
	return true
}

// add validates a setting and keeps it, unless it is there already. It returns
// false where looking further makes no sense.
func (e *expander) add(s *setting.Setting, o origin) bool {
	faults := s.Validate()
	for _, f := range faults {
		e.report(f, o)
	}
	if len(faults) > 0 || e.probing {
		return !e.faults.Full()
	}
	hash, series := s.Hashes()
	if i, ok := e.seen[hash]; ok {
		e.merge(s, i, o)
		return !e.faults.Full()
	}
	if len(e.out) >= e.limit {
		e.faults.Errorf(e.file.doc.at.matrix, "take values away, or split the sweep", "the matrix has more than %d settings", e.limit)
		return false
	}
	if runs := e.repeats.Runs(); len(e.out) >= MaxRuns/max(runs, 1) {
		e.faults.Errorf(e.file.doc.at.repeats, "repeat less often, take values away, or split the sweep",
			"the sweep has more than %d runs: %d of each setting", MaxRuns, runs)
		return false
	}
	e.seen[hash] = len(e.out)
	e.out = append(e.out, Expanded{Setting: *s, Hash: hash, Series: series})
	e.reach.look(e.file, s)
	return true
}

// labels are the paths of a setting, by the axis that pins what they lead to.
type labels struct{ path, digest string }

func pathsOf(s *setting.Setting) map[string]labels {
	return map[string]labels{
		"image.path":            {s.Image.Path, s.Image.Digest},
		"model.checkpoint.path": {s.Model.Checkpoint.Path, s.Model.Checkpoint.Digest},
	}
}

// merge notes a setting that is there already. Two files that nothing pins must
// not become one setting.
func (e *expander) merge(s *setting.Setting, i int, o origin) {
	old, now := pathsOf(&e.out[i].Setting), pathsOf(s)
	for _, key := range []string{"image.path", "model.checkpoint.path"} {
		if now[key].digest == setting.Unpinned && now[key].path != old[key].path {
			digest := strings.TrimSuffix(key, "path") + "digest"
			e.faults.Errorf(e.place([]string{key}, o), "pin "+digest+" of both", "two settings differ in nothing but %s, which no digest pins: %s, %s",
				key, old[key].path, now[key].path)
			return
		}
	}
	if e.merged == 0 {
		e.first = o.at
	}
	e.merged++
}

// end looks at what only all settings together show.
func (e *expander) end() {
	if e.probing {
		return
	}
	if e.merged > 0 {
		e.faults.Warnf(e.first, "", "%s equal to an earlier one and merged with it", plural(e.merged, "setting is", "settings are"))
	}
	if len(e.out) == 0 && !e.faults.HasErrors() {
		e.faults.Errorf(e.file.doc.at.matrix, "", "no setting is left: where and exclude take all of them away")
	}
	e.reach.report(e)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// report adds a fault of a setting at the place that it comes from.
func (e *expander) report(f setting.Fault, o origin) {
	if e.probing {
		for _, key := range f.Keys {
			if e.isTainted(key) {
				return
			}
		}
	}
	if e.overridden(f.Keys) {
		e.faults.Errorf(diag.Pos{}, f.Hint, "%s (the command line sets it)", f.Message)
		return
	}
	if f.Secret {
		e.faults.Concealf(e.place(f.Keys, o), f.Hint, "%s", f.Message)
		return
	}
	e.faults.Errorf(e.place(f.Keys, o), f.Hint, "%s", f.Message)
}

// overridden reports whether the command line gives one of the axes its value.
func (e *expander) overridden(keys []string) bool {
	return slices.ContainsFunc(e.overrides, func(c change) bool {
		return c.value != nil && slices.ContainsFunc(keys, func(key string) bool {
			return key == c.key() || key == c.axis.Key || c.entry == "" && below(key, c.axis.Key)
		})
	})
}

// isTainted reports whether a key or a block around it had a fault of its own.
func (e *expander) isTainted(key string) bool {
	for {
		if e.file.doc.tainted[key] {
			return true
		}
		i := strings.LastIndexByte(key, '.')
		if i < 0 {
			return e.file.doc.tainted["setting"]
		}
		key = key[:i]
	}
}

// place finds where a value was given: in the point, in the base, or the block
// where it is missing.
func (e *expander) place(keys []string, o origin) diag.Pos {
	for i := len(o.changes) - 1; i >= 0; i-- {
		row := o.changes[i]
		for j := len(row) - 1; j >= 0; j-- {
			c := row[j]
			for _, key := range keys {
				if key == c.key() || key == c.axis.Key || below(key, c.axis.Key) && c.entry == "" {
					return c.at
				}
			}
		}
	}
	for _, key := range keys {
		for key != "" {
			if at, ok := e.file.doc.places[key]; ok {
				return at
			}
			i := strings.LastIndexByte(key, '.')
			if i < 0 {
				break
			}
			key = key[:i]
		}
	}
	return e.file.doc.at.setting
}
