// Package runner executes the runs of a task on a compute node: it claims the
// task, and per run verifies, starts the engine, measures and seals. It promises
// that every path, also a signal or a panic, ends with the engine's whole
// process tree gone and, where the disk takes it, a sealed attempt that says
// what happened. It refuses to measure what is not the pinned environment.
package runner

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"sbench/internal/lifecycle"
	"sbench/internal/version"
)

const usage = `usage: sbench-runner COMMAND [flags]

Executes the runs of one task of a batch. The job's script calls it.

  claim --batch DIR --digest SHA256 --task N
        claims the task for this job, once and for all, and prints the runs that
        are still to do: one a line, its id, its time limit in seconds, and what
        srun --gpu-freq is to be told, if anything. Prints nothing where another job
        has the claim.
  start --batch DIR --digest SHA256 --task N --run ID
        notes that this job begins a run; 16 where it was given up meanwhile and
        must not be begun.
  run --batch DIR --digest SHA256 --task N --run ID
        executes one run and seals an attempt.
  clean [--batch DIR --digest SHA256] [--scratch DIR]... [--cache DIR]... [--uid UID]
        removes what runners that were killed left on this node: processes, shared
        memory, scratch folders and half copies. Prints a line for each.
  version
        prints the version.

exit status of run:
`

// Main is the program: it returns the exit status. ctx ends when the process is
// told to stop.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		printUsage(stderr)
		return 2
	}
	switch args[0] {
	case "claim":
		return claimMain(ctx, args[1:], stdout, stderr)
	case "start":
		return startMain(args[1:], stderr)
	case "run":
		return runMain(ctx, args[1:], stderr)
	case "clean":
		return cleanMain(ctx, args[1:], stdout, stderr)
	case "version", "--version", "-version":
		fmt.Fprintln(stdout, "sbench-runner", version.Long())
		return 0
	case "help", "--help", "-help", "-h":
		printUsage(stdout)
		return 0
	}
	fmt.Fprintf(stderr, "sbench-runner: unknown command %q\n", args[0])
	printUsage(stderr)
	return 2
}

func printUsage(w io.Writer) {
	fmt.Fprint(w, usage)
	for _, c := range lifecycle.Classes() {
		if c.Code >= 0 {
			fmt.Fprintf(w, "  %-4d%s\n", c.Code, c.Meaning)
		}
	}
}

// place says which part of which batch a command is about.
type place struct {
	batch, digest string
	task          int
	run           int64
	runs          []int64 // run, and those after it that its server may serve
}

func parsePlace(name string, args []string, withRun bool, stderr io.Writer) (place, error) {
	p := place{task: -1}
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&p.batch, "batch", "", "the batch's `folder`")
	f.StringVar(&p.digest, "digest", "", "`digest` of its batch.json")
	f.IntVar(&p.task, "task", -1, "`index` of the task")
	if withRun {
		f.Func("run", "`id` of the run, or with commas of several that one server may serve", func(list string) error {
			for _, text := range strings.Split(list, ",") {
				id, err := strconv.ParseInt(text, 10, 64)
				if err != nil || id <= 0 || slices.Contains(p.runs, id) {
					return fmt.Errorf("%q is no list of ids", list)
				}
				p.runs = append(p.runs, id)
			}
			p.run = p.runs[0]
			return nil
		})
	}
	if err := f.Parse(args); err != nil {
		return p, err
	}
	if f.NArg() > 0 {
		return p, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if p.batch == "" || p.digest == "" || p.task < 0 || withRun && p.run <= 0 {
		return p, errors.New("--batch, --digest, --task and, for run, --run are needed")
	}
	return p, nil
}

func runMain(ctx context.Context, args []string, stderr io.Writer) int {
	p, err := parsePlace("run", args, true, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "sbench-runner run: %v\n", err)
		return 2
	}
	job, err := jobFromEnv(os.Getenv)
	if err != nil {
		fmt.Fprintf(stderr, "sbench-runner run: %v\n", err)
		return lifecycle.ExitInternal.Code()
	}
	return execute(ctx, p, job, stderr).Code()
}
