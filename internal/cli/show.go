package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/api"
)

func newShowCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show COMMAND",
		Short: "show everything about a sweep, a setting or a run",
	}
	sub := func(use, short, long string, run func(*cobra.Command, string) error) {
		c := &cobra.Command{
			Use: use, Short: short, Long: long, Args: nArgs(1, 1, strings.Fields(use)[1]),
			RunE: func(cmd *cobra.Command, args []string) error { return run(cmd, args[0]) },
		}
		exits(c, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
		cmd.AddCommand(c)
	}
	sub("sweep ID", "show a sweep: its settings, their completeness and its history", "",
		func(cmd *cobra.Command, arg string) error { return showSweep(a, cmd, arg) })
	sub("setting HASH", "show a setting: its axes and its runs in all sweeps", "HASH is a setting_hash or the beginning of one.",
		func(cmd *cobra.Command, arg string) error { return showSetting(a, cmd, arg) })
	sub("run ID", "show a run: its attempts with their Slurm jobs, reasons and history", "",
		func(cmd *cobra.Command, arg string) error { return showRun(a, cmd, arg) })
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

// facts prints "key  value" lines, aligned.
func (a *app) facts(pairs ...string) {
	width := 0
	for i := 0; i+1 < len(pairs); i += 2 {
		width = max(width, len(pairs[i]))
	}
	colour := a.coloured(a.stdout)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			a.print("%s  %s\n", paint(colour, bold, fmt.Sprintf("%-*s", width, pairs[i])), printable(pairs[i+1]))
		}
	}
}

func (a *app) heading(text string) {
	a.print("\n%s\n", paint(a.coloured(a.stdout), bold, text))
}

func showSweep(a *app, cmd *cobra.Command, arg string) error {
	id, err := positiveID("sweep", arg)
	if err != nil {
		return err
	}
	s, err := a.client().Sweep(cmd.Context(), id, a.json)
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.stdout, s)
	}
	a.facts(
		"sweep", fmt.Sprint(s.ID), "name", s.Name, "state", s.State, "user", s.User, "account", s.Account,
		"site", s.Site+" ("+s.HardwareClass+" hardware)", "priority", s.Priority,
		"submitted", clock(&s.SubmittedAt), "begin", optionalClock(s.BeginAt), "dependency", s.Dependency, "reason", s.Reason, "ended", optionalClock(s.EndedAt), "eta", optionalClock(s.ETA),
		"gpu_hours", number(s.GPUHours)+" (forecast)",
		"settings", fmt.Sprintf("%d, %d final, %d complete", s.SettingsTotal, s.SettingsFinal, s.SettingsComplete),
		"runs", counts(s.Runs, s.RunsTotal), "locality", localityText(s.Locality), "options", optionsText(s.Options),
	)
	a.heading("Settings")
	settingsTable(s.Settings).print(a, tableFlags{})
	if len(s.Mail) > 0 {
		a.heading("Mail")
		t := newTable("AT", "EVENT", "TO", "STATE", "TRIES>", "ERROR")
		for _, m := range s.Mail {
			t.add(clock(&m.At), m.Event, m.To, m.State, m.Tries, dash(m.Error))
		}
		t.print(a, tableFlags{})
	}
	a.transitions(s.Transitions)
	return nil
}

// localityText is "" where no task has loaded a checkpoint yet.
func localityText(l api.Locality) string {
	if l.TaskStarts == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d task starts found their checkpoint warm", l.WarmTaskStarts, l.TaskStarts)
}

// settingsTable lists the settings of a sweep with the axes that tell them apart.
func settingsTable(settings []api.SettingSummary) *table {
	axes := make([]map[string]any, len(settings))
	for i, st := range settings {
		axes[i] = st.Axes
	}
	moving := movingAxes(axes)
	t := newTable(append(append([]string{"SETTING"}, labels(moving)...), "VALID>", "FINAL", "RUNS")...)
	for _, st := range settings {
		row := []any{short(st.SettingHash)}
		for _, k := range moving {
			row = append(row, axisText(st.Axes[k]))
		}
		t.add(append(row, fmt.Sprintf("%d/%d", st.NValid, st.NTotal), yesNo(st.IsFinal), counts(st.Runs, st.NTotal))...)
		if a := st.Adaptive; a != nil && a.Decided != "" {
			t.note(a.Decided)
		}
		for _, r := range st.Reasons {
			t.note(r)
		}
	}
	return t
}

func showSetting(a *app, cmd *cobra.Command, arg string) error {
	if err := checkHash(arg); err != nil {
		return err
	}
	s, err := a.client().Setting(cmd.Context(), arg)
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.stdout, s)
	}
	sweeps := make([]string, len(s.Sweeps))
	for i, id := range s.Sweeps {
		sweeps[i] = fmt.Sprint(id)
	}
	a.facts("setting", s.SettingHash, "series", s.SeriesHash, "sweeps", strings.Join(sweeps, ", "))
	a.heading("Axes")
	pairs := []string{}
	for _, k := range slices.Sorted(maps.Keys(s.Axes)) {
		pairs = append(pairs, k, axisText(s.Axes[k]))
	}
	a.facts(pairs...)
	a.settingResults(s)
	a.heading("Runs")
	cols, err := choose(runColumns(), "", "run", "sweep", "repeat", "state", "jobid", "updated", "reason")
	if err != nil {
		return err
	}
	tableOf(cols, s.Runs).print(a, tableFlags{})
	return nil
}

// settingResults prints what was measured of a setting, and how the number of its
// runs came about.
func (a *app) settingResults(s api.Setting) {
	if len(s.Results) > 0 {
		a.heading("Results")
		t := newTable("SWEEP>", "VERSION>", "VALID>", "FINAL", "NODES>", "REPRODUCIBILITY>", "VERDICTS")
		for _, r := range s.Results {
			t.add(r.SweepID, r.Version, fmt.Sprintf("%d/%d", r.NValid, r.NTotal), yesNo(r.IsFinal), r.NNodes, number(r.Reproducibility),
				dash(strings.Join(labelled(r.Verdicts, r.Mixed), ", ")))
			for _, w := range r.Warnings {
				t.note(w)
			}
		}
		t.print(a, tableFlags{})
	}
	if len(s.Decisions) == 0 {
		return
	}
	a.heading("Decisions about the number of runs")
	t := newTable("SWEEP>", "AT", "RUNS>", "VALID>", "ADDED>", "OUTCOME", "REASON")
	for _, d := range s.Decisions {
		t.add(d.SweepID, clock(&d.DecidedAt), d.NPlanned, d.NValid, d.Added, d.Outcome, d.Reason)
	}
	t.print(a, tableFlags{})
}

// labelled are the verdicts, with mixed where the runs realized different
// environments.
func labelled(verdicts []string, mixed bool) []string {
	if mixed {
		return append(slices.Clone(verdicts), "mixed")
	}
	return verdicts
}

func showRun(a *app, cmd *cobra.Command, arg string) error {
	id, err := positiveID("run", arg)
	if err != nil {
		return err
	}
	r, err := a.client().Run(cmd.Context(), id)
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.stdout, r)
	}
	batch := dashPtr(r.BatchToken)
	if r.TaskIndex != nil {
		batch += fmt.Sprintf(", task %d", *r.TaskIndex)
	}
	a.facts("run", fmt.Sprint(r.ID), "sweep", fmt.Sprint(r.SweepID), "setting", r.SettingHash, "repeat", fmt.Sprint(r.Repeat),
		"state", r.State, "reason", r.Reason, "user", r.User, "site", r.Site, "batch", batch, "slurm job", dashPtr(r.SlurmJobID))
	a.heading("Attempts")
	t := newTable("ATTEMPT>", "JOB", "RESTART>", "NODES", "SLURM", "CLASS", "VALID", "STARTED", "ENDED")
	for _, at := range r.Attempts {
		valid := "-"
		if at.Valid != nil {
			valid = yesNo(*at.Valid)
		}
		t.add(at.ID, at.SlurmJobID, at.RestartCount, dash(strings.Join(at.Nodes, ",")), dashPtr(at.SlurmState), dashPtr(at.ExitClass), valid,
			clock(at.StartedAt), clock(at.EndedAt))
		for _, reason := range at.Reasons {
			t.note(reason)
		}
		for _, finding := range at.Findings {
			t.note("finding: " + finding)
		}
	}
	t.print(a, tableFlags{})
	a.transitions(r.Transitions)
	return nil
}

func (a *app) transitions(ts []api.Transition) {
	if len(ts) == 0 {
		return
	}
	a.heading("History")
	t := newTable("AT", "WHAT", "FROM", "TO", "BY", "REASON")
	for _, x := range ts {
		t.add(clock(&x.At), x.Entity+" "+x.EntityID, dash(x.From), stateCell(x.To), dash(x.Actor), dash(x.Reason))
	}
	t.print(a, tableFlags{})
}

// movingAxes returns the keys whose values differ between the settings, in
// order; keys that only some settings have count.
func movingAxes(settings []map[string]any) []string {
	seen := map[string]map[string]bool{}
	for _, axes := range settings {
		for k := range axes {
			seen[k] = map[string]bool{}
		}
	}
	for _, axes := range settings {
		for k, values := range seen {
			values[axisText(axes[k])] = true
		}
	}
	var moving []string
	for k, values := range seen {
		if len(values) > 1 {
			moving = append(moving, k)
		}
	}
	slices.Sort(moving)
	return moving
}

// labels shortens axis keys for table heads: the last part of the path where it
// is not ambiguous.
func labels(keys []string) []string {
	count := map[string]int{}
	last := func(k string) string { return k[strings.LastIndex(k, ".")+1:] }
	for _, k := range keys {
		count[last(k)]++
	}
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = k
		if count[last(k)] == 1 {
			out[i] = last(k)
		}
	}
	return out
}

// counts lists how many runs are in which state, in the order of a run's life.
func counts(byState map[string]int, total int) string {
	parts := []string{}
	for _, s := range []string{"pending", "submitted", "provisioning", "running", "complete", "failed", "dead", "cancelled", "skipped"} {
		if n := byState[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprint(total)
	}
	return strings.Join(parts, ", ")
}

// optionsText prints the given options as key=value words.
func optionsText(raw json.RawMessage) string {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return ""
	}
	parts := []string{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if v := bytes.TrimSpace(m[k]); !slices.Contains([]string{"null", `""`, "false", "[]", "{}"}, string(v)) {
			parts = append(parts, k+"="+string(v))
		}
	}
	return strings.Join(parts, " ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
