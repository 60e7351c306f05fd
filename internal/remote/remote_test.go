package remote

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/batch"
	"sbench/internal/remotetest"
)

func write(t *testing.T, root, name, text string) {
	t.Helper()
	p := filepath.Join(root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, m batch.Mirror) *Tree {
	t.Helper()
	tree, err := Open(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	return tree
}

func TestTree_ListAndRead(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	big := strings.Repeat("0123456789abcdef", 200_000)
	write(t, root, "shared/models/m/model.safetensors", big)
	write(t, root, "shared/models/m/sub dir/tokenizer.json", "tok")
	tree := open(t, remotetest.Start(t, root).Mirror)

	files, dir, err := tree.List("/shared/models/m")
	want := map[string]int64{"model.safetensors": int64(len(big)), "sub dir/tokenizer.json": 3}
	if diff := cmp.Diff(want, files); err != nil || !dir || diff != "" {
		t.Errorf("%v, %v\n%s", dir, err, diff)
	}
	files, dir, err = tree.List("/shared/models/m/model.safetensors")
	if diff := cmp.Diff(map[string]int64{"model.safetensors": int64(len(big))}, files); err != nil || dir || diff != "" {
		t.Errorf("%v, %v\n%s", dir, err, diff)
	}
	// More files in turn than may be open at once: closing gives the slot back.
	for range openFiles + 2 {
		r, err := tree.Read("/shared/models/m/model.safetensors")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || string(got) != big {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if _, err := tree.Read("/shared/models/m"); err == nil {
			t.Fatal("a folder is read as a file")
		}
	}
	if _, _, err := tree.List("/shared/absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

func TestTree_RefusesWhatIsNotPlain(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, "secret", "s")
	write(t, root, "newline/a\nb", "")
	write(t, root, "backslash/..\\x", "")
	write(t, root, "link/x", "")
	write(t, root, "deep/"+strings.Repeat("d/", mostDepth+2)+"x", "")
	if err := errors.Join(os.Symlink("../secret", filepath.Join(root, "link", "y")), os.Symlink("link", filepath.Join(root, "rootlink"))); err != nil {
		t.Fatal(err)
	}
	tree := open(t, remotetest.Start(t, filepath.Join(root)).Mirror)
	for p, want := range map[string]string{
		"/newline": "refused", "/backslash": "refused", "/link": "symbolic link", "/rootlink": "symbolic link", "/deep": "folders deep",
		"/../secret": "plain path", "secret": "plain path", "/newline/../secret": "plain path", "": "plain path",
	} {
		if files, _, err := tree.List(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", p, files, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "../x", "a\\b", "a\x00b", "a\rb", "\x7f", "\xff", strings.Repeat("x", 256)} {
		if !hostile(name) {
			t.Errorf("%q is let through", name)
		}
	}
	for _, name := range []string{"...", "model-00001-of-00002.safetensors", ".gitattributes", "größe", "a b"} {
		if hostile(name) {
			t.Errorf("%q is refused", name)
		}
	}
}

func TestOpen_Refuses(t *testing.T) {
	t.Parallel()
	server, other := remotetest.Start(t, t.TempDir()), remotetest.Start(t, t.TempDir())
	_, foreign := remotetest.NewKey(t)
	dir := t.TempDir()
	write(t, dir, "garbage", "PRIVATE sesame")
	write(t, dir, "open", string(foreign))
	write(t, dir, "foreign", string(foreign))
	write(t, dir, "none", "")
	hostLine, err := os.ReadFile(server.Mirror.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	otherLine, err := os.ReadFile(other.Mirror.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	// The key of the other server, under the name of this one.
	write(t, dir, "swapped", strings.Fields(string(hostLine))[0]+" "+strings.Join(strings.Fields(string(otherLine))[1:], " ")+"\n")
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Chmod(in("garbage"), 0o600), os.Chmod(in("foreign"), 0o600), os.Symlink(server.Mirror.Key, in("link"))); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		edit func(*batch.Mirror)
		want string
	}{
		"wrong host key":    {func(m *batch.Mirror) { m.KnownHosts = in("swapped") }, "its host key SHA256:"},
		"unknown host":      {func(m *batch.Mirror) { m.KnownHosts = other.Mirror.KnownHosts }, "no host key of 127.0.0.1:"},
		"no known hosts":    {func(m *batch.Mirror) { m.KnownHosts = in("none") }, "no host key of 127.0.0.1:"},
		"known hosts gone":  {func(m *batch.Mirror) { m.KnownHosts = in("gone") }, "read the known hosts"},
		"key others read":   {func(m *batch.Mirror) { m.Key = in("open") }, "has mode 0644: it must be 0600"},
		"key that is none":  {func(m *batch.Mirror) { m.Key = in("garbage") }, "is not a private key"},
		"key through link":  {func(m *batch.Mirror) { m.Key = in("link") }, "read the key"},
		"key not let in":    {func(m *batch.Mirror) { m.Key = in("foreign") }, "unable to authenticate"},
		"nobody is there":   {func(m *batch.Mirror) { m.URL = "sftp://tester@127.0.0.1:1/x" }, "no host key of 127.0.0.1:1"},
		"URL of other kind": {func(m *batch.Mirror) { m.URL = "https://x/y" }, "sftp://user@host"},
	} {
		m := server.Mirror
		tt.edit(&m)
		tree, err := Open(t.Context(), m)
		if err == nil {
			_ = tree.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	if n := server.Connections.Load(); n != 0 {
		t.Errorf("%d of them were let in", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, server.Mirror); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestTree_CutAndCancelled(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, "f", strings.Repeat("x", 4<<20))
	server := remotetest.Start(t, root)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tree, err := Open(ctx, server.Mirror)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	r, err := tree.Read("/f")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cancel()
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	server.CutAfter(1 << 20)
	cut, err := open(t, server.Mirror).Read("/f")
	if err != nil {
		t.Fatal(err)
	}
	defer cut.Close()
	if n, err := io.Copy(io.Discard, cut); err == nil && n == 4<<20 {
		t.Error("a connection that was cut gave the whole file")
	}
}
