package submit

import (
	"os"
	"path/filepath"
	"testing"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestInstall_IsContentAddressed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spool := filepath.Join(dir, "spool")
	runner := write(t, filepath.Join(dir, "runner"), "one")
	programs := []Program{{Name: "sbench-runner", Path: runner}}
	first, err := Install(spool, programs)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Install(spool, programs); err != nil || again != first {
		t.Errorf("%s, %v", again, err)
	}
	// An upgrade goes beside it.
	write(t, runner, "two")
	second, err := Install(spool, programs)
	if err != nil || second == first {
		t.Errorf("%s, %v", second, err)
	}
	for path, want := range map[string]string{first: "one", second: "two"} {
		got, err := os.ReadFile(filepath.Join(path, "sbench-runner"))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(spool, "bin"))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestInstall_Fails(t *testing.T) {
	t.Parallel()
	if dir, err := Install(t.TempDir(), []Program{{Name: "x", Path: "/nonexistent"}}); err == nil {
		t.Error(dir)
	}
}

func TestFreeze_ReplacesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "batches", "sb-x")
	if err := Freeze(dir, []byte("{}"), []byte("#!"), []byte("#!")); err != nil {
		t.Fatal(err)
	}
	if err := Freeze(dir, []byte("{other}"), []byte("#!"), []byte("#!")); err == nil {
		t.Error("a frozen batch was replaced")
	}
	got, err := os.ReadFile(filepath.Join(dir, "batch.json"))
	if err != nil || string(got) != "{}" {
		t.Errorf("%q, %v", got, err)
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
