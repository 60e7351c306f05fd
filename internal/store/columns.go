package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sbench/internal/metrics"
	"sbench/internal/setting"
)

// Column is a column that comes from the axes or the metrics table.
type Column struct {
	Name string
	Type string // PostgreSQL's
}

// classAxis has no column of its own: rows carry the class of the site.
const classAxis = "hardware.class"

// axisColumns are the columns of every axis, on result and aggregate.
func axisColumns() []Column {
	var columns []Column
	for _, a := range setting.Axes() {
		if a.Key != classAxis {
			columns = append(columns, Column{a.Column, sqlType(a.Type.Storage())})
		}
	}
	return columns
}

func sqlType(s setting.Storage) string {
	switch s {
	case setting.StoreInt:
		return "bigint"
	case setting.StoreFloat:
		return "double precision"
	case setting.StoreBool:
		return "boolean"
	case setting.StoreJSON:
		return "jsonb"
	default:
		return "text"
	}
}

// axisRow holds the values of axisColumns; null where an axis does not apply.
func axisRow(s *setting.Setting) ([]any, error) {
	var row []any
	for _, a := range setting.Axes() {
		if a.Key == classAxis {
			continue
		}
		v := a.Value(s)
		if v != nil && a.Type.Storage() == setting.StoreJSON {
			text, err := json.Marshal(v)
			if err != nil {
				return nil, fmt.Errorf("encode axis %s: %w", a.Key, err)
			}
			v = text
		}
		row = append(row, v)
	}
	return row, nil
}

// metricColumns are the columns of every metric, on result.
func metricColumns() []Column { return columnsOfMetrics(metrics.Table()) }

// windowMetricColumns are those on result_window.
func windowMetricColumns() []Column { return columnsOfMetrics(metrics.WindowTable()) }

func columnsOfMetrics(table []metrics.Metric) []Column {
	var columns []Column
	for _, m := range table {
		columns = append(columns, Column{m.Name, "double precision"})
	}
	return columns
}

// TableColumns are the columns that each table gets from the axes and metrics
// tables; 0002_result_columns.sql holds the same.
func TableColumns() map[string][]Column {
	return map[string][]Column{
		"result":        slices.Concat(axisColumns(), metricColumns()),
		"result_window": windowMetricColumns(),
		"aggregate":     axisColumns(),
	}
}

func names(columns []Column) []string {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = c.Name
	}
	return list
}

// resultColumns and windowColumns are the order in which rows are copied.
var (
	resultColumns = slices.Concat([]string{
		"attempt_id", "run_id", "sweep_id", "setting_hash", "series_hash", "repeat", "site", "cluster", "hardware_class",
		"nodes", "started_at", "ended_at", "valid", "env_verified", "findings", "metrics_version",
		"plan_hash", "fingerprint_hash", "fingerprint", "null_reasons", "quality_hash",
	}, names(axisColumns()), names(metricColumns()))
	windowColumns = slices.Concat([]string{
		"attempt_id", "window_index", "hardware_class", "offered_rate_per_s", "start_ns", "end_ns", "findings", "null_reasons",
	}, names(windowMetricColumns()))
)

// sqlResultColumns reads valid results with all metrics, in the order of
// metrics.Table.
var sqlResultColumns = `
select r.sweep_id, r.setting_hash, r.attempt_id, r.run_id, r.repeat, r.cluster, r.hardware_class, r.nodes, r.started_at, r.ended_at, r.findings,
       r.metrics_version, r.fingerprint_hash, r.null_reasons, a.dir, a.files, b.uid, r.` + strings.Join(names(metricColumns()), ", r.") + `
  from result r
  join attempt a on a.id = r.attempt_id
  join batch b on b.token = a.token
`

var (
	sqlResultsOfSettings = sqlResultColumns + ` join unnest($1::bigint[], $2::text[]) as k (sweep_id, setting_hash)
    on k.sweep_id = r.sweep_id and k.setting_hash = r.setting_hash
 where r.valid order by r.ended_at, r.attempt_id`
	sqlResultsUnsettled = sqlResultColumns + ` join sweep_setting ss on ss.sweep_id = r.sweep_id and ss.setting_hash = r.setting_hash
 where r.valid and r.sweep_id = $1 and not ss.settled order by r.ended_at, r.attempt_id`
)

// generatedSQL names the statements of this file, for the test that prepares all.
func generatedSQL() map[string]string {
	return map[string]string{
		"sqlMeasured": sqlMeasured, "sqlHistory": sqlHistory, "sqlResultColumns": sqlResultColumns, "sqlResultsOfSettings": sqlResultsOfSettings, "sqlResultsUnsettled": sqlResultsUnsettled,
	}
}
