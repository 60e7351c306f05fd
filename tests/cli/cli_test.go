// Package cli_test runs sbench's commands as a user's shell would: each script
// in testdata is a session with the real entry points.
package cli_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"sbench/internal/cli"
	"sbench/internal/daemon"
	"sbench/internal/sim"
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
		"sbench-sim": func() {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
			defer stop()
			os.Exit(sim.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

func TestCommands(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": status,
			"await":  await,
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

// await waits until a file is there: await sim.sock.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await FILE")
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
	}
	ts.Fatalf("%s did not appear within 30 s", args[0])
}

// status runs a command that must end with an exact exit status, or one of several:
// status 2 sbench validate bad.yaml, status 0|1 sbench bench load.yaml.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command [args...]")
	}
	want := strings.Split(args[0], "|")
	got := 0
	var exit *exec.ExitError
	switch err := ts.Exec(args[1], args[2:]...); {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v: %v", args[1:], err)
	}
	if !slices.Contains(want, strconv.Itoa(got)) {
		ts.Fatalf("%v: status %d, want %s", args[1:], got, args[0])
	}
}
