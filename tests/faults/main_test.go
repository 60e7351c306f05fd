// Package faults kills the daemon at its failpoints, and Slurm and PostgreSQL
// under it, while a sweep goes through a private cluster, and counts what was
// lost, measured twice or counted twice.
package faults

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
)

// The test binary is also the daemon and the runner, under their names.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "sbench-runner":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		os.Exit(quickRunner(ctx, os.Args[1:]))
	case "sbenchd":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := quickDaemon(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "sbenchd:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
