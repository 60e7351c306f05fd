package stage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func sum(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

func TestDigest_File(t *testing.T) {
	t.Parallel()
	path := write(t, filepath.Join(t.TempDir(), "f"), "hello")
	a, err := Digest(t.Context(), path)
	if err != nil || a.Digest != "sha256:"+sum("hello") || a.Size != 5 || a.Files != 1 || a.IsDir {
		t.Fatalf("%+v, %v", a, err)
	}
	if err := a.Unchanged(); err != nil {
		t.Error(err)
	}
	write(t, path, "HELLO")
	if err := a.Unchanged(); err == nil {
		t.Error("a changed file is said to be unchanged")
	}
}

// TestDigest_Folder states the definition with the tools that anybody has.
func TestDigest_Folder(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "config.json"), "{}")
	write(t, filepath.Join(root, "model-1.safetensors"), strings.Repeat("w", 3<<20))
	write(t, filepath.Join(root, "sub dir", "tokenizer.json"), "tok")
	blob := write(t, filepath.Join(t.TempDir(), "blob"), "linked")
	if err := os.Symlink(blob, filepath.Join(root, "a-link")); err != nil {
		t.Fatal(err)
	}
	a, err := Digest(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	script := `cd "$1" && find -L . -type f -printf '%P\n' | LC_ALL=C sort | while IFS= read -r f; do
		printf '%s  %s  %s\n' "$(sha256sum < "$f" | cut -d' ' -f1)" "$(stat -Lc %s "$f")" "$f"; done | sha256sum | cut -d' ' -f1`
	out, err := exec.Command("sh", "-c", script, "sh", root).Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := "sha256:" + strings.TrimSpace(string(out)); a.Digest != want || a.Files != 4 || !a.IsDir || !slices.Equal(a.Outside, []string{filepath.Dir(blob)}) {
		t.Errorf("%+v, want %s", a, want)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	if b, err := Digest(t.Context(), link); err != nil || b.Digest != a.Digest {
		t.Errorf("through a link: %v, %v", b.Digest, err)
	}
	write(t, blob, "linkeD")
	if err := a.Unchanged(); err == nil {
		t.Error("a linked file changed unnoticed")
	}
}

func TestDigest_Refuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	empty, linked := filepath.Join(t.TempDir(), "empty"), t.TempDir()
	if err := errors.Join(os.Mkdir(empty, 0o755), os.Symlink(empty, filepath.Join(linked, "x"))); err != nil {
		t.Fatal(err)
	}
	dangling := t.TempDir()
	if err := os.Symlink("nowhere", filepath.Join(dangling, "x")); err != nil {
		t.Fatal(err)
	}
	odd := t.TempDir()
	write(t, filepath.Join(odd, "a\nb"), "")
	for _, path := range []string{fifo, dir, empty, linked, dangling, odd, filepath.Join(dir, "absent")} {
		if a, err := Digest(t.Context(), path); err == nil {
			t.Errorf("%s: accepted as %s", path, a.Digest)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Digest(ctx, write(t, filepath.Join(t.TempDir(), "f"), "x")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func cache(t *testing.T) *Cache {
	t.Helper()
	c, err := OpenCache(filepath.Join(t.TempDir(), "cache"), 0)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func leftovers(t *testing.T, c *Cache) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(c.dir, "*.tmp")); len(left) > 0 {
		t.Errorf("left in the cache: %v", left)
	}
}

func TestCache_Image(t *testing.T) {
	t.Parallel()
	c := cache(t)
	source := write(t, filepath.Join(t.TempDir(), "image.sif"), "genuine")
	pin := "sha256:" + sum("genuine")
	image, err := c.Image(t.Context(), source, pin, false)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(image.Path)
	if err != nil || info.Mode().Perm() != 0o400 || image.Source.Digest != pin {
		t.Fatalf("%+v %v %v", image, info, err)
	}
	// A swap of the source after the check has no effect on what is run, and the
	// next run notices it although the good copy is there.
	write(t, source, "evil")
	if b, err := os.ReadFile(image.Path); err != nil || string(b) != "genuine" {
		t.Errorf("staged copy: %q %v", b, err)
	}
	drifted, err := c.Image(t.Context(), source, pin, false)
	if err != nil || drifted.Path != "" || drifted.Source.Digest != "sha256:"+sum("evil") {
		t.Errorf("drifted: %+v, %v", drifted, err)
	}
	if _, err := os.Stat(c.path(sum("evil"))); err == nil {
		t.Error("a drifted image was kept")
	}
	unpinned, err := c.Image(t.Context(), source, "unpinned", false)
	if err != nil || unpinned.Path != c.path(sum("evil")) {
		t.Errorf("unpinned: %+v, %v", unpinned, err)
	}
	leftovers(t, c)
}

func TestCache_StaleCopyIsMadeAnew(t *testing.T) {
	t.Parallel()
	pin := "sha256:" + sum("genuine")
	damages := map[string]func(c *Cache, path string) error{
		"content": func(_ *Cache, path string) error {
			return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("tampere"), 0o600))
		},
		"content and times": func(_ *Cache, path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("tampere"), 0o600), os.Chtimes(path, info.ModTime(), info.ModTime()))
		},
		"replaced":  func(_ *Cache, path string) error { return os.WriteFile(path+"x", []byte("tampere"), 0o600) },
		"removed":   func(_ *Cache, path string) error { return os.Remove(path) },
		"no record": func(c *Cache, _ string) error { return os.Remove(c.record(sum("genuine"))) },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cache(t)
			source := write(t, filepath.Join(t.TempDir(), "image.sif"), "genuine")
			first, err := c.Image(t.Context(), source, pin, false)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(c, first.Path); err != nil {
				t.Fatal(err)
			}
			if name == "replaced" {
				if err := os.Rename(first.Path+"x", first.Path); err != nil {
					t.Fatal(err)
				}
			}
			if name != "no record" {
				if err := first.Unchanged(); err == nil {
					t.Error("the first run would not notice")
				}
			}
			second, err := c.Image(t.Context(), source, pin, false)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(second.Path); err != nil || string(b) != "genuine" {
				t.Errorf("staged %q, %v", b, err)
			}
			if err := second.Unchanged(); err != nil {
				t.Error(err)
			}
			leftovers(t, c)
		})
	}
}

func TestCache_OneCopiesOthersWait(t *testing.T) {
	t.Parallel()
	c := cache(t)
	content := strings.Repeat("0123456789abcdef", 1<<18)
	source := write(t, filepath.Join(t.TempDir(), "image.sif"), content)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			image, err := c.Image(t.Context(), source, "sha256:"+sum(content), false)
			if err != nil || image.Unchanged() != nil {
				t.Errorf("%+v, %v, %v", image, err, image.Unchanged())
			}
		})
	}
	wg.Wait()
	first, err := c.Image(t.Context(), source, "unpinned", false)
	if err != nil {
		t.Fatal(err)
	}
	twin := write(t, filepath.Join(t.TempDir(), "twin.sif"), content)
	if second, err := c.Image(t.Context(), twin, "unpinned", false); err != nil || second.Path != first.Path {
		t.Errorf("the same content: %+v, %v", second, err)
	}
	if err := first.Unchanged(); err != nil {
		t.Errorf("a copy in use was replaced by its equal: %v", err)
	}
	leftovers(t, c)
	// One who waits gives up with its context.
	id := Identity{}
	if f, opened, err := openRegular(source); err != nil {
		t.Fatal(err)
	} else {
		id = opened
		f.Close()
	}
	unlock, err := c.lock(t.Context(), fmt.Sprintf("%x-%x", id.Device, id.Inode))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Image(ctx, source, "unpinned", false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting: %v", err)
	}
}

func TestOpenCache_Refuses(t *testing.T) {
	t.Parallel()
	open := filepath.Join(t.TempDir(), "open")
	file := write(t, filepath.Join(t.TempDir(), "file"), "")
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o777), os.Symlink(t.TempDir(), link)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{open, file, link} {
		if _, err := OpenCache(dir, 0); err == nil {
			t.Errorf("%s accepted", dir)
		}
	}
}
