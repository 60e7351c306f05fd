package runner

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sbench/internal/spool"
)

// shmDir is where engines keep shared memory; a killed one leaves it behind.
const shmDir = "/dev/shm"

// fileID says which file a path was; a container may have another one there.
type fileID struct {
	device uint64
	inode  uint64
}

// sharedMemory adds to found the files of dir that the processes have mapped or
// open: what they may leave behind. What other programs of the same user keep
// there is never touched.
func sharedMemory(found map[string]fileID, dir string, pids []int) {
	add := func(path string, id fileID) {
		if path = strings.TrimSuffix(path, " (deleted)"); strings.HasPrefix(path, dir+"/") {
			found[path] = id
		}
	}
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)) // it may have ended
		for line := range strings.Lines(string(text)) {
			// 7f1c6c000000-7f1c6c001000 rw-s 00000000 00:1a 5   /dev/shm/name
			var addresses, permissions, offset string
			var major, minor uint32
			var inode uint64
			n, _ := fmt.Sscanf(line, "%s %s %s %x:%x %d", &addresses, &permissions, &offset, &major, &minor, &inode)
			if i := strings.IndexByte(line, '/'); n == 6 && i >= 0 {
				add(strings.TrimSuffix(line[i:], "\n"), fileID{unix.Mkdev(major, minor), inode})
			}
		}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			var st unix.Stat_t
			if target, err := os.Readlink(fd); err == nil && unix.Stat(fd, &st) == nil {
				add(target, fileID{st.Dev, st.Ino})
			}
		}
	}
}

// noteSharedMemory looks at what the engine's processes use now.
func (a *attempt) noteSharedMemory() {
	pids, err := a.engine.tree.PIDs()
	if err != nil {
		return // they are looked for again, and killed, at the end
	}
	sharedMemory(a.engine.shm, shmDir, pids)
	if err := writeShmList(a.dirs.temp, a.engine.shm); err != nil {
		a.log.Warn("note the engine's shared memory", "error", err)
	}
}

// shmFile is in the scratch folder: what the engine had in shared memory, for who
// cleans up after a killed runner and its engine.
const shmFile = "shm"

func writeShmList(folder string, found map[string]fileID) error {
	if len(found) == 0 || folder == "" {
		return nil
	}
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(found)) {
		if !strings.Contains(path, "\n") {
			fmt.Fprintf(&b, "%d %d %s\n", found[path].device, found[path].inode, path)
		}
	}
	temporary := filepath.Join(folder, shmFile+".tmp")
	if err := os.WriteFile(temporary, []byte(b.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(folder, shmFile))
}

// readShmList adds what a folder's list names to found. The list is not to be
// trusted with more than files of the shared memory's own folder.
func readShmList(folder string, found map[string]fileID) {
	text, err := spool.ReadPlain(filepath.Join(folder, shmFile), 1<<20)
	if err != nil {
		return // none was noted
	}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(f) != 3 || filepath.Clean(f[2]) != f[2] || !strings.HasPrefix(f[2], shmDir+"/") {
			continue
		}
		device, err := strconv.ParseUint(f[0], 10, 64)
		inode, err2 := strconv.ParseUint(f[1], 10, 64)
		if err == nil && err2 == nil {
			found[f[2]] = fileID{device, inode}
		}
	}
}

// removeSharedMemory removes what the engine left. It has ended, so that whoever
// still has a file is a program that shares it on purpose.
func removeSharedMemory(found map[string]fileID) (removed []string, err error) {
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(found)) {
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || (fileID{st.Dev, st.Ino}) != found[path] {
			continue
		}
		switch err := os.Remove(path); {
		case err == nil:
			removed = append(removed, path)
		case !errors.Is(err, os.ErrNotExist):
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}
