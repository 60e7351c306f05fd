package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// SLO holds the limits of a sweep file, in seconds, by the metric they are set
// on: {"ttft_p99": 0.5}. For goodput a limit binds every single request: the
// percentile in the key says how the limit is judged over the window, not which
// requests it applies to.
type SLO map[string]float64

// limit is one SLO on a single request.
type limit struct {
	base    string
	seconds float64
}

// Check says whether every key is a metric that one request has.
func (s SLO) Check() error {
	_, err := s.limits()
	return err
}

func (s SLO) limits() ([]limit, error) {
	var limits []limit
	for _, key := range slices.Sorted(maps.Keys(s)) {
		name := key
		if m, ok := Find(key); ok && m.Level == LevelRequest {
			name = m.Base
		}
		switch name {
		case "ttft", "ttft_service", "ttfo", "e2e", "tpot":
			limits = append(limits, limit{name, s[key]})
		default:
			return nil, fmt.Errorf("slo %s: not a latency of one request (want one of %s, with a percentile: ttft_p99)",
				key, strings.Join([]string{"ttft", "ttft_service", "ttfo", "e2e", "tpot"}, ", "))
		}
		if !(s[key] > 0) {
			return nil, fmt.Errorf("slo %s: %v is not a positive time", key, s[key])
		}
	}
	return limits, nil
}
