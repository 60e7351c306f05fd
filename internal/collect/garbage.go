package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sbench/internal/result"
	"sbench/internal/site"
	"sbench/internal/store"
)

// Keeper looks after the files of ended attempts: it removes what counts for
// nothing once the site's retention is over, and compacts days into the dataset.
// It never touches what is valid, what no row of the database stands for, or what
// Slurm may still run. Two keepers at once do no harm.
type Keeper struct {
	Store *store.Store
	Sites []*site.Site
	Log   *slog.Logger
	Now   func() time.Time
	// Failpoint is called with the name of each step of compaction; nil does nothing.
	Failpoint func(name string)
}

// keepEvery is the pause between two rounds of a keeper.
const keepEvery = time.Hour

// Run removes and compacts until ctx ends, whose error it returns, or
// store.ErrFenced where another daemon acts.
func (k *Keeper) Run(ctx context.Context) error {
	return store.UntilFenced(ctx, keepEvery, nil, k.turn, func(err error) {
		k.Log.ErrorContext(ctx, "files are not kept completely", "error", err)
	})
}

// turn does once what there is to do. What goes wrong on one site keeps no other
// back, but a keeper of a deposed daemon goes no further.
func (k *Keeper) turn(ctx context.Context) error {
	var errs []error
	for _, s := range k.Sites {
		removed, err := k.Remove(ctx, s, false)
		if err == nil {
			if len(removed.Attempts) > 0 {
				k.Log.InfoContext(ctx, "removed files", "site", s.Name, "attempts", len(removed.Attempts), "bytes", removed.Bytes)
			}
			_, err = k.Compact(ctx, s)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("site %s: %w", s.Name, err))
		}
		if errors.Is(err, store.ErrFenced) || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// Removed is what a round removed, or would remove.
type Removed struct {
	Attempts []RemovedAttempt
	Files    int64
	Bytes    int64
}

// RemovedAttempt is an attempt whose files are gone, or would be.
type RemovedAttempt struct {
	AttemptID, RunID int64
	Folder           string // below the attempts folder
	ExitClass        string
	Reason           string // failed, unsealed
	Files, Bytes     int64
}

// deadBatch is how many attempts are looked at in one go.
const deadBatch = 500

// Remove removes the files of a site's dead attempts whose retention is over. A
// dry run says what it would remove and changes nothing.
func (k *Keeper) Remove(ctx context.Context, s *site.Site, dry bool) (Removed, error) {
	var all Removed
	before := func(keep time.Duration) time.Time {
		if keep == 0 {
			return time.Time{}
		}
		return k.Now().Add(-keep)
	}
	failed, unsealed := before(s.Retention.Failed), before(s.Retention.Unsealed)
	for after := int64(0); ; {
		dead, err := k.Store.DeadFiles(ctx, s.Name, failed, unsealed, after, deadBatch)
		if err != nil || len(dead) == 0 {
			return all, err
		}
		var gone []store.FilesRemoved
		for _, d := range dead {
			after = d.AttemptID
			r, err := k.removeOne(d, dry)
			if err != nil {
				k.Log.Warn("remove files", "attempt", d.AttemptID, "run", d.RunID, "error", err)
				continue
			}
			if r.Files > 0 {
				all.Attempts = append(all.Attempts, r)
				all.Files, all.Bytes = all.Files+r.Files, all.Bytes+r.Bytes
			}
			gone = append(gone, store.FilesRemoved{AttemptID: d.AttemptID, Reason: r.Reason, Files: r.Files, Bytes: r.Bytes})
		}
		if !dry && len(gone) > 0 {
			if err := k.Store.NoteFilesRemoved(ctx, gone); err != nil {
				return all, err
			}
		}
		if err := ctx.Err(); err != nil {
			return all, err
		}
	}
}

// removeOne removes the files of an attempt. All paths are looked up below the
// attempts folder, and no link leads out of it.
func (k *Keeper) removeOne(d store.DeadFiles, dry bool) (RemovedAttempt, error) {
	run, name := strconv.FormatInt(d.RunID, 10), fmt.Sprintf("%d-r%d", d.JobIDRaw, d.RestartCount)
	r := RemovedAttempt{AttemptID: d.AttemptID, RunID: d.RunID, Folder: filepath.Join(run, name), ExitClass: d.ExitClass, Reason: "failed"}
	root, err := os.OpenRoot(d.AttemptsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer root.Close()
	folders := []string{r.Folder}
	if !d.Sealed {
		r.Reason = "unsealed"
		if folders, err = leftovers(root, run, name); err != nil {
			return r, err
		}
	}
	for _, f := range folders {
		err := fs.WalkDir(root.FS(), f, func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if info, err := e.Info(); err == nil && !e.IsDir() {
				r.Files, r.Bytes = r.Files+1, r.Bytes+info.Size()
			}
			return nil
		})
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed before, and not noted
		}
		if err != nil {
			return r, err
		}
		if dry {
			continue
		}
		if err := removeFolder(root, f, d.Sealed); err != nil {
			return r, err
		}
	}
	if !dry {
		// The run's folder goes with its last attempt; with others in it this fails.
		_ = root.Remove(run)
	}
	return r, nil
}

// removeFolder removes a folder. One that was never sealed is taken aside first:
// a runner that seals it at last either was faster, and then it stays, or finds it
// gone, and says so. It never publishes one that is half removed.
func removeFolder(root *os.Root, folder string, sealed bool) error {
	if sealed {
		return root.RemoveAll(folder)
	}
	aside := folder + asideEnd
	if strings.HasSuffix(folder, asideEnd) {
		aside = folder // a keeper that was killed has done that
	} else if err := root.Rename(folder, aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if _, err := root.Lstat(filepath.Join(aside, result.ManifestName)); err == nil {
		return root.Rename(aside, strings.TrimSuffix(aside, asideEnd))
	}
	return root.RemoveAll(aside)
}

const (
	partialEnd = ".partial"
	asideEnd   = ".removed"
)

// leftovers lists the folders that runners of a job did not seal. A folder with a
// manifest is a late attempt that nobody collected yet: it is not among them.
func leftovers(root *os.Root, run, name string) ([]string, error) {
	d, err := root.Open(run)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var folders []string
	for _, e := range entries {
		mine := strings.HasPrefix(e.Name(), "."+name+".") && strings.HasSuffix(strings.TrimSuffix(e.Name(), asideEnd), partialEnd)
		if !mine || !e.IsDir() {
			continue
		}
		folder := filepath.Join(run, e.Name())
		if _, err := root.Lstat(filepath.Join(folder, result.ManifestName)); err == nil && !strings.HasSuffix(folder, asideEnd) {
			continue // it was about to be published
		}
		folders = append(folders, folder)
	}
	return folders, nil
}
