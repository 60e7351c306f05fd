// Package proc starts, watches and ends whole process trees. It promises that
// Stop leaves nothing of a tree behind, also of descendants that made their own
// session or lost their parent, and that a tree's output never fills a disk and
// never blocks it. It works on Linux alone.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Supervisor starts the process trees of this process. Make one for the whole
// process: it makes the process the reaper of all its orphaned descendants.
// All methods may be called concurrently.
type Supervisor struct {
	starts chan func()
	ended  chan struct{}

	mu    sync.Mutex
	roots map[int]bool // children that a Tree waits for, by pid, which is their process group too
}

// New makes this process a subreaper: a descendant whose parent ends becomes our
// child instead of init's.
func New() (*Supervisor, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become subreaper: %w", err)
	}
	s := &Supervisor{starts: make(chan func()), ended: make(chan struct{}), roots: map[int]bool{}}
	go func() {
		defer close(s.ended)
		// The kernel sends a child's parent-death signal when the *thread* that
		// forked it ends, so that one thread forks them all and lives as long as
		// the supervisor. It never unlocks: its CPU affinity is its own.
		runtime.LockOSThread()
		for f := range s.starts {
			f()
		}
	}()
	return s, nil
}

// Close kills every descendant that is left and names what cannot be killed.
// Call it once, after every tree was stopped.
func (s *Supervisor) Close() error {
	rest := &Tree{supervisor: s, everything: true, done: make(chan struct{})}
	close(rest.done)
	err := rest.end(0)
	close(s.starts)
	<-s.ended
	return err
}

// Spec says what to start.
type Spec struct {
	Argv []string // Argv[0] is the path of the program, or a name on PATH
	Env  []string // the whole environment; nil is an empty one
	Dir  string   // "" for this process's
	// CPUs is the affinity of the tree; nil leaves the process's own.
	CPUs []int
	// Log takes stdout and stderr; "" discards them. At most LogLimit bytes of it
	// are kept: the first and the last half.
	Log      string
	LogLimit int64
	// Stdin, Stdout and Stderr, where set, are handed to the program as they are.
	// The files stay the caller's.
	Stdin, Stdout, Stderr *os.File
	// Orphans makes the tree answer for descendants of this process whose origin
	// cannot be told any more: they left their process group and lost their
	// parent. At most one running tree should have it.
	Orphans bool
}

// Exit is how a process ended.
type Exit struct {
	Code   int            // -1 where a signal ended it
	Signal syscall.Signal // 0 where it ended by itself
	MaxRSS int64          // bytes, of the root process
}

func (e Exit) String() string {
	if e.Signal != 0 {
		return fmt.Sprintf("killed by signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Tree is a process that was started, with all its descendants.
type Tree struct {
	supervisor *Supervisor
	pid        int
	start      uint64 // of the root, in clock ticks since boot; guards against a reused pid
	orphans    bool
	everything bool // all descendants of this process, whatever their root
	log        *limitedLog
	done       chan struct{}
	exit       Exit
	known      []process // by Usage
	scanned    time.Time
}

// ErrNotStarted says that the program could not be started at all.
var ErrNotStarted = errors.New("program not started")

// Start starts a program in a process group of its own. If this process dies,
// the kernel kills the program.
func (s *Supervisor) Start(spec Spec) (*Tree, error) {
	if len(spec.Argv) == 0 {
		return nil, fmt.Errorf("empty command line: %w", ErrNotStarted)
	}
	cmd := exec.Command(spec.Argv[0], spec.Argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdin = spec.Env, spec.Dir, nil
	if spec.Env == nil {
		cmd.Env = []string{}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if spec.Stdin != nil {
		cmd.Stdin = spec.Stdin
	}
	log, err := openLog(spec.Log, spec.LogLimit)
	if err != nil {
		return nil, err
	}
	if log != nil {
		cmd.Stdout, cmd.Stderr = log.write, log.write
	}
	if spec.Stdout != nil {
		cmd.Stdout = spec.Stdout
	}
	if spec.Stderr != nil {
		cmd.Stderr = spec.Stderr
	}
	started := make(chan error, 1)
	s.starts <- func() { started <- s.fork(cmd, spec.CPUs) }
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w: %w", spec.Argv[0], err, ErrNotStarted), log.abandon())
	}
	t := &Tree{supervisor: s, pid: cmd.Process.Pid, orphans: spec.Orphans, log: log, done: make(chan struct{})}
	if p, err := readProcess(t.pid); err == nil {
		t.start = p.start
	}
	raiseFileLimit(t.pid)
	log.follow()
	go t.wait(cmd)
	return t, nil
}

// fork runs on the supervisor's thread.
func (s *Supervisor) fork(cmd *exec.Cmd, cpus []int) error {
	if cpus != nil {
		var own, want unix.CPUSet
		if err := unix.SchedGetaffinity(0, &own); err != nil {
			return fmt.Errorf("read affinity: %w", err)
		}
		for _, cpu := range cpus {
			want.Set(cpu)
		}
		if err := unix.SchedSetaffinity(0, &want); err != nil {
			return fmt.Errorf("set affinity to CPUs %v: %w", cpus, err)
		}
		defer func() { _ = unix.SchedSetaffinity(0, &own) }()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.roots[cmd.Process.Pid] = true
	return nil
}

// raiseFileLimit gives the program as many descriptors as it may have: a soft
// limit of 1024, the usual default, ends a server under load. Best effort: a
// program that ended already has no limits.
func raiseFileLimit(pid int) {
	const enough = 1 << 20 // some programs walk all descriptors they may have
	var limit unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit) == nil {
		limit.Cur = max(limit.Cur, min(limit.Max, enough))
		_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil)
	}
}

func (t *Tree) wait(cmd *exec.Cmd) {
	// The error repeats the state, except where waiting itself failed, which
	// leaves no state.
	_ = cmd.Wait()
	t.exit = Exit{Code: -1}
	if state := cmd.ProcessState; state != nil {
		status := state.Sys().(syscall.WaitStatus)
		t.exit.Code = state.ExitCode()
		if status.Signaled() {
			t.exit.Signal = status.Signal()
		}
		if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
			t.exit.MaxRSS = usage.Maxrss << 10
		}
	}
	t.supervisor.mu.Lock()
	delete(t.supervisor.roots, t.pid)
	t.supervisor.mu.Unlock()
	close(t.done)
}

// PID returns the id of the root process.
func (t *Tree) PID() int { return t.pid }

// Done is closed when the root process has ended; descendants may still run.
func (t *Tree) Done() <-chan struct{} { return t.done }

// Exit is how the root process ended. Valid after Done is closed.
func (t *Tree) Exit() Exit { return t.exit }

// Tail returns up to n of the last bytes of the log.
func (t *Tree) Tail(n int) string { return t.log.tail(n) }

// Output runs a program to its end and returns what it printed on stdout, at
// most limit bytes, and the end of what it printed on stderr. When ctx ends, the
// whole tree is killed and the error is ctx's.
func (s *Supervisor) Output(ctx context.Context, spec Spec, limit int64) (stdout []byte, stderr string, exit Exit, err error) {
	out, err := newCapture(limit)
	if err != nil {
		return nil, "", Exit{}, err
	}
	messages, err := newCapture(8 << 10)
	if err != nil {
		return nil, "", Exit{}, errors.Join(err, out.close())
	}
	spec.Stdout, spec.Stderr = out.write, messages.write
	tree, err := s.Start(spec)
	if err != nil {
		return nil, "", Exit{}, errors.Join(err, out.close(), messages.close())
	}
	out.follow()
	messages.follow()
	select {
	case <-tree.Done():
		err = tree.Stop(100 * time.Millisecond)
	case <-ctx.Done():
		err = errors.Join(ctx.Err(), tree.Stop(0))
		<-tree.Done()
	}
	stdout, over := out.bytes()
	text, _ := messages.bytes()
	if err == nil && over {
		err = fmt.Errorf("%s printed more than %d bytes", spec.Argv[0], limit)
	}
	return stdout, string(bytes.TrimSpace(text)), tree.Exit(), err
}
