package runner

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSharedMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	create := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err == nil {
			_, err = f.Write([]byte("shared"))
		}
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	mapped, open, foreign := create("nccl mapped"), create("open"), create("of another program")
	replaced := create("replaced")
	if _, err := unix.Mmap(int(mapped.Fd()), 0, 6, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	mapped.Close()
	foreign.Close()
	defer replaced.Close()
	defer open.Close()
	found := map[string]fileID{}
	sharedMemory(found, dir, []int{os.Getpid(), 1 << 30})
	if err := os.Rename(foreign.Name(), replaced.Name()); err != nil {
		t.Fatal(err)
	}
	foreign = replaced
	removed, err := removeSharedMemory(found)
	if want := []string{mapped.Name(), open.Name()}; err != nil || !slices.Equal(removed, want) {
		t.Errorf("removed %q, %v; want %q", removed, err, want)
	}
	if _, err := os.Stat(foreign.Name()); err != nil {
		t.Error(err)
	}
	found = map[string]fileID{}
	sharedMemory(found, dir, []int{os.Getpid()})
	if removed, err := removeSharedMemory(found); err != nil || len(removed) != 0 {
		t.Errorf("again: %q, %v", removed, err)
	}
}

// TestShmList: what a killed runner's engine had in shared memory is found by the
// list in its scratch folder, although no process has it any more; what was
// replaced since, and what is elsewhere, is not touched.
func TestShmList(t *testing.T) {
	scratch := t.TempDir()
	folder := filepath.Join(scratch, "sbench-run-7-1")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	found := map[string]fileID{}
	create := func(path string) string {
		if err := os.WriteFile(path, []byte("shared"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		found[path] = fileID{st.Dev, st.Ino}
		return path
	}
	name := filepath.Join(shmDir, "sbench-test-"+strconv.Itoa(os.Getpid()))
	left, replaced, elsewhere := create(name+" left"), create(name+"-replaced"), create(filepath.Join(scratch, "elsewhere"))
	if err := writeShmList(folder, found); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(replaced+".new", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(replaced+".new", replaced); err != nil {
		t.Fatal(err)
	}
	code, out := epilog(t, scratch)
	if code != 1 || !strings.Contains(out, "shared memory "+left) || strings.Contains(out, replaced) {
		t.Errorf("exit status %d\n%s", code, out)
	}
	removed, err := cleanUp(t.Context(), []string{scratch}, nil, os.Getuid())
	if err != nil || !slices.Contains(removed, "shared memory "+left) || len(removed) != 2 {
		t.Errorf("removed %q, %v", removed, err)
	}
	for _, path := range []string{replaced, elsewhere} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if code, out := epilog(t, scratch); code != 0 {
		t.Errorf("after the clean-up: exit status %d\n%s", code, out)
	}
}
