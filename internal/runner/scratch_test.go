package runner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestCleanUp: what a dead runner left goes, what a live one has stays.
func TestCleanUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	live, owner, err := makeScratch(dir, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	dead, gone, err := makeScratch(dir, 8)
	if err != nil {
		t.Fatal(err)
	}
	orphan := exec.Command("sleep", "300")
	orphan.Env = []string{"TMPDIR=" + dead}
	neighbour := exec.Command("sleep", "300")
	neighbour.Env = []string{"TMPDIR=" + live}
	for _, cmd := range []*exec.Cmd{orphan, neighbour} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		_ = neighbour.Process.Kill()
		_ = neighbour.Wait()
	}()
	foreign := filepath.Join(dir, "sbench-run-of-somebody")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	if left := abandoned(dir, os.Getuid()); len(left) != 0 {
		t.Errorf("abandoned while both are held: %v", left)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if left := abandoned(dir, os.Getuid()+1); len(left) != 0 {
		t.Errorf("another user's: %v", left)
	}
	reaped := make(chan error, 1)
	go func() { reaped <- orphan.Wait() }()
	removed, err := cleanUp(t.Context(), []string{dir, dir, filepath.Join(dir, "absent")}, []string{filepath.Join(dir, "absent")}, os.Getuid())
	if err != nil || !slices.Contains(removed, "scratch folder "+dead) || len(removed) != 2 {
		t.Errorf("removed %q, %v", removed, err)
	}
	if err := <-reaped; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the orphan ended with %v", err)
	}
	for path, want := range map[string]bool{live: true, foreign: true, dead: false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v", path, err == nil)
		}
	}
	if lockOf(filepath.Join(live, ownerFile)) != lockTaken {
		t.Error("the live runner's lock is gone")
	}
}

// TestAbandoned_Forking: the lock of a killed runner outlives it for a moment, in a
// process that it was starting.
func TestAbandoned_Forking(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	folder := func(run int64, owner int) (string, *os.File) {
		path, lock, err := makeScratch(dir, run)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, ownerFile), fmt.Appendln(nil, owner), 0o600); err != nil {
			t.Fatal(err)
		}
		return path, lock
	}
	killed, itsChild := folder(1, ended.Process.Pid)
	_, elsewhere := folder(2, ended.Process.Pid) // of another namespace, say
	defer elsewhere.Close()
	_, live := folder(3, os.Getpid())
	defer live.Close()
	executed := time.AfterFunc(forking/4, func() { itsChild.Close() })
	defer executed.Stop()
	if diff := cmp.Diff([]string{killed}, abandoned(dir, os.Getuid())); diff != "" {
		t.Error(diff)
	}
}

// TestRun_CleansUpAfterAKilledRunner: the next run on the node leaves it clean.
func TestRun_CleansUpAfterAKilledRunner(t *testing.T) {
	b := newBench(t, nil)
	root := filepath.Dir(b.dir)
	left, owner, err := makeScratch(root, 99)
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	_, out := b.run()
	b.sealed()
	b.nothingLeft()
	if !strings.Contains(out, "scratch folder "+left) {
		t.Errorf("the log does not say that %s was removed:\n%s", left, out)
	}
}
