package spool

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"sbench/internal/batch"
)

// The starts of a run are a list of files that is only appended to: entry n is
// linked exclusively after the entries before it were read. The daemon ends the
// list with an entry that says why, and a start that is about to seal a result that
// stands with one of its own; nothing follows either.

// maxStarts bounds the list: Slurm itself stops requeueing long before.
const maxStarts = 1000

// unseen is how long an entry that is there, because it cannot be made, may stay
// invisible to this host.
const unseen = time.Minute

// entry is one file of the list.
type entry struct {
	Job
	Closed string `json:"closed,omitempty"` // why no start may follow
	// Sealing: the job ends the list itself; the daemon may still.
	Sealing bool   `json:"sealing,omitempty"`
	Nonce   string `json:"nonce"` // tells our own entry from another's
}

func startPath(dir string, run int64, n int) string {
	return filepath.Join(dir, batch.ClaimsDir, fmt.Sprintf("run-%d.%d", run, n))
}

// Start notes that the job begins a run of the batch whose folder is dir. It
// returns why not where the daemon has given the run up here, or an earlier start
// has a result of it; then the run must not be begun. "" and no error mean that the
// daemon will know of this start.
func Start(dir string, run int64, j Job) (closed string, err error) {
	_, closed, err = appendEntry(dir, run, entry{Job: j}, nil)
	if err != nil {
		return "", fmt.Errorf("note the start of run %d: %w", run, err)
	}
	return closed, nil
}

// Finish says that a start of the job has a result of the run, which is to be sealed:
// no other start begins the run any more. It is false where one has begun after this
// start, whose job Slurm had given up while it went on; then the result must not
// stand beside that start's. Where the daemon has given the run up it still counts.
func Finish(dir string, run int64, j Job) (last bool, err error) {
	isLast := func(starts []Job) bool {
		n := len(starts)
		return n == 0 || starts[n-1].JobIDRaw == j.JobIDRaw && starts[n-1].Restart == j.Restart
	}
	starts, _, err := appendEntry(dir, run, entry{Job: j, Closed: "an earlier start has a result", Sealing: true}, isLast)
	if err != nil {
		return false, fmt.Errorf("note the result of run %d: %w", run, err)
	}
	return isLast(starts), nil
}

// Close gives a run up in the batch whose folder is dir: no job can begin it
// there any more. It returns the starts that had begun it. It may be repeated. A
// folder that is not there has no starts, and none can come.
func Close(dir string, run int64, why string, at time.Time) ([]Job, error) {
	if why == "" {
		return nil, errors.New("close a run: no reason")
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	starts, _, err := appendEntry(dir, run, entry{Job: Job{At: at}, Closed: why}, nil)
	if err != nil {
		return nil, fmt.Errorf("give run %d up in %s: %w", run, filepath.Base(dir), err)
	}
	return starts, nil
}

// appendEntry puts e at the end of the list, unless that is closed or may, which can
// be nil, says no to the starts before it. It returns these and why the list was
// closed before.
func appendEntry(dir string, run int64, e entry, may func(starts []Job) bool) (starts []Job, closed string, err error) {
	n := 0
	// The daemon's end follows a start's own.
	ends := func(found entry) bool { return found.Closed != "" && (!found.Sealing || e.Closed == "" || e.Sealing) }
	for ; n < maxStarts; n++ {
		found, err := readEntry(startPath(dir, run, n))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, "", err
		}
		switch {
		case ends(found):
			return starts, found.Closed, nil
		case !found.Sealing:
			starts = append(starts, found.Job)
		}
	}
	e.Nonce = rand.Text()
	temporary, err := prepare(startPath(dir, run, n), e)
	if err != nil {
		return nil, "", err
	}
	defer os.Remove(temporary)
	for ; n < maxStarts; n++ {
		if may != nil && !may(starts) {
			return starts, "", nil
		}
		path := startPath(dir, run, n)
		linkErr := os.Link(temporary, path)
		if linkErr == nil {
			return starts, "", nil
		}
		// Over NFS the answer to a link that worked may be lost, and what another
		// host has made may be seen late.
		found, err := awaitEntry(path, linkErr)
		switch {
		case err != nil:
			return nil, "", errors.Join(linkErr, err)
		case found.Nonce == e.Nonce:
			return starts, "", nil
		case ends(found):
			return starts, found.Closed, nil
		case !found.Sealing:
			starts = append(starts, found.Job)
		}
	}
	return nil, "", fmt.Errorf("more than %d starts", maxStarts)
}

func readEntry(path string) (entry, error) {
	text, err := ReadPlain(path, maxEntry)
	if err != nil {
		return entry{}, err
	}
	var e entry
	if err := json.Unmarshal(text, &e); err != nil {
		return entry{}, fmt.Errorf("read %s: %w", path, err)
	}
	return e, nil
}

// awaitEntry reads an entry that could not be made. Where it exists, it will be
// seen.
func awaitEntry(path string, linkErr error) (entry, error) {
	deadline := time.Now().Add(unseen)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		e, err := readEntry(path)
		if !errors.Is(err, fs.ErrNotExist) || !errors.Is(linkErr, fs.ErrExist) || time.Now().After(deadline) {
			return e, err
		}
		_, _ = os.ReadDir(filepath.Dir(path)) // makes NFS ask its server
		time.Sleep(wait)
	}
}
