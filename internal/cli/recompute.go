package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/bench"
	"sbench/internal/metrics"
	"sbench/internal/resultfile"
	"sbench/internal/unit"
)

type recomputeOptions struct {
	slo     []string
	all     bool
	parquet string
	table   tableFlags
}

func newRecomputeCommand(a *app) *cobra.Command {
	o := &recomputeOptions{}
	cmd := &cobra.Command{
		Use:   "recompute [flags] ATTEMPT|FILE...",
		Short: "compute metrics again from stored rows",
		Long: `Computes the metrics of stored measurements again from their raw request rows,
under the definitions of this version of sbench, and shows what was stored beside
what they give now. Takes folders of sealed attempts, whose digests are checked,
and files that sbench bench --parquet wrote. Nothing stored is changed. What the
rows do not tell is kept and marked: energy, goodput without its SLO, and what
needs event times where they were not kept.`,
		Example: "sbench recompute /results/attempts/4711/812-r0\nsbench recompute --slo ttft_p99=300ms --json requests.parquet",
		Args:    nArgs(1, -1, "ATTEMPT"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.recompute(o, args) },
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.slo, "slo", nil, "limit of a latency for goodput, in place of the stored one: `METRIC=TIME`, as ttft_p99=500ms")
	f.BoolVar(&o.all, "all", false, "show every metric, not those alone that differ")
	f.StringVar(&o.parquet, "parquet", "", "write the load points with their new metrics to a Parquet `file` (one measurement only)")
	addTableFlags(f, &o.table)
	exits(cmd, exitOK, exitFailed, exitUsage)
	return cmd
}

func (a *app) recompute(o *recomputeOptions, paths []string) error {
	slo, err := parseSLO(o.slo)
	if err != nil {
		return &failure{status: exitUsage, message: err.Error(), err: err}
	}
	if o.parquet != "" && len(paths) > 1 {
		return &failure{status: exitUsage, message: "--parquet takes the load points of one measurement", hint: "give one ATTEMPT"}
	}
	var all []bench.Recomputed
	for _, path := range paths {
		stored, err := bench.ReadStored(path)
		if err != nil {
			status := exitFailed
			if errors.Is(err, os.ErrNotExist) {
				status = exitUsage
			}
			return &failure{status: status, message: lowerFirst(err.Error()), err: err}
		}
		again, err := stored.Recompute(slo)
		if err != nil {
			return &failure{status: exitUsage, message: err.Error(), err: err}
		}
		if o.parquet != "" {
			var b bytes.Buffer
			if err := resultfile.EncodeWindows(&b, stored.Attempt, again.Rows()); err != nil {
				return err
			}
			if err := os.WriteFile(o.parquet, b.Bytes(), 0o644); err != nil {
				return err
			}
		}
		all = append(all, again)
	}
	if a.json {
		return writeJSON(a.stdout, map[string]any{"measurements": all})
	}
	a.printRecomputed(o, all)
	return nil
}

// parseSLO reads METRIC=TIME.
func parseSLO(texts []string) (metrics.SLO, error) {
	slo := metrics.SLO{}
	for _, text := range texts {
		name, limit, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("--slo %s: want METRIC=TIME, as ttft_p99=500ms", text)
		}
		d, err := unit.Duration(limit)
		if err != nil {
			return nil, fmt.Errorf("--slo %s: %w", text, err)
		}
		slo[name] = d.Seconds()
	}
	return slo, slo.Check()
}

func (a *app) printRecomputed(o *recomputeOptions, all []bench.Recomputed) {
	t := newTable("SOURCE", "POINT>", "METRIC", "UNIT", "STORED>", "NOW>", "CHANGE>", "NOTE")
	differ, total := 0, 0
	for _, m := range all {
		for _, w := range m.Windows {
			for _, c := range w.Changes {
				total++
				if !c.Same() {
					differ++
				} else if !o.all {
					continue
				}
				t.add(m.Source, w.Index, c.Name, c.Unit, number(c.Stored), number(c.Recomputed), changed(c), dash(noteOf(c)))
			}
		}
		if m.Stored != m.Present {
			a.message("%s was stored under metrics %s; this is %s", m.Source, dash(m.Stored), m.Present)
		}
	}
	if len(t.rows) > 0 {
		t.print(a, o.table)
	}
	a.message("%d of %d metrics differ from what was stored", differ, total)
}

// changed is the relative change of a metric.
func changed(c bench.Change) string {
	switch {
	case c.Same():
		return "="
	case c.Stored == nil || c.Recomputed == nil || *c.Stored == 0:
		return "-"
	}
	return fmt.Sprintf("%+.2g%%", 100*(*c.Recomputed / *c.Stored - 1))
}

func noteOf(c bench.Change) string {
	if c.Kept != "" {
		return "kept: " + c.Kept
	}
	return c.Reason
}
