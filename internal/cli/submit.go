package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/api"
)

func newSubmitCommand(a *app) *cobra.Command {
	o := &submitOptions{}
	cmd := &cobra.Command{
		Use:   "submit [flags] SWEEP.yaml",
		Short: "submit a sweep",
		Long: `Checks the sweep file, asks the daemon to admit it, and prints the sweep's number
and what it is about to cost. - reads the file from standard input.

What a flag says wins over its SBENCH_* variable, that over #SBENCH lines in the
head comment of the sweep file (written as #SBATCH lines are), that over the file
itself, and that over the site's defaults.`,
		Example: `sbench submit --wait nightly.yaml
sbench submit --test-only -p h100 --set workload.seed=7 nightly.yaml
id=$(sbench submit --parsable - < nightly.yaml)`,
		Args: nArgs(1, 1, "SWEEP.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.submit(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.AddFlags(f)
	o.addJobFlags(f)
	o.addModeFlags(f)
	annotate(cmd, annotationEnv, `SBENCH_SOCKET     the daemon's socket
SBENCH_<FLAG>     the value of a flag: SBENCH_PARTITION, SBENCH_MAX_INFLIGHT, …;
                  SBENCH_SET takes several assignments, separated by blanks`)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitIncomplete, exitUnreachable)
	return cmd
}

func (a *app) submit(cmd *cobra.Command, name string) error {
	src, err := a.load(cmd.Flags(), name)
	if err != nil {
		return err
	}
	o := src.flags
	if o.testOnly && (o.wait || o.parsable) {
		return usagef("--test-only submits nothing: it does not go with --wait or --parsable")
	}
	// A faulty file needs no daemon to be told so. What a GRES means is the site's
	// to say.
	if src.options.Gres == "" {
		if _, err := expand(src.file, src.shown, src.options, nil); err != nil {
			return err
		}
	}
	c := a.client()
	resp, err := c.Submit(cmd.Context(), api.SubmitRequest{
		IdempotencyKey: strings.ToLower(rand.Text()), FileName: src.shown, File: string(src.text), Options: src.options, TestOnly: o.testOnly,
	})
	if err != nil {
		return err
	}
	if err := a.submitted(resp, o.testOnly, o.wait, o.parsable); err != nil || !o.wait {
		return err
	}
	return a.waitAndJudge(cmd.Context(), c, resp.SweepID)
}

// submitted prints the daemon's answer to a submission. With wait the document
// of --json comes at the end.
func (a *app) submitted(resp api.SubmitResponse, testOnly, wait, parsable bool) error {
	a.warn(resp.Warnings)
	for _, n := range resp.Notes {
		a.message("note: %s", n)
	}
	if testOnly {
		if a.json {
			return writeJSON(a.stdout, resp)
		}
		a.printPlan(resp.Plan)
		return nil
	}
	switch {
	case a.json && wait: // one document, at the end
	case a.json:
		return writeJSON(a.stdout, resp)
	case parsable:
		a.print("%d\n", resp.SweepID)
	default:
		a.print("Submitted sweep %d: %s, %s, %s\n",
			resp.SweepID, plural(resp.Plan.Settings, "setting"), runRange(resp.Plan), hourRange(resp.Plan))
	}
	return nil
}

// waitAndJudge waits for the sweep and fails with status 4 unless every setting
// is final and complete.
func (a *app) waitAndJudge(ctx context.Context, c *api.Client, sweep int64) error {
	s, err := a.awaitSweep(ctx, c, sweep)
	if err != nil {
		return err
	}
	if a.json {
		if err := writeJSON(a.stdout, s); err != nil {
			return err
		}
	}
	if s.Complete() {
		if !a.json {
			a.message("sweep %d is complete: %s", sweep, plural(s.SettingsTotal, "setting"))
		}
		return nil
	}
	f := &failure{
		status:  exitIncomplete,
		message: fmt.Sprintf("sweep %d is %s: %d of %d settings are complete", sweep, s.State, s.SettingsComplete, s.SettingsTotal),
		hint:    fmt.Sprintf("sbench results %d, sbench show sweep %d", sweep, sweep),
	}
	detail, err := c.Sweep(ctx, sweep, false)
	if err != nil {
		// The verdict stands; only its reasons are missing.
		return errors.Join(f, err)
	}
	for _, st := range detail.Settings {
		if st.NValid >= st.NTotal && st.IsFinal {
			continue
		}
		reason := counts(st.Runs, st.NTotal)
		if len(st.Reasons) > 0 {
			reason = st.Reasons[0]
		}
		f.reasons = append(f.reasons, fmt.Sprintf("setting %s: %d/%d valid: %s", short(st.SettingHash), st.NValid, st.NTotal, printable(reason)))
	}
	return f
}

// printPlan prints what a submission would do.
func (a *app) printPlan(p api.Plan) {
	cost := "unknown: the site has no rate"
	if p.Cost != nil {
		cost = fmt.Sprintf("about %.2f %s", *p.Cost, p.Currency)
		if p.RunsMax > p.Runs {
			cost = fmt.Sprintf("at most about %.2f %s", *p.Cost, p.Currency)
		}
	}
	a.facts("sweep", p.Name, "site", fmt.Sprintf("%s (cluster %s, %s hardware)", p.Site, p.Cluster, p.HardwareClass),
		"settings", fmt.Sprint(p.Settings), "runs", between(p.Runs, p.RunsMax),
		"arrays", fmt.Sprintf("%s in %s", plural(p.Tasks, "task"), plural(p.Arrays, "array")),
		"gpu_hours", strings.TrimSuffix(hourRange(p), " GPU-hours")+" held", "cost", cost)
	a.heading("Arrays")
	t := newTable("PARTITION", "ACCOUNT", "QOS", "NODES>", "GRES", "CONSTRAINT", "SWITCHES>", "EXCLUSIVE", "TIME_LIMIT>", "TASKS>", "RUNS>")
	for _, b := range p.Batches {
		switches := "-"
		if b.Switches > 0 {
			switches = fmt.Sprint(b.Switches)
		}
		t.add(dash(b.Partition), dash(b.Account), dash(b.QOS), b.Nodes, dash(b.Gres), dash(b.Constraint), switches, yesNo(b.Exclusive),
			span(time.Duration(b.TimeLimitS)*time.Second), b.Tasks, b.Runs)
	}
	t.print(a, tableFlags{})
	a.heading("Settings")
	axes := make([]map[string]any, len(p.Detail))
	for i, s := range p.Detail {
		axes[i] = s.Axes
	}
	moving := movingAxes(axes)
	t = newTable(slices.Concat([]string{"SETTING"}, labels(moving), []string{"RUNS>", "GPUS>", "RUN_TIME>"})...)
	for _, s := range p.Detail {
		row := []any{short(s.SettingHash)}
		for _, k := range moving {
			row = append(row, axisText(s.Axes[k]))
		}
		t.add(append(row, between(s.Repeats, s.RepeatsMax), s.HeldGPUs, span(time.Duration(s.RunSeconds*float64(time.Second))))...)
	}
	t.print(a, tableFlags{})
	a.heading("Skipped")
	if len(p.Skipped) == 0 {
		a.print("nothing\n")
		return
	}
	a.print("about %.1f GPU-hours saved; %s of the rest run as canaries\n", p.SavedGPUHours, plural(len(p.Canaries), "setting"))
	t = newTable("SETTING", "REASON")
	for _, s := range p.Skipped {
		t.add(short(s.SettingHash), s.Reason)
	}
	t.print(a, tableFlags{})
}

// between is how many there are, or the least and the most.
func between(least, most int) string {
	if most <= least {
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

// runRange is how many runs a sweep will have.
func runRange(p api.Plan) string {
	if p.RunsMax <= p.Runs {
		return plural(p.Runs, "run")
	}
	return between(p.Runs, p.RunsMax) + " runs"
}

// hourRange is the forecast of what the runs hold.
func hourRange(p api.Plan) string {
	if p.RunsMax <= p.Runs {
		return fmt.Sprintf("about %.1f GPU-hours", p.GPUHours)
	}
	return fmt.Sprintf("about %.1f to %.1f GPU-hours", p.GPUHoursMin, p.GPUHours)
}

// plural prints a count with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
