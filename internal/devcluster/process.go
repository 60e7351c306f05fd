package devcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const pollInterval = 20 * time.Millisecond

// process names one process for good: a pid alone is given to another process
// later, a pid with its start time and the boot it belongs to is not.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
	Boot  string `json:"boot"`
}

// identify returns the process that has the pid now.
func identify(pid int) (process, error) {
	st, err := readStat(pid)
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, Start: st.start, Boot: bootID()}, nil
}

// alive is false for zombies: they hold nothing any more.
func (p process) alive() bool {
	st, err := readStat(p.PID)
	if err != nil || st.start != p.Start || st.state == 'X' || p.Boot != bootID() {
		return false
	}
	return st.state != 'Z' || threads(p.PID) > 1
}

// threads counts what is left of a process. A killed process whose first thread
// has ended still holds its sockets until its last one has.
func threads(pid int) int {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0
	}
	return len(tasks)
}

func (p process) signal(sig syscall.Signal) error {
	if !p.alive() {
		return os.ErrProcessDone
	}
	return syscall.Kill(p.PID, sig)
}

// end sends sig, waits up to grace, then kills. It returns when the process is
// gone or, with an error, when even SIGKILL did not end it.
func (p process) end(sig syscall.Signal, grace time.Duration) error {
	if !p.alive() {
		return nil
	}
	_ = p.signal(syscall.SIGCONT) // a stopped process cannot handle sig
	if err := p.signal(sig); errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("end process %d: %w", p.PID, err)
	}
	if waitFor(grace, func() bool { return !p.alive() }) {
		return nil
	}
	_ = p.signal(syscall.SIGKILL)
	if waitFor(10*time.Second, func() bool { return !p.alive() }) {
		return nil
	}
	return fmt.Errorf("process %d is still there after SIGKILL", p.PID)
}

// waitFor polls until done or the time is up, and says which.
func waitFor(limit time.Duration, done func() bool) bool {
	for deadline := time.Now().Add(limit); ; {
		if done() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pollInterval)
	}
}

type procStat struct {
	state byte
	ppid  int
	start uint64
}

func readStat(pid int) (procStat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, err
	}
	// The name in parentheses may hold blanks and parentheses.
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return procStat{}, fmt.Errorf("read /proc/%d/stat: unexpected form", pid)
	}
	ppid, err1 := strconv.Atoi(f[1])
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	return procStat{state: f[0][0], ppid: ppid, start: start}, errors.Join(err1, err2)
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// spawnScript detaches "$@": the shell ends at once, so that the daemon belongs
// to init and not to the caller, and reports the pid, which setsid (run by a
// shell without job control it is no group leader) and the program keep.
const spawnScript = `log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 & echo $!`

// spawn starts a daemon of its own session in dir with exactly env; its output
// is appended to logFile.
func spawn(ctx context.Context, dir string, env []string, logFile string, argv ...string) (process, error) {
	var errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", spawnScript, "sh", logFile}, argv...)...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, env, &errOut
	out, err := cmd.Output()
	if err != nil {
		return process{}, fmt.Errorf("start %s: %w: %s", argv[0], err, strings.TrimSpace(errOut.String()))
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return process{}, fmt.Errorf("start %s: no pid reported: %q", argv[0], out)
	}
	p, err := identify(pid)
	if errors.Is(err, os.ErrNotExist) {
		return process{}, fmt.Errorf("%s ended at once%s", argv[0], logTail(logFile))
	}
	return p, err
}

// record and recorded keep the process of a component in DIR/run.
func (c *Cluster) record(component string, p process) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return writeFile(c.recordFile(component), append(b, '\n'), 0o644)
}

func (c *Cluster) recorded(component string) (process, bool) {
	b, err := os.ReadFile(c.recordFile(component))
	if err != nil {
		return process{}, false
	}
	var p process
	return p, json.Unmarshal(b, &p) == nil && p.PID > 1
}

func (c *Cluster) recordFile(component string) string {
	return c.path("run", "proc."+component+".json")
}

// writeFile replaces path as a whole.
func writeFile(path string, data []byte, mode os.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil { // whatever the umask
		return err
	}
	return os.Rename(tmp, path)
}

// logTail returns the last lines of a log, to end an error message with.
func logTail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return ", see " + path
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	lines = lines[max(0, len(lines)-5):]
	return ", see " + path + ":\n  " + strings.Join(lines, "\n  ")
}

// sbinPath is PATH with the folders of daemons, which ordinary users often lack.
func sbinPath() string {
	path := os.Getenv("PATH")
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if !strings.Contains(":"+path+":", ":"+dir+":") {
			path += ":" + dir
		}
	}
	return strings.TrimPrefix(path, ":")
}

// lookPath finds a program also in the folders of daemons.
func lookPath(name string) (string, error) {
	for _, dir := range filepath.SplitList(sbinPath()) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}
