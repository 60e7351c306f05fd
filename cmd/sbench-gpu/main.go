//go:build cgo

// Command sbench-gpu asks NVIDIA's management library about the node's devices.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"sbench/internal/nvml"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return nvml.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
}
