package mail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// DefaultTimeout is how long a mail program or relay may take.
const DefaultTimeout = 30 * time.Second

// Program sends through a program that is called as sendmail is: the message on
// standard input, the recipient as its argument.
type Program struct {
	Path    string
	Timeout time.Duration // 0 is DefaultTimeout
}

// Send hands the message to the program. A program that ends with another status
// than 0 has not taken it; one that is killed may have.
func (p Program) Send(ctx context.Context, m Message) error {
	text, err := m.Text()
	if err != nil {
		return err
	}
	timeout := p.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	args := []string{"-i"} // a line with a dot alone does not end the message
	if m.From != "" {
		args = append(args, "-f", m.From)
	}
	cmd := exec.CommandContext(ctx, p.Path, append(args, m.To)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	cmd.Dir = "/"
	// Mail programs take a Unix text.
	cmd.Stdin = bytes.NewReader(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")))
	said := &head{}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case cmd.ProcessState == nil:
		return fmt.Errorf("start the mail program: %w", err)
	case errors.As(err, &exit) && exit.Exited():
		return fmt.Errorf("%s: %w%s", p.Path, err, said.after())
	}
	return fmt.Errorf("%s: %w (%w)%s", p.Path, ErrUnknown, err, said.after())
}

// head keeps the beginning of what a program says.
type head struct{ kept []byte }

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), 500-len(h.kept))]...)
	return len(p), nil
}

func (h *head) after() string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(h.kept), "\uFFFD")), " ")
	if text == "" {
		return ""
	}
	return ": " + text
}
