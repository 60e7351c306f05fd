package spool

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/batch"
)

func job(raw int64, restart int) Job {
	return Job{Cluster: "lab", JobIDRaw: raw, Restart: restart, Node: "n1", At: time.Unix(1700000000, 0).UTC()}
}

func TestClaim(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if owner, err := Claim(dir, 3, job(4711, 0)); err != nil || owner != job(4711, 0) {
			t.Fatalf("%+v, %v", owner, err)
		}
	}
	if owner, err := Claim(dir, 3, job(4712, 0)); err != nil || owner != job(4711, 0) {
		t.Errorf("another job: %+v, %v", owner, err)
	}
}

func TestStart(t *testing.T) {
	dir := t.TempDir()
	for restart := range 3 {
		if closed, err := Start(dir, 7, job(4711, restart)); err != nil || closed != "" {
			t.Fatalf("%q, %v", closed, err)
		}
	}
	want := []Job{job(4711, 0), job(4711, 1), job(4711, 2)}
	for range 2 { // it may be repeated
		starts, err := Close(dir, 7, "its task has ended", time.Now())
		if diff := cmp.Diff(want, starts); diff != "" || err != nil {
			t.Fatal(err, diff)
		}
	}
	if closed, err := Start(dir, 7, job(4711, 3)); err != nil || closed != "its task has ended" {
		t.Errorf("begun although it was given up: %q, %v", closed, err)
	}
	if closed, err := Start(dir, 8, job(4711, 3)); err != nil || closed != "" {
		t.Errorf("another run: %q, %v", closed, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, batch.ClaimsDir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestClose_NothingThere(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	if starts, err := Close(gone, 7, "x", time.Now()); err != nil || starts != nil {
		t.Errorf("%v, %v", starts, err)
	}
	if _, err := os.Lstat(gone); err == nil {
		t.Error("a folder was made that nobody froze")
	}
	if _, err := Close(t.TempDir(), 7, "", time.Now()); err == nil {
		t.Error("closed without a reason")
	}
}

// TestStart_Race lets jobs begin a run while daemons give it up: a start that was
// told to go on is one that every daemon knows of.
func TestStart_Race(t *testing.T) {
	for round := range 30 {
		dir := t.TempDir()
		var mu sync.Mutex
		begun := map[int64]bool{}
		var known [][]Job
		var wait sync.WaitGroup
		for i := range 6 {
			wait.Go(func() {
				closed, err := Start(dir, 7, job(int64(100+i), 0))
				if err != nil {
					t.Error(err)
				}
				if closed == "" {
					mu.Lock()
					begun[int64(100+i)] = true
					mu.Unlock()
				}
			})
		}
		for range 2 {
			wait.Go(func() {
				starts, err := Close(dir, 7, "given up", time.Now())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				known = append(known, starts)
				mu.Unlock()
			})
		}
		wait.Wait()
		for _, starts := range known {
			told := map[int64]bool{}
			for _, s := range starts {
				told[s.JobIDRaw] = true
			}
			if diff := cmp.Diff(begun, told); diff != "" {
				t.Fatalf("round %d: begun, and told to the daemon: %s", round, diff)
			}
		}
	}
}

func TestFinish(t *testing.T) {
	dir := t.TempDir()
	start := func(j Job) string {
		t.Helper()
		closed, err := Start(dir, 7, j)
		if err != nil {
			t.Fatal(err)
		}
		return closed
	}
	finish := func(j Job) bool {
		t.Helper()
		last, err := Finish(dir, 7, j)
		if err != nil {
			t.Fatal(err)
		}
		return last
	}
	first, second := job(1, 0), job(1, 1)
	if closed := start(first) + start(second); closed != "" {
		t.Fatal(closed)
	}
	if finish(first) {
		t.Error("a result stands although another start has begun after its own")
	}
	for range 2 {
		if !finish(second) {
			t.Error("the last start has no result")
		}
	}
	if closed := start(job(1, 2)); closed == "" {
		t.Error("begun although there is a result")
	}
	for range 2 {
		starts, err := Close(dir, 7, "the task has ended", time.Now())
		if err != nil || len(starts) != 2 || starts[0].Restart != 0 || starts[1].Restart != 1 {
			t.Errorf("told to the daemon: %+v, %v", starts, err)
		}
	}
	if !finish(second) {
		t.Error("what the daemon has closed does not count")
	}
	if finish(first) {
		t.Error("an earlier start counts once the daemon has closed the list")
	}
	if last, err := Finish(t.TempDir(), 7, first); err != nil || !last {
		t.Errorf("without a start: %v, %v", last, err)
	}
}

// TestFinish_Race: of a start that finishes and one that begins, one goes on.
func TestFinish_Race(t *testing.T) {
	for round := range 50 {
		dir := t.TempDir()
		if _, err := Start(dir, 7, job(1, 0)); err != nil {
			t.Fatal(err)
		}
		var last bool
		var closed string
		var wait sync.WaitGroup
		wait.Go(func() {
			var err error
			if last, err = Finish(dir, 7, job(1, 0)); err != nil {
				t.Error(err)
			}
		})
		wait.Go(func() {
			var err error
			if closed, err = Start(dir, 7, job(1, 1)); err != nil {
				t.Error(err)
			}
		})
		wait.Wait()
		if last == (closed == "") {
			t.Fatalf("round %d: the first has a result: %v; the second was told %q", round, last, closed)
		}
	}
}

// TestStart_Hostile: what lies in the place of an entry and is none decides
// nothing, and nobody hangs on it.
func TestStart_Hostile(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a pipe":    func(path string) error { return syscall.Mkfifo(path, 0o644) },
		"a device":  func(path string) error { return os.Symlink("/dev/zero", path) },
		"a folder":  func(path string) error { return os.Mkdir(path, 0o755) },
		"half":      func(path string) error { return os.WriteFile(path, []byte(`{"job_id`), 0o644) },
		"too large": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<40)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(dir, batch.ClaimsDir), 0o755), make(startPath(dir, 7, 0))); err != nil {
				t.Fatal(err)
			}
			if closed, err := Start(dir, 7, job(1, 0)); err == nil {
				t.Errorf("begun: %q", closed)
			}
			if starts, err := Close(dir, 7, "x", time.Now()); err == nil || !strings.Contains(err.Error(), "run 7") {
				t.Errorf("closed: %v, %v", starts, err)
			}
		})
	}
}

// TestStart_Full: where nothing can be written, nothing is begun.
func TestStart_Full(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, batch.ClaimsDir), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if closed, err := Start(dir, 7, job(1, 0)); err == nil {
		t.Errorf("begun: %q", closed)
	}
	if _, err := Close(dir, 7, "x", time.Now()); err == nil {
		t.Error("taken for closed")
	}
}

func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	for i := range b.N {
		if _, err := Start(dir, int64(i+1), job(1, 0)); err != nil {
			b.Fatal(err)
		}
	}
}
