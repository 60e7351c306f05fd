package proc

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a line of /proc/PID/stat.
type process struct {
	pid, ppid, pgrp, session int
	name                     string
	state                    byte
	start                    uint64 // clock ticks since boot
	cpu                      uint64 // user and system, clock ticks
	threads                  int
	rss                      int64 // bytes
}

func (p process) zombie() bool { return p.state == 'Z' || p.state == 'X' }

func readProcess(pid int) (process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	return parseStat(b)
}

// StartTime is when a process began, in clock ticks since boot: with the pid it
// names one process for ever.
func StartTime(pid int) (uint64, error) {
	p, err := readProcess(pid)
	return p.start, err
}

// parseStat reads a stat line. The name is in parentheses and may hold spaces and
// parentheses itself, so that the last one counts.
func parseStat(b []byte) (process, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return process{}, fmt.Errorf("stat line %q has no name", b)
	}
	f := bytes.Fields(b[end+1:])
	if len(f) < 22 || len(f[0]) != 1 {
		return process{}, fmt.Errorf("stat line %q is short", b)
	}
	var firstErr error
	number := func(b []byte) int64 {
		n, err := strconv.ParseInt(string(b), 10, 64)
		if firstErr == nil {
			firstErr = err
		}
		return n
	}
	p := process{
		pid: int(number(bytes.TrimSpace(b[:open]))), name: string(b[open+1 : end]), state: f[0][0],
		ppid: int(number(f[1])), pgrp: int(number(f[2])), session: int(number(f[3])),
		cpu:     uint64(number(f[11]) + number(f[12])),
		threads: int(number(f[17])), start: uint64(number(f[19])),
		rss: number(f[21]) * int64(os.Getpagesize()),
	}
	return p, firstErr
}

// scan reads all processes that can be seen.
func scan() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, err := readProcess(pid); err == nil { // else it has just ended
			all = append(all, p)
		}
	}
	return all, nil
}

// members returns the live processes of the tree: the root, its descendants, and
// the orphans that fell to this process, with theirs, which are still in the
// root's process group or, where the tree answers for them, in no root's.
func (t *Tree) members() ([]process, error) {
	all, err := scan()
	if err != nil {
		return nil, err
	}
	children := map[int][]process{}
	for _, p := range all {
		children[p.ppid] = append(children[p.ppid], p)
	}
	t.supervisor.mu.Lock()
	roots := maps.Clone(t.supervisor.roots)
	t.supervisor.mu.Unlock()
	self := os.Getpid()
	var found []process
	var add func(p process)
	add = func(p process) {
		if p.zombie() {
			if p.ppid == self && !roots[p.pid] && p.pid != t.pid {
				// An orphan that ended: nobody else will ever wait for it.
				_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
			}
		} else {
			found = append(found, p)
		}
		for _, child := range children[p.pid] {
			add(child)
		}
	}
	for _, p := range children[self] {
		if t.owns(p, roots) {
			add(p)
		}
	}
	return found, nil
}

// owns decides over a child of this process.
func (t *Tree) owns(p process, roots map[int]bool) bool {
	switch {
	case t.everything, p.pid == t.pid, p.pgrp == t.pid:
		return true
	case roots[p.pid], roots[p.pgrp]:
		return false
	}
	return t.orphans
}

// Signal sends sig to the root process.
func (t *Tree) Signal(sig syscall.Signal) error {
	return send(process{pid: t.pid, start: t.start}, sig)
}

// send reaches the process that was seen and no later one with the same id.
func send(p process, sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	defer unix.Close(fd)
	now, err := readProcess(p.pid)
	if err != nil || now.start != p.start {
		return nil // it has ended
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d (%s): %w", p.pid, p.name, err)
	}
	return nil
}

// killDeadline is how long killed processes may take to go; what is in
// uninterruptible sleep stays longer and is reported.
const killDeadline = 10 * time.Second

// Stop ends the tree: SIGTERM to the root, which may forward it; SIGTERM to all
// that is left at half of grace or once the root is gone; SIGKILL at the end of
// grace, again and again until nothing is left. It returns an error that names
// what cannot be ended. A tree that has ended by itself is cleaned up all the
// same. Calling it again does no harm.
func (t *Tree) Stop(grace time.Duration) error {
	err := t.end(grace)
	if err != nil {
		// A survivor may hold the log's pipe open for ever.
		return err
	}
	if err := t.log.wait(); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	return nil
}

func (t *Tree) end(grace time.Duration) error {
	began := time.Now()
	var errs []error
	if grace > 0 && !isClosed(t.done) {
		errs = append(errs, t.Signal(syscall.SIGTERM))
	}
	terminated := map[int]uint64{} // asked already: pid → start
	var leftAt time.Time           // when the root was first seen gone
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		left, err := t.members()
		if err != nil {
			return err
		}
		if len(left) == 0 && isClosed(t.done) {
			return nil
		}
		now := time.Now()
		if leftAt.IsZero() && isClosed(t.done) {
			leftAt = now
		}
		kill := now.Sub(began) >= grace
		// Without their root, what is left gets a second to follow it.
		kill = kill || !leftAt.IsZero() && now.Sub(leftAt) >= time.Second
		if now.Sub(began) >= grace+killDeadline {
			return errors.Join(append(errs, fmt.Errorf("processes that cannot be ended: %s", names(left)))...)
		}
		for _, p := range left {
			switch {
			case kill:
				errs = append(errs, send(p, syscall.SIGKILL))
			case (!leftAt.IsZero() || now.Sub(began) >= grace/2) && terminated[p.pid] != p.start:
				terminated[p.pid] = p.start
				errs = append(errs, send(p, syscall.SIGTERM))
			}
		}
		if len(errs) > 100 {
			errs = errs[:100]
		}
		time.Sleep(wait)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func names(all []process) string {
	var s []string
	for _, p := range all {
		s = append(s, fmt.Sprintf("%d (%s, state %c)", p.pid, p.name, p.state))
	}
	return strings.Join(s, ", ")
}

// Usage is what a tree uses.
type Usage struct {
	CPUSeconds float64 // of the processes that live now, since each began
	RSSBytes   int64
	Threads    int
	Processes  int
}

// ticksPerSecond is USER_HZ, 100 on every Linux platform that Go supports.
const ticksPerSecond = 100

// rescan is how long Usage takes the processes that it knows for all there are:
// reading a whole node's takes milliseconds of a CPU that others may need.
const rescan = 10 * time.Second

// Usage sums over the processes of the tree. One that was started since may be
// missing for some seconds. It is not for concurrent use.
func (t *Tree) Usage() (Usage, error) {
	if now := time.Now(); t.scanned.IsZero() || now.Sub(t.scanned) >= rescan {
		members, err := t.members()
		if err != nil {
			return Usage{}, err
		}
		t.known, t.scanned = members, now
	}
	var u Usage
	for _, was := range t.known {
		p, err := readProcess(was.pid)
		if err != nil || p.start != was.start || p.zombie() {
			t.scanned = time.Time{} // it has ended: look again next time
			continue
		}
		u.CPUSeconds += float64(p.cpu) / ticksPerSecond
		u.RSSBytes += p.rss
		u.Threads += p.threads
		u.Processes++
	}
	return u, nil
}

// PIDs returns the ids of the tree's processes, sorted.
func (t *Tree) PIDs() ([]int, error) {
	members, err := t.members()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range members {
		pids = append(pids, p.pid)
	}
	slices.Sort(pids)
	return pids, nil
}

// OwnsPort reports whether a process of the tree listens on the TCP port of this
// network namespace. False means: nobody does, somebody else does, or the tree's
// descriptors cannot be read.
func (t *Tree) OwnsPort(port int) (bool, error) {
	inodes, err := listeners(port)
	if err != nil || len(inodes) == 0 {
		return false, err
	}
	pids, err := t.PIDs()
	if err != nil {
		return false, err
	}
	for _, pid := range pids {
		// Unreadable descriptors are of a process that has ended or belongs to
		// another user: it proves nothing.
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && inodes[target] {
				return true, nil
			}
		}
	}
	return false, nil
}

// listeners returns the sockets that listen on a port, as /proc/PID/fd names them.
func listeners(port int) (map[string]bool, error) {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read sockets: %w", err)
		}
		suffix := fmt.Sprintf(":%04X", port)
		for line := range strings.Lines(string(b)) {
			const listening = "0A"
			f := strings.Fields(line)
			if len(f) > 9 && strings.HasSuffix(f[1], suffix) && f[3] == listening {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	return inodes, nil
}

// KillAll ends processes, whoever's children they are, and waits until they are
// gone. find is asked again and again: what it names is killed.
func KillAll(find func() []int, deadline time.Duration) error {
	began := time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		var left []process
		var errs []error
		for _, pid := range find() {
			p, err := readProcess(pid)
			if err != nil || p.zombie() {
				continue
			}
			left = append(left, p)
			errs = append(errs, send(p, syscall.SIGKILL))
		}
		if len(left) == 0 {
			return nil
		}
		if time.Since(began) >= deadline {
			return errors.Join(append(errs, fmt.Errorf("processes that cannot be ended: %s", names(left)))...)
		}
		time.Sleep(wait)
	}
}
