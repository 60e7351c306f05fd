package stats

import "fmt"

// Code names a kind of warning.
type Code string

// The warnings that a statistic carries.
const (
	WarnFewValues  Code = "few_values"  // too few for what was asked
	WarnInfinite   Code = "infinite"    // a value is not finite: no interval
	WarnFewSamples Code = "few_samples" // a run has too few requests for the percentile
	WarnNoHistory  Code = "no_history"  // the spread is known from these values alone
	WarnStale      Code = "stale"       // the spread has grown since the history was made
	WarnReach      Code = "reach"       // the test cannot reach that level with so few values
	WarnBimodal    Code = "bimodal"     // two modes: one location misdescribes them
)

// Warning is what a reader of a number has to know. It is a value: nothing is
// logged, nothing is lost.
type Warning struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

func warn(code Code, format string, args ...any) Warning {
	return Warning{code, fmt.Sprintf(format, args...)}
}

// Estimate is a number with its interval and what is to be said about it.
type Estimate struct {
	Value    float64 // NaN where it is undefined
	Interval Interval
	N        int // values that it is made of
	Warnings []Warning
}
