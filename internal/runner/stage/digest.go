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
	"time"

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
	// Manifest lists the files of a folder, sorted by path; Digest is the SHA-256
	// of its lines.
	Manifest []Entry
	// Hashed is how many bytes were read for this; the digests of the rest were
	// remembered, the oldest since Since.
	Hashed int64
	Since  time.Time           // zero where nothing was remembered
	seen   map[string]Identity // by path
	use    *os.File            // of a copy in the cache: it is not evicted while this is open
}

// Entry is a file of a folder.
type Entry struct {
	SHA256 string `json:"sha256"` // 64 hexadecimal digits
	Size   int64  `json:"size"`   // bytes
	Path   string `json:"path"`   // relative, with slashes
}

// Line is the entry in the text whose digest is the folder's.
func (e Entry) Line() string { return fmt.Sprintf("%s  %d  %s\n", e.SHA256, e.Size, e.Path) }

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
	return Hasher{}.Digest(ctx, path)
}

// Hasher makes digests. The zero value reads every byte.
type Hasher struct {
	// Known returns the digest of a file that was hashed before, and when; nil
	// knows none.
	Known func(path string, id Identity) (sum string, at time.Time, ok bool)
	// Done is told of every file that was hashed, and when that began. Known and
	// Done are called concurrently.
	Done func(path string, id Identity, sum string, began time.Time)
	// Progress is told of bytes done, hashed or known, concurrently; Total once,
	// before the first of them.
	Progress func(bytes int64)
	Total    func(files int, bytes int64)
}

// entry is a file on its way into a manifest.
type entry struct {
	Entry
	path    string
	outside string // folder of the link's target; "" where it is inside
	id      Identity
	hashed  bool
	at      time.Time // when it was hashed, where that is remembered
}

// Digest is the function of the same name.
func (h Hasher) Digest(ctx context.Context, path string) (Artefact, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Artefact{}, fmt.Errorf("digest: %w", err)
	}
	if info.IsDir() {
		return h.folder(ctx, path)
	}
	e := entry{path: path, id: Identity{Size: info.Size()}}
	if h.Total != nil {
		h.Total(1, info.Size())
	}
	if err := h.file(ctx, &e); err != nil {
		return Artefact{}, fmt.Errorf("digest: %w", err)
	}
	a := Artefact{Path: path, Digest: "sha256:" + e.SHA256, Size: e.id.Size, Files: 1, seen: map[string]Identity{path: e.id}}
	a.count(&e)
	return a, nil
}

// count notes whether the entry's bytes were read.
func (a *Artefact) count(e *entry) {
	switch {
	case e.hashed:
		a.Hashed += e.id.Size
	case a.Since.IsZero() || e.at.Before(a.Since):
		a.Since = e.at
	}
}

// file completes an entry.
func (h Hasher) file(ctx context.Context, e *entry) error {
	f, id, err := openRegular(e.path)
	if err != nil {
		return err
	}
	defer f.Close()
	e.id, e.Size = id, id.Size
	if h.Known != nil {
		if sum, at, ok := h.Known(e.path, id); ok {
			e.SHA256, e.at = sum, at
			if h.Progress != nil {
				h.Progress(id.Size)
			}
			return nil
		}
	}
	began := time.Now()
	if e.SHA256, err = hashFile(ctx, f, id, nil, h.Progress); err != nil {
		return err
	}
	e.hashed = true
	if h.Done != nil {
		h.Done(e.path, id, e.SHA256, began)
	}
	return nil
}

func (h Hasher) folder(ctx context.Context, root string) (Artefact, error) {
	entries, err := list(root)
	if err != nil {
		return Artefact{}, fmt.Errorf("digest %s: %w", root, err)
	}
	if h.Total != nil {
		var total int64
		for _, e := range entries {
			total += e.id.Size
		}
		h.Total(len(entries), total)
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
		group.Go(func() error { return h.file(ctx, &entries[i]) })
	}
	if err := group.Wait(); err != nil {
		return Artefact{}, fmt.Errorf("digest %s: %w", root, err)
	}
	a := Artefact{Path: root, Files: len(entries), IsDir: true, seen: map[string]Identity{}}
	manifest := sha256.New()
	for i := range entries {
		e := &entries[i]
		_, _ = io.WriteString(manifest, e.Line()) // never fails
		a.Manifest = append(a.Manifest, e.Entry)
		a.Size += e.id.Size
		a.seen[e.path] = e.id
		a.count(e)
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
		e := entry{Entry: Entry{Path: filepath.ToSlash(rel)}, path: path, id: Identity{Size: info.Size()}}
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
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.Path, b.Path) })
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
// changes while it is read is an error. progress may be nil.
func hashFile(ctx context.Context, f *os.File, before Identity, dst io.Writer, progress func(int64)) (string, error) {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL) // a hint
	h := sha256.New()
	n, err := copyHash(ctx, h, f, dst, progress)
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

func copyHash(ctx context.Context, h hash.Hash, src io.Reader, dst io.Writer, progress func(int64)) (int64, error) {
	buffer := make([]byte, blockSize)
	var total int64
	for {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		n, err := src.Read(buffer)
		total += int64(n)
		h.Write(buffer[:n])
		if progress != nil {
			progress(int64(n))
		}
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
