//go:build cgo

package nvml

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"sbench/internal/fingerprint"
	"sbench/internal/version"
)

const usage = `usage: sbench-gpu COMMAND [flags]

Asks NVIDIA's management library. Prints JSON; null is "not supported", never 0.

  snapshot                       prints the state of every device: one document
  sample [--period 100ms]        prints one line per device and period, until SIGTERM
  lock-clocks --sm MHZ [--mem MHZ] [--gpus 0,1]
  reset-clocks [--gpus 0,1]
                                 need root; a device is its number or its UUID
  version

exit status: 0 done, 1 a fault of the library or driver, with {"error", "code"}
on stdout, 2 wrong usage, 3 no driver or library
`

// The exit statuses.
const (
	exitFault    = 1
	exitUsage    = 2
	exitNoDriver = 3
)

// Main is the program sbench-gpu: it returns the exit status.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	f := flag.NewFlagSet("sbench-gpu "+args[0], flag.ContinueOnError)
	f.SetOutput(stderr)
	var err error
	switch args[0] {
	case "snapshot":
		if err = parse(f, args[1:]); err == nil {
			err = printSnapshot(stdout)
		}
	case "sample":
		period := f.Duration("period", 100*time.Millisecond, "time between samples")
		if err = parse(f, args[1:]); err == nil && *period < time.Millisecond {
			err = usageError("--period must be 1ms or more")
		}
		if err == nil {
			err = Sample(ctx, stdout, *period)
		}
	case "lock-clocks":
		sm, mem := f.Uint("sm", 0, "SM clock in `MHz`"), f.Uint("mem", 0, "memory clock in `MHz`; 0 leaves it")
		gpus := f.String("gpus", "", "`numbers` or UUIDs of the devices; all by default")
		if err = parse(f, args[1:]); err == nil && *sm == 0 {
			err = usageError("--sm is needed")
		}
		var which []string
		if err == nil {
			which, err = selectors(*gpus)
		}
		if err == nil {
			err = LockClocks(which, uint32(*sm), uint32(*mem))
		}
	case "reset-clocks":
		gpus := f.String("gpus", "", "`numbers` or UUIDs of the devices; all by default")
		err = parse(f, args[1:])
		var which []string
		if err == nil {
			which, err = selectors(*gpus)
		}
		if err == nil {
			err = ResetClocks(which)
		}
	case "version", "--version":
		fmt.Fprintln(stdout, "sbench-gpu", version.Long())
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
	default:
		err = usageError("unknown command " + strconv.Quote(args[0]))
	}
	return report(err, stdout, stderr)
}

type usageError string

func (e usageError) Error() string { return string(e) }

func parse(f *flag.FlagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		return usageError(err.Error())
	}
	if f.NArg() > 0 {
		return usageError("unexpected argument " + strconv.Quote(f.Arg(0)))
	}
	return nil
}

// selectors reads numbers and UUIDs of devices. Numbers are NVML's in this very
// process: another one, in another cgroup, may count other devices.
func selectors(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	out := strings.Split(list, ",")
	for _, part := range out {
		if _, err := strconv.ParseUint(part, 10, 16); err != nil && !strings.HasPrefix(part, "GPU-") {
			return nil, usageError(fmt.Sprintf("--gpus: %q is neither a number nor a UUID", part))
		}
	}
	return out, nil
}

func printSnapshot(w io.Writer) error {
	g, err := Snapshot()
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(g)
}

// report prints an error where the caller looks for it and returns the status.
func report(err error, stdout, stderr io.Writer) int {
	var wrong usageError
	var f *Fault
	switch {
	case err == nil:
		return 0
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "sbench-gpu: %v\n", err)
		return exitUsage
	}
	code := "unknown"
	if errors.As(err, &f) {
		code = f.Code
	}
	_ = json.NewEncoder(stdout).Encode(fingerprint.GPUError{Error: err.Error(), Code: code})
	fmt.Fprintf(stderr, "sbench-gpu: %v\n", err)
	if code == "no_library" || code == "no_driver" {
		return exitNoDriver
	}
	return exitFault
}
