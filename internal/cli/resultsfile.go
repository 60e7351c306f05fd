package cli

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"

	"sbench/internal/api"
	"sbench/internal/setting"
)

// wideColumn is one column of --csv and --parquet.
type wideColumn struct {
	name  string
	node  parquet.Node
	value func(api.Result) any // nil, bool, int64, float64 or string
}

// wideColumns are the columns of all rows: identity, axes, completeness, and
// four per metric. Axes keep the type that they have in JSON; one whose values
// are of several types is text.
func wideColumns(r api.Results) []wideColumn {
	cols := []wideColumn{
		{"sweep_id", parquet.Int(64), func(api.Result) any { return r.SweepID }},
		{"setting_hash", parquet.String(), func(s api.Result) any { return s.SettingHash }},
		{"series_hash", parquet.String(), func(s api.Result) any { return s.SeriesHash }},
		{"hardware_class", parquet.String(), func(s api.Result) any { return s.HardwareClass }},
		{"n_valid", parquet.Int(64), func(s api.Result) any { return int64(s.NValid) }},
		{"n_total", parquet.Int(64), func(s api.Result) any { return int64(s.NTotal) }},
		{"is_final", parquet.Leaf(parquet.BooleanType), func(s api.Result) any { return s.IsFinal }},
		{"carried_from_sweep_id", parquet.Int(64), func(s api.Result) any {
			if s.CarriedFrom == nil {
				return nil
			}
			return s.CarriedFrom.SweepID
		}},
		{"n_nodes", parquet.Int(64), func(s api.Result) any { return int64(s.NNodes) }},
		{"mixed", parquet.Leaf(parquet.BooleanType), func(s api.Result) any { return s.Mixed }},
		{"reproducibility", parquet.Leaf(parquet.DoubleType), func(s api.Result) any {
			if s.Reproducibility == nil {
				return nil
			}
			return *s.Reproducibility
		}},
		{"verdicts", parquet.String(), func(s api.Result) any { return strings.Join(s.Verdicts, ";") }},
		{"findings", parquet.String(), func(s api.Result) any { return strings.Join(s.Findings, ";") }},
		{"reasons", parquet.String(), func(s api.Result) any { return strings.Join(s.Reasons, "; ") }},
	}
	axes, metrics := map[string]bool{}, map[string]bool{}
	for _, s := range r.Settings {
		for k := range s.Axes {
			axes[k] = true
		}
		for m := range s.Metrics {
			metrics[m] = true
		}
	}
	taken := map[string]bool{}
	for _, c := range cols {
		taken[c.name] = true
	}
	for _, key := range slices.Sorted(maps.Keys(axes)) {
		c := axisColumn(key, r)
		if !taken[c.name] { // hardware.class is there already
			cols = append(cols, c)
		}
	}
	for _, m := range slices.Sorted(maps.Keys(metrics)) {
		for _, f := range []struct {
			name string
			get  func(api.Metric) *float64
		}{
			{"mean", func(m api.Metric) *float64 { return m.Mean }},
			{"stddev", func(m api.Metric) *float64 { return m.StdDev }},
			{"ci_low", func(m api.Metric) *float64 { return m.CILow }},
			{"ci_high", func(m api.Metric) *float64 { return m.CIHigh }},
		} {
			cols = append(cols, wideColumn{m + "_" + f.name, parquet.Leaf(parquet.DoubleType), func(s api.Result) any {
				if v := f.get(s.Metrics[m]); v != nil {
					return *v
				}
				return nil
			}})
		}
	}
	return cols
}

// axisColumnName is the axis' name in SQL and Parquet; an entry of a map axis
// (engine.args.max-num-seqs) has the map's name before its own.
func axisColumnName(key string) string {
	axis, entry, ok := setting.LookupAxis(key)
	switch {
	case !ok:
		return strings.ReplaceAll(key, ".", "_")
	case entry != "":
		return axis.Column + "_" + entry
	}
	return axis.Column
}

// axisColumn is the column of one axis: int64, double or boolean where all its
// values are, else text.
func axisColumn(key string, r api.Results) wideColumn {
	kinds := map[string]bool{}
	for _, s := range r.Settings {
		switch v := axisValue(s.Axes[key]).(type) {
		case nil:
		case int64, float64, bool:
			kinds[fmt.Sprintf("%T", v)] = true
		default:
			kinds["string"] = true
		}
	}
	c := wideColumn{name: axisColumnName(key), node: parquet.String()}
	convert := func(v any) any {
		if text, ok := v.(string); ok {
			return text
		}
		return axisText(v)
	}
	switch {
	case len(kinds) == 1 && kinds["int64"]:
		c.node, convert = parquet.Int(64), axisValue
	case len(kinds) == 1 && kinds["bool"]:
		c.node, convert = parquet.Leaf(parquet.BooleanType), axisValue
	case len(kinds) > 0 && !kinds["bool"] && !kinds["string"]:
		c.node = parquet.Leaf(parquet.DoubleType)
		convert = func(v any) any {
			if i, ok := axisValue(v).(int64); ok {
				return float64(i)
			}
			return axisValue(v)
		}
	}
	c.value = func(s api.Result) any {
		if s.Axes[key] == nil {
			return nil
		}
		return convert(s.Axes[key])
	}
	return c
}

// axisValue turns a JSON number into int64 or float64.
func axisValue(v any) any {
	n, ok := v.(json.Number)
	if !ok {
		return v
	}
	if i, err := n.Int64(); err == nil {
		return i
	}
	if f, err := n.Float64(); err == nil {
		return f
	}
	return n.String()
}

func writeResultsCSV(w io.Writer, r api.Results) error {
	cols := wideColumns(r)
	out := csv.NewWriter(w)
	record := make([]string, len(cols))
	for i, c := range cols {
		record[i] = c.name
	}
	if err := out.Write(record); err != nil {
		return err
	}
	for _, s := range r.Settings {
		for i, c := range cols {
			record[i] = csvText(c.value(s))
		}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// csvText prints a value; unknown is empty.
func csvText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return ""
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}

// writeResultsParquet writes one row per setting. Every column is optional.
func writeResultsParquet(path string, r api.Results) (err error) {
	cols := wideColumns(r)
	group := parquet.Group{}
	for _, c := range cols {
		group[c.name] = parquet.Compressed(parquet.Optional(c.node), &parquet.Zstd)
	}
	schema := parquet.NewSchema("results", group)
	// A group's leaves are ordered by name, whatever order they were given in.
	index := map[string]int{}
	for i, leaf := range schema.Columns() {
		index[leaf[0]] = i
	}
	// A half-written file would be taken for a whole one: it gets its name last.
	f, err := os.CreateTemp(filepath.Dir(path), ".sbench-*.parquet")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(writeParquetRows(f, schema, index, cols, r), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func writeParquetRows(f *os.File, schema *parquet.Schema, index map[string]int, cols []wideColumn, r api.Results) error {
	w := parquet.NewWriter(f, schema)
	row := make(parquet.Row, len(cols))
	for _, s := range r.Settings {
		for _, c := range cols {
			i := index[c.name]
			row[i] = parquetValue(c.value(s)).Level(0, 0, i)
			if !row[i].IsNull() {
				row[i] = row[i].Level(0, 1, i)
			}
		}
		if _, err := w.WriteRows([]parquet.Row{row}); err != nil {
			return err
		}
	}
	return w.Close()
}

func parquetValue(v any) parquet.Value {
	switch v := v.(type) {
	case bool:
		return parquet.BooleanValue(v)
	case int64:
		return parquet.Int64Value(v)
	case float64:
		return parquet.DoubleValue(v)
	case string:
		return parquet.ByteArrayValue([]byte(v))
	default:
		return parquet.NullValue()
	}
}
