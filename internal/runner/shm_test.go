package runner

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestCleanShm(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	make := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	old := make("old")
	time.Sleep(20 * time.Millisecond) // the kernel's time stamps are coarse
	since := time.Now()
	time.Sleep(20 * time.Millisecond)
	left, used := make("nccl-left"), make("psm-in-use")
	f, err := os.Open(used)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	removed, err := cleanShm(dir, since)
	if err != nil || !slices.Equal(removed, []string{left}) {
		t.Errorf("removed %v, %v; want %s", removed, err, left)
	}
	for _, path := range []string{old, used} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if removed, err := cleanShm(filepath.Join(dir, "absent"), since); err != nil || removed != nil {
		t.Errorf("%v, %v", removed, err)
	}
}
