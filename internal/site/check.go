package site

import (
	"maps"
	"slices"
	"strings"

	"sbench/internal/batch"
	"sbench/internal/diag"
	"sbench/internal/setting"
	"sbench/internal/strictyaml"
)

// ownedOptions are the sbatch options that sbench sets from elsewhere.
var ownedOptions = []string{
	"account", "array", "begin", "chdir", "comment", "constraint", "cpus-per-gpu", "cpus-per-task", "error", "exclude", "exclusive", "export",
	"gpus", "gpus-per-node", "gres", "hold", "job-name", "mem", "mem-per-gpu", "nice", "no-requeue", "nodelist", "nodes", "ntasks", "ntasks-per-node",
	"open-mode", "output", "parsable", "partition", "qos", "requeue", "reservation", "signal", "switches", "time", "wait", "wrap", "wckey",
}

// options reads further sbatch options; true or "" is a bare one.
func (l *loader) options(n *strictyaml.Node, p string) {
	if !l.Map(n, p) {
		return
	}
	for _, e := range n.Entries {
		switch {
		case !optionForm.MatchString(e.Key):
			l.Faults.Errorf(e.KeyAt, "write long options without dashes", "%s: %q is not the name of an option", p, e.Key)
			continue
		case slices.Contains(ownedOptions, e.Key):
			l.Faults.Errorf(e.KeyAt, "leave it out", "%s: --%s is set by sbench itself", p, e.Key)
			continue
		}
		v, ok := l.Rendered(e.Value, p+"."+e.Key)
		if !ok {
			continue
		}
		if problem := setting.CheckText(v); problem != "" {
			l.Faults.Errorf(e.Value.At, "", "%s.%s %s", p, e.Key, problem)
			continue
		}
		if v == "true" {
			v = ""
		}
		l.site.Jobs.Options[e.Key] = v
	}
}

// check looks at what only the whole file shows.
func (l *loader) check(root *strictyaml.Node) {
	s := &l.site
	start := root.At
	if root.Kind != strictyaml.Map {
		return
	}
	for _, key := range []string{"site", "name", "cluster", "hardware", "paths"} {
		if root.Get(key) == nil {
			hint := ""
			if key == "site" {
				hint = "the file begins with the line site: v1"
			}
			l.Faults.Errorf(start, hint, "the key %q is missing", key)
		}
	}
	if paths := root.Get("paths"); paths != nil && paths.Kind == strictyaml.Map {
		for _, key := range []string{"spool", "results", "models", "images", "cache"} {
			if paths.Get(key) == nil {
				l.Faults.Errorf(paths.At, "", "paths.%s is missing", key)
			}
		}
		l.apart("paths.spool", s.Paths.Spool, "paths.results", s.Paths.Results)
		l.apart("paths.results", s.Paths.Results, "paths.cache", s.Paths.Cache)
		l.apart("paths.spool", s.Paths.Spool, "paths.cache", s.Paths.Cache)
	}
	l.partition("defaults.partition", s.Defaults.Partition)
	for _, id := range slices.Sorted(maps.Keys(s.Hardware)) {
		h := s.Hardware[id]
		at := l.at["hardware."+id]
		if !l.spoilt["hardware."+id] && (h.GRES == "") != (h.GPUsPerNode == 0) {
			l.Faults.Errorf(at, "GPU nodes have both, CPU nodes neither", "hardware.%s: gres and gpus_per_node do not go together", id)
		}
		l.partition("hardware."+id+".partition", h.Partition)
		if h.Partition == "" && s.Defaults.Partition == "" && len(s.Partitions) > 1 {
			l.Faults.Errorf(at, "give it a partition, or set defaults.partition", "hardware.%s has no partition", id)
		}
	}
	if h := root.Get("hardware"); h != nil && h.Kind == strictyaml.Map && len(h.Entries) == 0 {
		l.Faults.Errorf(h.At, "", "hardware names nothing to run on")
	}
	if e := root.Get("engine"); e != nil && !l.spoilt["engine"] && (s.Engine.Clocks.Method == batch.ClocksHelper) != (len(s.Engine.Clocks.Helper) > 0) {
		l.Faults.Errorf(e.At, "method helper names its command, the others none", "engine.clocks: method and helper do not go together")
	}
	// MaxArraySize caps the index, which counts from 0.
	s.Limits.MaxSubmit = min(s.Limits.MaxSubmit, s.Limits.MaxArraySize)
}

// partition refuses partitions that the file does not list, where it lists any.
func (l *loader) partition(key, name string) {
	if name == "" || len(l.site.Partitions) == 0 {
		return
	}
	if _, ok := l.site.Partitions[name]; !ok {
		known := slices.Sorted(maps.Keys(l.site.Partitions))
		hint := diag.Suggest(name, known)
		if hint == "" {
			hint = "listed are: " + strings.Join(known, ", ")
		}
		l.Faults.Errorf(l.at[key], hint, "%s: %q is not listed under partitions", key, name)
	}
}

// apart refuses a folder within another.
func (l *loader) apart(keyA, a, keyB, b string) {
	if a == "" || b == "" {
		return
	}
	if a == b || strings.HasPrefix(a+"/", b+"/") || strings.HasPrefix(b+"/", a+"/") {
		l.Faults.Errorf(l.at[keyB], "give them folders of their own", "%s and %s lie in one another: %s, %s", keyA, keyB, a, b)
	}
}
