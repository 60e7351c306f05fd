package runner

import (
	"io"

	"sbench/internal/result"
	"sbench/internal/resultfile"
)

// writeFiles writes the four kinds of rows of a measured attempt.
func (a *attempt) writeFiles() error {
	m, identity := a.measured, a.manifest.Attempt
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

// resultRow is the attempt's row. Where there are several load points, no number
// of one of them stands for all: the window rows have them.
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
	if len(m.windows) == 1 {
		row.Metrics, row.NullReasons, row.Histograms = m.windows[0].Metrics, m.windows[0].NullReasons, m.windows[0].Histograms
		return row, nil
	}
	row.Metrics, row.NullReasons = result.Metrics{}, map[string]string{}
	for _, w := range m.windows[:min(1, len(m.windows))] {
		for name := range w.Metrics {
			row.Metrics[name] = nil
			row.NullReasons[name] = "the attempt has several load points: see its windows"
		}
	}
	return row, nil
}
