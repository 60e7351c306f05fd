// Command sbench-runner executes the runs of a task on a compute node.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"sbench/internal/runner"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	return runner.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
}
