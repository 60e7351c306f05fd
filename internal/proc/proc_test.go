package proc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests start this very binary as the program; SBENCH_TEST_ROLE says what it plays.
func TestMain(m *testing.M) {
	switch role := os.Getenv("SBENCH_TEST_ROLE"); role {
	case "":
		os.Exit(m.Run())
	case "print":
		n, _ := strconv.Atoi(os.Getenv("N"))
		for i := range n {
			fmt.Printf("line %06d\n", i)
		}
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("deaf")
		select {}
	case "listen":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		fmt.Println(l.Addr().(*net.TCPAddr).Port)
		select {}
	}
}

func supervisor(t *testing.T) *Supervisor {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func role(name string, env ...string) Spec {
	return Spec{Argv: []string{"/proc/self/exe"}, Env: append(env, "SBENCH_TEST_ROLE="+name)}
}

func shell(script string) Spec {
	return Spec{Argv: []string{"/bin/sh", "-c", script}, Env: os.Environ()}
}

// eventually polls for a state.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if f() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

func running(pid int) bool {
	p, err := readProcess(pid)
	return err == nil && !p.zombie()
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	var pid int
	eventually(t, "pid in "+path, func() bool {
		b, err := os.ReadFile(path)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil && pid > 0 && strings.HasSuffix(string(b), "\n")
	})
	return pid
}

func TestTree_ExitStatus(t *testing.T) {
	s := supervisor(t)
	for script, want := range map[string]Exit{
		"exit 0":       {Code: 0},
		"exit 37":      {Code: 37},
		"kill -9 $$":   {Code: -1, Signal: syscall.SIGKILL},
		"kill -TERM 0": {Code: -1, Signal: syscall.SIGTERM},
	} {
		tree, err := s.Start(shell(script))
		if err != nil {
			t.Fatal(err)
		}
		<-tree.Done()
		got := tree.Exit()
		if got.MaxRSS <= 0 {
			t.Errorf("%s: no resident size", script)
		}
		if got.MaxRSS = 0; got != want {
			t.Errorf("%s: %v, want %v", script, got, want)
		}
		if err := tree.Stop(time.Second); err != nil {
			t.Error(err)
		}
	}
}

func TestStart_NoSuchProgram(t *testing.T) {
	s := supervisor(t)
	log := filepath.Join(t.TempDir(), "log")
	if _, err := s.Start(Spec{Argv: []string{"/nonexistent"}, Log: log}); !errors.Is(err, ErrNotStarted) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestTree_StopLeavesNothing starts trees that try to outlive their root.
func TestTree_StopLeavesNothing(t *testing.T) {
	tests := []struct{ name, script string }{
		{"child", "sleep 300 & echo $! >$PID; wait"},
		{"root gone", "sleep 300 & echo $! >$PID; exit 0"},
		{"deaf child", "(trap '' TERM; sleep 300 & echo $! >$PID; wait; sleep 300)"},
		{"own session", "setsid sh -c 'echo $$ >$PID; exec sleep 300' & wait"},
		{"double fork, own session", "setsid sh -c '(sleep 300 & echo $! >$PID)' ; exit 0"},
		{"double fork, deaf, own session", "setsid sh -c '(trap \"\" TERM; sleep 300 & echo $! >$PID)' & exit 0"},
		{"stopped", "sleep 300 & echo $! >$PID; kill -STOP $!; wait"},
		{"deep", `sh -c "$DEEP" & wait`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := supervisor(t)
			path := filepath.Join(t.TempDir(), "pid")
			spec := shell(tt.script)
			spec.Env = append(spec.Env, "PID="+path, `DEEP=setsid sh -c "$DEEPER" & wait`, "DEEPER=sleep 300 & echo $! >$PID; wait")
			spec.Orphans = true
			tree, err := s.Start(spec)
			if err != nil {
				t.Fatal(err)
			}
			pid := readPID(t, path)
			if !running(pid) {
				t.Fatalf("process %d does not run", pid)
			}
			if err := tree.Stop(100 * time.Millisecond); err != nil {
				t.Error(err)
			}
			if running(pid) {
				t.Errorf("process %d survived", pid)
			}
			if p, err := readProcess(pid); err == nil && p.ppid == os.Getpid() {
				t.Errorf("process %d was not reaped", pid)
			}
		})
	}
}

// TestTree_StopSparesOthers: a helper's clean-up must not touch what the engine
// left to itself.
func TestTree_StopSparesOthers(t *testing.T) {
	s := supervisor(t)
	path := filepath.Join(t.TempDir(), "pid")
	spec := shell("setsid sh -c '(sleep 300 & echo $! >$PID)'; exec sleep 300")
	spec.Env = append(spec.Env, "PID="+path)
	spec.Orphans = true
	engine, err := s.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	orphan := readPID(t, path)
	eventually(t, "orphan falls to this process", func() bool {
		p, err := readProcess(orphan)
		return err == nil && p.ppid == os.Getpid()
	})
	if _, _, _, err := s.Output(t.Context(), shell("sleep 300 & echo helper"), 1<<10); err != nil {
		t.Fatal(err)
	}
	if !running(orphan) || !running(engine.PID()) {
		t.Error("the helper's clean-up killed the engine's processes")
	}
	if err := engine.Stop(0); err != nil {
		t.Error(err)
	}
	if running(orphan) {
		t.Error("orphan survived")
	}
}

func TestTree_StopTermsBeforeItKills(t *testing.T) {
	s := supervisor(t)
	log := filepath.Join(t.TempDir(), "log")
	spec := shell("trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done")
	spec.Log, spec.LogLimit = log, 1<<20
	tree, err := s.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "ready", func() bool { return strings.Contains(tree.Tail(100), "ready") })
	if err := tree.Stop(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	if e := tree.Exit(); e.Code != 5 {
		t.Errorf("ended with %v, want its own exit status 5", e)
	}
	if b, _ := os.ReadFile(log); string(b) != "ready\nbye\n" {
		t.Errorf("log: %q", b)
	}
}

func TestTree_StopKillsTheDeaf(t *testing.T) {
	s := supervisor(t)
	spec := role("deaf")
	spec.Log, spec.LogLimit = filepath.Join(t.TempDir(), "log"), 1<<20
	tree, err := s.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "deaf", func() bool { return strings.Contains(tree.Tail(100), "deaf") })
	if err := tree.Stop(50 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if e := tree.Exit(); e.Signal != syscall.SIGKILL {
		t.Errorf("ended with %v, want SIGKILL", e)
	}
}

func TestLog_KeepsBothEnds(t *testing.T) {
	s := supervisor(t)
	for _, n := range []int{0, 1, 500, 800, 5000, 200_000} {
		path := filepath.Join(t.TempDir(), "log")
		spec := role("print", fmt.Sprintf("N=%d", n))
		spec.Log, spec.LogLimit = path, 16<<10
		tree, err := s.Start(spec)
		if err != nil {
			t.Fatal(err)
		}
		<-tree.Done()
		if err := tree.Stop(0); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for i := range n {
			fmt.Fprintf(&want, "line %06d\n", i)
		}
		all := want.String()
		switch {
		case len(all) <= 16<<10:
			if string(b) != all {
				t.Errorf("%d lines: log differs", n)
			}
		case !strings.HasPrefix(string(b), all[:8<<10]) || !strings.HasSuffix(string(b), all[len(all)-8<<10:]):
			t.Errorf("%d lines: an end is missing", n)
		case len(b) > 16<<10+100 || !strings.Contains(string(b), fmt.Sprintf("… %d bytes left out …", len(all)-16<<10)):
			t.Errorf("%d lines: %d bytes in the log", n, len(b))
		}
		if n > 0 && !strings.HasSuffix(tree.Tail(100), fmt.Sprintf("line %06d\n", n-1)) {
			t.Errorf("tail: %q", tree.Tail(100))
		}
	}
}

func TestOutput_Deadline(t *testing.T) {
	s := supervisor(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	out, _, exit, err := s.Output(ctx, shell("trap '' TERM; echo x; sleep 300; sleep 300"), 1<<10)
	if !errors.Is(err, context.DeadlineExceeded) || string(out) != "x\n" || exit.Signal != syscall.SIGKILL {
		t.Errorf("got %q, %v, %v", out, exit, err)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestOutput_Limit(t *testing.T) {
	s := supervisor(t)
	if out, _, _, err := s.Output(t.Context(), role("print", "N=100000"), 100); err == nil || len(out) != 100 {
		t.Errorf("got %d bytes, %v", len(out), err)
	}
	out, stderr, exit, err := s.Output(t.Context(), shell("echo out; echo err >&2; exit 3"), 100)
	if err != nil || string(out) != "out\n" || stderr != "err" || exit.Code != 3 {
		t.Errorf("got %q %q %v %v", out, stderr, exit, err)
	}
}

func TestTree_OwnsPort(t *testing.T) {
	s := supervisor(t)
	start := func() (*Tree, int) {
		spec := role("listen")
		spec.Log, spec.LogLimit = filepath.Join(t.TempDir(), "log"), 1<<20
		tree, err := s.Start(spec)
		if err != nil {
			t.Fatal(err)
		}
		var port int
		eventually(t, "port", func() bool {
			port, _ = strconv.Atoi(strings.TrimSpace(tree.Tail(100)))
			return port > 0
		})
		return tree, port
	}
	a, portA := start()
	b, portB := start()
	for _, tt := range []struct {
		tree *Tree
		port int
		want bool
	}{{a, portA, true}, {b, portB, true}, {a, portB, false}, {b, portA, false}, {a, 1, false}} {
		if got, err := tt.tree.OwnsPort(tt.port); err != nil || got != tt.want {
			t.Errorf("owns port %d: %v, %v; want %v", tt.port, got, err, tt.want)
		}
	}
	if err := errors.Join(a.Stop(0), b.Stop(0)); err != nil {
		t.Error(err)
	}
}

func TestTree_UsageAndAffinity(t *testing.T) {
	s := supervisor(t)
	var own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !own.IsSet(cpu) {
		cpu++
	}
	spec := shell("while :; do :; done & while :; do :; done")
	spec.CPUs = []int{cpu}
	tree, err := s.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "CPU time of two processes", func() bool {
		tree.scanned = time.Time{} // the second process may come later
		u, err := tree.Usage()
		return err == nil && u.CPUSeconds > 0.1 && u.Processes == 2 && u.RSSBytes > 0 && u.Threads == 2
	})
	var got unix.CPUSet
	if err := unix.SchedGetaffinity(tree.PID(), &got); err != nil || got.Count() != 1 || !got.IsSet(cpu) {
		t.Errorf("affinity %v, %v; want CPU %d", got, err, cpu)
	}
	if err := tree.Stop(0); err != nil {
		t.Error(err)
	}
	spec = shell("grep -c Cpus_allowed: /proc/self/status")
	if _, _, _, err := s.Output(t.Context(), spec, 100); err != nil {
		t.Error(err)
	}
	var after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &after); err != nil || after != own {
		t.Error("this process's affinity changed")
	}
}

func TestSupervisor_CloseKillsWhatIsLeft(t *testing.T) {
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := s.Start(shell("trap '' TERM; sleep 300; sleep 300"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if running(tree.PID()) {
		t.Error("the tree survived")
	}
}

func FuzzParseStat(f *testing.F) {
	b, _ := os.ReadFile("/proc/self/stat")
	f.Add(b)
	f.Add([]byte("1 (a) b) S 1 2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseStat(b)
	})
}
