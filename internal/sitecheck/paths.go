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
