package sweep_test

import (
	"strings"
	"testing"

	"sbench/internal/sweep"
)

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
