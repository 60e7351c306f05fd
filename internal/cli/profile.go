package cli

import (
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/setting"
	"sbench/internal/workload"
)

type profileOptions struct{ replay bool }

func newProfileCommand(a *app) *cobra.Command {
	o := &profileOptions{}
	cmd := &cobra.Command{
		Use:   "profile [flags] FILE...",
		Short: "turn a request log or a public trace into a workload",
		Long: `Reads request logs (JSONL or CSV with a time, and where they have them input and
output token counts, under the names that public traces use: Mooncake, Azure,
BurstGPT), and prints the block workload for a sweep or for sbench bench: rate and
burstiness of the arrivals, distributions of the token counts, drawn together
where they depend on each other. What the log looks like, with plots, is said on
standard error. Rows without tokens, as failures have, are left out and counted.
With --replay the block replays the one FILE at its own times instead.`,
		Example: "sbench profile burstgpt.csv > chat.yaml\nsbench profile --replay mooncake.jsonl > replay.yaml",
		Args:    nArgs(1, -1, "FILE"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.profile(o, args) },
	}
	cmd.Flags().BoolVar(&o.replay, "replay", false, "replay the log at its own times, with its own lengths")
	exits(cmd, exitOK, exitUsage)
	return cmd
}

// profileDocument is a profile as JSON: null for what the log does not say.
type profileDocument struct {
	Requests    int             `json:"requests"`
	Skipped     int             `json:"skipped_rows"`
	Seconds     float64         `json:"seconds"`
	Rate        float64         `json:"rate_per_s"`
	GapCV       float64         `json:"gap_cv"`
	Dispersion  float64         `json:"dispersion"`
	Drift       float64         `json:"drift_ratio"`
	Correlation *float64        `json:"input_output_correlation"`
	Input       *spreadDocument `json:"input_tokens"`
	Output      *spreadDocument `json:"output_tokens"`
	Workload    string          `json:"workload_yaml"`
}

type spreadDocument struct {
	Min  int     `json:"min"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  int     `json:"max"`
	Mean float64 `json:"mean"`
}

func spreadOf(s workload.Spread, n int) *spreadDocument {
	if n == 0 {
		return nil
	}
	return &spreadDocument{s.Min, s.P50, s.P90, s.P95, s.P99, s.Max, s.Mean}
}

func (a *app) profile(o *profileOptions, files []string) error {
	if o.replay && len(files) > 1 {
		return &failure{status: exitUsage, message: "--replay takes one FILE"}
	}
	var logs [][]byte
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return &failure{status: exitUsage, message: lowerFirst(err.Error()), err: err}
		}
		logs = append(logs, b)
	}
	p, err := workload.ProfileLog(logs...)
	if err != nil {
		return &failure{status: exitUsage, message: strings.Join(files, ", ") + ": " + err.Error(), err: err, hint: "a log has one request a line, with its time: see docs/load-generator.md"}
	}
	w := p.Workload()
	if o.replay {
		if p.Skipped > 0 || len(p.Inputs) < p.Requests || len(p.Outputs) < p.Requests {
			return &failure{
				status: exitUsage, message: fmt.Sprintf("%s: only logs whose every row has input and output tokens can be replayed", files[0]),
				hint: "take out the rows of failed requests, or leave --replay out",
			}
		}
		w.Arrival = setting.Arrival{Process: setting.ProcessTrace, TracePath: files[0], TraceScale: 1, TraceDigest: fmt.Sprintf("sha256:%x", sha256.Sum256(logs[0]))}
		w.Input, w.Output = setting.Lengths{Distribution: setting.DistFile}, setting.Lengths{Distribution: setting.DistFile}
	}
	text := workloadYAML(w, fmt.Sprintf("of %s: %d requests in %.0f s", strings.Join(files, ", "), p.Requests, p.Seconds))
	if a.json {
		doc := profileDocument{
			Requests: p.Requests, Skipped: p.Skipped, Seconds: p.Seconds, Rate: p.Rate, GapCV: p.GapCV, Dispersion: p.Dispersion, Drift: p.Drift,
			Input: spreadOf(p.Input, len(p.Inputs)), Output: spreadOf(p.Output, len(p.Outputs)), Workload: text,
		}
		if !math.IsNaN(p.Correlation) {
			doc.Correlation = &p.Correlation
		}
		return writeJSON(a.stdout, doc)
	}
	a.describeLog(p)
	a.print("%s", text)
	return nil
}

// workloadYAML writes a workload as a person would, without what is default.
func workloadYAML(w setting.Workload, comment string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\nworkload:\n", strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, comment))
	switch w.Arrival.Process {
	case setting.ProcessTrace:
		fmt.Fprintf(&b, "  arrival: {process: trace, trace_path: %s, trace_digest: %q}\n", quoted(w.Arrival.TracePath), w.Arrival.TraceDigest)
	case setting.ProcessGamma:
		fmt.Fprintf(&b, "  arrival: {process: gamma, rate: %g/s, burstiness: %g}\n", w.Arrival.Rate, w.Arrival.Burstiness)
	default:
		fmt.Fprintf(&b, "  arrival: {process: %s, rate: %g/s}\n", w.Arrival.Process, w.Arrival.Rate)
	}
	b.WriteString(lengthsYAML("input_tokens", w.Input))
	b.WriteString(lengthsYAML("output_tokens", w.Output))
	fmt.Fprintf(&b, "  duration: %ds\n", int(w.Duration.Seconds()))
	return b.String()
}

func quoted(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"` }

func lengthsYAML(key string, l setting.Lengths) string {
	head := fmt.Sprintf("  %s: {distribution: %s", key, l.Distribution)
	switch l.Distribution {
	case "":
		return fmt.Sprintf("  %s: {distribution: constant, value: 512} # the log does not say\n", key)
	case setting.DistConstant:
		return fmt.Sprintf("%s, value: %d}\n", head, l.Value)
	case setting.DistLognormal:
		return fmt.Sprintf("%s, median: %g, sigma: %g, min: %d, max: %d}\n", head, l.Median, l.Sigma, l.Min, l.Max)
	case setting.DistHistogram:
		var bins []string
		for _, bin := range l.Bins {
			bins = append(bins, fmt.Sprintf("\n      - {min: %d, max: %d, weight: %g}", bin.Min, bin.Max, bin.Weight))
		}
		return fmt.Sprintf("  %s:\n    distribution: histogram\n    bins:%s\n", key, strings.Join(bins, ""))
	case setting.DistPairs:
		if len(l.Pairs) == 0 {
			return head + "}\n"
		}
		var pairs []string
		for _, pair := range l.Pairs {
			pairs = append(pairs, fmt.Sprintf("\n      - {input: %d, output: %d, weight: %g}", pair.Input, pair.Output, pair.Weight))
		}
		return fmt.Sprintf("  %s:\n    distribution: pairs\n    pairs:%s\n", key, strings.Join(pairs, ""))
	case setting.DistUniform, setting.DistNormal, setting.DistFile:
	}
	return head + "}\n"
}

// describeLog says on stderr what the log looks like.
func (a *app) describeLog(p workload.Profile) {
	a.message("%d requests in %.0f s: %.4g/s, gaps with a coefficient of variation of %.2f (Poisson: 1), counts per second with a dispersion of %.2f (Poisson: 1)",
		p.Requests, p.Seconds, p.Rate, p.GapCV, p.Dispersion)
	if p.Skipped > 0 {
		a.message("%d rows have no input or no output tokens, as failures have, and are left out", p.Skipped)
	}
	if math.Abs(p.Drift) > 0.2 {
		a.message("the rate changes by %+.0f %% from the first half to the second: one rate stands for it badly, --replay keeps it", 100*p.Drift)
	}
	if !math.IsNaN(p.Correlation) {
		a.message("input and output tokens correlate with %.2f", p.Correlation)
	}
	perMinute := make([]float64, len(p.PerMinute))
	for i, n := range p.PerMinute {
		perMinute[i] = float64(n)
	}
	a.message("requests per minute:\n%s", plot(perMinute))
	for _, what := range []struct {
		name   string
		spread workload.Spread
		counts []int32
	}{{"input", p.Input, p.Inputs}, {"output", p.Output, p.Outputs}} {
		if len(what.counts) == 0 {
			a.message("the log has no %s tokens: the block has a number that is not the log's", what.name)
			continue
		}
		s := what.spread
		a.message("%s tokens: %d to %d, median %g, p90 %g, p99 %g:\n%s", what.name, s.Min, s.Max, s.P50, s.P90, s.P99, plot(logBins(what.counts, s)))
	}
}

const plotWidth = 60

// logBins counts in ranges of equal width on a logarithmic axis.
func logBins(counts []int32, s workload.Spread) []float64 {
	bins := make([]float64, plotWidth)
	low, high := math.Log(float64(s.Min)), math.Log(float64(s.Max)+1)
	for _, c := range counts {
		bins[min(plotWidth-1, int((math.Log(float64(c))-low)/(high-low)*plotWidth))]++
	}
	return bins
}

// plot draws values as one line of blocks, gathered to plotWidth columns.
func plot(values []float64) string {
	columns := min(plotWidth, len(values))
	sums := make([]float64, columns)
	for i := range columns {
		from, to := i*len(values)/columns, (i+1)*len(values)/columns
		for _, v := range values[from:to] {
			sums[i] += v / float64(to-from)
		}
	}
	most := slices.Max(sums)
	var b strings.Builder
	b.WriteString("  ")
	for _, v := range sums {
		if v == 0 {
			b.WriteRune(' ')
			continue
		}
		b.WriteRune([]rune("▁▂▃▄▅▆▇█")[int(math.Round(v/most*7))])
	}
	return b.String()
}
