// Package diag holds positioned diagnostics of the files that people write:
// file:line:column, a caret below the fault and a hint, as a sorted list that
// hides nothing, in text and in JSON.
package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Severity says whether the file can be used.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Pos is a place in a file. Line and Column (in characters) count from 1; the
// zero Pos is "the file as a whole".
type Pos struct{ Line, Column int }

// Diagnostic is one fault or warning.
type Diagnostic struct {
	File     string   `json:"file"`
	Line     int      `json:"line"`   // from 1; 0 for the file as a whole
	Column   int      `json:"column"` // in characters, from 1
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Hint     string   `json:"hint,omitempty"`
	Source   string   `json:"source,omitempty"` // the line itself, for the caret
}

// String is the first line of the text form: "file:line:column: message".
func (d Diagnostic) String() string {
	var b strings.Builder
	b.WriteString(printable(d.File))
	if d.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", d.Line, d.Column)
	}
	b.WriteString(": ")
	if d.Severity == Warning {
		b.WriteString("warning: ")
	}
	b.WriteString(printable(d.Message))
	return b.String()
}

// Text is the whole form for people: message, source line, caret, hint. It ends
// in a newline and holds no control characters but newlines.
func (d Diagnostic) Text() string {
	var b strings.Builder
	b.WriteString(d.String())
	b.WriteByte('\n')
	if d.Line > 0 && d.Source != "" {
		line, column := clip(d.Source, d.Column)
		number := strconv.Itoa(d.Line)
		fmt.Fprintf(&b, "  %s | %s\n", number, line)
		fmt.Fprintf(&b, "  %s | %s^\n", strings.Repeat(" ", len(number)), strings.Repeat(" ", column-1))
	}
	if d.Hint != "" {
		b.WriteString("  hint: " + printable(d.Hint) + "\n")
	}
	return b.String()
}

// maxShown is the width of a source line that is shown whole.
const maxShown = 120

// clip returns the part of the line around column, printable and with one
// column per character, and the column within it.
func clip(source string, column int) (string, int) {
	runes := []rune(source)
	column = min(max(column, 1), len(runes)+1)
	for i, r := range runes {
		if r == '\t' {
			runes[i] = ' '
		} else if !unicode.IsPrint(r) {
			runes[i] = '\ufffd'
		}
	}
	if len(runes) <= maxShown {
		return string(runes), column
	}
	from := min(max(column-maxShown/2, 0), len(runes)-maxShown)
	part := runes[from : from+maxShown]
	if from > 0 {
		part[0] = '…'
	}
	if from+maxShown < len(runes) {
		part[maxShown-1] = '…'
	}
	return string(part), column - from
}

// printable replaces control characters, so that a hostile file cannot drive
// the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '\ufffd'
		}
		return r
	}, s)
}

// List is a list of diagnostics. The zero List is empty and usable.
type List []Diagnostic

// HasErrors reports whether the file cannot be used.
func (l List) HasErrors() bool {
	return slices.ContainsFunc(l, func(d Diagnostic) bool { return d.Severity == Error })
}

// Errors returns the errors alone.
func (l List) Errors() List { return l.only(Error) }

// Warnings returns the warnings alone.
func (l List) Warnings() List { return l.only(Warning) }

func (l List) only(s Severity) List {
	var out List
	for _, d := range l {
		if d.Severity == s {
			out = append(out, d)
		}
	}
	return out
}

// Err returns the errors as one error, or nil if there is none.
func (l List) Err() error {
	if errs := l.Errors(); len(errs) > 0 {
		return listError{errs}
	}
	return nil
}

// Text is the text form of all diagnostics.
func (l List) Text() string {
	var b strings.Builder
	for _, d := range l {
		b.WriteString(d.Text())
	}
	return b.String()
}

// Sort orders by place, then errors before warnings, then text, and drops
// repetitions.
func (l *List) Sort() {
	slices.SortStableFunc(*l, compare)
	*l = slices.CompactFunc(*l, func(a, b Diagnostic) bool { return compare(a, b) == 0 })
}

func compare(a, b Diagnostic) int {
	return cmp.Or(
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
		cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Message, b.Message))
}

type listError struct{ list List }

func (e listError) Error() string {
	lines := make([]string, len(e.list))
	for i, d := range e.list {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}
