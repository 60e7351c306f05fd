package store

import (
	"slices"
	"strings"

	"sbench/internal/metrics"
)

// Column is a column that comes from the axes or the metrics table.
type Column struct {
	Name string
	Type string // PostgreSQL's
}

// axisColumns are the columns of every axis, on result and aggregate.
func axisColumns() []Column {
	return nil
}

// metricColumns are the columns of every metric, on result and result_window.
func metricColumns() []Column {
	var columns []Column
	for _, m := range metrics.Table() {
		columns = append(columns, Column{m.Name, "double precision"})
	}
	return columns
}

// TableColumns are the columns that each table gets from the axes and metrics
// tables; 0002_result_columns.sql holds the same.
func TableColumns() map[string][]Column {
	return map[string][]Column{
		"result":        slices.Concat(axisColumns(), metricColumns()),
		"result_window": metricColumns(),
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

// sqlResultsOfSetting reads the valid results of a setting in a sweep with all
// metrics, in the order of metrics.Table.
var sqlResultsOfSetting = `
select r.attempt_id, r.run_id, r.repeat, r.cluster, r.hardware_class, r.nodes, r.started_at, r.ended_at, r.findings, r.metrics_version,
       r.fingerprint_hash, r.null_reasons, a.dir, a.files, r.` + strings.Join(names(metricColumns()), ", r.") + `
  from result r join attempt a on a.id = r.attempt_id
 where r.sweep_id = $1 and r.setting_hash = $2 and r.valid
 order by r.ended_at, r.attempt_id`

// generatedSQL names the statements of this file, for the test that prepares all.
func generatedSQL() map[string]string {
	return map[string]string{"sqlResultsOfSetting": sqlResultsOfSetting}
}
