package cli

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/api"
)

func newWatchCommand(a *app) *cobra.Command {
	var seconds float64
	cmd := &cobra.Command{
		Use:   "watch [SWEEP]",
		Short: "show the queue or a sweep live",
		Long: `Redraws the queue, or a sweep with its settings, until Ctrl-C or until the sweep
has ended. Without a terminal it prints the view once.`,
		Args: nArgs(0, 1, "SWEEP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var sweep int64
			if len(args) > 0 {
				id, err := positiveID("sweep", args[0])
				if err != nil {
					return err
				}
				sweep = id
			}
			if !(seconds >= 0.2 && seconds <= 3600) {
				return usagef("--interval must be between 0.2 and 3600 seconds")
			}
			return a.watch(cmd.Context(), sweep, time.Duration(seconds*float64(time.Second)))
		},
	}
	cmd.Flags().Float64Var(&seconds, "interval", 2, "redraw every so many `seconds`")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func (a *app) watch(ctx context.Context, sweep int64, interval time.Duration) error {
	c := a.client()
	live := isTerminal(a.stdout) && a.env("TERM") != "dumb" && !a.json
	for {
		var frame bytes.Buffer
		// The frame is drawn first and shown at once, so that it does not flicker.
		done, err := a.drawFrame(ctx, c, sweep, &frame, live)
		if ctx.Err() != nil && live {
			return nil
		}
		if err != nil {
			return err
		}
		if live {
			a.print("\x1b[H\x1b[2J")
		}
		if _, err := a.stdout.Write(frame.Bytes()); err != nil {
			return err
		}
		if !live || done {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// drawFrame draws one view and reports whether nothing will change any more.
func (a *app) drawFrame(ctx context.Context, c *api.Client, sweep int64, w *bytes.Buffer, live bool) (bool, error) {
	colour := live && a.coloured(a.stdout)
	if sweep == 0 {
		sweeps, err := c.Sweeps(ctx, api.SweepFilter{Recent: time.Hour})
		if err != nil {
			return false, err
		}
		if a.json {
			return true, writeJSON(w, sweeps)
		}
		cols, err := choose(sweepColumns(a.now()), "", "id", "name", "user", "site", "state", "settings", "runs", "running", "waiting", "failed", "elapsed", "eta")
		if err != nil {
			return false, err
		}
		if live {
			_, _ = fmt.Fprintf(w, "sbench, %s\n\n", a.now().Format(time.TimeOnly))
		}
		tableOf(cols, sweeps).printAligned(w, colour, false)
		return false, nil
	}
	s, err := c.Sweep(ctx, sweep, false)
	if err != nil {
		return false, err
	}
	if a.json {
		return true, writeJSON(w, s)
	}
	eta := ""
	if s.ETA != nil && !s.Terminal() {
		eta = ", about " + span(s.ETA.Sub(a.now())) + " left"
	}
	_, _ = fmt.Fprintf(w, "sweep %d %s: %s\n%s %s%s\n\n", s.ID, printable(s.Name), s.State,
		bar(s.RunsTotal-s.RunsOpen(), s.RunsTotal, 40), progressLine(s.SweepSummary), eta)
	settingsTable(s.Settings).printAligned(w, colour, false)
	return s.Terminal(), nil
}
