package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sbench/internal/api"
	"sbench/internal/bundle"
	"sbench/internal/compare"
	"sbench/internal/result"
)

// asking adds a quality block to a sweep whose engine repeats the last line of what
// it is asked.
func asking(t *testing.T, name, rates, block string) string {
	t.Helper()
	file := strings.Replace(simSweep(t, name, 1, rates, "1s"), `"--slots", "64"`, `"--slots", "64", "--echo"`, 1)
	return strings.Replace(file, "setting:\n", "quality: "+block+"\nsetting:\n", 1)
}

// TestQuality: what the engine answers after its measurement stands beside its
// performance and can be weighed against it; questions that fail leave a reason,
// and the performance.
func TestQuality(t *testing.T) {
	const items = `{"id":"a","prompt":"six times seven?\n42","reference":"42"}
{"id":"b","prompt":"the capital?\nthe city of Paris","reference":"Paris"}
{"id":"c","prompt":"one and one?\n3","reference":"2"}
`
	sum := sha256.Sum256([]byte(items))
	if err := os.WriteFile(filepath.Join(env.dir, "models/questions.jsonl"), []byte(items), 0o644); err != nil {
		t.Fatal(err)
	}
	pinned := fmt.Sprintf(`{path: questions.jsonl, digest: "sha256:%s"}`, hex.EncodeToString(sum[:]))
	good := env.submit(t, asking(t, "asked", "[20/s, 21/s]", "{method: token_f1, items: "+pinned+", time_limit: 1m}"))
	bad := env.submit(t, asking(t, "asked-in-vain", "[20/s]", `{method: command, command: [sh, -c, "echo 1; exit 3"], items: `+pinned+"}"))
	none := env.submit(t, simSweep(t, "not-asked", 1, "[20/s]", "1s"))

	results := func(id string) api.Results {
		t.Helper()
		env.settle(t, id)
		for _, r := range env.runs(t, id) {
			wantMeasured(t, r)
		}
		return decode[api.Results](t, env.must(t, "sbench", "results", id, "--json"))
	}
	asked := results(good)
	if asked.Quality == nil || asked.Quality.Method != "token_f1" || asked.QualityHash != asked.Quality.Hash() {
		t.Errorf("quality %+v, hash %q", asked.Quality, asked.QualityHash)
	}
	// F1 of "city of paris" beside "paris": precision 1/3, recall 1.
	want := (1 + 0.5 + 0) / 3
	valid := 0
	for _, s := range asked.Settings {
		if s.NValid == 0 {
			continue // a machine too busy for a true number says so
		}
		valid++
		score, speed := s.Metrics["quality_score"], s.Metrics["output_tokens_per_s"]
		if score.Mean == nil || math.Abs(*score.Mean-want) > 1e-9 || speed.Mean == nil || !(*speed.Mean > 0) {
			t.Errorf("setting %.12s: score %+v, throughput %+v", s.SettingHash, score, speed)
		}
		if n := s.Metrics["quality_items"]; n.Mean == nil || *n.Mean != 3 {
			t.Errorf("setting %.12s: items %+v", s.SettingHash, n)
		}
	}
	if valid == 2 {
		c := decode[api.Comparison](t, env.must(t, "sbench", "compare", "--sweep", good, "--where", "model.name=sim-model",
			"--vary", "workload.arrival.rate", "--pareto", "throughput,quality", "--json"))
		r := c.Recommendation
		if r == nil || r.BestQuality == "" || len(r.Points) != 2 || slices.ContainsFunc(r.Points, func(p compare.Point) bool { return p.Quality == nil || math.Abs(*p.Quality-want) > 1e-9 }) ||
			!slices.Contains(c.Metrics, "quality_score") {
			t.Errorf("recommendation %+v, metrics %v", r, c.Metrics)
		}
		run := env.runs(t, good)[0]
		info := decode[bundle.Info](t, env.must(t, "sbench", "bundle", fmt.Sprint(run.ID), "-o", filepath.Join(t.TempDir(), "b.tar.gz"), "--json"))
		for _, name := range []string{"quality-items.jsonl", bundle.AttemptDir + result.QualityFile} {
			if !slices.ContainsFunc(info.Files, func(f result.File) bool { return f.Name == name }) {
				t.Errorf("the bundle has no %s: %+v", name, info.Files)
			}
		}
	}

	failed, plain := results(bad), results(none)
	if s := failed.Settings[0]; s.NValid > 0 {
		score, speed := s.Metrics["quality_score"], s.Metrics["output_tokens_per_s"]
		if score.Mean != nil || !strings.Contains(score.NullReason, "the command ended with exit status 3") || speed.Mean == nil {
			t.Errorf("score %+v, throughput %+v", score, speed)
		}
		if table := env.must(t, "sbench", "results", bad); !strings.Contains(table, "no quality score: the command ended with exit status 3") {
			t.Errorf("results table:\n%s", table)
		}
	}
	// The same setting, whatever was asked of it.
	if failed.Settings[0].SettingHash != asked.Settings[0].SettingHash || plain.Quality != nil || plain.Settings[0].Metrics["quality_score"].Mean != nil {
		t.Errorf("hashes %.12s and %.12s, not asked: %+v", failed.Settings[0].SettingHash, asked.Settings[0].SettingHash, plain.Quality)
	}
}
