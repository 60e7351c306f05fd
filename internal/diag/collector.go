package diag

import (
	"fmt"
	"strings"
)

// MaxDiagnostics is how many diagnostics a Collector keeps of one file; one
// more says how many there were.
const MaxDiagnostics = 1000

// maxSource is the length of a line that a diagnostic still shows: a thousand
// copies of a line of a million characters help nobody.
const maxSource = 4096

// Collector gathers the diagnostics of one file. It is not safe for concurrent
// use.
type Collector struct {
	file    string
	data    []byte
	lines   []string // of data, once a diagnostic needs them
	list    List
	seen    map[Diagnostic]struct{}
	dropped int
	secret  map[int]bool // lines that must not be shown

	droppedErrors bool
}

// NewCollector prepares for the file's text, which must not change; data may be
// nil where there is nothing to show.
func NewCollector(file string, data []byte) *Collector {
	return &Collector{file: file, data: data, seen: map[Diagnostic]struct{}{}, secret: map[int]bool{}}
}

// Errorf adds an error. hint may be "".
func (c *Collector) Errorf(at Pos, hint, format string, args ...any) {
	c.add(Error, at, hint, fmt.Sprintf(format, args...))
}

// Concealf adds an error about a line that must not be shown, by this or any
// other diagnostic: there is a secret in it.
func (c *Collector) Concealf(at Pos, hint, format string, args ...any) {
	c.secret[at.Line] = true
	c.Errorf(at, hint, format, args...)
}

// Warnf adds a warning. hint may be "".
func (c *Collector) Warnf(at Pos, hint, format string, args ...any) {
	c.add(Warning, at, hint, fmt.Sprintf(format, args...))
}

func (c *Collector) add(s Severity, at Pos, hint, message string) {
	d := Diagnostic{File: c.file, Line: at.Line, Column: at.Column, Severity: s, Message: shorten(message), Hint: hint}
	if _, ok := c.seen[d]; ok {
		return
	}
	if len(c.list) >= MaxDiagnostics {
		c.dropped++
		c.droppedErrors = c.droppedErrors || s == Error
		return
	}
	c.seen[d] = struct{}{}
	if c.lines == nil && at.Line > 0 && len(c.data) > 0 {
		c.lines = strings.Split(string(c.data), "\n")
	}
	if at.Line > 0 && at.Line <= len(c.lines) && len(c.lines[at.Line-1]) <= maxSource {
		d.Source = strings.TrimRight(c.lines[at.Line-1], "\r")
	}
	c.list = append(c.list, d)
}

// maxMessage is how many bytes of a message are kept: one that quotes a value
// must not be as long as a hostile value is.
const maxMessage = 2000

func shorten(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}

// Full reports whether MaxDiagnostics have been reached: looking further shows
// nothing more.
func (c *Collector) Full() bool { return len(c.list) >= MaxDiagnostics }

// HasErrors reports whether an error was added.
func (c *Collector) HasErrors() bool { return c.droppedErrors || c.list.HasErrors() }

// List returns what was gathered, sorted.
func (c *Collector) List() List {
	out := append(List(nil), c.list...)
	for i := range out {
		if c.secret[out[i].Line] {
			out[i].Source = ""
		}
	}
	out.Sort()
	if c.dropped > 0 {
		severity := Warning
		if c.droppedErrors || out.HasErrors() {
			severity = Error
		}
		out = append(out, Diagnostic{File: c.file, Severity: severity, Message: fmt.Sprintf("more than %d faults: the rest is not shown", MaxDiagnostics)})
	}
	return out
}

// Count is the number of diagnostics so far, those that were dropped included.
func (c *Collector) Count() int { return len(c.list) + c.dropped }
