package sweep

import (
	"slices"
	"strings"
	"time"

	"sbench/internal/diag"
	"sbench/internal/setting"
	"sbench/internal/strictyaml"
)

// Load is a workload file: what the load generator alone needs to know of a
// sweep. It has the workload block of a setting, and may name the model.
type Load struct {
	Model        string // "" where the file does not say
	Workload     setting.Workload
	SLO          map[string]time.Duration
	MaxErrorRate float64
}

// ParseWorkload reads a workload file: the keys workload, model, slo and
// max_error_rate of a sweep file, without the rest. It returns nil where the list
// has errors.
func ParseWorkload(data []byte, filename string) (*Load, diag.List) {
	faults := diag.NewCollector(filename, data)
	f := &File{data: data, filename: filename, doc: document{
		places: map[string]diag.Pos{}, slo: map[string]diag.Pos{}, tainted: map[string]bool{},
	}}
	root := strictyaml.Parse(data, MaxBytes, faults)
	if root == nil {
		return nil, faults.List()
	}
	p := parser{Reader: strictyaml.Reader{Faults: faults}, file: f}
	start := diag.Pos{Line: root.At.Line, Column: root.At.Column}
	var changes []change
	block := func(n *strictyaml.Node, path string) {
		start = n.At
		f.doc.places[path] = n.At
		changes = append(changes, p.block(n, path+".", f.doc.places)...)
	}
	if !p.Fields(root, "", []strictyaml.Field{
		{Key: "model", Read: block},
		{Key: "workload", Read: block},
		{Key: "slo", Read: p.slo},
		{Key: "max_error_rate", Read: p.share(&f.MaxErrorRate)},
	}) {
		return nil, faults.List()
	}
	if root.Get("workload") == nil {
		faults.Errorf(start, "the block of that name in a sweep file's setting", "the key %q is missing", "workload")
	}
	s := setting.Default()
	for _, c := range changes {
		c.apply(&s)
	}
	s.Normalize()
	for _, fault := range s.Validate() {
		if !slices.ContainsFunc(fault.Keys, func(key string) bool { return !strings.HasPrefix(key, "workload.") }) && !faults.HasErrors() {
			faults.Errorf(placeOf(f.doc.places, fault.Keys[0], start), fault.Hint, "%s", fault.Message)
		}
	}
	list := faults.List()
	if list.HasErrors() {
		return nil, list
	}
	return &Load{Model: s.Model.Name, Workload: s.Workload, SLO: f.SLO, MaxErrorRate: f.MaxErrorRate}, list
}

// placeOf is where an axis, or the nearest block around it, stands in the file.
func placeOf(places map[string]diag.Pos, key string, otherwise diag.Pos) diag.Pos {
	for {
		if at, ok := places[key]; ok {
			return at
		}
		i := strings.LastIndexByte(key, '.')
		if i < 0 {
			return otherwise
		}
		key = key[:i]
	}
}
