package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"sbench/internal/result"
	"sbench/internal/seal"
	"sbench/internal/store"
)

// folder is a sealed attempt that is not in the database.
type folder struct {
	dir   string
	name  string // <job id raw>-r<restart count>
	runID int64
	// tasks are the tasks that the run is or was in, one of which the manifest
	// must name. They share the attempts folder.
	tasks []store.Candidate
}

var folderName = regexp.MustCompile(`^[1-9][0-9]{0,17}-r[0-9]{1,9}$`)

// listing is the names in an attempts folder as of its modification time.
type listing struct {
	modified time.Time // by the file server's clock
	seen     time.Time // when that was first seen, and
	listed   time.Time // when the names were read, by ours
	names    map[string]bool
}

const (
	// settleTime is for how long a folder's modification time must have been known
	// before a listing is kept: within the clock's grain another entry may follow
	// unseen. The two clocks are never compared.
	settleTime = 5 * time.Second
	// listingAge is how long a listing is kept at most: not every file system says
	// that a folder has changed.
	listingAge = time.Minute
)

// kept reports whether the listing is as good as a new one.
func (l listing) kept(modified, now time.Time) bool {
	return l.modified.Equal(modified) && l.listed.Sub(l.seen) > settleTime && now.Sub(l.listed) < listingAge
}

// find lists the attempts of the candidates that are not known and not put off.
// missed says which folders could not be read: the file system of a site may be
// away.
func (c *Collector) find(candidates []store.Candidate) (found []folder, missed error) {
	type place struct {
		attempts string
		runID    int64
	}
	tasks := map[place][]store.Candidate{}
	var places []place
	for _, k := range candidates {
		p := place{k.AttemptsDir, k.RunID}
		if tasks[p] == nil {
			places = append(places, p)
		}
		tasks[p] = append(tasks[p], k)
	}
	var errs []error
	fresh, away := map[string]bool{}, map[string]bool{}
	for _, p := range places {
		if !fresh[p.attempts] {
			if err := c.list(p.attempts); err != nil {
				errs, away[p.attempts] = append(errs, err), true
			}
			fresh[p.attempts] = true
		}
		if away[p.attempts] {
			continue
		}
		run := strconv.FormatInt(p.runID, 10)
		if !c.names[p.attempts].names[run] {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(p.attempts, run))
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("read folder of run %d: %w", p.runID, err))
			}
			continue
		}
		for _, e := range entries {
			dir := filepath.Join(p.attempts, run, e.Name())
			if !folderName.MatchString(e.Name()) || slices.Contains(tasks[p][0].Known, e.Name()) || c.putOff(dir) {
				continue
			}
			found = append(found, folder{dir, e.Name(), p.runID, tasks[p]})
		}
	}
	return found, errors.Join(errs...)
}

// list reads the names of the runs' folders, where it has changed.
func (c *Collector) list(attempts string) error {
	info, err := os.Stat(attempts)
	if errors.Is(err, fs.ErrNotExist) {
		delete(c.names, attempts) // nothing was sealed yet
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at attempts folder: %w", err)
	}
	now, old := c.now(), c.names[attempts]
	if old.kept(info.ModTime(), now) {
		return nil
	}
	entries, err := os.ReadDir(attempts)
	if err != nil {
		return fmt.Errorf("read attempts folder: %w", err)
	}
	names := make(map[string]bool, len(entries))
	for _, e := range entries {
		names[e.Name()] = true
	}
	seen := now
	if old.modified.Equal(info.ModTime()) {
		seen = old.seen
	}
	c.names[attempts] = listing{info.ModTime(), seen, now, names}
	return nil
}

// The kinds of refusal, as the database names them.
const (
	kindTorn       = store.RejectedTorn // files are missing or not what was sealed; may pass
	kindHostile    = "hostile"          // what no runner writes
	kindForeign    = "foreign"          // not of the run, batch or user that it claims
	kindUnreadable = "unreadable"       // sealed, and its content cannot be understood
)

// fault is why a folder is refused.
type fault struct {
	kind string
	err  error
}

func (f fault) Error() string { return f.err.Error() }
func (f fault) Unwrap() error { return f.err }

// refusal is when to look at a refused folder again.
type refusal struct {
	mark  string
	next  time.Time
	tries int
}

// The pauses between looks at a refused folder.
const (
	firstPause   = time.Second
	longestPause = 10 * time.Minute
	// unsealedTries is how often a folder without a manifest is looked at before
	// it is reported: it may be on its way through the file system.
	unsealedTries = 4
)

// putOff reports whether the folder was refused and has not changed since.
func (c *Collector) putOff(dir string) bool {
	r, ok := c.refused[dir]
	return ok && c.now().Before(r.next) && mark(dir) == r.mark
}

// postpone notes that a folder was refused and when to look again.
func (c *Collector) postpone(dir string) refusal {
	seen := mark(dir)
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.refused[dir]
	if r.mark != seen {
		r = refusal{mark: seen}
	}
	pause := min(longestPause, firstPause<<min(r.tries, 20))
	r.tries++
	r.next = c.now().Add(pause)
	c.refused[dir] = r
	return r
}

// refuse reports a folder and puts it off.
func (c *Collector) refuse(ctx context.Context, f folder, err error) error {
	r := c.postpone(f.dir)
	if errors.Is(err, seal.ErrUnsealed) && r.tries < unsealedTries {
		return nil
	}
	kind := kindOf(err)
	if r.tries == 1 || errors.Is(err, seal.ErrUnsealed) && r.tries == unsealedTries {
		c.log.Warn("refused attempt", "run", f.runID, "dir", f.dir, "kind", kind, "error", err)
	}
	return c.store.Reject(ctx, store.Rejected{Dir: f.dir, RunID: f.runID, Kind: kind, Reason: printable(err.Error(), maxReason), Mark: r.mark})
}

// kindOf says what kind of refusal an error is.
func kindOf(err error) string {
	var known fault
	var number syscall.Errno
	switch {
	case errors.As(err, &known):
		return known.kind
	case errors.Is(err, seal.ErrHostile):
		return kindHostile
	case errors.Is(err, seal.ErrTorn), errors.Is(err, seal.ErrUnsealed), errors.As(err, &number):
		// A stale handle or an error of the disk says nothing about what was sealed.
		return kindTorn
	}
	return kindUnreadable
}

// mark changes when the folder or its manifest does.
func mark(dir string) string {
	text := ""
	for _, path := range []string{dir, filepath.Join(dir, result.ManifestName)} {
		info, err := os.Lstat(path)
		if err != nil {
			text += "-;"
			continue
		}
		text += fmt.Sprintf("%d/%d/%o;", info.ModTime().UnixNano(), info.Size(), info.Mode())
	}
	return text
}

// refusedByDatabase tells rows that PostgreSQL will never take from a database
// that is away: data exceptions, broken constraints, limits of the program (JSON
// that is nested too deeply, a text too long for an index) and the schema's rules.
func refusedByDatabase(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return errors.Is(err, store.ErrIllegalTransition)
	}
	switch pg.Code[:2] {
	case "22", "23", "54", "SB":
		return true
	}
	return false
}
