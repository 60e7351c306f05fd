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

// TestInstall_PutsAsideWhatWasChanged: the folder's name vouches for its content.
func TestInstall_PutsAsideWhatWasChanged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, dir, program string){
		"other content of the same length": func(t *testing.T, _, program string) { write(t, program, "two") },
		"cut":                              func(t *testing.T, _, program string) { write(t, program, "") },
		"a file more":                      func(t *testing.T, dir, _ string) { write(t, filepath.Join(dir, "x"), "x") },
		"a link": func(t *testing.T, _, program string) {
			if err := os.Symlink("/bin/true", program); err != nil {
				t.Fatal(err)
			}
		},
		"gone":   func(*testing.T, string, string) {},
		"a file": func(t *testing.T, dir, _ string) { _ = os.Remove(dir); write(t, dir, "x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spool := t.TempDir()
			programs := []Program{
				{Name: "sbench-runner", Path: write(t, filepath.Join(spool, "runner"), "one")},
				{Name: "sbench-gpu", Path: write(t, filepath.Join(spool, "gpu"), "gpu")},
			}
			dir, err := Install(spool, programs)
			if err != nil {
				t.Fatal(err)
			}
			before := stamp(dir, programs)
			program := filepath.Join(dir, "sbench-runner")
			if err := os.Remove(program); err != nil {
				t.Fatal(err)
			}
			if name == "a file" {
				_ = os.RemoveAll(dir)
			}
			change(t, dir, program)
			if stamp(dir, programs) == before {
				t.Error("nothing is noticed")
			}
			again, err := Install(spool, programs)
			if err != nil || again != dir {
				t.Fatalf("%s, %v, want %s", again, err, dir)
			}
			if got, err := os.ReadFile(program); err != nil || string(got) != "one" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
