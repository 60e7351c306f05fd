package sweep

import (
	"regexp"
	"strconv"
	"strings"

	"sbench/internal/diag"
	"sbench/internal/setting"
	"sbench/internal/strictyaml"
)

// Options are what the command line says about the settings themselves. They
// win over the file, in the base, the matrix and included points alike.
type Options struct {
	Limit int // settings at most; 0 is DefaultLimit
	// Set holds "axis=value" assignments, in order.
	Set []string
	// GRES is sbatch's: gpu:h100:4 sets hardware.gpu and hardware.gpus, gpu:4 the
	// latter alone. HardwareByGRES maps "gpu:h100" to the site's hardware id; it
	// is needed where GRES names a type.
	GRES           string
	HardwareByGRES func(gres string) (id string, ok bool)
	Constraint     string // sets hardware.constraint; "" leaves it
	Switches       *int   // sets hardware.switches; nil leaves it
	Exclusive      bool   // sets hardware.placement to node
	Repeats        *int   // replaces the file's repeats; nil leaves them
}

var gresForm = regexp.MustCompile(`^gpu(?::([A-Za-z0-9_.-]*[A-Za-z_.-][A-Za-z0-9_.-]*))?(?::([0-9]{1,4}))?$`)

// options turns o into overrides. The faults carry the option's name as their
// file.
func (e *expander) options(o Options) diag.List {
	var list diag.List
	fail := func(option, hint, message string) {
		list = append(list, diag.Diagnostic{File: option, Severity: diag.Error, Message: message, Hint: hint})
	}
	set := func(key string, value any) {
		axis, _, _ := setting.LookupAxis(key)
		e.overrides = append(e.overrides, change{axis: axis, value: value})
	}
	for _, assignment := range o.Set {
		changes, faults := parseSet(assignment)
		list = append(list, faults...)
		e.overrides = append(e.overrides, changes...)
	}
	if o.GRES != "" {
		m := gresForm.FindStringSubmatch(o.GRES)
		switch {
		case m == nil || m[1] == "" && m[2] == "":
			fail("--gres", "as in gpu:h100:4 or gpu:4", strconv.Quote(o.GRES)+" is not a GRES of GPUs")
		default:
			if m[1] != "" {
				id, ok := "", false
				if o.HardwareByGRES != nil {
					id, ok = o.HardwareByGRES("gpu:" + m[1])
				}
				if ok {
					set("hardware.gpu", id)
				} else {
					fail("--gres", "the site file maps hardware ids to GRES", "no hardware of the site has the GRES "+strconv.Quote("gpu:"+m[1]))
				}
			}
			gpus := int64(1)
			if m[2] != "" {
				gpus, _ = strconv.ParseInt(m[2], 10, 64)
			}
			set("hardware.gpus", gpus)
		}
	}
	if o.Constraint != "" {
		set("hardware.constraint", o.Constraint)
	}
	if o.Switches != nil {
		set("hardware.switches", int64(*o.Switches))
	}
	if o.Exclusive {
		set("hardware.placement", string(setting.PlacementNode))
	}
	if o.Repeats != nil {
		if n := *o.Repeats; n < 1 || n > MaxRepeats {
			fail("--repeats", "", strconv.Itoa(n)+" is not between 1 and "+strconv.Itoa(MaxRepeats))
		} else {
			e.repeats = Repeats{Min: n, Max: n}
		}
	}
	return list
}

// parseSet reads key=value. A value of an axis of text is taken as it is; any
// other is read as YAML.
func parseSet(assignment string) ([]change, diag.List) {
	key, text, ok := strings.Cut(assignment, "=")
	key = strings.TrimSpace(key)
	name := "--set " + key
	if !ok || key == "" {
		return nil, diag.List{{File: "--set", Severity: diag.Error, Message: strconv.Quote(assignment) + " is not key=value", Hint: "as in workload.seed=7"}}
	}
	faults := diag.NewCollector(name, []byte(text))
	p := parser{Reader: strictyaml.Reader{Faults: faults}, file: &File{doc: document{places: map[string]diag.Pos{}, tainted: map[string]bool{}}}}
	if !p.known(strictyaml.Entry{Key: key}) {
		return nil, faults.List()
	}
	axis, entry, isAxis := setting.LookupAxis(key)
	n := &strictyaml.Node{At: diag.Pos{Line: 1, Column: 1}, Text: text, Plain: true}
	switch {
	case isAxis && (entry != "" || isText(axis.Type)):
		n.Plain = false
	case isAxis && axis.Type.Storage() != setting.StoreJSON:
		n.Text = strings.TrimSpace(text)
	default:
		if n = strictyaml.Parse([]byte(text), MaxBytes, faults); n == nil {
			return nil, faults.List()
		}
	}
	changes, _ := p.assign(key, n)
	list := faults.List()
	if list.HasErrors() {
		return nil, list
	}
	for i := range changes {
		changes[i].at = diag.Pos{}
	}
	return changes, list
}

// isText reports whether values of the type are taken literally.
func isText(t setting.Type) bool {
	switch t {
	case setting.TypeText, setting.TypeVersion, setting.TypeDigest, setting.TypePath, setting.TypeFrequency, setting.TypePower:
		return true
	default:
		return false
	}
}
