// Package strictyaml reads the YAML files that people write into a tree with
// positions, and refuses what YAML would silently turn into something else:
// duplicate keys, tags, second documents, aliases that loop or explode, numbers
// and booleans in unusual spellings. It promises to report every fault with its
// place, never to panic, and to stay within a bounded multiple of its input.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"sbench/internal/diag"
)

// Limits of what is read.
const (
	MaxNodes = 1_000_000 // of the tree with its aliases expanded
	maxDepth = 100
)

// Kind is what a Node is.
type Kind int

// The kinds.
const (
	Scalar Kind = iota
	Map
	List
)

// Node is a value in the file. An aliased value is one Node in several places,
// with the position of its anchor.
type Node struct {
	Kind    Kind
	At      diag.Pos
	Text    string // of a scalar, unquoted
	Plain   bool   // a scalar without quotes or block style
	Quote   byte   // ' or " of a quoted scalar, | of a block, 0 otherwise
	Null    bool   // a plain null, ~ or nothing at all
	Entries []Entry
	Items   []*Node

	size int // nodes below it, aliases expanded
}

// Entry is a key of a Map and its value.
type Entry struct {
	Key   string
	KeyAt diag.Pos
	Value *Node
}

// Get returns the value of a key, nil where there is none.
func (n *Node) Get(key string) *Node {
	for _, e := range n.Entries {
		if e.Key == key {
			return e.Value
		}
	}
	return nil
}

// String describes the kind for messages.
func (k Kind) String() string {
	switch k {
	case Map:
		return "a mapping"
	case List:
		return "a list"
	default:
		return "a single value"
	}
}

// Parse reads one document of at most maxBytes. It returns nil where the file
// cannot be read at all; otherwise the tree is complete but for what was
// reported.
func Parse(data []byte, maxBytes int, faults *diag.Collector) *Node {
	if !acceptable(data, maxBytes, faults) {
		return nil
	}
	doc, second, err := decode(data)
	if err != nil {
		reportSyntax(data, err, faults)
		return nil
	}
	if doc == nil || len(doc.Content) == 0 || doc.Content[0].Kind == yaml.ScalarNode && doc.Content[0].ShortTag() == "!!null" {
		faults.Errorf(diag.Pos{}, "", "the file is empty")
		return nil
	}
	if second > 0 {
		faults.Errorf(diag.Pos{Line: second, Column: 1}, "put it into a file of its own", "a second document begins here")
	}
	c := converter{faults: faults, done: map[*yaml.Node]*Node{}, open: map[*yaml.Node]bool{}}
	root := c.convert(doc.Content[0], 0)
	if c.stop {
		return nil
	}
	return root
}

// acceptable looks at the bytes before the parser does.
func acceptable(data []byte, maxBytes int, faults *diag.Collector) bool {
	place := func(i int) diag.Pos {
		line := 1 + bytes.Count(data[:i], []byte("\n"))
		start := bytes.LastIndexByte(data[:i], '\n') + 1
		return diag.Pos{Line: line, Column: 1 + utf8.RuneCount(data[start:i])}
	}
	switch {
	case len(data) > maxBytes:
		faults.Errorf(diag.Pos{}, "", "the file has %d bytes; at most %d are read", len(data), maxBytes)
		return false
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		faults.Errorf(diag.Pos{Line: 1, Column: 1}, "save it as UTF-8 without a byte order mark", "the file begins with a byte order mark")
		return false
	case bytes.HasPrefix(data, []byte("\xff\xfe")), bytes.HasPrefix(data, []byte("\xfe\xff")):
		faults.Errorf(diag.Pos{Line: 1, Column: 1}, "save it as UTF-8", "the file is UTF-16")
		return false
	}
	if i := bytes.IndexByte(data, '\r'); i >= 0 {
		faults.Errorf(place(i), `save it with Unix line ends: sed -i 's/\r$//' FILE`, "the line ends in a carriage return (a Windows line end)")
		return false
	}
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			faults.Errorf(place(i), "save it as UTF-8", "the file is not UTF-8: byte 0x%02x", data[i])
			return false
		case r < ' ' && r != '\n' && r != '\t', r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r == 0xfeff:
			faults.Errorf(place(i), "", "the file contains the control character %U", r)
			return false
		}
		i += n
	}
	return structure(data, faults)
}

// structure bounds what the parser would build.
func structure(data []byte, faults *diag.Collector) bool {
	n := 0
	for _, b := range data {
		switch b {
		case ',', '\n', '[', '{', ':', '-', '?':
			n++
		}
	}
	if n > MaxNodes {
		faults.Errorf(diag.Pos{}, "", "the file has more than %d elements", MaxNodes)
		return false
	}
	return true
}

// decode calls the YAML parser. A panic of the parser on hostile input is an
// error like any other.
func decode(data []byte) (doc *yaml.Node, second int, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(data))
	var first, next yaml.Node
	switch err := d.Decode(&first); {
	case errors.Is(err, io.EOF):
		return nil, 0, nil
	case err != nil:
		return nil, 0, err
	}
	switch err := d.Decode(&next); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, 0, err
	default:
		second = max(next.Line, 1)
		if len(next.Content) > 0 {
			second = next.Content[0].Line
		}
	}
	return &first, second, nil
}

var syntaxForm = regexp.MustCompile(`^yaml: (?:line (\d+): )?(?:column \d+: )?(.*)$`)

// parserForm are the faults that the grammar finds, as opposed to the scanner.
var parserForm = regexp.MustCompile(`^did not find expected (<|node content|',' or|'-' indicator|key$)|^found (duplicate %|undefined tag handle|incompatible YAML|extra %)`)

func reportSyntax(data []byte, err error, faults *diag.Collector) {
	at, message := diag.Pos{Line: 1, Column: 1}, strings.ReplaceAll(err.Error(), "\n", " ")
	if m := syntaxForm.FindStringSubmatch(message); m != nil {
		at.Line, _ = strconv.Atoi(m[1])
		message = m[2]
		if parserForm.MatchString(message) && m[1] != "" {
			at.Line++ // this half of the library counts lines from 0
		}
	}
	lines := bytes.Split(data, []byte("\n"))
	at.Line = min(max(at.Line, 1), len(lines))
	// The parser names the line alone, and often the one after the fault: a tab
	// nearby is what it means.
	for _, number := range []int{at.Line, at.Line + 1, at.Line - 1} {
		if number < 1 || number > len(lines) {
			continue
		}
		line := lines[number-1]
		indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
		if tab := bytes.IndexByte(indent, '\t'); tab >= 0 {
			faults.Errorf(diag.Pos{Line: number, Column: tab + 1}, "indent with blanks", "a tab indents the line, which YAML does not allow")
			return
		}
	}
	line := lines[at.Line-1]
	at.Column = 1 + len(line) - len(bytes.TrimLeft(line, " \t"))
	faults.Errorf(at, "", "not valid YAML: %s", clip(message))
}

// clip shortens what a message quotes.
func clip(s string) string {
	const longest = 100
	if utf8.RuneCountInString(s) <= longest {
		return s
	}
	return string([]rune(s)[:longest]) + "…"
}

type converter struct {
	faults *diag.Collector
	done   map[*yaml.Node]*Node
	open   map[*yaml.Node]bool
	stop   bool
}

func pos(n *yaml.Node) diag.Pos { return diag.Pos{Line: n.Line, Column: n.Column} }

// convert returns a node for n, nil after a fault that leaves nothing to use.
func (c *converter) convert(n *yaml.Node, depth int) *Node {
	if c.stop {
		return nil
	}
	if depth > maxDepth {
		c.faults.Errorf(pos(n), "", "more than %d levels of nesting", maxDepth)
		c.stop = true
		return nil
	}
	if n.Kind == yaml.AliasNode {
		if c.open[n.Alias] {
			c.faults.Errorf(pos(n), "", "the alias *%s contains itself", clip(n.Value))
			return nil
		}
		if out, ok := c.done[n.Alias]; ok {
			return out
		}
		return c.convert(n.Alias, depth+1)
	}
	c.tag(n)
	out := &Node{At: pos(n), size: 1}
	c.open[n] = true
	switch n.Kind {
	case yaml.ScalarNode:
		out.Text = n.Value
		out.Plain = n.Style == 0
		switch {
		case n.Style&yaml.SingleQuotedStyle != 0:
			out.Quote = '\''
		case n.Style&yaml.DoubleQuotedStyle != 0:
			out.Quote = '"'
		case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
			out.Quote = '|'
		}
		out.Null = out.Plain && n.ShortTag() == "!!null"
	case yaml.SequenceNode:
		out.Kind = List
		for _, child := range n.Content {
			if item := c.convert(child, depth+1); item != nil {
				out.Items = append(out.Items, item)
				out.size += item.size
			}
		}
	case yaml.MappingNode:
		out.Kind = Map
		c.mapping(n, out, depth)
	default:
		c.faults.Errorf(pos(n), "", "unexpected kind of YAML node")
		return nil
	}
	delete(c.open, n)
	if out.size > MaxNodes {
		c.faults.Errorf(pos(n), "", "the aliases below expand to more than %d values", MaxNodes)
		c.stop = true
		return nil
	}
	if n.Anchor != "" {
		c.done[n] = out
	}
	return out
}

// tag refuses explicit tags but !!str, which is as good as quotes.
func (c *converter) tag(n *yaml.Node) {
	if n.Style&yaml.TaggedStyle != 0 && !(n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str") {
		c.faults.Errorf(pos(n), "leave it out", "the tag %s is not used here", clip(n.Tag))
	}
}

func (c *converter) mapping(n *yaml.Node, out *Node, depth int) {
	first := map[string]diag.Pos{}
	var merges []*Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			c.faults.Errorf(pos(key), "", "an alias cannot be a key")
			continue
		}
		if key.Kind != yaml.ScalarNode {
			c.faults.Errorf(pos(key), "quote it, if it is meant as text", "a key must be a single word")
			continue
		}
		c.tag(key)
		node := c.convert(value, depth+1)
		if key.ShortTag() == "!!merge" {
			if node != nil {
				merges = append(merges, c.merged(node)...)
			}
			continue
		}
		if at, ok := first[key.Value]; ok {
			c.faults.Errorf(pos(key), "", "the key %q is already given in line %d, column %d", clip(key.Value), at.Line, at.Column)
			continue
		}
		first[key.Value] = pos(key)
		if node == nil {
			continue
		}
		if node.Null && node.At.Line == 0 {
			node.At = pos(key)
		}
		out.Entries = append(out.Entries, Entry{Key: key.Value, KeyAt: pos(key), Value: node})
		out.size += node.size
	}
	for _, m := range merges { // what is written here wins over what is merged, and an earlier merge over a later one
		for _, e := range m.Entries {
			if _, ok := first[e.Key]; !ok {
				first[e.Key] = e.KeyAt
				out.Entries = append(out.Entries, e)
				out.size += e.Value.size
			}
		}
	}
}

// merged returns the mappings that a << key names.
func (c *converter) merged(n *Node) []*Node {
	switch n.Kind {
	case Map:
		return []*Node{n}
	case List:
		var out []*Node
		for _, item := range n.Items {
			if item.Kind != Map {
				c.faults.Errorf(item.At, "", "<< merges mappings, not %s", item.Kind)
				continue
			}
			out = append(out, item)
		}
		return out
	default:
		c.faults.Errorf(n.At, "", "<< merges mappings, not %s", n.Kind)
		return nil
	}
}
