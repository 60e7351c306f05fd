// Package e2e drives the built programs on a private Slurm cluster: real
// slurmctld, slurmd, slurmdbd, MUNGE and PostgreSQL, as a user would.
package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sbench/internal/api"
	"sbench/internal/devcluster"
	"sbench/internal/runner/port"
)

// env is the cluster that all tests of the package share; TestMain sets it.
var env *cluster

type cluster struct {
	dir  string // the cluster's directory
	root string // the repository
	// address is where the daemon listens over TCP.
	address string
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	root, err := filepath.Abs("../..")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	for _, need := range []string{"bin/sbench", "bin/sbenchd", "bin/sbench-runner", "bin/sbench-sim", ".cache/engine/engine.sif"} {
		if _, err := os.Stat(filepath.Join(root, need)); err != nil {
			fmt.Fprintf(os.Stderr, "e2e: %v: run `make build engine` first, or `make test`, which does\n", err)
			return 1
		}
	}
	dir, err := os.MkdirTemp("/tmp", "sb-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	env = &cluster{dir: filepath.Join(dir, "c"), root: root}
	defer os.RemoveAll(dir)
	// An interrupted test must leave no cluster behind either.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		_ = exec.Command(env.bin("sbench"), "dev", "down", "--dir", env.dir).Run()
		_ = os.RemoveAll(dir)
		os.Exit(1)
	}()
	out, err := exec.Command(env.bin("sbench"), "dev", "up", "--dir", env.dir,
		"--apptainer", filepath.Join(root, ".cache/engine/apptainer")).CombinedOutput()
	defer exec.Command(env.bin("sbench"), "dev", "down", "--dir", env.dir).Run()
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: dev up: %v\n%s", err, out)
		return 1
	}
	if err := env.configure(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	for _, f := range []string{"engine.sif", "engine-drifted.sif", "model.gguf"} {
		folder := "images"
		if strings.HasSuffix(f, ".gguf") {
			folder = "models"
		}
		if err := copyFile(filepath.Join(root, ".cache/engine", f), filepath.Join(env.dir, folder, f)); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
	}
	return m.Run()
}

// configure completes the site file: scratch folders of the cluster's own, and a
// deadline that an engine which never becomes ready reaches within a test. It makes
// the daemon listen over TCP too.
func (c *cluster) configure() error {
	lab, err := devcluster.Open(c.dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.scratch(), 0o700); err != nil {
		return err
	}
	text, err := os.ReadFile(lab.SiteFile())
	if err != nil {
		return err
	}
	text = append(bytes.Replace(text, []byte("\npaths:\n"), fmt.Appendf(nil, "\npaths:\n  temp: %s\n", c.scratch()), 1),
		"engine:\n  start_timeout: 20s\n"...)
	if err := os.WriteFile(lab.SiteFile(), text, 0o644); err != nil {
		return err
	}
	free, err := port.Free("127.0.0.1")
	if err != nil {
		return err
	}
	c.address = "127.0.0.1:" + strconv.Itoa(free)
	daemonFile := filepath.Join(c.dir, "etc/sbenchd.yaml")
	if text, err = os.ReadFile(daemonFile); err != nil {
		return err
	}
	text = fmt.Appendf(text, "listen: {address: %q, munge_socket: %q}\n", c.address, filepath.Join(c.dir, "run/munge.sock"))
	if err := os.WriteFile(daemonFile, text, 0o600); err != nil {
		return err
	}
	if err := c.postOffice(daemonFile); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return lab.Restart(ctx, "sbenchd")
}

// postOffice lets the daemon send its mail into a folder: a mail program of our own.
func (c *cluster) postOffice(config string) error {
	program := filepath.Join(c.dir, "sendmail")
	if err := os.MkdirAll(c.mailbox(), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\ncat >\"$(mktemp %s/XXXXXX)\"\n", c.mailbox()), 0o755); err != nil {
		return err
	}
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	return os.WriteFile(config, fmt.Appendf(text, "mail: {program: %s}\n", program), 0o600)
}

func (c *cluster) mailbox() string { return filepath.Join(c.dir, "mailbox") }

func (c *cluster) scratch() string { return filepath.Join(c.dir, "tmp") }

func (c *cluster) bin(name string) string { return filepath.Join(c.root, "bin", name) }

// output is what a command left.
type output struct {
	stdout, stderr string
	code           int
}

// exec runs a command inside the cluster's environment.
func (c *cluster) exec(t *testing.T, args ...string) output {
	t.Helper()
	return c.input(t, "", args...)
}

func (c *cluster) input(t *testing.T, stdin string, args ...string) output {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.bin("sbench"), append([]string{"dev", "exec", "--dir", c.dir, "--"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v\n%s", args, err, stderr.String())
	}
	return output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// must runs a command that has to succeed and returns its standard output.
func (c *cluster) must(t *testing.T, args ...string) string {
	t.Helper()
	out := c.exec(t, args...)
	if out.code != 0 {
		t.Fatalf("%v: exit %d\n%s%s", args, out.code, out.stdout, out.stderr)
	}
	return out.stdout
}

// submit submits a sweep given as text and returns its id.
func (c *cluster) submit(t *testing.T, file string, flags ...string) string {
	t.Helper()
	out := c.input(t, file, append(append([]string{"sbench", "submit", "--parsable"}, flags...), "-")...)
	if out.code != 0 {
		t.Fatalf("submit: exit %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	return strings.TrimSpace(out.stdout)
}

// sweep asks for everything about a sweep.
func (c *cluster) sweep(t *testing.T, id string) api.Sweep {
	t.Helper()
	return decode[api.Sweep](t, c.must(t, "sbench", "show", "sweep", id, "--json"))
}

// settle waits until every run of the sweep is terminal.
func (c *cluster) settle(t *testing.T, id string) api.Sweep {
	t.Helper()
	var last api.Sweep
	poll(t, 6*time.Minute, "sweep "+id+" to end", func() bool {
		last = c.sweep(t, id)
		return last.Terminal()
	}, func() string { return fmt.Sprintf("%v\n%s", last.Runs, c.exec(t, "squeue", "-a").stdout) })
	return last
}

// runs returns every run of a sweep with its attempts.
func (c *cluster) runs(t *testing.T, id string) []api.Run {
	t.Helper()
	var runs []api.Run
	seen := map[int64]bool{}
	for _, s := range c.sweep(t, id).Settings {
		setting := decode[api.Setting](t, c.must(t, "sbench", "show", "setting", s.SettingHash, "--json"))
		for _, r := range setting.Runs {
			if strconv.FormatInt(r.SweepID, 10) == id && !seen[r.ID] {
				seen[r.ID] = true
				runs = append(runs, decode[api.Run](t, c.must(t, "sbench", "show", "run", strconv.FormatInt(r.ID, 10), "--json")))
			}
		}
	}
	return runs
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("decode %T: %v\n%s", v, err, text)
	}
	return v
}

// poll waits for a state with a deadline; no test sleeps for a guess.
func poll(t *testing.T, limit time.Duration, what string, done func() bool, context func() string) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; {
		if done() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s: %s", limit, what, context())
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func digest(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// withSite restarts the daemon with a site file in which one text stands for
// another, until the test ends.
func (c *cluster) withSite(t *testing.T, text, other string) {
	t.Helper()
	lab, err := devcluster.Open(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(lab.SiteFile())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(before), text) {
		t.Fatalf("the site file has no %q", text)
	}
	restart := func(site string) {
		t.Helper()
		// The test's own context has ended when it cleans up.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(os.WriteFile(lab.SiteFile(), []byte(site), 0o644), lab.Restart(ctx, "sbenchd")); err != nil {
			t.Fatal(err)
		}
	}
	restart(strings.Replace(string(before), text, other, 1))
	t.Cleanup(func() { restart(string(before)) })
}
