package setting

import (
	"math"
	"time"

	"sbench/internal/unit"
)

func (v *validator) hardware() {
	h, p := v.s.Hardware, v.s.Parallel
	if v.required("hardware.gpu", h.GPU, "an id of the site file's hardware, such as h100-sxm") && !hardwareForm.MatchString(h.GPU) {
		v.fail("hardware.gpu", "", "is not an id of lower-case letters, digits, dots and dashes: %q", h.GPU)
	}
	v.between("hardware.gpus", h.GPUs, 0, maxGPUsPerNode)
	v.between("hardware.nodes", h.Nodes, 1, maxNodes)
	v.between("hardware.switches", h.Switches, 0, maxNodes)
	if h.Constraint != "" && !constraintForm.MatchString(h.Constraint) {
		v.fail("hardware.constraint", "", "is not a Slurm feature expression: %q", h.Constraint)
	}
	inRange := true
	for _, r := range []struct {
		key   string
		ranks int
	}{
		{"parallel.tensor", p.Tensor}, {"parallel.pipeline", p.Pipeline}, {"parallel.data", p.Data}, {"parallel.expert", p.Expert},
	} {
		v.between(r.key, r.ranks, 1, maxRanks)
		inRange = inRange && 1 <= r.ranks && r.ranks <= maxRanks
	}
	if !inRange {
		return
	}
	ranks, devices := p.Tensor*p.Pipeline*p.Data, max(h.GPUs, 1)*h.Nodes
	if ranks != devices {
		v.fault("set parallel.tensor, .pipeline and .data so that every GPU has one rank",
			[]string{"parallel.tensor", "parallel.pipeline", "parallel.data", "hardware.gpus", "hardware.nodes"},
			"parallel.tensor × pipeline × data = %d × %d × %d = %d, but hardware.gpus × nodes = %d × %d = %d",
			p.Tensor, p.Pipeline, p.Data, ranks, h.GPUs, h.Nodes, devices)
	}
}

func (v *validator) workload() {
	w := &v.s.Workload
	if w.Request.Temperature < 0 || w.Request.Temperature > 100 {
		v.fail("workload.request.temperature", "", "is not between 0 and 100")
	}
	if !(w.Request.TopP > 0 && w.Request.TopP <= 1) {
		v.fail("workload.request.top_p", "", "is not above 0 and at most 1")
	}
	v.phase("workload.request.timeout_first_token", w.Request.TimeoutFirstToken, true)
	v.phase("workload.request.timeout_total", w.Request.TimeoutTotal, true)
	v.phase("workload.warmup", w.Warmup, false)
	v.phase("workload.ramp", w.Ramp, false)
	v.phase("workload.duration", w.Duration, true)
	v.phase("workload.drain", w.Drain, false)
	v.between("workload.max_concurrency", w.MaxConcurrency, 0, 1_000_000)
	v.arrival()
	v.lengths("workload.input_tokens", &w.Input)
	v.lengths("workload.output_tokens", &w.Output)
	v.joint()
	v.prompts()
}

func (v *validator) phase(key string, d time.Duration, positive bool) {
	switch {
	case d == 0 && positive:
		v.fail(key, "write a duration, as in 300s", "is missing or 0")
	case d < 0 || d > MaxPhase:
		v.fail(key, "", "is not between 0s and %s", unit.FormatDuration(MaxPhase))
	}
}

func (v *validator) arrival() {
	w := &v.s.Workload
	a := &w.Arrival
	switch a.Process {
	case ProcessConstant, ProcessPoisson, ProcessGamma:
		if len(w.Ladder) == 0 {
			v.rate("workload.arrival.rate", a.Rate)
		}
		if a.Process == ProcessGamma {
			v.positive("workload.arrival.burstiness", a.Burstiness)
		}
	case ProcessClosed:
		if a.Concurrency == 0 {
			v.fail("workload.arrival.concurrency", "", "is missing: the closed process needs it")
		} else {
			v.between("workload.arrival.concurrency", a.Concurrency, 1, 1_000_000)
		}
	case ProcessStages:
		v.stages(a.Stages)
	case ProcessTrace:
		v.required("workload.arrival.trace_path", a.TracePath, "")
		v.required("workload.arrival.trace_digest", a.TraceDigest, "sha256sum prints it")
		v.positive("workload.arrival.trace_scale", a.TraceScale)
	case "":
		v.required("workload.arrival.process", "", "")
	}
	v.planned()
	if len(w.Ladder) == 0 {
		return
	}
	if !hasRate(v.s) {
		v.fault("", []string{"workload.ladder", "workload.arrival.process"},
			"workload.ladder needs an arrival process with a rate: constant, poisson or gamma")
	}
	if len(w.Ladder) > MaxEntries {
		v.fail("workload.ladder", "", "has more than %d rates", MaxEntries)
		return
	}
	for _, r := range w.Ladder {
		v.rate("workload.ladder", r)
	}
}

// planned bounds the number of requests of a run: the plan lies in memory.
func (v *validator) planned() {
	w := &v.s.Workload
	n, key := 0.0, "workload.arrival.rate"
	around := (w.Ramp + w.Duration + w.Drain).Seconds()
	switch {
	case w.Arrival.Process == ProcessStages:
		key = "workload.arrival.stages"
		for _, stage := range w.Arrival.Stages {
			n += stage.Rate * stage.Duration.Seconds()
		}
	case len(w.Ladder) > 0:
		key = "workload.ladder"
		for _, r := range w.Ladder {
			n += r * around
		}
	default:
		n = w.Arrival.Rate * around
	}
	if n > MaxRequests && !math.IsInf(n, 0) {
		v.fault("lower the rate or the duration", []string{key, "workload.duration"},
			"%s and workload.duration ask for about %.0f requests; at most %d can be planned", key, n, MaxRequests)
	}
}

func (v *validator) stages(stages []Stage) {
	const key = "workload.arrival.stages"
	if len(stages) == 0 || len(stages) > MaxEntries {
		v.fail(key, "", "needs between 1 and %d stages", MaxEntries)
		return
	}
	var total time.Duration
	positive := false
	for _, s := range stages {
		if s.Duration <= 0 || s.Duration > MaxPhase {
			v.fail(key, "", "has a stage whose duration is not above 0s and at most %s", unit.FormatDuration(MaxPhase))
			return
		}
		if !(s.Rate >= 0 && s.Rate <= MaxRate) {
			v.fail(key, "", "has a stage whose rate is not between 0/s and %g/s", float64(MaxRate))
			return
		}
		positive = positive || s.Rate > 0
		total += s.Duration
	}
	if !positive {
		v.fail(key, "", "never offers a request")
	}
	if d := v.s.Workload.Duration; d > 0 && total != d {
		v.fault("", []string{key, "workload.duration"}, "workload.arrival.stages last %s together, but workload.duration is %s",
			unit.FormatDuration(total), unit.FormatDuration(d))
	}
}

func (v *validator) lengths(prefix string, l *Lengths) {
	bounds := func() {
		v.between(prefix+".min", l.Min, 1, MaxTokens)
		if l.Max == 0 {
			v.fail(prefix+".max", "", "is missing: %s needs it", l.Distribution)
			return
		}
		v.between(prefix+".max", l.Max, 1, MaxTokens)
		if l.Min > l.Max {
			v.fault("", []string{prefix + ".min", prefix + ".max"}, "%s.min is above %s.max: %d, %d", prefix, prefix, l.Min, l.Max)
		}
	}
	switch l.Distribution {
	case DistConstant:
		if l.Value == 0 {
			v.fail(prefix+".value", "", "is missing or 0")
		} else {
			v.between(prefix+".value", l.Value, 1, MaxTokens)
		}
	case DistUniform:
		bounds()
	case DistNormal:
		bounds()
		v.positive(prefix+".mean", l.Mean)
		v.positive(prefix+".stddev", l.StdDev)
	case DistLognormal:
		bounds()
		v.positive(prefix+".median", l.Median)
		v.positive(prefix+".sigma", l.Sigma)
	case DistHistogram:
		v.bins(prefix+".bins", l.Bins)
	case DistPairs, DistFile:
	case "":
		v.required(prefix+".distribution", "", "as in {distribution: constant, value: 256}")
	}
}

func (v *validator) bins(key string, bins []Bin) {
	if len(bins) == 0 || len(bins) > 10*MaxEntries {
		v.fail(key, "", "needs between 1 and %d bins", 10*MaxEntries)
		return
	}
	for _, b := range bins {
		if b.Min < 1 || b.Max < b.Min || b.Max > MaxTokens || !(b.Weight > 0 && b.Weight <= 1e15) {
			v.fail(key, "", "has the bin {min: %d, max: %d, weight: %g}: want 1 ≤ min ≤ max ≤ %d and a weight above 0", b.Min, b.Max, b.Weight, MaxTokens)
			return
		}
	}
}

// joint checks distributions that say something about both sides.
func (v *validator) joint() {
	w := &v.s.Workload
	if (w.Input.Distribution == DistPairs) != (w.Output.Distribution == DistPairs) && w.Input.Distribution != "" && w.Output.Distribution != "" {
		v.fault("", []string{"workload.output_tokens.distribution", "workload.input_tokens.distribution"},
			"pairs must be the distribution of both input_tokens and output_tokens")
	}
	if w.Input.Distribution == DistPairs {
		const key = "workload.input_tokens.pairs"
		if len(w.Input.Pairs) == 0 || len(w.Input.Pairs) > 10*MaxEntries {
			v.fail(key, "", "needs between 1 and %d pairs", 10*MaxEntries)
		}
		for _, p := range w.Input.Pairs {
			if p.Input < 1 || p.Output < 1 || p.Input > MaxTokens || p.Output > MaxTokens || !(p.Weight > 0 && p.Weight <= 1e15) {
				v.fail(key, "", "has the pair {input: %d, output: %d, weight: %g}: want counts between 1 and %d and a weight above 0", p.Input, p.Output, p.Weight, MaxTokens)
				break
			}
		}
	}
	for _, l := range []struct {
		key          string
		distribution Distribution
	}{
		{"workload.input_tokens.distribution", w.Input.Distribution},
		{"workload.output_tokens.distribution", w.Output.Distribution},
	} {
		// A trace may say the lengths of its requests too.
		if l.distribution == DistFile && w.Prompts.Source != "file" && w.Arrival.Process != ProcessTrace {
			v.fault("", []string{l.key, "workload.prompts.source"}, "%s is file, but workload.prompts.source is %s", l.key, w.Prompts.Source)
		}
	}
}

func (v *validator) prompts() {
	p := &v.s.Workload.Prompts
	if p.Source == "file" {
		v.required("workload.prompts.file_path", p.FilePath, "")
		v.required("workload.prompts.file_digest", p.FileDigest, "sha256sum prints it")
	}
	v.between("workload.prompts.groups", p.Groups, 0, 1_000_000)
	if p.Groups > 0 {
		v.between("workload.prompts.prefix_tokens", p.PrefixLen, 1, MaxTokens)
		if !(p.HitRatio > 0 && p.HitRatio <= 1) {
			v.fail("workload.prompts.hit_ratio", "", "is not above 0 and at most 1")
		}
	}
	v.between("workload.prompts.turns", p.Turns, 1, 10_000)
	if p.ThinkTime < 0 || p.ThinkTime > MaxPhase {
		v.fail("workload.prompts.think_time", "", "is not between 0s and %s", unit.FormatDuration(MaxPhase))
	}
}
