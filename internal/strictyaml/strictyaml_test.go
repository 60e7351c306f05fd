package strictyaml_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/diag"
	"sbench/internal/strictyaml"
)

const limit = 2 << 20

func parse(text string) (*strictyaml.Node, diag.List) {
	faults := diag.NewCollector("f.yaml", []byte(text))
	n := strictyaml.Parse([]byte(text), limit, faults)
	return n, faults.List()
}

func messages(list diag.List) string {
	var b strings.Builder
	for _, d := range list {
		b.WriteString(d.String() + "\n")
		if d.Hint != "" {
			b.WriteString("  hint: " + d.Hint + "\n")
		}
	}
	return b.String()
}

// TestParse_Faults: what YAML would swallow, and where it is reported.
func TestParse_Faults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"empty":           {"", "f.yaml: the file is empty\n"},
		"comment":         {"# nothing\n", "f.yaml: the file is empty\n"},
		"null":            {"~\n", "f.yaml: the file is empty\n"},
		"duplicate":       {"a: 1\nb: 2\na: 3\n", "f.yaml:3:1: the key \"a\" is already given in line 1, column 1\n"},
		"duplicate twice": {"a: 1\na: 2\na: 3\n", "f.yaml:2:1: the key \"a\" is already given in line 1, column 1\nf.yaml:3:1: the key \"a\" is already given in line 1, column 1\n"},
		"quoted dup":      {"a: 1\n\"a\": 2\n", "f.yaml:2:1: the key \"a\" is already given in line 1, column 1\n"},
		"nested dup":      {"x:\n  - {a: 1, a: 2}\n", "f.yaml:2:12: the key \"a\" is already given in line 2, column 6\n"},
		"two documents":   {"a: 1\n---\nb: 2\n", "f.yaml:3:1: a second document begins here\n  hint: put it into a file of its own\n"},
		"bare document":   {"a: 1\n...\nb: 2\n", "f.yaml:3:1: not valid YAML: did not find expected <document start>\n"},
		"broken second":   {"a: 1\n---\n[\n", "f.yaml:4:1: not valid YAML: did not find expected node content\n"},
		"empty second":    {"a: 1\n---\n", "f.yaml:3:1: a second document begins here\n  hint: put it into a file of its own\n"},
		"anchors":         {"&a &b c\n", "f.yaml:1:1: not valid YAML: did not find expected <document start>\n"},
		"long tag":        {strings.Repeat("!", 500) + "\n", "f.yaml:1:1: the tag " + strings.Repeat("!", 100) + "… is not used here\n  hint: leave it out\n"},
		"tab":             {"a:\n\tb: 1\n", "f.yaml:2:1: a tab indents the line, which YAML does not allow\n  hint: indent with blanks\n"},
		"tab deeper":      {"a:\n  b: 1\n  \tc: 1\n", "f.yaml:3:3: a tab indents the line, which YAML does not allow\n  hint: indent with blanks\n"},
		"BOM":             {"\ufeffa: 1\n", "f.yaml:1:1: the file begins with a byte order mark\n  hint: save it as UTF-8 without a byte order mark\n"},
		"inner BOM":       {"a: 1\nb: \ufeff\n", "f.yaml:2:4: the file contains the control character U+FEFF\n"},
		"UTF-16":          {"\xff\xfea\x00", "f.yaml:1:1: the file is UTF-16\n  hint: save it as UTF-8\n"},
		"Latin-1":         {"a: 1\nname: caf\xe9\n", "f.yaml:2:10: the file is not UTF-8: byte 0xe9\n  hint: save it as UTF-8\n"},
		"CRLF":            {"a: 1\r\nb: 2\r\n", "f.yaml:1:5: the line ends in a carriage return (a Windows line end)\n  hint: save it with Unix line ends: sed -i 's/\\r$//' FILE\n"},
		"NUL":             {"a: \x00\n", "f.yaml:1:4: the file contains the control character U+0000\n"},
		"escape":          {"a: \x1b[2J\n", "f.yaml:1:4: the file contains the control character U+001B\n"},
		"line separator":  {"a: x\u2028y\n", "f.yaml:1:5: the file contains the control character U+2028\n"},
		"loop":            {"a: &x [1, *x]\n", "f.yaml:1:11: the alias *x contains itself\n"},
		"loop in map":     {"a: &x\n  b: {c: *x}\n", "f.yaml:2:10: the alias *x contains itself\n"},
		"merge loop":      {"a: &x\n  <<: *x\n", "f.yaml:2:7: the alias *x contains itself\n"},
		"tag":             {"a: !!binary aGk=\n", "f.yaml:1:4: the tag !!binary is not used here\n  hint: leave it out\n"},
		"own tag":         {"a: !run {b: 1}\n", "f.yaml:1:4: the tag !run is not used here\n  hint: leave it out\n"},
		"key list":        {"? [a]\n: 1\n", "f.yaml:1:3: a key must be a single word\n  hint: quote it, if it is meant as text\n"},
		"brace":           {"{a}: 1\n", "f.yaml:1:1: a key must be a single word\n  hint: quote it, if it is meant as text\n"},
		"alias key":       {"a: &x b\n*x : 1\n", "f.yaml:2:1: an alias cannot be a key\n"},
		"merge scalar":    {"a:\n  <<: 1\n", "f.yaml:2:7: << merges mappings, not a single value\n"},
		"syntax":          {"a: 1\nb: [1, 2\nc: 3\n", "f.yaml:2:1: not valid YAML: did not find expected ',' or ']'\n"},
		"colon":           {"a: b: c\n", "f.yaml:1:1: not valid YAML: mapping values are not allowed in this context\n"},
		"unknown alias":   {"a: *x\n", "f.yaml:1:1: not valid YAML: unknown anchor 'x' referenced\n"},
		"too large":       {strings.Repeat("#", limit+1), "f.yaml: the file has 2097153 bytes; at most 2097152 are read\n"},
	} {
		_, list := parse(c.in)
		if diff := cmp.Diff(c.want, messages(list)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func show(n *strictyaml.Node) string {
	switch n.Kind {
	case strictyaml.Map:
		parts := make([]string, len(n.Entries))
		for i, e := range n.Entries {
			parts[i] = e.Key + ":" + show(e.Value)
		}
		return "{" + strings.Join(parts, " ") + "}"
	case strictyaml.List:
		parts := make([]string, len(n.Items))
		for i, item := range n.Items {
			parts[i] = show(item)
		}
		return "[" + strings.Join(parts, " ") + "]"
	case strictyaml.Scalar:
	}
	if n.Null {
		return "null"
	}
	return n.Text
}

// TestParse: anchors, merges and order.
func TestParse(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"b: 1\na: 2\n":                                          "{b:1 a:2}",
		"a: &x [1, 2]\nb: *x\nc: [*x, *x]\n":                    "{a:[1 2] b:[1 2] c:[[1 2] [1 2]]}",
		"a: &x {p: 1, q: 2}\nb: {q: 3, <<: *x}\n":               "{a:{p:1 q:2} b:{q:3 p:1}}",
		"a: &x {p: 1}\nb: &y {p: 2, q: 2}\nc: {<<: [*x, *y]}\n": "{a:{p:1} b:{p:2 q:2} c:{p:1 q:2}}",
		"a:\nb: ~\nc: null\nd: ''\n":                            "{a:null b:null c:null d:}",
		"a: |\n  x\n  y\n":                                      "{a:x\ny\n}",
		"--- \na: 1\n...\n":                                     "{a:1}",
		"a: !!str 4\n":                                          "{a:4}",
	} {
		n, list := parse(in)
		if len(list) > 0 {
			t.Errorf("%q:\n%s", in, list.Text())
			continue
		}
		if got := show(n); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestParse_NullPosition(t *testing.T) {
	t.Parallel()
	n, _ := parse("a: 1\nb:\n")
	if at := n.Get("b").At; at.Line != 2 {
		t.Errorf("the missing value is at %+v", at)
	}
}

// TestReader: each scalar in each role.
func TestReader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, text, rendered, integer, float, boolean string }{
		{in: "abc", text: "abc", rendered: "abc"},
		{in: "550.54.15", text: "550.54.15", rendered: "550.54.15"},
		{in: `"12.4"`, text: "12.4", rendered: "12.4"},
		{in: "12.4", rendered: "12.4", float: "12.4"},
		{in: "0.10", float: "0.1"},
		{in: "12", rendered: "12", integer: "12", float: "12"},
		{in: "-7", rendered: "-7", integer: "-7", float: "-7"},
		{in: "-0", integer: "0", float: "0"},
		{in: "+7"},
		{in: "007"},
		{in: "010"},
		{in: "0x10"},
		{in: "0o17"},
		{in: "0b1"},
		{in: "1_000"},
		{in: ".5"},
		{in: "5."},
		{in: "1e3", float: "1000"},
		{in: "1E-2", float: "0.01"},
		{in: "1:30"},
		{in: "5:00"},
		{in: "190:20:30"},
		{in: ".nan"},
		{in: ".inf"},
		{in: "-.Inf"},
		{in: "NaN", text: "NaN", rendered: "NaN"},
		{in: "true", rendered: "true", boolean: "true"},
		{in: "false", rendered: "false", boolean: "false"},
		{in: "True"},
		{in: "yes"},
		{in: "no"},
		{in: "NO"},
		{in: "on"},
		{in: "off"},
		{in: "y"},
		{in: "n"},
		{in: `"no"`, text: "no", rendered: "no"},
		{in: "~"},
		{in: "null"},
		{in: ""},
		{in: "2024-01-02"},
		{in: "2001-12-14t21:59:43.10-05:00"},
		{in: "1e999"},
		{in: "99999999999999999999", rendered: "99999999999999999999", float: "1e+20"},
		{in: "{a}"},
		{in: "[a]"},
		{in: "!!str 12", text: "12", rendered: "12"},
		{in: "'true'", text: "true", rendered: "true"},
	} {
		n, _ := parse("k: " + c.in + "\n")
		value := n.Get("k")
		check := func(role, want string, read func(strictyaml.Reader) (any, bool)) {
			t.Helper()
			faults := diag.NewCollector("f.yaml", nil)
			v, ok := read(strictyaml.Reader{Faults: faults})
			got := ""
			if ok {
				got = fmt.Sprint(v)
			}
			if got != want || ok == faults.HasErrors() {
				t.Errorf("%q as %s: %q, want %q\n%s", c.in, role, got, want, faults.List().Text())
			}
		}
		check("text", c.text, func(r strictyaml.Reader) (any, bool) { return boxed(r.Text(value, "k")) })
		check("rendered", c.rendered, func(r strictyaml.Reader) (any, bool) { return boxed(r.Rendered(value, "k")) })
		check("integer", c.integer, func(r strictyaml.Reader) (any, bool) { return boxed(r.Int(value, "k")) })
		check("float", c.float, func(r strictyaml.Reader) (any, bool) { return boxed(r.Float(value, "k")) })
		check("boolean", c.boolean, func(r strictyaml.Reader) (any, bool) { return boxed(r.Bool(value, "k")) })
	}
}

func boxed[T any](v T, ok bool) (any, bool) { return v, ok }

// TestReader_Hints: the corrected text.
func TestReader_Hints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in, want string
		read     func(strictyaml.Reader, *strictyaml.Node)
	}{
		{"0x10", "f.yaml:1:4: k is a whole number, not \"0x10\"\n  hint: write 16\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Int(n, "k") }},
		{"1e3", "f.yaml:1:4: k is a whole number, not \"1e3\"\n  hint: write 1000\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Int(n, "k") }},
		{"1_000", "f.yaml:1:4: k is a whole number, not \"1_000\"\n  hint: write 1000\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Int(n, "k") }},
		{"010", "f.yaml:1:4: k is a whole number, not \"010\"\n  hint: write it in decimal digits, without a leading zero\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Int(n, "k") }},
		{"4.0", "f.yaml:1:4: k is a whole number, not \"4.0\"\n  hint: write 4\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Int(n, "k") }},
		{"'4'", "f.yaml:1:4: k is a whole number, not the text \"4\"\n  hint: leave the quotes out\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Int(n, "k") }},
		{"0.10", "f.yaml:1:4: k is text, but 0.10 is a number in YAML\n  hint: quote it: \"0.10\"\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Text(n, "k") }},
		{"{a}", "f.yaml:1:4: k is a mapping, not text\n  hint: quote it: \"{a}\"\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Text(n, "k") }},
		{"yes", "f.yaml:1:4: k is true or false, not \"yes\"\n  hint: write true\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Bool(n, "k") }},
		{"no", "f.yaml:1:4: k is text, but no is a boolean to some YAML readers\n  hint: quote it: \"no\"\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Text(n, "k") }},
		{"5:00", "f.yaml:1:4: k: duration \"5:00\" is written like a time of day: write it like 300s, 5m or 1h30m\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Duration(n, "k") }},
		{"300", "f.yaml:1:4: k: duration \"300\" has no unit: write it like 300s, 5m or 1h30m\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Duration(n, "k") }},
		{"poison", "f.yaml:1:4: k is \"poison\", not one of poisson, closed\n  hint: did you mean \"poisson\"?\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Word(n, "k", []string{"poisson", "closed"}) }},
		{"", "f.yaml:1:3: k has no value\n  hint: give a value, or leave the key out\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Text(n, "k") }},
		{"{level: 3}", "f.yaml:1:4: k is a mapping, not a single value\n  hint: quote it, if it is meant as text\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Rendered(n, "k") }},
		{"1", "f.yaml:1:4: k is a single value, not a mapping\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Map(n, "k") }},
		{".nan", "f.yaml:1:4: k is a number, not \".nan\"\n  hint: write it as in JSON: 0.5\n", func(r strictyaml.Reader, n *strictyaml.Node) { r.Float(n, "k") }},
	} {
		n, _ := parse("k: " + c.in + "\n")
		faults := diag.NewCollector("f.yaml", nil)
		c.read(strictyaml.Reader{Faults: faults}, n.Get("k"))
		if diff := cmp.Diff(c.want, messages(faults.List())); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.in, diff)
		}
	}
}

// bombs are files that cost a naive reader its memory or its time.
func bombs() map[string]string {
	repeat := func(s string) string { return strings.Repeat(s, limit/len(s)) }
	laughs := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 30; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	merges := "a0: &a0 {x0: 1}\n"
	for i := 1; i < 60; i++ {
		merges += fmt.Sprintf("a%d: &a%d {<<: *a%d, y%d: *a%d, z%d: *a%d}\n", i, i, i-1, i, i-1, i, i-1)
	}
	return map[string]string{
		"billion laughs":   laughs,
		"merged laughs":    merges,
		"open brackets":    repeat("["),
		"open braces":      repeat("{"),
		"braces and keys":  repeat("{a: "),
		"brackets":         repeat("[]\n"),
		"dashes":           repeat("- "),
		"question marks":   repeat("? "),
		"anchors":          repeat("&a "),
		"anchors in lines": repeat("- &a x\n"),
		"commas":           "[" + repeat("a,") + "]",
		"keys":             repeat("a: 1\n"),
		"colons":           repeat("a:"),
		"quotes":           repeat("\""),
		"one quote":        "a: \"" + repeat("x"),
		"newlines":         repeat("\n"),
		"comments":         repeat("#\n"),
		"directives":       repeat("%TAG ! a\n"),
		"documents":        repeat("---\n"),
		"documents ended":  repeat("a\n...\n"),
		"literal":          "a: |\n" + repeat("  x\n"),
		"spaces":           repeat(" "),
		"tags":             repeat("!a "),
		"aliases":          "a: &x 1\nb: [" + repeat("*x,") + "]",
		"exclamation":      repeat("!"),
		"percent":          repeat("%"),
	}
}

// TestParse_Bombs: every hostile file is answered quickly and within bounded
// memory.
func TestParse_Bombs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes many seconds of CPU time")
	}
	for name, text := range bombs() {
		if len(text) > limit {
			text = text[:limit]
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, list := parse(text)
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%-18s %8v %6d MiB  %v", name, took.Round(time.Millisecond), allocated, first(list))
		if took > time.Minute || allocated > 1000 {
			t.Errorf("%s: %v, %d MiB allocated", name, took, allocated)
		}
	}
}

func first(list diag.List) string {
	if len(list) == 0 {
		return ""
	}
	return list[0].String()
}

// FuzzParse: nothing panics; every fault lies within the file.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a: 1\n", "a: &x [1, *x]\n", "<<: {a: 1}\n", "a:\n\t- b\n", "- {a: [1, {b: c}]}\n", "? a\n: |\n  x\n", "\ufeff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		faults := diag.NewCollector("f", data)
		n := strictyaml.Parse(data, 1<<16, faults)
		lines := strings.Count(string(data), "\n") + 1
		for _, d := range faults.List() {
			if d.Line < 0 || d.Line > lines || d.Line > 0 && d.Column < 1 {
				t.Fatalf("%+v is outside of the file of %d lines", d, lines)
			}
		}
		if n == nil && !faults.HasErrors() {
			t.Fatal("nothing was read and nothing reported")
		}
	})
}
