package devcluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// memberVariable marks the environment of every daemon, so that their children
// are found too. A user's shell has no such mark, whatever it works on.
const memberVariable = "SBENCH_DEV_MEMBER"

// daemonNames are the programs that may change their environment or command
// line in place; they are told by the files they hold open.
var daemonNames = []string{
	"munged", "mariadbd", "mysqld", "slurmdbd", "slurmctld", "slurmd", "slurmstepd", "postgres", "sbenchd", "sbench-runner", "unshare",
}

// members are the processes that belong to the cluster: recorded ones, those
// that carry the mark, tasks of its jobs, and daemons that hold files of the
// directory. The caller and its ancestors are never among them.
func (c *Cluster) members() ([]process, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	recorded := c.recordedPIDs()
	own := ancestors(os.Getpid())
	var found []process
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || slices.Contains(own, pid) {
			continue
		}
		p, err := identify(pid)
		if err != nil || !p.alive() {
			continue
		}
		if start, ok := recorded[pid]; (ok && start == p.Start) || c.marked(pid) || c.holds(pid) {
			found = append(found, p)
		}
	}
	return found, nil
}

func (c *Cluster) recordedPIDs() map[int]uint64 {
	pids := map[int]uint64{}
	files, _ := filepath.Glob(c.path("run", "proc.*.json")) // the pattern is well formed
	for _, f := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "proc."), ".json")
		if p, ok := c.recorded(name); ok && p.alive() {
			pids[p.PID] = p.Start
		}
	}
	return pids
}

// marked reports the mark of a daemon or, for tasks of jobs, whose environment
// is the submitter's, Slurm's own variables.
func (c *Cluster) marked(pid int) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	mark, conf, inJob := false, false, false
	for v := range bytes.SplitSeq(env, []byte{0}) {
		s := string(v)
		mark = mark || s == memberVariable+"="+c.opts.Dir
		conf = conf || s == "SLURM_CONF="+c.path("etc", "slurm.conf")
		inJob = inJob || strings.HasPrefix(s, "SLURMD_NODENAME=")
	}
	return mark || (conf && inJob)
}

// holds reports a daemon whose working directory, output or open files lie in
// the directory.
func (c *Cluster) holds(pid int) bool {
	if !slices.Contains(daemonNames, executable(pid)) {
		return false
	}
	proc := "/proc/" + strconv.Itoa(pid)
	inside := func(link string) bool {
		target, err := os.Readlink(link)
		return err == nil && strings.HasPrefix(target, c.opts.Dir+"/")
	}
	if inside(proc + "/cwd") {
		return true
	}
	fds, err := os.ReadDir(proc + "/fd")
	return err == nil && slices.ContainsFunc(fds, func(fd os.DirEntry) bool { return inside(proc + "/fd/" + fd.Name()) })
}

// executable is the name of the program that a process runs, "" if it is gone.
func executable(pid int) string {
	exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil {
		return ""
	}
	name := strings.TrimSuffix(filepath.Base(exe), " (deleted)")
	return strings.TrimSuffix(name, "-wlm") // Debian's slurmd is slurmd-wlm
}

func ancestors(pid int) []int {
	var list []int
	for pid > 0 {
		list = append(list, pid)
		st, err := readStat(pid)
		if err != nil {
			break
		}
		pid = st.ppid
	}
	return list
}

// childOf returns the first child of p.
func childOf(p process) (process, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return process{}, err
	}
	for _, d := range dirs {
		if pid, err := strconv.Atoi(d.Name()); err == nil {
			if st, err := readStat(pid); err == nil && st.ppid == p.PID && st.state != 'Z' {
				return identify(pid)
			}
		}
	}
	return process{}, os.ErrProcessDone
}

// endMembers kills until a scan finds none. PostgreSQL is asked first to shut
// down at once, upon which it gives its shared memory back.
func (c *Cluster) endMembers() error {
	var left []process
	deadline := time.Now().Add(15 * time.Second)
	for first := true; time.Now().Before(deadline); first = false {
		var err error
		if left, err = c.members(); err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		for _, p := range left {
			sig := syscall.SIGKILL
			if first && executable(p.PID) == "postgres" {
				_ = p.signal(syscall.SIGCONT)
				sig = syscall.SIGQUIT
			}
			if err := p.signal(sig); errors.Is(err, syscall.EPERM) {
				return fmt.Errorf("process %d (%s) belongs to another user and holds the directory", p.PID, commandLine(p.PID))
			}
		}
		waitFor(time.Second, func() bool {
			return !slices.ContainsFunc(left, process.alive)
		})
	}
	var names []string
	for _, p := range left {
		names = append(names, fmt.Sprintf("%d (%s)", p.PID, commandLine(p.PID)))
	}
	return fmt.Errorf("these processes do not end: %s", strings.Join(names, ", "))
}

func commandLine(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
}
