package strictyaml

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sbench/internal/diag"
	"sbench/internal/unit"
)

// Reader turns nodes into values and reports what does not fit. what names the
// value in messages: "hardware.gpus".
type Reader struct{ Faults *diag.Collector }

var (
	integerForm = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	numberForm  = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
	// numericForm is what some YAML reader takes for a number: hexadecimal,
	// octal, underscores, signs, points at either end.
	numericForm = regexp.MustCompile(`^[-+]?(\.?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?|0[xob][0-9a-fA-F_]+)$`)
	// sexagesimalForm is a number of YAML 1.1: 5:00 is 300.
	sexagesimalForm = regexp.MustCompile(`^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$`)
	infinityForm    = regexp.MustCompile(`^[-+]?\.(inf|Inf|INF|nan|NaN|NAN)$`)
	dateForm        = regexp.MustCompile(`^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?$`)
)

// trap says what YAML readers make of a plain scalar that is meant as text; ""
// where all of them take it for text.
func trap(text string) string {
	switch strings.ToLower(text) {
	case "true", "false", "yes", "no", "on", "off", "y", "n":
		return "a boolean to some YAML readers"
	case "null", "~", "":
		return "null in YAML"
	}
	switch {
	case numericForm.MatchString(text):
		return "a number in YAML"
	case sexagesimalForm.MatchString(text):
		return "a number of base 60 to some YAML readers"
	case infinityForm.MatchString(text):
		return "a number in YAML"
	case dateForm.MatchString(text):
		return "a date in YAML"
	}
	return ""
}

// scalar reports anything but a single, given value.
func (r Reader) scalar(n *Node, what, want string) bool {
	if n.Kind != Scalar {
		hint := ""
		switch {
		case n.Kind == Map && len(n.Entries) == 1 && n.Entries[0].Value.Null:
			hint = "quote it: \"{" + n.Entries[0].Key + "}\""
		case n.Kind == List:
			hint = "give one value"
		case want == "a single value" || want == "text":
			hint = "quote it, if it is meant as text"
		}
		r.Faults.Errorf(n.At, hint, "%s is %s, not %s", what, n.Kind, want)
		return false
	}
	if n.Null {
		r.Faults.Errorf(n.At, "give a value, or leave the key out", "%s has no value", what)
		return false
	}
	return true
}

// Text reads a string. A plain scalar that YAML readers take for something else
// must be quoted.
func (r Reader) Text(n *Node, what string) (string, bool) {
	if !r.scalar(n, what, "text") {
		return "", false
	}
	if n.Plain {
		if why := trap(n.Text); why != "" {
			r.Faults.Errorf(n.At, "quote it: "+strconv.Quote(clip(n.Text)), "%s is text, but %s is %s", what, clip(n.Text), why)
			return "", false
		}
	}
	return n.Text, true
}

// Word reads one of the given words. A word that YAML readers take for a
// boolean (off) needs no quotes.
func (r Reader) Word(n *Node, what string, words []string) (string, bool) {
	if !r.scalar(n, what, "one of "+strings.Join(words, ", ")) {
		return "", false
	}
	if !slices.Contains(words, n.Text) {
		r.Faults.Errorf(n.At, diag.Suggest(n.Text, words), "%s is %q, not one of %s", what, clip(n.Text), strings.Join(words, ", "))
		return "", false
	}
	return n.Text, true
}

// Int reads a whole number, written in decimal digits and not quoted.
func (r Reader) Int(n *Node, what string) (int64, bool) {
	if !r.scalar(n, what, "a whole number") {
		return 0, false
	}
	if !n.Plain {
		hint := ""
		if integerForm.MatchString(n.Text) {
			hint = "leave the quotes out"
		}
		r.Faults.Errorf(n.At, hint, "%s is a whole number, not the text %q", what, n.Text)
		return 0, false
	}
	if !integerForm.MatchString(n.Text) {
		hint := integerHint(n.Text)
		r.Faults.Errorf(n.At, hint, "%s is a whole number, not %s", what, strconv.Quote(clip(n.Text)))
		return 0, false
	}
	v, err := strconv.ParseInt(n.Text, 10, 64)
	if err != nil {
		r.Faults.Errorf(n.At, "", "%s does not fit into 64 bits: %s", what, clip(n.Text))
		return 0, false
	}
	return v, true
}

// IntBetween reads a whole number within bounds, both included.
func (r Reader) IntBetween(n *Node, what string, least, most int64) (int64, bool) {
	v, ok := r.Int(n, what)
	if ok && (v < least || v > most) {
		r.Faults.Errorf(n.At, "", "%s is %d, not between %d and %d", what, v, least, most)
		return 0, false
	}
	return v, ok
}

// integerHint is the integer that another spelling probably means.
func integerHint(text string) string {
	digits := strings.TrimLeft(text, "+-")
	if len(digits) > 1 && digits[0] == '0' && '0' <= digits[1] && digits[1] <= '9' {
		return "write it in decimal digits, without a leading zero" // 010 is 8 to some and 10 to others
	}
	if v, err := strconv.ParseInt(text, 0, 64); err == nil {
		return "write " + strconv.FormatInt(v, 10)
	}
	if v, err := strconv.ParseFloat(text, 64); err == nil && v == float64(int64(v)) && v < 1e15 && v > -1e15 {
		return "write " + strconv.FormatInt(int64(v), 10)
	}
	return "write it in decimal digits alone"
}

// Float reads a number, written as in JSON and not quoted.
func (r Reader) Float(n *Node, what string) (float64, bool) {
	if !r.scalar(n, what, "a number") {
		return 0, false
	}
	if !n.Plain || !numberForm.MatchString(n.Text) {
		hint := "write it as in JSON: 0.5"
		if !n.Plain && numberForm.MatchString(n.Text) {
			hint = "leave the quotes out"
		}
		r.Faults.Errorf(n.At, hint, "%s is a number, not %s", what, strconv.Quote(clip(n.Text)))
		return 0, false
	}
	v, err := strconv.ParseFloat(n.Text, 64)
	if err != nil {
		r.Faults.Errorf(n.At, "", "%s is out of range: %s", what, clip(n.Text))
		return 0, false
	}
	if v == 0 {
		v = 0 // not −0
	}
	return v, true
}

// Bool reads true or false, not quoted.
func (r Reader) Bool(n *Node, what string) (v, ok bool) {
	if !r.scalar(n, what, "true or false") {
		return false, false
	}
	if n.Plain && (n.Text == "true" || n.Text == "false") {
		return n.Text == "true", true
	}
	hint := "write true or false"
	switch strings.ToLower(n.Text) {
	case "true", "yes", "on", "y":
		hint = "write true"
	case "false", "no", "off", "n":
		hint = "write false"
	}
	r.Faults.Errorf(n.At, hint, "%s is true or false, not %s", what, strconv.Quote(clip(n.Text)))
	return false, false
}

// Duration reads a duration with its unit: 300s.
func (r Reader) Duration(n *Node, what string) (time.Duration, bool) {
	return quantity(r, n, what, "a duration such as 300s", unit.Duration)
}

// Rate reads a rate with its unit: 8/s.
func (r Reader) Rate(n *Node, what string) (float64, bool) {
	return quantity(r, n, what, "a rate such as 8/s", unit.Rate)
}

// Bytes reads a size with its unit: 80GiB.
func (r Reader) Bytes(n *Node, what string) (int64, bool) {
	return quantity(r, n, what, "a size such as 80GiB", unit.Bytes)
}

func quantity[T any](r Reader, n *Node, what, want string, parse func(string) (T, error)) (v T, ok bool) {
	if !r.scalar(n, what, want) {
		return v, false
	}
	v, err := parse(n.Text)
	if err != nil {
		r.Faults.Errorf(n.At, "", "%s: %v", what, err)
		return v, false
	}
	return v, true
}

// Rendered reads a value that will be rendered as text: a string, a whole
// number, a decimal number in its shortest form, true or false. What could be
// rendered in two ways must be quoted: 0.10, 1e3, 0x10, yes.
func (r Reader) Rendered(n *Node, what string) (string, bool) {
	if !r.scalar(n, what, "a single value") {
		return "", false
	}
	if !n.Plain || n.Text == "true" || n.Text == "false" || integerForm.MatchString(n.Text) && n.Text != "-0" {
		return n.Text, true
	}
	if n.Text != "-0" && numberForm.MatchString(n.Text) {
		if v, err := strconv.ParseFloat(n.Text, 64); err == nil && strconv.FormatFloat(v, 'f', -1, 64) == n.Text {
			return n.Text, true
		}
	}
	if why := trap(n.Text); why != "" {
		r.Faults.Errorf(n.At, "quote it: "+strconv.Quote(clip(n.Text)), "%s is kept as text, but %s is %s", what, clip(n.Text), why)
		return "", false
	}
	return n.Text, true
}

// Map reports a node that is not a mapping.
func (r Reader) Map(n *Node, what string) bool { return r.kind(n, what, Map) }

// List reports a node that is not a list.
func (r Reader) List(n *Node, what string) bool { return r.kind(n, what, List) }

func (r Reader) kind(n *Node, what string, want Kind) bool {
	switch {
	case n.Kind == want:
		return true
	case n.Null:
		r.Faults.Errorf(n.At, "give a value, or leave the key out", "%s has no value", what)
	default:
		r.Faults.Errorf(n.At, "", "%s is %s, not %s", what, n.Kind, want)
	}
	return false
}

// Texts reads a list of strings.
func (r Reader) Texts(n *Node, what string) ([]string, bool) {
	if !r.List(n, what) {
		return nil, false
	}
	out, ok := make([]string, 0, len(n.Items)), true
	for _, item := range n.Items {
		s, good := r.Text(item, "an element of "+what)
		out, ok = append(out, s), ok && good
	}
	return out, ok
}

// Unknown reports a key that is none of the known ones.
func (r Reader) Unknown(e Entry, where string, known []string) {
	if r.Faults.Full() {
		r.Faults.Errorf(e.KeyAt, "", "unknown key") // counted, not shown
		return
	}
	in := ""
	if where != "" {
		in = " in " + where
	}
	hint := diag.Suggest(e.Key, known)
	if hint == "" && len(known) > 0 && len(known) <= 20 {
		hint = "known here: " + strings.Join(known, ", ")
	}
	r.Faults.Errorf(e.KeyAt, hint, "unknown key %s%s", strconv.Quote(clip(e.Key)), in)
}

// Fields calls the reader of each key of a mapping and reports unknown keys.
// where is the path of the mapping, "" at the top.
func (r Reader) Fields(n *Node, where string, fields []Field) bool {
	what := where
	if what == "" {
		what = "the file"
	}
	if !r.Map(n, what) {
		return false
	}
	for _, e := range n.Entries {
		if r.Faults.Full() {
			return true
		}
		i := slices.IndexFunc(fields, func(f Field) bool { return f.Key == e.Key })
		if i < 0 {
			known := make([]string, len(fields))
			for j, f := range fields {
				known[j] = f.Key
			}
			r.Unknown(e, where, known)
			continue
		}
		path := e.Key
		if where != "" {
			path = where + "." + e.Key
		}
		fields[i].Read(e.Value, path)
	}
	return true
}

// Field is a key of a mapping and what to do with its value. path is the key
// with the keys above it, for messages.
type Field struct {
	Key  string
	Read func(n *Node, path string)
}
