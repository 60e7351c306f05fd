// Command sbenchd is the daemon behind sbench: see internal/daemon.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"sbench/internal/daemon"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := daemon.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
