package sweep

import (
	"strconv"
	"strings"

	"sbench/internal/diag"
	"sbench/internal/setting"
	"sbench/internal/strictyaml"
)

// children are the keys below a block of the setting; "" is the top.
func children(prefix string) []string {
	var out []string
	seen := map[string]bool{}
	for _, a := range setting.Axes() {
		rest, ok := strings.CutPrefix(a.Key, prefix)
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(rest, ".")
		if !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	return out
}

// isBlock reports whether axes lie below the key.
func isBlock(key string) bool { return len(children(key+".")) > 0 }

// reserved says why a key of the setting cannot be used yet; "" if it can.
func reserved(key string) string {
	if key == "engine.roles" || strings.HasPrefix(key, "engine.roles.") {
		return "engine.roles is reserved for disaggregated engines and cannot be used yet"
	}
	return ""
}

// block reads a mapping of the setting below prefix ("" or "workload.") and
// notes where its axes and blocks are.
func (p *parser) block(n *strictyaml.Node, prefix string, places map[string]diag.Pos) []change {
	what := strings.TrimSuffix("setting."+prefix, ".")
	if !p.Map(n, what) {
		p.taint(strings.TrimSuffix(prefix, "."))
		return nil
	}
	var out []change
	for _, e := range n.Entries {
		if p.Faults.Full() {
			break
		}
		path := prefix + e.Key
		switch axis, entry, ok := setting.LookupAxis(path); {
		case reserved(path) != "":
			p.Faults.Errorf(e.KeyAt, "", "%s", reserved(path))
		case strings.Contains(e.Key, ".") && (ok && entry == "" || isBlock(path)):
			p.Faults.Errorf(e.KeyAt, "nest the keys: "+strings.ReplaceAll(e.Key, ".", ": {")+strings.Repeat("}", strings.Count(e.Key, ".")),
				"dotted keys are for the matrix: %s", strconv.Quote(e.Key))
			p.taint(path)
		case ok && entry == "" && axis.Type == setting.TypeMap:
			places[path] = e.Value.At
			if m, ok := p.entries(e.Value, path, places); ok {
				out = append(out, change{axis: axis, value: m, at: e.Value.At})
			}
		case ok && entry == "":
			places[path] = e.Value.At
			if v, ok := p.value(e.Value, axis); ok {
				out = append(out, change{axis: axis, value: v, at: e.Value.At})
			}
		case isBlock(path):
			places[path] = e.KeyAt
			out = append(out, p.block(e.Value, path+".", places)...)
		default:
			p.Unknown(e, what, children(prefix))
		}
	}
	return out
}

func (p *parser) taint(key string) { p.file.doc.tainted[key] = true }

// value reads a value of an axis in the field's own Go type.
func (p *parser) value(n *strictyaml.Node, axis *setting.Axis) (any, bool) {
	v, ok := p.read(n, axis, axis.Key)
	if !ok {
		p.taint(axis.Key)
	}
	return v, ok
}

func (p *parser) read(n *strictyaml.Node, axis *setting.Axis, what string) (any, bool) {
	switch axis.Type {
	case setting.TypeWord:
		words := axis.Words
		if axis.Pin {
			words = append(words[:len(words):len(words)], setting.Unpinned)
		}
		return boxed(p.Word(n, what, words))
	case setting.TypeInt:
		return boxed(p.Int(n, what))
	case setting.TypeFloat:
		return boxed(p.Float(n, what))
	case setting.TypeBool:
		return boxed(p.Bool(n, what))
	case setting.TypeDuration:
		return boxed(p.Duration(n, what))
	case setting.TypeRate:
		return boxed(p.Rate(n, what))
	case setting.TypeMap:
		return boxed(p.entries(n, what, map[string]diag.Pos{}))
	case setting.TypeStrings:
		return boxed(p.rendered(n, what))
	case setting.TypeRates:
		return boxed(list(p, n, what, func(n *strictyaml.Node, what string) (float64, bool) { return p.Rate(n, what) }))
	case setting.TypeStages:
		return boxed(list(p, n, what, p.stage))
	case setting.TypeBins:
		return boxed(list(p, n, what, p.bin))
	case setting.TypePairs:
		return boxed(list(p, n, what, p.pair))
	default:
		return boxed(p.text(n, what))
	}
}

func boxed[T any](v T, ok bool) (any, bool) { return v, ok }

// text reads a string and refuses what no file name, script or table can take.
func (p *parser) text(n *strictyaml.Node, what string) (string, bool) {
	v, ok := p.Text(n, what)
	if !ok {
		return "", false
	}
	if problem := setting.CheckText(v); problem != "" {
		p.Faults.Errorf(n.At, "", "%s %s: %s", what, problem, strconv.Quote(clipped(v)))
		return "", false
	}
	return v, true
}

func clipped(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// entries reads a map axis and notes where its entries are. An entry with a
// fault is left out and does not spoil the others.
func (p *parser) entries(n *strictyaml.Node, what string, places map[string]diag.Pos) (map[string]string, bool) {
	if !p.Map(n, what) {
		p.taint(what)
		return nil, false
	}
	m := make(map[string]string, len(n.Entries))
	for _, e := range n.Entries {
		if p.Faults.Full() {
			break
		}
		path := what + "." + e.Key
		places[path] = e.KeyAt
		if v, ok := p.renderedText(e.Value, path); ok {
			m[e.Key] = v
		} else {
			p.taint(path)
		}
	}
	return m, true
}

// renderedText reads a value that an engine gets as text.
func (p *parser) renderedText(n *strictyaml.Node, what string) (string, bool) {
	v, ok := p.Rendered(n, what)
	if !ok {
		return "", false
	}
	if problem := setting.CheckText(v); problem != "" {
		p.Faults.Errorf(n.At, "", "%s %s: %s", what, problem, strconv.Quote(clipped(v)))
		return "", false
	}
	return v, true
}

func (p *parser) rendered(n *strictyaml.Node, what string) ([]string, bool) {
	return list(p, n, what, p.renderedText)
}

func list[T any](p *parser, n *strictyaml.Node, what string, item func(*strictyaml.Node, string) (T, bool)) ([]T, bool) {
	if !p.List(n, what) {
		return nil, false
	}
	out, good := make([]T, 0, len(n.Items)), true
	for i, node := range n.Items {
		if p.Faults.Full() {
			return nil, false
		}
		v, ok := item(node, what+"["+strconv.Itoa(i)+"]")
		out, good = append(out, v), good && ok
	}
	return out, good
}

// record reads a mapping of which every key must be there.
func (p *parser) record(n *strictyaml.Node, what string, fields map[string]func(*strictyaml.Node, string) bool, order ...string) bool {
	good := true
	list := make([]strictyaml.Field, len(order))
	for i, key := range order {
		list[i] = strictyaml.Field{Key: key, Read: func(n *strictyaml.Node, path string) { good = fields[key](n, path) && good }}
	}
	before := p.Faults.Count()
	if !p.Fields(n, what, list) {
		return false
	}
	for _, key := range order {
		if n.Get(key) == nil {
			p.Faults.Errorf(n.At, "", "%s.%s is missing", what, key)
		}
	}
	return good && p.Faults.Count() == before
}

func (p *parser) stage(n *strictyaml.Node, what string) (s setting.Stage, ok bool) {
	ok = p.record(n, what, map[string]func(*strictyaml.Node, string) bool{
		"rate":     func(n *strictyaml.Node, what string) (ok bool) { s.Rate, ok = p.Rate(n, what); return ok },
		"duration": func(n *strictyaml.Node, what string) (ok bool) { s.Duration, ok = p.Duration(n, what); return ok },
	}, "rate", "duration")
	return s, ok
}

func (p *parser) bin(n *strictyaml.Node, what string) (b setting.Bin, ok bool) {
	ok = p.record(n, what, map[string]func(*strictyaml.Node, string) bool{
		"min": p.tokens(&b.Min), "max": p.tokens(&b.Max), "weight": p.weight(&b.Weight),
	}, "min", "max", "weight")
	return b, ok
}

func (p *parser) pair(n *strictyaml.Node, what string) (v setting.Pair, ok bool) {
	ok = p.record(n, what, map[string]func(*strictyaml.Node, string) bool{
		"input": p.tokens(&v.Input), "output": p.tokens(&v.Output), "weight": p.weight(&v.Weight),
	}, "input", "output", "weight")
	return v, ok
}

func (p *parser) tokens(into *int) func(*strictyaml.Node, string) bool {
	return func(n *strictyaml.Node, what string) bool {
		v, ok := p.Int(n, what)
		if ok && (v < 0 || v > setting.MaxTokens) {
			p.Faults.Errorf(n.At, "", "%s is not between 0 and %d", what, setting.MaxTokens)
			return false
		}
		*into = int(v)
		return ok
	}
}

func (p *parser) weight(into *float64) func(*strictyaml.Node, string) bool {
	return func(n *strictyaml.Node, what string) (ok bool) {
		*into, ok = p.Float(n, what)
		return ok
	}
}
