package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"sbench/internal/api"
	"sbench/internal/runner/stage"
)

// TestArtefacts: what sbench checkpoint add registers is what a runner hashes,
// and a sweep finds it by its digest.
func TestArtefacts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	model := filepath.Dir(l.file("models/llama/config.json", "{}"))
	l.file("models/llama/model-00001.safetensors", strings.Repeat("w", 1<<20))
	l.file("models/llama/sub/tokenizer.json", "tok")
	want, err := stage.Digest(t.Context(), model)
	if err != nil {
		t.Fatal(err)
	}
	add := l.run("checkpoint", "add", model, "--name", "llama", "--accounts", "physics,ml")
	if add.status != exitOK || strings.TrimSpace(add.stdout) != want.Digest {
		t.Fatalf("add: %+v, want %s", add, want.Digest)
	}
	image := l.file("images/other.sif", "an image")
	digest := strings.TrimSpace(l.run("image", "add", image).stdout)
	if !strings.HasPrefix(digest, "sha256:") {
		t.Fatalf("image add printed %q", digest)
	}
	again := l.run("checkpoint", "add", model)
	if again.status != exitOK || !strings.Contains(again.stderr, "it was registered by ") {
		t.Errorf("again: %+v", again)
	}
	var shown api.Artefact
	show := l.run("checkpoint", "show", "llama", "--json")
	if err := json.Unmarshal([]byte(show.stdout), &shown); err != nil || shown.Digest != want.Digest || len(shown.Manifest) != 3 || len(shown.Places) != 1 || len(shown.Accounts) != 2 {
		t.Errorf("show: %+v, %v", shown, err)
	}
	if list := l.run("image", "list"); !strings.Contains(list.stdout, digest[:19]) || strings.Contains(list.stdout, "llama") {
		t.Errorf("image list:\n%s", list.stdout)
	}

	file := strings.NewReplacer("checkpoint: {path: model.gguf}", `checkpoint: {digest: "`+want.Digest+`"}`,
		"{kind: sif, path: engine.sif}", `{kind: sif, digest: "`+digest+`"}`).Replace(demoSweep)
	path := l.file("registered.yaml", file)
	for account, status := range map[string]int{"physics": exitOK, "chemistry": exitRefused} {
		if got := l.run("submit", "-A", account, "--parsable", path); got.status != status {
			t.Errorf("account %s: %+v, want status %d", account, got, status)
		}
	}
	// Giving the path does not get around it.
	byPath := l.file("path.yaml", strings.Replace(demoSweep, "path: model.gguf", "path: llama", 1))
	if got := l.run("submit", "-A", "chemistry", byPath); got.status != exitRefused || !strings.Contains(got.stderr, "is for the accounts") {
		t.Errorf("by path: %+v", got)
	}
	if got := l.run("checkpoint", "restrict", "llama", "--everybody"); got.status != exitOK {
		t.Errorf("restrict: %+v", got)
	}
	if got := l.run("submit", "-A", "chemistry", byPath); got.status != exitOK {
		t.Errorf("after --everybody: %+v", got)
	}
	unknown := l.file("unknown.yaml", strings.ReplaceAll(file, want.Digest, "sha256:"+strings.Repeat("0", 64)))
	if got := l.run("submit", "-A", "physics", unknown); got.status != exitUsage || !strings.Contains(got.stderr, "no checkpoint sha256:000") {
		t.Errorf("unknown digest: %+v", got)
	}
	for _, args := range [][]string{
		{"checkpoint", "add", filepath.Join(l.dir, "absent")},
		{"image", "add", model},
		{"checkpoint", "restrict", "llama"},
		{"checkpoint", "restrict", "llama", "--everybody", "--accounts", "a"},
		{"checkpoint", "add", model, "--site", "elsewhere"},
		{"checkpoint", "add", model, "--accounts", "a b"},
	} {
		if got := l.run(args...); got.status != exitUsage {
			t.Errorf("%v: %+v, want status %d", args, got, exitUsage)
		}
	}
	if got := l.run("image", "show", "llama"); got.status != exitFailed {
		t.Errorf("a checkpoint as an image: %+v", got)
	}
}
