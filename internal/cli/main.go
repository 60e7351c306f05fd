// Package cli is the sbench command: one file per command, text for people and
// JSON for programs. It promises that data goes to stdout and messages to
// stderr, that every failure has one of the documented exit statuses, and that
// no flag is accepted and then ignored. It never touches the database or Slurm:
// what it cannot compute from a file it asks the daemon.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/api"
	"sbench/internal/diag"
)

// Exit statuses. They are part of the interface.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitRefused     = 3
	exitIncomplete  = 4
	exitRegression  = 5
	exitUnreachable = 6
)

// app is what every command works with; there is no global state.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	now            func() time.Time
	poll           time.Duration // between two looks at the daemon

	json   bool        // --json
	socket string      // --socket
	server string      // --server
	remote *api.Client // over TCP; nil where the Unix socket is used
}

// Main runs the command and returns its exit status. It returns early, with
// the running work stopped, when ctx ends.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (status int) {
	out := &stickyWriter{w: stdout}
	a := &app{stdin: stdin, stdout: out, stderr: stderr, environ: os.Environ(), now: time.Now, poll: time.Second}
	a.json = slices.Contains(args, "--json")
	defer func() {
		if p := recover(); p != nil {
			_, _ = fmt.Fprintf(stderr, "sbench: error: internal fault: %v\n", p)
			if a.env("SBENCH_DEBUG") != "" {
				_, _ = stderr.Write(debug.Stack())
			} else {
				_, _ = fmt.Fprintln(stderr, "sbench: hint: SBENCH_DEBUG=1 shows where; please report it")
			}
			status = exitFailed
		}
	}()
	root := newRootCommand(a) //nolint:contextcheck // each command takes cobra's own, which ExecuteContext sets
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil && out.err != nil {
		// Half an answer must not look like a whole one.
		err = fmt.Errorf("write standard output: %w", out.err)
	}
	return a.report(err)
}

// env returns the last value of an environment variable, "" where unset.
func (a *app) env(name string) string {
	v, _ := a.lookup(name)
	return v
}

func (a *app) lookup(name string) (string, bool) {
	for _, kv := range slices.Backward(a.environ) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

// client connects to the daemon of --socket or --server, of SBENCH_SOCKET or
// SBENCH_SERVER, or the default one.
func (a *app) client() *api.Client {
	if a.remote != nil {
		return a.remote
	}
	socket := a.socket
	if socket == "" {
		socket = a.env(api.SocketEnv)
	}
	if socket == "" {
		socket = api.DefaultSocket
	}
	return api.NewClient(socket)
}

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "sbench",
		Short: "measure how fast LLM inference servers are, on Slurm clusters",
		Long: `sbench expands a sweep file into pinned settings, runs each of them several
times as Slurm array tasks, refuses to measure where the environment is not the
pinned one, and publishes only numbers that it can prove.`,
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Args:                       subcommandArgs,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().BoolVar(&a.json, "json", a.json, "print one JSON document instead of text, and failures as a JSON line on stderr")
	root.PersistentFlags().StringVar(&a.socket, "socket", "", "the daemon's Unix socket (default $SBENCH_SOCKET, then "+api.DefaultSocket+")")
	root.PersistentFlags().StringVar(&a.server, "server", "", "the daemon's address over TCP, http://host:port or https://host:port (default $SBENCH_SERVER, then --socket)")
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return a.connect() }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &failure{status: exitUsage, message: lowerFirst(err.Error()), hint: "see " + cmd.CommandPath() + " --help"}
	})
	root.AddGroup(&cobra.Group{ID: "file", Title: "Sweep files"}, &cobra.Group{ID: "work", Title: "Sweeps"},
		&cobra.Group{ID: "admin", Title: "Operation"})
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("file", newValidateCommand(a), newSettingsCommand(a), newRenderCommand(a), newBenchCommand(a), newRecomputeCommand(a),
		newSimulateCommand(a), newProfileCommand(a))
	add("work", newSubmitCommand(a), newQueueCommand(a), newShowCommand(a), newWatchCommand(a), newResultsCommand(a),
		newLogsCommand(a), newBundleCommand(a), newRerunCommand(a), newCancelCommand(a), newHoldCommand(a), newReleaseCommand(a), newRequeueCommand(a), newThrottleCommand(a), newDeadCommand(a), newCronCommand(a))
	add("admin", newCostCommand(a), newRateCommand(a), newQuotaCommand(a), newTokenCommand(a), newAuditCommand(a),
		newArtefactCommand(a, api.ArtefactCheckpoint), newArtefactCommand(a, api.ArtefactImage), newSiteCommand(a), newDevCommand(a), newDoctorCommand(),
		newVersionCommand(a), newManCommand(a))
	add("work", newCompareCommand(a), newCheckCommand(a), newBaselineCommand(a), newRegressionsCommand(a), newReferenceCommand(a), newAlarmsCommand(a))
	exits(root, exitOK, exitFailed, exitUsage, exitRefused, exitIncomplete, exitRegression, exitUnreachable)
	root.SetCompletionCommandGroupID("admin")
	root.SetHelpCommand(newHelpCommand(root))
	root.InitDefaultCompletionCmd()
	walk(root, finish)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { writeHelp(cmd.OutOrStdout(), cmd) })
	return root
}

// newHelpCommand replaces cobra's, which ends with 0 for a command that does not
// exist.
func newHelpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]…", Short: "print the manual page of a command", GroupID: "admin",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err == nil && len(rest) > 0 {
				err = subcommandArgs(cmd, rest)
			}
			if err != nil {
				return err
			}
			return cmd.Help()
		},
	}
}

// finish gives a command what all commands have: exit statuses in its help, and
// status 2 for arguments that it does not take.
func finish(cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	if cmd.Annotations[annotationExits] == "" {
		exits(cmd, exitOK, exitFailed, exitUsage)
	}
	if cmd.HasSubCommands() && cmd.HasParent() {
		cmd.Args, cmd.RunE = subcommandArgs, missingCommand
	}
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		var f *failure
		if err == nil || errors.As(err, &f) {
			return err
		}
		return &failure{status: exitUsage, message: lowerFirst(err.Error()), hint: "usage: " + cmd.UseLine(), err: err}
	}
}

// subcommandArgs is the argument check of a command that only has subcommands.
func subcommandArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	f := &failure{status: exitUsage, message: fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		f.hint = fmt.Sprintf("did you mean %q?", strings.Join(near, `" or "`))
	} else {
		f.hint = "see " + cmd.CommandPath() + " --help"
	}
	return f
}

// missingCommand is what a command that only has subcommands does.
func missingCommand(cmd *cobra.Command, _ []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return &failure{status: exitUsage, message: "missing command after " + cmd.CommandPath(), hint: "commands: " + strings.Join(names, ", ")}
}

// nArgs checks that a command got between low and high arguments (high < 0: no
// upper limit), which what names.
func nArgs(low, high int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return &failure{status: exitUsage, message: "missing argument: " + what, hint: "usage: " + cmd.UseLine()}
		case high >= 0 && len(args) > high && high == 0:
			return &failure{status: exitUsage, message: fmt.Sprintf("unexpected argument %q", args[0]), hint: "usage: " + cmd.UseLine()}
		case high >= 0 && len(args) > high:
			return &failure{status: exitUsage, message: fmt.Sprintf("unexpected argument %q after %s", args[high], what), hint: "usage: " + cmd.UseLine()}
		}
		return nil
	}
}

// failure is an error with an exit status and what a person needs to go on.
type failure struct {
	status      int
	message     string
	hint        string
	reasons     []string
	diagnostics diag.List
	// quiet: everything was said already; only the status is left.
	quiet bool
	err   error
}

func (f *failure) Error() string { return f.message }
func (f *failure) Unwrap() error { return f.err }

// sorted puts the reasons in order and drops repetitions.
func (f *failure) sorted() *failure {
	slices.Sort(f.reasons)
	f.reasons = slices.Compact(f.reasons)
	return f
}

// usagef returns a failure of exit status 2.
func usagef(format string, args ...any) *failure {
	return &failure{status: exitUsage, message: fmt.Sprintf(format, args...)}
}

// failureOf gives any error its exit status and hint: the one place that does.
func failureOf(err error) *failure {
	var f *failure
	var p *api.Problem
	var u *api.UnreachableError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &p):
		f := &failure{message: p.Message, hint: p.Hint, reasons: p.Reasons, diagnostics: p.Diagnostics, err: err}
		switch p.Code {
		case api.CodeInvalid:
			f.status = exitUsage
		case api.CodeRefused, api.CodeLimited:
			f.status = exitRefused
		case api.CodeUnavailable:
			f.status = exitUnreachable
		case api.CodeNotFound, api.CodeConflict, api.CodeInternal:
			f.status = exitFailed
		default:
			f.status = exitFailed
		}
		return f
	case errors.As(err, &u):
		return &failure{
			status: exitUnreachable, message: u.Error(), err: err,
			hint: "is sbenchd running? SBENCH_SOCKET or --socket says where it listens",
		}
	case errors.Is(err, context.Canceled):
		return &failure{status: exitFailed, message: "interrupted", err: err}
	default:
		return &failure{status: exitFailed, message: err.Error(), err: err}
	}
}

// report prints an error and returns the exit status.
func (a *app) report(err error) int {
	if err == nil {
		return exitOK
	}
	f := failureOf(err)
	if f.quiet {
		return f.status
	}
	if a.json {
		a.reportJSON(f)
		return f.status
	}
	a.warn(f.diagnostics)
	a.message("error: %s", f.message)
	for _, r := range f.reasons {
		a.message("error: %s", r)
	}
	if f.hint != "" {
		a.message("hint: %s", f.hint)
	}
	return f.status
}

// lowerFirst lowers the first letter: pflag's messages and ours are one style.
func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
