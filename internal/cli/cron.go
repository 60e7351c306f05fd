package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sbench/internal/api"
	"sbench/internal/unit"
)

// cronOptions are the flags of add and update beside those of submit.
type cronOptions struct {
	schedule, zone, overlap, catchUp, atWindowEnd string
	jitter, window                                string
}

func (o *cronOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.schedule, "schedule", "", "when it is due: the five `fields` of crontab, or @daily, @weekly, …")
	f.StringVar(&o.zone, "time-zone", "", "the time `zone` of the schedule, such as Europe/Berlin (default: the daemon's)")
	f.StringVar(&o.overlap, "overlap", "", "what a due time does while the last sweep still runs, the `policy`: skip (the default), queue, cancel-old")
	f.StringVar(&o.catchUp, "catch-up", "", "which due times that passed while no daemon ran are made up for, the `policy`: last (the default), none, all")
	f.StringVar(&o.jitter, "jitter", "", "delay each firing by up to `duration`, always the same for one due time")
	f.StringVar(&o.window, "window", "", "the sweep should end within `duration` of its due time; 0 for no window")
	f.StringVar(&o.atWindowEnd, "at-window-end", "", "what happens to a sweep that has not: `policy` continue (the default) or cancel")
}

// request turns the flags into the API's request.
func (o *cronOptions) request(name string) (api.CronRequest, error) {
	req := api.CronRequest{
		Name: name, Schedule: o.schedule, TimeZone: o.zone, Overlap: o.overlap, CatchUp: o.catchUp, AtWindowEnd: o.atWindowEnd,
	}
	for _, d := range []struct {
		flag, text string
		into       **int64
	}{{"jitter", o.jitter, &req.JitterS}, {"window", o.window, &req.WindowS}} {
		if d.text == "" {
			continue
		}
		v, err := unit.Duration(d.text)
		if d.text == "0" {
			v, err = 0, nil
		}
		if err != nil || v < 0 {
			return req, usagef("--%s %q is not a duration: write 30m or 8h", d.flag, d.text)
		}
		s := int64(v / time.Second)
		*d.into = &s
	}
	return req, nil
}

func newCronCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cron COMMAND",
		Short: "submit a sweep again and again, on a schedule",
		Long: `A schedule submits its sweep at each due time, as its owner, whose rights are
checked again then. The file, its options and the settings that it expands to are
frozen when it is added; cron update changes them.

A schedule that names hours is due at each of its local times exactly once: one
that the clock is set forward over is due at the change, one that it is set back
over is due the first time. A schedule with * for the hour goes by real hours.`,
	}
	cmd.AddCommand(newCronAddCommand(a), newCronListCommand(a), newCronShowCommand(a), newCronNextCommand(a), newCronUpdateCommand(a),
		newCronActCommand(a, api.CronPause, "stop following a schedule", "Due times that pass until sbench cron resume are not made up for; what was\nsubmitted goes on."),
		newCronActCommand(a, api.CronResume, "follow a schedule again", "It is due again from now on."),
		newCronRunCommand(a),
		newCronActCommand(a, api.CronRemove, "remove a schedule", "What was submitted goes on, and what waits is dropped."))
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newCronAddCommand(a *app) *cobra.Command {
	o, s := &cronOptions{}, &submitOptions{}
	cmd := &cobra.Command{
		Use:   "add NAME --schedule FIELDS [flags] SWEEP.yaml",
		Short: "add a schedule",
		Long: `Freezes the sweep file with its flags, admits it on trial, and submits it at each
due time. The flags of sbench submit count as they do there; --begin, --hold and
--dependency do not go with a schedule. reuse is off unless the file asks for it.`,
		Example: `sbench cron add nightly --schedule "0 22 * * *" --window 8h nightly.yaml
sbench cron add hourly --schedule "15 * * * *" --time-zone UTC --overlap queue --priority bulk small.yaml`,
		Args: nArgs(2, 2, "NAME and SWEEP.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.schedule == "" {
				return &failure{status: exitUsage, message: "missing flag: --schedule", hint: `for every night at ten: --schedule "0 22 * * *"`}
			}
			req, err := a.cronRequest(cmd, o, args[0], args[1])
			if err != nil {
				return err
			}
			resp, err := a.client().AddCron(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.cronAnswer(resp, "Added schedule")
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.AddFlags(f)
	s.AddFlags(f)
	s.addJobFlags(f)
	hideUnscheduled(f)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

// hideUnscheduled keeps what a schedule refuses out of its help.
func hideUnscheduled(f *pflag.FlagSet) {
	for _, name := range []string{"begin", "hold", "dependency"} {
		f.Lookup(name).Hidden = true
	}
}

// cronRequest reads the file and everything that is said about it.
func (a *app) cronRequest(cmd *cobra.Command, o *cronOptions, name, path string) (api.CronRequest, error) {
	req, err := o.request(name)
	if err != nil {
		return req, err
	}
	src, err := a.load(cmd.Flags(), path)
	if err != nil {
		return req, err
	}
	if src.options.Gres == "" {
		if _, err := expand(src.file, src.shown, src.options, nil); err != nil {
			return req, err
		}
	}
	a.warn(src.warnings)
	req.FileName, req.File, req.Options = src.shown, string(src.text), &src.options
	return req, nil
}

func (a *app) cronAnswer(resp api.CronResponse, did string) error {
	for _, n := range resp.Notes {
		a.message("note: %s", n)
	}
	if a.json {
		return writeJSON(a.stdout, resp)
	}
	c := resp.Cron
	a.print("%s %s: %s, %s, about %.1f GPU-hours each, next %s\n", did, c.Name, plural(c.Settings, "setting"), plural(c.Runs, "run"), c.GPUHours, clock(c.NextAt))
	return nil
}

func newCronUpdateCommand(a *app) *cobra.Command {
	o, s := &cronOptions{}, &submitOptions{}
	cmd := &cobra.Command{
		Use:   "update NAME [flags] [SWEEP.yaml]",
		Short: "change a schedule, or freeze its sweep anew",
		Long: `Changes what the flags name and keeps the rest. With a file, the file and its
flags take the place of the frozen ones; without one, the frozen file is admitted
again, and the settings that it expands to now are frozen. Only the owner can.`,
		Example: "sbench cron update nightly nightly.yaml\nsbench cron update nightly --schedule \"30 21 * * *\"",
		Args:    nArgs(1, 2, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var req api.CronRequest
			var err error
			if len(args) == 2 {
				req, err = a.cronRequest(cmd, o, args[0], args[1])
			} else {
				if given := submitFlagsGiven(cmd.Flags()); given != "" {
					return usagef("--%s goes with the sweep file: give both, or neither", given)
				}
				req, err = o.request(args[0])
			}
			if err != nil {
				return err
			}
			resp, err := a.client().UpdateCron(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.cronAnswer(resp, "Updated schedule")
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.AddFlags(f)
	s.AddFlags(f)
	s.addJobFlags(f)
	hideUnscheduled(f)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

// submitFlagsGiven names a flag of submit that was given.
func submitFlagsGiven(f *pflag.FlagSet) string {
	of := submitFlags(&submitOptions{})
	given := ""
	f.Visit(func(fl *pflag.Flag) {
		if of.Lookup(fl.Name) != nil {
			given = fl.Name
		}
	})
	return given
}

func newCronListCommand(a *app) *cobra.Command {
	var t tableFlags
	var user string
	var all bool
	cmd := &cobra.Command{
		Use: "list", Short: "list schedules", Args: nArgs(0, 0, ""),
		Long: `Lists one's own schedules. --all lists everybody's, for operators.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all {
				user = "*"
			}
			list, err := a.client().Crons(cmd.Context(), user)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, list)
			}
			tab := newTable("NAME", "USER", "SCHEDULE", "TIME_ZONE", "SITE", "RUNS>", "GPU_HOURS>", "NEXT", "LAST", "SWEEP>", "WINDOW")
			for _, c := range list {
				next, last, sweep, window := cell{clock(c.NextAt), plain}, cell{"-", plain}, "-", cell{"-", plain}
				if c.PausedAt != nil {
					next = cell{"paused", yellow}
				}
				if len(c.Firings) > 0 {
					last, sweep, window = firingCells(c.Firings[0])
				}
				tab.add(c.Name, c.User, c.Schedule, c.TimeZone, c.Site, c.Runs, fmt.Sprintf("%.1f", c.GPUHours), next, last, sweep, window)
			}
			tab.print(a, t)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&user, "user", "u", "", "the schedules of `user`, for operators")
	f.BoolVar(&all, "all", false, "everybody's schedules, for operators")
	addTableFlags(f, &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func firingCells(f api.CronFiring) (state cell, sweep string, window cell) {
	state, sweep, window = cell{f.State, plain}, "-", cell{"-", plain}
	switch f.State {
	case "refused":
		state.style = red
	case "skipped", "waiting":
		state.style = yellow
	}
	if f.SweepID != nil {
		sweep = strconv.FormatInt(*f.SweepID, 10)
	}
	switch {
	case f.WindowMet != nil && *f.WindowMet:
		window = cell{"met", green}
	case f.WindowMet != nil:
		window = cell{"missed", red}
	case f.WindowEnd != nil:
		window = cell{"until " + clock(f.WindowEnd), plain}
	}
	return state, sweep, window
}

func newCronShowCommand(a *app) *cobra.Command {
	var t tableFlags
	var user string
	cmd := &cobra.Command{
		Use: "show NAME", Short: "show a schedule and what became of its due times", Args: nArgs(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client().Cron(cmd.Context(), user, args[0])
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, c)
			}
			policy := fmt.Sprintf("overlap %s, catch-up %s, jitter %s", c.Overlap, c.CatchUp, unit.FormatDuration(time.Duration(c.JitterS)*time.Second))
			window := "none"
			if c.WindowS > 0 {
				window = fmt.Sprintf("%s, then %s", unit.FormatDuration(time.Duration(c.WindowS)*time.Second), c.AtWindowEnd)
			}
			next := clock(c.NextAt)
			if c.PausedAt != nil {
				next = fmt.Sprintf("paused by %s since %s", c.PausedBy, clock(c.PausedAt))
			}
			a.facts("schedule", c.Name, "user", c.User, "due", fmt.Sprintf("%s (%s)", c.Schedule, c.TimeZone), "policy", policy, "window", window,
				"site", c.Site, "sweep", fmt.Sprintf("%s, %s, about %.1f GPU-hours", plural(c.Settings, "setting"), plural(c.Runs, "run"), c.GPUHours),
				"file", c.FileDigest, "settings", c.SettingsDigest, "version", fmt.Sprintf("%d, of %s", c.Version, clock(&c.UpdatedAt)), "next", next)
			a.heading("Firings")
			tab := newTable("DUE", "STATE", "SWEEP>", "ENDED", "WINDOW", "REASON")
			for _, f := range c.Firings {
				state, sweep, met := firingCells(f)
				tab.add(clock(&f.DueAt), state, sweep, clock(f.EndedAt), met, dash(f.Reason))
			}
			tab.print(a, t)
			return nil
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "the schedule of `user`, for operators")
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newCronNextCommand(a *app) *cobra.Command {
	var t tableFlags
	var user string
	n := 5
	cmd := &cobra.Command{
		Use: "next NAME", Short: "list the due times to come", Args: nArgs(1, 1, "NAME"),
		Long: `Lists when a schedule is due, in its time zone, and when it fires with its jitter.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if n < 1 || n > 400 {
				return usagef("-n %d is not between 1 and 400", n)
			}
			next, err := a.client().CronNext(cmd.Context(), user, args[0], n)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, next)
			}
			tab := newTable("DUE", "FIRES")
			for _, d := range next.Due {
				tab.add(d.DueAt.Format("Mon 2006-01-02T15:04:05-07:00"), d.FireAt.Format("2006-01-02T15:04:05-07:00"))
			}
			tab.print(a, t)
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVarP(&n, "count", "c", n, "`how` many")
	f.StringVarP(&user, "user", "u", "", "the schedule of `user`, for operators")
	addTableFlags(f, &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newCronActCommand(a *app, action api.CronAction, short, long string) *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use: string(action) + " NAME", Short: short, Long: long, Args: nArgs(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			resp, err := a.client().ActCron(cmd.Context(), user, args[0], action)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, resp)
			}
			a.message("%s: schedule %s of %s", action, resp.Cron.Name, resp.Cron.User)
			return nil
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "the schedule of `user`, for operators")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

// firingWait is how long run looks what becomes of its firing.
const firingWait = 30 * time.Second

func newCronRunCommand(a *app) *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use: "run NAME", Short: "fire a schedule now", Args: nArgs(1, 1, "NAME"),
		Long: `Submits the frozen sweep as if it were due now, by the schedule's own overlap
policy, and prints the sweep's number. It changes nothing about the due times to
come.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, c := cmd.Context(), a.client()
			resp, err := c.ActCron(ctx, user, args[0], api.CronRun)
			if err != nil {
				return err
			}
			f, err := a.awaitFiring(ctx, c, user, resp)
			if err != nil {
				return err
			}
			if a.json {
				if err := writeJSON(a.stdout, f); err != nil {
					return err
				}
			}
			switch {
			case f.State == "refused":
				return &failure{status: exitRefused, message: "the firing was refused", reasons: []string{f.Reason}}
			case f.State == "skipped":
				return &failure{status: exitFailed, message: "the firing was skipped", reasons: []string{f.Reason}}
			case a.json:
			case f.SweepID != nil:
				a.print("Submitted sweep %d\n", *f.SweepID)
			default:
				a.message("the firing waits: %s", f.Reason)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "the schedule of `user`, for operators")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

// awaitFiring polls until the firing that was asked for does not wait any more.
func (a *app) awaitFiring(ctx context.Context, c *api.Client, user string, resp api.CronResponse) (api.CronFiring, error) {
	deadline := a.now().Add(firingWait)
	for {
		cron, err := c.Cron(ctx, user, resp.Cron.Name)
		if err != nil {
			return api.CronFiring{}, err
		}
		i := slices.IndexFunc(cron.Firings, func(f api.CronFiring) bool { return f.Manual && resp.DueAt != nil && f.DueAt.Equal(*resp.DueAt) })
		if i >= 0 && (cron.Firings[i].State != "waiting" || a.now().After(deadline)) {
			return cron.Firings[i], nil
		}
		if a.now().After(deadline) {
			return api.CronFiring{}, &failure{status: exitFailed, message: "the firing is not among the latest of the schedule"}
		}
		select {
		case <-ctx.Done():
			return api.CronFiring{}, ctx.Err()
		case <-time.After(a.poll):
		}
	}
}
