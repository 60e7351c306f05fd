package runner

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/seal"
	"sbench/internal/setting"
)

// TestRun_Workloads runs each shape of load once, end to end.
func TestRun_Workloads(t *testing.T) {
	tests := []struct {
		name    string
		edit    func(*batch.Spec, *setting.Setting)
		windows int
	}{
		{"chat", func(_ *batch.Spec, s *setting.Setting) { s.Workload.Request.Endpoint = setting.EndpointChat }, 1},
		{"not streamed", func(_ *batch.Spec, s *setting.Setting) { s.Workload.Request.Stream = false }, 1},
		{"closed loop", func(_ *batch.Spec, s *setting.Setting) {
			s.Workload.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: 3}
		}, 1},
		{"ladder", func(_ *batch.Spec, s *setting.Setting) {
			s.Workload.Ladder, s.Workload.Arrival.Rate = []float64{20, 40}, 0
			s.Workload.Duration = 500 * time.Millisecond
		}, 2},
		{"slo", func(b *batch.Spec, _ *setting.Setting) {
			b.Tasks[0].Runs[0].SLO = map[string]time.Duration{"ttft_p99": time.Second}
		}, 1},
		{"prompt file", func(_ *batch.Spec, s *setting.Setting) {
			path := filepath.Join(filepath.Dir(s.Model.Checkpoint.Path), "prompts.jsonl")
			text := []byte(strings.Repeat(`{"prompt":"one two three","output_tokens":4}`+"\n", 50))
			if err := os.WriteFile(path, text, 0o644); err != nil {
				panic(err)
			}
			s.Workload.Prompts.Source, s.Workload.Prompts.FilePath, s.Workload.Prompts.FileDigest = "file", path, batch.Digest(text)
		}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, tt.edit)
			code, out := b.run()
			m := b.sealed()
			b.nothingLeft()
			if code != m.ExitClass.Code() || m.ExitClass != lifecycle.ExitMeasured && m.ExitClass != lifecycle.ExitInvalid {
				t.Fatalf("%s: %q\n%s", m.ExitClass, m.Reasons, out)
			}
			s, err := seal.Open(b.attemptDir(), seal.DefaultLimits())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			data, err := s.Read(result.WindowFile)
			if err != nil {
				t.Fatal(err)
			}
			windows, err := resultfile.DecodeWindows(bytes.NewReader(data), int64(len(data)))
			if err != nil || len(windows) != tt.windows {
				t.Fatalf("%d windows, %v; want %d", len(windows), err, tt.windows)
			}
			for _, w := range windows {
				if v := w.Metrics["requests_ok"]; v == nil || *v < 1 {
					t.Errorf("window %d: no request went well: %v", w.Index, w.NullReasons)
				}
			}
			if data, err = s.Read(result.ResultFile); err != nil {
				t.Fatal(err)
			}
			row, err := resultfile.DecodeResult(bytes.NewReader(data), int64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			if single := row.Metrics["requests_ok"] != nil; single != (tt.windows == 1) {
				t.Errorf("the row has numbers: %v", single)
			}
		})
	}
}

func TestRun_InputDrift(t *testing.T) {
	b := newBench(t, func(_ *batch.Spec, s *setting.Setting) {
		s.Workload.Prompts.Source, s.Workload.Prompts.FilePath, s.Workload.Prompts.FileDigest = "file", s.Model.Checkpoint.Path, noDigest
	})
	code, out := b.run()
	m := b.sealed()
	wantClass(t, code, m, out, lifecycle.ExitDriftArtefact)
	if !strings.HasPrefix(m.Reasons[0], "ENV_DRIFT: workload.prompts.file_digest "+noDigest+" expected, sha256:") {
		t.Errorf("reasons: %q", m.Reasons)
	}
}

// TestRun_ContainerTerminated: SIGTERM leaves nothing of a container either.
func TestRun_ContainerTerminated(t *testing.T) {
	in := inContainer(t, "engine.sif")
	b := newBench(t, func(b *batch.Spec, s *setting.Setting) {
		in(b, s)
		s.Workload.Duration = time.Hour
		s.Workload.Arrival.Rate = 5
	})
	cmd, out := b.start()
	eventually(t, "measurement", b.logContains(result.RunnerLog, "msg=identify"))
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	code := exitCode(cmd.Wait())
	m := b.sealed()
	b.nothingLeft()
	wantClass(t, code, m, out.String(), lifecycle.ExitCancelled)
}
