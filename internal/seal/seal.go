// Package seal turns a folder of files into an attempt that exists. It promises
// that a sealed attempt is complete, durable and never overwritten: files are
// written in a folder with a temporary name, fsynced, the manifest last, and
// the folder is renamed into place. It refuses what a manifest does not vouch for:
// links, special files, wrong sizes or digests, foreign owners.
package seal

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sbench/internal/result"
)

// ErrSealed says that the attempt has been sealed before: nothing was changed.
var ErrSealed = errors.New("attempt is already sealed")

// partialSuffix ends the name of a folder that is not sealed yet.
const partialSuffix = ".partial"

// Dir returns the folder of an attempt under the site's attempts folder.
func Dir(attempts string, runID, jobIDRaw int64, restartCount int) string {
	return filepath.Join(attempts, strconv.FormatInt(runID, 10), fmt.Sprintf("%d-r%d", jobIDRaw, restartCount))
}

// IsSealed reports whether dir holds a manifest; it verifies nothing.
func IsSealed(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, result.ManifestName))
	return err == nil
}

// Partials returns the folders of writers that have not sealed dir (yet): a live
// run's logs are there, and what a killed runner left. Newest last.
func Partials(dir string) []string {
	parent, base := filepath.Split(dir)
	found, _ := filepath.Glob(filepath.Join(parent, "."+base+".*"+partialSuffix))
	slices.SortFunc(found, func(a, b string) int {
		return modTime(a).Compare(modTime(b))
	})
	return found
}

// Writer writes one attempt. It is not safe for concurrent use, except that
// other goroutines and processes may write files of their own under Path until
// Seal is called.
type Writer struct {
	dir     string // the final folder
	partial string
	names   []string
}

// Create starts an attempt that will be sealed as dir, creating dir's parents.
// The error is ErrSealed where that was done before: nobody seals an attempt twice.
func Create(dir string) (*Writer, error) {
	parent, base := filepath.Split(filepath.Clean(dir))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, fmt.Errorf("create attempts folder: %w", err)
	}
	switch _, err := os.Lstat(dir); {
	case err == nil:
		return nil, inTheWay(dir)
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("look for %s: %w", dir, err)
	}
	partial, err := os.MkdirTemp(parent, "."+base+".*"+partialSuffix)
	if err != nil {
		return nil, fmt.Errorf("create attempt: %w", err)
	}
	// MkdirTemp makes it 0700; the collector may be another user of the group.
	if err := os.Chmod(partial, 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("create attempt: %w", err), os.RemoveAll(partial))
	}
	return &Writer{dir: dir, partial: partial}, nil
}

// Dir returns the final folder.
func (w *Writer) Dir() string { return w.dir }

// Path returns where a file lies until the attempt is sealed. A file written
// there by somebody else becomes part of the attempt by Adopt.
func (w *Writer) Path(name string) string { return filepath.Join(w.partial, name) }

// Adopt makes an existing file part of the attempt.
func (w *Writer) Adopt(name string) error {
	if !plainName(name) {
		return fmt.Errorf("adopt %q: not a plain file name", name)
	}
	if slices.Contains(w.names, name) {
		return fmt.Errorf("adopt %s: named twice", name)
	}
	w.names = append(w.names, name)
	return nil
}

// WriteFile writes a file of the attempt. Where write or the disk fails the file
// is removed again and is no part of the attempt.
func (w *Writer) WriteFile(name string, write func(io.Writer) error) error {
	if err := w.Adopt(name); err != nil {
		return err
	}
	err := writeFile(w.Path(name), write)
	if err != nil {
		w.names = slices.DeleteFunc(w.names, func(n string) bool { return n == name })
		return errors.Join(fmt.Errorf("write %s: %w", name, err), removeIfExists(w.Path(name)))
	}
	return nil
}

// Drop takes a file out of the attempt and removes it.
func (w *Writer) Drop(name string) error {
	w.names = slices.DeleteFunc(w.names, func(n string) bool { return n == name })
	return removeIfExists(w.Path(name))
}

// Seal completes m with the size and digest of every file, makes all of it
// durable and publishes the attempt in one rename. The error is ErrSealed where
// another writer was first; the attempt that exists is then untouched. After an
// error Seal may be called again, for instance with less to write.
func (w *Writer) Seal(m result.Manifest) (result.Manifest, error) {
	m.Version = result.ManifestVersion
	m.Files = make([]result.File, 0, len(w.names))
	slices.Sort(w.names)
	for _, name := range w.names {
		f, err := digest(w.Path(name), name)
		if err != nil {
			return m, fmt.Errorf("seal: %w", err)
		}
		m.Files = append(m.Files, f)
	}
	if err := w.dropStrangers(); err != nil {
		return m, fmt.Errorf("seal: %w", err)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return m, fmt.Errorf("seal: encode manifest: %w", err)
	}
	temporary := w.Path(result.ManifestName + ".tmp")
	if err := writeFile(temporary, func(f io.Writer) error {
		_, err := f.Write(append(text, '\n'))
		return err
	}); err != nil {
		return m, errors.Join(fmt.Errorf("seal: write manifest: %w", err), removeIfExists(temporary))
	}
	if err := os.Rename(temporary, w.Path(result.ManifestName)); err != nil {
		return m, fmt.Errorf("seal: %w", err)
	}
	if err := syncDir(w.partial); err != nil {
		return m, fmt.Errorf("seal: %w", err)
	}
	return m, w.publish()
}

// publish renames the folder into place. Renaming a folder onto one that is not
// empty fails on every file system, so that no lock is needed.
func (w *Writer) publish() error {
	if err := unix.Rename(w.partial, w.dir); err != nil {
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) {
			return inTheWay(w.dir)
		}
		return fmt.Errorf("seal %s: %w", w.dir, err)
	}
	// The parent's parent holds the entry of the run's folder, which may be new.
	parent := filepath.Dir(w.dir)
	if err := errors.Join(syncDir(parent), syncDir(filepath.Dir(parent))); err != nil {
		return fmt.Errorf("seal %s: %w", w.dir, err)
	}
	return nil
}

func inTheWay(dir string) error {
	if IsSealed(dir) {
		return fmt.Errorf("%s: %w", dir, ErrSealed)
	}
	return fmt.Errorf("%s exists and no runner made it", dir)
}

// Abort removes everything that is not sealed.
func (w *Writer) Abort() error {
	if err := os.RemoveAll(w.partial); err != nil {
		return fmt.Errorf("abort attempt: %w", err)
	}
	return nil
}

// dropStrangers removes what is not part of the attempt, such as a half-written
// file of an earlier try, so that the sealed folder is exactly its manifest.
func (w *Writer) dropStrangers() error {
	entries, err := os.ReadDir(w.partial)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !slices.Contains(w.names, e.Name()) {
			if err := os.RemoveAll(w.Path(e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// digest makes a file durable and returns what the manifest says of it.
func digest(path, name string) (result.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return result.File{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return result.File{}, err
	}
	if !info.Mode().IsRegular() {
		return result.File{}, fmt.Errorf("%s is not a regular file", path)
	}
	h := sha256.New()
	size, err := io.Copy(h, f)
	if err != nil {
		return result.File{}, fmt.Errorf("digest %s: %w", path, err)
	}
	if err := f.Sync(); err != nil {
		return result.File{}, fmt.Errorf("sync %s: %w", path, err)
	}
	return result.File{Name: name, Size: size, SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(f, 64<<10)
	err = write(b)
	if err == nil {
		err = b.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some network file systems do not sync folders; their rename is synchronous.
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// plainName reports whether name can stand in a manifest: it names a file in the
// attempt's own folder, visible, and not the manifest.
func plainName(name string) bool {
	if name == "" || len(name) > 64 || name[0] == '.' || name == result.ManifestName {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && r != '.' && r != '_' && r != '-'
	}) < 0
}
