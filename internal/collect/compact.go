package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sbench/internal/resultfile"
	"sbench/internal/seal"
	"sbench/internal/site"
	"sbench/internal/store"
)

// partAttempts is how many attempts go into one part of the dataset: some tens of
// megabytes of requests.
const partAttempts = 500

// Compact puts the attempts of days that are over into the dataset of a site, and
// returns how many parts it wrote. A part is committed to the database with its
// attempts before it is written, so that a keeper that is killed anywhere leaves a
// part that the next one writes again under the same name, and every attempt is in
// the dataset once. A reader sees whole files only.
func (k *Keeper) Compact(ctx context.Context, s *site.Site) (int, error) {
	written := 0
	open, err := k.Store.OpenParts(ctx, s.Name)
	if err != nil {
		return 0, err
	}
	for _, p := range open {
		if err := k.writePart(ctx, s, p); err != nil {
			return written, err
		}
		written++
	}
	if s.Retention.Compact == 0 {
		return written, nil
	}
	before := k.Now().Add(-s.Retention.Compact).UTC().Truncate(24 * time.Hour)
	for ctx.Err() == nil {
		part, err := k.Store.PlanPart(ctx, s.Name, before, partAttempts)
		if err != nil || part == nil {
			return written, err
		}
		k.at("compact planned")
		if err := k.writePart(ctx, s, *part); err != nil {
			return written, err
		}
		written++
	}
	return written, ctx.Err()
}

func (k *Keeper) at(name string) {
	if k.Failpoint != nil {
		k.Failpoint(name)
	}
}

// partPath is where a kind of row of a part lies:
// <dataset>/<kind>/date=2026-01-31/part-000000000017.parquet.
func partPath(dataset, kind string, p store.Part) string {
	return filepath.Join(dataset, kind, "date="+p.Day.Format(time.DateOnly), fmt.Sprintf("part-%012d.parquet", p.ID))
}

// writePart writes the files of a part, whether or not they were written before.
func (k *Keeper) writePart(ctx context.Context, s *site.Site, p store.Part) error {
	attempts, err := k.Store.PartAttempts(ctx, p.ID)
	if err != nil {
		return err
	}
	files, err := createPart(s.DatasetDir(), p)
	if err != nil {
		return fmt.Errorf("compact %s: %w", p.Day.Format(time.DateOnly), err)
	}
	defer func() {
		if err := files.abort(); err != nil {
			k.Log.Warn("tidy up after compaction", "error", err)
		}
	}()
	unreadable := 0
	for _, a := range attempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		content, err := readAttempt(a)
		if err == nil {
			err = files.writer.Add(content)
		}
		if err != nil {
			// Its row in the database stays, and so do its files, if there are any.
			k.Log.Warn("compact attempt", "attempt", a.AttemptID, "dir", a.Dir, "error", err)
			unreadable++
		}
	}
	k.at("compact written")
	bytes, err := files.publish(k.at)
	if err != nil {
		return fmt.Errorf("compact %s: %w", p.Day.Format(time.DateOnly), err)
	}
	k.at("compact published")
	return k.Store.FinishPart(ctx, p.ID, unreadable, bytes)
}

// readAttempt reads the Parquet files of an ingested attempt, checking that they
// are the ones that were ingested.
func readAttempt(a store.PartAttempt) (map[string][]byte, error) {
	limits := seal.DefaultLimits()
	limits.UID = &a.UID
	s, err := seal.Open(a.Dir, limits)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	content := map[string][]byte{}
	for _, f := range a.Files {
		kind := resultfile.KindOf(f.Name)
		if kind == "" {
			continue
		}
		if f.Size > DefaultOptions().DecodeBytes {
			return nil, fmt.Errorf("%s has %d bytes, more than the limit", f.Name, f.Size)
		}
		if !s.Vouches(f) {
			return nil, fmt.Errorf("%s is not the file that was ingested: %w", f.Name, seal.ErrTorn)
		}
		if content[kind], err = s.Read(f.Name); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// partFiles are the files of a part under temporary names.
type partFiles struct {
	dataset string
	part    store.Part
	open    map[string]*os.File // under temporary names
	writer  *resultfile.Collection
}

func createPart(dataset string, p store.Part) (*partFiles, error) {
	f := &partFiles{dataset: dataset, part: p, open: map[string]*os.File{}}
	outputs := map[string]io.Writer{}
	for _, kind := range resultfile.Kinds() {
		path := partPath(dataset, kind, p)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, errors.Join(err, f.abort())
		}
		// What a killed keeper left goes. One that hangs and is not dead finds that its
		// file is gone, and never writes into ours: each has a name of its own.
		if err := removeTemporaries(path); err != nil {
			return nil, errors.Join(err, f.abort())
		}
		file, err := createTemporary(path)
		if err != nil {
			return nil, errors.Join(err, f.abort())
		}
		f.open[kind], outputs[kind] = file, file
	}
	f.writer = resultfile.NewCollection(outputs)
	return f, nil
}

// temporary is how the temporary names of a file begin. The dot, and their end,
// keep them out of every glob over the dataset.
func temporary(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".")
}

const temporaryEnd = ".tmp"

func createTemporary(path string) (*os.File, error) {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(temporary(path))+"*"+temporaryEnd)
	if err != nil {
		return nil, err
	}
	if err := file.Chmod(0o644); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	return file, nil
}

func removeTemporaries(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if mine := strings.HasPrefix(e.Name(), filepath.Base(temporary(path))); !mine || !strings.HasSuffix(e.Name(), temporaryEnd) {
			continue
		}
		if err := removeIfThere(filepath.Join(filepath.Dir(path), e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// publish makes the files durable and gives them their names. A kind without any
// row gets no file.
func (f *partFiles) publish(at func(string)) (int64, error) {
	rows, err := f.writer.Close()
	if err != nil {
		return 0, err
	}
	var bytes int64
	for _, kind := range resultfile.Kinds() {
		file, path := f.open[kind], partPath(f.dataset, kind, f.part)
		if rows[kind] == 0 {
			continue
		}
		info, err := file.Stat()
		if err == nil {
			err = file.Sync()
		}
		if err != nil {
			return 0, err
		}
		bytes += info.Size()
		if err := os.Rename(file.Name(), path); err != nil {
			return 0, err
		}
		if err := syncFolder(filepath.Dir(path)); err != nil {
			return 0, err
		}
		at("compact renamed " + kind)
	}
	return bytes, nil
}

// abort closes the files and removes the ones that have no name yet.
func (f *partFiles) abort() error {
	var errs []error
	for _, file := range f.open {
		errs = append(errs, file.Close(), removeIfThere(file.Name()))
	}
	return errors.Join(errs...)
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}
