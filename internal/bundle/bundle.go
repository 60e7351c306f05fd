// Package bundle writes and reads the archive of one run: everything that is
// needed to understand it without the system that measured it, and to repeat it.
// It is a gzipped tar whose first entry lists the others with their digests.
// Reading verifies every entry and refuses what the list does not promise.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"sbench/internal/result"
)

// Version is the version of the archive's format.
const Version = 1

// The entries of every bundle. The files of the attempt lie below AttemptDir.
const (
	InfoFile        = "bundle.json"
	SweepFile       = "sweep.yaml"       // as it was submitted
	SpecFile        = "spec.json"        // the canonical spec, whose SHA-256 is the setting's hash
	SettingFile     = "setting.json"     // the setting with its labels, such as paths
	FingerprintFile = "fingerprint.json" // the realized environment
	PlanFile        = "plan.jsonl"       // the planned requests with their seeds, one a line
	AttemptDir      = "attempt/"
)

const (
	maxInfo    = 16 << 20
	maxEntries = 256
)

// ErrDamaged says that a bundle is not one, or is not whole.
var ErrDamaged = errors.New("bundle is damaged")

// Info is the first entry.
type Info struct {
	Version   int       `json:"version"`
	CreatedAt time.Time `json:"created_at"`
	Sbench    string    `json:"sbench"` // the build that wrote the bundle

	Sweep       int64  `json:"sweep"`
	SweepName   string `json:"sweep_name"`
	Run         int64  `json:"run"`
	Repeat      int    `json:"repeat"` // from 0; the seeds of the run derive from it
	SettingHash string `json:"setting_hash"`
	SeriesHash  string `json:"series_hash"`
	PlanHash    string `json:"plan_hash"` // "" where nothing was measured
	// Options are the submission's, as the API has them.
	Options json.RawMessage `json:"options"`
	Files   []result.File   `json:"files"` // the other entries, in their order
}

// Entry is one file on its way into a bundle.
type Entry struct {
	File result.File
	// Copy writes exactly the bytes that File promises.
	Copy func(io.Writer) error
}

// Bytes is an entry that is in memory.
func Bytes(name string, content []byte) Entry {
	sum := sha256.Sum256(content)
	return Entry{
		File: result.File{Name: name, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])},
		Copy: func(w io.Writer) error { _, err := w.Write(content); return err },
	}
}

// Write writes a bundle. Its Version and Files are filled in. The same input
// gives the same bytes.
func Write(w io.Writer, info Info, entries []Entry) error {
	info.Version, info.Files = Version, nil
	for _, e := range entries {
		info.Files = append(info.Files, e.File)
	}
	text, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", InfoFile, err)
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, e := range append([]Entry{Bytes(InfoFile, append(text, '\n'))}, entries...) {
		h := &tar.Header{Name: e.File.Name, Size: e.File.Size, Mode: 0o644, ModTime: info.CreatedAt.Truncate(time.Second), Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("write %s: %w", e.File.Name, err)
		}
		if err := e.Copy(t); err != nil {
			return fmt.Errorf("write %s: %w", e.File.Name, err)
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// Read verifies a bundle of at most limit bytes unpacked, and returns what it
// says and the content of the entries that keep accepts. Every error that is
// not of r is ErrDamaged.
func Read(r io.Reader, limit int64, keep func(name string) bool) (Info, map[string][]byte, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return Info{}, nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	t := tar.NewReader(z)
	info, err := readInfo(t)
	if err != nil {
		return Info{}, nil, err
	}
	var total int64
	kept := map[string][]byte{}
	for _, f := range info.Files {
		if total += f.Size; total > limit {
			return Info{}, nil, fmt.Errorf("%w: it has more than %d bytes unpacked", ErrDamaged, limit)
		}
		to := io.Discard
		content := &bytes.Buffer{}
		if keep(f.Name) {
			to = content
		}
		if err := readEntry(t, f, to); err != nil {
			return Info{}, nil, err
		}
		if keep(f.Name) {
			kept[f.Name] = content.Bytes()
		}
	}
	if h, err := t.Next(); err == nil {
		return Info{}, nil, fmt.Errorf("%w: %q is not on its list", ErrDamaged, h.Name)
	} else if !errors.Is(err, io.EOF) {
		return Info{}, nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	// The checksum of the compression lies behind the archive's end.
	if _, err := io.Copy(io.Discard, io.LimitReader(z, maxInfo)); err != nil {
		return Info{}, nil, fmt.Errorf("%w: its end: %w", ErrDamaged, err)
	}
	return info, kept, nil
}

func readInfo(t *tar.Reader) (Info, error) {
	h, err := t.Next()
	if err != nil {
		return Info{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if h.Name != InfoFile || h.Typeflag != tar.TypeReg || h.Size > maxInfo {
		return Info{}, fmt.Errorf("%w: it does not begin with %s", ErrDamaged, InfoFile)
	}
	var info Info
	if err := json.NewDecoder(t).Decode(&info); err != nil {
		return Info{}, fmt.Errorf("%w: %s: %w", ErrDamaged, InfoFile, err)
	}
	if info.Version != Version {
		return Info{}, fmt.Errorf("%w: its format is version %d, this program reads %d", ErrDamaged, info.Version, Version)
	}
	if len(info.Files) > maxEntries {
		return Info{}, fmt.Errorf("%w: it lists %d files", ErrDamaged, len(info.Files))
	}
	var names []string
	for _, f := range info.Files {
		if !plainName(f.Name) || f.Size < 0 || slices.Contains(names, f.Name) {
			return Info{}, fmt.Errorf("%w: it lists %.80q", ErrDamaged, f.Name)
		}
		names = append(names, f.Name)
	}
	return info, nil
}

func readEntry(t *tar.Reader, f result.File, w io.Writer) error {
	h, err := t.Next()
	if err != nil {
		return fmt.Errorf("%w: %s is missing: %w", ErrDamaged, f.Name, err)
	}
	if h.Name != f.Name || h.Typeflag != tar.TypeReg || h.Size != f.Size {
		return fmt.Errorf("%w: %.80q stands where %s with %d bytes should", ErrDamaged, h.Name, f.Name, f.Size)
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(sum, w), t); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, f.Name, err)
	}
	if hex.EncodeToString(sum.Sum(nil)) != f.SHA256 {
		return fmt.Errorf("%w: %s has not the digest that is listed", ErrDamaged, f.Name)
	}
	return nil
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$`)

// plainName accepts what unpacks below one folder.
func plainName(name string) bool {
	return len(name) < 200 && nameForm.MatchString(name) && path.Clean(name) == name && !strings.Contains(name, "..")
}
