package runner

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// shmDir is where engines keep shared memory; a killed one leaves it behind.
const shmDir = "/dev/shm"

// sharedMemory adds to found the files of dir that the processes have mapped or
// open: what they may leave behind. What other programs of the same user keep
// there is never touched.
func sharedMemory(found map[string]bool, dir string, pids []int) {
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)) // it may have ended
		for line := range strings.Lines(string(text)) {
			if i := strings.Index(line, dir+"/"); i >= 0 {
				found[strings.TrimSuffix(strings.TrimSuffix(line[i:], "\n"), " (deleted)")] = true
			}
		}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if target, _ := os.Readlink(fd); strings.HasPrefix(target, dir+"/") {
				found[strings.TrimSuffix(target, " (deleted)")] = true
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
func removeSharedMemory(found map[string]bool) (removed []string, err error) {
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(found)) {
		switch err := os.Remove(path); {
		case err == nil:
			removed = append(removed, path)
		case !errors.Is(err, os.ErrNotExist):
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}
