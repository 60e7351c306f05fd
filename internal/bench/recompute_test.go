package bench

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sbench/internal/lifecycle"
	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/seal"
)

// rows are n requests of 4 tokens each, one every 10 ms.
func rows(n int) []result.Request {
	rng := rand.New(rand.NewPCG(1, 2))
	var all []result.Request
	for i := range n {
		due := int64(i) * 10_000_000
		at := func(ms float64) *int64 {
			t := due + int64(ms*1e6)
			return &t
		}
		first, tokens, input, one := 20+10*rng.Float64(), int32(4), int32(16), int32(1)
		r := result.Request{
			Index: int32(i), Phase: result.PhaseMeasure, Outcome: result.OutcomeOK, TIntended: due, TDispatch: at(0.01), TWritten: at(0.02),
			TTok1: at(first), TContent1: at(first), TTokN: at(first + 30), TEnd: at(first + 31), InputPlanned: 16, OutputPlanned: 4,
			InputTokens: &input, OutputTokens: &tokens, TokensFirst: &one, TokenSource: "usage", EventTokens: []int32{1, 1, 1, 1}, EventBytes: []int32{9, 9, 9, 9},
		}
		for e := range 4 {
			r.EventTimes = append(r.EventTimes, *at(first + 10*float64(e)))
		}
		all = append(all, r)
	}
	return all
}

func window(all []result.Request, slo metrics.SLO) result.Window {
	return metrics.Compute(all, result.Window{Start: 0, End: int64(len(all)) * 10_000_000, OfferedRate: 100}, slo)
}

// attempt seals the rows with that load point, and returns the folder.
func attempt(t *testing.T, all []result.Request, w result.Window, version string) string {
	t.Helper()
	a := result.Attempt{RunID: 7, JobIDRaw: 4711, Cluster: "c", HardwareClass: "emulated", StartedAt: time.Unix(1, 0), EndedAt: time.Unix(2, 0)}
	dir := seal.Dir(t.TempDir(), 7, 4711, 0)
	out, err := seal.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(io.Writer) error{
		result.ResultFile: func(f io.Writer) error {
			return resultfile.EncodeResult(f, result.Result{Attempt: a, MetricsVersion: version, Metrics: w.Metrics, NullReasons: w.NullReasons, Axes: map[string]any{}})
		},
		result.WindowFile:   func(f io.Writer) error { return resultfile.EncodeWindows(f, a, []result.Window{w}) },
		result.RequestsFile: func(f io.Writer) error { return resultfile.EncodeRequests(f, a, all) },
	} {
		if err := out.WriteFile(name, write); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := out.Seal(result.Manifest{Attempt: a, ExitClass: lifecycle.ExitMeasured}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func recompute(t *testing.T, path string, slo metrics.SLO) map[string]Change {
	t.Helper()
	s, err := ReadStored(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Recompute(slo)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Windows) != 1 || len(again.Windows[0].Changes) != len(metrics.WindowTable()) {
		t.Fatalf("%d windows", len(again.Windows))
	}
	changes := map[string]Change{}
	for _, c := range again.Windows[0].Changes {
		changes[c.Name] = c
	}
	return changes
}

// The same definitions give what was stored; another definition then is seen now.
func TestRecompute_Attempt(t *testing.T) {
	t.Parallel()
	all := rows(300)
	slo := metrics.SLO{"ttft_p95": 0.025}
	w := window(all, slo)
	joules := 1200.0
	w.Metrics["energy_joules"] = &joules
	each := joules / 1200
	w.Metrics["energy_per_output_token"] = &each
	delete(w.NullReasons, "energy_joules")
	delete(w.NullReasons, "energy_per_output_token")

	for name, c := range recompute(t, attempt(t, all, w, result.MetricsVersion), nil) {
		if !c.Same() && name != "energy_per_output_token" {
			t.Errorf("%s: stored %v, now %v (%s)", name, c.Stored, c.Recomputed, c.Reason)
		}
	}

	old := w
	old.Metrics = result.Metrics{}
	for k, v := range w.Metrics {
		old.Metrics[k] = v
	}
	wrong := *w.Metrics["ttft_p95"] * 2
	old.Metrics["ttft_p95"] = &wrong
	old.Metrics["itl_p50"] = nil
	changes := recompute(t, attempt(t, all, old, "v0"), nil)
	if c := changes["ttft_p95"]; c.Same() || *c.Stored != wrong || *c.Recomputed != *w.Metrics["ttft_p95"] {
		t.Errorf("%+v", c)
	}
	if c := changes["itl_p50"]; c.Same() || c.Recomputed == nil {
		t.Errorf("%+v", c)
	}
	if c := changes["energy_joules"]; c.Kept == "" || !c.Same() {
		t.Errorf("%+v", c)
	}
	if c := changes["goodput_ratio"]; c.Kept == "" || !c.Same() {
		t.Errorf("without its SLO: %+v", c)
	}
	if c := recompute(t, attempt(t, all, old, "v0"), slo)["goodput_ratio"]; c.Kept != "" || !c.Same() {
		t.Errorf("with its SLO: %+v", c)
	}
	if c := recompute(t, attempt(t, all, old, "v0"), metrics.SLO{"ttft": 1})["goodput_ratio"]; c.Same() || *c.Recomputed != 1 {
		t.Errorf("with another SLO: %+v", c)
	}
}

// Where retention dropped the events, nothing is made up from their absence.
func TestRecompute_DroppedEvents(t *testing.T) {
	t.Parallel()
	all := rows(300)
	w := window(all, nil)
	for i := range all {
		all[i].EventTimes, all[i].EventBytes, all[i].EventTokens = nil, nil, nil
	}
	changes := recompute(t, attempt(t, all, w, result.MetricsVersion), nil)
	for _, name := range []string{"chunk_gap_p95", "itl_p50", "output_tokens_per_s"} {
		if c := changes[name]; c.Kept == "" || c.Recomputed == nil || !c.Same() {
			t.Errorf("%+v", c)
		}
	}
	if c := changes["ttft_p95"]; c.Kept != "" || !c.Same() {
		t.Errorf("%+v", c)
	}
}

// A file of sbench bench says all that is needed by itself.
func TestRecompute_File(t *testing.T) {
	t.Parallel()
	all := rows(300)
	slo := metrics.SLO{"ttft_p95": 0.025}
	var b bytes.Buffer
	if err := (Report{Requests: all, Windows: []result.Window{window(all, slo)}, SLO: slo}).WriteRequests(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "requests.parquet")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range recompute(t, path, nil) {
		if !c.Same() || (c.Kept != "" && name != "energy_joules") {
			t.Errorf("%+v", c)
		}
	}
}

// What is not sealed, damaged or says nothing about its load points is refused.
func TestReadStored_Refuses(t *testing.T) {
	t.Parallel()
	dir := attempt(t, rows(20), window(rows(20), nil), result.MetricsVersion)
	b, err := os.ReadFile(filepath.Join(dir, result.RequestsFile))
	if err != nil {
		t.Fatal(err)
	}
	alone := filepath.Join(t.TempDir(), "alone.parquet")
	if err := os.WriteFile(alone, b, 0o600); err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(filepath.Join(dir, result.RequestsFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		alone: "give the attempt's folder", dir: "not the file that was sealed", t.TempDir(): "not sealed",
		filepath.Join(t.TempDir(), "none"): "no such file",
	} {
		if _, err := ReadStored(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
