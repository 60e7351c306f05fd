package sitecheck

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sbench/internal/batch"
	"sbench/internal/remote"
	"sbench/internal/site"
)

// pathTimeout bounds each look at a file system: one that hangs hangs for ever.
const pathTimeout = 10 * time.Second

// paths looks at the shared folders from the daemon's host.
func (c *check) paths(ctx context.Context) {
	p := c.site.Paths
	for _, f := range []struct {
		name, path string
		write      bool
	}{{"spool", p.Spool, true}, {"results", p.Results, true}, {"models", p.Models, false}, {"images", p.Images, false}} {
		err := within(ctx, func() error { return usable(f.path, f.write) })
		switch {
		case err != nil:
			c.fail("path", f.name, "create the folder, owned by the daemon's user, on the shared file system", "%v", err)
		case f.write:
			c.pass("path", f.name, "%s: the daemon writes there, %s free", f.path, free(f.path))
		default:
			c.pass("path", f.name, "%s: the daemon reads there", f.path)
		}
	}
}

// mirrors opens each mirror and looks for the folders that it stands in for. Only
// nodes need them, so a key that is not on the daemon's host is no fault.
func (c *check) mirrors(ctx context.Context) {
	for _, m := range c.site.Mirrors {
		if _, err := os.Stat(m.Key); errors.Is(err, os.ErrNotExist) {
			c.unknown("mirror", m.URL, "give the daemon's host the key too, or wait for the first run that needs the mirror",
				"%s is not on the daemon's host", m.Key)
			continue
		}
		has, err := c.mirror(ctx, m)
		if err != nil {
			c.fail("mirror", m.URL, "see that the server answers, and that key and known_hosts are the right ones; or remove the mirror", "%v", err)
			continue
		}
		c.pass("mirror", m.URL, "has %s, seen from the daemon's host", strings.Join(has, " and "))
	}
}

func (c *check) mirror(ctx context.Context, m site.Mirror) (has []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pathTimeout)
	defer cancel()
	tree, err := remote.Open(ctx, batch.Mirror(m))
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	var errs []error
	for _, dir := range []string{c.site.Paths.Models, c.site.Paths.Images} {
		if err := tree.Look(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		has = append(has, dir)
	}
	if len(has) == 0 {
		return nil, errors.Join(errs...)
	}
	return has, nil
}

// within gives up on a file system that does not answer.
func within(ctx context.Context, look func() error) error {
	done := make(chan error, 1)
	go func() { done <- look() }()
	timer := time.NewTimer(pathTimeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errors.New("the file system does not answer")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// usable reads a folder, and writes a file into it as results are written.
func usable(dir string, write bool) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		return errors.Join(err, fmt.Errorf("%s is no folder", dir))
	}
	if !write {
		return nil
	}
	temp := filepath.Join(dir, ".site-check-"+strings.ToLower(rand.Text()))
	defer os.Remove(temp)
	if err := durable(temp, "ok\n"); err != nil {
		return err
	}
	final := temp + ".done"
	defer os.Remove(final)
	return os.Rename(temp, final)
}

func durable(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

func free(dir string) string {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return "an unknown amount"
	}
	return fmt.Sprintf("%.1f GiB", float64(s.Bavail)*float64(s.Bsize)/(1<<30))
}
