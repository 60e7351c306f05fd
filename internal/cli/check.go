package cli

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/api"
	"sbench/internal/regress"
)

type checkOptions struct {
	req             api.CheckRequest
	budget          int
	junit, markdown string
	table           tableFlags
}

func newCheckCommand(a *app) *cobra.Command {
	o := &checkOptions{}
	cmd := &cobra.Command{
		Use:   "check --baseline NAME SWEEP",
		Short: "hold a sweep against a baseline, for CI",
		Long: `Waits for the sweep and compares each series with the baseline's: output tokens/s
and TTFT p95, worse by --fail-threshold beyond doubt is a regression. What cannot
be decided is run again, both sides interleaved, within --budget runs; what is
still undecided then, or has no valid result, ends with 4: it is never a pass. Each
undecided series says the smallest difference that could have been seen.`,
		Example: "sbench baseline set main 17\nsbench check --baseline main 18 --junit check.xml --markdown check.md",
		Args:    nArgs(1, 1, "SWEEP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := positiveID("sweep", args[0])
			if err != nil {
				return err
			}
			o.req.SweepID = id
			return o.run(a, cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.req.Baseline, "baseline", "", "the `name` of the baseline")
	f.Float64Var(&o.req.Threshold, "fail-threshold", 0.05, "the relative change for the worse that fails")
	f.IntVar(&o.budget, "budget", 40, "`runs` at most to decide what is undecided; 0 for none")
	f.StringVar(&o.junit, "junit", "", "write a JUnit report into `file`")
	f.StringVar(&o.markdown, "markdown", "", "write a Markdown report into `file`")
	addTableFlags(f, &o.table)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitIncomplete, exitRegression, exitUnreachable)
	return cmd
}

func (o *checkOptions) run(a *app, cmd *cobra.Command) error {
	switch {
	case o.req.Baseline == "":
		return usagef("missing flag: --baseline NAME")
	case !(o.req.Threshold > 0 && o.req.Threshold < 1):
		return usagef("--fail-threshold %g is not between 0 and 1", o.req.Threshold)
	case o.budget < 0:
		return usagef("--budget %d is negative", o.budget)
	}
	client := a.client()
	if _, err := a.awaitSweep(cmd.Context(), client, o.req.SweepID); err != nil {
		return err
	}
	report, err := client.Check(cmd.Context(), o.req)
	if err != nil {
		return err
	}
	if report.Counts[regress.Undecided] > 0 && o.budget > 0 {
		again, err := client.Confirm(cmd.Context(), api.ConfirmRequest{CheckRequest: o.req, Budget: o.budget})
		var refusal *api.Problem
		switch {
		case errors.As(err, &refusal) && refusal.Code == api.CodeRefused:
			// The report stands without: what is undecided stays so.
			a.message("the undecided series are not run again: %v", refusal)
		case err != nil:
			return err
		}
		if again.SweepID != 0 {
			a.message("%d series are undecided: sweep %d runs them again, %d runs", report.Counts[regress.Undecided], again.SweepID, again.Runs)
			if _, err := a.awaitSweep(cmd.Context(), client, again.SweepID); err != nil {
				return err
			}
			o.req.Confirmation = again.SweepID
			if report, err = client.Check(cmd.Context(), o.req); err != nil {
				return err
			}
		}
	}
	return o.conclude(a, report)
}

// conclude prints the report and turns it into an exit status.
func (o *checkOptions) conclude(a *app, r api.CheckReport) error {
	if o.junit != "" {
		text, err := junit(r)
		if err == nil {
			err = os.WriteFile(o.junit, text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", o.junit, err)
		}
	}
	t := checkTable(r)
	if o.markdown != "" {
		text := fmt.Sprintf("### sbench check: sweep %d against %s (%s)\n\n%s\n", r.SweepID, r.Baseline.Name, checkCounts(r), t.markdown())
		if err := os.WriteFile(o.markdown, []byte(text), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", o.markdown, err)
		}
	}
	if a.json {
		if err := writeJSON(a.stdout, r); err != nil {
			return err
		}
	} else {
		t.print(a, o.table)
	}
	open := r.Counts[regress.Undecided] + r.Counts[regress.Missing]
	switch {
	case r.Counts[regress.Regressed] > 0:
		return &failure{status: exitRegression, message: checkCounts(r)}
	case open > 0:
		return &failure{status: exitIncomplete, message: checkCounts(r), hint: "more repeats, a quieter machine or a larger --budget decide"}
	case len(r.Series) == 0:
		return &failure{status: exitIncomplete, message: "no series to compare"}
	}
	a.message("%s", checkCounts(r))
	return nil
}

func checkCounts(r api.CheckReport) string {
	var parts []string
	for _, o := range []regress.Outcome{regress.Regressed, regress.Undecided, regress.Missing, regress.Pass, regress.New} {
		if n := r.Counts[o]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, o))
		}
	}
	return strings.Join(parts, ", ")
}

func checkTable(r api.CheckReport) *table {
	t := newTable("SERIES", "OUTCOME", "METRIC", "RATIO>", "95 %", "VERDICT", "MDE>", "N>", "REASON")
	for _, v := range r.Series {
		outcome := cell{text: string(v.Outcome)}
		switch v.Outcome {
		case regress.Regressed:
			outcome.style = red
		case regress.Undecided, regress.Missing:
			outcome.style = yellow
		case regress.Pass, regress.New:
		}
		if len(v.Metrics) == 0 {
			t.add(short(v.Series), outcome, "", "", "", "", "", "", v.Reason)
		}
		for _, m := range v.Metrics {
			t.add(short(v.Series), outcome, withUnit(m.Metric), number(m.Ratio), rangeText(m.RatioLow, m.RatioHigh), verdictCell(m.Verdict),
				percent(m.MDE), fmt.Sprintf("%d/%d", m.NValue, m.NBase), v.Reason)
		}
	}
	return t
}

// junitSuite is the part of JUnit's format that CI systems read.
type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string      `xml:"classname,attr"`
	Name    string      `xml:"name,attr"`
	Failure *junitFault `xml:"failure"`
	Error   *junitFault `xml:"error"`
	Skipped *junitFault `xml:"skipped"`
	Out     string      `xml:"system-out,omitempty"`
}

type junitFault struct {
	Message string `xml:"message,attr"`
}

// junit has a test case per series: a regression is a failure, what is undecided
// an error.
func junit(r api.CheckReport) ([]byte, error) {
	s := junitSuite{Name: "sbench check against " + r.Baseline.Name, Tests: len(r.Series)}
	for _, v := range r.Series {
		c := junitCase{Class: fmt.Sprintf("sweep.%d", r.SweepID), Name: short(v.Series)}
		fault := &junitFault{printable(v.Reason)}
		switch v.Outcome {
		case regress.Regressed:
			c.Failure, s.Failures = fault, s.Failures+1
		case regress.Undecided, regress.Missing:
			c.Error, s.Errors = fault, s.Errors+1
		case regress.New:
			c.Skipped, s.Skipped = fault, s.Skipped+1
		case regress.Pass:
		}
		for _, m := range v.Metrics {
			c.Out += fmt.Sprintf("%s ratio %s (%s), %s, smallest detectable %s\n", m.Metric, number(m.Ratio), rangeText(m.RatioLow, m.RatioHigh), m.Verdict, percent(m.MDE))
		}
		s.Cases = append(s.Cases, c)
	}
	text, err := xml.MarshalIndent(s, "", "  ")
	return append([]byte(xml.Header), append(text, '\n')...), err
}

func newBaselineCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "baseline", Short: "name sweeps that others are held against"}
	var note string
	set := &cobra.Command{
		Use: "set NAME SWEEP", Short: "name a sweep, or move a name to it", Args: nArgs(2, 2, "NAME SWEEP"),
		Example: "sbench baseline set main 17",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := positiveID("sweep", args[1])
			if err != nil {
				return err
			}
			b, err := a.client().SetBaseline(cmd.Context(), api.BaselineRequest{Name: args[0], SweepID: id, Note: note})
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, b)
			}
			a.print("Baseline %s is sweep %d\n", b.Name, b.SweepID)
			return nil
		},
	}
	set.Flags().StringVar(&note, "note", "", "`text` that says why")
	var flags tableFlags
	list := &cobra.Command{
		Use: "list", Short: "list the baselines", Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.client().Baselines(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, all)
			}
			t := newTable("NAME", "SWEEP>", "USER", "SET", "NOTE")
			for _, b := range all {
				t.add(b.Name, b.SweepID, b.User, clock(&b.CreatedAt), b.Note)
			}
			t.print(a, flags)
			return nil
		},
	}
	addTableFlags(list.Flags(), &flags)
	rm := &cobra.Command{
		Use: "rm NAME", Short: "forget a name; the sweep stays", Args: nArgs(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.client().RemoveBaseline(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, b)
			}
			a.print("Baseline %s is no more; sweep %d stays\n", b.Name, b.SweepID)
			return nil
		},
	}
	for _, c := range []*cobra.Command{set, list, rm} {
		exits(c, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
		cmd.AddCommand(c)
	}
	return cmd
}
