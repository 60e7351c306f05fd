package stage

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// settled waits until files have not been changed for a while: only then is a
// digest remembered, and nobody but the kernel can set the change time.
func settled(t *testing.T) {
	t.Helper()
	time.Sleep(racy + 50*time.Millisecond)
}

func TestCache_Once(t *testing.T) {
	t.Parallel()
	c := cache(t)
	root := t.TempDir()
	write(t, filepath.Join(root, "a"), strings.Repeat("a", 1000))
	b := write(t, filepath.Join(root, "b"), strings.Repeat("b", 2000))
	once := func() Artefact {
		t.Helper()
		a, err := c.Once(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Digest(t.Context(), root)
		if err != nil || a.Digest != want.Digest || a.Size != want.Size {
			t.Fatalf("digest %s, want %s (%v)", a.Digest, want.Digest, err)
		}
		return a
	}
	if a := once(); a.Hashed != 3000 {
		t.Fatalf("first: hashed %d bytes of 3000", a.Hashed)
	}
	if a := once(); a.Hashed != 3000 {
		t.Errorf("files that were just written: hashed %d bytes of 3000", a.Hashed)
	}
	settled(t)
	_ = once()
	if a := once(); a.Hashed != 0 || a.Since.IsZero() || a.Unchanged() != nil {
		t.Errorf("again: hashed %d bytes, since %v", a.Hashed, a.Since)
	}
	// Each of these is a change that must be seen, also with the old times put back.
	info, err := os.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"content, same size, same time": func() error {
			return errors.Join(os.WriteFile(b, []byte(strings.Repeat("B", 2000)), 0o644), os.Chtimes(b, info.ModTime(), info.ModTime()))
		},
		"replaced by another file": func() error {
			next := write(t, filepath.Join(t.TempDir(), "next"), strings.Repeat("c", 2000))
			return errors.Join(os.Chtimes(next, info.ModTime(), info.ModTime()), rename(next, b))
		},
		"appended": func() error {
			f, err := os.OpenFile(b, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("x")
			return errors.Join(err, f.Close())
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if a := once(); a.Hashed < 2000 || a.Hashed >= 3000 {
			t.Errorf("%s: hashed %d bytes, want those of b alone", name, a.Hashed)
		}
	}
	// A memory of another boot, a damaged one and none are worth nothing.
	settled(t)
	for name, damage := range map[string]func(path string, m map[string]any) error{
		"another boot": func(path string, m map[string]any) error {
			m["boot"] = "another"
			text, err := json.Marshal(m)
			return errors.Join(err, os.WriteFile(path, text, 0o600))
		},
		"damaged": func(path string, _ map[string]any) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"removed": func(path string, _ map[string]any) error { return os.Remove(path) },
	} {
		_ = once()
		path := c.memoryPath(root)
		text, err := os.ReadFile(path)
		var m map[string]any
		if err = errors.Join(err, json.Unmarshal(text, &m)); err != nil {
			t.Fatal(err)
		}
		if err := damage(path, m); err != nil {
			t.Fatal(err)
		}
		if a := once(); a.Hashed != a.Size {
			t.Errorf("%s: hashed %d of %d bytes", name, a.Hashed, a.Size)
		}
	}
	leftovers(t, c)
}

func rename(from, to string) error { return os.Rename(from, to) }

// TestCache_ImageOnce: a source that this node has hashed is not read again, and
// one that changed is.
func TestCache_ImageOnce(t *testing.T) {
	t.Parallel()
	c := cache(t)
	source := write(t, filepath.Join(t.TempDir(), "image.sif"), "genuine")
	pin := "sha256:" + sum("genuine")
	settled(t)
	for i, want := range []int64{7, 0, 0} {
		image, err := c.Image(t.Context(), source, pin, true)
		if err != nil || image.Path == "" || image.Source.Hashed != want {
			t.Errorf("%d: %+v, %v, want %d bytes hashed", i, image, err, want)
		}
	}
	if image, err := c.Image(t.Context(), source, pin, false); err != nil || image.Source.Hashed != 7 {
		t.Errorf("always: %+v, %v", image, err)
	}
	write(t, source, "EVIL!!!")
	if image, err := c.Image(t.Context(), source, pin, true); err != nil || image.Path != "" || image.Source.Digest != "sha256:"+sum("EVIL!!!") {
		t.Errorf("changed: %+v, %v", image, err)
	}
}

// TestResumable: what was hashed before an interruption is not hashed again.
func TestResumable(t *testing.T) {
	t.Parallel()
	root, saved := t.TempDir(), filepath.Join(t.TempDir(), "state", "digest.json")
	for _, name := range []string{"a", "b", "c", "d"} {
		write(t, filepath.Join(root, name), strings.Repeat(name, 1000))
	}
	// The last to be hashed cannot be read to its end.
	large := filepath.Join(root, "z")
	if err := os.WriteFile(large, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 1<<40); err != nil {
		t.Fatal(err)
	}
	settled(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Resumable(ctx, root, saved, func(done, total int64) {
		if done > 64<<20 {
			cancel() // in the middle of the large one: the small ones are done or under way
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	m := remember(saved, "by path")
	if len(m.text.Files) == 0 {
		t.Fatal("nothing was saved")
	}
	if err := os.Truncate(large, 0); err != nil {
		t.Fatal(err)
	}
	var last, all int64
	a, err := Resumable(t.Context(), root, saved, func(done, total int64) { last, all = done, total })
	if err != nil {
		t.Fatal(err)
	}
	want, err := Digest(t.Context(), root)
	if err != nil || a.Digest != want.Digest || len(a.Manifest) != 5 {
		t.Errorf("digest %s, want %s (%v); %d files", a.Digest, want.Digest, err, len(a.Manifest))
	}
	if a.Hashed != 4000-1000*int64(len(m.text.Files)) || last != 4000 || all != 4000 {
		t.Errorf("hashed %d bytes after %d of 4 files were saved; progress %d of %d", a.Hashed, len(m.text.Files), last, all)
	}
	if _, err := os.Stat(saved); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state is still there: %v", err)
	}
}
