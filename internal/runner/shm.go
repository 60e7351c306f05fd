package runner

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// shmDir is where engines keep shared memory; a killed one leaves it behind.
const shmDir = "/dev/shm"

// cleanShm removes this user's files in dir that were made after since and that
// no process uses any more: those of other runs beside this one are in use.
func cleanShm(dir string, since time.Time) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var candidates []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() {
			continue
		}
		if time.Unix(st.Ctim.Unix()).After(since) {
			candidates = append(candidates, path)
		}
	}
	if len(candidates) == 0 {
		return nil, nil
	}
	inUse := usedFiles()
	var removed []string
	var errs []error
	for _, path := range candidates {
		if bytes.Contains(inUse, []byte(path)) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, path)
	}
	return removed, errors.Join(errs...)
}

// usedFiles is what this user's processes have mapped or open, as text.
func usedFiles() []byte {
	var text bytes.Buffer
	maps, _ := filepath.Glob("/proc/[0-9]*/maps")
	for _, path := range maps {
		b, _ := os.ReadFile(path) // another user's cannot be read
		text.Write(b)
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, path := range fds {
		target, _ := os.Readlink(path)
		text.WriteString(target)
		text.WriteByte('\n')
	}
	return text.Bytes()
}
