package seal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sbench/internal/result"
)

// The faults of an attempt, for errors.Is.
var (
	// ErrUnsealed says that there is no manifest: the attempt does not exist (yet).
	ErrUnsealed = errors.New("attempt is not sealed")
	// ErrTorn says that files are missing, short or not the ones that were
	// sealed. On a shared file system this may pass: look again later.
	ErrTorn = errors.New("attempt is torn")
	// ErrHostile says that the folder holds what no runner writes: links,
	// special files, a damaged manifest, foreign owners, sizes beyond the limits.
	ErrHostile = errors.New("attempt is not acceptable")
)

// Limits bound what is accepted from a shared file system.
type Limits struct {
	ManifestBytes int64
	FileBytes     int64 // per file
	TotalBytes    int64
	Files         int
	// UID is who must own the folder and every file; nil accepts anyone.
	UID *int
}

// DefaultLimits accept every attempt that a runner seals.
func DefaultLimits() Limits {
	return Limits{ManifestBytes: 8 << 20, FileBytes: 4 << 30, TotalBytes: 16 << 30, Files: 64}
}

// Sealed is an attempt whose files are held open. Close it.
type Sealed struct {
	Manifest result.Manifest
	dir      string
	files    map[string]*os.File
}

// Verify reads and checks everything that the manifest of dir vouches for. The
// error is one of ErrUnsealed, ErrTorn and ErrHostile, or of the file system.
func Verify(dir string, limits Limits) (result.Manifest, error) {
	s, err := Open(dir, limits)
	if err != nil {
		return result.Manifest{}, err
	}
	defer s.Close()
	for _, f := range s.Manifest.Files {
		if err := s.check(f, io.Discard); err != nil {
			return result.Manifest{}, err
		}
	}
	return s.Manifest, nil
}

// Open reads the manifest of dir and opens its files, checking everything but
// the digests, which Read checks over the very bytes that it returns.
func Open(dir string, limits Limits) (*Sealed, error) {
	root, err := openDir(dir, limits)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	text, err := readManifest(root, dir, limits)
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(text, dir, limits)
	if err != nil {
		return nil, err
	}
	s := &Sealed{Manifest: m, dir: dir, files: map[string]*os.File{}}
	for _, f := range m.Files {
		file, size, err := openRegular(root, f.Name, limits)
		if err == nil {
			s.files[f.Name] = file
			if size != f.Size {
				err = fmt.Errorf("%s has %d bytes, %d sealed: %w", f.Name, size, f.Size, ErrTorn)
			}
		} else if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%s is missing: %w", f.Name, ErrTorn)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attempt %s: %w", dir, err), s.Close())
		}
	}
	return s, nil
}

// Has reports whether the manifest vouches for the file.
func (s *Sealed) Has(name string) bool { return s.files[name] != nil }

// Vouches reports whether the manifest names exactly this file.
func (s *Sealed) Vouches(f result.File) bool { return slices.Contains(s.Manifest.Files, f) }

// Read returns the content of a file that the manifest vouches for, after
// checking the digest of exactly these bytes.
func (s *Sealed) Read(name string) ([]byte, error) {
	for _, f := range s.Manifest.Files {
		if f.Name == name {
			var b bytes.Buffer
			b.Grow(int(f.Size))
			err := s.check(f, &b)
			return b.Bytes(), err
		}
	}
	return nil, fmt.Errorf("attempt %s has no file %s: %w", s.dir, name, os.ErrNotExist)
}

// Check reads a file that the manifest vouches for, to check its digest.
func (s *Sealed) Check(name string) error { return s.Copy(name, io.Discard) }

// Copy is Check that also writes what it reads. Where it fails, what was written
// is not to be used.
func (s *Sealed) Copy(name string, w io.Writer) error {
	for _, f := range s.Manifest.Files {
		if f.Name == name {
			return s.check(f, w)
		}
	}
	return fmt.Errorf("attempt %s has no file %s: %w", s.dir, name, os.ErrNotExist)
}

// Close closes the files.
func (s *Sealed) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func (s *Sealed) check(f result.File, w io.Writer) error {
	h := sha256.New()
	section := io.NewSectionReader(s.files[f.Name], 0, f.Size)
	n, err := io.Copy(io.MultiWriter(h, w), section)
	if err != nil {
		return fmt.Errorf("attempt %s: read %s: %w", s.dir, f.Name, err)
	}
	if sum := hex.EncodeToString(h.Sum(nil)); n != f.Size || sum != f.SHA256 {
		return fmt.Errorf("attempt %s: %s is not the file that was sealed: %w", s.dir, f.Name, ErrTorn)
	}
	return nil
}

// openDir opens the folder; neither it nor the run's folder may be a link.
func openDir(dir string, limits Limits) (*os.File, error) {
	parent, base := filepath.Split(filepath.Clean(dir))
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	up, err := unix.Open(filepath.Clean(parent), flags, 0)
	if err != nil {
		return nil, openError(filepath.Clean(parent), err)
	}
	defer unix.Close(up)
	fd, err := unix.Openat(up, base, flags, 0)
	if err != nil {
		return nil, openError(dir, err)
	}
	root := os.NewFile(uintptr(fd), dir)
	if err := checkOwner(root, limits); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

func openError(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s: %w", path, ErrUnsealed)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s is not a folder: %w", path, ErrHostile)
	}
	return &os.PathError{Op: "open", Path: path, Err: err}
}

func readManifest(root *os.File, dir string, limits Limits) ([]byte, error) {
	f, size, err := openRegular(root, result.ManifestName, Limits{FileBytes: limits.ManifestBytes, UID: limits.UID})
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("attempt %s: %w", dir, ErrUnsealed)
	}
	if err != nil {
		return nil, fmt.Errorf("attempt %s: %w", dir, err)
	}
	defer f.Close()
	text := make([]byte, size)
	if _, err := io.ReadFull(f, text); err != nil {
		return nil, fmt.Errorf("attempt %s: read manifest: %w", dir, err)
	}
	return text, nil
}

// openRegular opens a file of the folder. O_NONBLOCK keeps a FIFO from blocking
// the open; it has no effect on regular files.
func openRegular(root *os.File, name string, limits Limits) (*os.File, int64, error) {
	fd, err := unix.Openat(int(root.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return nil, 0, fmt.Errorf("%s is not a regular file: %w", name, ErrHostile)
	case err != nil:
		return nil, 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file: %w", name, ErrHostile)
	case info.Size() > limits.FileBytes:
		err = fmt.Errorf("%s has %d bytes, more than the limit %d: %w", name, info.Size(), limits.FileBytes, ErrHostile)
	default:
		err = checkOwner(f, limits)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func checkOwner(f *os.File, limits Limits) error {
	if limits.UID == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if int(st.Uid) != *limits.UID {
		return fmt.Errorf("%s belongs to user %d, not to %d as whom the batch ran: %w", f.Name(), st.Uid, *limits.UID, ErrHostile)
	}
	return nil
}

// parseManifest checks the manifest against itself and against the folder it
// lies in.
func parseManifest(text []byte, dir string, limits Limits) (result.Manifest, error) {
	var m result.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("attempt %s: manifest: %w: %w", dir, err, ErrHostile)
	}
	fault := func(format string, args ...any) (result.Manifest, error) {
		return m, fmt.Errorf("attempt %s: manifest: %s: %w", dir, fmt.Sprintf(format, args...), ErrHostile)
	}
	if m.Version != result.ManifestVersion {
		return fault("version %d, this build understands %d", m.Version, result.ManifestVersion)
	}
	a := m.Attempt
	if want := Dir("", a.RunID, a.JobIDRaw, a.RestartCount); want != filepath.Join(filepath.Base(filepath.Dir(dir)), filepath.Base(dir)) {
		return fault("it is the manifest of %s", want)
	}
	if len(m.Files) > limits.Files {
		return fault("%d files, more than the limit %d", len(m.Files), limits.Files)
	}
	seen := map[string]bool{}
	var total int64
	for _, f := range m.Files {
		sum, err := hex.DecodeString(f.SHA256)
		switch {
		case !plainName(f.Name):
			return fault("%q is not a plain file name", f.Name)
		case seen[f.Name]:
			return fault("%s is named twice", f.Name)
		case f.Size < 0 || f.Size > limits.FileBytes:
			return fault("%s has %d bytes, more than the limit %d", f.Name, f.Size, limits.FileBytes)
		case err != nil || len(sum) != sha256.Size:
			return fault("%s has no SHA-256", f.Name)
		}
		seen[f.Name] = true
		total += f.Size
	}
	if total > limits.TotalBytes {
		return fault("%d bytes in all, more than the limit %d", total, limits.TotalBytes)
	}
	return m, nil
}

func modTime(path string) time.Time {
	info, err := os.Lstat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
