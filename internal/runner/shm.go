package runner

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
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
