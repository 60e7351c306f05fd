package stage

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cache is a private folder of images on the node, named by their content, and of
// checkpoints that were taken from mirrors. Any number of runners of one user may
// share it.
type Cache struct {
	dir     string
	limit   int64 // bytes of all copies; 0 is no limit but the disk's
	mirrors []Mirror
}

// Image is a staged image.
type Image struct {
	// Source is the file that the setting names; the copy, where that could not be
	// opened and a mirror had it.
	Source Artefact
	Path   string // the private copy, to be run; "" where the digest was not the pinned one
	copied Identity
	use    *os.File // with a shared lock: it is not evicted
}

// Unchanged returns an error if the copy was written or replaced.
func (i Image) Unchanged() error {
	now, err := identityOfPath(i.Path)
	if err != nil {
		return fmt.Errorf("look at the staged image again: %w", err)
	}
	if now != i.copied {
		return fmt.Errorf("the staged image %s was written or replaced", i.Path)
	}
	return nil
}

// Release says that the image is not used any more: it may be evicted. So may the
// image of a process that has ended.
func (i Image) Release() error {
	if i.use == nil {
		return nil
	}
	return i.use.Close()
}

// OpenCache makes the folder where needed. It must be this user's alone. limit is
// how many bytes all copies may have together; 0 is no limit. The mirrors are
// tried in turn for what is pinned and cannot be opened where it should lie.
func OpenCache(dir string, limit int64, mirrors ...Mirror) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return nil, fmt.Errorf("open cache %s: %w", dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return nil, fmt.Errorf("open cache: %s is not a folder", dir)
	case int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("open cache: %s belongs to user %d", dir, st.Uid)
	case st.Mode&0o022 != 0:
		return nil, fmt.Errorf("open cache: %s can be written by others (mode %03o)", dir, st.Mode&0o777)
	}
	return &Cache{dir: dir, limit: limit, mirrors: mirrors}, nil
}

// Image hashes source and returns a private copy of the very bytes that were
// hashed. pinned is "sha256:<hex>", or anything else to accept every content;
// where the content is another one, nothing is kept and Path is "". Of several
// runners that want one image, one copies and the others wait; a copier that
// dies is replaced. With once, a source that was hashed on this node since it was
// booted, and has not changed since, is not read again.
func (c *Cache) Image(ctx context.Context, source, pinned string, once bool) (Image, error) {
	image, err := c.image(ctx, source, pinned, once)
	if err != nil {
		return Image{}, fmt.Errorf("stage image: %w", err)
	}
	return image, nil
}

func (c *Cache) image(ctx context.Context, source, pinned string, once bool) (Image, error) {
	f, id, err := openRegular(source)
	if err != nil {
		if want, ok := c.mayMirror(pinned, err); ok {
			return c.mirroredImage(ctx, source, want, once, err)
		}
		return Image{}, err
	}
	defer f.Close()
	unlock, err := c.lock(ctx, fmt.Sprintf("%x-%x", id.Device, id.Inode))
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	m := remember(c.memoryPath(source), bootID())
	want, isPinned := strings.CutPrefix(pinned, "sha256:")
	if isPinned && validHex(want) {
		if image, ok := c.valid(want); ok {
			// The copy is good. Whether the file that the setting names still is
			// what was pinned must be seen all the same.
			image.Source, err = c.source(ctx, f, source, id, m, once)
			if err == nil && image.Source.Digest == pinned {
				return image, nil
			}
			err = errors.Join(err, image.Release())
			return Image{Source: image.Source}, err
		}
	}
	began := time.Now()
	sum, temporary, err := c.copy(ctx, f, id)
	if err != nil {
		return Image{}, err
	}
	defer temporary.Close()
	found := artefact(source, sum, id)
	if isPinned && sum != want {
		return Image{Source: found}, os.Remove(temporary.Name())
	}
	image, err := c.publish(ctx, sum, temporary)
	if err != nil {
		_ = os.Remove(temporary.Name()) // unless it has got its name
		return Image{}, err
	}
	image.Source = found
	m.add(source, id, sum, began)
	_ = m.save() // without it the next run hashes the source again
	return image, nil
}

// source digests the file that the setting names, or remembers its digest.
func (c *Cache) source(ctx context.Context, f *os.File, path string, id Identity, m *memory, once bool) (Artefact, error) {
	if sum, at, ok := m.known(path, id); once && ok {
		a := artefact(path, sum, id)
		a.Hashed, a.Since = 0, at
		return a, nil
	}
	began := time.Now()
	sum, err := hashFile(ctx, f, id, nil, nil)
	if err != nil {
		return Artefact{}, err
	}
	m.add(path, id, sum, began)
	_ = m.save() // without it the next run hashes the source again
	return artefact(path, sum, id), nil
}

func artefact(path, sum string, id Identity) Artefact {
	return Artefact{Path: path, Digest: "sha256:" + sum, Size: id.Size, Files: 1, Hashed: id.Size, seen: map[string]Identity{path: id}}
}

func (c *Cache) path(sum string) string   { return filepath.Join(c.dir, sum+".sif") }
func (c *Cache) record(sum string) string { return filepath.Join(c.dir, sum+".json") }

// valid returns the copy, held against eviction, if it is the file that was
// written when it was hashed.
func (c *Cache) valid(sum string) (Image, bool) {
	f, err := os.OpenFile(c.path(sum), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Image{}, false
	}
	image := Image{Path: c.path(sum), use: f}
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil { // else it is being evicted
		var recorded Identity
		b, err := os.ReadFile(c.record(sum))
		opened, statErr := identityOf(int(f.Fd()))
		if err == nil && statErr == nil && json.Unmarshal(b, &recorded) == nil && opened == recorded {
			// It was not evicted between opening and locking.
			if now, err := identityOfPath(c.path(sum)); err == nil && now == recorded {
				image.copied = recorded
				touch(c.record(sum))
				return image, true
			}
		}
	}
	f.Close()
	return Image{}, false
}

// touch says that a copy was asked for: the least recently used is evicted first.
func touch(record string) {
	now := time.Now()
	_ = os.Chtimes(record, now, now) // it is evicted earlier, then
}

// copy returns the hash of f and a copy of it under a temporary name, which is
// locked until it is closed. A copy that dies with its process is told by that.
func (c *Cache) copy(ctx context.Context, f *os.File, id Identity) (sum string, temporary *os.File, err error) {
	for {
		out, err := c.reserve(ctx, id.Size)
		if err != nil {
			return "", nil, err
		}
		sum, err = hashFile(ctx, f, id, out, nil)
		if err == nil {
			err = out.Chmod(0o400)
		}
		if err == nil {
			err = out.Sync()
		}
		if err == nil {
			return sum, out, nil
		}
		err = errors.Join(err, os.Remove(out.Name()), out.Close())
		if !errors.Is(err, unix.ENOSPC) {
			return "", nil, err
		}
		// The file system could not reserve the space beforehand.
		if evicted, evictErr := c.evict(ctx); evictErr != nil || !evicted {
			return "", nil, errors.Join(err, evictErr)
		}
		if _, err := f.Seek(0, 0); err != nil {
			return "", nil, err
		}
	}
}

// publish gives the copy its name, unless a good one of the same content has it:
// that one may be in use. The record of its identity is written after the rename,
// which changes the change time; a copy without one is made anew.
func (c *Cache) publish(ctx context.Context, sum string, temporary *os.File) (Image, error) {
	unlock, err := c.lock(ctx, sum)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if image, ok := c.valid(sum); ok {
		return image, os.Remove(temporary.Name())
	}
	if err := os.Rename(temporary.Name(), c.path(sum)); err != nil {
		return Image{}, err
	}
	id, err := identityOfPath(c.path(sum))
	if err != nil {
		return Image{}, err
	}
	b, err := json.Marshal(id)
	if err != nil {
		return Image{}, err
	}
	next := c.record(sum) + fmt.Sprintf(".%d.tmp", os.Getpid())
	if err := os.WriteFile(next, b, 0o600); err != nil {
		return Image{}, errors.Join(err, os.Remove(next))
	}
	if err := os.Rename(next, c.record(sum)); err != nil {
		return Image{}, err
	}
	// Now the copier's lock gives way to a reader's.
	if err := temporary.Close(); err != nil {
		return Image{}, err
	}
	image, ok := c.valid(sum)
	if !ok {
		return Image{}, fmt.Errorf("%s was evicted or written before it could be used", c.path(sum))
	}
	return image, nil
}

// lock is exclusive among the runners of the node; the kernel frees a dead
// one's. The folder is on a node-local file system, where this can be trusted.
func (c *Cache) lock(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing frees the lock
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another runner that stages this image: %w", ctx.Err()), f.Close())
		case <-time.After(wait):
		}
	}
}

func validHex(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32
}
