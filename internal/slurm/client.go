package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config says how to reach one Slurm cluster.
type Config struct {
	// BinDir holds the commands; "" looks them up in PATH.
	BinDir string
	// Conf is the slurm.conf to use (SLURM_CONF); "" keeps the caller's
	// SLURM_CONF, or Slurm's own default where there is none.
	Conf string
	// User limits queries to the jobs of this user; "" is the user who calls.
	User string
	// Timeout bounds queries and control commands; 0 is DefaultTimeout.
	Timeout time.Duration
	// SubmitTimeout bounds sbatch; 0 is DefaultSubmitTimeout.
	SubmitTimeout time.Duration
	// Env is added to the commands' environment, as "KEY=value".
	Env []string
}

// The default time limits. A controller that hangs answers a client after its
// MessageTimeout, 10 s by default; sbatch itself sleeps and retries for longer.
const (
	DefaultTimeout       = 60 * time.Second
	DefaultSubmitTimeout = 90 * time.Second
)

// maxOutput bounds what is read from a command: 400,000 rows of squeue.
const maxOutput = 128 << 20

// Client calls one cluster's commands. It may be used by several goroutines.
type Client struct {
	conf  Config
	env   []string // of sbatch: the job inherits it
	query []string // of everything else
	mu    sync.Mutex
	stats map[string]Calls
	// missing are the columns, in lower case, that this Slurm's sacct does not have.
	missing map[string]bool
}

// Calls counts the calls of one command.
type Calls struct {
	Calls, Failures, Timeouts int64
	Total                     time.Duration // time spent
}

// New returns a client. Nothing is called yet.
func New(conf Config) *Client {
	if conf.Timeout == 0 {
		conf.Timeout = DefaultTimeout
	}
	if conf.SubmitTimeout == 0 {
		conf.SubmitTimeout = DefaultSubmitTimeout
	}
	env := scrubbed(conf)
	// Times as epoch seconds in and out, and array expressions in full.
	query := append(slices.Clone(env), "SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=0", "TZ=UTC")
	return &Client{conf: conf, env: env, query: query, stats: map[string]Calls{}, missing: map[string]bool{}}
}

// inherited are the only variables that pass from the caller to a command. All
// others could change what it does: SBATCH_*, SLURM_*, SQUEUE_*, SACCT_*, TZ…
var inherited = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH"}

func scrubbed(conf Config) []string {
	env := []string{"LC_ALL=C.UTF-8", "LANG=C.UTF-8"}
	for _, key := range inherited {
		if v, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+v)
		}
	}
	slurmConf := conf.Conf
	if slurmConf == "" {
		slurmConf = os.Getenv("SLURM_CONF")
	}
	if slurmConf != "" {
		env = append(env, "SLURM_CONF="+slurmConf)
	}
	return append(env, conf.Env...)
}

// Stats returns how often each command was called. The result is the caller's.
func (c *Client) Stats() map[string]Calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.stats)
}

func (c *Client) count(program string, took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats[program]
	s.Calls++
	s.Total += took
	if err != nil {
		s.Failures++
	}
	var e *Error
	if errors.As(err, &e) && e.TimedOut {
		s.Timeouts++
	}
	c.stats[program] = s
}

// Error is a command that did not succeed.
type Error struct {
	Program  string
	Exit     int    // -1 where there is none: not started, or killed
	Stderr   string // trimmed, at most 4,000 bytes, valid UTF-8
	TimedOut bool
	cause    error
}

// Error names the command and its own words.
func (e *Error) Error() string {
	switch {
	case e.TimedOut:
		return fmt.Sprintf("%s: no answer in time%s", e.Program, after(e.Stderr))
	case e.Exit >= 0:
		return fmt.Sprintf("%s: exit status %d%s", e.Program, e.Exit, after(e.Stderr))
	}
	return fmt.Sprintf("%s: %v%s", e.Program, e.cause, after(e.Stderr))
}

func (e *Error) Unwrap() error { return e.cause }

func after(stderr string) string {
	if stderr == "" {
		return ""
	}
	return ": " + strings.ReplaceAll(stderr, "\n", "; ")
}

// ErrUnreachable is wrapped by errors that say nothing about the jobs: the
// controller or the accounting daemon did not answer, or answered too late.
var ErrUnreachable = errors.New("slurm cannot be reached")

// ErrNoAccounting: the cluster runs without an accounting database.
var ErrNoAccounting = errors.New("the cluster keeps no accounting")

// unreachable are texts of commands that got no answer.
var unreachable = []string{
	"Unable to contact slurm controller",
	"timed out",
	"Zero Bytes were transmitted or received",
	"Transport endpoint is not connected",
	"Protocol authentication error",
	"Munge encode failed",
	"Munge decode failed",
	"Problem talking to the database",
	"Unable to connect to database",
	"Connection refused",
	"Connection reset by peer",
	"Could not establish a configuration source",
	"Unable to process configuration file",
	"Slurm backup controller in standby mode",
	"Insane message length",
	"Message receive failure",
	"Communication connection failure",
	"Resource temporarily unavailable",
}

func saysUnreachable(stderr string) bool {
	return slices.ContainsFunc(unreachable, func(text string) bool { return strings.Contains(stderr, text) })
}

// call is one execution of a command.
type call struct {
	program string
	args    []string
	timeout time.Duration
	// stop, if set, is shown every line of stderr and ends the command by
	// returning true.
	stop func(line string) bool
}

type output struct {
	stdout, stderr string
	exit           int
	stopped        bool // by call.stop
}

// run executes a command. The error is nil only if it ended with status 0; the
// output is returned in any case.
func (c *Client) run(ctx context.Context, call call) (output, error) {
	start := time.Now()
	out, err := c.exec(ctx, call)
	c.count(call.program, time.Since(start), err)
	return out, err
}

func (c *Client) exec(ctx context.Context, call call) (output, error) {
	path, err := c.lookPath(call.program)
	if err != nil {
		return output{exit: -1}, &Error{Program: call.program, Exit: -1, cause: err}
	}
	timed, cancel := context.WithTimeout(ctx, call.timeout)
	defer cancel()
	cmd := exec.CommandContext(timed, path, call.args...)
	cmd.Env = c.query
	if call.program == "sbatch" {
		cmd.Env = c.env
	}
	cmd.Dir = "/" // sbatch takes its own directory as the job's
	stdout := &bounded{max: maxOutput}
	stderr := &lines{kept: bounded{max: 64 << 10}, stop: call.stop, cancel: cancel}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	err = cmd.Run()
	out := output{stdout: stdout.buf.String(), stderr: tidy(stderr.kept.buf.String()), exit: -1, stopped: stderr.stopped}
	if cmd.ProcessState != nil {
		out.exit = cmd.ProcessState.ExitCode()
	}
	switch {
	case err == nil && stdout.full:
		err = errors.New("more output than can be right")
	case err == nil:
		return out, nil
	}
	e := &Error{Program: call.program, Exit: out.exit, Stderr: out.stderr, cause: err}
	if ctx.Err() != nil {
		e.cause = ctx.Err()
	} else if timed.Err() != nil && !out.stopped {
		e.TimedOut = errors.Is(timed.Err(), context.DeadlineExceeded)
	}
	if e.TimedOut || saysUnreachable(out.stderr) {
		e.cause = fmt.Errorf("%w: %w", ErrUnreachable, e.cause)
	}
	if strings.Contains(out.stderr, "accounting storage is disabled") {
		e.cause = fmt.Errorf("%w: %w", ErrNoAccounting, e.cause)
	}
	return out, e
}

func (c *Client) lookPath(program string) (string, error) {
	if c.conf.BinDir != "" {
		return filepath.Join(c.conf.BinDir, program), nil
	}
	return exec.LookPath(program)
}

func tidy(s string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "\uFFFD")
	if len(s) > 4000 {
		s = strings.ToValidUTF8(s[:4000], "")
	}
	return s
}

// bounded keeps the first max bytes. The buffer is not embedded: its ReadFrom
// would be used in place of Write.
type bounded struct {
	buf  bytes.Buffer
	max  int
	full bool
}

func (b *bounded) Write(p []byte) (int, error) {
	n := len(p)
	if room := b.max - b.buf.Len(); n > room {
		b.full = true
		p = p[:max(room, 0)]
	}
	b.buf.Write(p)
	return n, nil
}

// lines shows complete lines to stop.
type lines struct {
	kept    bounded
	stop    func(string) bool
	cancel  context.CancelFunc
	seen    int
	stopped bool
}

func (l *lines) Write(p []byte) (int, error) {
	n, err := l.kept.Write(p)
	if l.stop == nil {
		return n, err
	}
	for !l.stopped {
		rest := l.kept.buf.Bytes()[l.seen:]
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			break
		}
		l.seen += i + 1
		if l.stop(string(rest[:i])) {
			l.stopped = true
			l.cancel()
		}
	}
	return n, err
}
