package cli

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/api"
	"sbench/internal/cost"
)

type costOptions struct {
	start, end string
	by         string
	csv        bool
	table      tableFlags
}

func newCostCommand(a *app) *cobra.Command {
	o := &costOptions{}
	cmd := &cobra.Command{
		Use:   "cost",
		Short: "print what was spent, from Slurm's accounting",
		Long: `Adds up what Slurm accounted for: the GPU-seconds that jobs held, priced by the
rates that were in force, and what became of them. Requeued and failed starts are
billed like any other. The parts of a task that no run can be blamed for are
billed to its runs in proportion to their steps. What is not known is "-" (null
in --json): cost without a rate, idle time before the steps are accounted for,
energy where Slurm or the GPU measured none.

MEASURED are the GPU-seconds of the windows of valid runs, EFF their share of
what was billed, IDLE the share held while no run used the GPU, LOST that of
starts without a valid measurement. USD/MTOK@SLO is the price of a million output
tokens in the cheapest setting that met its sweep's SLO in every run.

Real and emulated hardware never share a row. Operators see everybody's costs,
others their own.`,
		Example: "sbench cost --start 2026-03-01 --end 2026-04-01 --by account,user\nsbench cost --by hardware --csv > cost.csv",
		Args:    nArgs(0, 0, ""),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(a, cmd) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.start, "start", "S", "", "from this `time` on (default the first of this month)")
	f.StringVarP(&o.end, "end", "E", "", "before this `time` (default now)")
	f.StringVar(&o.by, "by", "account", "sum up by these `dimensions`: account, user, model, hardware, sweep, partition, site")
	f.BoolVar(&o.csv, "csv", false, "print all columns as CSV")
	addTableFlags(f, &o.table)
	exits(cmd, exitOK, exitFailed, exitUsage, exitUnreachable)
	return cmd
}

func (o *costOptions) run(a *app, cmd *cobra.Command) error {
	forms := 0
	for _, on := range []bool{a.json, o.csv, o.table.parsable} {
		if on {
			forms++
		}
	}
	if forms > 1 {
		return usagef("--json, --csv and --parsable2: give one of them")
	}
	now := a.now()
	q := api.CostQuery{Start: time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, now.Location()), End: now.Add(time.Second)}
	by, err := cost.ParseDimensions(o.by)
	if err != nil {
		return usagef("--by: %v", err)
	}
	for _, d := range by {
		q.By = append(q.By, string(d))
	}
	for _, f := range []struct {
		flag, text string
		into       *time.Time
	}{{"start", o.start, &q.Start}, {"end", o.end, &q.End}} {
		if f.text == "" {
			continue
		}
		if *f.into, err = pastTime(f.text, now); err != nil {
			return usagef("--%s: %v", f.flag, err)
		}
	}
	if !q.Start.Before(q.End) {
		return usagef("--start %s is not before --end %s", clock(&q.Start), clock(&q.End))
	}
	r, err := a.client().Cost(cmd.Context(), q)
	if err != nil {
		return err
	}
	switch {
	case a.json:
		return writeJSON(a.stdout, r)
	case o.csv:
		return writeCostCSV(a.stdout, r)
	}
	costTable(r, o.table.parsable).print(a, o.table)
	if !o.table.parsable {
		a.costNotes(r)
	}
	return nil
}

// pastTime reads sacct's -S and -E: a date or time, or now-COUNT[UNIT].
func pastTime(s string, now time.Time) (time.Time, error) {
	if rest, ok := strings.CutPrefix(s, "now-"); ok {
		d, err := sinceNow(rest)
		if err != nil {
			return time.Time{}, fmt.Errorf("%q is not a time: %w", s, err)
		}
		return now.Add(-d), nil
	}
	switch s {
	case "now":
		return now, nil
	case "today":
		return time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location()), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02", "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time: write 2026-01-31, 2026-01-31T22:00, today or now-7days", s)
}

func costTable(r api.CostReport, parsable bool) *table {
	head := []string{}
	for _, d := range r.By {
		head = append(head, strings.ToUpper(d))
	}
	head = append(head, "CLASS", "ALLOCS>", "GPU_HOURS>", "MEASURED>", "EFF>", "IDLE>", "LOST>", "RATE>", "COST>", "KWH>", "USD/MTOK@SLO>", "COMPLETE")
	t := newTable(head...)
	add := func(c *api.CostRow, names []string) {
		row := []any{}
		for _, n := range names {
			row = append(row, dash(n))
		}
		class := cell{text: c.HardwareClass}
		if c.HardwareClass == "emulated" {
			class.style = yellow
		}
		row = append(row, class, c.Allocations, hours(float64(c.BillableGPUSeconds)), hours(c.MeasuredGPUSeconds), sharePercent(c.Efficiency), sharePercent(c.IdleShare),
			hours(float64(c.LostGPUSeconds)), number(c.Rate), money(c.Cost), kilowattHours(c.EnergyJoules), number(c.CostPerMillionAtSLO), yesNo(c.Complete))
		t.add(row...)
	}
	for i := range r.Rows {
		names := make([]string, len(r.By))
		for k, d := range r.By {
			names[k] = r.Rows[i].Dimension(d)
		}
		add(&r.Rows[i], names)
	}
	if !parsable && len(r.Rows) > 1 {
		for i := range r.Totals {
			names := make([]string, len(r.By))
			names[0] = "(total)"
			add(&r.Totals[i], names)
		}
	}
	return t
}

// costNotes says what the numbers leave out.
func (a *app) costNotes(r api.CostReport) {
	open, unknown := 0, 0
	for i := range r.Totals {
		open, unknown = open+r.Totals[i].OpenAllocations, unknown+r.Totals[i].UnknownAllocations
	}
	if r.User != "" {
		a.message("only the costs of %s are shown", r.User)
	}
	if open > 0 {
		a.message("%d allocations have not ended: they are counted up to now", open)
	}
	if unknown > 0 {
		a.message("%d allocations ended without accounting: what they held is missing", unknown)
	}
}

func hours(seconds float64) string { return strconv.FormatFloat(seconds/3600, 'f', 3, 64) }

func sharePercent(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v*100, 'f', 1, 64) + "%"
}

func money(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'f', 2, 64)
}

func kilowattHours(joules *float64) string {
	if joules == nil {
		return "-"
	}
	kwh := *joules / 3.6e6
	return number(&kwh)
}

// costColumns are those of --csv behind the dimensions; an empty field is unknown.
func costColumns() []column[*api.CostRow] {
	type row = *api.CostRow
	float := func(v *float64) string {
		if v == nil {
			return ""
		}
		return strconv.FormatFloat(*v, 'g', -1, 64)
	}
	whole := func(v *int64) string {
		if v == nil {
			return ""
		}
		return strconv.FormatInt(*v, 10)
	}
	return []column[row]{
		{"hardware_class", false, func(r row) any { return r.HardwareClass }},
		{"complete", false, func(r row) any { return r.Complete }},
		{"allocations", true, func(r row) any { return r.Allocations }},
		{"open_allocations", true, func(r row) any { return r.OpenAllocations }},
		{"unknown_allocations", true, func(r row) any { return r.UnknownAllocations }},
		{"run_starts", true, func(r row) any { return r.RunStarts }},
		{"billable_gpu_seconds", true, func(r row) any { return r.BillableGPUSeconds }},
		{"measured_gpu_seconds", true, func(r row) any { return float(&r.MeasuredGPUSeconds) }},
		{"lost_gpu_seconds", true, func(r row) any { return r.LostGPUSeconds }},
		{"idle_gpu_seconds", true, func(r row) any { return whole(r.IdleGPUSeconds) }},
		{"efficiency", true, func(r row) any { return float(r.Efficiency) }},
		{"idle_share", true, func(r row) any { return float(r.IdleShare) }},
		{"rate", true, func(r row) any { return float(r.Rate) }},
		{"cost", true, func(r row) any { return float(r.Cost) }},
		{"energy_joules", true, func(r row) any { return float(r.EnergyJoules) }},
		{"window_energy_joules", true, func(r row) any { return float(r.WindowEnergyJoules) }},
		{"output_tokens", true, func(r row) any { return float(r.OutputTokens) }},
		{"cost_per_million_output_tokens_steady", true, func(r row) any { return float(r.CostPerMillionSteady) }},
		{"cost_per_million_output_tokens_loaded", true, func(r row) any { return float(r.CostPerMillionLoaded) }},
		{"cost_per_million_output_tokens_at_slo", true, func(r row) any { return float(r.CostPerMillionAtSLO) }},
		{"at_slo_setting_hash", false, func(r row) any { return r.AtSLOSetting }},
	}
}

func writeCostCSV(w io.Writer, r api.CostReport) error {
	c := csv.NewWriter(w)
	columns := costColumns()
	head := append([]string{}, r.By...)
	for _, col := range columns {
		head = append(head, col.name)
	}
	if err := c.Write(head); err != nil {
		return err
	}
	for i := range r.Rows {
		var line []string
		for _, d := range r.By {
			line = append(line, r.Rows[i].Dimension(d))
		}
		for _, col := range columns {
			line = append(line, fmt.Sprint(col.text(&r.Rows[i])))
		}
		if err := c.Write(line); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}
