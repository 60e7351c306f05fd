package cli

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/aggregate"
	"sbench/internal/api"
	"sbench/internal/metrics"
)

type resultsOptions struct {
	csv     bool
	parquet string
	metrics []string
	table   tableFlags
}

func newResultsCommand(a *app) *cobra.Command {
	o := &resultsOptions{}
	cmd := &cobra.Command{
		Use:   "results SWEEP",
		Short: "print what a sweep measured, one row per setting",
		Long: `Prints the mean of each metric over the valid runs of a setting with the
half-width of its 95 % interval, beside how many runs are valid and how many there
should be; ±>100% is as good as unknown. A setting that was refused or failed has
its reason below it. Rows of emulated hardware say so. The columns are the axes
that differ between the settings and the headline metrics; --json, --csv and
--parquet have all of them.`,
		Example: "sbench results 17\nsbench results 17 --metrics output_tokens_per_s,ttft_p95_merged\nsbench results 17 --csv > r.csv\nsbench results 17 --parquet r.parquet",
		Args:    nArgs(1, 1, "SWEEP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := positiveID("sweep", args[0])
			if err != nil {
				return err
			}
			return o.run(a, cmd, id)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.csv, "csv", false, "print all columns as CSV: the axes, then mean, stddev, ci_low and ci_high of every metric")
	f.StringVar(&o.parquet, "parquet", "", "write the columns of --csv into `file`")
	f.StringSliceVar(&o.metrics, "metrics", nil, "show these `metrics` instead of the headline ones")
	addTableFlags(f, &o.table)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func (o *resultsOptions) run(a *app, cmd *cobra.Command, sweep int64) error {
	forms := 0
	for _, on := range []bool{a.json, o.csv, o.parquet != "", o.table.parsable} {
		if on {
			forms++
		}
	}
	if forms > 1 {
		return usagef("--json, --csv, --parquet and --parsable2: give one of them")
	}
	wide := a.json || o.csv || o.parquet != ""
	var wanted []string // all
	if !wide {
		wanted = o.wanted()
	}
	r, err := a.client().Results(cmd.Context(), sweep, wanted...)
	if err != nil {
		return err
	}
	switch {
	case a.json:
		return writeJSON(a.stdout, r)
	case o.csv:
		return writeResultsCSV(a.stdout, r)
	case o.parquet != "":
		if err := writeResultsParquet(o.parquet, r); err != nil {
			return fmt.Errorf("write %s: %w", o.parquet, err)
		}
		return nil
	}
	shown := o.chosen(r)
	if len(shown) < len(o.metrics) {
		// What the sweep has says whether a name is wrong, or nothing is there yet.
		whole, err := a.client().Results(cmd.Context(), sweep)
		if err != nil {
			return err
		}
		if err := o.unknown(whole); err != nil {
			return err
		}
		shown = o.metrics
	}
	resultsTable(r, shown, o.table.parsable).print(a, o.table)
	if o.table.parsable {
		return nil
	}
	a.footnotes(r)
	if !r.Complete {
		a.message("sweep %d is not complete", r.SweepID)
	}
	return nil
}

// wanted are the metrics that the table may show.
func (o *resultsOptions) wanted() []string {
	if len(o.metrics) > 0 {
		return o.metrics
	}
	return aggregate.Headline()
}

// chosen are those of the wanted metrics that the results have: of the headline
// ones only what was measured.
func (o *resultsOptions) chosen(r api.Results) []string {
	has := map[string]bool{}
	for _, s := range r.Settings {
		for name, m := range s.Metrics {
			has[name] = has[name] || m.Mean != nil || len(o.metrics) > 0
		}
	}
	return slices.DeleteFunc(slices.Clone(o.wanted()), func(m string) bool { return !has[m] })
}

// unknown is the failure where a metric was asked for that results do not have;
// nil where they have none at all.
func (o *resultsOptions) unknown(r api.Results) error {
	known := map[string]bool{}
	for _, s := range r.Settings {
		for name := range s.Metrics {
			known[name] = true
		}
	}
	for _, m := range o.metrics {
		if !known[m] && len(known) > 0 {
			return &failure{
				status: exitUsage, message: fmt.Sprintf("unknown metric %q", m),
				hint: "metrics: " + strings.Join(slices.Sorted(maps.Keys(known)), ", "),
			}
		}
	}
	return nil
}

func resultsTable(r api.Results, shown []string, parsable bool) *table {
	axes := make([]map[string]any, len(r.Settings))
	for i, s := range r.Settings {
		axes[i] = s.Axes
	}
	moving := movingAxes(axes)
	head := append([]string{"SETTING"}, labels(moving)...)
	head = append(head, "CLASS", "VALID>", "FINAL")
	for _, m := range shown {
		if !parsable {
			m = withUnit(m)
		}
		head = append(head, m+">")
	}
	if parsable {
		head = append(head, "REASONS")
	}
	t := newTable(head...)
	for _, s := range r.Settings {
		row := []any{short(s.SettingHash)}
		for _, k := range moving {
			row = append(row, axisText(s.Axes[k]))
		}
		valid := cell{text: fmt.Sprintf("%d/%d", s.NValid, s.NTotal)}
		if s.NValid < s.NTotal {
			valid.style = red
		}
		class := cell{text: dash(s.HardwareClass)}
		if s.HardwareClass == "emulated" {
			class.style = yellow
		}
		row = append(row, class, valid, yesNo(s.IsFinal))
		for _, m := range shown {
			row = append(row, metricText(s.Metrics[m], parsable))
		}
		lines := slices.Concat(s.Reasons, prefixed("finding: ", s.Findings))
		if a := s.Adaptive; a != nil && a.Decided != "" {
			lines = append(lines, a.Decided)
		}
		if q, ok := s.Metrics[metrics.QualityScore]; ok && r.Quality != nil && s.NValid > 0 && q.Mean == nil {
			lines = append(lines, "no quality score: "+dash(printable(q.NullReason)))
		}
		if c := s.CarriedFrom; c != nil {
			lines = append(lines, fmt.Sprintf("carried from sweep %d, measured %s: not run again", c.SweepID, clock(c.MeasuredAt)))
		}
		if parsable {
			t.add(append(row, strings.Join(slices.Concat(lines, prefixed("warning: ", s.Warnings)), "; "))...)
			continue
		}
		t.add(row...)
		for _, l := range lines {
			t.note(l)
		}
	}
	return t
}

// footnotes prints every warning once, with the settings that it is about: what
// is true of all of them is not repeated row by row.
func (a *app) footnotes(r api.Results) {
	var order []string
	of := map[string][]string{}
	for _, s := range r.Settings {
		for _, w := range s.Warnings {
			if of[w] == nil {
				order = append(order, w)
			}
			of[w] = append(of[w], short(s.SettingHash))
		}
	}
	if len(order) == 0 {
		return
	}
	a.heading("Warnings")
	for _, w := range order {
		about := "all settings"
		if n := len(of[w]); n < len(r.Settings) {
			about = strings.Join(of[w][:min(n, 3)], ", ")
			if n > 3 {
				about += fmt.Sprintf(" and %d more", n-3)
			}
		}
		a.print("%s: %s\n", about, printable(w))
	}
}

func prefixed(prefix string, lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = prefix + l
	}
	return out
}

// metricText prints the mean and the half-width of its interval relative to it.
func metricText(m api.Metric, parsable bool) string {
	s := number(m.Mean)
	if parsable || m.Mean == nil || m.RelativeCI == nil || math.IsNaN(*m.RelativeCI) || math.IsInf(*m.RelativeCI, 0) {
		return s
	}
	switch half := *m.RelativeCI * 100; {
	case half < 10:
		return fmt.Sprintf("%s ±%.1f%%", s, half)
	case half <= 100:
		return fmt.Sprintf("%s ±%.0f%%", s, half)
	default: // how much more is of no use to anybody
		return s + " ±>100%"
	}
}

// withUnit is a metric's name with its unit, for the head of a table.
func withUnit(name string) string {
	base := strings.TrimSuffix(strings.TrimSuffix(name, aggregate.MergedSuffix), aggregate.MeanOfRunsSuffix)
	if m, ok := metrics.Find(base); ok && m.Unit != "" && !strings.HasSuffix(base, "_per_s") {
		return name + "[" + m.Unit + "]"
	}
	return name
}
