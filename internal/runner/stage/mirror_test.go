package stage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh/knownhosts"

	"sbench/internal/batch"
	"sbench/internal/remote"
	"sbench/internal/remotetest"
)

// mirror is a server with a folder of its own.
type mirror struct {
	root   string
	server *remotetest.Server
}

func newMirror(t *testing.T) mirror {
	t.Helper()
	root := t.TempDir()
	return mirror{root, remotetest.Start(t, root)}
}

func (m mirror) is() Mirror { return over(m.server.Mirror) }

func over(m batch.Mirror) Mirror {
	return Mirror{Name: m.URL, Open: func(ctx context.Context) (Tree, error) {
		tree, err := remote.Open(ctx, m)
		if err != nil {
			return nil, err
		}
		return tree, nil
	}}
}

// kind is something that can be staged from a mirror.
type kind struct {
	write func(t *testing.T, path, content string) // puts it where it lies
	take  func(ctx context.Context, c *Cache, path, pin string, once bool) (Artefact, error)
	read  string // a file of it, "" for itself
}

func kinds() map[string]kind {
	folder := func(t *testing.T, path, content string) {
		write(t, filepath.Join(path, "config.json"), "{}")
		write(t, filepath.Join(path, "weights", "model.safetensors"), content)
		write(t, filepath.Join(path, "empty"), "")
	}
	file := func(t *testing.T, path, content string) { write(t, path, content) }
	checkpoint := func(ctx context.Context, c *Cache, path, pin string, once bool) (Artefact, error) {
		return c.Checkpoint(ctx, path, pin, once)
	}
	image := func(ctx context.Context, c *Cache, path, pin string, once bool) (Artefact, error) {
		x, err := c.Image(ctx, path, pin, once)
		x.Source.use = x.use
		return x.Source, err
	}
	return map[string]kind{
		"image": {file, image, ""}, "checkpoint": {folder, checkpoint, "weights/model.safetensors"}, "checkpoint of one file": {file, checkpoint, ""},
	}
}

// pin is the digest of the content, told by hashing it where it can be read.
func (k kind) pin(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x")
	k.write(t, path, content)
	a, err := Digest(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return a.Digest
}

func nothingLeft(t *testing.T, c *Cache) {
	t.Helper()
	leftovers(t, c)
	for _, kind := range []string{"*.sif", "*" + treeSuffix, "[0-9a-f]*.json"} {
		if left, _ := filepath.Glob(filepath.Join(c.dir, kind)); len(left) > 0 {
			t.Errorf("left in the cache: %v", left)
		}
	}
}

func TestCache_FromMirror(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("genuine ", 300_000)
	for name, k := range kinds() {
		for _, once := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				source := filepath.Join(t.TempDir(), "absent", "artefact")
				good := newMirror(t)
				k.write(t, good.root+source, content)
				pin := k.pin(t, content)
				c, err := OpenCache(filepath.Join(t.TempDir(), "cache"), 0, good.is())
				if err != nil {
					t.Fatal(err)
				}
				if a, err := k.take(t.Context(), c, source, "unpinned", once); err == nil {
					t.Errorf("what is not pinned is taken: %+v", a)
				}
				var wg sync.WaitGroup
				for range 4 { // one takes it, the others wait
					wg.Go(func() {
						a, err := k.take(t.Context(), c, source, pin, once)
						if err != nil || a.Digest != pin || a.Unchanged() != nil || len(a.seen) == 0 {
							t.Errorf("%+v, %v", a, err)
							return
						}
						b, err := os.ReadFile(filepath.Join(a.Path, k.read))
						if err != nil || string(b) != content {
							t.Errorf("%d bytes, %v", len(b), err)
						}
					})
				}
				wg.Wait()
				if n := good.server.Connections.Load(); n != 1 {
					t.Errorf("%d connections", n)
				}
				leftovers(t, c)

				// A copy that somebody wrote into is not used.
				a, err := k.take(t.Context(), c, source, pin, once)
				if err != nil {
					t.Fatal(err)
				}
				damaged := filepath.Join(a.Path, k.read)
				if err := errors.Join(os.Chmod(damaged, 0o600), os.WriteFile(damaged, []byte("tampered"), 0o600)); err != nil {
					t.Fatal(err)
				}
				if a.Unchanged() == nil {
					t.Error("a run that uses it would not notice")
				}
				a, err = k.take(t.Context(), c, source, pin, once)
				if err != nil || a.Digest != pin || a.Unchanged() != nil || good.server.Connections.Load() != 2 {
					t.Errorf("%+v, %v, %d connections", a, err, good.server.Connections.Load())
				}

				// Where it can be read, its place is what counts.
				k.write(t, source, "drifted")
				a, err = k.take(t.Context(), c, source, pin, once)
				if err != nil || a.Digest != k.pin(t, "drifted") {
					t.Errorf("drifted: %+v, %v", a, err)
				}
			})
		}
	}
}

func TestCache_MirrorsThatFail(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("genuine ", 300_000)
	for name, k := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := filepath.Join(t.TempDir(), "absent", "artefact")
			pin := k.pin(t, content)
			wrong, cut, linked, none, good := newMirror(t), newMirror(t), newMirror(t), newMirror(t), newMirror(t)
			k.write(t, wrong.root+source, strings.Replace(content, "g", "G", 1))
			k.write(t, cut.root+source, content)
			cut.server.CutAfter(1 << 20)
			k.write(t, linked.root+"/elsewhere", content)
			if err := errors.Join(os.MkdirAll(filepath.Dir(linked.root+source), 0o755), os.Symlink(linked.root+"/elsewhere", linked.root+source)); err != nil {
				t.Fatal(err)
			}
			k.write(t, good.root+source, content)
			// A server of another key, under the name of the good one.
			impostor := good.server.Mirror
			key, _ := remotetest.NewKey(t)
			at, err := batch.ParseMirrorURL(impostor.URL)
			if err != nil {
				t.Fatal(err)
			}
			impostor.KnownHosts = write(t, filepath.Join(t.TempDir(), "known_hosts"), knownhosts.Line([]string{at.Host}, key.PublicKey())+"\n")
			away := none.server.Mirror
			away.URL = strings.Replace(away.URL, "127.0.0.1", "127.0.0.2", 1) // nobody listens
			away.KnownHosts = write(t, filepath.Join(t.TempDir(), "known_hosts"), knownhosts.Line([]string{strings.Replace(hostOf(t, none), "127.0.0.1", "127.0.0.2", 1)}, key.PublicKey())+"\n")
			bad := []Mirror{over(away), over(impostor), none.is(), linked.is(), wrong.is(), cut.is()}
			want := []string{"connection refused", "its host key SHA256:", "not exist", "symbolic link", "it is not used", "after "}

			c, err := OpenCache(filepath.Join(t.TempDir(), "cache"), 0, bad...)
			if err != nil {
				t.Fatal(err)
			}
			a, err := k.take(t.Context(), c, source, pin, false)
			if err == nil {
				t.Fatalf("accepted: %+v", a)
			}
			reasons := strings.Split(err.Error(), "; ")
			if len(reasons) != 1+len(bad) || !strings.Contains(reasons[0], source) {
				t.Fatalf("%q", reasons)
			}
			for i, m := range bad {
				if !strings.Contains(reasons[i+1], "mirror "+m.Name+": ") || !strings.Contains(reasons[i+1], want[i]) {
					t.Errorf("%q, want %q", reasons[i+1], want[i])
				}
			}
			nothingLeft(t, c)

			c, err = OpenCache(c.dir, 0, append(bad, good.is())...)
			if err != nil {
				t.Fatal(err)
			}
			if a, err := k.take(t.Context(), c, source, pin, false); err != nil || a.Digest != pin || a.Unchanged() != nil {
				t.Errorf("the last mirror: %+v, %v", a, err)
			}
			leftovers(t, c)
		})
	}
}

func hostOf(t *testing.T, m mirror) string {
	t.Helper()
	at, err := batch.ParseMirrorURL(m.server.Mirror.URL)
	if err != nil {
		t.Fatal(err)
	}
	return at.Host
}

// TestCache_EvictsCheckpoints: the budget holds for them too, and none goes that
// is in use.
func TestCache_EvictsCheckpoints(t *testing.T) {
	t.Parallel()
	k := kinds()["checkpoint"]
	m := newMirror(t)
	dir := t.TempDir()
	first, second := strings.Repeat("1", 1<<20), strings.Repeat("2", 1<<20)
	a, b := filepath.Join(dir, "absent", "a"), filepath.Join(dir, "absent", "b")
	k.write(t, m.root+a, first)
	k.write(t, m.root+b, second)
	c, err := OpenCache(filepath.Join(dir, "cache"), 3<<19, m.is())
	if err != nil {
		t.Fatal(err)
	}
	held, err := c.Checkpoint(t.Context(), a, k.pin(t, first), false)
	if err != nil {
		t.Fatal(err)
	}
	if x, err := c.Checkpoint(t.Context(), b, k.pin(t, second), false); !errors.Is(err, ErrFull) {
		t.Fatalf("%+v, %v", x, err)
	}
	if err := held.Unchanged(); err != nil {
		t.Fatal(err)
	}
	if err := held.use.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Checkpoint(t.Context(), b, k.pin(t, second), false); err != nil {
		t.Fatal(err)
	}
	if err := held.Unchanged(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the first is still there: %v", err)
	}
	leftovers(t, c)
}

// TestRemoveHalfCopies_Folder: what a dead runner left of a checkpoint goes, what a
// living one writes stays.
func TestRemoveHalfCopies_Folder(t *testing.T) {
	t.Parallel()
	c := cache(t)
	half, err := c.reserveTree(t.Context(), map[string]int64{"a/b": 10, "c": 0})
	if err != nil {
		t.Fatal(err)
	}
	if removed, err := RemoveHalfCopies(c.dir, os.Getuid()); err != nil || len(removed) != 0 {
		t.Errorf("%v, %v", removed, err)
	}
	if err := half.Close(); err != nil {
		t.Fatal(err)
	}
	if removed, err := RemoveHalfCopies(c.dir, os.Getuid()); err != nil || len(removed) != 1 {
		t.Errorf("%v, %v", removed, err)
	}
	nothingLeft(t, c)
	for _, name := range []string{"../x", "/x", "a/../../x", "", "a\nb"} {
		if half, err := c.reserveTree(t.Context(), map[string]int64{name: 1}); err == nil {
			t.Errorf("%q is accepted: %s", name, half.Name())
		}
	}
	nothingLeft(t, c)
}
