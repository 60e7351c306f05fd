// Package sweep reads sweep files and expands them into settings. It reports
// every fault of a file with its place, coerces nothing silently, and expands in
// a fixed order under a limit. The package is pure.
package sweep

import (
	"time"

	"sbench/internal/diag"
	"sbench/internal/quality"
	"sbench/internal/setting"
)

// MaxBytes is the size of the largest sweep file that is read.
const MaxBytes = 2 << 20

// Priority is the tier of a sweep.
type Priority string

// The priorities.
const (
	PriorityUrgent Priority = "urgent"
	PriorityNormal Priority = "normal"
	PriorityBulk   Priority = "bulk"
)

// File is a sweep file without faults. It is read-only once parsed, and may be
// expanded by several goroutines at once.
type File struct {
	Name        string
	Description string
	Site        string   // "" where the file does not say
	Priority    Priority // PriorityNormal where the file does not say
	Repeats     Repeats
	Reuse       Reuse
	// SLO maps a latency, with or without a percentile (ttft_p99, e2e), to its
	// limit.
	SLO map[string]time.Duration
	// MaxErrorRate is the share of failed requests above which an attempt is
	// labelled `errors`.
	MaxErrorRate float64
	// Quality is what the engine is asked after each measurement, and how its answers
	// are scored; nil for nothing. It is read-only.
	Quality *quality.Definition
	// Directives are the #SBENCH lines of the head comment.
	Directives []Directive

	data     []byte
	filename string
	doc      document
}

// Repeats says how often each setting is run.
type Repeats struct {
	Min   int    `json:"min"`
	Max   int    `json:"max"` // equal to Min for a fixed number
	Until *Until `json:"until,omitempty"`
}

// Until stops between Min and Max runs.
type Until struct {
	Metrics    []string `json:"metrics"` // names of METRICS.md, such as ttft_p95
	RelativeCI float64  `json:"relative_ci"`
}

// Adaptive reports whether the number of runs depends on what they measure.
func (r Repeats) Adaptive() bool { return r.Until != nil && r.Min < r.Max }

// Runs is the number of runs that each setting may get: the most there can be.
func (r Repeats) Runs() int { return r.Max }

// First is the number of runs that are planned for each setting at once.
func (r Repeats) First() int {
	if r.Adaptive() {
		return r.Min
	}
	return r.Max
}

// Reuse says when a setting need not be run again.
type Reuse struct {
	Given  bool          `json:"given"`   // the file says something
	Off    bool          `json:"off"`     // every setting is run
	MaxAge time.Duration `json:"max_age"` // how old a final result may be
	Canary float64       `json:"canary"`  // share of settings that is run all the same
}

// Directive is a #SBENCH line of the head comment.
type Directive struct {
	Line int    // from 1
	Text string // what follows #SBENCH, without blanks around it
}

// document is what a file holds for expansion.
type document struct {
	base   []change
	places map[string]diag.Pos // of axes and blocks of the base
	matrix matrix
	at     struct{ setting, matrix, repeats, until diag.Pos }
	slo    map[string]diag.Pos
	// tainted are the axes and blocks with a fault of their own: what follows
	// from it is not reported.
	tainted map[string]bool
}

// matrix is what is varied.
type matrix struct {
	factors []factor // product axes in the file's order, then zip groups
	where   []condition
	exclude []point
	include []point
}

// factor is an axis with its values, or a zip group with its rows.
type factor struct {
	keys []string
	at   diag.Pos
	rows [][]change
}

// point is a set of values laid over the base.
type point struct {
	at      diag.Pos
	changes []change
}

// change gives an axis a value.
type change struct {
	axis  *setting.Axis
	entry string // of a map axis; "" for the whole axis
	value any    // of the field's own type, string for an entry; nil resets the axis
	at    diag.Pos
}

func (c change) key() string {
	if c.entry != "" {
		return c.axis.Key + "." + c.entry
	}
	return c.axis.Key
}

func (c change) apply(s *setting.Setting) {
	switch {
	case c.value == nil:
		c.axis.Clear(s)
	case c.entry != "":
		c.axis.SetEntry(s, c.entry, c.value.(string))
	default:
		c.axis.Set(s, c.value)
	}
}
