package runner

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/seal"
)

func TestRun_Measured(t *testing.T) {
	b := newBench(t, nil)
	code, out := b.run()
	m := b.sealed()
	b.nothingLeft()
	// On a busy machine the client may have been late, which is a valid refusal
	// of the harness; everything else must be right.
	if code != lifecycle.ExitMeasured.Code() && code != lifecycle.ExitInvalid.Code() || m.ExitClass.Code() != code {
		t.Fatalf("exit status %d, sealed %s %q\n%s", code, m.ExitClass, m.Reasons, out)
	}
	if m.Valid != (m.ExitClass == lifecycle.ExitMeasured) || !m.EnvVerified {
		t.Errorf("valid %v, verified %v, class %s: %q", m.Valid, m.EnvVerified, m.ExitClass, m.Reasons)
	}
	a := m.Attempt
	if a.RunID != 7 || a.JobIDRaw != 4711 || a.HardwareClass != "emulated" || a.Nodes[0] != "n1" || !a.EndedAt.After(a.StartedAt) {
		t.Errorf("attempt: %+v", a)
	}
	var names []string
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	want := []string{result.EngineLog, result.RequestsFile, result.ResultFile, result.RunnerLog, result.TelemetryFile, result.WindowFile}
	if !slices.Equal(names, want) {
		t.Errorf("files %v, want %v", names, want)
	}
	s, err := seal.Open(b.attemptDir(), seal.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read := func(name string) *bytes.Reader {
		data, err := s.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(data)
	}
	r := read(result.ResultFile)
	row, err := resultfile.DecodeResult(r, r.Size())
	if err != nil {
		t.Fatal(err)
	}
	if row.Valid != m.Valid || row.Axes["hardware.gpu"] != "l4" || row.Metrics["output_tokens_per_s"] == nil || *row.Metrics["output_tokens_per_s"] <= 0 || row.PlanHash == "" {
		t.Errorf("row: valid %v, axes %v, throughput %v", row.Valid, row.Axes["hardware.gpu"], row.Metrics["output_tokens_per_s"])
	}
	if !strings.Contains(string(row.Fingerprint), `"engine":{"kind":"command"`) {
		t.Errorf("fingerprint: %s", row.Fingerprint)
	}
	r = read(result.RequestsFile)
	requests, err := resultfile.DecodeRequests(r, r.Size())
	if err != nil || len(requests) < 20 {
		t.Errorf("%d requests, %v", len(requests), err)
	}
	r = read(result.WindowFile)
	if windows, err := resultfile.DecodeWindows(r, r.Size()); err != nil || len(windows) != 1 {
		t.Errorf("%d windows, %v", len(windows), err)
	}
	r = read(result.TelemetryFile)
	samples, err := resultfile.DecodeTelemetry(r, r.Size())
	if err != nil || len(samples) == 0 {
		t.Errorf("%d samples, %v", len(samples), err)
	}
	if !slices.ContainsFunc(samples, func(s result.Telemetry) bool {
		return s.Source == "engine" && s.Name == "rss_bytes" && s.Value != nil && *s.Value > 0
	}) {
		t.Error("the engine's memory was not sampled")
	}

	// A second runner of the same job and restart touches nothing and says the
	// same.
	before, err := os.ReadFile(filepath.Join(b.attemptDir(), result.ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	again, out := b.run()
	after, _ := os.ReadFile(filepath.Join(b.attemptDir(), result.ManifestName))
	if again != code || !bytes.Equal(before, after) {
		t.Errorf("again: exit status %d, manifest changed %v\n%s", again, !bytes.Equal(before, after), out)
	}
	b.nothingLeft()
}
