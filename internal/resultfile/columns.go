package resultfile

import (
	"fmt"
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"

	"sbench/internal/metrics"
	"sbench/internal/setting"
)

// kind is how a column is stored.
type kind int

const (
	kindString kind = iota
	kindInt
	kindFloat
	kindBool
	kindJSON
	kindBytes
	kindTime // microseconds, UTC
)

// column is one leaf of a flat row.
type column struct {
	name     string
	kind     kind
	optional bool
}

func (c column) node() parquet.Node {
	var n parquet.Node
	switch c.kind {
	case kindInt:
		n = parquet.Int(64)
	case kindFloat:
		n = parquet.Leaf(parquet.DoubleType)
	case kindBool:
		n = parquet.Leaf(parquet.BooleanType)
	case kindJSON:
		n = parquet.JSON()
	case kindBytes:
		n = parquet.Leaf(parquet.ByteArrayType)
	case kindTime:
		n = parquet.Timestamp(parquet.Microsecond)
	case kindString:
		n = parquet.String()
	}
	if c.optional {
		n = parquet.Optional(n)
	}
	return n
}

func keyColumns() []column {
	return []column{
		{name: "run_id", kind: kindInt},
		{name: "repeat", kind: kindInt},
		{name: "setting_hash"},
		{name: "cluster"},
		{name: "job_id_raw", kind: kindInt},
		{name: "restart_count", kind: kindInt},
		{name: "hardware_class"},
	}
}

// axisColumns are the axes of a setting. An axis whose column the key has
// already is left out: hardware_class is what the site is, not what the sweep
// asked it to be.
func axisColumns() []column {
	var columns []column
	for _, a := range axes() {
		columns = append(columns, column{name: a.Column, kind: axisKind(a), optional: true})
	}
	return columns
}

func axes() []setting.Axis {
	return slices.DeleteFunc(setting.Axes(), func(a setting.Axis) bool {
		return slices.ContainsFunc(keyColumns(), func(c column) bool { return c.name == a.Column })
	})
}

func axisKind(a setting.Axis) kind {
	switch a.Type.Storage() {
	case setting.StoreInt:
		return kindInt
	case setting.StoreFloat:
		return kindFloat
	case setting.StoreBool:
		return kindBool
	case setting.StoreJSON:
		return kindJSON
	case setting.StoreString:
	}
	return kindString
}

// metricColumns are the metrics of a table, and the histograms of what they
// summarise.
func metricColumns(table []metrics.Metric) []column {
	var columns []column
	for _, m := range table {
		columns = append(columns, column{name: m.Name, kind: kindFloat, optional: true})
	}
	columns = append(columns, column{name: "null_reasons", kind: kindJSON})
	for _, name := range histograms() {
		columns = append(columns, column{name: histogramPrefix + name, kind: kindBytes, optional: true})
	}
	return columns
}

const histogramPrefix = "hdr_"

// histograms lists what histograms are kept of: the quantities of one request.
func histograms() []string {
	var names []string
	for _, m := range metrics.Table() {
		if m.Base != "" && !slices.Contains(names, m.Base) {
			names = append(names, m.Base)
		}
	}
	return names
}

func resultColumns() []column {
	return slices.Concat(keyColumns(), []column{
		{name: "sweep", kind: kindInt},
		{name: "series_hash"},
		{name: "site"},
		{name: "batch_token"},
		{name: "task_index", kind: kindInt},
		{name: "step_id"},
		{name: "nodes"}, // host names, separated by commas
		{name: "started_at", kind: kindTime},
		{name: "ended_at", kind: kindTime},
		{name: "valid", kind: kindBool},
		{name: "env_verified", kind: kindBool},
		{name: "findings"}, // names, separated by commas
		{name: "metrics_version"},
		{name: "plan_hash"},
		{name: "quality_hash"}, // what the quality numbers are of; "" where there are none
	}, axisColumns(), metricColumns(metrics.Table()), []column{
		{name: "checks", kind: kindJSON},
		{name: "fingerprint", kind: kindJSON},
	})
}

func windowColumns() []column {
	return slices.Concat(keyColumns(), []column{
		{name: "window_index", kind: kindInt},
		{name: "window_offered_rate_per_s", kind: kindFloat},
		{name: "window_start_ns", kind: kindInt},
		{name: "window_end_ns", kind: kindInt},
		{name: "findings"},
	}, metricColumns(metrics.WindowTable()))
}

// qualityColumns are those of the items of an evaluation.
func qualityColumns() []column {
	return slices.Concat(keyColumns(), []column{
		{name: "quality_hash"},
		{name: "item", kind: kindInt},
		{name: "item_id"},
		{name: "score", kind: kindFloat, optional: true},
		{name: "reason"},
		{name: "answer"},
		{name: "finish_reason"},
		{name: "output_tokens", kind: kindInt, optional: true},
	})
}

// group is a parquet group whose fields keep their order.
type group struct {
	parquet.Node
	fields []parquet.Field
}

func (g group) Fields() []parquet.Field { return g.fields }

func schemaOf(name string, columns []column) *parquet.Schema {
	nodes := parquet.Group{}
	for _, c := range columns {
		if nodes[c.name] != nil {
			panic("two parquet columns of the name " + c.name)
		}
		nodes[c.name] = c.node()
	}
	g := group{Node: nodes}
	byName := map[string]parquet.Field{}
	for _, f := range nodes.Fields() {
		byName[f.Name()] = f
	}
	for _, c := range columns {
		g.fields = append(g.fields, byName[c.name])
	}
	return parquet.NewSchema(name, g)
}

// row maps a column's name to its value: string, int64, float64, bool, []byte, or
// nil.
type row map[string]any

// encodeRows writes a file of flat rows.
func encodeRows(w io.Writer, name string, columns []column, rows []row) error {
	f := newFlatWriter(w, name, columns)
	if err := f.write(rows); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("encode parquet: %w", err)
	}
	return nil
}

func valueOf(c column, v any) (parquet.Value, error) {
	ok := false
	switch x := v.(type) {
	case nil:
		if !c.optional {
			return parquet.Value{}, fmt.Errorf("column %s has no value", c.name)
		}
		return parquet.NullValue(), nil
	case string:
		ok = c.kind == kindString
		v = []byte(x)
	case int64:
		ok = c.kind == kindInt || c.kind == kindTime
	case float64:
		ok = c.kind == kindFloat
	case bool:
		ok = c.kind == kindBool
	case []byte:
		ok = c.kind == kindBytes || c.kind == kindJSON
	}
	if !ok {
		return parquet.Value{}, fmt.Errorf("column %s cannot hold a %T", c.name, v)
	}
	return parquet.ValueOf(v), nil
}

// decodeRows reads flat rows, of the columns that the file has. A file of rows of
// another kind is an error.
func decodeRows(content []byte, columns []column) ([]row, error) {
	f, err := openColumns(content)
	if err != nil {
		return nil, err
	}
	for _, c := range keyColumns() {
		if f.leaf(c.name) < 0 {
			return nil, fmt.Errorf("column %s is missing", c.name)
		}
	}
	if err := f.budget.take(f.rows * int64(len(columns)) * flatValue); err != nil {
		return nil, err
	}
	rows := make([]row, f.rows)
	for i := range rows {
		rows[i] = make(row, len(columns))
	}
	for _, c := range columns {
		at := f.leaf(c.name)
		if at < 0 {
			continue
		}
		if l := f.leaves[at]; l.maxRep > 0 || l.maxDef > 1 || l.kind != c.physical() {
			return nil, fmt.Errorf("column %s is not of the kind it should be", c.name)
		}
		rest := rows
		for _, g := range f.groups {
			v, err := f.column(g, at)
			if err != nil {
				return nil, err
			}
			c.fill(rest[:g.rows], &v)
			rest = rest[g.rows:]
		}
	}
	return rows, nil
}

// flatValue is what a value of a flat row takes in memory, roughly, in bytes.
const flatValue = 64

func (c column) physical() physical {
	switch c.kind {
	case kindInt, kindTime:
		return physicalInt64
	case kindFloat:
		return physicalDouble
	case kindBool:
		return physicalBool
	case kindString, kindJSON, kindBytes:
	}
	return physicalBytes
}

// fill gives the rows of a group their values of a column.
func (c column) fill(rows []row, v *values) {
	next := 0
	for i := range rows {
		if v.def != nil && v.def[i] == 0 {
			continue
		}
		switch c.kind {
		case kindInt, kindTime:
			rows[i][c.name] = v.ints[next]
		case kindFloat:
			rows[i][c.name] = v.floats[next]
		case kindBool:
			rows[i][c.name] = v.bools[next]
		case kindJSON, kindBytes:
			rows[i][c.name] = []byte(v.texts[next])
		case kindString:
			rows[i][c.name] = v.texts[next]
		}
		next++
	}
}
