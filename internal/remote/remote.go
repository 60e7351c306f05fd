// Package remote reads files and folders of a mirror over SFTP. It promises that
// only a server with a known host key is spoken to, that every wait has an end,
// and that a listing holds plain relative names of regular files. It refuses key
// files that others can read, links, special files and names that could lead out
// of a folder.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"sbench/internal/batch"
)

const (
	dialTimeout   = 15 * time.Second // to be connected and let in
	answerTimeout = 60 * time.Second // for each question and each block of a file

	openFiles       = 4  // read at once
	requestsPerFile = 32 // of 32 KiB, on their way at once

	mostFiles = 100_000 // of one folder
	mostDepth = 32
)

// Tree is the file tree of a mirror, below its base folder. It is safe for
// concurrent use.
type Tree struct {
	base   string
	conn   net.Conn
	ssh    *ssh.Client
	client *sftp.Client
	ctx    func() error // why the caller gave up
	done   <-chan struct{}
	stop   func() bool
	late   atomic.Bool
	slots  chan struct{}
}

// Open connects to a mirror. The tree lives no longer than ctx; Close it.
func Open(ctx context.Context, m batch.Mirror) (*Tree, error) {
	at, err := batch.ParseMirrorURL(m.URL)
	if err != nil {
		return nil, fmt.Errorf("the mirror's URL %w", err)
	}
	config, err := clientConfig(at, m)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", at.Host)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	t := &Tree{base: at.Base, conn: conn, ctx: ctx.Err, done: ctx.Done(), slots: make(chan struct{}, openFiles)}
	t.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = t.within(dialTimeout, func() error {
		c, channels, requests, err := ssh.NewClientConn(conn, at.Host, config)
		if err != nil {
			return err
		}
		t.ssh = ssh.NewClient(c, channels, requests)
		t.client, err = sftp.NewClient(t.ssh, sftp.MaxConcurrentRequestsPerFile(requestsPerFile))
		return err
	})
	if err != nil {
		_ = t.Close() // the connection is of no use any more
		return nil, fmt.Errorf("open %s: %w", at.Host, err)
	}
	return t, nil
}

// Close ends the connection.
func (t *Tree) Close() error {
	t.stop()
	var errs []error
	if t.client != nil {
		errs = append(errs, t.client.Close())
	}
	if t.ssh != nil {
		errs = append(errs, t.ssh.Close())
	}
	if err := t.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// within lets the server have the time for its answer, and hangs up after it.
func (t *Tree) within(limit time.Duration, ask func() error) error {
	timer := time.AfterFunc(limit, func() {
		t.late.Store(true)
		_ = t.conn.Close()
	})
	defer timer.Stop()
	err := ask()
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return err
	case t.ctx() != nil:
		return t.ctx()
	case t.late.Load():
		return fmt.Errorf("no answer within %s", limit)
	}
	return err
}

// at is where the artefact of an absolute path lies on the server.
func (t *Tree) at(p string) (string, error) {
	if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) {
		return "", fmt.Errorf("%q is not an absolute, plain path", p)
	}
	return path.Join(t.base, p), nil
}

// Look fails where the server has nothing at an absolute path, or does not say.
func (t *Tree) Look(p string) error {
	root, err := t.at(p)
	if err != nil {
		return err
	}
	if err := t.within(answerTimeout, func() error {
		_, err := t.client.Lstat(root)
		return err
	}); err != nil {
		return fmt.Errorf("%s: %w", root, err)
	}
	return nil
}

// List returns the sizes of all files of a folder, by relative path, or that of
// one file, by its name, and which of the two it is.
func (t *Tree) List(p string) (files map[string]int64, dir bool, err error) {
	root, err := t.at(p)
	if err != nil {
		return nil, false, err
	}
	var info fs.FileInfo
	err = t.within(answerTimeout, func() (err error) {
		info, err = t.client.Lstat(root)
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", root, err)
	}
	files = map[string]int64{}
	if !info.IsDir() {
		return files, false, add(files, path.Base(root), info)
	}
	if err := t.walk(root, "", 0, files); err != nil {
		return nil, false, fmt.Errorf("%s: %w", root, err)
	}
	return files, true, nil
}

func (t *Tree) walk(root, below string, depth int, files map[string]int64) error {
	if depth > mostDepth {
		return fmt.Errorf("%q is more than %d folders deep", below, mostDepth)
	}
	var entries []fs.FileInfo
	err := t.within(answerTimeout, func() (err error) {
		entries, err = t.client.ReadDir(path.Join(root, below))
		return err
	})
	if err != nil {
		return fmt.Errorf("list %q: %w", below, err)
	}
	for _, e := range entries {
		if hostile(e.Name()) {
			return fmt.Errorf("%q holds the name %q, which is refused", below, e.Name())
		}
		name := path.Join(below, e.Name())
		if e.IsDir() {
			err = t.walk(root, name, depth+1, files)
		} else {
			err = add(files, name, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func add(files map[string]int64, name string, info fs.FileInfo) error {
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%q is a symbolic link: a mirror holds the files themselves", name)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%q is not a regular file (%s)", name, info.Mode().Type())
	case info.Size() < 0:
		return fmt.Errorf("%q has an impossible size", name)
	case len(files) >= mostFiles:
		return fmt.Errorf("more than %d files", mostFiles)
	}
	files[name] = info.Size()
	return nil
}

// hostile says whether a name in a folder could mean more than a name.
func hostile(name string) bool {
	odd := func(r rune) bool { return r == '/' || r == '\\' || r < ' ' || r == 0x7f }
	return name == "" || name == "." || name == ".." || len(name) > 255 || !utf8.ValidString(name) || strings.ContainsFunc(name, odd)
}

// Read opens a regular file. Of all files of a tree only a few are open at once:
// it waits until another is closed.
func (t *Tree) Read(p string) (io.ReadCloser, error) {
	root, err := t.at(p)
	if err != nil {
		return nil, err
	}
	select {
	case t.slots <- struct{}{}:
	case <-t.done:
		return nil, t.ctx()
	}
	f := &file{tree: t}
	err = t.within(answerTimeout, func() (err error) {
		if f.file, err = t.client.Open(root); err != nil {
			return err
		}
		info, err := f.file.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = errors.New("not a regular file")
		}
		return err
	})
	if err != nil {
		_ = f.Close() // nothing was read
		return nil, fmt.Errorf("%s: %w", root, err)
	}
	return f, nil
}

// file is a file that is read under the tree's deadlines.
type file struct {
	tree *Tree
	file *sftp.File
}

func (f *file) Read(b []byte) (n int, err error) {
	err = f.tree.within(answerTimeout, func() (err error) {
		n, err = f.file.Read(b)
		return err
	})
	return n, err
}

func (f *file) Close() error {
	<-f.tree.slots
	if f.file == nil {
		return nil
	}
	return f.tree.within(answerTimeout, f.file.Close)
}
