package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/api"
	"sbench/internal/compare"
)

type compareOptions struct {
	req       api.CompareRequest
	csv       bool
	markdown  bool
	recommend bool
	plot      string
	prices    []string
	shape     string
	table     tableFlags
}

func newCompareCommand(a *app) *cobra.Command {
	o := &compareOptions{}
	cmd := &cobra.Command{
		Use:   "compare A B | --where EXPRESSION… --vary AXIS",
		Short: "set settings side by side that differ in one axis",
		Long: `Compares settings (a hash or a unique prefix of one), sweeps (a number; setting by
setting) or one setting of a sweep (17:ab12). Every axis but one has to be equal:
the others that differ are named, nothing is ranked and the exit status is 3;
--anyway prints the numbers all the same, without a ranking. Emulated rows are
never set beside real ones, nor closed loops beside open ones.

Each metric has the ratio to the first setting with its 95 % interval, and a
verdict: regressed, regressed-certain, slower-small, ok, improved or inconclusive.
MDE is the smallest difference that would have been found four times in five: "no
difference" means nothing below it. RUNS is how many a side would decide.`,
		Example: `sbench compare ab12cd34 ef56ab78
sbench compare 17 18 --vary engine.version
sbench compare --sweep 17 --where "model.name == 'llama-3.1-8b-instruct'" --vary hardware.gpu --recommend
sbench compare --where model.name=tiny --vary workload.arrival.rate --plot pareto.svg`,
		Args: nArgs(0, 2, "two settings or sweeps"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(a, cmd, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.req.Vary, "vary", "", "the `axis` that may differ; without it the one that does")
	f.StringArrayVar(&o.req.Where, "where", nil, "compare the settings that meet this `expression` over the axes, or key=value; several have to hold together")
	f.Int64Var(&o.req.Sweep, "sweep", 0, "with --where: only settings of this sweep `ID`")
	f.StringVar(&o.req.Site, "site", "", "with --where: only results of this `site`")
	f.StringSliceVar(&o.req.Metrics, "metrics", nil, "compare these `metrics` instead of the headline ones")
	f.StringVar(&o.req.By, "by", "", "rank by this `metric` (default output_tokens_per_s)")
	f.Float64Var(&o.req.Theta, "threshold", 0.05, "the relative difference that matters")
	f.BoolVar(&o.req.Anyway, "anyway", false, "print although more than one axis differs; nothing is ranked")
	f.BoolVar(&o.csv, "csv", false, "print CSV: one line per setting and metric")
	f.BoolVar(&o.markdown, "markdown", false, "print a Markdown table")
	f.BoolVar(&o.recommend, "recommend", false, "add the best throughput, the best latency, the cheapest at the SLOs and the Pareto front")
	f.StringVar(&o.plot, "plot", "", "draw throughput per GPU over latency, or the first two axes of --pareto, into `file` (.svg or .png)")
	f.StringSliceVar(&o.req.Pareto, "pareto", nil, "the `axes` of the Pareto front: two or three of throughput, latency, quality (default throughput,latency)")
	f.StringVar(&o.req.Latency, "latency", "", "the latency `metric` of --recommend and --plot (default ttft_p95)")
	f.Float64Var(&o.req.Attainment, "attainment", 0.99, "the share of requests that has to meet every SLO")
	f.StringSliceVar(&o.prices, "gpu-price", nil, "`id=price` of a GPU-hour, as in h100-sxm=2.50; without prices the cost is in GPU-hours")
	f.StringVar(&o.shape, "shape", "", "JSON `file` with the model's shape, for MBU and MFU")
	addTableFlags(f, &o.table)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func (o *compareOptions) run(a *app, cmd *cobra.Command, args []string) error {
	if err := o.check(a, args); err != nil {
		return err
	}
	o.req.Sides = args
	c, err := a.client().Compare(cmd.Context(), o.req)
	if err != nil {
		return err
	}
	if o.plot != "" && c.Recommendation != nil {
		if err := plotFront(o.plot, c); err != nil {
			return fmt.Errorf("draw %s: %w", o.plot, err)
		}
	}
	switch {
	case a.json:
		err = writeJSON(a.stdout, c)
	case o.csv:
		err = writeCompareCSV(a, c)
	default:
		o.print(a, c)
	}
	if err != nil {
		return err
	}
	if c.Refused != "" && !o.req.Anyway {
		return &failure{
			status: exitRefused, message: "not ranked: " + c.Refused, reasons: residueLines(c),
			hint: "--where pins axes, --vary names the one that may differ, --anyway prints without ranking",
		}
	}
	if c.Refused != "" {
		a.message("warning: not ranked: %s", c.Refused)
	}
	if o.plot != "" && c.Recommendation == nil {
		return &failure{status: exitRefused, message: "nothing to draw: there is no ranking"}
	}
	return nil
}

func (o *compareOptions) check(a *app, args []string) error {
	forms := 0
	for _, on := range []bool{a.json, o.csv, o.markdown, o.table.parsable} {
		if on {
			forms++
		}
	}
	switch {
	case forms > 1:
		return usagef("--json, --csv, --markdown and --parsable2: give one of them")
	case len(args) == 1:
		return usagef("two settings or sweeps are needed to compare")
	case len(args) == 2 && len(o.req.Where) > 0:
		return usagef("give two settings or sweeps, or --where")
	case len(args) == 0 && len(o.req.Where) == 0:
		return usagef("missing argument: two settings or sweeps, or --where")
	case len(args) == 0 && o.req.Vary == "":
		return usagef("--where needs --vary: the axis that may differ")
	case len(args) > 0 && (o.req.Sweep != 0 || o.req.Site != ""):
		return usagef("--sweep and --site go with --where")
	case o.plot != "" && !strings.HasSuffix(o.plot, ".svg") && !strings.HasSuffix(o.plot, ".png"):
		return usagef("--plot %s: the file's name ends in .svg or .png", o.plot)
	case !(o.req.Theta > 0 && o.req.Theta < 1):
		return usagef("--threshold %g is not between 0 and 1", o.req.Theta)
	}
	for _, axis := range o.req.Pareto {
		if !slices.Contains(compare.ParetoAxes(), axis) {
			return usagef("--pareto %s: the axes are %s", axis, strings.Join(compare.ParetoAxes(), ", "))
		}
	}
	for _, p := range o.prices {
		id, text, ok := strings.Cut(p, "=")
		price, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil || !(price >= 0) || math.IsInf(price, 0) {
			return usagef("--gpu-price %s: as in h100-sxm=2.50", p)
		}
		if o.req.Prices == nil {
			o.req.Prices = map[string]float64{}
		}
		o.req.Prices[id] = price
	}
	if o.shape == "" {
		return nil
	}
	text, err := os.ReadFile(o.shape)
	if err != nil {
		return err
	}
	o.req.Shape = &api.ModelShape{}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(o.req.Shape); err != nil {
		return usagef("%s: %v", o.shape, err)
	}
	s := *o.req.Shape
	for _, v := range []float64{s.WeightBytes, s.ActiveParams, s.Layers, s.KVHeads, s.HeadDim, s.Heads, s.KVBytes} {
		if !(v > 0) {
			return usagef("%s: weight_bytes, active_params, layers, kv_heads, head_dim, heads and kv_bytes have to be positive", o.shape)
		}
	}
	return nil
}

func residueLines(c api.Comparison) []string {
	var lines []string
	seen := map[string]bool{}
	for _, part := range append([]api.Comparison{c}, c.Pairs...) {
		for _, d := range part.Residue {
			values := make([]string, len(d.Values))
			for i, v := range d.Values {
				values[i] = axisText(v)
			}
			line := d.Axis + ": " + strings.Join(values, ", ")
			if !seen[line] {
				seen[line] = true
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func (o *compareOptions) print(a *app, c api.Comparison) {
	if len(c.Pairs) > 0 {
		for i, p := range c.Pairs {
			if i > 0 {
				a.print("\n")
			}
			o.printOne(a, p)
		}
		return
	}
	o.printOne(a, c)
}

func (o *compareOptions) printOne(a *app, c api.Comparison) {
	if c.Refused != "" && !o.req.Anyway {
		return
	}
	t := compareTable(c, o.table.parsable)
	if o.markdown {
		a.print("%s", t.markdown())
	} else {
		t.print(a, o.table)
	}
	if o.table.parsable {
		return
	}
	for _, d := range c.Coupled {
		a.message("%s follows from %s", d.Axis, c.Vary)
	}
	if len(c.Realized) > 1 {
		a.message("warning: %d different environments were realized: what nothing pins may have made the difference", len(c.Realized))
	}
	for _, w := range c.Warnings {
		a.message("warning: %s", w)
	}
	if len(c.Scaling) > 1 {
		a.heading("Scaling")
		s := newTable("DEVICES>", "SPEEDUP>", "EFFICIENCY>", "95 %")
		for _, x := range c.Scaling {
			s.add(axisText(x.Devices), number(x.Speedup), number(x.Efficiency), rangeText(x.EfficiencyLow, x.EfficiencyHigh))
		}
		s.print(a, tableFlags{})
	}
	roofs := newTable("SETTING", "MBU>", "MFU>", "OF ATTAINABLE>", "NOTE")
	for _, e := range c.Entries {
		if e.MBU != nil || e.RooflineNote != "" {
			roofs.add(short(e.SettingHash), number(e.MBU), number(e.MFU), number(e.RooflineRatio), e.RooflineNote)
		}
	}
	if len(roofs.rows) > 0 {
		a.heading("Roofline")
		roofs.print(a, tableFlags{})
	}
	if o.recommend && c.Recommendation != nil {
		a.recommendation(*c.Recommendation)
	}
}

func compareTable(c api.Comparison, parsable bool) *table {
	head := []string{"RANK>", "SETTING"}
	if c.Vary != "" {
		head = append(head, c.Vary)
	}
	t := newTable(append(head, "VALID>", "METRIC", "VALUE>", "RATIO>", "95 %", "VERDICT", "MDE>", "RUNS>")...)
	for i, e := range c.Entries {
		rank := "-"
		if e.Rank != nil {
			rank = strconv.Itoa(*e.Rank)
		}
		lead := []any{rank, short(e.SettingHash)}
		if c.Vary != "" {
			lead = append(lead, axisText(e.Level))
		}
		lead = append(lead, fmt.Sprintf("%d/%d", e.NValid, e.NTotal))
		if i == 0 || len(e.Pairs) == 0 {
			for _, m := range c.Metrics {
				if v, ok := e.Means[m]; ok {
					t.add(append(lead, withUnit(m), number(&v), "1", "", "base", "", "")...)
					lead = blanks(len(lead), parsable, lead)
				}
			}
			continue
		}
		for _, p := range e.Pairs {
			if p.Ratio == nil && p.Base == nil && p.Value == nil {
				continue
			}
			runs := ""
			if p.RunsNeeded > 0 {
				runs = strconv.Itoa(p.RunsNeeded)
			}
			t.add(append(lead, withUnit(p.Metric), number(p.Value), number(p.Ratio), rangeText(p.RatioLow, p.RatioHigh),
				verdictCell(p.Verdict), percent(p.MDE), runs)...)
			lead = blanks(len(lead), parsable, lead)
		}
		if e.Unranked != "" && len(t.rows) > 0 && !parsable {
			t.note("not ranked: " + e.Unranked)
		}
	}
	return t
}

// blanks leaves the leading columns of the further metrics of a setting empty,
// for people.
func blanks(n int, parsable bool, lead []any) []any {
	if parsable {
		return lead
	}
	out := make([]any, n)
	for i := range out {
		out[i] = ""
	}
	return out
}

func verdictCell(v compare.Verdict) cell {
	switch {
	case v.Bad():
		return cell{string(v), red}
	case v == compare.Improved:
		return cell{string(v), green}
	case v == compare.Inconclusive || v == compare.SlowerSmall:
		return cell{string(v), yellow}
	}
	return cell{text: string(v)}
}

func rangeText(low, high *float64) string {
	if low == nil || high == nil {
		return "-"
	}
	return number(low) + " to " + number(high)
}

func percent(v *float64) string {
	if v == nil || math.IsNaN(*v) || math.IsInf(*v, 0) {
		return "-"
	}
	return strconv.FormatFloat(100**v, 'f', 1, 64) + "%"
}

// markdown is the table for a pull request.
func (t *table) markdown() string {
	var b strings.Builder
	line := func(fields []string) { b.WriteString("| " + strings.Join(fields, " | ") + " |\n") }
	line(t.head)
	rule := make([]string, len(t.head))
	for i, right := range t.right {
		rule[i] = "---"
		if right {
			rule[i] = "---:"
		}
	}
	line(rule)
	for _, r := range t.rows {
		fields := make([]string, len(r.cells))
		for i, c := range r.cells {
			fields[i] = strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(c.text)
		}
		line(fields)
	}
	return b.String()
}

func (a *app) recommendation(r compare.Recommendation) {
	a.heading("Recommendation")
	for _, l := range [][2]string{
		{"best throughput", r.BestThroughput},
		{"best latency (" + r.Latency + ")", r.BestLatency},
		{"cheapest at the SLOs", r.CheapestAtSLO},
		{"best quality", r.BestQuality},
	} {
		if l[0] == "best quality" && l[1] == "" {
			continue // nothing was asked
		}
		a.print("%s: %s\n", l[0], dash(short(l[1])))
	}
	t := newTable("PARETO", "SETTING", "LEVEL", "GPUS>", "TOK/S/GPU>", r.Latency+"[s]>", "COST/1M AT SLO>", "UNIT", "QUALITY>")
	for _, p := range r.Points {
		front := ""
		if p.Front {
			front = "yes"
		}
		t.add(front, short(p.SettingHash), axisText(p.Level), axisText(p.GPUs), number(p.PerGPU), number(p.Latency), number(p.CostAtSLO), p.CostUnit, number(p.Quality))
		if p.Excluded != "" {
			t.note("not weighed: " + p.Excluded)
		}
	}
	t.print(a, tableFlags{})
	for _, n := range r.Notes {
		a.message("note: %s", n)
	}
}

func writeCompareCSV(a *app, c api.Comparison) error {
	w := csv.NewWriter(a.stdout)
	write := func(fields ...any) error {
		record := make([]string, len(fields))
		for i, f := range fields {
			if p, ok := f.(*float64); ok {
				record[i] = ""
				if p != nil {
					record[i] = csvText(*p)
				}
				continue
			}
			record[i] = csvText(f)
		}
		return w.Write(record)
	}
	if err := write("base_setting_hash", "setting_hash", "vary", "level", "rank", "metric", "unit", "base", "value", "ratio", "ratio_ci_low",
		"ratio_ci_high", "p", "method", "verdict", "mde", "runs_needed", "n_base", "n_value"); err != nil {
		return err
	}
	parts := c.Pairs
	if len(parts) == 0 {
		parts = []api.Comparison{c}
	}
	for _, part := range parts {
		for _, e := range part.Entries {
			for _, p := range e.Pairs {
				rank := any(nil)
				if e.Rank != nil {
					rank = *e.Rank
				}
				if err := write(part.Entries[0].SettingHash, e.SettingHash, part.Vary, axisText(e.Level), rank, p.Metric, p.Unit, p.Base, p.Value,
					p.Ratio, p.RatioLow, p.RatioHigh, p.P, p.Method, string(p.Verdict), p.MDE, p.RunsNeeded, p.NBase, p.NValue); err != nil {
					return err
				}
			}
		}
	}
	w.Flush()
	return w.Error()
}
