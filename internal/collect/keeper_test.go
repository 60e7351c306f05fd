package collect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"sbench/internal/collect"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/site"
	"sbench/internal/store"
)

// keeper returns a keeper of the lab's files, at a time long after its attempts.
func (l *lab) keeper() (*collect.Keeper, *site.Site) {
	l.t.Helper()
	s := &site.Site{
		Name: "lab", Paths: site.Paths{Results: filepath.Dir(l.attempts)},
		Retention: site.Retention{Failed: 24 * time.Hour, Unsealed: 24 * time.Hour, Compact: 24 * time.Hour},
	}
	return &collect.Keeper{
		Store: l.store, Sites: []*site.Site{s}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Now: func() time.Time { return time.Now().Add(48 * time.Hour) },
	}, s
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// TestKeeper_Remove: only what counts for nothing goes, and only when nothing can
// come of it any more.
func TestKeeper_Remove(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 5)
	good := l.measured(l.runs[0], 100)
	failed := l.seal(l.manifest(l.runs[1], 101, lifecycle.ExitDriftArtefact), nil)
	retried := l.seal(l.manifest(l.runs[2], 102, lifecycle.ExitStaging), nil)
	l.tick()
	uncollected := l.measured(l.runs[3], 104)
	partial := filepath.Join(l.attempts, fmt.Sprint(l.runs[4]), ".105-r0.1.partial")
	aside := filepath.Join(l.attempts, fmt.Sprint(l.runs[4]), ".105-r0.2.partial.removed") // of a keeper that was killed
	live := filepath.Join(l.attempts, fmt.Sprint(l.runs[4]), ".106-r0.1.partial")
	outside := filepath.Join(t.TempDir(), "precious")
	for _, d := range []string{partial, aside, live, outside} {
		must(t, os.MkdirAll(d, 0o755))
		must(t, os.WriteFile(filepath.Join(d, "engine.log"), []byte("x"), 0o644))
	}
	must(t, os.Symlink(outside, filepath.Join(partial, "link")))
	k, s := l.keeper()
	round := func(dry bool) collect.Removed {
		t.Helper()
		r, err := k.Remove(t.Context(), s, dry)
		must(t, err)
		return r
	}
	if got := round(false); len(got.Attempts) != 0 {
		t.Errorf("the task has not ended, and yet: %+v", got)
	}
	// The tracker settles: run 4 was lost with job 105, which left a folder.
	inTx(t, l, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.InsertAttempts(ctx, []store.NewAttempt{store.LostAttempt(result.Attempt{
			RunID: l.runs[4], Token: token, Site: "lab", Cluster: "c1", JobIDRaw: 105, HardwareClass: "emulated",
		}, "gone")})
		return err
	})
	l.settleTasks()
	dry := round(true)
	if len(dry.Attempts) != 3 || dry.Files == 0 || !exists(failed) {
		t.Errorf("dry run %+v", dry)
	}
	done := round(false)
	if done.Files != dry.Files || done.Bytes != dry.Bytes {
		t.Errorf("said %+v, did %+v", dry, done)
	}
	for path, want := range map[string]bool{
		good: true, uncollected: true, live: true, filepath.Join(outside, "engine.log"): true,
		failed: false, retried: false, partial: false, aside: false,
	} {
		if exists(path) != want {
			t.Errorf("%s: there is %v, want %v", path, !want, want)
		}
	}
	if again := round(false); len(again.Attempts) != 0 || l.count("attempt_files_removed") != 3 {
		t.Errorf("again %+v", again)
	}
}

// TestKeeper_Deposed: where another daemon acts, the keeper goes on to no other site.
func TestKeeper_Deposed(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 1)
	l.seal(l.manifest(l.runs[0], 101, lifecycle.ExitDriftArtefact), nil)
	l.tick()
	l.settleTasks()
	k, s := l.keeper()
	k.Sites, k.Store = []*site.Site{s, s}, l.store.Fenced(12345)
	if err := k.Run(t.Context()); !errors.Is(err, store.ErrFenced) || strings.Count(err.Error(), "site lab") != 1 {
		t.Errorf("error is %v", err)
	}
}

func inTx(t testing.TB, l *lab, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	must(t, l.store.WithTx(t.Context(), func(tx *store.Tx) error { return fn(t.Context(), tx) }))
}

// TestKeeper_RunFolderIsALink: what lies behind a link stays.
func TestKeeper_RunFolderIsALink(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 1)
	dir := l.seal(l.manifest(l.runs[0], 101, lifecycle.ExitDriftArtefact), nil)
	l.tick()
	l.settleTasks()
	moved := filepath.Join(t.TempDir(), "moved")
	must(t, os.Rename(filepath.Dir(dir), moved))
	must(t, os.Symlink(moved, filepath.Dir(dir)))
	k, s := l.keeper()
	if got, err := k.Remove(t.Context(), s, false); err != nil || len(got.Attempts) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if !exists(filepath.Join(moved, filepath.Base(dir), result.ManifestName)) {
		t.Error("a file outside the attempts folder was removed")
	}
}

type compacted struct {
	RunID    int64 `parquet:"run_id"`
	JobIDRaw int64 `parquet:"job_id_raw"`
}

// dataset counts the rows of each run in the files that a reader's glob finds.
func (l *lab) dataset(s *site.Site, kind string) map[int64]int {
	l.t.Helper()
	rows := map[int64]int{}
	files, err := filepath.Glob(filepath.Join(s.DatasetDir(), kind, "date=*", "*.parquet"))
	must(l.t, err)
	for _, f := range files {
		list, err := parquet.ReadFile[compacted](f)
		must(l.t, err)
		for _, r := range list {
			rows[r.RunID]++
		}
	}
	return rows
}

// killed ends a keeper at a failpoint, as a signal would.
type killed string

func (l *lab) compact(at string) (died bool) {
	k, s := l.keeper()
	k.Now = func() time.Time { return time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC) } // the attempts are of the 2nd
	k.Failpoint = func(name string) {
		if name == at {
			panic(killed(name))
		}
	}
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(killed); !ok {
				panic(p)
			}
			died = true
		}
	}()
	_, err := k.Compact(l.t.Context(), s)
	must(l.t, err)
	return false
}

// TestKeeper_CompactKilled: wherever a keeper dies, the next one ends with every
// attempt in the dataset once.
func TestKeeper_CompactKilled(t *testing.T) {
	t.Parallel()
	points := []string{
		"compact planned", "compact written", "compact renamed result", "compact renamed window",
		"compact renamed requests", "compact published",
	}
	l := newLab(t, len(points)+1, 2)
	l.requests = 20
	_, s := l.keeper()
	for i, point := range points {
		l.measured(l.runs[2*i], 100)
		bad := l.measured(l.runs[2*i+1], 100)
		l.tick()
		must(t, os.Remove(filepath.Join(bad, result.RunnerLog))) // torn since it was ingested
		if !l.compact(point) {
			t.Fatalf("%s was not reached", point)
		}
		if l.compact("") {
			t.Fatal("died twice")
		}
	}
	for kind, each := range map[string]int{"result": 1, "window": 1, "requests": 20} {
		got := l.dataset(s, kind)
		for i := range points {
			if got[l.runs[2*i]] != each {
				t.Errorf("%s: run %d has %d rows, want %d", kind, l.runs[2*i], got[l.runs[2*i]], each)
			}
		}
		if len(got) != len(points) {
			t.Errorf("%s of %d runs, want %d", kind, len(got), len(points))
		}
	}
	var open, unreadable int
	l.query(`select count(*) filter (where state <> 'done'), sum(unreadable) from dataset_part`, &open, &unreadable)
	if open != 0 || unreadable != len(points) {
		t.Errorf("%d parts open, %d attempts unreadable", open, unreadable)
	}
	if l.compact("") || l.count("dataset_part") != len(points) {
		t.Error("there was something left to do")
	}
	left, err := filepath.Glob(filepath.Join(s.DatasetDir(), "*", "date=*", ".*"))
	must(t, err)
	if left = slices.DeleteFunc(left, func(p string) bool { return strings.HasSuffix(p, ".") }); len(left) != 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

// TestKeeper_CompactTwoAtOnce: a keeper that hangs half-way and goes on when another
// has the lead neither damages what that one writes nor leaves anything.
func TestKeeper_CompactTwoAtOnce(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"compact planned", "compact written", "compact renamed result", "compact renamed requests", "compact published"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, 1, 3)
			l.requests = 20
			var log string // of an attempt that the one that hangs could not read
			for _, r := range l.runs {
				log = filepath.Join(l.measured(r, 100), result.RunnerLog)
			}
			l.tick()
			must(t, os.Rename(log, log+".away"))
			k, s := l.keeper()
			k.Now = func() time.Time { return time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC) }
			hung := *k
			hung.Failpoint = func(name string) {
				if name != point {
					return
				}
				must(t, os.Rename(log+".away", log))
				if _, err := k.Compact(t.Context(), s); err != nil {
					t.Errorf("the one that acts: %v", err)
				}
				l.whole(s)
			}
			_, _ = hung.Compact(t.Context(), s) // it may find its files gone
			l.whole(s)
			left, err := filepath.Glob(filepath.Join(s.DatasetDir(), "*", "date=*", ".part*"))
			must(t, err)
			if len(left) != 0 {
				t.Errorf("temporary files are left: %v", left)
			}
		})
	}
}

// whole: every run is in the dataset once, and every file can be read.
func (l *lab) whole(s *site.Site) {
	l.t.Helper()
	for kind, each := range map[string]int{"result": 1, "window": 1, "requests": 20} {
		got := l.dataset(s, kind)
		for _, r := range l.runs {
			if got[r] != each {
				l.t.Errorf("%s: run %d has %d rows, want %d", kind, r, got[r], each)
			}
		}
	}
}
