package sweep

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sbench/internal/diag"
	"sbench/internal/metrics"
	"sbench/internal/reuse"
	"sbench/internal/setting"
	"sbench/internal/strictyaml"
)

// Parse reads a sweep file. It returns nil where the list has errors; the list
// may hold warnings otherwise. filename is for messages only. Where the file has
// errors, the list also holds what Expand would find in the rest of it.
func Parse(data []byte, filename string) (*File, diag.List) {
	faults := diag.NewCollector(filename, data)
	f := &File{
		Priority: PriorityNormal, Repeats: Repeats{Min: 1, Max: 1}, data: data, filename: filename,
		doc: document{places: map[string]diag.Pos{}, slo: map[string]diag.Pos{}, tainted: map[string]bool{}},
	}
	root := strictyaml.Parse(data, MaxBytes, faults)
	if root == nil {
		return nil, faults.List()
	}
	p := parser{Reader: strictyaml.Reader{Faults: faults}, file: f}
	p.top(root)
	if faults.HasErrors() {
		f.probe(faults)
		return nil, faults.List()
	}
	f.Directives = directives(data)
	return f, faults.List()
}

type parser struct {
	strictyaml.Reader
	file *File
}

func (p *parser) top(root *strictyaml.Node) {
	f, doc := p.file, &p.file.doc
	fields := []strictyaml.Field{
		{Key: "sweep", Read: func(n *strictyaml.Node, path string) { p.Word(n, path, []string{"v1"}) }},
		{Key: "name", Read: p.name(&f.Name)},
		{Key: "description", Read: p.description},
		{Key: "site", Read: p.name(&f.Site)},
		{Key: "priority", Read: func(n *strictyaml.Node, path string) {
			if v, ok := p.Word(n, path, []string{"urgent", "normal", "bulk"}); ok {
				f.Priority = Priority(v)
			}
		}},
		{Key: "repeats", Read: p.repeats},
		{Key: "reuse", Read: p.reuse},
		{Key: "slo", Read: p.slo},
		{Key: "max_error_rate", Read: p.share(&f.MaxErrorRate)},
		{Key: "quality", Read: p.quality},
		{Key: "setting", Read: func(n *strictyaml.Node, path string) {
			doc.at.setting = n.At
			doc.base = p.block(n, "", doc.places)
		}},
		{Key: "matrix", Read: func(n *strictyaml.Node, path string) {
			doc.at.matrix = n.At
			p.matrix(n)
		}},
	}
	if !p.Fields(root, "", fields) {
		return
	}
	p.qualityMetrics(doc.at.until)
	start := diag.Pos{Line: root.At.Line, Column: root.At.Column}
	for _, key := range []string{"sweep", "name", "setting"} {
		if root.Get(key) == nil {
			hint := ""
			if key == "sweep" {
				hint = "the file begins with the line sweep: v1"
			}
			p.Faults.Errorf(start, hint, "the key %q is missing", key)
			doc.tainted[key] = true
		}
	}
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$`)

func (p *parser) name(into *string) func(*strictyaml.Node, string) {
	return func(n *strictyaml.Node, path string) {
		v, ok := p.Text(n, path)
		switch {
		case !ok:
		case !nameForm.MatchString(v):
			p.Faults.Errorf(n.At, "", "%s is not a name of at most 100 letters, digits and . _ + -: %s", path, strconv.Quote(v))
		default:
			*into = v
		}
	}
}

func (p *parser) description(n *strictyaml.Node, path string) {
	v, ok := p.Text(n, path)
	if !ok {
		return
	}
	for _, line := range strings.Split(strings.TrimSuffix(v, "\n"), "\n") {
		if problem := setting.CheckText(strings.TrimSpace(line)); problem != "" {
			p.Faults.Errorf(n.At, "", "%s %s", path, problem)
			return
		}
	}
	p.file.Description = v
}

func (p *parser) share(into *float64) func(*strictyaml.Node, string) {
	return func(n *strictyaml.Node, path string) {
		v, ok := p.Float(n, path)
		switch {
		case !ok:
		case v < 0 || v > 1:
			p.Faults.Errorf(n.At, "", "%s is not between 0 and 1", path)
		default:
			*into = v
		}
	}
}

// MaxRepeats is the largest number of runs of one setting.
const MaxRepeats = 1000

func (p *parser) repeats(n *strictyaml.Node, path string) {
	r := &p.file.Repeats
	p.file.doc.at.repeats = n.At
	if n.Kind != strictyaml.Map {
		if v, ok := p.count(n, path); ok {
			*r = Repeats{Min: v, Max: v}
		}
		return
	}
	*r = Repeats{}
	p.Fields(n, path, []strictyaml.Field{
		{Key: "min", Read: func(n *strictyaml.Node, path string) { r.Min, _ = p.count(n, path) }},
		{Key: "max", Read: func(n *strictyaml.Node, path string) { r.Max, _ = p.count(n, path) }},
		{Key: "until", Read: func(n *strictyaml.Node, path string) {
			p.file.doc.at.until = n.At
			r.Until = &Until{}
			p.until(n, path, r.Until)
		}},
	})
	for _, key := range []string{"min", "max", "until"} {
		if n.Get(key) == nil {
			p.Faults.Errorf(n.At, "as in {min: 3, max: 10, until: {metrics: [ttft_p95], relative_ci: 0.025}}, or a plain number", "%s.%s is missing", path, key)
		}
	}
	if r.Min > 0 && r.Max > 0 {
		switch {
		case r.Min > r.Max:
			p.Faults.Errorf(n.Get("min").At, "", "%s.min is above %s.max: %d, %d", path, path, r.Min, r.Max)
		case r.Min < 3:
			p.Faults.Errorf(n.Get("min").At, "", "%s.min is %d: no interval exists below 3 runs", path, r.Min)
		}
	}
}

func (p *parser) count(n *strictyaml.Node, path string) (int, bool) {
	v, ok := p.Int(n, path)
	if ok && (v < 1 || v > MaxRepeats) {
		p.Faults.Errorf(n.At, "", "%s is %d, not between 1 and %d", path, v, MaxRepeats)
		return 0, false
	}
	return int(v), ok
}

func (p *parser) until(n *strictyaml.Node, path string, u *Until) {
	if !p.Fields(n, path, []strictyaml.Field{
		{Key: "metrics", Read: func(n *strictyaml.Node, path string) {
			u.Metrics, _ = p.Texts(n, path)
			if n.Kind == strictyaml.List && len(n.Items) == 0 {
				p.Faults.Errorf(n.At, "", "%s names no metric", path)
			}
			if n.Kind != strictyaml.List {
				return
			}
			for _, item := range n.Items {
				if _, ok := metrics.Find(item.Text); !ok && item.Kind == strictyaml.Scalar {
					p.Faults.Errorf(item.At, diag.Suggest(item.Text, metricNames()), "%s: unknown metric %s", path, strconv.Quote(item.Text))
				}
			}
		}},
		{Key: "relative_ci", Read: func(n *strictyaml.Node, path string) {
			if v, ok := p.Float(n, path); ok && !(v > 0 && v < 1) {
				p.Faults.Errorf(n.At, "0.025 stops at ±2.5 %", "%s is not above 0 and below 1", path)
			} else {
				u.RelativeCI = v
			}
		}},
	}) {
		return
	}
	for _, key := range []string{"metrics", "relative_ci"} {
		if n.Get(key) == nil {
			p.Faults.Errorf(n.At, "", "%s.%s is missing", path, key)
		}
	}
}

func metricNames() []string {
	table := metrics.Table()
	names := make([]string, len(table))
	for i, m := range table {
		names[i] = m.Name
	}
	return names
}

func (p *parser) reuse(n *strictyaml.Node, path string) {
	r := &p.file.Reuse
	r.Given = true
	if n.Kind == strictyaml.Scalar {
		if n.Text != "off" {
			p.Faults.Errorf(n.At, "as in reuse: off, or reuse: {max_age: 30d, canary: 0.02}", "%s is %s, not off or a mapping", path, strconv.Quote(n.Text))
		}
		r.Off = true
		return
	}
	r.Canary = reuse.DefaultCanary
	p.Fields(n, path, []strictyaml.Field{
		{Key: "max_age", Read: func(n *strictyaml.Node, path string) {
			v, ok := p.Duration(n, path)
			if ok && v <= 0 {
				p.Faults.Errorf(n.At, "reuse: off runs every setting", "%s is not above 0s", path)
			}
			r.MaxAge = v
		}},
		{Key: "canary", Read: p.share(&r.Canary)},
	})
	if n.Kind == strictyaml.Map && n.Get("max_age") == nil {
		p.Faults.Errorf(n.At, "", "%s.max_age is missing", path)
	}
}

// sloBases are the latencies that one request has.
func sloBases() []string { return []string{"ttft", "ttft_service", "ttfo", "e2e", "tpot"} }

// sloNames are the keys that slo may have.
func sloNames() []string {
	names := sloBases()
	for _, base := range sloBases() {
		for _, stat := range []metrics.Statistic{metrics.P50, metrics.P90, metrics.P95, metrics.P99} {
			names = append(names, base+"_"+string(stat))
		}
	}
	return names
}

func (p *parser) slo(n *strictyaml.Node, path string) {
	if !p.Map(n, path) {
		return
	}
	names := sloNames()
	for _, e := range n.Entries {
		if !slices.Contains(names, e.Key) {
			hint := diag.Suggest(e.Key, names)
			if hint == "" {
				hint = "a latency of one request, with or without a percentile: ttft_p99, tpot_p95, e2e"
			}
			p.Faults.Errorf(e.KeyAt, hint, "unknown key %s in %s", strconv.Quote(e.Key), path)
			continue
		}
		v, ok := p.Duration(e.Value, path+"."+e.Key)
		if !ok {
			continue
		}
		if v <= 0 {
			p.Faults.Errorf(e.Value.At, "", "%s.%s is not above 0s", path, e.Key)
			continue
		}
		if p.file.SLO == nil {
			p.file.SLO = map[string]time.Duration{}
		}
		p.file.SLO[e.Key] = v
		p.file.doc.slo[e.Key] = e.KeyAt
	}
}

// directives returns the #SBENCH lines before the first line that is neither
// empty nor a comment.
func directives(data []byte) []Directive {
	var out []Directive
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text := strings.TrimSpace(string(line))
		if text != "" && text[0] != '#' {
			break
		}
		rest, ok := strings.CutPrefix(string(line), "#SBENCH")
		if ok && (rest == "" || strings.ContainsAny(rest[:1], " \t\n")) {
			out = append(out, Directive{Line: number, Text: strings.TrimSpace(rest)})
		}
	}
	return out
}
