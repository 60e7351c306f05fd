// Package aggregate sums up the valid results of a setting in a sweep: mean,
// spread and interval of every metric over the runs, with the counts that say
// how much they are worth. It promises the same answer for the same runs in any
// order; it refuses to pool unlike environments and to leave out a run whose
// value is undefined. The package is pure.
package aggregate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sbench/internal/metrics"
	"sbench/internal/result"
)

// MinRuns is the smallest number of runs with an interval; below ProvisionalRuns
// a reproducibility score is provisional.
const (
	MinRuns         = 3
	ProvisionalRuns = 5
)

// The metrics whose spread makes the reproducibility score.
const (
	throughputMetric = "output_tokens_per_s"
	tailMetric       = "ttft_p95"
)

// The suffixes that say how a percentile of requests was taken over runs.
const (
	MergedSuffix     = "_merged"       // of the requests of all runs together
	MeanOfRunsSuffix = "_mean_of_runs" // mean of each run's own percentile
)

// Headline names the metrics that results are printed with where none are asked
// for. The slice is the caller's own.
func Headline() []string {
	return []string{
		throughputMetric, "achieved_rate", "ttft_p50" + MergedSuffix, tailMetric + MergedSuffix, "tpot_p50" + MergedSuffix, "e2e_p95" + MergedSuffix,
		"goodput", metrics.QualityScore,
	}
}

// Run is the valid result of one run. Of a run with several, the caller gives one.
type Run struct {
	AttemptID      int64
	Repeat         int // from 0; runs are decided about in this order
	Nodes          []string
	Fingerprint    string // equal where the realized environments are
	MetricsVersion string
	Findings       []string
	Metrics        result.Metrics
	NullReasons    map[string]string
}

// place is where the run was: its node, or the nodes of its gang.
func (r Run) place() string {
	if len(r.Nodes) == 1 {
		return r.Nodes[0]
	}
	return strings.Join(slices.Sorted(slices.Values(r.Nodes)), "+")
}

// Merged holds the percentiles over the requests of all runs of a group, by the
// metric's name for one run (ttft_p95), and why one is null.
type Merged struct {
	Metrics     result.Metrics
	NullReasons map[string]string
}

// Input is everything that a setting's summary is made of.
type Input struct {
	NTotal   int  // runs that there should be
	Terminal bool // no run can change by itself any more
	Runs     []Run
	// Target is the relative half-width that makes a setting precise; 0 is
	// DefaultTarget. Gating are the metrics that have to reach it; nil is output
	// tokens/s and TTFT p95.
	Target float64
	Gating []string
	// HalfWidths are the intervals that an adaptive number of runs was decided on.
	// They take the place of Student's, which does not hold where N depends on the
	// values.
	HalfWidths map[string]HalfWidth
	// History is of earlier nights, by metric; nil where it was not asked for.
	History map[string]History
	// Merge computes the merged percentiles of the attempts; nil where their
	// requests are not at hand. It is called once, with ascending ids.
	Merge func(attempts []int64) (Merged, error)
}

// HalfWidth is the half-width of a 95 % interval of the mean of logarithms.
type HalfWidth struct {
	Log  float64
	N    int    // of so many values
	Rule string // pooled, stein
}

// Metric is one metric over runs, in the unit that metrics.Table says. Null is
// unknown, with the reason in NullReason where Mean is null.
type Metric struct {
	N      int      `json:"n"`    // runs with a value
	Mean   *float64 `json:"mean"` // of a merged percentile: the percentile itself
	StdDev *float64 `json:"stddev"`
	CILow  *float64 `json:"ci_low"` // 95 %
	CIHigh *float64 `json:"ci_high"`
	// RelativeCI is half the interval's width by the value.
	RelativeCI *float64 `json:"relative_ci"`
	// Scale is "log" where the interval was made on logarithms, around the
	// geometric mean (or the merged percentile), else "linear".
	Scale string `json:"scale"`
	// Rule says how the interval was made: t (Student's, of the runs), nodes (runs
	// share nodes that differ: by the sums of squares between and within these), or
	// pooled and stein, of an adaptive number of runs. "" where there is none.
	Rule       string `json:"rule,omitempty"`
	NullReason string `json:"null_reason,omitempty"`
}

// Group is the runs that realized one environment.
type Group struct {
	Fingerprint string  `json:"fingerprint"`
	Attempts    []int64 `json:"attempts"` // ascending
}

// Code names a kind of warning.
type Code string

// The warnings.
const (
	WarnMixed       Code = "mixed"        // environments differ: only the largest group is summed up
	WarnIncomplete  Code = "incomplete"   // runs are missing
	WarnFewRuns     Code = "few_runs"     // too few for an interval
	WarnOneNode     Code = "one_node"     // the interval does not cover differences between nodes
	WarnProvisional Code = "provisional"  // reproducibility of few runs
	WarnNoRequests  Code = "no_requests"  // merged percentiles are missing
	WarnVersions    Code = "two_versions" // results of two metrics versions
	WarnNodeBound   Code = "node_bound"   // nodes differ by more than runs do
	WarnBimodal     Code = "bimodal"      // the runs fall into two groups
)

// Warning is what a reader of the numbers has to know.
type Warning struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// Summary is what is published of a setting.
type Summary struct {
	NValid  int
	NTotal  int
	IsFinal bool
	// Mixed says that the runs realized different environments. The metrics are
	// then those of the first of Groups alone.
	Mixed          bool
	Groups         []Group // largest first
	Nodes          int     // different nodes of the runs summed up
	Findings       []string
	MetricsVersion string
	Metrics        map[string]Metric
	// Reproducibility is 1 minus the larger coefficient of variation of output
	// tokens/s and TTFT p95, within 0 and 1; nil below two runs.
	Reproducibility *float64
	// Verdicts say what the numbers are worth: one of precise, noisy and unknown,
	// then node-bound and bimodal where they apply.
	Verdicts []Verdict
	Warnings []Warning
}

// Compute sums up. The error is Merge's.
func Compute(in Input) (Summary, error) {
	runs := slices.SortedFunc(slices.Values(in.Runs), func(a, b Run) int { return int(min(1, max(-1, a.AttemptID-b.AttemptID))) })
	s := Summary{
		NValid: len(runs), NTotal: max(in.NTotal, len(runs)), IsFinal: in.Terminal,
		Groups: groups(runs), Metrics: map[string]Metric{}, Findings: []string{},
	}
	pooled := runs
	if len(s.Groups) > 1 {
		s.Mixed = true
		pooled = slices.DeleteFunc(slices.Clone(runs), func(r Run) bool { return r.Fingerprint != s.Groups[0].Fingerprint })
		s.warn(WarnMixed, "%d different environments among %d valid runs: the numbers are those of the %d runs of one environment",
			len(s.Groups), len(runs), len(pooled))
	}
	merged, err := s.merge(in, pooled)
	if err != nil {
		return Summary{}, err
	}
	for _, m := range metrics.Table() {
		s.summarize(m, pooled, merged, in.HalfWidths[m.Name])
	}
	s.describe(pooled)
	s.judge(in, pooled)
	return s, nil
}

func (s *Summary) warn(code Code, format string, args ...any) {
	s.Warnings = append(s.Warnings, Warning{code, fmt.Sprintf(format, args...)})
}

// groups sorts runs by environment, the largest group first, and among equals
// the one with the latest attempt: it is what the fleet looks like now.
func groups(runs []Run) []Group {
	byPrint := map[string][]int64{}
	for _, r := range runs {
		byPrint[r.Fingerprint] = append(byPrint[r.Fingerprint], r.AttemptID)
	}
	var list []Group
	for _, print := range slices.Sorted(maps.Keys(byPrint)) {
		list = append(list, Group{print, byPrint[print]})
	}
	slices.SortStableFunc(list, func(a, b Group) int {
		if d := len(b.Attempts) - len(a.Attempts); d != 0 {
			return d
		}
		return int(min(1, max(-1, slices.Max(b.Attempts)-slices.Max(a.Attempts))))
	})
	return list
}

// Pooled are the runs that a summary is of: all, or where their environments
// differ, those of the largest group.
func Pooled(runs []Run) []Run {
	g := groups(slices.SortedFunc(slices.Values(runs), func(a, b Run) int { return cmp.Compare(a.AttemptID, b.AttemptID) }))
	if len(g) <= 1 {
		return runs
	}
	return slices.DeleteFunc(slices.Clone(runs), func(r Run) bool { return r.Fingerprint != g[0].Fingerprint })
}

func (s *Summary) merge(in Input, pooled []Run) (Merged, error) {
	if len(pooled) == 0 {
		return Merged{}, nil
	}
	if in.Merge == nil {
		reason := "the requests are not at hand"
		if !in.Terminal {
			reason = "they come when every run has ended"
		}
		s.warn(WarnNoRequests, "merged percentiles are missing: %s", reason)
		return Merged{}, nil
	}
	attempts := make([]int64, len(pooled))
	for i, r := range pooled {
		attempts[i] = r.AttemptID
	}
	merged, err := in.Merge(attempts)
	if err != nil {
		return Merged{}, fmt.Errorf("merge requests of %d attempts: %w", len(attempts), err)
	}
	if merged.Metrics == nil {
		s.warn(WarnNoRequests, "merged percentiles are missing: %s", orElse(merged.NullReasons[""], "the requests are not at hand"))
	}
	return merged, nil
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// summarize adds what a metric is called over runs.
func (s *Summary) summarize(m metrics.Metric, runs []Run, merged Merged, decided HalfWidth) {
	name := m.Name
	num, _ := m.Quantile()
	if num > 0 {
		name += MeanOfRunsSuffix
	}
	over := overRuns(m, runs)
	over.decided = decided
	s.Metrics[name] = over.metric()
	if num > 0 && !m.Stat.Interpolated() {
		s.Metrics[m.Name+MergedSuffix] = over.around(merged.Metrics[m.Name], orElse(merged.NullReasons[m.Name], "the requests are not at hand"))
	}
}

// describe adds what concerns all metrics.
func (s *Summary) describe(runs []Run) {
	nodes, findings, versions := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, r := range runs {
		for _, n := range r.Nodes {
			nodes[n] = true
		}
		for _, f := range r.Findings {
			findings[f] = true
		}
		versions[r.MetricsVersion] = true
	}
	s.Nodes = len(nodes)
	if len(findings) > 0 {
		s.Findings = slices.Sorted(maps.Keys(findings))
	}
	if list := slices.Sorted(maps.Keys(versions)); len(list) > 0 {
		s.MetricsVersion = list[len(list)-1]
		if len(list) > 1 {
			s.warn(WarnVersions, "results of metrics versions %v are summed up together", list)
		}
	}
	if s.IsFinal && s.NValid < s.NTotal {
		s.warn(WarnIncomplete, "%d of %d runs have a valid result", s.NValid, s.NTotal)
	}
	switch {
	case len(runs) == 0:
	case len(runs) < MinRuns:
		s.warn(WarnFewRuns, "no interval from %d runs: at least %d are needed", len(runs), MinRuns)
	case s.Nodes == 1:
		s.warn(WarnOneNode, "all %d runs were on one node: the interval does not cover differences between nodes", len(runs))
	}
	s.score(len(runs))
}

func (s *Summary) score(runs int) {
	var worst float64
	for _, name := range []string{throughputMetric, tailMetric + MeanOfRunsSuffix} {
		m := s.Metrics[name]
		if m.StdDev == nil || m.Mean == nil || !(*m.Mean > 0) {
			continue
		}
		worst = max(worst, *m.StdDev / *m.Mean)
		r := min(1, max(0, 1-worst))
		s.Reproducibility = &r
	}
	if s.Reproducibility != nil && runs < ProvisionalRuns {
		s.warn(WarnProvisional, "reproducibility from %d runs is provisional: at least %d are needed", runs, ProvisionalRuns)
	}
}
