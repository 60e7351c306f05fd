package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"sbench/internal/diag"
)

// writeJSON prints one indented document.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// failureDocument is what --json prints on stderr when a command fails.
type failureDocument struct {
	Error       string    `json:"error"`
	Hint        *string   `json:"hint"`
	Reasons     []string  `json:"reasons"`
	Diagnostics diag.List `json:"diagnostics"`
	ExitStatus  int       `json:"exit_status"`
}

func (a *app) reportJSON(f *failure) {
	doc := failureDocument{
		Error: f.message, Reasons: f.reasons, Diagnostics: f.diagnostics, ExitStatus: f.status,
	}
	if f.hint != "" {
		doc.Hint = &f.hint
	}
	if doc.Reasons == nil {
		doc.Reasons = []string{}
	}
	if doc.Diagnostics == nil {
		doc.Diagnostics = diag.List{}
	}
	e := json.NewEncoder(a.stderr)
	e.SetEscapeHTML(false)
	_ = e.Encode(doc) // there is nobody left to tell
}

// message prints a line for people on stderr. What stderr does not take is lost:
// there is no other place to say it.
func (a *app) message(format string, args ...any) {
	_, _ = fmt.Fprintf(a.stderr, "sbench: "+format+"\n", args...)
}

// warn prints diagnostics on stderr.
func (a *app) warn(list diag.List) { _, _ = io.WriteString(a.stderr, list.Text()) }

// print writes to standard output; Main fails where that does not take it.
func (a *app) print(format string, args ...any) { _, _ = fmt.Fprintf(a.stdout, format, args...) }

// stickyWriter remembers the first error, so that no print has to be checked.
type stickyWriter struct {
	w   io.Writer
	err error
}

func (s *stickyWriter) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(p)
	s.err = err
	return n, err
}

// file is the file behind a writer; nil where there is none.
func file(w io.Writer) *os.File {
	if s, ok := w.(*stickyWriter); ok {
		w = s.w
	}
	f, _ := w.(*os.File)
	return f
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f := file(w)
	return f != nil && term.IsTerminal(int(f.Fd()))
}

// terminalWidth returns the width of w in columns, 0 where it is no terminal.
func terminalWidth(w io.Writer) int {
	f := file(w)
	if f == nil {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// style is an SGR code; the zero style is plain.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
)

// coloured reports whether w takes colours: a terminal that does not ask for none.
func (a *app) coloured(w io.Writer) bool {
	return isTerminal(w) && a.env("NO_COLOR") == "" && a.env("TERM") != "dumb"
}

func paint(on bool, s style, text string) string {
	if !on || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// cell is one field of a table.
type cell struct {
	text  string
	style style
}

// table is printed aligned for people, or separated by bars for programs.
type table struct {
	head  []string
	right []bool // columns of numbers
	rows  []tableRow
}

type tableRow struct {
	cells []cell
	notes []string // lines below the row, for people only
}

func newTable(columns ...string) *table {
	t := &table{}
	for _, c := range columns {
		name, isRight := strings.CutSuffix(c, ">")
		t.head = append(t.head, name)
		t.right = append(t.right, isRight)
	}
	return t
}

// add appends a row of texts or cells.
func (t *table) add(fields ...any) {
	row := make([]cell, len(fields))
	for i, f := range fields {
		switch v := f.(type) {
		case cell:
			row[i] = v
		case string:
			row[i] = cell{text: v}
		default:
			row[i] = cell{text: fmt.Sprint(v)}
		}
		row[i].text = printable(row[i].text)
	}
	t.rows = append(t.rows, tableRow{cells: row})
}

// note puts a line below the last row. Programs read the same in --json.
func (t *table) note(text string) {
	last := &t.rows[len(t.rows)-1]
	last.notes = append(last.notes, printable(text))
}

// tableFlags are the flags of commands that print tables.
type tableFlags struct {
	parsable bool
	noHeader bool
}

func addTableFlags(fs *pflag.FlagSet, t *tableFlags) {
	fs.BoolVarP(&t.parsable, "parsable2", "P", false, "separate the columns by | and do not align them")
	fs.BoolVarP(&t.noHeader, "noheader", "n", false, "leave the header out")
}

// print writes the table as the flags ask.
func (t *table) print(a *app, f tableFlags) {
	if f.parsable {
		t.printParsable(a.stdout, f.noHeader)
		return
	}
	t.printAligned(a.stdout, a.coloured(a.stdout), f.noHeader)
}

// printParsable writes Slurm's -P form: bars between the fields, none at the end.
func (t *table) printParsable(w io.Writer, noHeader bool) {
	var b strings.Builder
	line := func(fields []string) { b.WriteString(strings.Join(fields, "|") + "\n") }
	if !noHeader {
		line(t.head)
	}
	for _, r := range t.rows {
		fields := make([]string, len(r.cells))
		for i, c := range r.cells {
			fields[i] = strings.ReplaceAll(c.text, "|", "/")
		}
		line(fields)
	}
	_, _ = io.WriteString(w, b.String())
}

func (t *table) printAligned(w io.Writer, colour, noHeader bool) {
	width := make([]int, len(t.head))
	for i, h := range t.head {
		if !noHeader {
			width[i] = utf8.RuneCountInString(h)
		}
	}
	for _, r := range t.rows {
		for i, c := range r.cells {
			width[i] = max(width[i], utf8.RuneCountInString(c.text))
		}
	}
	var b strings.Builder
	line := func(row []cell) {
		var l strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c.text))
			text := paint(colour, c.style, c.text)
			switch {
			case t.right[i]:
				l.WriteString(pad + text)
			case i == len(row)-1:
				l.WriteString(text)
			default:
				l.WriteString(text + pad)
			}
			if i < len(row)-1 {
				l.WriteString("  ")
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	if !noHeader {
		head := make([]cell, len(t.head))
		for i, h := range t.head {
			head[i] = cell{h, bold}
		}
		line(head)
	}
	for _, r := range t.rows {
		line(r.cells)
		for _, n := range r.notes {
			b.WriteString("    " + paint(colour, yellow, n) + "\n")
		}
	}
	_, _ = io.WriteString(w, b.String())
}

// printable makes a text from a file or from the cluster harmless on a
// terminal: control characters are shown as \x1b.
func printable(s string) string {
	clean := true
	for _, r := range s {
		if r < 0x20 || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == utf8.RuneError {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	q := strconv.Quote(s)
	q = q[1 : len(q)-1]
	return strings.ReplaceAll(q, `\"`, `"`)
}

// number prints a value with four significant digits, "-" where it is unknown.
func number(v *float64) string {
	if v == nil || math.IsNaN(*v) || math.IsInf(*v, 0) {
		return "-"
	}
	x := *v
	switch ax := math.Abs(x); {
	case x == math.Trunc(x) && ax < 1e15:
		return strconv.FormatFloat(x, 'f', -1, 64)
	case ax >= 1000:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case ax >= 1e-4:
		return strconv.FormatFloat(x, 'f', max(0, 3-int(math.Floor(math.Log10(ax)))), 64)
	default:
		return strconv.FormatFloat(x, 'g', 4, 64)
	}
}

// axisText prints an axis value as it is written in --json, without quotes.
func axisText(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		if v == "" {
			return "-"
		}
		return v
	case json.Number:
		return v.String()
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1e15 {
			return strconv.FormatFloat(v, 'f', -1, 64)
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	default:
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		return string(b)
	}
}

// clock prints a time as Slurm does, in the local zone.
func clock(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02T15:04:05")
}

func optionalClock(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return clock(t)
}

// span prints a duration as Slurm does: [D-]HH:MM:SS, or MM:SS below an hour.
func span(d time.Duration) string {
	s := int64(d.Round(time.Second) / time.Second)
	if s < 0 {
		s = 0
	}
	day, h, m, sec := s/86400, s/3600%24, s/60%60, s%60
	switch {
	case day > 0:
		return fmt.Sprintf("%d-%02d:%02d:%02d", day, h, m, sec)
	case h > 0:
		return fmt.Sprintf("%d:%02d:%02d", h, m, sec)
	default:
		return fmt.Sprintf("%d:%02d", m, sec)
	}
}

// short is the length at which a hash is still told apart by people.
func short(hash string) string {
	if len(hash) > 12 {
		return hash[:12]
	}
	return hash
}
