package metrics

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"sbench/internal/result"
)

// Direction says which way a metric is better.
type Direction string

// The directions.
const (
	Higher  Direction = "higher"
	Lower   Direction = "lower"
	Neutral Direction = "neutral" // neither: a count, a rate that the plan sets
)

// Level says what a metric is a number of.
type Level string

// The levels. A request-level metric is a statistic over the requests (or their
// events) of a window and carries its statistic in its name; over the runs of a
// setting its percentiles exist as merged, runs and mean_of_runs. A run-level
// metric is one number of a window.
const (
	LevelRequest Level = "request"
	LevelRun     Level = "run"
	LevelAttempt Level = "attempt"
)

// Statistic is how a request-level metric summarises its samples.
type Statistic string

// The statistics: nearest-rank percentiles, the same by numpy's rule (for
// comparison with other tools), and the arithmetic mean.
const (
	P50   Statistic = "p50"
	P90   Statistic = "p90"
	P95   Statistic = "p95"
	P99   Statistic = "p99"
	P50R7 Statistic = "p50_r7"
	P90R7 Statistic = "p90_r7"
	P95R7 Statistic = "p95_r7"
	P99R7 Statistic = "p99_r7"
	Mean  Statistic = "mean"
)

// Metric is one row of the table: what a number is called and what it means.
type Metric struct {
	Name   string // ttft_p95: JSON key, SQL and Parquet column
	Unit   string // s, 1/s, tokens, tokens/s, requests, items, ratio, J, J/token
	Better Direction
	Level  Level
	Base   string    // request level: what is summarised, "ttft"; "" at run level
	Stat   Statistic // request level: how; "" at run level
	Doc    string    // one line
}

// Quantile returns the percentile of a request-level metric as a fraction of
// integers, or 0, 0 for a mean or a run-level metric.
func (m Metric) Quantile() (num, den int) { return m.Stat.quantile() }

func (s Statistic) quantile() (num, den int) {
	switch s {
	case P50, P50R7:
		return 50, 100
	case P90, P90R7:
		return 90, 100
	case P95, P95R7:
		return 95, 100
	case P99, P99R7:
		return 99, 100
	case Mean:
	}
	return 0, 0
}

// Interpolated says whether the statistic follows numpy's rule.
func (s Statistic) Interpolated() bool {
	return s == P50R7 || s == P90R7 || s == P95R7 || s == P99R7
}

// base is a request-level quantity before it is summarised.
type base struct {
	name, unit string
	better     Direction
	doc        string
}

func bases() []base {
	return []base{
		{"schedule_delay", "s", Lower, "from when a request was due to when its last byte was handed to the kernel"},
		{"ttft", "s", Lower, "time to first token: from when the request was due to its first event with generated text"},
		{"ttft_service", "s", Lower, "time to first token counted from the send, for comparison with other tools"},
		{"ttfo", "s", Lower, "time to first output: from when the request was due to the first text that is not reasoning"},
		{"e2e", "s", Lower, "from when the request was due to its last event with text"},
		{"tpot", "s", Lower, "time per output token after the first event: (t_tokN - t_tok1)/(n - n1)"},
		{"chunk_gap", "s", Lower, "gap between successive events with text, over all requests; an event is not a token"},
		{"itl", "s", Lower, "inter-token latency: each gap divided by, and weighted with, the tokens of its event"},
		{"tokens_per_s_user", "tokens/s", Higher, "1/tpot of each request, summarised after the inversion"},
	}
}

func statistics() []Statistic {
	return []Statistic{P50, P90, P95, P99, P50R7, P90R7, P95R7, P99R7, Mean}
}

// Outcomes lists the outcome classes in the order of their columns.
func Outcomes() []result.Outcome {
	return []result.Outcome{
		result.OutcomeOK, result.OutcomeLengthMismatch, result.OutcomeHTTP4xx, result.OutcomeHTTP429,
		result.OutcomeHTTP5xx, result.OutcomeStreamError, result.OutcomeTruncatedStream,
		result.OutcomeBadPayload, result.OutcomeNoOutput, result.OutcomeConnectError,
		result.OutcomeClientLimit, result.OutcomeTimeoutConnect, result.OutcomeTimeoutFirstToken,
		result.OutcomeTimeoutTotal, result.OutcomeCancelledByPlan, result.OutcomeCutOff, result.OutcomeNotSent,
	}
}

// Table lists every metric of version v1 in the order of its columns. The slice
// is the caller's own.
func Table() []Metric { return slices.Clone(table()) }

// WindowTable lists the metrics that a load point has, in the order of its columns:
// all but those of an attempt. The slice is the caller's own.
func WindowTable() []Metric {
	return slices.DeleteFunc(Table(), func(m Metric) bool { return m.Level == LevelAttempt })
}

// table is made once: it is asked for with every attempt.
var table = sync.OnceValue(makeTable)

func makeTable() []Metric {
	table := runTable()
	for _, b := range bases() {
		for _, s := range statistics() {
			table = append(table, Metric{
				Name: b.name + "_" + string(s), Unit: b.unit, Better: b.better,
				Level: LevelRequest, Base: b.name, Stat: s, Doc: statDoc(s) + " of " + b.doc,
			})
		}
	}
	return append(table, attemptTable()...)
}

// The metrics of an evaluation of the engine's answers after the measurement.
const (
	QualityScore     = "quality_score"
	QualityStdDev    = "quality_stddev"
	QualityItems     = "quality_items"
	QualityScored    = "quality_scored"
	QualityFailed    = "quality_failed"
	QualityTruncated = "quality_truncated"
	QualitySeconds   = "quality_seconds"
)

// IsQuality says that a metric is of the evaluation.
func IsQuality(name string) bool { return strings.HasPrefix(name, "quality_") }

func attemptTable() []Metric {
	row := func(name, unit string, better Direction, doc string) Metric {
		return Metric{Name: name, Unit: unit, Better: better, Level: LevelAttempt, Doc: doc}
	}
	return []Metric{
		row(QualityScore, "ratio", Higher, "mean score of the items of the evaluation after the measurement; null without one, and where an item has no score"),
		row(QualityStdDev, "ratio", Neutral, "sample standard deviation of the scores over the items"),
		row(QualityItems, "items", Neutral, "items of the evaluation"),
		row(QualityScored, "items", Higher, "items that have a score"),
		row(QualityFailed, "items", Lower, "items that have none: the engine gave no answer, or the time was over"),
		row(QualityTruncated, "items", Lower, "answers that the limit on output tokens cut off; null with a command"),
		row(QualitySeconds, "s", Neutral, "how long the evaluation took; no part of any measurement"),
	}
}

func statDoc(s Statistic) string {
	if s == Mean {
		return "mean"
	}
	num, _ := s.quantile()
	if s.Interpolated() {
		return fmt.Sprintf("%dth percentile (numpy's rule)", num)
	}
	return fmt.Sprintf("%dth percentile", num)
}

func runTable() []Metric {
	run := func(name, unit string, better Direction, doc string) Metric {
		return Metric{Name: name, Unit: unit, Better: better, Level: LevelRun, Doc: doc}
	}
	table := []Metric{
		run("output_tokens_per_s", "tokens/s", Higher, "output tokens whose event lies in the window, by its length"),
		run("input_tokens_per_s", "tokens/s", Higher, "prompt tokens of the requests whose first token lies in the window, by its length"),
		run("requests_per_s", "1/s", Higher, "requests completed well in the window, by its length"),
		run("offered_rate", "1/s", Neutral, "requests due in the window, by its length"),
		run("achieved_rate", "1/s", Higher, "requests completed in the window whatever their outcome, by its length"),
		run("goodput", "1/s", Higher, "requests due in the window that met every SLO, by its length; null without an SLO"),
		run("goodput_ratio", "ratio", Higher, "share of the requests due in the window that met every SLO; null without an SLO"),
		run("error_rate", "ratio", Lower, "share of the requests due in the window that failed"),
		run("concurrency_mean", "requests", Neutral, "time integral of the requests in the system, by the window's length"),
		run("concurrency_max", "requests", Neutral, "most requests in the system at once in the window"),
		run("little_ratio", "ratio", Neutral, "arrival rate x mean time in the system / concurrency_mean; 1 where Little's law holds"),
		run("input_tokens_mean", "tokens", Neutral, "mean prompt tokens of the requests due in the window, by the server's count"),
		run("output_tokens_mean", "tokens", Neutral, "mean output tokens of the requests that ended well"),
		run("cached_tokens_ratio", "ratio", Neutral, "share of the prompt tokens that the server says came from its prefix cache"),
		run("energy_joules", "J", Lower, "energy of the allocated GPUs over the window; null where it is not measured"),
		run("energy_per_output_token", "J/token", Lower, "energy_joules by the output tokens of the window"),
		run("requests_offered", "requests", Neutral, "requests due in the window"),
	}
	for _, o := range Outcomes() {
		better := Lower
		if o == result.OutcomeOK {
			better = Higher
		}
		table = append(table, run("requests_"+string(o), "requests", better, "requests due in the window with outcome "+string(o)))
	}
	return table
}

// Find returns the metric of that name.
func Find(name string) (Metric, bool) {
	table := Table()
	i := slices.IndexFunc(table, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return table[i], true
}
