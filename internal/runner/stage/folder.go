package stage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// treeSuffix ends the name of a folder of the cache that holds a checkpoint.
const treeSuffix = ".tree"

func (c *Cache) tree(sum string) string       { return filepath.Join(c.dir, sum+treeSuffix) }
func (c *Cache) treeRecord(sum string) string { return c.tree(sum) + ".json" }

// wholeTree says that a checkpoint is whole. Its time is when it was last used.
type wholeTree struct {
	File string `json:"file"` // the name of the only file, where the artefact is one; "" is a folder
}

// Checkpoint digests a checkpoint where it lies. Where that cannot be opened and
// pinned is "sha256:<hex>", it is taken from a mirror into the cache, as an image
// is; Path is then the copy, which stays while the Artefact is held.
func (c *Cache) Checkpoint(ctx context.Context, source, pinned string, once bool) (Artefact, error) {
	why := unreadable(source)
	want, ok := c.mayMirror(pinned, why)
	if why == nil || !ok {
		return c.copied(ctx, source, once)
	}
	unlock, err := c.lock(ctx, "mirror-"+want)
	if err != nil {
		return Artefact{}, fmt.Errorf("stage checkpoint: %w", err)
	}
	defer unlock()
	a, err := c.validTree(ctx, want, once)
	if err == nil && a.use == nil {
		err = c.fromMirrors(ctx, why, func(tree Tree) (err error) {
			a, err = c.takeTree(ctx, tree, source, want)
			return err
		})
	}
	if err != nil {
		return Artefact{}, fmt.Errorf("stage checkpoint: %w", err)
	}
	return a, nil
}

// validTree returns the copy of a checkpoint, held against eviction, if it is the
// one that is wanted; one without use where there is none.
func (c *Cache) validTree(ctx context.Context, want string, once bool) (Artefact, error) {
	use, record, ok := c.holdTree(want)
	if !ok {
		return Artefact{}, nil
	}
	a, err := c.copied(ctx, filepath.Join(c.tree(want), record.File), once)
	if err == nil && a.Digest == "sha256:"+want {
		a.use = use
		return a, nil
	}
	return Artefact{}, errors.Join(ctx.Err(), use.Close())
}

// holdTree opens and locks the copy of a checkpoint.
func (c *Cache) holdTree(sum string) (use *os.File, record wholeTree, ok bool) {
	use, err := os.OpenFile(c.tree(sum), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, record, false
	}
	if unix.Flock(int(use.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil { // else it is being evicted
		opened, err := identityOf(int(use.Fd()))
		now, nameErr := identityOfPath(c.tree(sum))
		b, readErr := os.ReadFile(c.treeRecord(sum))
		whole := errors.Join(err, nameErr, readErr) == nil && now.Inode == opened.Inode && json.Unmarshal(b, &record) == nil
		if whole && (record.File == "" || filepath.Base(record.File) == record.File) {
			touch(c.treeRecord(sum))
			return use, record, true
		}
	}
	use.Close()
	return nil, record, false
}

// takeTree copies a checkpoint from a mirror. What is not what is pinned is
// removed.
func (c *Cache) takeTree(ctx context.Context, tree Tree, source, want string) (a Artefact, err error) {
	sizes, dir, err := tree.List(source)
	if err != nil {
		return Artefact{}, err
	}
	if len(sizes) == 0 {
		return Artefact{}, fmt.Errorf("%s has no files there", source)
	}
	half, err := c.reserveTree(ctx, sizes)
	if err != nil {
		return Artefact{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(half.Name())) // gone where it has got its name
		}
		half.Close()
	}()
	names := slices.Sorted(maps.Keys(sizes))
	entries := make([]entry, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i, name := range names {
		group.Go(func() error {
			from := source
			if dir {
				from = source + "/" + name
			}
			out, err := os.OpenFile(filepath.Join(half.Name(), filepath.FromSlash(name)), os.O_WRONLY|unix.O_NOFOLLOW, 0)
			if err != nil {
				return err
			}
			defer out.Close()
			e := entry{Entry: Entry{Path: name, Size: sizes[name]}, path: filepath.Join(c.tree(want), filepath.FromSlash(name)), hashed: true}
			e.SHA256, e.id, err = take(ctx, tree, from, sizes[name], out)
			entries[i] = e
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return Artefact{}, err
	}
	a, record := Artefact{Path: c.tree(want), IsDir: dir, seen: map[string]Identity{}}, wholeTree{}
	manifest := sha256.New()
	for i := range entries {
		_, _ = manifest.Write([]byte(entries[i].Line())) // never fails
		a.append(&entries[i])
	}
	sum := hex.EncodeToString(manifest.Sum(nil))
	if !dir {
		sum, record.File, a.Path, a.Manifest = entries[0].SHA256, names[0], entries[0].path, nil
	}
	if sum != want {
		return Artefact{}, wrongContent(source, sum, want)
	}
	a.Digest = "sha256:" + sum
	a.use, err = c.publishTree(want, half, record)
	return a, err
}

// append adds a file of a folder.
func (a *Artefact) append(e *entry) {
	a.Manifest = append(a.Manifest, e.Entry)
	a.Files++
	a.Size += e.id.Size
	a.seen[e.path] = e.id
	a.count(e)
}

// reserveTree makes all files of a checkpoint, empty, with their space, in a
// folder that is locked until it is closed. It evicts what it must.
func (c *Cache) reserveTree(ctx context.Context, sizes map[string]int64) (*os.File, error) {
	unlock, err := c.lock(ctx, "evict")
	if err != nil {
		return nil, err
	}
	defer unlock()
	var total int64
	for name, size := range sizes {
		if !filepath.IsLocal(filepath.FromSlash(name)) || strings.ContainsAny(name, "\n\r") {
			return nil, fmt.Errorf("the name %q is refused", name)
		}
		if total += size; size < 0 || total < 0 {
			return nil, fmt.Errorf("%q has an impossible size", name)
		}
	}
	for {
		if err := c.makeRoom(total); err != nil {
			return nil, err
		}
		half, err := c.halfTree(sizes)
		if errors.Is(err, fs.ErrNotExist) {
			continue // who looks for half copies has removed it before it was locked
		}
		if err == nil || !errors.Is(err, unix.ENOSPC) {
			return half, err
		}
		switch evicted, evictErr := c.evictOne(); {
		case evictErr != nil:
			return nil, errors.Join(err, evictErr)
		case !evicted:
			return nil, fmt.Errorf("%w: %s has no space for %d bytes, and everything there is in use", ErrFull, c.dir, total)
		}
	}
}

func (c *Cache) halfTree(sizes map[string]int64) (half *os.File, err error) {
	dir, err := os.MkdirTemp(c.dir, halfCopies)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if half, err = os.Open(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			half.Close()
		}
	}()
	if err := unix.Flock(int(half.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	for name, size := range sizes {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(allocate(out, size), out.Close()); err != nil {
			return nil, fmt.Errorf("reserve %d bytes in %s: %w", size, c.dir, err)
		}
	}
	return half, nil
}

// allocate gives a file its space; where the file system cannot do that, its size
// at least, so that others see how large it will be.
func allocate(out *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	err := unix.Fallocate(int(out.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return out.Truncate(size)
	}
	return err
}

// publishTree gives the checkpoint its name, in the place of one that was found
// to be damaged. The record comes last: a copy without one is made anew.
func (c *Cache) publishTree(sum string, half *os.File, record wholeTree) (use *os.File, err error) {
	b, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(c.treeRecord(sum)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := errors.Join(os.RemoveAll(c.tree(sum)), os.Rename(half.Name(), c.tree(sum))); err != nil {
		return nil, err
	}
	next := c.treeRecord(sum) + fmt.Sprintf(".%d.tmp", os.Getpid())
	if err := os.WriteFile(next, b, 0o600); err != nil {
		return nil, errors.Join(err, os.Remove(next))
	}
	if err := os.Rename(next, c.treeRecord(sum)); err != nil {
		return nil, err
	}
	// The copier's lock becomes a reader's.
	if err := half.Close(); err != nil {
		return nil, err
	}
	use, _, ok := c.holdTree(sum)
	if !ok {
		return nil, fmt.Errorf("%s was evicted before it could be used", c.tree(sum))
	}
	return use, nil
}

// spaceOf is how many bytes a file or folder of the cache has.
func spaceOf(path string) (total int64, err error) {
	err = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}
