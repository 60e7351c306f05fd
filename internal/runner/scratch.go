package runner

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/proc"
	"sbench/internal/runner/stage"
)

// ownerFile is in every scratch folder. Its runner holds a lock on it, by which
// others tell a folder in use from one that was left behind: the kernel frees a
// dead runner's, whatever killed it, and the lock is seen across namespaces.
const ownerFile = "runner"

// A folder gets its name when its lock is held.
const (
	scratchPrefix = "sbench-run-"
	scratchNew    = "sbench-new-"
)

var scratchName = regexp.MustCompile(`^sbench-run-[0-9]+-[0-9]+$`)

// makeScratch makes a run's folder in dir. It is this process's until the file is
// closed.
func makeScratch(dir string, run int64) (path string, owner *os.File, err error) {
	fresh, err := os.MkdirTemp(dir, fmt.Sprintf("%s%d-", scratchNew, run))
	if err != nil {
		return "", nil, fmt.Errorf("make scratch: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make scratch: %w", err), os.RemoveAll(fresh))
		}
	}()
	owner, err = os.OpenFile(filepath.Join(fresh, ownerFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, err
	}
	if err = unix.Flock(int(owner.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		_, err = fmt.Fprintf(owner, "%d\n", os.Getpid())
	}
	if err == nil {
		path = filepath.Join(dir, scratchPrefix+strings.TrimPrefix(filepath.Base(fresh), scratchNew))
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return "", nil, errors.Join(err, owner.Close())
	}
	return path, owner, nil
}

// forking is how long a process that a killed runner was starting holds its lock: it
// has the runner's files until it executes its program.
const forking = 200 * time.Millisecond

// abandoned returns the user's scratch folders in dir that no runner holds, and
// new ones that were given up on the way to their name.
func abandoned(dir string, uid int) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var found, asking []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		if !e.IsDir() || unix.Lstat(path, &st) != nil || int(st.Uid) != uid || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		switch {
		case scratchName.MatchString(e.Name()):
			switch lockOf(filepath.Join(path, ownerFile)) {
			case lockFree:
				found = append(found, path)
			case lockDoubtful:
				asking = append(asking, path)
			case lockTaken:
			}
		case strings.HasPrefix(e.Name(), scratchNew) && time.Since(time.Unix(st.Mtim.Unix())) > time.Minute:
			found = append(found, path)
		}
	}
	for began := time.Now(); len(asking) > 0 && time.Since(began) < forking; time.Sleep(forking / 20) {
		asking = slices.DeleteFunc(asking, func(path string) bool {
			gone := lockOf(filepath.Join(path, ownerFile)) == lockFree
			if gone {
				found = append(found, path)
			}
			return gone
		})
	}
	return found
}

// lockState says whether a runner holds a folder.
type lockState int

const (
	lockFree lockState = iota
	lockTaken
	// lockDoubtful: it is locked, and the process that it names is not seen here: that has
	// ended, or has a namespace of its own.
	lockDoubtful
)

// lockOf looks at the lock of a folder, whose files may be anything.
func lockOf(path string) lockState {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return lockFree
	case err != nil:
		return lockTaken
	}
	defer f.Close() // frees the lock
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		return lockFree
	}
	text := make([]byte, 32)
	n, _ := f.Read(text)
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text[:n])))
	if err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return lockDoubtful
	}
	return lockTaken
}

// cleanUp removes what runners of the user that are no more left on this node:
// their engines' processes and shared memory, scratch folders, and half copies in
// the caches. It returns a line for each.
func cleanUp(ctx context.Context, scratch, caches []string, uid int) (removed []string, err error) {
	var errs []error
	for _, dir := range slices.Compact(slices.Sorted(slices.Values(scratch))) {
		for _, folder := range abandoned(dir, uid) {
			pids := mentioning(folder, uid)
			shm := map[string]fileID{}
			sharedMemory(shm, shmDir, pids)
			readShmList(folder, shm)
			for _, pid := range pids {
				removed = append(removed, "process "+strconv.Itoa(pid))
			}
			errs = append(errs, proc.KillAll(func() []int { return mentioning(folder, uid) }, 10*time.Second))
			files, err := removeSharedMemory(shm)
			for _, f := range files {
				removed = append(removed, "shared memory "+f)
			}
			errs = append(errs, err)
			if uid == os.Getuid() { // another user's notes are not executed
				errs = append(errs, resetAbandoned(ctx, folder))
			}
			if err := removeScratch(folder); err != nil {
				errs = append(errs, err)
				continue
			}
			removed = append(removed, "scratch folder "+folder)
		}
	}
	for _, dir := range caches {
		files, err := stage.RemoveHalfCopies(dir, uid)
		for _, f := range files {
			removed = append(removed, "half copy "+f)
		}
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

// mentioning are the user's processes that have the folder in their environment
// or command line: every process of an engine has, or the program of its
// container.
func mentioning(folder string, uid int) []int {
	entries, _ := os.ReadDir("/proc")
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(filepath.Join("/proc", e.Name()), &st) != nil || int(st.Uid) != uid {
			continue
		}
		for _, file := range []string{"environ", "cmdline"} {
			text, _ := os.ReadFile(filepath.Join("/proc", e.Name(), file)) // it may have ended
			if bytes.Contains(text, []byte(folder)) {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

func cleanMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("clean", flag.ContinueOnError)
	f.SetOutput(stderr)
	var p place
	var scratch, caches []string
	f.StringVar(&p.batch, "batch", "", "a batch's `folder`: its scratch folders and cache are cleaned")
	f.StringVar(&p.digest, "digest", "", "`digest` of its batch.json")
	f.Func("scratch", "`folder` of scratch folders; again for another (default: $TMPDIR and /tmp)", func(s string) error { scratch = append(scratch, s); return nil })
	f.Func("cache", "`folder` of staged artefacts; again for another", func(s string) error { caches = append(caches, s); return nil })
	uid := f.Int("uid", os.Getuid(), "`id` of the user whose runners are cleaned up after")
	if f.Parse(args) != nil {
		return 2
	}
	if f.NArg() > 0 {
		fmt.Fprintf(stderr, "sbench-runner clean: unexpected argument %q\n", f.Arg(0))
		return 2
	}
	if p.batch != "" {
		spec, err := readSpec(ctx, p)
		if err != nil {
			fmt.Fprintf(stderr, "sbench-runner clean: %v\n", err)
			return lifecycle.ExitSpec.Code()
		}
		folder, cache := nodeFolders(spec)
		scratch, caches = append(scratch, folder), append(caches, cache)
	}
	if len(scratch) == 0 {
		scratch = []string{os.TempDir(), "/tmp"}
	}
	removed, err := cleanUp(ctx, scratch, caches, *uid)
	for _, line := range removed {
		fmt.Fprintln(stdout, line)
	}
	if err != nil {
		fmt.Fprintf(stderr, "sbench-runner clean: %v\n", err)
		return 1
	}
	return 0
}

// nodeFolders are where a batch's runs have their scratch folders and the cache.
func nodeFolders(spec *batch.Spec) (scratch, cache string) {
	scratch, cache = spec.Node.TempDir, spec.CacheDir
	if scratch == "" {
		scratch = os.TempDir()
	}
	if cache == "" {
		cache = filepath.Join(scratch, fmt.Sprintf("sbench-cache-%d", os.Getuid()))
	}
	return scratch, cache
}
