package stage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// limited is a cache of so many bytes, and a source of images of 1000.
func limited(t *testing.T, limit int64) (c *Cache, image func(letter string) (Image, error)) {
	t.Helper()
	c, err := OpenCache(filepath.Join(t.TempDir(), "cache"), limit)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return c, func(letter string) (Image, error) {
		content := strings.Repeat(letter, 1000)
		source := write(t, filepath.Join(dir, letter), content)
		image, err := c.Image(t.Context(), source, "sha256:"+sum(content), false)
		if err == nil {
			// The next one is used later, whatever the clock's steps.
			old := time.Now().Add(-time.Hour + time.Duration(letter[0])*time.Second)
			err = os.Chtimes(c.record(sum(content)), old, old)
		}
		return image, err
	}
}

func (c *Cache) has(letter string) bool {
	_, err := os.Stat(c.path(sum(strings.Repeat(letter, 1000))))
	return err == nil
}

func TestCache_EvictsLeastRecentlyUsed(t *testing.T) {
	t.Parallel()
	c, image := limited(t, 3500)
	for _, letter := range []string{"a", "b", "c"} {
		x, err := image(letter)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := c.valid(sum(strings.Repeat("a", 1000))); !ok { // now b is the oldest
		t.Fatal("a is not there")
	}
	if _, err := image("d"); err != nil {
		t.Fatal(err)
	}
	if !c.has("a") || c.has("b") || !c.has("c") || !c.has("d") {
		t.Errorf("a %v b %v c %v d %v, want b gone alone", c.has("a"), c.has("b"), c.has("c"), c.has("d"))
	}
	leftovers(t, c)
}

func TestCache_NeverEvictsWhatIsInUse(t *testing.T) {
	t.Parallel()
	c, image := limited(t, 2500)
	a, err := image("a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := image("b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := image("c"); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "engine.cache_limit") {
		t.Errorf("a third image: %v, want that the cache is full", err)
	}
	if err := errors.Join(a.Unchanged(), b.Unchanged()); err != nil {
		t.Error(err)
	}
	if err := b.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := image("c"); err != nil || c.has("b") || a.Unchanged() != nil {
		t.Errorf("after b was released: %v, b there %v, a %v", err, c.has("b"), a.Unchanged())
	}
	leftovers(t, c)
}

// TestCache_CrashBetweenRecordAndCopy: what a crashed eviction or publication
// leaves is not used, and is the first to go.
func TestCache_CrashBetweenRecordAndCopy(t *testing.T) {
	t.Parallel()
	c, image := limited(t, 2500)
	for _, letter := range []string{"a", "b"} {
		x, err := image(letter)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(c.record(sum(strings.Repeat("b", 1000)))); err != nil {
		t.Fatal(err)
	}
	if _, err := image("c"); err != nil || !c.has("a") || c.has("b") {
		t.Errorf("%v, a there %v, b there %v", err, c.has("a"), c.has("b"))
	}
}

// TestCache_FullDisk needs a file system of its own, which only root can mount.
func TestCache_FullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("sbench-test", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("SKIPPED: a full disk needs a tmpfs, which this user cannot mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	c, err := OpenCache(filepath.Join(dir, "cache"), 0)
	if err != nil {
		t.Fatal(err)
	}
	stage := func(letter string) (Image, error) {
		content := strings.Repeat(letter, 30_000)
		return c.Image(t.Context(), write(t, filepath.Join(t.TempDir(), letter), content), "sha256:"+sum(content), false)
	}
	a, err := stage("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stage("b"); !errors.Is(err, ErrFull) {
		t.Errorf("with a in use: %v, want that the cache is full", err)
	}
	leftovers(t, c)
	if err := errors.Join(a.Unchanged(), a.Release()); err != nil {
		t.Fatal(err)
	}
	b, err := stage("b")
	if err != nil {
		t.Fatalf("after a was released: %v", err)
	}
	if err := errors.Join(b.Unchanged(), b.Release()); err != nil {
		t.Error(err)
	}
	leftovers(t, c)
}

func TestRemoveHalfCopies(t *testing.T) {
	t.Parallel()
	c := cache(t)
	live, err := c.temporary()
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	dead, err := c.temporary()
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	if removed, err := RemoveHalfCopies(c.dir, os.Getuid()+1); err != nil || len(removed) != 0 {
		t.Errorf("another user's: %v, %v", removed, err)
	}
	removed, err := RemoveHalfCopies(c.dir, os.Getuid())
	if err != nil || len(removed) != 1 || removed[0] != dead.Name() {
		t.Errorf("removed %v, %v, want %s", removed, err, dead.Name())
	}
	if removed, err := RemoveHalfCopies(filepath.Join(c.dir, "absent"), os.Getuid()); err != nil || len(removed) != 0 {
		t.Errorf("absent: %v, %v", removed, err)
	}
}
