package resultfile

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/setting"
)

var update = flag.Bool("update", false, "rewrite schema/*.parquet.txt")

// TestSchema keeps the schemas that readers of the files rely on in step with
// the axes and metrics tables.
func TestSchema(t *testing.T) {
	t.Parallel()
	for _, kind := range Kinds() {
		got, err := Schema(kind)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("..", "..", "schema", kind+".parquet.txt")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s differs; if that is meant: go test ./internal/resultfile -run TestSchema -update\n%s", path, diff)
		}
	}
	if _, err := Schema("nothing"); err == nil {
		t.Error("a schema of an unknown kind")
	}
}

func sample() result.Result {
	s := setting.Default()
	s.Model.Name = "m"
	s.Engine.Kind = setting.EngineCommand
	s.Engine.Command = []string{"serve", "{port}"}
	s.Engine.Args = map[string]string{"max-num-seqs": "256"}
	s.Workload.Arrival = setting.Arrival{Process: setting.ProcessStages, Stages: []setting.Stage{{Rate: 2, Duration: time.Minute}}}
	s.Workload.Ladder = []float64{1, 2.5}
	r := result.Result{
		Attempt: attempt, Valid: true, EnvVerified: true, Findings: []string{"saturated", "errors"},
		MetricsVersion: result.MetricsVersion, PlanHash: "ph", QualityHash: "qh", Axes: s.AxisValues(),
		Metrics: result.Metrics{}, NullReasons: map[string]string{}, Histograms: map[string][]byte{"ttft": {1, 2, 0}},
		Checks:      []result.Check{{Name: "c", Kind: result.CheckHarness, Verdict: result.VerdictPass, Reason: "because"}},
		Fingerprint: json.RawMessage(`{"version":1}`),
	}
	r.Attempt.StartedAt = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	r.Attempt.EndedAt = r.Attempt.StartedAt.Add(time.Hour)
	r.Attempt.Nodes = []string{"n1", "n2"}
	for i, m := range metrics.Table() {
		switch i % 3 {
		case 0:
			r.Metrics[m.Name] = nil
			r.NullReasons[m.Name] = "too few requests"
		case 1:
			zero := 0.0
			r.Metrics[m.Name] = &zero
		default:
			v := float64(i) + 0.1
			r.Metrics[m.Name] = &v
		}
	}
	return r
}

func TestResult_RoundTrip(t *testing.T) {
	t.Parallel()
	want := sample()
	var b bytes.Buffer
	if err := EncodeResult(&b, want); err != nil {
		t.Fatal(err)
	}
	got, err := DecodeResult(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	delete(want.Axes, "hardware.class")
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-wrote +read):\n%s", diff)
	}
	if b.Len() > 256<<10 {
		t.Errorf("one row takes %d bytes", b.Len())
	}
}

func TestWindows_RoundTrip(t *testing.T) {
	t.Parallel()
	r := sample()
	for name := range r.Metrics {
		if metrics.IsQuality(name) { // of an attempt, not of a load point
			delete(r.Metrics, name)
		}
	}
	for _, n := range []int{0, 1, 3} {
		var want []result.Window
		for i := range n {
			want = append(want, result.Window{
				Index: i, OfferedRate: 2.5, Start: -5, End: 1e12, Metrics: r.Metrics, NullReasons: r.NullReasons,
				Histograms: r.Histograms, Findings: r.Findings,
			})
		}
		var b bytes.Buffer
		if err := EncodeWindows(&b, attempt, want); err != nil {
			t.Fatal(err)
		}
		got, err := DecodeWindows(bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%d windows (-wrote +read):\n%s", n, diff)
		}
	}
}

func TestQuality_RoundTrip(t *testing.T) {
	t.Parallel()
	zero, half, tokens := 0.0, 0.5, int64(7)
	want := []result.QualityItem{
		{Index: 0, ID: "a", Score: &half, Answer: "an answer\n", FinishReason: "stop", OutputTokens: &tokens},
		{Index: 1, Score: &zero, FinishReason: "length"},
		{Index: 2, Reason: "HTTP 500"},
	}
	for n := range len(want) + 1 {
		var b bytes.Buffer
		if err := EncodeQuality(&b, attempt, "qh", want[:n]); err != nil {
			t.Fatal(err)
		}
		got, err := DecodeQuality(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want[:n], got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%d items (-wrote +read):\n%s", n, diff)
		}
	}
}

func TestEncodeResult_Refuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*result.Result){
		"unknown metric":    func(r *result.Result) { r.Metrics["made_up"] = nil },
		"unknown histogram": func(r *result.Result) { r.Histograms["made_up"] = []byte{1} },
		"wrong axis type":   func(r *result.Result) { r.Axes["hardware.gpus"] = "4" },
	} {
		r := sample()
		change(&r)
		if err := EncodeResult(&bytes.Buffer{}, r); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestDecode_Damage: whatever byte is damaged, decoding gives rows or an error.
func TestDecode_Damage(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := EncodeResult(&b, sample()); err != nil {
		t.Fatal(err)
	}
	for at := 0; at < b.Len(); at += 37 {
		damaged := bytes.Clone(b.Bytes())
		damaged[at] ^= 0xff
		_, _ = DecodeResult(bytes.NewReader(damaged), int64(len(damaged)))
		short := b.Bytes()[:at]
		if _, err := DecodeResult(bytes.NewReader(short), int64(len(short))); err == nil {
			t.Errorf("a file cut at byte %d was accepted", at)
		}
	}
}

// TestDecode_AnotherKind: a file of another kind of row is an error.
func TestDecode_AnotherKind(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := EncodeTelemetry(&b, attempt, []result.Telemetry{{T: 1}, {T: 2}}); err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeResult(bytes.NewReader(b.Bytes()), int64(b.Len())); err == nil {
		t.Error("telemetry was read as a result")
	}
}

func FuzzDecode(f *testing.F) {
	var b bytes.Buffer
	if err := EncodeWindows(&b, attempt, []result.Window{{Metrics: result.Metrics{}}}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	b.Reset()
	if err := EncodeTelemetry(&b, attempt, []result.Telemetry{{T: 1}}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(_ *testing.T, b []byte) {
		r := bytes.NewReader(b)
		_, _ = DecodeResult(r, int64(len(b)))
		_, _ = DecodeWindows(r, int64(len(b)))
		_, _ = DecodeRequests(r, int64(len(b)))
		_, _ = DecodeTelemetry(r, int64(len(b)))
	})
}
