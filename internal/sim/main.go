package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Exit codes of Main.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitDied   = 9 // the fault `die`
)

// Main runs the simulated engine until ctx ends, and returns the exit code. It
// says on stderr where it listens; stdin is not read.
func Main(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	c, err := parseFlags(args, stdout)
	switch {
	case errors.Is(err, errHelp):
		return exitDone
	case errors.Is(err, errVersion):
		fmt.Fprintf(stdout, "sbench-sim %s\n", build())
		return exitDone
	case err != nil:
		fmt.Fprintf(stderr, "sbench-sim: error: %v\nsbench-sim: hint: --help lists the flags\n", err)
		return exitUsage
	}
	err = Run(ctx, c, func(address string) {
		fmt.Fprintf(stderr, "sbench-sim: %s: listening on %s\n", build(), address)
	})
	switch {
	case errors.Is(err, errDied):
		fmt.Fprintf(stderr, "sbench-sim: %v\n", err)
		return exitDied
	case err != nil:
		fmt.Fprintf(stderr, "sbench-sim: error: %v\n", err)
		return exitFailed
	}
	return exitDone
}

// Run serves until ctx ends; listening is called once with the address in the
// form of --listen. Requests still running then are cut off.
func Run(ctx context.Context, c Config, listening func(address string)) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	clock, err := newClock()
	if err != nil {
		return err
	}
	wall := time.Now()
	c.Names = defaultNames(c.Names, wall)
	l, err := listen(ctx, c.Listen)
	if err != nil {
		return err
	}
	address := l.Addr().String()
	if l.Addr().Network() == "unix" {
		address = "unix:" + address
	}
	factors := c.Noise.draw(c.Seed, c.Names)
	e := &engine{
		config: c, clock: clock, scheduler: newScheduler(c.Limits, c.Cost), factor: factors.product(),
		ready: clock.now(), wake: make(chan struct{}, 1),
	}
	s := &server{
		config: c, engine: e, created: wall.Unix(), idPrefix: fmt.Sprintf("cmpl-%x-", e.ready),
		conns: map[*conn]bool{},
	}
	e.whole = s.whole
	if c.Log != "" {
		if e.journal, err = openJournal(c.Log); err != nil {
			return errors.Join(err, l.Close())
		}
		faults := make([]string, len(c.Faults))
		for i, f := range c.Faults {
			faults[i] = f.String()
		}
		e.journal.add(startRecord{"start", e.ready, wall, build(), c.Seed, faults, c.Names, factors, address, c.Limits.Batching, c.Limits.Slots})
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		served <- s.serve(l)
		stop() // an engine that nobody can reach is of no use
	}()
	listening(address)
	err = e.run(ctx)
	err = errors.Join(err, l.Close(), <-served)
	s.closeAll(errors.Is(err, errDied))
	e.abandon()
	s.wait.Wait()
	if e.journal != nil {
		e.journal.add(stopRecord{
			Kind: "stop", At: clock.now(), Finished: e.state.finished, Steps: e.scheduler.tally.steps, Overruns: e.state.overruns,
			LateP50: e.late.quantile(50), LateP99: e.late.quantile(99), LateMax: e.late.quantile(100),
		})
		err = errors.Join(err, e.journal.close())
	}
	return err
}
