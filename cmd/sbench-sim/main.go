// Command sbench-sim is a simulated inference engine.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"sbench/internal/sim"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return sim.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}
