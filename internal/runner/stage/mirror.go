package stage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Mirror is where pinned artefacts are taken from that the node cannot read.
type Mirror struct {
	Name string // for messages
	Open func(ctx context.Context) (Tree, error)
}

// Tree is an open mirror. Artefacts have the absolute paths there that they have
// here; nothing that it says is believed before it was hashed.
type Tree interface {
	// List returns the sizes of the files of a folder by relative path, or that of
	// one file by its name.
	List(path string) (files map[string]int64, dir bool, err error)
	Read(path string) (io.ReadCloser, error)
	Close() error
}

// unreadable says why path cannot be read at all, nil if it can.
func unreadable(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// mayMirror returns the digest's hexadecimal part if a file that could not be
// opened may be taken from elsewhere: only content that is pinned can be.
func (c *Cache) mayMirror(pinned string, why error) (want string, ok bool) {
	want, isPinned := strings.CutPrefix(pinned, "sha256:")
	var path *fs.PathError
	return want, isPinned && validHex(want) && len(c.mirrors) > 0 && errors.As(why, &path)
}

// fromMirrors calls take with one mirror after the other, until one has what is
// wanted. Its error says why it was needed, and of each mirror why it did not do.
func (c *Cache) fromMirrors(ctx context.Context, why error, take func(Tree) error) error {
	reasons := []string{why.Error()}
	for _, m := range c.mirrors {
		err := func() error {
			tree, err := m.Open(ctx)
			if err != nil {
				return err
			}
			defer tree.Close() // it was only read from
			return take(tree)
		}()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("take it from mirror %s: %w", m.Name, ctx.Err())
		}
		if errors.Is(err, ErrFull) {
			return err // another mirror changes nothing
		}
		reasons = append(reasons, fmt.Sprintf("mirror %s: %v", m.Name, err))
	}
	return errors.New(strings.Join(reasons, "; "))
}

// mirroredImage is Image where the source cannot be opened: from the cache, else
// from a mirror.
func (c *Cache) mirroredImage(ctx context.Context, source, want string, once bool, why error) (Image, error) {
	unlock, err := c.lock(ctx, "mirror-"+want)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if image, ok := c.valid(want); ok {
		a, err := c.copied(ctx, image.Path, once)
		if err == nil && a.Digest == "sha256:"+want {
			image.Source = a
			return image, nil
		}
		if err := errors.Join(image.Release(), ctx.Err()); err != nil {
			return Image{}, err
		}
		// publish must not take it for a good one.
		if err := os.Remove(c.record(want)); err != nil {
			return Image{}, err
		}
	}
	var image Image
	err = c.fromMirrors(ctx, why, func(tree Tree) error {
		files, dir, err := tree.List(source)
		if err != nil {
			return err
		}
		if dir {
			return fmt.Errorf("%s is a folder there", source)
		}
		size := files[filepath.Base(source)]
		out, err := c.reserve(ctx, size)
		if err != nil {
			return err
		}
		defer out.Close()
		sum, _, err := take(ctx, tree, source, size, out)
		if err == nil && sum != want {
			err = wrongContent(source, sum, want)
		}
		if err == nil {
			image, err = c.publish(ctx, sum, out)
		}
		if err != nil {
			_ = os.Remove(out.Name()) // unless it has got its name
			return err
		}
		image.Source = Artefact{Path: image.Path, Digest: "sha256:" + sum, Size: size, Files: 1, Hashed: size, seen: map[string]Identity{image.Path: image.copied}}
		return nil
	})
	return image, err
}

// copied digests what lies in the cache, or remembers that this node has.
func (c *Cache) copied(ctx context.Context, path string, once bool) (Artefact, error) {
	if once {
		return c.Once(ctx, path)
	}
	return Digest(ctx, path)
}

// take copies a file of a mirror while it hashes it, and makes it read-only.
func take(ctx context.Context, tree Tree, path string, size int64, out *os.File) (sum string, id Identity, err error) {
	r, err := tree.Read(path)
	if err != nil {
		return "", id, err
	}
	defer r.Close()
	h := sha256.New()
	n, err := copyHash(ctx, h, io.LimitReader(r, size+1), out, nil)
	switch {
	case errors.Is(err, unix.ENOSPC):
		return "", id, fmt.Errorf("%w: write %s: %w", ErrFull, out.Name(), err)
	case err != nil:
		return "", id, fmt.Errorf("read %s: %w after %d of %d bytes", path, err, n, size)
	case n != size:
		return "", id, fmt.Errorf("read %s: it ended after %d bytes, listed are %d", path, n, size)
	}
	if err := errors.Join(out.Chmod(0o400), out.Sync()); err != nil {
		return "", id, err
	}
	id, err = identityOf(int(out.Fd()))
	return hex.EncodeToString(h.Sum(nil)), id, err
}

func wrongContent(path, sum, want string) error {
	return fmt.Errorf("%s has the digest sha256:%s there, sha256:%s is pinned: it is not used", path, sum, want)
}
