// Package compare sets settings side by side that differ in one axis: the ratio
// of each metric with its interval, a verdict with the smallest difference that
// would have been found, and a ranking. It promises to name every other axis that
// differs; it refuses to rank where there is one, and to set emulated rows beside
// real ones or closed loops beside open ones at all. The package is pure.
package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"sbench/internal/metrics"
	"sbench/internal/setting"
	"sbench/internal/stats"
)

// Row is what is known of one setting: its axes and the valid results that its
// summary is made of.
type Row struct {
	SweepID        int64
	SettingHash    string
	SeriesHash     string
	Site           string
	HardwareClass  string // real, emulated
	MetricsVersion string
	Axes           map[string]any // by flat key, nil where an axis does not apply
	NValid, NTotal int
	Final, Mixed   bool
	// Quality says what the scores of the answers are scores of; "" for none. Scores
	// of different things are never set side by side.
	Quality  string
	Findings []string
	// Runs are the pooled valid results, by repeat.
	Runs []Run
}

// Run is one valid result.
type Run struct {
	AttemptID   int64
	Repeat      int
	Nodes       []string
	Fingerprint string
	Metrics     map[string]*float64
}

// Options say what is compared and how.
type Options struct {
	// Vary is the axis that may differ; "" for the one that does. It may name a map
	// axis (engine.args), whose entries then count as one.
	Vary string
	// Metrics are compared in this order; empty for Headline.
	Metrics []string
	// By is the metric of the ranking; "" for output_tokens_per_s.
	By string
	// Theta is the relative difference that matters; 0 for 0.05.
	Theta float64
	// Anyway prints where more than one axis differs. It never ranks.
	Anyway bool
}

// Headline are the metrics that are compared unless others are asked for. The
// first two are those that gate.
func Headline() []string {
	return []string{"output_tokens_per_s", "ttft_p95", "ttft_p50", "tpot_p50", "e2e_p95", "requests_per_s", "goodput", "energy_per_output_token"}
}

// Gating are the metrics that a verdict about a setting is made of.
func Gating() []string { return Headline()[:2] }

// Difference is an axis of which the rows have several values.
type Difference struct {
	Axis   string `json:"axis"`
	Values []any  `json:"values"` // different ones, in the rows' order
}

// Verdict is what a comparison says of one metric.
type Verdict string

// The verdicts. Worse is slower or less.
const (
	Regressed        Verdict = "regressed"         // worse beyond doubt, estimated at theta or more
	RegressedCertain Verdict = "regressed-certain" // worse by more than theta beyond doubt
	SlowerSmall      Verdict = "slower-small"      // worse beyond doubt, estimated below theta
	OK               Verdict = "ok"                // shown not to be worse by theta
	Improved         Verdict = "improved"          // better beyond doubt
	Inconclusive     Verdict = "inconclusive"      // the runs cannot tell
)

// Bad says that the verdict is a regression.
func (v Verdict) Bad() bool { return v == Regressed || v == RegressedCertain }

// Pair is one metric of a row beside the base's.
type Pair struct {
	Metric     string   `json:"metric"`
	Unit       string   `json:"unit"`
	Better     string   `json:"better"`
	Base       *float64 `json:"base"` // geometric mean over the runs; null where a run has no value
	Value      *float64 `json:"value"`
	Ratio      *float64 `json:"ratio"` // value by base
	RatioLow   *float64 `json:"ratio_ci_low"`
	RatioHigh  *float64 `json:"ratio_ci_high"`
	P          *float64 `json:"p"`      // two-sided
	Method     string   `json:"method"` // welch, paired, items; "" where there is none
	Verdict    Verdict  `json:"verdict"`
	MDE        *float64 `json:"mde"`         // smallest relative difference found with power 80 %
	RunsNeeded int      `json:"runs_needed"` // a side, to decide about theta; 0 where it is decided or unknown
	NBase      int      `json:"n_base"`
	NValue     int      `json:"n_value"`
	Notes      []string `json:"notes"`
}

// Entry is a row of the comparison.
type Entry struct {
	Row   Row
	Level any    // the value of the varied axis; nil where none is
	Pairs []Pair // with the first entry; empty for itself
	// Rank is from 1, equal for rows that cannot be told apart from the one above;
	// 0 where it is not ranked.
	Rank     int
	Unranked string // why not
}

// Comparison is the whole answer.
type Comparison struct {
	Vary    string
	Residue []Difference // axes that differ besides
	Coupled []Difference // that follow from the varied one
	// Realized are differences between environments that nothing pins.
	Realized []string
	Ranked   bool
	By       string
	Metrics  []string
	Entries  []Entry
	Warnings []string
}

// ErrUnlike says that rows can never be compared.
var ErrUnlike = errors.New("not comparable")

// ResidueError refuses to rank: more than one axis differs.
type ResidueError struct {
	Vary    string
	Residue []Difference
}

func (e *ResidueError) Error() string {
	names := make([]string, len(e.Residue))
	for i, d := range e.Residue {
		names[i] = d.Axis
	}
	if e.Vary == "" {
		return "more than one axis differs: " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("besides %s these axes differ: %s", e.Vary, strings.Join(names, ", "))
}

// Compare sets rows beside the first one. Where more than one axis differs it
// returns a ResidueError, or, with Options.Anyway, the pairs without a ranking.
func Compare(rows []Row, o Options) (Comparison, error) {
	c := Comparison{Vary: o.Vary, Metrics: o.Metrics, By: o.By}
	if len(rows) < 2 {
		return c, fmt.Errorf("%d settings with results: two are needed: %w", len(rows), ErrUnlike)
	}
	if len(c.Metrics) == 0 {
		c.Metrics = Headline()
		if slices.ContainsFunc(rows, func(r Row) bool { return r.Quality != "" }) {
			c.Metrics = append(c.Metrics, metrics.QualityScore)
		}
	}
	if c.By == "" {
		c.By = Gating()[0]
	}
	for _, name := range append(slices.Clone(c.Metrics), c.By) {
		if _, ok := metrics.Find(name); !ok {
			return c, fmt.Errorf("unknown metric %q: %w", name, ErrUnlike)
		}
	}
	if err := alike(rows); err != nil {
		return c, err
	}
	c.divide(Differences(rows), rows)
	if len(c.Residue) > 0 && !o.Anyway {
		return c, &ResidueError{c.Vary, c.Residue}
	}
	c.order(rows)
	theta := o.Theta
	if theta == 0 {
		theta = 0.05
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		e.Pairs = []Pair{}
		if i > 0 {
			for _, name := range c.Metrics {
				e.Pairs = append(e.Pairs, MakePair(c.Entries[0].Row, e.Row, name, theta, c.pairable()))
			}
			holm(e.Pairs)
		}
	}
	c.realized()
	if len(c.Residue) == 0 {
		c.rank(theta)
	}
	return c, nil
}

// alike refuses what no axis could excuse.
func alike(rows []Row) error {
	for _, r := range rows[1:] {
		switch {
		case r.HardwareClass != rows[0].HardwareClass:
			return fmt.Errorf("%s and %s hardware: %w", rows[0].HardwareClass, r.HardwareClass, ErrUnlike)
		case closed(r) != closed(rows[0]):
			return fmt.Errorf("a closed loop beside an open one: they answer different questions: %w", ErrUnlike)
		case r.MetricsVersion != "" && rows[0].MetricsVersion != "" && r.MetricsVersion != rows[0].MetricsVersion:
			return fmt.Errorf("metrics versions %s and %s: measure the older one again, or hold what sbench recompute says of its rows beside it: %w", rows[0].MetricsVersion, r.MetricsVersion, ErrUnlike)
		}
	}
	return nil
}

func closed(r Row) bool { return r.Axes["workload.arrival.process"] == string(setting.ProcessClosed) }

// Differences lists the identity axes of which the rows have several values,
// sorted by name.
func Differences(rows []Row) []Difference {
	keys := map[string]bool{}
	for _, r := range rows {
		for k := range r.Axes {
			if axis, _, ok := setting.LookupAxis(k); ok && axis.Identity {
				keys[k] = true
			}
		}
	}
	var out []Difference
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		d := Difference{Axis: k}
		seen := map[string]bool{}
		for _, r := range rows {
			if text := Text(r.Axes[k]); !seen[text] {
				seen[text] = true
				d.Values = append(d.Values, r.Axes[k])
			}
		}
		if len(d.Values) > 1 {
			out = append(out, d)
		}
	}
	return out
}

// Text is a value as it is compared and shown: JSON without quotes round a
// string, "-" for an axis that does not apply.
func Text(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// under says whether an axis is key itself or an entry of the map axis key.
func under(axis, key string) bool {
	return axis == key || strings.HasPrefix(axis, key+".")
}

// divide sorts the differences into the varied axis, what follows from it, and
// the residue.
func (c *Comparison) divide(all []Difference, rows []Row) {
	if c.Vary == "" && len(all) == 1 {
		c.Vary = all[0].Axis
	}
	for _, d := range all {
		switch {
		case c.Vary != "" && under(d.Axis, c.Vary):
		case c.Vary != "" && follows(d.Axis, c.Vary, rows):
			c.Coupled = append(c.Coupled, d)
		default:
			c.Residue = append(c.Residue, d)
		}
	}
}

// follows says whether an axis has to change with the varied one: the degrees of
// parallelism multiply to the number of GPUs.
func follows(axis, vary string, rows []Row) bool {
	degrees := []string{"parallel.tensor", "parallel.pipeline", "parallel.data"}
	devices := []string{"hardware.gpus", "hardware.nodes"}
	if slices.Contains(devices, vary) {
		degrees, devices = devices, degrees
	}
	if !slices.Contains(degrees, vary) || !slices.Contains(devices, axis) {
		return false
	}
	// In proportion, so that nothing else hides behind it.
	a, b := numeric(rows[0].Axes[axis]), numeric(rows[0].Axes[vary])
	for _, r := range rows {
		if numeric(r.Axes[axis])*b != numeric(r.Axes[vary])*a {
			return false
		}
	}
	return a > 0 && b > 0
}

func numeric(v any) float64 {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case int:
		return float64(v)
	case float64:
		return v
	}
	return math.NaN()
}

// order puts the rows in the order of their levels where these are numbers; else
// they keep theirs.
func (c *Comparison) order(rows []Row) {
	for _, r := range rows {
		e := Entry{Row: r}
		if c.Vary != "" {
			e.Level = r.Axes[c.Vary]
		}
		c.Entries = append(c.Entries, e)
	}
	// The first row stays the base of two.
	if len(rows) > 2 && !slices.ContainsFunc(c.Entries, func(e Entry) bool { return math.IsNaN(numeric(e.Level)) }) {
		slices.SortStableFunc(c.Entries, func(a, b Entry) int {
			switch x, y := numeric(a.Level), numeric(b.Level); {
			case x < y:
				return -1
			case x > y:
				return 1
			}
			return 0
		})
	}
}

// pairable says whether repeat k is the same workload in every row.
func (c *Comparison) pairable() bool {
	for _, d := range slices.Concat(c.Residue, []Difference{{Axis: c.Vary}}) {
		if strings.HasPrefix(d.Axis, "workload.") {
			return false
		}
	}
	return true
}

// values are a metric's values over the runs of a row by repeat; why says what is
// missing.
func (r Row) values(metric string) (v []float64, repeats []int, why string) {
	runs := slices.Clone(r.Runs)
	slices.SortFunc(runs, func(a, b Run) int { return a.Repeat - b.Repeat })
	for _, run := range runs {
		p := run.Metrics[metric]
		if p == nil || math.IsNaN(*p) || math.IsInf(*p, 0) {
			return nil, nil, fmt.Sprintf("%s is undefined in a run of %.12s", metric, r.SettingHash)
		}
		if *p <= 0 {
			return nil, nil, fmt.Sprintf("%s is not positive in a run of %.12s: no ratio", metric, r.SettingHash)
		}
		v, repeats = append(v, *p), append(repeats, run.Repeat)
	}
	if len(v) == 0 {
		return nil, nil, fmt.Sprintf("no valid run of %.12s", r.SettingHash)
	}
	return v, repeats, ""
}

// realized names the environments that differ among rows although nothing pins
// them: an unpinned difference may be what made the difference.
func (c *Comparison) realized() {
	prints := map[string]bool{}
	for _, e := range c.Entries {
		if e.Row.Mixed {
			c.Warnings = append(c.Warnings, fmt.Sprintf("the runs of %.12s realized different environments: only the largest group is compared", e.Row.SettingHash))
		}
		if e.Row.NValid < e.Row.NTotal || !e.Row.Final {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%.12s has %d of %d runs", e.Row.SettingHash, e.Row.NValid, e.Row.NTotal))
		}
		for _, r := range e.Row.Runs {
			prints[r.Fingerprint] = true
		}
	}
	if len(prints) > 1 {
		c.Realized = slices.Sorted(maps.Keys(prints))
	}
}

// mean is the geometric mean of the values, nil for none.
func mean(v []float64) *float64 {
	if len(v) == 0 {
		return nil
	}
	g := stats.GeometricMean(v)
	return &g
}
