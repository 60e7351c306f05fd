package docs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// limit is for one command of the manual.
const limit = 2 * time.Minute

// session is a shell that commands are typed into, one after the other: what one of
// them exports, or where it goes, holds for the next.
type session struct {
	shell *exec.Cmd
	in    io.WriteCloser
	lines chan string
	mark  string
}

// newSession starts a bash in a folder with these variables only. It ends with the
// test, and everything that it has started with it.
func newSession(t *testing.T, dir string, env []string) *session {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{shell: exec.Command("bash", "--noprofile", "--norc", "-o", "pipefail"), lines: make(chan string, 1024), mark: fmt.Sprintf("--end-%d--", os.Getpid())}
	s.shell.Dir, s.shell.Env, s.shell.Stdout, s.shell.Stderr = dir, env, w, w
	s.shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.in, err = s.shell.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := s.shell.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		s.in.Close()
		_ = syscall.Kill(-s.shell.Process.Pid, syscall.SIGKILL)
		_ = s.shell.Wait()
		r.Close()
	})
	go func() {
		defer close(s.lines)
		scan := bufio.NewScanner(r)
		scan.Buffer(nil, 16<<20)
		for scan.Scan() {
			s.lines <- scan.Text()
		}
	}()
	return s
}

// run types a command and returns what it printed, both streams as they came, and
// its exit status. Standard input is empty.
func (s *session) run(t *testing.T, command string) (printed string, status int) {
	t.Helper()
	if _, err := fmt.Fprintf(s.in, "{\n%s\n} </dev/null\nprintf '\\n%%s %%d\\n' %s \"$?\"\n", command, s.mark); err != nil {
		t.Fatalf("%s: the shell has ended: %v", command, err)
	}
	var b strings.Builder
	late := time.After(limit)
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				t.Fatalf("%s: ended the shell\n%s", command, b.String())
			}
			if rest, ok := strings.CutPrefix(line, s.mark+" "); ok {
				status, err := strconv.Atoi(rest)
				if err != nil {
					t.Fatal(err)
				}
				return strings.TrimSuffix(b.String(), "\n"), status
			}
			b.WriteString(line + "\n")
		case <-late:
			t.Fatalf("%s: has not ended within %v\n%s", command, limit, b.String())
		}
	}
}

func TestSession(t *testing.T) {
	t.Parallel()
	s := newSession(t, t.TempDir(), []string{"PATH=" + os.Getenv("PATH")})
	for _, tc := range []struct {
		command, printed string
		status           int
	}{
		{"export A=1; b=2; mkdir d; cd d", "", 0},
		{"echo $A $b; basename \"$PWD\" >&2", "1 2\nd\n", 0},
		{"cat", "", 0}, // nothing to read, and nothing of the next command either
		{"false | cat", "", 1},
		{"printf x", "x", 0},
		{"(exit 4) # as it says", "", 4},
		{"cat <<END\na $A\nEND", "a 1\n", 0},
	} {
		if printed, status := s.run(t, tc.command); printed != tc.printed || status != tc.status {
			t.Errorf("%s: printed %q, status %d", tc.command, printed, status)
		}
	}
}
