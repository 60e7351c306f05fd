package runner

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/runner/stage"
	"sbench/internal/seal"
	"sbench/internal/setting"
)

// engineFolder is where `make engine` puts the real engine in its container.
func engineFolder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../.cache/engine")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "engine.sif")); err != nil {
		t.Skip("the test engine is not built: run `make engine`")
	}
	return dir
}

func inContainer(t *testing.T, image string) func(*batch.Spec, *setting.Setting) {
	t.Helper()
	dir := engineFolder(t)
	hash := func(name string) string {
		a, err := stage.Digest(t.Context(), filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return a.Digest
	}
	return func(b *batch.Spec, s *setting.Setting) {
		b.Node.Apptainer = filepath.Join(dir, "apptainer")
		s.Image = setting.Image{Kind: setting.ImageSIF, Path: filepath.Join(dir, image), Digest: hash("engine.sif")}
		s.Model = setting.Model{Name: "tiny", Precision: "fp16", Checkpoint: setting.Checkpoint{
			Path: filepath.Join(dir, "model.gguf"), Digest: hash("model.gguf"),
		}}
		s.Engine.Kind, s.Engine.Command = setting.EngineLlamaCpp, nil
		s.Engine.Env = map[string]string{"LISTED": "a,b"}
		s.Engine.Args = map[string]string{"ctx-size": "2048", "threads": "1", "threads-batch": "1", "parallel": "4"}
		s.Workload.Arrival.Rate = 20
	}
}

// TestRun_Container runs a real engine in a genuine SIF.
func TestRun_Container(t *testing.T) {
	b := newBench(t, inContainer(t, "engine.sif"))
	code, out := b.run()
	m := b.sealed()
	b.nothingLeft()
	if m.ExitClass != lifecycle.ExitMeasured && m.ExitClass != lifecycle.ExitInvalid || code != m.ExitClass.Code() || !m.EnvVerified {
		log, _ := os.ReadFile(filepath.Join(b.attemptDir(), result.EngineLog))
		t.Fatalf("exit status %d, sealed %s, verified %v: %q\n%s\nengine:\n%s", code, m.ExitClass, m.EnvVerified, m.Reasons, out, log)
	}
	s, err := seal.Open(b.attemptDir(), seal.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	data, err := s.Read(result.ResultFile)
	if err != nil {
		t.Fatal(err)
	}
	row, err := resultfile.DecodeResult(strings.NewReader(string(data)), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var fp fingerprint.Fingerprint
	if err := json.Unmarshal(row.Fingerprint, &fp); err != nil {
		t.Fatal(err)
	}
	if fp.Container.Version == "" || fp.Engine.Argv[0] != "llama-server" || fp.Engine.Argv[2] != "/sbench/model.gguf" || fp.Image.Kind != "sif" {
		t.Errorf("container %+v, argv %q, image %+v", fp.Container, fp.Engine.Argv, fp.Image)
	}
	t.Logf("container program: %s; engine version %q", fp.Container.Version, fp.Engine.Version)
	staged, err := filepath.Glob(filepath.Join(filepath.Dir(b.dir), "cache", "*.sif"))
	if err != nil || len(staged) != 1 {
		t.Errorf("staged images: %v, %v", staged, err)
	}
}

// TestRun_DriftedContainer: an image whose content is no longer the pinned one.
func TestRun_DriftedContainer(t *testing.T) {
	b := newBench(t, inContainer(t, "engine-drifted.sif"))
	code, out := b.run()
	m := b.sealed()
	b.nothingLeft()
	wantClass(t, code, m, out, lifecycle.ExitDriftArtefact)
	if len(m.Reasons) != 1 || !strings.HasPrefix(m.Reasons[0], "ENV_DRIFT: image digest sha256:") {
		t.Errorf("reasons: %q", m.Reasons)
	}
	if staged, _ := filepath.Glob(filepath.Join(filepath.Dir(b.dir), "cache", "*.sif")); len(staged) != 0 {
		t.Errorf("the drifted image was kept: %v", staged)
	}
}
