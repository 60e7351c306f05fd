// Package spool is what jobs and the daemon write side by side into a batch's
// folder: who measures a task, and which starts of it have begun which run.
//
// It promises that what must happen once is decided by one exclusive link on the
// file system, not by looking first: of any number of jobs one gets a task, and
// of a job that is about to begin a run and a daemon that gives the run up, or a
// start that has a result of it, one goes first and the other learns of it. It
// needs no locks, works over NFS, and refuses to follow links, wait for pipes or
// read without end.
package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sbench/internal/batch"
)

// Job is one start of a job or array element.
type Job struct {
	Cluster  string    `json:"cluster"`
	JobIDRaw int64     `json:"job_id_raw"`
	Restart  int       `json:"restart_count"`
	Node     string    `json:"node"`
	At       time.Time `json:"at"`
}

// maxEntry bounds the file of a claim or of an entry.
const maxEntry = 64 << 10

// ReadPlain reads a regular file of at most so many bytes. A link, a pipe or a
// device in its place must not make the reader read something else, or hang.
func ReadPlain(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes, more than the limit %d", path, info.Size(), most)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// ClaimPath is the file that says which job measures a task of the batch whose
// folder is dir.
func ClaimPath(dir string, task int) string {
	return filepath.Join(dir, batch.ClaimsDir, "task-"+strconv.Itoa(task))
}

// Claim links a claim of the task into place, which one of any number of jobs
// can do, and returns the claim that is there.
func Claim(dir string, task int, j Job) (Job, error) {
	path := ClaimPath(dir, task)
	fail := func(err error) (Job, error) { return Job{}, fmt.Errorf("claim task %d: %w", task, err) }
	temporary, err := prepare(path, j)
	if err != nil {
		return fail(err)
	}
	defer os.Remove(temporary)
	linkErr := os.Link(temporary, path)
	// Over NFS the answer to a link that worked may be lost: what counts is what
	// the file says.
	text, err := ReadPlain(path, maxEntry)
	if err != nil {
		return fail(errors.Join(linkErr, err))
	}
	var owner Job
	if err := json.Unmarshal(text, &owner); err != nil {
		return fail(fmt.Errorf("read %s: %w", path, err))
	}
	return owner, nil
}

// prepare writes the text of an entry, durably, beside its place.
func prepare(path string, entry any) (name string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	text, err := json.Marshal(entry)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".claim-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}
