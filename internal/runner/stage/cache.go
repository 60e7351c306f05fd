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

// Cache is a private folder of images on the node, named by their content. Any
// number of runners of one user may share it.
type Cache struct {
	dir string
}

// Image is a staged image.
type Image struct {
	Source Artefact // the file that the setting names
	Path   string   // the private copy, to be run; "" where the digest was not the pinned one
	copied Identity
}

// Unchanged returns an error if the copy was written or replaced.
func (i Image) Unchanged() error {
	var st unix.Stat_t
	if err := unix.Lstat(i.Path, &st); err != nil {
		return fmt.Errorf("look at the staged image again: %w", err)
	}
	if identity(&st) != i.copied {
		return fmt.Errorf("the staged image %s was written or replaced", i.Path)
	}
	return nil
}

// OpenCache makes the folder where needed. It must be this user's alone.
func OpenCache(dir string) (*Cache, error) {
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
	return &Cache{dir: dir}, nil
}

// Image hashes source and returns a private copy of the very bytes that were
// hashed. pinned is "sha256:<hex>", or anything else to accept every content;
// where the content is another one, nothing is kept and Path is "". Of several
// runners that want one image, one copies and the others wait; a copier that
// dies is replaced.
func (c *Cache) Image(ctx context.Context, source, pinned string) (Image, error) {
	f, id, err := openRegular(source)
	if err != nil {
		return Image{}, fmt.Errorf("stage image: %w", err)
	}
	defer f.Close()
	unlock, err := c.lock(ctx, fmt.Sprintf("%x-%x", id.Device, id.Inode))
	if err != nil {
		return Image{}, fmt.Errorf("stage image: %w", err)
	}
	defer unlock()
	want, isPinned := strings.CutPrefix(pinned, "sha256:")
	if isPinned && validHex(want) {
		if copied, ok := c.valid(want); ok {
			// The copy is good. Whether the file that the setting names still is
			// what was pinned must be seen all the same.
			sum, err := hashFile(ctx, f, id, nil)
			if err != nil {
				return Image{}, fmt.Errorf("stage image: %w", err)
			}
			image := Image{Source: artefact(source, sum, id)}
			if sum == want {
				image.Path, image.copied = c.path(sum), copied
			}
			return image, nil
		}
	}
	sum, temporary, err := c.copy(ctx, f, id)
	if err != nil {
		return Image{}, fmt.Errorf("stage image: %w", err)
	}
	image := Image{Source: artefact(source, sum, id)}
	if isPinned && sum != want {
		return image, os.Remove(temporary)
	}
	if image.copied, err = c.publish(ctx, sum, temporary); err != nil {
		return Image{}, errors.Join(fmt.Errorf("stage image: %w", err), os.Remove(temporary))
	}
	image.Path = c.path(sum)
	return image, nil
}

func artefact(path, sum string, id Identity) Artefact {
	return Artefact{Path: path, Digest: "sha256:" + sum, Size: id.Size, Files: 1, seen: map[string]Identity{path: id}}
}

func (c *Cache) path(sum string) string   { return filepath.Join(c.dir, sum+".sif") }
func (c *Cache) record(sum string) string { return filepath.Join(c.dir, sum+".json") }

// valid reports whether the copy is the file that was written when it was hashed.
func (c *Cache) valid(sum string) (Identity, bool) {
	var recorded Identity
	b, err := os.ReadFile(c.record(sum))
	if err != nil || json.Unmarshal(b, &recorded) != nil {
		return Identity{}, false
	}
	var st unix.Stat_t
	if unix.Lstat(c.path(sum), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Identity{}, false
	}
	return recorded, identity(&st) == recorded
}

func (c *Cache) copy(ctx context.Context, f *os.File, id Identity) (sum, temporary string, err error) {
	out, err := os.CreateTemp(c.dir, "copy-*.tmp")
	if err != nil {
		return "", "", err
	}
	sum, err = hashFile(ctx, f, id, out)
	if err == nil {
		err = out.Chmod(0o400)
	}
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return "", "", errors.Join(err, os.Remove(out.Name()))
	}
	return sum, out.Name(), nil
}

// publish gives the copy its name, unless a good one of the same content has it:
// that one may be in use. The record of its identity is written after the rename,
// which changes the change time; a copy without one is made anew.
func (c *Cache) publish(ctx context.Context, sum, temporary string) (Identity, error) {
	unlock, err := c.lock(ctx, sum)
	if err != nil {
		return Identity{}, err
	}
	defer unlock()
	if id, ok := c.valid(sum); ok {
		return id, os.Remove(temporary)
	}
	if err := os.Rename(temporary, c.path(sum)); err != nil {
		return Identity{}, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(c.path(sum), &st); err != nil {
		return Identity{}, err
	}
	id := identity(&st)
	b, err := json.Marshal(id)
	if err != nil {
		return Identity{}, err
	}
	next := c.record(sum) + fmt.Sprintf(".%d.tmp", os.Getpid())
	if err := os.WriteFile(next, b, 0o600); err != nil {
		return Identity{}, err
	}
	return id, os.Rename(next, c.record(sum))
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
