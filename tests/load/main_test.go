//go:build load

// Package load_test measures the load generator itself: its truth, its
// punctuality and its capacity, each beside a bare program that does the same and
// nothing else, in one run. Every figure is a line "name value target". It needs a
// machine with two cores to itself, and is built by make bench-load only.
package load_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The parts that must be processes of their own, each on a core of its own, are
// this program again, with roleEnv set.
const (
	roleEnv   = "SBENCH_LOAD_ROLE"
	configEnv = "SBENCH_LOAD_CONFIG"
	serverCPU = 0
	clientCPU = 1
)

// rounds is how often each side of a ratio is run, in turn: the best of each
// counts, so that one disturbance does not decide.
const rounds = 3

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	roles := map[string]func(json.RawMessage) (any, error){
		"server":       serverRole,
		"ours":         oursRole,
		"bare":         bareRole,
		"sender":       senderRole,
		"idle-ours":    idleOursRole,
		"idle-bare":    idleBareRole,
		"plain-ours":   plainOursRole,
		"bare-request": bareRequestRole,
		"truth-ours":   truthOursRole,
		"truth-bare":   truthBareRole,
	}
	result, err := roles[role](json.RawMessage(os.Getenv(configEnv)))
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		os.Exit(1)
	}
}

// child is a role in a process of its own.
type child struct {
	cmd   *exec.Cmd
	out   *bufio.Reader
	stdin io.WriteCloser
	errs  bytes.Buffer
}

// start runs a role on one core.
func start(t *testing.T, role string, cpu int, config any) *child {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command("taskset", "-c", strconv.Itoa(cpu), os.Args[0])}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+role, configEnv+"="+string(text))
	c.cmd.Stderr = &c.errs
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReaderSize(out, 1<<20)
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	return c
}

// line reads one line that the role printed.
func (c *child) line(t *testing.T, into any) {
	t.Helper()
	text, err := c.out.ReadBytes('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, c.errs.String())
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// do runs a role to its end.
func do[T any](t *testing.T, role string, config any) T {
	t.Helper()
	c := start(t, role, clientCPU, config)
	var result T
	c.line(t, &result)
	return result
}

// figure prints one figure. A missed target is said, and no failure: whether the
// machine was quiet enough to judge it, this program cannot know.
func figure(t *testing.T, name string, value float64, target string) {
	t.Helper()
	fmt.Printf("%s %.4g %s\n", name, value, target)
	if target == "" || target == "-" {
		return
	}
	limit, err := strconv.ParseFloat(strings.TrimLeft(target, "<>="), 64)
	if err != nil {
		t.Fatal(err)
	}
	if (strings.HasPrefix(target, ">=") && !(value >= limit)) || (strings.HasPrefix(target, "<=") && !(value <= limit)) {
		t.Logf("missed: %s is %.4g, want %s", name, value, target)
	}
}

func measuring(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("taskset"); err != nil {
		t.Fatal("taskset is missing (package util-linux)")
	}
}

// cpuSeconds is the processor time of this process.
func cpuSeconds() float64 {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) != nil {
		return math.NaN()
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// residentBytes is the memory of this process that is resident.
func residentBytes() float64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return math.NaN()
	}
	fields := strings.Fields(string(b))
	pages, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return math.NaN()
	}
	return pages * float64(os.Getpagesize())
}

// quantile is the nearest-rank quantile of values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, max(0, int(math.Ceil(q*float64(len(sorted))))-1))]
}

// binary is a program that make build made.
func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../bin", name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: make build first", err)
	}
	return path
}

// perCPU runs two roles in turn, as often as rounds says, and returns the most
// that each got done in a second of its processor.
func perCPU(t *testing.T, ours, other string, c clientConfig, done func(clientResult) int) (a, b float64) {
	t.Helper()
	for range rounds {
		for role, best := range map[string]*float64{ours: &a, other: &b} {
			r := do[clientResult](t, role, c)
			if r.Failed > 0 {
				t.Fatalf("%s: %d failures: %s", role, r.Failed, r.Detail)
			}
			*best = max(*best, float64(done(r))/r.CPU)
		}
	}
	return a, b
}
