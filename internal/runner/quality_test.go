package runner

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/quality"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/seal"
	"sbench/internal/setting"
)

// questions are two that an engine that repeats its last line gets right, and one
// that it does not.
const questions = `{"id":"a","prompt":"what is six times seven?\n42","reference":"42"}
{"id":"b","prompt":"where is the tower?\n\"Paris\", naïve","reference":"\"Paris\", naïve"}
{"id":"c","prompt":"one and one?\n3","reference":"2"}
`

// asking makes a batch of one run that is asked after its measurement; edit changes
// what.
func asking(t *testing.T, edit func(d *quality.Definition)) *bench {
	t.Helper()
	b := newBench(t, func(_ *batch.Spec, s *setting.Setting) {
		s.Engine.Args["echo"] = "true"
		w := &s.Workload
		w.Warmup, w.Ramp, w.Duration, w.Drain = 0, 0, 500*time.Millisecond, time.Second
	})
	b.ask(edit)
	return b
}

// ask lets the batch's run be asked after its measurement; edit changes what.
func (b *bench) ask(edit func(d *quality.Definition)) {
	b.t.Helper()
	path := filepath.Join(b.dir, "items.jsonl")
	if err := os.WriteFile(path, []byte(questions), 0o644); err != nil {
		b.t.Fatal(err)
	}
	d := &quality.Definition{
		Method: quality.ExactMatch, ItemsPath: path, ItemsDigest: batch.Digest([]byte(questions)), Endpoint: setting.EndpointChat,
		MaxOutputTokens: 32, Concurrency: 1, TimeLimit: 30 * time.Second,
	}
	edit(d)
	b.spec.Tasks[0].Runs[0].Quality = d
	b.freeze()
}

func script(text string) func(*quality.Definition) {
	return func(d *quality.Definition) {
		d.Method, d.Command, d.Endpoint, d.Concurrency = quality.Command, []string{"/bin/sh", "-c", text}, "", 0
	}
}

// evaluated runs the batch: the measurement stands, whatever became of the
// evaluation. It returns the attempt's row and the items, nil for none.
func (b *bench) evaluated() (result.Manifest, result.Result, []result.QualityItem) {
	b.t.Helper()
	code, out := b.run()
	m := b.sealed()
	b.nothingLeft()
	if code != lifecycle.ExitMeasured.Code() && code != lifecycle.ExitInvalid.Code() || !m.EnvVerified {
		b.t.Fatalf("exit status %d, verified %v, %q\n%s", code, m.EnvVerified, m.Reasons, out)
	}
	s, err := seal.Open(b.attemptDir(), seal.DefaultLimits())
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Close()
	data, err := s.Read(result.ResultFile)
	if err != nil {
		b.t.Fatal(err)
	}
	row, err := resultfile.DecodeResult(bytes.NewReader(data), int64(len(data)))
	if err != nil || row.Metrics["output_tokens_per_s"] == nil {
		b.t.Fatalf("throughput %v, %v", row.Metrics["output_tokens_per_s"], err)
	}
	if m.Quality == nil || m.Quality.Definition != row.QualityHash || row.QualityHash != b.spec.Tasks[0].Runs[0].Quality.Hash() {
		b.t.Fatalf("manifest %+v, row of %q", m.Quality, row.QualityHash)
	}
	if !s.Has(result.QualityFile) {
		return m, row, nil
	}
	if data, err = s.Read(result.QualityFile); err != nil {
		b.t.Fatal(err)
	}
	items, err := resultfile.DecodeQuality(data)
	if err != nil {
		b.t.Fatal(err)
	}
	return m, row, items
}

func TestRun_Quality(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		edit   func(*quality.Definition)
		scores []float64
	}{
		"exact match": {func(*quality.Definition) {}, []float64{1, 1, 0}},
		"completions": {func(d *quality.Definition) { d.Endpoint, d.Concurrency = setting.EndpointCompletions, 3 }, []float64{1, 1, 0}},
		"token F1":    {func(d *quality.Definition) { d.Method = quality.TokenF1 }, []float64{1, 1, 0}},
		"command":     {script(`test "$(wc -l < {items})" = 3 && echo 1 && echo '{"id":"x","score":0.5}' && echo 0 && echo talk >&2`), []float64{1, 0.5, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			m, row, items := asking(t, tt.edit).evaluated()
			var scores []float64
			sum := 0.0
			for _, x := range items {
				if x.Score == nil {
					t.Fatalf("%+v", x)
				}
				scores = append(scores, *x.Score)
				sum += *x.Score
			}
			score := row.Metrics["quality_score"]
			if !slices.Equal(scores, tt.scores) || score == nil || math.Abs(*score-sum/3) > 1e-12 || *m.Quality.Score != *score {
				t.Errorf("items %v, score %v, manifest %+v, want %v", scores, score, m.Quality, tt.scores)
			}
			for name, want := range map[string]float64{"quality_items": 3, "quality_scored": 3, "quality_failed": 0} {
				if got := row.Metrics[name]; got == nil || *got != want {
					t.Errorf("%s = %v, want %v", name, got, want)
				}
			}
			if sd := row.Metrics["quality_stddev"]; sd == nil || *sd <= 0 {
				t.Errorf("quality_stddev = %v", sd)
			}
		})
	}
}

// TestRun_QualityInContainer: a program of the image scores, with the items and the
// server that it is told of.
func TestRun_QualityInContainer(t *testing.T) {
	b := newBench(t, inContainer(t, "engine.sif"))
	b.ask(func(d *quality.Definition) {
		d.Method, d.Command, d.Endpoint, d.Concurrency = quality.Command, []string{"score", "{items}", "{url}", "{model}"}, "", 0
	})
	m, row, items := b.evaluated()
	if score := row.Metrics["quality_score"]; len(items) != 3 || score == nil || *score != 1 {
		t.Errorf("items %+v, score %v, manifest %+v", items, score, m.Quality)
	}
}

// TestRun_QualityFails: no score, the reason, and the measurement as it was.
func TestRun_QualityFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		edit   func(*quality.Definition)
		reason string
		items  int
	}{
		"other items":  {func(d *quality.Definition) { d.ItemsDigest = "sha256:" + strings.Repeat("00", 32) }, "ENV_DRIFT: quality.items.digest sha256:0000", 0},
		"no items":     {func(d *quality.Definition) { d.ItemsPath += ".gone" }, "no such file", 0},
		"exit status":  {script("echo 1; echo 1; echo 1; echo broken >&2; exit 3"), "ended with exit status 3: broken", 0},
		"ended early":  {script("echo 1; echo 1"), "2 scores for 3 items", 0},
		"no program":   {func(d *quality.Definition) { script("")(d); d.Command = []string{"/nowhere/evaluate"} }, "/nowhere/evaluate", 0},
		"no time":      {func(d *quality.Definition) { script("echo 1; echo 1; echo 1; sleep 100")(d); d.TimeLimit = time.Second }, "time limit of 1s was over", 0},
		"a null":       {script("echo 1; echo null; echo 1"), "1 of 3 items have no score: item 1: the command gave no score", 3},
		"kills itself": {script("kill -9 $$"), "killed by signal 9", 0},
	} {
		t.Run(name, func(t *testing.T) {
			m, row, items := asking(t, tt.edit).evaluated()
			if score := row.Metrics["quality_score"]; score != nil || m.Quality.Score != nil {
				t.Errorf("score %v, manifest %+v", score, m.Quality)
			}
			if why := row.NullReasons["quality_score"]; !strings.Contains(why, tt.reason) || m.Quality.Reason != why || len(items) != tt.items {
				t.Errorf("%d items, reason %q, manifest %q, want %q", len(items), why, m.Quality.Reason, tt.reason)
			}
		})
	}
}

// TestRun_QualitySharedServer: a server that was asked serves no measurement.
func TestRun_QualitySharedServer(t *testing.T) {
	t.Parallel()
	b := sharing(t, nil)
	for i := range b.spec.Tasks[0].Runs {
		b.spec.Tasks[0].Runs[i].Quality = &quality.Definition{
			Method: quality.Command, Command: []string{"/bin/sh", "-c", "echo 1"}, Count: 1, MaxOutputTokens: 1, TimeLimit: 20 * time.Second,
		}
	}
	b.freeze()
	cmd := b.runAll()
	_ = cmd.Wait()
	for id := int64(7); id <= 9; id++ {
		m, err := seal.Verify(batch.AttemptDir(b.attempts, id, 4711, 0), seal.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		if m.Quality == nil || m.Quality.Score == nil || *m.Quality.Score != 1 {
			t.Errorf("run %d: %+v", id, m.Quality)
		}
		log, err := os.ReadFile(filepath.Join(batch.AttemptDir(b.attempts, id, 4711, 0), result.RunnerLog))
		if err != nil || strings.Contains(string(log), "the server goes on") {
			t.Errorf("run %d: %v\n%s", id, err, log)
		}
	}
	b.nothingLeft()
}
