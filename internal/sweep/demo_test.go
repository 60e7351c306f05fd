package sweep_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/batch"
	"sbench/internal/quality"
	"sbench/internal/setting"
	"sbench/internal/sweep"
)

// TestParse_QualityExample: the example pins the items that lie beside it.
func TestParse_QualityExample(t *testing.T) {
	t.Parallel()
	src := read(t, "../../docs/examples/quality.yaml")
	f, list := sweep.Parse(src, "quality.yaml")
	if f == nil {
		t.Fatal(list.Text())
	}
	items := read(t, "../../docs/examples/quality-items.jsonl")
	want := &quality.Definition{
		Method: quality.TokenF1, ItemsPath: "quality-items.jsonl", ItemsDigest: batch.Digest(items), Endpoint: setting.EndpointCompletions,
		MaxOutputTokens: 16, Concurrency: 1, TimeLimit: 2 * time.Minute,
	}
	if diff := cmp.Diff(want, f.Quality); diff != "" {
		t.Errorf("(-want +parsed)\n%s", diff)
	}
	if parsed, err := quality.ParseItems(items, quality.TokenF1); err != nil || len(parsed) != 5 {
		t.Errorf("%d items, %v", len(parsed), err)
	}
	// What is asked after a measurement is no part of what is measured.
	with := expand(t, src, sweep.Options{})
	start, end := strings.Index(string(src), "quality:\n"), strings.Index(string(src), "setting:\n")
	without := expand(t, []byte(string(src[:start])+string(src[end:])), sweep.Options{})
	for i := range with.Settings {
		if with.Settings[i].Hash != without.Settings[i].Hash || with.Settings[i].Series != without.Settings[i].Series {
			t.Errorf("setting %d has another hash without its questions", i)
		}
	}
}

// TestExpand_Demo: the sweep of make demo.
func TestExpand_Demo(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("ab", 32)
	e := expand(t, read(t, "../../docs/examples/demo.yaml"), sweep.Options{
		Set: []string{"image.digest=" + digest, "model.checkpoint.digest=" + digest},
	})
	if len(e.Settings) != 5 || e.Runs != 15 || len(e.Warnings) != 0 {
		t.Errorf("%d settings, %d runs\n%s", len(e.Settings), e.Runs, e.Warnings.Text())
	}
	last := e.Settings[4].Setting
	if last.Image.Path != "engine-drifted.sif" || last.Image.Digest != digest || last.Engine.Args["parallel"] != "8" {
		t.Errorf("the included point is %+v", last)
	}
}
