package bench

import (
	"fmt"
	"io"
	"time"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/runner/loadgen"
)

// Document is the JSON form of a report: one document, null for what is unknown.
type Document struct {
	MetricsVersion string            `json:"metrics_version"`
	StartedAt      time.Time         `json:"started_at"`
	PlanHash       string            `json:"plan_hash"`
	Model          string            `json:"model"`
	TokenSource    string            `json:"token_source"`
	Valid          bool              `json:"valid"`
	Findings       []string          `json:"findings"`
	Stopped        *string           `json:"stopped"`
	Windows        []WindowDocument  `json:"windows"`
	Checks         []result.Check    `json:"checks"`
	Harness        loadgen.Harness   `json:"harness"`
	Units          map[string]string `json:"units"` // of the metrics
}

// WindowDocument is one load point. Times are seconds since StartedAt.
type WindowDocument struct {
	Index       int               `json:"index"`
	TargetRate  *float64          `json:"target_rate_per_s"` // null in a closed loop
	StartS      float64           `json:"start_s"`
	EndS        float64           `json:"end_s"`
	Metrics     result.Metrics    `json:"metrics"`
	NullReasons map[string]string `json:"null_reasons"`
	Findings    []string          `json:"findings"`
}

// Document returns the report's JSON form.
func (r Report) Document() Document {
	d := Document{
		MetricsVersion: result.MetricsVersion, StartedAt: r.StartedAt, PlanHash: r.PlanHash, Model: r.Served.Model,
		TokenSource: r.Served.TokenSource, Valid: r.Valid, Findings: orEmpty(r.Findings), Checks: r.Checks,
		Harness: r.Harness, Units: map[string]string{},
	}
	if r.Stopped != "" {
		d.Stopped = &r.Stopped
	}
	for _, w := range r.Windows {
		doc := WindowDocument{
			Index: w.Index, StartS: float64(w.Start) / 1e9, EndS: float64(w.End) / 1e9,
			Metrics: w.Metrics, NullReasons: w.NullReasons, Findings: orEmpty(w.Findings),
		}
		if w.OfferedRate > 0 {
			doc.TargetRate = &w.OfferedRate
		}
		d.Windows = append(d.Windows, doc)
	}
	for _, m := range metrics.WindowTable() {
		d.Units[m.Name] = m.Unit
	}
	return d
}

func orEmpty(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}

// Base is a request-level quantity.
type Base struct{ Name, Unit string }

// Bases are the request-level quantities in the order of the table.
func Bases() []Base {
	var bases []Base
	for _, m := range metrics.WindowTable() {
		if m.Level == metrics.LevelRequest && (len(bases) == 0 || bases[len(bases)-1].Name != m.Base) {
			bases = append(bases, Base{m.Base, m.Unit})
		}
	}
	return bases
}

// RunMetrics are the run-level metrics of a window that are worth a line: all that
// have a value, but the counts of outcomes that did not occur.
func RunMetrics(w result.Window) []metrics.Metric {
	var shown []metrics.Metric
	for _, m := range metrics.WindowTable() {
		v := w.Metrics[m.Name]
		if m.Level != metrics.LevelRun || v == nil || (*v == 0 && m.Unit == "requests") {
			continue
		}
		shown = append(shown, m)
	}
	return shown
}

// WriteRequests writes the requests as Parquet, with their load points and metrics
// in the footer: what Recompute needs.
func (r Report) WriteRequests(w io.Writer) error {
	load := resultfile.Load{MetricsVersion: result.MetricsVersion, SLO: r.SLO}
	for _, win := range r.Windows {
		load.Windows = append(load.Windows, resultfile.LoadWindow{
			Index: win.Index, OfferedRate: win.OfferedRate, Start: win.Start, End: win.End, Metrics: win.Metrics,
		})
	}
	return resultfile.EncodeLoad(w, result.Attempt{StartedAt: r.StartedAt}, r.Requests, load)
}

// WriteHistograms writes the latencies of each load point as an HdrHistogram log
// (format 1.3); values are in nanoseconds, tags name the quantity.
func (r Report) WriteHistograms(w io.Writer) {
	fmt.Fprintf(w, "#[Histogram log format version 1.3]\n#[StartTime: %.3f (seconds since epoch), %s]\n",
		float64(r.StartedAt.UnixMilli())/1000, r.StartedAt.Format(time.RFC1123))
	fmt.Fprintln(w, `"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"`)
	for _, win := range r.Windows {
		for _, base := range Bases() {
			encoded, ok := win.Histograms[base.Name]
			if !ok {
				continue
			}
			h, err := metrics.DecodeHistogram(encoded)
			if err != nil {
				continue
			}
			fmt.Fprintf(w, "Tag=%s,%.3f,%.3f,%.3f,%s\n", base.Name, float64(win.Start)/1e9, float64(win.End-win.Start)/1e9, float64(h.Max())/1e6, encoded)
		}
	}
}
