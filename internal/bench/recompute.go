package bench

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/seal"
)

// Stored is a measurement that was written to files: its rows, and what was
// computed from them then.
type Stored struct {
	Name     string
	Version  string // of the metrics then; "" where nothing says
	Attempt  result.Attempt
	Requests []result.Request
	Windows  []result.Window
	SLO      metrics.SLO // nil where the files do not say
}

// ReadStored reads the folder of a sealed attempt, or a file of requests as sbench
// bench --parquet writes it. A folder is read only as far as its manifest vouches
// for it.
func ReadStored(path string) (Stored, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Stored{}, err
	}
	if info.IsDir() {
		return readAttempt(path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return Stored{}, err
	}
	r := bytes.NewReader(b)
	load, err := resultfile.DecodeLoad(r, r.Size())
	if err != nil {
		return Stored{}, fmt.Errorf("%s: %w", path, err)
	}
	if load == nil {
		return Stored{}, fmt.Errorf("%s does not say where its load points begin and end: give the attempt's folder", path)
	}
	s := Stored{Name: path, Version: load.MetricsVersion, SLO: load.SLO}
	for _, w := range load.Windows {
		s.Windows = append(s.Windows, result.Window{Index: w.Index, OfferedRate: w.OfferedRate, Start: w.Start, End: w.End, Metrics: w.Metrics})
	}
	if s.Requests, err = resultfile.DecodeRequests(r, r.Size()); err != nil {
		return Stored{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func readAttempt(dir string) (s Stored, err error) {
	sealed, err := seal.Open(dir, seal.DefaultLimits())
	if err != nil {
		return Stored{}, err
	}
	defer func() { err = errors.Join(err, sealed.Close()) }()
	s = Stored{Name: dir, Attempt: sealed.Manifest.Attempt}
	if !sealed.Has(result.RequestsFile) || !sealed.Has(result.WindowFile) || !sealed.Has(result.ResultFile) {
		return s, fmt.Errorf("attempt %s has no rows: it ended with %s", dir, sealed.Manifest.ExitClass)
	}
	read := func(name string, decode func(r *bytes.Reader) error) {
		if err != nil {
			return
		}
		var b []byte
		if b, err = sealed.Read(name); err == nil {
			err = decode(bytes.NewReader(b))
		}
	}
	read(result.ResultFile, func(r *bytes.Reader) error {
		row, err := resultfile.DecodeResult(r, r.Size())
		s.Version = row.MetricsVersion
		return err
	})
	read(result.WindowFile, func(r *bytes.Reader) (err error) {
		s.Windows, err = resultfile.DecodeWindows(r, r.Size())
		return err
	})
	read(result.RequestsFile, func(r *bytes.Reader) (err error) {
		s.Requests, err = resultfile.DecodeRequests(r, r.Size())
		return err
	})
	if err != nil {
		return s, fmt.Errorf("attempt %s: %w", dir, err)
	}
	return s, nil
}

// Recomputed is a measurement under the present definitions.
type Recomputed struct {
	Source  string             `json:"source"`
	RunID   int64              `json:"run_id"` // 0 where it was no run
	Stored  string             `json:"stored_metrics_version"`
	Present string             `json:"present_metrics_version"`
	Windows []RecomputedWindow `json:"windows"`
}

// RecomputedWindow is a load point: every metric, as it was stored and as it is.
type RecomputedWindow struct {
	Index      int      `json:"index"`
	TargetRate float64  `json:"target_rate_per_s"`
	Changes    []Change `json:"metrics"`

	window result.Window
}

// Change is one metric. What cannot be told from the rows is kept as it was
// stored, and Kept says why.
type Change struct {
	Name       string   `json:"name"`
	Unit       string   `json:"unit"`
	Stored     *float64 `json:"stored"`
	Recomputed *float64 `json:"recomputed"`
	Reason     string   `json:"null_reason"` // why Recomputed is null
	Kept       string   `json:"kept"`
}

// Same says whether the definitions of now give what was stored.
func (c Change) Same() bool {
	if c.Stored == nil || c.Recomputed == nil {
		return c.Stored == c.Recomputed
	}
	// Sums may be added up in another order by a later program.
	return math.Abs(*c.Stored-*c.Recomputed) <= 1e-12*math.Abs(*c.Stored)
}

// Recompute computes the metrics of every load point again. slo replaces what the
// files say; where neither does, goodput is kept.
func (s Stored) Recompute(slo metrics.SLO) (Recomputed, error) {
	if len(slo) == 0 {
		slo = s.SLO
	}
	if err := slo.Check(); err != nil {
		return Recomputed{}, err
	}
	out := Recomputed{Source: s.Name, RunID: s.Attempt.RunID, Stored: s.Version, Present: result.MetricsVersion}
	dropped := eventsDropped(s.Requests)
	for _, was := range s.Windows {
		now := metrics.Compute(s.Requests, result.Window{Index: was.Index, OfferedRate: was.OfferedRate, Start: was.Start, End: was.End}, slo)
		w := RecomputedWindow{Index: was.Index, TargetRate: was.OfferedRate}
		keepEnergy(&now, was)
		for _, m := range metrics.WindowTable() {
			c := Change{Name: m.Name, Unit: m.Unit, Stored: was.Metrics[m.Name], Recomputed: now.Metrics[m.Name], Reason: now.NullReasons[m.Name]}
			c.Kept = kept(m, slo, dropped)
			if c.Kept != "" {
				c.Recomputed, c.Reason = c.Stored, was.NullReasons[m.Name]
				now.Metrics[m.Name] = c.Stored
				if delete(now.NullReasons, m.Name); c.Stored == nil {
					now.NullReasons[m.Name] = c.Reason
				}
			}
			if c.Recomputed != nil {
				c.Reason = ""
			}
			w.Changes = append(w.Changes, c)
		}
		w.window, w.window.Findings = now, was.Findings
		out.Windows = append(out.Windows, w)
	}
	return out, nil
}

// Rows are the load points with the metrics of now, and the findings of then.
func (r Recomputed) Rows() []result.Window {
	rows := make([]result.Window, len(r.Windows))
	for i, w := range r.Windows {
		rows[i] = w.window
	}
	return rows
}

const energyMetric, energyPerToken = "energy_joules", "energy_per_output_token"

// kept says why a metric cannot be computed from the rows; "" where it can.
func kept(m metrics.Metric, slo metrics.SLO, dropped bool) string {
	switch {
	case m.Name == energyMetric:
		return "it comes from the telemetry"
	case strings.HasPrefix(m.Name, "goodput") && len(slo) == 0:
		return "the SLO is not known"
	case dropped && (m.Base == "chunk_gap" || m.Base == "itl" || m.Name == "output_tokens_per_s" || m.Name == energyPerToken):
		return "the times of the events were not kept"
	}
	return ""
}

// keepEnergy divides the energy that was measured by the tokens of now.
func keepEnergy(now *result.Window, was result.Window) {
	joules, rate := was.Metrics[energyMetric], now.Metrics["output_tokens_per_s"]
	if joules == nil || rate == nil || *rate <= 0 {
		if why := was.NullReasons[energyPerToken]; why != "" {
			now.NullReasons[energyPerToken] = why
		}
		return
	}
	each := *joules / (*rate * float64(now.End-now.Start) / 1e9)
	now.Metrics[energyPerToken] = &each
	delete(now.NullReasons, energyPerToken)
}

// eventsDropped says whether a stream of several events has no times of them.
func eventsDropped(rows []result.Request) bool {
	return slices.ContainsFunc(rows, func(r result.Request) bool {
		return len(r.EventTimes) == 0 && r.TTok1 != nil && r.TTokN != nil && *r.TTokN > *r.TTok1
	})
}
