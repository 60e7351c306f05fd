package runner

import (
	"os"
	"path/filepath"
	"slices"
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
