// Package cli_test runs sbench's commands as a user's shell would: each script
// in testdata is a session with the real entry points.
package cli_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"sbench/internal/cli"
	"sbench/internal/daemon"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sbench": func() {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
			defer stop()
			os.Exit(cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
		"sbenchd": func() {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
			defer stop()
			os.Exit(daemon.Main(ctx, os.Args[1:], os.Stdout, os.Stderr))
		},
	})
}

func TestCommands(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": status,
		},
		Setup: func(env *testscript.Env) error {
			// No daemon of this machine is to answer.
			env.Setenv("SBENCH_SOCKET", env.WorkDir+"/no.sock")
			return os.MkdirAll(env.WorkDir+"/home", 0o755)
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// status runs a command that must end with an exact exit status:
// status 2 sbench validate bad.yaml.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	switch err := ts.Exec(args[1], args[2:]...); {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v: %v", args[1:], err)
	}
	if got != want {
		ts.Fatalf("%v: status %d, want %d", args[1:], got, want)
	}
}
