// Package stage brings artefacts to the node by content. It promises that a
// digest is of the bytes of the opened file, that an image is run from a private
// copy made while it was hashed, so that nothing can be swapped in between, and
// that what changed since is noticed. It refuses special files and caches that
// others can write.
package stage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Identity changes whenever a file is replaced or written: the kernel sets the
// change time, no program can.
type Identity struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Size   int64  `json:"size"`
	MTime  int64  `json:"mtime_ns"`
	CTime  int64  `json:"ctime_ns"`
}

func identityOf(fd int) (Identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Identity{}, err
	}
	return identity(&st), nil
}

func identity(st *unix.Stat_t) Identity {
	return Identity{
		Device: st.Dev, Inode: st.Ino, Size: st.Size,
		MTime: st.Mtim.Nano(), CTime: st.Ctim.Nano(),
	}
}

// Artefact is a file or folder by content.
type Artefact struct {
	Path   string
	Digest string // "sha256:<hex>"
	Size   int64
	Files  int
	IsDir  bool
	// Outside are the folders, other than the artefact's own, in which links of
	// the folder end: a container must see them too.
	Outside []string
	seen    map[string]Identity // by path
}

// Unchanged returns an error that names the first file that was replaced or
// written since the artefact was hashed.
func (a Artefact) Unchanged() error {
	for path, was := range a.seen {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return fmt.Errorf("look at %s again: %w", path, err)
		}
		if identity(&st) != was {
			return fmt.Errorf("%s was replaced or written since it was hashed", path)
		}
	}
	return nil
}

// Identities returns the identity of every file, by path.
func (a Artefact) Identities() map[string]Identity { return a.seen }

// Digest hashes a file, or a folder as the SHA-256 of its manifest: one line
// "sha256  size  relative path" per file, sorted by path. Files of a folder are
// hashed in parallel. Links to files are followed, as the engine will; links to
// folders, and special files, are refused.
func Digest(ctx context.Context, path string) (Artefact, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Artefact{}, fmt.Errorf("digest: %w", err)
	}
	if info.IsDir() {
		return digestDir(ctx, path)
	}
	f, id, err := openRegular(path)
	if err != nil {
		return Artefact{}, fmt.Errorf("digest: %w", err)
	}
	defer f.Close()
	sum, err := hashFile(ctx, f, id, nil)
	if err != nil {
		return Artefact{}, fmt.Errorf("digest: %w", err)
	}
	return Artefact{Path: path, Digest: "sha256:" + sum, Size: id.Size, Files: 1, seen: map[string]Identity{path: id}}, nil
}

type entry struct {
	rel, path, sum string
	outside        string // folder of the link's target; "" where it is inside
	id             Identity
}

func digestDir(ctx context.Context, root string) (Artefact, error) {
	entries, err := list(root)
	if err != nil {
		return Artefact{}, fmt.Errorf("digest %s: %w", root, err)
	}
	// The largest first, so that no worker is left with a big file at the end.
	order := make([]int, len(entries))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(min(1, max(-1, entries[b].id.Size-entries[a].id.Size))) })
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, i := range order {
		e := &entries[i]
		group.Go(func() error {
			f, id, err := openRegular(e.path)
			if err != nil {
				return err
			}
			defer f.Close()
			e.id = id
			e.sum, err = hashFile(ctx, f, id, nil)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return Artefact{}, fmt.Errorf("digest %s: %w", root, err)
	}
	a := Artefact{Path: root, Files: len(entries), IsDir: true, seen: map[string]Identity{}}
	manifest := sha256.New()
	for _, e := range entries {
		fmt.Fprintf(manifest, "%s  %d  %s\n", e.sum, e.id.Size, e.rel)
		a.Size += e.id.Size
		a.seen[e.path] = e.id
		if e.outside != "" && !slices.Contains(a.Outside, e.outside) {
			a.Outside = append(a.Outside, e.outside)
		}
	}
	slices.Sort(a.Outside)
	a.Digest = "sha256:" + hex.EncodeToString(manifest.Sum(nil))
	return a, nil
}

// list returns the files of a folder, sorted by relative path.
func list(root string) ([]entry, error) {
	var entries []entry
	// WalkDir does not enter a root that is a link.
	resolved, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(resolved, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(resolved, path)
		if err != nil {
			return err
		}
		if strings.ContainsAny(rel, "\n\r") {
			return fmt.Errorf("%q: a file name with a line break", rel)
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file (%s)", rel, info.Mode().Type())
		}
		e := entry{rel: filepath.ToSlash(rel), path: path, id: Identity{Size: info.Size()}}
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := filepath.EvalSymlinks(path)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(target, resolved+string(filepath.Separator)) {
				e.outside = filepath.Dir(target)
			}
		}
		entries = append(entries, e)
		return nil
	})
	if err == nil && len(entries) == 0 {
		err = errors.New("the folder has no files")
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.rel, b.rel) })
	return entries, err
}

func openRegular(path string) (*os.File, Identity, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, Identity{}, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	var id Identity
	if err == nil {
		id, err = identityOf(int(f.Fd()))
	}
	if err != nil {
		return nil, Identity{}, errors.Join(err, f.Close())
	}
	return f, id, nil
}

const blockSize = 1 << 20

// hashFile hashes all of f, copying it to dst unless that is nil. A file that
// changes while it is read is an error.
func hashFile(ctx context.Context, f *os.File, before Identity, dst io.Writer) (string, error) {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL) // a hint
	h := sha256.New()
	n, err := copyHash(ctx, h, f, dst)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", f.Name(), err)
	}
	after, err := identityOf(int(f.Fd()))
	if err != nil {
		return "", fmt.Errorf("look at %s again: %w", f.Name(), err)
	}
	if n != before.Size || after != before {
		return "", fmt.Errorf("%s changed while it was read", f.Name())
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func copyHash(ctx context.Context, h hash.Hash, src io.Reader, dst io.Writer) (int64, error) {
	buffer := make([]byte, blockSize)
	var total int64
	for {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		n, err := src.Read(buffer)
		total += int64(n)
		h.Write(buffer[:n])
		if dst != nil && n > 0 {
			if _, err := dst.Write(buffer[:n]); err != nil {
				return total, err
			}
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
