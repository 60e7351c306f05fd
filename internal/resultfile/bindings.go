package resultfile

import (
	"errors"
	"fmt"
	"io"
	"unsafe"

	"sbench/internal/result"
)

// columnFile is a file in memory that is read column by column.
type columnFile struct {
	footer
	content []byte
	budget  *budget
	buffer  []byte // of the page that was read last
	index   map[string]int
}

func openColumns(content []byte) (*columnFile, error) {
	f := &columnFile{content: content, budget: budgetOf(int64(len(content)))}
	var err error
	if f.footer, err = parseFooter(content); err != nil {
		return nil, err
	}
	f.index = make(map[string]int, len(f.leaves))
	for i, l := range f.leaves {
		if _, twice := f.index[l.path]; twice {
			return nil, fmt.Errorf("two columns %.60q: %w", l.path, errMetadata)
		}
		f.index[l.path] = i
	}
	return f, nil
}

// leaf returns the place of a column, -1 where there is none.
func (f *columnFile) leaf(path string) int {
	if i, ok := f.index[path]; ok {
		return i
	}
	return -1
}

// readAll reads a file of which the caller has bounded the size.
func readAll(r io.ReaderAt, size int64) ([]byte, error) {
	content := make([]byte, size)
	if n, err := r.ReadAt(content, 0); err != nil && (!errors.Is(err, io.EOF) || int64(n) < size) {
		return nil, err
	}
	return content, nil
}

// binding ties a column to a field of T.
type binding[T any] struct {
	name     string // with dots
	kind     physical
	optional bool // the file may lack the column
	maxDef   uint8
	maxRep   uint8
	// set fills rows from a column that was checked.
	set func(rows []T, v *values) error
}

// decode reads the columns that are bound, or those of them that want, into rows.
func decode[T any](r io.ReaderAt, size int64, bindings []binding[T], want func(string) bool) ([]T, error) {
	content, err := readAll(r, size)
	if err != nil {
		return nil, err
	}
	return decodeContent(content, bindings, want)
}

func decodeContent[T any](content []byte, bindings []binding[T], want func(string) bool) ([]T, error) {
	f, err := openColumns(content)
	if err != nil {
		return nil, err
	}
	var zero T
	if err := f.budget.take(f.rows * int64(unsafe.Sizeof(zero))); err != nil {
		return nil, err
	}
	rows := make([]T, f.rows)
	for _, b := range bindings {
		i := f.leaf(b.name)
		switch {
		case i < 0 && b.optional:
			continue
		case i < 0:
			return nil, fmt.Errorf("column %s is missing", b.name)
		}
		if l := f.leaves[i]; l.kind != b.kind || l.maxDef != b.maxDef || l.maxRep != b.maxRep {
			return nil, fmt.Errorf("column %s is of another type", b.name)
		}
		if want != nil && !want(b.name) {
			continue
		}
		rest := rows
		for _, g := range f.groups {
			v, err := f.column(g, i)
			if err != nil {
				return nil, err
			}
			if err := b.set(rest[:g.rows], &v); err != nil {
				return nil, fmt.Errorf("column %s: %w", b.name, err)
			}
			rest = rest[g.rows:]
		}
	}
	return rows, nil
}

type integer interface{ ~int32 | ~int64 }

func kindOf[N integer]() physical {
	var n N
	if unsafe.Sizeof(n) == 4 {
		return physicalInt32
	}
	return physicalInt64
}

func bindInt[T any, N integer](name string, field func(*T) *N) binding[T] {
	return binding[T]{name: name, kind: kindOf[N](), set: func(rows []T, v *values) error {
		for i := range rows {
			*field(&rows[i]) = N(v.ints[i])
		}
		return nil
	}}
}

func bindOptionalInt[T any, N integer](name string, field func(*T) **N) binding[T] {
	return binding[T]{name: name, kind: kindOf[N](), optional: true, maxDef: 1, set: func(rows []T, v *values) error {
		all := make([]N, len(v.ints))
		next := 0
		for i := range rows {
			if v.def[i] == 1 {
				all[next] = N(v.ints[next])
				*field(&rows[i]) = &all[next]
				next++
			}
		}
		return nil
	}}
}

func bindOptionalFloat[T any](name string, field func(*T) **float64) binding[T] {
	return binding[T]{name: name, kind: physicalDouble, optional: true, maxDef: 1, set: func(rows []T, v *values) error {
		next := 0
		for i := range rows {
			if v.def[i] == 1 {
				*field(&rows[i]) = &v.floats[next]
				next++
			}
		}
		return nil
	}}
}

func bindBool[T any](name string, field func(*T) *bool) binding[T] {
	return binding[T]{name: name, kind: physicalBool, set: func(rows []T, v *values) error {
		for i := range rows {
			*field(&rows[i]) = v.bools[i]
		}
		return nil
	}}
}

func bindText[T any, S ~string](name string, field func(*T) *S) binding[T] {
	return binding[T]{name: name, kind: physicalBytes, set: func(rows []T, v *values) error {
		for i := range rows {
			*field(&rows[i]) = S(v.texts[i])
		}
		return nil
	}}
}

// bindList ties a list; the lists of all rows share one array.
func bindList[T any, N integer](name string, field func(*T) *[]N) binding[T] {
	return binding[T]{name: name, kind: kindOf[N](), maxDef: 1, maxRep: 1, set: func(rows []T, v *values) error {
		all := make([]N, len(v.ints))
		for i, n := range v.ints {
			all[i] = N(n)
		}
		row, next := -1, 0
		for start := 0; start < len(v.rep); {
			end := start + 1
			for end < len(v.rep) && v.rep[end] != 0 {
				end++
			}
			row++
			if v.rep[start] != 0 || row == len(rows) {
				return errPage
			}
			first := next
			for _, d := range v.def[start:end] {
				next += int(d)
			}
			if next != first && next-first != end-start {
				return errPage // a list is empty, or all of it is there
			}
			if next > first {
				*field(&rows[row]) = all[first:next:next]
			}
			start = end
		}
		if row != len(rows)-1 {
			return errPage
		}
		return nil
	}}
}

const (
	eventTimes  = "event_times.list.element"
	eventBytes  = "event_bytes.list.element"
	eventTokens = "event_tokens.list.element"
)

// requestBindings are the columns of result.Request.
func requestBindings() []binding[result.Request] {
	type request = result.Request
	return []binding[request]{
		bindInt("index", func(r *request) *int32 { return &r.Index }),
		bindInt("window", func(r *request) *int32 { return &r.Window }),
		bindText("phase", func(r *request) *result.Phase { return &r.Phase }),
		bindText("outcome", func(r *request) *result.Outcome { return &r.Outcome }),
		bindText("detail", func(r *request) *string { return &r.Detail }),
		bindInt("session", func(r *request) *int32 { return &r.Session }),
		bindInt("turn", func(r *request) *int32 { return &r.Turn }),
		bindInt("prefix_group", func(r *request) *int32 { return &r.Group }),
		bindBool("reused_conn", func(r *request) *bool { return &r.ReusedConn }),
		bindBool("resent", func(r *request) *bool { return &r.Resent }),
		bindBool("held", func(r *request) *bool { return &r.Held }),
		bindInt("t_intended", func(r *request) *int64 { return &r.TIntended }),
		bindOptionalInt("t_dispatch", func(r *request) **int64 { return &r.TDispatch }),
		bindOptionalInt("t_conn", func(r *request) **int64 { return &r.TConn }),
		bindOptionalInt("t_written", func(r *request) **int64 { return &r.TWritten }),
		bindOptionalInt("t_headers", func(r *request) **int64 { return &r.THeaders }),
		bindOptionalInt("t_byte1", func(r *request) **int64 { return &r.TByte1 }),
		bindOptionalInt("t_chunk1", func(r *request) **int64 { return &r.TChunk1 }),
		bindOptionalInt("t_tok1", func(r *request) **int64 { return &r.TTok1 }),
		bindOptionalInt("t_content1", func(r *request) **int64 { return &r.TContent1 }),
		bindOptionalInt("t_tokn", func(r *request) **int64 { return &r.TTokN }),
		bindOptionalInt("t_usage", func(r *request) **int64 { return &r.TUsage }),
		bindOptionalInt("t_done", func(r *request) **int64 { return &r.TDone }),
		bindOptionalInt("t_end", func(r *request) **int64 { return &r.TEnd }),
		bindInt("http_status", func(r *request) *int32 { return &r.HTTPStatus }),
		bindInt("input_tokens_planned", func(r *request) *int32 { return &r.InputPlanned }),
		bindInt("output_tokens_planned", func(r *request) *int32 { return &r.OutputPlanned }),
		bindOptionalInt("input_tokens", func(r *request) **int32 { return &r.InputTokens }),
		bindOptionalInt("output_tokens", func(r *request) **int32 { return &r.OutputTokens }),
		bindOptionalInt("tokens_first_event", func(r *request) **int32 { return &r.TokensFirst }),
		bindOptionalInt("cached_tokens", func(r *request) **int32 { return &r.CachedTokens }),
		bindOptionalInt("reasoning_tokens", func(r *request) **int32 { return &r.ReasoningTokens }),
		bindText("token_source", func(r *request) *string { return &r.TokenSource }),
		bindText("finish_reason", func(r *request) *string { return &r.FinishReason }),
		bindInt("bytes", func(r *request) *int64 { return &r.Bytes }),
		bindList(eventTimes, func(r *request) *[]int64 { return &r.EventTimes }),
		bindList(eventBytes, func(r *request) *[]int32 { return &r.EventBytes }),
		bindList(eventTokens, func(r *request) *[]int32 { return &r.EventTokens }),
	}
}

// telemetryBindings are the columns of result.Telemetry.
func telemetryBindings() []binding[result.Telemetry] {
	type sample = result.Telemetry
	return []binding[sample]{
		bindInt("t", func(s *sample) *int64 { return &s.T }),
		bindText("source", func(s *sample) *string { return &s.Source }),
		bindText("name", func(s *sample) *string { return &s.Name }),
		bindOptionalFloat("value", func(s *sample) **float64 { return &s.Value }),
	}
}
