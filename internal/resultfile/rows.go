package resultfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/setting"
)

// EncodeResult writes the one row of a measured attempt.
func EncodeResult(w io.Writer, r result.Result) error {
	out := keyRow(r.Attempt)
	maps.Copy(out, row{
		"sweep": r.Attempt.Sweep, "series_hash": r.Attempt.SeriesHash, "site": r.Attempt.Site,
		"batch_token": r.Attempt.Token, "task_index": int64(r.Attempt.TaskIndex), "step_id": r.Attempt.StepID,
		"nodes":      strings.Join(r.Attempt.Nodes, ","),
		"started_at": r.Attempt.StartedAt.UnixMicro(), "ended_at": r.Attempt.EndedAt.UnixMicro(),
		"valid": r.Valid, "env_verified": r.EnvVerified, "findings": strings.Join(r.Findings, ","),
		"metrics_version": r.MetricsVersion, "plan_hash": r.PlanHash, "quality_hash": r.QualityHash,
		"fingerprint": []byte(orNull(r.Fingerprint)),
	})
	var err error
	if out["checks"], err = marshal(r.Checks); err != nil {
		return fmt.Errorf("encode checks: %w", err)
	}
	for _, a := range axes() {
		if out[a.Column], err = axisValue(a, r.Axes[a.Key]); err != nil {
			return fmt.Errorf("encode axis %s: %w", a.Key, err)
		}
	}
	if err := metricsRow(out, metrics.Table(), r.Metrics, r.NullReasons, r.Histograms); err != nil {
		return err
	}
	return encodeRows(w, "result", resultColumns(), []row{out})
}

// DecodeResult reads it back. Axes hold what setting.Axis.Value gives, except
// that stages, bins and pairs are as encoding/json decodes them.
func DecodeResult(r io.ReaderAt, size int64) (result.Result, error) {
	content, err := readAll(r, size)
	if err != nil {
		return result.Result{}, fmt.Errorf("decode result: %w", err)
	}
	return decodeResult(content, resultColumns(), true)
}

// DecodeResultNumbers is DecodeResult without axes, checks and histograms, which
// the database has from elsewhere or not at all.
func DecodeResultNumbers(content []byte) (result.Result, error) {
	return decodeResult(content, numbersOf(resultColumns()), false)
}

// numbersOf leaves out the columns of axes, checks and histograms.
func numbersOf(columns []column) []column {
	axis := map[string]bool{"checks": true}
	for _, a := range axes() {
		axis[a.Column] = true
	}
	return slices.DeleteFunc(columns, func(c column) bool { return axis[c.name] || strings.HasPrefix(c.name, histogramPrefix) })
}

func decodeResult(content []byte, columns []column, whole bool) (result.Result, error) {
	rows, err := decodeRows(content, columns)
	if err == nil && len(rows) != 1 {
		err = fmt.Errorf("%d rows, want one", len(rows))
	}
	if err != nil {
		return result.Result{}, fmt.Errorf("decode result: %w", err)
	}
	in := reader{row: rows[0]}
	out := result.Result{
		Attempt: in.attempt(), Valid: in.bool("valid"), EnvVerified: in.bool("env_verified"),
		Findings: in.list("findings"), MetricsVersion: in.string("metrics_version"), PlanHash: in.string("plan_hash"),
		QualityHash: in.string("quality_hash"),
		Fingerprint: in.json("fingerprint"),
	}
	if whole {
		in.unmarshal("checks", &out.Checks)
		out.Axes = map[string]any{}
		for _, a := range axes() {
			out.Axes[a.Key] = in.axis(a)
		}
	}
	out.Metrics, out.NullReasons, out.Histograms = in.metrics(metrics.Table())
	if in.err != nil {
		return result.Result{}, fmt.Errorf("decode result: %w", in.err)
	}
	return out, nil
}

// EncodeWindows writes the load points of an attempt.
func EncodeWindows(w io.Writer, a result.Attempt, windows []result.Window) error {
	rows := make([]row, 0, len(windows))
	for _, x := range windows {
		out := keyRow(a)
		maps.Copy(out, row{
			"window_index": int64(x.Index), "window_offered_rate_per_s": x.OfferedRate,
			"window_start_ns": x.Start, "window_end_ns": x.End, "findings": strings.Join(x.Findings, ","),
		})
		if err := metricsRow(out, metrics.WindowTable(), x.Metrics, x.NullReasons, x.Histograms); err != nil {
			return err
		}
		rows = append(rows, out)
	}
	return encodeRows(w, "window", windowColumns(), rows)
}

// DecodeWindows reads them back.
func DecodeWindows(r io.ReaderAt, size int64) ([]result.Window, error) {
	content, err := readAll(r, size)
	if err != nil {
		return nil, fmt.Errorf("decode windows: %w", err)
	}
	return decodeWindows(content, windowColumns())
}

// DecodeWindowNumbers is DecodeWindows without the histograms.
func DecodeWindowNumbers(content []byte) ([]result.Window, error) {
	return decodeWindows(content, numbersOf(windowColumns()))
}

func decodeWindows(content []byte, columns []column) ([]result.Window, error) {
	rows, err := decodeRows(content, columns)
	if err != nil {
		return nil, fmt.Errorf("decode windows: %w", err)
	}
	var windows []result.Window
	for _, row := range rows {
		in := reader{row: row}
		x := result.Window{
			Index: int(in.int("window_index")), OfferedRate: in.float("window_offered_rate_per_s"),
			Start: in.int("window_start_ns"), End: in.int("window_end_ns"), Findings: in.list("findings"),
		}
		x.Metrics, x.NullReasons, x.Histograms = in.metrics(metrics.WindowTable())
		if in.err != nil {
			return nil, fmt.Errorf("decode windows: %w", in.err)
		}
		windows = append(windows, x)
	}
	return windows, nil
}

// EncodeQuality writes the items of the evaluation after an attempt's measurement.
// hash says what their scores are of.
func EncodeQuality(w io.Writer, a result.Attempt, hash string, items []result.QualityItem) error {
	rows := make([]row, len(items))
	for i, x := range items {
		rows[i] = keyRow(a)
		maps.Copy(rows[i], row{
			"quality_hash": hash, "item": int64(x.Index), "item_id": x.ID, "reason": x.Reason, "answer": x.Answer, "finish_reason": x.FinishReason,
		})
		if x.Score != nil {
			rows[i]["score"] = *x.Score
		}
		if x.OutputTokens != nil {
			rows[i]["output_tokens"] = *x.OutputTokens
		}
	}
	return encodeRows(w, "quality", qualityColumns(), rows)
}

// DecodeQuality reads them back.
func DecodeQuality(content []byte) ([]result.QualityItem, error) {
	rows, err := decodeRows(content, qualityColumns())
	if err != nil {
		return nil, fmt.Errorf("decode quality: %w", err)
	}
	items := make([]result.QualityItem, len(rows))
	for i, row := range rows {
		in := reader{row: row}
		items[i] = result.QualityItem{
			Index: int(in.int("item")), ID: in.string("item_id"), Reason: in.string("reason"), Answer: in.string("answer"),
			FinishReason: in.string("finish_reason"),
		}
		if v, ok := row["score"].(float64); ok {
			items[i].Score = &v
		}
		if v, ok := row["output_tokens"].(int64); ok {
			items[i].OutputTokens = &v
		}
	}
	return items, nil
}

func keyRow(a result.Attempt) row {
	k := KeyOf(a)
	return row{
		"run_id": k.RunID, "repeat": int64(k.Repeat), "setting_hash": k.SettingHash, "cluster": k.Cluster,
		"job_id_raw": k.JobIDRaw, "restart_count": int64(k.RestartCount), "hardware_class": k.HardwareClass,
	}
}

func metricsRow(out row, table []metrics.Metric, values result.Metrics, reasons map[string]string, hdr map[string][]byte) error {
	known := 0
	for _, m := range table {
		v, ok := values[m.Name]
		if ok {
			known++
		}
		if v != nil {
			out[m.Name] = *v
		}
	}
	if known != len(values) {
		return errors.New("encode metrics: one is not in the table")
	}
	kept := 0
	for _, name := range histograms() {
		if h := hdr[name]; h != nil {
			out[histogramPrefix+name] = h
			kept++
		}
	}
	if kept != len(hdr) {
		return errors.New("encode histograms: one is of no known quantity")
	}
	if reasons == nil {
		reasons = map[string]string{}
	}
	var err error
	if out["null_reasons"], err = marshal(reasons); err != nil {
		return fmt.Errorf("encode null reasons: %w", err)
	}
	return nil
}

// axisValue is the stored form of an axis: as it is, or JSON.
func axisValue(a setting.Axis, v any) (any, error) {
	if v == nil || axisKind(a) != kindJSON {
		return v, nil
	}
	return marshal(v)
}

func marshal(v any) ([]byte, error) { return json.Marshal(v) }

func orNull(b json.RawMessage) json.RawMessage {
	if len(b) == 0 {
		return json.RawMessage("null")
	}
	return b
}

// reader reads typed values of a row and keeps the first error. What the row
// lacks is the zero value.
type reader struct {
	row row
	err error
}

func (r *reader) string(name string) string { s, _ := r.row[name].(string); return s }
func (r *reader) int(name string) int64     { n, _ := r.row[name].(int64); return n }
func (r *reader) float(name string) float64 { f, _ := r.row[name].(float64); return f }
func (r *reader) bool(name string) bool     { b, _ := r.row[name].(bool); return b }
func (r *reader) time(name string) time.Time {
	return time.UnixMicro(r.int(name)).UTC()
}

func (r *reader) json(name string) json.RawMessage { b, _ := r.row[name].([]byte); return b }

func (r *reader) list(name string) []string {
	s := r.string(name)
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func (r *reader) unmarshal(name string, to any) {
	b := r.json(name)
	if len(b) == 0 || r.err != nil {
		return
	}
	if err := json.Unmarshal(b, to); err != nil {
		r.err = fmt.Errorf("column %s: %w", name, err)
	}
}

func (r *reader) attempt() result.Attempt {
	return result.Attempt{
		RunID: r.int("run_id"), Sweep: r.int("sweep"), SettingHash: r.string("setting_hash"), SeriesHash: r.string("series_hash"),
		Repeat: int(r.int("repeat")), Token: r.string("batch_token"), TaskIndex: int(r.int("task_index")),
		Site: r.string("site"), Cluster: r.string("cluster"), JobIDRaw: r.int("job_id_raw"), RestartCount: int(r.int("restart_count")),
		StepID: r.string("step_id"), Nodes: r.list("nodes"), HardwareClass: r.string("hardware_class"),
		StartedAt: r.time("started_at"), EndedAt: r.time("ended_at"),
	}
}

func (r *reader) axis(a setting.Axis) any {
	v := r.row[a.Column]
	if v == nil || axisKind(a) != kindJSON {
		return v
	}
	switch a.Type {
	case setting.TypeMap:
		var m map[string]string
		r.unmarshal(a.Column, &m)
		return m
	case setting.TypeStrings:
		var s []string
		r.unmarshal(a.Column, &s)
		return s
	case setting.TypeRates:
		var f []float64
		r.unmarshal(a.Column, &f)
		return f
	default:
		var list []any
		r.unmarshal(a.Column, &list)
		return list
	}
}

func (r *reader) metrics(table []metrics.Metric) (result.Metrics, map[string]string, map[string][]byte) {
	values := result.Metrics{}
	for _, m := range table {
		values[m.Name] = nil
		if f, ok := r.row[m.Name].(float64); ok {
			values[m.Name] = &f
		}
	}
	reasons := map[string]string{}
	r.unmarshal("null_reasons", &reasons)
	hdr := map[string][]byte{}
	for _, name := range histograms() {
		if b, ok := r.row[histogramPrefix+name].([]byte); ok {
			hdr[name] = b
		}
	}
	return values, reasons, hdr
}
