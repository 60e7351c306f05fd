package resultfile

import (
	"fmt"
	"io"
	"strings"

	"github.com/parquet-go/parquet-go"

	"sbench/internal/result"
)

// KindOf returns the kind of row that a file of an attempt holds, "" for a file
// that is no Parquet.
func KindOf(name string) string {
	for _, kind := range Kinds() {
		if name == kind+".parquet" {
			return kind
		}
	}
	return ""
}

// Collection writes the rows of many attempts into one file of each kind, with
// the schemas that the files of an attempt have. Every row carries the key of its
// attempt.
type Collection struct {
	flat      map[string]*flatWriter
	requests  *parquet.GenericWriter[requestRow]
	telemetry *parquet.GenericWriter[telemetryRow]
	rows      map[string]int64
}

// NewCollection starts a file of each kind; outputs has one for each of Kinds.
func NewCollection(outputs map[string]io.Writer) *Collection {
	return &Collection{
		flat: map[string]*flatWriter{
			"result":  newFlatWriter(outputs["result"], "result", resultColumns()),
			"window":  newFlatWriter(outputs["window"], "window", windowColumns()),
			"quality": newFlatWriter(outputs["quality"], "quality", qualityColumns()),
		},
		requests:  parquet.NewGenericWriter[requestRow](outputs["requests"], options()...),
		telemetry: parquet.NewGenericWriter[telemetryRow](outputs["telemetry"], options()...),
		rows:      map[string]int64{},
	}
}

// Add appends the rows of an attempt, of which content has the files by their
// kind. They are all read before the first is written: an attempt that cannot be
// read is an error and leaves nothing behind.
func (c *Collection) Add(content map[string][]byte) error {
	flat := map[string][]row{}
	for kind, columns := range map[string][]column{"result": resultColumns(), "window": windowColumns(), "quality": qualityColumns()} {
		if content[kind] == nil {
			continue
		}
		var err error
		if flat[kind], err = decodeRows(content[kind], columns); err != nil {
			return fmt.Errorf("decode %s: %w", kind, err)
		}
	}
	if len(flat["result"]) != 1 {
		return fmt.Errorf("%d results, want one", len(flat["result"]))
	}
	in := reader{row: flat["result"][0]}
	key := KeyOf(in.attempt())
	requests, err := decodeOptional(content["requests"], requestBindings())
	if err != nil {
		return fmt.Errorf("decode requests: %w", err)
	}
	samples, err := decodeOptional(content["telemetry"], telemetryBindings())
	if err != nil {
		return fmt.Errorf("decode telemetry: %w", err)
	}
	for kind, rows := range flat {
		if err := c.flat[kind].write(rows); err != nil {
			return err
		}
		c.rows[kind] += int64(len(rows))
	}
	c.rows["requests"] += int64(len(requests))
	c.rows["telemetry"] += int64(len(samples))
	if err := writeRows(c.requests, len(requests), func(i int) requestRow { return requestRow{key, requests[i]} }); err != nil {
		return err
	}
	return writeRows(c.telemetry, len(samples), func(i int) telemetryRow { return telemetryRow{key, samples[i]} })
}

func decodeOptional[T result.Request | result.Telemetry](content []byte, bindings []binding[T]) ([]T, error) {
	if content == nil {
		return nil, nil
	}
	return decodeContent(content, bindings, nil)
}

// Close ends the files and returns how many rows of each kind there are.
func (c *Collection) Close() (map[string]int64, error) {
	for _, w := range []interface{ Close() error }{c.flat["result"], c.flat["window"], c.flat["quality"], c.requests, c.telemetry} {
		if err := w.Close(); err != nil {
			return nil, fmt.Errorf("encode parquet: %w", err)
		}
	}
	return c.rows, nil
}

// writeRows hands rows over chunk by chunk.
func writeRows[T any](w *parquet.GenericWriter[T], n int, row func(int) T) error {
	rows := make([]T, 0, min(n, chunk))
	for i := range n {
		rows = append(rows, row(i))
		if len(rows) == chunk || i == n-1 {
			if _, err := w.Write(rows); err != nil {
				return fmt.Errorf("encode parquet: %w", err)
			}
			rows = rows[:0]
		}
	}
	return nil
}

// flatWriter writes flat rows.
type flatWriter struct {
	columns []column
	known   map[string]bool
	w       *parquet.GenericWriter[any]
}

func newFlatWriter(w io.Writer, name string, columns []column) *flatWriter {
	all := append(options(), schemaOf(name, columns))
	known := map[string]bool{}
	for _, c := range columns {
		known[c.name] = true
		if c.kind == kindJSON || c.kind == kindBytes {
			all = append(all, parquet.SkipPageBounds(c.name))
		}
	}
	return &flatWriter{columns, known, parquet.NewGenericWriter[any](w, all...)}
}

// write appends rows. A required column without a value, and a value without a
// column, are faults of this package.
func (f *flatWriter) write(rows []row) error {
	for _, r := range rows {
		for name := range r {
			if !f.known[name] {
				return fmt.Errorf("encode parquet: %s has no column", strings.ToValidUTF8(name, "?"))
			}
		}
		values := make(parquet.Row, 0, len(f.columns))
		for i, c := range f.columns {
			value, err := valueOf(c, r[c.name])
			if err != nil {
				return fmt.Errorf("encode parquet: %w", err)
			}
			level := 0
			if c.optional && !value.IsNull() {
				level = 1
			}
			values = append(values, value.Level(0, level, i))
		}
		if _, err := f.w.WriteRows([]parquet.Row{values}); err != nil {
			return fmt.Errorf("encode parquet: %w", err)
		}
	}
	return nil
}

func (f *flatWriter) Close() error { return f.w.Close() }
