package sweep

import (
	"maps"
	"math"
	"slices"
	"strings"

	"sbench/internal/metrics"
	"sbench/internal/setting"
)

// samples is how many requests the percentile num/den needs to exist:
// n·(1−q) ≥ 10.
func samples(num, den int) float64 { return math.Ceil(10 * float64(den) / float64(den-num)) }

// offered is how many requests a run of the setting is due to send in its
// measurement window (in the best of its load points), +Inf where only the
// engine or a trace decides.
func offered(s *setting.Setting) float64 {
	w := &s.Workload
	switch w.Arrival.Process {
	case setting.ProcessConstant, setting.ProcessPoisson, setting.ProcessGamma:
		rate := w.Arrival.Rate
		if len(w.Ladder) > 0 {
			rate = slices.Max(w.Ladder)
		}
		return rate * w.Duration.Seconds()
	case setting.ProcessStages:
		n, last := 0.0, 0.0
		for i, stage := range w.Arrival.Stages {
			if i == 0 {
				last = stage.Rate
			}
			n += (last + stage.Rate) / 2 * stage.Duration.Seconds()
			last = stage.Rate
		}
		return n
	default:
		return math.Inf(1)
	}
}

// reach keeps the settings with the fewest and the most requests.
type reach struct {
	least, most float64
	any         bool
}

func (r *reach) look(_ *File, s *setting.Setting) {
	n := offered(s)
	if !r.any {
		r.least, r.most, r.any = n, n, true
	}
	r.least, r.most = min(r.least, n), max(r.most, n)
}

// report refuses percentiles that no plan of the sweep can reach. An SLO is
// judged on the merged requests of all runs of a setting; an interval over runs
// needs the percentile of each run.
func (r *reach) report(e *expander) {
	if !r.any {
		return
	}
	runs := e.repeats.Runs()
	for _, key := range slices.Sorted(maps.Keys(e.file.SLO)) {
		m, ok := metrics.Find(key)
		if !ok {
			continue // without a percentile: judged request by request
		}
		num, den := m.Quantile()
		need := samples(num, den)
		percentile := key[strings.LastIndexByte(key, '_')+1:]
		if r.least*float64(runs) < need {
			e.faults.Errorf(e.file.doc.slo[key], "raise rate, duration or repeats, or take a lower percentile",
				"slo.%s can never be judged: %s needs %g requests, but rate × duration × repeats gives %g × %d = %g in one of the settings",
				key, percentile, need, round(r.least), runs, round(r.least*float64(runs)))
		}
	}
	if e.repeats.Until == nil {
		return
	}
	for _, name := range e.repeats.Until.Metrics {
		m, ok := metrics.Find(name)
		if !ok {
			continue
		}
		num, den := m.Quantile()
		if den == 0 {
			continue
		}
		if need := samples(num, den); r.least < need {
			e.faults.Errorf(e.file.doc.at.until, "raise rate or duration, or take a lower percentile",
				"repeats.until can never be met by %s: each run needs %g requests, but rate × duration gives %g in one of the settings",
				name, need, round(r.least))
		}
	}
}

func round(v float64) float64 { return math.Round(v*10) / 10 }
