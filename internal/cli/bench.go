package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/bench"
	"sbench/internal/result"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
	"sbench/internal/sweep"
)

// benchOptions are the flags of sbench bench.
type benchOptions struct {
	url, model, tokenFile string
	parquet, hdr          string
	repeat                int
	stop                  bool
	client                loadgen.Client
	table                 tableFlags
}

func newBenchCommand(a *app) *cobra.Command {
	o := &benchOptions{}
	cmd := &cobra.Command{
		Use:   "bench --url URL WORKLOAD.yaml",
		Short: "offer a workload to a running server and measure it",
		Long: `Runs the load generator alone, without Slurm and without a database: the same
plan, metrics and fidelity audit as in a sweep. The workload file has the key
workload as in the setting of a sweep file, and may have model, slo and
max_error_rate. Requests leave at their planned times, whether or not earlier
ones were answered; latencies count from those times. Where the client itself
was too slow to be believed, the command says so and fails.`,
		Example: "sbench bench --url http://127.0.0.1:8000 chat.yaml\nsbench bench --url unix:///run/engine.sock --json chat.yaml > result.json",
		Args:    nArgs(1, 1, "WORKLOAD.yaml"),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.bench(cmd.Context(), o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.url, "url", "", "the server: http://host:port, https://…, unix:///path/to/socket")
	f.StringVar(&o.model, "model", "", "the model's name in the requests (default: the file's, else the first that the server lists)")
	f.StringVar(&o.tokenFile, "token-file", "", "file with a bearer token for the server")
	f.IntVar(&o.repeat, "repeat", 0, "number of the repeat: each draws requests of its own from the seed")
	f.BoolVar(&o.stop, "stop-when-saturated", true, "end a ladder behind the first load point that was too much")
	f.StringVar(&o.parquet, "parquet", "", "write one row per request to a Parquet `file`")
	f.StringVar(&o.hdr, "hdr", "", "write the latencies to an HdrHistogram log `file`")
	f.IntVar(&o.client.Readers, "readers", 1, "threads that read answers")
	f.DurationVar(&o.client.Spin, "spin", 0, "spin so long before each send instead of sleeping: for a client with cores of its own")
	f.IntSliceVar(&o.client.CPUs, "cpus", nil, "bind the client's threads to these cores")
	f.IntVar(&o.client.Preopen, "connections", 0, "connections to open beforehand (default: by the rate; -1: none, for servers that give each a thread)")
	addTableFlags(f, &o.table)
	exits(cmd, exitOK, exitFailed, exitUsage, exitUnreachable)
	return cmd
}

// benchInput reads the files that a load run is made of.
func (a *app) benchInput(o *benchOptions, name string) (bench.Options, error) {
	if o.url == "" {
		return bench.Options{}, &failure{status: exitUsage, message: "missing flag: --url", hint: "as in --url http://127.0.0.1:8000"}
	}
	if _, err := loadgen.ParseTarget(o.url); err != nil {
		return bench.Options{}, &failure{status: exitUsage, message: err.Error(), err: err}
	}
	load, trace, prompts, err := a.readLoad(name)
	if err != nil {
		return bench.Options{}, err
	}
	out := bench.Options{
		URL: o.url, Model: o.model, Workload: load.Workload, Repeat: o.repeat, SLO: load.SLO, MaxErrorRate: load.MaxErrorRate,
		StopWhenSaturated: o.stop, Client: o.client, Trace: trace, Prompts: prompts,
	}
	if out.Model == "" {
		out.Model = load.Model
	}
	if o.tokenFile != "" {
		token, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return out, &failure{status: exitUsage, message: lowerFirst(err.Error()), err: err}
		}
		out.Authorization = "Bearer " + strings.TrimSpace(string(token))
	}
	return out, nil
}

// readLoad reads a workload file and the trace and prompts that it names, whose
// paths are relative to it.
func (a *app) readLoad(name string) (load *sweep.Load, trace, prompts []byte, err error) {
	shown, text, err := a.readSweepFile(name)
	if err != nil {
		return nil, nil, nil, err
	}
	load, list := sweep.ParseWorkload(text, shown)
	if load == nil {
		return nil, nil, nil, faulty(shown, list)
	}
	if !a.json {
		_, _ = io.WriteString(a.stderr, list.Text())
	}
	read := func(path string) []byte {
		if err != nil {
			return nil
		}
		if !filepath.IsAbs(path) && name != "-" {
			path = filepath.Join(filepath.Dir(name), path)
		}
		b, readErr := os.ReadFile(path)
		if readErr != nil {
			err = &failure{status: exitUsage, message: lowerFirst(readErr.Error()), err: readErr}
		}
		return b
	}
	if load.Workload.Arrival.Process == setting.ProcessTrace {
		trace = read(load.Workload.Arrival.TracePath)
	}
	if load.Workload.Prompts.Source == "file" {
		prompts = read(load.Workload.Prompts.FilePath)
	}
	return load, trace, prompts, err
}

func (a *app) bench(ctx context.Context, o *benchOptions, name string) error {
	in, err := a.benchInput(o, name)
	if err != nil {
		return err
	}
	show := newLoadProgress(a)
	in.Progress = show.show
	report, err := bench.Run(ctx, in)
	show.close()
	if err != nil {
		status := exitFailed
		if loadgen.Unreachable(err) {
			status = exitUnreachable
		}
		if errors.Is(err, context.Canceled) {
			return err
		}
		return &failure{status: status, message: err.Error(), err: err, hint: benchHint(err)}
	}
	if err := writeBenchFiles(o, report); err != nil {
		return &failure{status: exitFailed, message: err.Error(), err: err}
	}
	if a.json {
		if err := writeJSON(a.stdout, report.Document()); err != nil {
			return err
		}
	} else {
		a.printBench(report, o.table)
	}
	if report.Valid {
		return nil
	}
	f := &failure{status: exitFailed, message: "the measurement is not valid: do not publish it"}
	for _, c := range report.Checks {
		if c.Verdict == result.VerdictFail && c.Kind != result.CheckFinding {
			f.reasons = append(f.reasons, c.Name+": "+c.Reason)
		}
	}
	return f
}

// benchHint says what to do about a server that cannot be measured; "" where the
// error says all.
func benchHint(err error) string {
	switch status := loadgen.Refused(err); {
	case loadgen.Unreachable(err):
		return "is the server up, and is this its address?"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "--token-file FILE sends the token in it"
	case status == http.StatusNotFound:
		return "does the server have this model (--model) and this endpoint (workload.request.endpoint: chat or completions)?"
	case status == http.StatusServiceUnavailable:
		return "a server that is still loading its model answers like this: try again later"
	}
	return ""
}

func writeBenchFiles(o *benchOptions, report bench.Report) error {
	var b bytes.Buffer
	if o.parquet != "" {
		if err := report.WriteRequests(&b); err != nil {
			return err
		}
		if err := os.WriteFile(o.parquet, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if o.hdr != "" {
		b.Reset()
		report.WriteHistograms(&b)
		return os.WriteFile(o.hdr, b.Bytes(), 0o644)
	}
	return nil
}

// printBench prints a table of the latencies for a single load point, one row per
// load point for a ladder, and what the audit has to say.
func (a *app) printBench(report bench.Report, flags tableFlags) {
	if len(report.Windows) == 1 {
		w := report.Windows[0]
		t := newTable("METRIC", "UNIT", "P50>", "P90>", "P95>", "P99>", "MEAN>")
		for _, base := range bench.Bases() {
			row := []any{base.Name, base.Unit}
			for _, stat := range []string{"p50", "p90", "p95", "p99", "mean"} {
				row = append(row, number(w.Metrics[base.Name+"_"+stat]))
			}
			t.add(row...)
		}
		t.print(a, flags)
		if !flags.parsable {
			fmt.Fprintln(a.stdout)
		}
		t = newTable("METRIC", "UNIT", "VALUE>")
		for _, m := range bench.RunMetrics(w) {
			t.add(m.Name, m.Unit, number(w.Metrics[m.Name]))
		}
		t.print(a, flags)
	} else {
		columns := []string{"offered_rate", "achieved_rate", "output_tokens_per_s", "concurrency_mean", "ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95", "e2e_p95", "error_rate"}
		head := []string{"POINT"}
		for _, c := range columns {
			head = append(head, c+">")
		}
		t := newTable(append(head, "FINDINGS")...)
		for _, w := range report.Windows {
			row := []any{fmt.Sprintf("%g/s", w.OfferedRate)}
			for _, c := range columns {
				row = append(row, number(w.Metrics[c]))
			}
			t.add(append(row, dash(strings.Join(w.Findings, ",")))...)
		}
		t.print(a, flags)
	}
	if report.Stopped != "" {
		a.message("%s", report.Stopped)
	}
	a.explainNulls(report)
	verdicts := map[result.Verdict]int{}
	for _, c := range report.Checks {
		verdicts[c.Verdict]++
	}
	a.message("%s: plan %.8s, tokens counted by %s; of %d checks %d passed, %d failed, %d are unknown (--json has them all)",
		cmp.Or(report.Served.Model, "the server"), report.PlanHash, cmp.Or(report.Served.TokenSource, "nobody"), len(report.Checks),
		verdicts[result.VerdictPass], verdicts[result.VerdictFail], verdicts[result.VerdictUnknown])
	for _, c := range report.Checks {
		if c.Verdict == result.VerdictFail && c.Kind == result.CheckFinding {
			a.message("finding: %s: %s", c.Name, c.Reason)
		}
	}
}

// explainNulls says why percentiles of the time to first token are missing: the
// others miss for the same reason.
func (a *app) explainNulls(report bench.Report) {
	said := map[string]bool{}
	for _, w := range report.Windows {
		for _, stat := range []string{"p95", "p99"} {
			why, missing := w.NullReasons["ttft_"+stat]
			if missing && !said[stat+why] {
				said[stat+why] = true
				a.message("no ttft_%s at %g/s: %s", stat, w.OfferedRate, why)
			}
		}
	}
}

// loadProgress shows a load run's way on stderr.
type loadProgress struct {
	w        io.Writer
	terminal bool
	quiet    bool
	last     string
	lastLine time.Duration
	started  int64
}

func newLoadProgress(a *app) *loadProgress {
	return &loadProgress{w: a.stderr, terminal: isTerminal(a.stderr) && a.env("TERM") != "dumb", quiet: a.json}
}

// betweenLines is how often a line is printed where there is no terminal.
const betweenLines = 10 * time.Second

func (p *loadProgress) show(now loadgen.Progress) {
	if p.quiet {
		return
	}
	left := max(0, time.Duration(now.End-now.At)).Round(time.Second)
	phase := string(now.Phase)
	if now.Windows > 1 {
		phase += fmt.Sprintf(" %d/%d", now.Window+1, now.Windows)
	}
	text := fmt.Sprintf("%s: %d offered, %d done, %d failed, %d in flight, %s to go", phase, now.Offered, now.Done, now.Failed, now.InFlight, left)
	if p.terminal {
		if p.started == 0 {
			p.started = now.At
		}
		fmt.Fprintf(p.w, "\r\x1b[K%s %s", bar(int(max(0, min(now.At, now.End)-p.started)), int(max(1, now.End-p.started)), 20), text)
		p.last = text
		return
	}
	if at := time.Duration(now.At); p.lastLine == 0 || at-p.lastLine >= betweenLines {
		p.lastLine = at
		fmt.Fprintf(p.w, "sbench: %s\n", text)
	}
}

func (p *loadProgress) close() {
	if p.terminal && p.last != "" {
		fmt.Fprintln(p.w)
	}
}
