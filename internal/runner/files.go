package runner

import (
	"io"
	"maps"

	"sbench/internal/result"
	"sbench/internal/resultfile"
)

// writeFiles writes the four kinds of rows of a measured attempt.
func (a *attempt) writeFiles() error {
	m, identity := a.measured, a.manifest.Attempt
	a.writeItems()
	row, err := a.resultRow()
	if err != nil {
		return err
	}
	files := []struct {
		name  string
		write func(io.Writer) error
	}{
		{result.RequestsFile, func(w io.Writer) error {
			return resultfile.EncodeRequests(w, identity, m.recording.Requests)
		}},
		{result.TelemetryFile, func(w io.Writer) error { return resultfile.EncodeTelemetry(w, identity, a.telemetry) }},
		{result.WindowFile, func(w io.Writer) error { return resultfile.EncodeWindows(w, identity, m.windows) }},
		{result.ResultFile, func(w io.Writer) error { return resultfile.EncodeResult(w, row) }},
	}
	for _, f := range files {
		if err := a.writer.WriteFile(f.name, f.write); err != nil {
			return err
		}
	}
	return nil
}

// writeItems writes the items of the evaluation. Where there is no room for them,
// the evaluation is given up, and says so, and the measurement stands.
func (a *attempt) writeItems() {
	e := a.evaluated
	if e == nil || len(e.items) == 0 {
		return
	}
	err := a.writer.WriteFile(result.QualityFile, func(w io.Writer) error {
		return resultfile.EncodeQuality(w, a.manifest.Attempt, e.hash, e.items)
	})
	if err != nil {
		a.log.Error("write the items of the evaluation", "error", err)
		_ = a.writer.Drop(result.QualityFile)
		e.report = result.Quality{
			Definition: e.hash, Method: e.report.Method, Seconds: e.report.Seconds, Reason: "the items could not be written: " + err.Error(),
		}
	}
}

// resultRow is the attempt's row.
func (a *attempt) resultRow() (result.Result, error) {
	m := a.measured
	fp, err := a.fingerprintJSON()
	if err != nil {
		return result.Result{}, err
	}
	row := result.Result{
		Attempt: a.manifest.Attempt, Valid: a.manifest.Valid, EnvVerified: a.manifest.EnvVerified,
		Findings: m.findings, MetricsVersion: result.MetricsVersion, PlanHash: m.recording.PlanHash,
		Axes: a.setting.AxisValues(), Checks: a.manifest.Checks, Fingerprint: fp,
	}
	m.addTo(&row)
	if a.evaluated != nil {
		a.evaluated.addTo(&row)
	}
	return row, nil
}

// addTo puts the measurement's numbers into the attempt's row. Where there are
// several load points, no number of one of them stands for all: the window rows
// have them.
func (m *measurement) addTo(row *result.Result) {
	row.Metrics, row.NullReasons = result.Metrics{}, map[string]string{}
	if len(m.windows) == 1 {
		maps.Copy(row.Metrics, m.windows[0].Metrics)
		maps.Copy(row.NullReasons, m.windows[0].NullReasons)
		row.Histograms = m.windows[0].Histograms
		return
	}
	for _, w := range m.windows[:min(1, len(m.windows))] {
		for name := range w.Metrics {
			row.Metrics[name] = nil
			row.NullReasons[name] = "the attempt has several load points: see its windows"
		}
	}
}
