package workload

import (
	"fmt"
	"math"

	"sbench/internal/setting"
)

// gaps is a renewal process of mean rate 1: each call is the next gap.
type gaps func() float64

// piece is a stretch of time over which the rate moves linearly.
type piece struct {
	start, end     float64 // seconds
	rateAt, rateTo float64 // requests/s at its ends
}

func (p piece) area() float64 { return float64((p.rateAt+p.rateTo)/2) * (p.end - p.start) }

// invert is the time in the piece at which area arrivals of mean have come.
func (p piece) invert(area float64) float64 {
	if area == 0 {
		return p.start
	}
	slope := (p.rateTo - p.rateAt) / (p.end - p.start)
	if slope == 0 {
		return p.start + area/p.rateAt
	}
	// area = rateAt*t + slope*t^2/2, in the form that does not cancel.
	root := math.Sqrt(max(0, float64(p.rateAt*p.rateAt)+float64(2*slope)*area))
	return p.start + 2*area/(p.rateAt+root)
}

// maxRequests bounds a plan, so that a mistyped rate is an error, not a machine
// out of memory.
const maxRequests = 20_000_000

// arrivals maps a process of mean rate 1 through the rates of the pieces, which
// follow one another: exact for linear rates, and without drift, because times
// are absolute. first is where the process has its first arrival: 0, or one gap.
// It returns ns.
func arrivals(pieces []piece, first float64, next gaps) ([]int64, error) {
	var due []int64
	at, base, total := first, 0.0, 0.0
	for _, p := range pieces {
		total += p.area()
	}
	if !(total <= maxRequests) {
		return nil, fmt.Errorf("the plan has more than %d requests", maxRequests)
	}
	for _, p := range pieces {
		area, last := p.area(), nanoseconds(p.end)-1
		for at-base < area {
			// Rounding must not push an arrival out of the piece it belongs to.
			due = append(due, min(nanoseconds(p.invert(at-base)), last))
			if len(due) > maxRequests {
				return nil, fmt.Errorf("the plan has more than %d requests", maxRequests)
			}
			at += next()
		}
		base += area
	}
	return due, nil
}

func nanoseconds(seconds float64) int64 { return int64(math.Round(seconds * 1e9)) }

// process starts a renewal process for the arrivals of a part of the plan.
func process(a setting.Arrival, s *stream) (first float64, next gaps, err error) {
	switch a.Process {
	case setting.ProcessConstant:
		return 0, func() float64 { return 1 }, nil
	case setting.ProcessPoisson, setting.ProcessStages, setting.ProcessTrace:
		return s.exponential(), s.exponential, nil
	case setting.ProcessGamma:
		if !(a.Burstiness > 0) {
			return 0, nil, fmt.Errorf("arrival burstiness %v: want a positive shape", a.Burstiness)
		}
		next := func() float64 { return s.gamma(a.Burstiness) }
		return next(), next, nil
	case setting.ProcessClosed:
	}
	return 0, nil, fmt.Errorf("arrival process %q has no schedule", a.Process)
}
