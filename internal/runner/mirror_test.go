package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/remotetest"
	"sbench/internal/setting"
)

// onlyAt moves the checkpoint away to a mirror's folder.
func onlyAt(t *testing.T, root, path string) {
	t.Helper()
	there := root + path
	if err := errors.Join(os.MkdirAll(filepath.Dir(there), 0o755), os.Rename(path, there)); err != nil {
		t.Fatal(err)
	}
}

// TestRun_FromMirror: a checkpoint that only a mirror has is measured with, and
// what the run left in the cache is the checkpoint alone.
func TestRun_FromMirror(t *testing.T) {
	root := t.TempDir()
	server := remotetest.Start(t, root)
	b := newBench(t, func(spec *batch.Spec, s *setting.Setting) {
		onlyAt(t, root, s.Model.Checkpoint.Path)
		spec.Node.Mirrors = []batch.Mirror{server.Mirror}
	})
	code, out := b.run()
	m := b.sealed()
	b.nothingLeft()
	if code != lifecycle.ExitMeasured.Code() && code != lifecycle.ExitInvalid.Code() || !m.EnvVerified {
		t.Fatalf("exit status %d, sealed %s %q\n%s", code, m.ExitClass, m.Reasons, out)
	}
	copies, err := filepath.Glob(filepath.Join(b.spec.CacheDir, "*.tree", "model.gguf"))
	if err != nil || len(copies) != 1 {
		t.Errorf("in the cache: %v, %v", copies, err)
	}
}

// TestRun_MirrorsThatFail: the run ends in class staging and says why of each, and
// neither the attempt nor the spec has the key.
func TestRun_MirrorsThatFail(t *testing.T) {
	root := t.TempDir()
	server := remotetest.Start(t, root)
	gone := server.Mirror
	gone.Key += ".gone"
	b := newBench(t, func(spec *batch.Spec, s *setting.Setting) {
		onlyAt(t, root, s.Model.Checkpoint.Path)
		if err := os.WriteFile(root+s.Model.Checkpoint.Path, []byte("WEIGHTS"), 0o644); err != nil {
			t.Fatal(err)
		}
		spec.Node.Mirrors = []batch.Mirror{gone, server.Mirror}
	})
	code, out := b.run()
	m := b.sealed()
	b.nothingLeft()
	wantClass(t, code, m, out, lifecycle.ExitStaging)
	reason := strings.Join(m.Reasons, "\n")
	for _, want := range []string{"STAGING: stage checkpoint: open ", "; mirror " + gone.URL + ": read the key: ", ": it is not used"} {
		if !strings.Contains(reason, want) {
			t.Errorf("%q, want %q", reason, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(b.spec.CacheDir, "*.t*")); len(left) > 0 {
		t.Errorf("left in the cache: %v", left)
	}
	key, err := os.ReadFile(server.Mirror.Key)
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.Split(string(key), "\n")[1]
	err = filepath.WalkDir(filepath.Dir(b.dir), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), secret) {
			t.Errorf("%s has the key", path)
		}
		return err
	})
	if err != nil || len(secret) < 40 {
		t.Errorf("%v, %q", err, secret)
	}
}

// TestNamed: an engine on the host that was started with a mirror's copy reports
// the flags that it has elsewhere.
func TestNamed(t *testing.T) {
	const path, copied = "/models/m.gguf", "/cache/0123.tree/m.gguf"
	for name, c := range map[string]struct {
		flags        map[string]string
		copied       string
		want         string // of model_path
		wantsNothing bool
	}{
		"a copy":          {map[string]string{"model_path": copied}, copied, path, false},
		"where it lies":   {map[string]string{"model_path": path}, path, path, false},
		"another file":    {map[string]string{"model_path": "/models/other"}, copied, "/models/other", false},
		"nothing is told": {nil, copied, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := named(c.flags, c.copied, path); got["model_path"] != c.want || (got == nil) != c.wantsNothing {
				t.Errorf("%v", got)
			}
		})
	}
}
