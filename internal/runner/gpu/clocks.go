package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sbench/internal/fingerprint"
	"sbench/internal/proc"
)

// Locker is the site's command that locks clocks: with sbench-gpu's options, and
// with the rights that NVML wants for it.
type Locker struct {
	Command    []string
	Deadline   time.Duration // of one call
	Supervisor *proc.Supervisor
}

// Lock fixes the SM clock, and the memory clock where that is not 0, of the
// devices with the given UUIDs; in MHz.
func (l Locker) Lock(ctx context.Context, sm, mem int, uuids []string) error {
	args := []string{"lock-clocks", "--sm", strconv.Itoa(sm)}
	if mem > 0 {
		args = append(args, "--mem", strconv.Itoa(mem))
	}
	return l.call(ctx, append(args, "--gpus", strings.Join(uuids, ",")))
}

// Reset undoes Lock.
func (l Locker) Reset(ctx context.Context, uuids []string) error {
	return l.call(ctx, []string{"reset-clocks", "--gpus", strings.Join(uuids, ",")})
}

func (l Locker) call(ctx context.Context, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, l.Deadline)
	defer cancel()
	out, stderr, exit, err := l.Supervisor.Output(ctx, proc.Spec{
		Argv: append(append([]string{}, l.Command...), args...), Env: environ(),
	}, snapshotBytes)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer within %v: the driver hangs", args[0], l.Deadline)
	case err != nil:
		return fmt.Errorf("%s: %w", args[0], err)
	case exit.Code != 0:
		var e fingerprint.GPUError
		if json.Unmarshal(out, &e) == nil && e.Error != "" {
			return fmt.Errorf("%s: %s (%s)", args[0], e.Error, e.Code)
		}
		return fmt.Errorf("%s: %v: %.200s", args[0], exit, stderr)
	}
	return nil
}
