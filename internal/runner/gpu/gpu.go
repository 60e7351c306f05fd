// Package gpu asks sbench-gpu, the helper that talks to NVML, and decodes its
// JSON. It promises that a hung or crashing driver costs a deadline and an
// error, never a hang of the runner.
package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"sbench/internal/fingerprint"
	"sbench/internal/proc"
)

// Helper is the program on this node.
type Helper struct {
	Path       string
	Deadline   time.Duration // of one question
	Supervisor *proc.Supervisor
}

// ErrUnavailable says that the helper gave no answer that can be used.
var ErrUnavailable = errors.New("no GPU data")

// snapshotBytes bounds what the helper may print: a node of sixteen devices with
// all their processes is far below.
const snapshotBytes = 4 << 20

// Snapshot asks for the state of all devices.
func (h Helper) Snapshot(ctx context.Context) (*fingerprint.GPUs, error) {
	ctx, cancel := context.WithTimeout(ctx, h.Deadline)
	defer cancel()
	out, stderr, exit, err := h.Supervisor.Output(ctx, proc.Spec{
		Argv: []string{h.Path, "snapshot"},
		Env:  environ(),
	}, snapshotBytes)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("%w: sbench-gpu did not answer within %v: the driver hangs", ErrUnavailable, h.Deadline)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if exit.Code != 0 {
		var e fingerprint.GPUError
		if json.Unmarshal(out, &e) == nil && e.Error != "" {
			return nil, fmt.Errorf("%w: %s (%s)", ErrUnavailable, e.Error, e.Code)
		}
		return nil, fmt.Errorf("%w: sbench-gpu ended with %v: %.200s", ErrUnavailable, exit, stderr)
	}
	var g fingerprint.GPUs
	if err := json.Unmarshal(out, &g); err != nil {
		return nil, fmt.Errorf("%w: decode snapshot: %w", ErrUnavailable, err)
	}
	if g.Version != fingerprint.GPUVersion {
		return nil, fmt.Errorf("%w: snapshot of version %d, this runner reads %d", ErrUnavailable, g.Version, fingerprint.GPUVersion)
	}
	return &g, nil
}

// environ is what the helper may see: where the driver's library is found.
func environ() []string {
	var env []string
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}
