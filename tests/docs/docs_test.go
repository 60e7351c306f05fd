// Package docs runs the manual: every example of the README and of docs/ is typed
// into a shell, in order, on one private Slurm cluster. An example that cannot be
// run in a test says so, with its reason, in a comment above it; all of those are
// in testdata/not-run.txt.
package docs

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/not-run.txt")

// TestNotRun: what is left out is known and has a reason, and a further one shows.
func TestNotRun(t *testing.T) {
	t.Parallel()
	got := notRun(readPages(t, "../.."))
	t.Logf("%d blocks are not run:\n%s", strings.Count(got, "\n"), got)
	if *update {
		if err := os.WriteFile("testdata/not-run.txt", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/not-run.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("blocks that no test runs (-update writes them, if it has to be so):\n%s", diff)
	}
}

// reader is somebody who types what the manual says: a home of their own with the
// files that the pages speak of, and the programs on PATH.
type reader struct {
	root, home string
	env        []string // of the shells
}

func newReader(t *testing.T) *reader {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, need := range []string{"bin/sbench", "bin/sbenchd", "bin/sbench-runner", "bin/sbench-sim", ".cache/engine/apptainer"} {
		if _, err := os.Stat(filepath.Join(root, need)); err != nil {
			t.Fatalf("%v: run `make build engine` first, or `make test`, which does", err)
		}
	}
	// Sockets lie below: the path has to be short.
	home, err := os.MkdirTemp("/tmp", "sb-docs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	own := filepath.Join(home, "bin")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]string{
		"apptainer": ".cache/engine/apptainer", "sbench": "bin/sbench", "sbenchd": "bin/sbenchd", "sbench-runner": "bin/sbench-runner",
		"sbench-gpu": "bin/sbench-gpu", "sbench-sim": "bin/sbench-sim",
	} {
		if err := os.Symlink(filepath.Join(root, at), filepath.Join(own, name)); err != nil {
			t.Fatal(err)
		}
	}
	return &reader{root: root, home: home, env: []string{
		"HOME=" + home, "PATH=" + own + ":" + os.Getenv("PATH"), "USER=" + os.Getenv("USER"), "LC_ALL=C.UTF-8", "NO_COLOR=1", "SBENCH_SIM=" + filepath.Join(root, "bin/sbench-sim"),
	}}
}

// folder is where a page's commands are typed: with the files that they name.
func (r *reader) folder(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(r.home, strings.NewReplacer("/", "-", ".md", "").Replace(name))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sim, err := os.ReadFile(filepath.Join(r.root, "bin/sbench-sim"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(sim)
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files for the examples: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.NewReplacer("@SIM@", filepath.Join(r.root, "bin/sbench-sim"), "@DIGEST@", hex.EncodeToString(sum[:])).Replace(string(text)))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestExamples runs every example of every page. The page of the private cluster
// brings up the one that all use, submits its first sweep, and takes it down at the
// end.
func TestExamples(t *testing.T) {
	r := newReader(t)
	t.Cleanup(func() { r.down(t) })
	// An interrupted test must leave no cluster behind either.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	t.Cleanup(func() { signal.Stop(interrupted) })
	go func() {
		<-interrupted
		r.down(t)
		os.Exit(1)
	}()
	pages := readPages(t, r.root)
	sessions := map[string]*session{}
	commands := 0
	for _, p := range pages {
		if !slices.ContainsFunc(p.blocks, func(b block) bool { return len(b.examples) > 0 && b.skip == "" }) {
			continue
		}
		s := newSession(t, r.folder(t, p.name), r.env)
		sessions[p.name] = s
		if p.name != "docs/private-cluster.md" {
			ready(t, s)
		}
		for _, b := range p.blocks {
			if !b.last {
				commands += r.run(t, p, b, s)
			}
		}
	}
	for _, p := range slices.Backward(pages) {
		for _, b := range p.blocks {
			if b.last {
				commands += r.run(t, p, b, sessions[p.name])
			}
		}
	}
	if commands < 50 {
		t.Errorf("only %d commands were run: the manual is not read", commands)
	}
	t.Logf("%d commands of the manual were run, %d blocks were not", commands, strings.Count(notRun(pages), "\n"))
}

// down ends the cluster, wherever the examples have got to.
func (r *reader) down(t *testing.T) {
	t.Helper()
	down := exec.Command(filepath.Join(r.root, "bin/sbench"), "dev", "down", "--wipe")
	down.Env = r.env
	if out, err := down.CombinedOutput(); err != nil {
		t.Errorf("dev down: %v\n%s", err, out)
	}
}

// ready gives a shell the variables of the cluster, and $SWEEP: the first sweep of
// the cluster, which the pages call 17.
func ready(t *testing.T, s *session) {
	t.Helper()
	for _, command := range []string{`eval "$(sbench dev env)"`, `export SWEEP=1`} {
		if printed, status := s.run(t, command); status != 0 {
			t.Fatalf("%s: status %d\n%s", command, status, printed)
		}
	}
}

// run types the examples of a block and returns how many they were.
func (r *reader) run(t *testing.T, p page, b block, s *session) int {
	t.Helper()
	if b.skip != "" || len(b.examples) == 0 {
		return 0
	}
	where := p.name + ":" + strconv.Itoa(b.line)
	hidden := func(commands []string) {
		for _, command := range commands {
			if printed, status := s.run(t, command); status != 0 {
				t.Errorf("%s: %s: status %d\n%s", where, command, status, printed)
			}
		}
	}
	hidden(b.before)
	for i, x := range b.examples {
		want := []string{"0"}
		if i == len(b.examples)-1 && b.status != nil {
			want = b.status
		}
		command := replaced(x.command, words(p, b))
		begin := time.Now()
		printed, status := s.run(t, command)
		if took := time.Since(begin); took > time.Second {
			t.Logf("%s: $ %s: %.1f s", where, command, took.Seconds())
		}
		if !slices.Contains(want, strconv.Itoa(status)) {
			t.Errorf("%s: $ %s\nstatus %d, want %s\n%s", where, command, status, strings.Join(want, " or "), printed)
		} else if line := matches(x.output, printed); line != "" {
			t.Errorf("%s: $ %s\nprinted no line like %q but\n%s", where, command, line, printed)
		}
	}
	hidden(b.after)
	return len(b.examples)
}

// words are the replacements that hold in a block: its own, and those above it.
func words(p page, b block) []replacement {
	var all []replacement
	for _, k := range p.blocks {
		if k.line <= b.line {
			all = append(slices.Clone(k.replace), all...)
		}
	}
	return all
}
