package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/api"
)

type queueOptions struct {
	users, accounts, states []string
	me, all, start, runs    bool
	sweep                   int64
	format                  string
	table                   tableFlags
}

func newQueueCommand(a *app) *cobra.Command {
	o := &queueOptions{}
	cmd := &cobra.Command{
		Use:     "queue [flags]",
		Aliases: []string{"squeue"},
		Short:   "list sweeps and runs",
		Long: `Lists the sweeps that have not ended, oldest first, as squeue lists jobs. With
--sweep or --runs it lists runs. The ETA is the sweep's own pace so far carried
on; it is empty until a run has ended. The MAKESPAN is the time from its submission
(or from when it might begin) to the end of its last run: for a sweep that has not
ended, to the ETA.`,
		Example: "sbench queue -u $USER\nsbench queue --sweep 17 -t failed,dead\nsbench queue -P -o id,name,state",
		Args:    nArgs(0, 0, ""),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(a, cmd) },
	}
	f := cmd.Flags()
	f.StringSliceVarP(&o.users, "user", "u", nil, "only sweeps of these `users`")
	f.BoolVar(&o.me, "me", false, "only my own sweeps")
	f.StringSliceVarP(&o.accounts, "account", "A", nil, "only sweeps of these `accounts`")
	f.StringSliceVarP(&o.states, "states", "t", nil, "only sweeps or runs in these `states`; all for ended ones too")
	f.Int64Var(&o.sweep, "sweep", 0, "the runs of sweep `ID`")
	f.BoolVarP(&o.runs, "runs", "r", false, "one line per run instead of one per sweep")
	f.BoolVarP(&o.all, "all", "a", false, "also sweeps that ended in the last day")
	f.BoolVar(&o.start, "start", false, "show when held and waiting sweeps may begin, and when all are expected to end")
	f.StringVarP(&o.format, "format", "o", "", "the `columns`, separated by commas")
	addTableFlags(f, &o.table)
	exits(cmd, exitOK, exitFailed, exitUsage, exitUnreachable)
	return cmd
}

// column is one field that -o can name.
type column[T any] struct {
	name string // as in -o; the head is its upper case
	num  bool
	text func(T) any
}

// choose picks the columns that format names.
func choose[T any](all []column[T], format string, defaults ...string) ([]column[T], error) {
	names := defaults
	if format != "" {
		names = strings.Split(format, ",")
	}
	var out []column[T]
	for _, n := range names {
		i := slices.IndexFunc(all, func(c column[T]) bool { return c.name == strings.ToLower(strings.TrimSpace(n)) })
		if i < 0 {
			known := make([]string, len(all))
			for j, c := range all {
				known[j] = c.name
			}
			return nil, &failure{status: exitUsage, message: fmt.Sprintf("--format: unknown column %q", n), hint: "columns: " + strings.Join(known, ",")}
		}
		out = append(out, all[i])
	}
	return out, nil
}

func tableOf[T any](cols []column[T], rows []T) *table {
	t := &table{}
	for _, c := range cols {
		t.head = append(t.head, strings.ToUpper(c.name))
		t.right = append(t.right, c.num)
	}
	for _, r := range rows {
		fields := make([]any, len(cols))
		for i, c := range cols {
			fields[i] = c.text(r)
		}
		t.add(fields...)
	}
	return t
}

// sweepColumns are the columns of sweeps; now is for what goes on.
func sweepColumns(now time.Time) []column[api.SweepSummary] {
	type s = api.SweepSummary
	ended := func(s s) int { return s.RunsTotal - s.RunsOpen() }
	return []column[s]{
		{"id", true, func(s s) any { return s.ID }},
		{"name", false, func(s s) any { return s.Name }},
		{"user", false, func(s s) any { return s.User }},
		{"account", false, func(s s) any { return dash(s.Account) }},
		{"site", false, func(s s) any { return s.Site }},
		{"priority", false, func(s s) any { return s.Priority }},
		{"state", false, func(s s) any { return stateCell(s.State) }},
		{"settings", true, func(s s) any { return fmt.Sprintf("%d/%d", s.SettingsFinal, s.SettingsTotal) }},
		{"complete", true, func(s s) any { return s.SettingsComplete }},
		{"runs", true, func(s s) any { return fmt.Sprintf("%d/%d", ended(s), s.RunsTotal) }},
		{"running", true, func(s s) any { return s.Runs["running"] + s.Runs["provisioning"] }},
		{"waiting", true, func(s s) any { return s.Runs["pending"] + s.Runs["submitted"] }},
		{"failed", true, func(s s) any { return s.Runs["failed"] + s.Runs["dead"] }},
		{"gpu_hours", true, func(s s) any { return number(s.GPUHours) }},
		{"submitted", false, func(s s) any { return clock(&s.SubmittedAt) }},
		{"begin", false, func(s s) any { return clock(s.BeginAt) }},
		{"ended", false, func(s s) any { return clock(s.EndedAt) }},
		{"elapsed", true, func(s s) any {
			if s.EndedAt == nil {
				return span(now.Sub(s.SubmittedAt))
			}
			return span(s.EndedAt.Sub(s.SubmittedAt))
		}},
		{"makespan", true, func(s s) any {
			if s.MakespanS == nil {
				return "-"
			}
			return span(time.Duration(*s.MakespanS * float64(time.Second)))
		}},
		{"eta", false, func(s s) any { return clock(s.ETA) }},
		{"dependency", false, func(s s) any { return dash(s.Dependency) }},
		{"reason", false, func(s s) any { return dash(s.Reason) }},
	}
}

func runColumns() []column[api.Run] {
	type r = api.Run
	return []column[r]{
		{"run", true, func(r r) any { return r.ID }},
		{"sweep", true, func(r r) any { return r.SweepID }},
		{"setting", false, func(r r) any { return short(r.SettingHash) }},
		{"repeat", true, func(r r) any { return r.Repeat }},
		{"user", false, func(r r) any { return r.User }},
		{"site", false, func(r r) any { return r.Site }},
		{"state", false, func(r r) any { return stateCell(r.State) }},
		{"jobid", false, func(r r) any { return dashPtr(r.SlurmJobID) }},
		{"batch", false, func(r r) any { return dashPtr(r.BatchToken) }},
		{"updated", false, func(r r) any { return clock(&r.UpdatedAt) }},
		{"reason", false, func(r r) any { return dash(r.Reason) }},
	}
}

func (o *queueOptions) run(a *app, cmd *cobra.Command) error {
	ctx, c := cmd.Context(), a.client()
	if o.me {
		v, err := c.Version(ctx)
		if err != nil {
			return err
		}
		o.users = append(o.users, v.User)
	}
	states := slices.DeleteFunc(slices.Clone(o.states), func(s string) bool { return s == "all" })
	if len(states) != len(o.states) {
		o.all = true
	}
	filter := api.SweepFilter{Users: o.users, Accounts: o.accounts}
	if o.all {
		filter.Recent = 24 * time.Hour
	}
	if o.sweep != 0 || o.runs {
		return o.listRuns(a, cmd, c, filter, states)
	}
	filter.States = states
	sweeps, err := c.Sweeps(ctx, filter)
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.stdout, sweeps)
	}
	defaults := []string{"id", "name", "user", "account", "site", "state", "settings", "runs", "running", "waiting", "failed", "elapsed", "makespan", "eta", "reason"}
	if o.start {
		defaults = []string{"id", "name", "user", "state", "runs", "begin", "dependency", "eta", "reason"}
	}
	cols, err := choose(sweepColumns(a.now()), o.format, defaults...)
	if err != nil {
		return err
	}
	tableOf(cols, sweeps).print(a, o.table)
	return nil
}

func (o *queueOptions) listRuns(a *app, cmd *cobra.Command, c *api.Client, filter api.SweepFilter, states []string) error {
	ids := []int64{o.sweep}
	if o.sweep == 0 {
		sweeps, err := c.Sweeps(cmd.Context(), filter)
		if err != nil {
			return err
		}
		ids = ids[:0]
		for _, s := range sweeps {
			ids = append(ids, s.ID)
		}
	}
	runs := []api.Run{}
	for _, id := range ids {
		rs, err := c.SweepRuns(cmd.Context(), id, states)
		if err != nil {
			return err
		}
		runs = append(runs, rs...)
	}
	if a.json {
		return writeJSON(a.stdout, runs)
	}
	cols, err := choose(runColumns(), o.format, "run", "sweep", "setting", "repeat", "user", "state", "jobid", "updated", "reason")
	if err != nil {
		return err
	}
	tableOf(cols, runs).print(a, o.table)
	return nil
}

func stateCell(s string) cell {
	st := plain
	switch s {
	case "complete":
		st = green
	case "running", "provisioning", "completing":
		st = cyan
	case "failed", "dead", "incomplete":
		st = red
	case "held", "cancelled":
		st = yellow
	}
	return cell{s, st}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func dashPtr(s *string) string {
	if s == nil {
		return "-"
	}
	return dash(*s)
}

// positiveID reads the number of a sweep or a run.
func positiveID(what, s string) (int64, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id <= 0 {
		return 0, &failure{status: exitUsage, message: fmt.Sprintf("%q is not the number of a %s", s, what)}
	}
	return id, nil
}
