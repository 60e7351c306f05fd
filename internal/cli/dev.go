package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/devcluster"
)

// devDirVariable names the cluster's directory; `sbench dev env` exports it.
const devDirVariable = "SBENCH_DEV_DIR"

// newDevCommand returns `sbench dev`.
func newDevCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev COMMAND",
		Short: "a private Slurm cluster in a directory",
		Long: `Brings up a real Slurm cluster (munged, slurmctld, slurmd with emulated GPUs,
slurmdbd), PostgreSQL and sbenchd inside one directory, as root or not, and
takes it down again. Several live side by side.`,
		Example: `sbench dev up
eval "$(sbench dev env)"
sbench submit --wait sweep.yaml
sbench dev down`,
		Args: subcommandArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var dir string
	cmd.PersistentFlags().StringVar(&dir, "dir", "", "the cluster's directory (default $"+devDirVariable+", else ~/.local/state/sbench/dev)")
	cmd.AddCommand(newDevUpCommand(&dir), newDevDownCommand(&dir), newDevStatusCommand(&dir), newDevEnvCommand(&dir), newDevExecCommand(&dir), newDevHistoryCommand(a))
	annotate(cmd, annotationEnv, devDirVariable+"  the cluster's directory; sbench dev env exports it")
	exits(cmd, exitOK, exitFailed, exitUsage)
	return cmd
}

func devDir(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if dir := os.Getenv(devDirVariable); dir != "" {
		return dir, nil
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no directory given: %w", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "sbench", "dev"), nil
}

func openDev(flag string) (*devcluster.Cluster, error) {
	dir, err := devDir(flag)
	if err != nil {
		return nil, err
	}
	c, err := devcluster.Open(dir)
	if errors.Is(err, devcluster.ErrNoCluster) {
		return nil, &failure{status: exitFailed, message: err.Error(), hint: "sbench dev up --dir " + shellQuote(dir) + " brings one up", err: err}
	}
	return c, devFailure(err)
}

// devFailure gives an error of devcluster its exit status and hint.
func devFailure(err error) error {
	var option *devcluster.OptionError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &option):
		return &failure{status: exitUsage, message: err.Error(), err: err}
	case errors.Is(err, devcluster.ErrMissing):
		return &failure{status: exitFailed, message: err.Error(), hint: "sbench doctor says what is missing and how to get it", err: err}
	default:
		return err
	}
}

// wantsJSON reads --json, which every command inherits.
func wantsJSON(cmd *cobra.Command) bool {
	v, err := cmd.Flags().GetBool("json")
	return err == nil && v
}

func newDevUpCommand(dir *string) *cobra.Command {
	var o devcluster.Options
	var nodes string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "bring the cluster up",
		Long: `Brings the cluster up and returns when all nodes are idle and every server
answers. What an earlier cluster left in the directory (jobs, accounts,
database, results) is kept. An already running cluster is left as it is.`,
		Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Dir, err = devDir(*dir); err != nil {
				return err
			}
			if nodes != "" {
				if o.Nodes, err = devcluster.ParseNodes(nodes); err != nil {
					return devFailure(err)
				}
			}
			return devUp(cmd, o)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.BasePort, "base-port", 0, "first of the TCP ports (default: the first free block)")
	f.StringVar(&nodes, "nodes", "", "number of nodes of each kind (default gpu=4,l4=2,cpu=2)")
	f.IntVar(&o.MaxArraySize, "max-array-size", devcluster.DefaultMaxArraySize, "Slurm's MaxArraySize")
	f.StringVar(&o.Name, "name", devcluster.DefaultName, "name of the cluster and of the site")
	f.StringSliceVar(&o.Users, "user", nil, "further local `users` to give a Slurm account to")
	f.BoolVar(&o.NoDaemon, "no-daemon", false, "leave sbenchd out")
	f.BoolVar(&o.NoDatabase, "no-database", false, "leave PostgreSQL and sbenchd out")
	f.BoolVar(&o.NoAccounting, "no-accounting", false, "leave slurmdbd and its database out; sacct then fails")
	f.BoolVar(&o.NoNamespaces, "no-namespaces", false, "do not give the nodes PID and UTS namespaces of their own")
	f.StringVar(&o.Binaries, "binaries", "", "folder of sbenchd, sbench-runner and sbench-gpu (default: that of sbench)")
	f.StringVar(&o.Apptainer, "apptainer", "", "apptainer or a program with its command line (default: from PATH)")
	exits(cmd, exitOK, exitFailed, exitUsage)
	return cmd
}

func devUp(cmd *cobra.Command, o devcluster.Options) error {
	// An interrupted Up takes down what it had started.
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	start := time.Now()
	c, err := devcluster.Up(ctx, o, func(line string) {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%6.1fs  %s\n", time.Since(start).Seconds(), line)
	})
	switch {
	case errors.Is(err, devcluster.ErrAlreadyUp):
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "already up in %s\n", c.Dir())
	case err != nil:
		return devFailure(err)
	default:
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%6.1fs  up in %s\n", time.Since(start).Seconds(), c.Dir())
	}
	if wantsJSON(cmd) {
		return writeDevJSON(cmd.OutOrStdout(), c.Status(ctx))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "eval \"$(sbench dev env --dir %s)\"\n", shellQuote(c.Dir()))
	return err
}

func newDevDownCommand(dir *string) *cobra.Command {
	var wipe bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "take the cluster down",
		Long: `Ends every process of the cluster, also one whose parts were killed or whose
records are lost, and leaves no socket and no lock. Jobs, accounts, database,
results and logs stay for the next "up", unless --wipe is given.`,
		Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := devDir(*dir)
			if err != nil {
				return err
			}
			if _, err := os.Stat(d); errors.Is(err, os.ErrNotExist) {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "nothing in %s\n", d)
				return nil
			}
			return devcluster.Stop(cmd.Context(), d, wipe)
		},
	}
	cmd.Flags().BoolVar(&wipe, "wipe", false, "kill at once and remove all files of the cluster, results included")
	exits(cmd, exitOK, exitFailed, exitUsage)
	return cmd
}

func newDevStatusCommand(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show the components of the cluster; exit 1 unless all are alive",
		Args:  nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := openDev(*dir)
			if err != nil {
				return err
			}
			s := c.Status(cmd.Context())
			if wantsJSON(cmd) {
				err = writeDevJSON(cmd.OutOrStdout(), s)
			} else {
				err = writeDevStatus(cmd.OutOrStdout(), s)
			}
			if err == nil && !s.Up {
				err = &failure{status: exitFailed, quiet: true} // the table has said it
			}
			return err
		},
	}
	exits(cmd, exitOK, exitFailed, exitUsage)
	return cmd
}

func writeDevStatus(w io.Writer, s devcluster.Status) error {
	state := map[bool]string{true: "up", false: "not up"}[s.Up]
	if _, err := fmt.Fprintf(w, "cluster %s in %s is %s\n", s.Name, s.Dir, state); err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "COMPONENT\tPID\tSTATE\tLOG")
	for _, k := range s.Components {
		state, pid := "dead", "-"
		if k.PID > 0 {
			pid = fmt.Sprint(k.PID)
		}
		if k.Alive {
			state = "alive"
			if k.NodeState != "" {
				state = k.NodeState
			}
		}
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", k.Name, pid, state, k.Log)
	}
	return tw.Flush()
}

func newDevEnvCommand(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "env",
		Short: `print what to export: eval "$(sbench dev env)"`,
		Args:  nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := openDev(*dir)
			if err != nil {
				return err
			}
			vars := map[string]string{}
			for _, v := range c.Env() {
				name, value, _ := strings.Cut(v, "=")
				vars[name] = value
				if !wantsJSON(cmd) {
					if _, err := fmt.Fprintf(cmd.OutOrStdout(), "export %s=%s\n", name, shellQuote(value)); err != nil {
						return err
					}
				}
			}
			if wantsJSON(cmd) {
				return writeDevJSON(cmd.OutOrStdout(), vars)
			}
			return nil
		},
	}
	exits(cmd, exitOK, exitFailed, exitUsage)
	return cmd
}

func newDevExecCommand(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec [--] COMMAND [ARGUMENT…]",
		Short: "run a command in the cluster's environment, with its exit status",
		Long: `Ends with the exit status of the command, or 128 and the number of the signal
that ended it.`,
		Args: nArgs(1, -1, "COMMAND"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := openDev(*dir)
			if err != nil {
				return err
			}
			return devExec(cmd, c.Environ(), args)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the command is the command's
	exits(cmd, exitOK, exitFailed, exitUsage)
	return cmd
}

func devExec(cmd *cobra.Command, env, args []string) error {
	program, err := lookPathIn(env, args[0])
	if err != nil {
		return err
	}
	child := exec.Command(program, args[1:]...)
	child.Args[0] = args[0]
	child.Env, child.Stdin, child.Stdout, child.Stderr = env, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	// A terminal's signals reach the child by themselves; it decides what they
	// mean. Those sent to this process alone are passed on.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := child.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- child.Wait() }()
	for {
		select {
		case sig := <-signals:
			if sig == syscall.SIGTERM || sig == syscall.SIGHUP {
				_ = child.Process.Signal(sig)
			}
		case err := <-done:
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				return err
			}
			if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
				return &failure{status: 128 + int(ws.Signal()), quiet: true}
			}
			return &failure{status: exit.ExitCode(), quiet: true}
		}
	}
}

// lookPathIn finds a program by the PATH of env, as a shell with env would.
func lookPathIn(env []string, name string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, nil
	}
	for _, v := range env {
		path, ok := strings.CutPrefix(v, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(path) {
			candidate := filepath.Join(dir, name)
			if info, err := os.Stat(candidate); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
				return candidate, nil
			}
		}
	}
	return "", fmt.Errorf("%s: command not found", name)
}

func writeDevJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// shellQuote makes one inert word for a POSIX shell.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
