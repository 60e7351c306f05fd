package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const halfCopies = "copy-*.tmp"

// ErrFull says that an image does not fit into the cache.
var ErrFull = errors.New("the cache is full")

// reserve makes the file of a copy, locked, with its space where the file system
// can do that. It evicts what it must.
func (c *Cache) reserve(ctx context.Context, size int64) (*os.File, error) {
	unlock, err := c.lock(ctx, "evict")
	if err != nil {
		return nil, err
	}
	defer unlock()
	for {
		if err := c.makeRoom(size); err != nil {
			return nil, err
		}
		out, err := c.temporary()
		if err != nil {
			return nil, err
		}
		switch err := allocate(out, size); {
		case err == nil:
			return out, nil
		case errors.Is(err, unix.ENOSPC):
			err = errors.Join(os.Remove(out.Name()), out.Close())
			evicted, evictErr := c.evictOne()
			if err = errors.Join(err, evictErr); err != nil {
				return nil, err
			}
			if !evicted {
				return nil, fmt.Errorf("%w: %s has no space for %d bytes, and every image there is in use", ErrFull, c.dir, size)
			}
		default:
			return nil, errors.Join(fmt.Errorf("reserve %d bytes in %s: %w", size, c.dir, err), os.Remove(out.Name()), out.Close())
		}
	}
}

// temporary makes and locks a file. Between the two, who looks for half copies
// may have removed it.
func (c *Cache) temporary() (*os.File, error) {
	for {
		out, err := os.CreateTemp(c.dir, halfCopies)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(out.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			opened, err := identityOf(int(out.Fd()))
			if now, nameErr := identityOfPath(out.Name()); err == nil && nameErr == nil && now.Inode == opened.Inode {
				return out, nil
			}
		}
		if err := out.Close(); err != nil {
			return nil, err
		}
	}
}

// copyFile is a file, or the folder of a checkpoint, of the cache that takes space.
type copyFile struct {
	path string
	size int64
	used time.Time // when it was last asked for; zero of a half copy
}

func (c *Cache) copies() ([]copyFile, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, err
	}
	var found []copyFile
	for _, e := range entries {
		record, isWhole := c.recordOf(e.Name())
		isHalf, _ := filepath.Match(halfCopies, e.Name())
		if !isWhole && !isHalf || !e.Type().IsRegular() && !e.IsDir() {
			continue
		}
		x := copyFile{path: filepath.Join(c.dir, e.Name())}
		if x.size, err = spaceOf(x.path); err != nil {
			continue // it is gone meanwhile
		}
		if isWhole {
			// Without a record nobody can use it: it is the first to go.
			if info, err := os.Lstat(record); err == nil {
				x.used = info.ModTime()
			}
		}
		found = append(found, x)
	}
	slices.SortFunc(found, func(a, b copyFile) int { return a.used.Compare(b.used) })
	return found, nil
}

// recordOf is the path of the record of an image or a checkpoint of the cache.
func (c *Cache) recordOf(path string) (record string, ok bool) {
	if sum, isImage := strings.CutSuffix(filepath.Base(path), ".sif"); isImage {
		return c.record(sum), true
	}
	sum, isTree := strings.CutSuffix(filepath.Base(path), treeSuffix)
	return c.treeRecord(sum), isTree
}

// makeRoom evicts until a copy of the size fits under the limit.
func (c *Cache) makeRoom(size int64) error {
	for c.limit > 0 {
		all, err := c.copies()
		if err != nil {
			return err
		}
		var total int64
		for _, x := range all {
			total += x.size
		}
		if total+size <= c.limit {
			return nil
		}
		evicted, err := c.evictOne()
		if err != nil {
			return err
		}
		if !evicted {
			return fmt.Errorf("%w: %s may hold %d bytes, %d are in use, and %d more are wanted: raise engine.cache_limit of the site",
				ErrFull, c.dir, c.limit, total, size)
		}
	}
	return nil
}

// evict removes the least recently used copy.
func (c *Cache) evict(ctx context.Context) (bool, error) {
	unlock, err := c.lock(ctx, "evict")
	if err != nil {
		return false, err
	}
	defer unlock()
	return c.evictOne()
}

// evictOne removes the least recently used copy that nobody uses. The record goes
// first: a crash in between leaves a copy that nobody trusts, which is the next
// to go.
func (c *Cache) evictOne() (bool, error) {
	all, err := c.copies()
	if err != nil {
		return false, err
	}
	for _, x := range all {
		f, err := os.OpenFile(x.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		free := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
		if free {
			if record, isWhole := c.recordOf(x.path); isWhole {
				if err = os.Remove(record); errors.Is(err, os.ErrNotExist) {
					err = nil
				}
			}
			if err == nil {
				err = os.RemoveAll(x.path)
			}
		}
		if err = errors.Join(err, f.Close()); free || err != nil {
			return err == nil, err
		}
	}
	return false, nil
}

// RemoveHalfCopies removes the copies in dir whose copiers, of the given user, are
// no more, and returns their paths. A folder that is not there has none.
func RemoveHalfCopies(dir string, uid int) (removed []string, err error) {
	found, err := filepath.Glob(filepath.Join(dir, halfCopies))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, path := range found {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(int(f.Fd()), &st) == nil && int(st.Uid) == uid && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			if err := os.RemoveAll(path); err == nil {
				removed = append(removed, path)
			} else {
				errs = append(errs, err)
			}
		}
		errs = append(errs, f.Close())
	}
	return removed, errors.Join(errs...)
}
