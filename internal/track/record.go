package track

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"sbench/internal/batch"
	"sbench/internal/result"
	"sbench/internal/store"
)

// readRecord reads what a start of a task wrote about itself. It is a file on a
// shared file system: only a regular file of the batch's own user is believed,
// and only its beginning is read.
func readRecord(b store.Batch, task int, raw int64, restart int) (batch.Record, bool) {
	name := filepath.Join(b.Dir, batch.LogsDir, batch.RecordName(task, raw, restart))
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return batch.Record{}, false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || !ownedBy(info, b.UID) {
		return batch.Record{}, false
	}
	data, err := io.ReadAll(io.LimitReader(f, batch.MaxRecord))
	if err != nil {
		return batch.Record{}, false
	}
	return batch.ParseRecord(data), true
}

func ownedBy(info fs.FileInfo, uid int) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == uid
}

// manifestThere reports whether an attempt is sealed, as far as this host can
// see. Reading the folder first makes NFS ask its server.
func manifestThere(b store.Batch, run, raw int64, restart int) bool {
	name := filepath.Join(batch.AttemptDir(b.AttemptsDir, run, raw, restart), result.ManifestName)
	if _, err := os.Lstat(name); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return true // what cannot be looked at is not taken for missing
	}
	_, _ = os.ReadDir(filepath.Join(b.AttemptsDir, strconv.FormatInt(run, 10)))
	_, _ = os.ReadDir(filepath.Dir(name))
	_, err := os.Lstat(name)
	return err == nil
}

// markCancelled tells the tasks of a batch not to start a run any more.
func markCancelled(b store.Batch, run int64) error {
	dir := filepath.Join(b.Dir, batch.CancelDir)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, strconv.FormatInt(run, 10)), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
