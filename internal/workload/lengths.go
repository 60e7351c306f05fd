package workload

import (
	"errors"
	"fmt"
	"math"

	"sbench/internal/setting"
)

// draw returns a token count, at least 1.
type draw func() int32

// maxTokens bounds a drawn length.
const maxTokens = 16 << 20

// lengths makes a drawing function for a distribution other than pairs and file.
func lengths(what string, l setting.Lengths, s *stream) (draw, error) {
	fail := func(why string) (draw, error) {
		return nil, fmt.Errorf("%s distribution %s: %s", what, l.Distribution, why)
	}
	switch l.Distribution {
	case setting.DistConstant:
		if l.Value < 1 || l.Value > maxTokens {
			return fail("value must be at least 1")
		}
		return func() int32 { return int32(l.Value) }, nil
	case setting.DistUniform:
		if l.Min < 1 || l.Max < l.Min || l.Max > maxTokens {
			return fail("want 1 <= min <= max")
		}
		return func() int32 { return int32(l.Min) + int32(s.below(uint64(l.Max-l.Min)+1)) }, nil
	case setting.DistNormal:
		if !(l.Mean > 0) || l.StdDev < 0 {
			return fail("want mean > 0 and stddev >= 0")
		}
		return func() int32 { return clip(l, l.Mean+float64(l.StdDev*s.normal())) }, nil
	case setting.DistLognormal:
		if !(l.Median > 0) || l.Sigma < 0 {
			return fail("want median > 0 and sigma >= 0")
		}
		mu := ln(l.Median)
		return func() int32 { return clip(l, exp(mu+float64(l.Sigma*s.normal()))) }, nil
	case setting.DistHistogram:
		pick, err := weights(len(l.Bins), func(i int) float64 { return l.Bins[i].Weight }, s)
		if err != nil {
			return fail(err.Error())
		}
		for _, b := range l.Bins {
			if b.Min < 1 || b.Max < b.Min || b.Max > maxTokens {
				return fail("each bin wants 1 <= min <= max")
			}
		}
		return func() int32 {
			b := l.Bins[pick()]
			return int32(b.Min) + int32(s.below(uint64(b.Max-b.Min)+1))
		}, nil
	case setting.DistPairs, setting.DistFile:
	}
	return fail("not a distribution of its own")
}

// clip rounds to a whole number of tokens within [Min, Max]; 0 is no bound.
func clip(l setting.Lengths, x float64) int32 {
	low, high := float64(max(l.Min, 1)), float64(maxTokens)
	if l.Max > 0 {
		high = float64(l.Max)
	}
	return int32(math.Round(min(max(x, low), high)))
}

// weights returns a function that picks an index with those relative weights.
func weights(n int, weight func(int) float64, s *stream) (func() int, error) {
	if n == 0 {
		return nil, errors.New("empty")
	}
	total, cumulative := 0.0, make([]float64, n)
	for i := range n {
		w := weight(i)
		if !(w >= 0) || math.IsInf(w, 1) {
			return nil, fmt.Errorf("weight %v is not a finite number >= 0", w)
		}
		total += w
		cumulative[i] = total
	}
	if total == 0 {
		return nil, errors.New("all weights are 0")
	}
	return func() int {
		u := float64(s.uniform() * total)
		for i, c := range cumulative {
			if u < c {
				return i
			}
		}
		return n - 1
	}, nil
}

// size is one request's token counts.
type size struct{ input, output int32 }

// sizes makes the function that draws a request's token counts in one part of
// the plan. row are the lengths that came with the trace or the prompt file, for
// the distribution "file".
func sizes(w setting.Workload, seeds seeder, part int) (func(row size) size, error) {
	if (w.Input.Distribution == setting.DistPairs) != (w.Output.Distribution == setting.DistPairs) {
		return nil, errors.New("pairs are a joint distribution: input_tokens and output_tokens must both say pairs")
	}
	if w.Input.Distribution == setting.DistPairs {
		s := seeds.stream("pair", part)
		pairs := w.Input.Pairs
		pick, err := weights(len(pairs), func(i int) float64 { return pairs[i].Weight }, s)
		if err != nil {
			return nil, fmt.Errorf("input_tokens distribution pairs: %w", err)
		}
		for _, p := range pairs {
			if p.Input < 1 || p.Output < 1 || p.Input > maxTokens || p.Output > maxTokens {
				return nil, errors.New("input_tokens distribution pairs: want at least 1 token each")
			}
		}
		return func(size) size {
			p := pairs[pick()]
			return size{int32(p.Input), int32(p.Output)}
		}, nil
	}
	input, err := drawOrFile("input_tokens", w.Input, seeds.stream("input", part))
	if err != nil {
		return nil, err
	}
	output, err := drawOrFile("output_tokens", w.Output, seeds.stream("output", part))
	if err != nil {
		return nil, err
	}
	return func(row size) size {
		if input != nil {
			row.input = input()
		}
		if output != nil {
			row.output = output()
		}
		return row
	}, nil
}

// drawOrFile returns nil where the lengths come from the file.
func drawOrFile(what string, l setting.Lengths, s *stream) (draw, error) {
	if l.Distribution == setting.DistFile {
		return nil, nil
	}
	return lengths(what, l, s)
}

// fileGives checks that each row of a file has the lengths that the workload
// takes from it. A prompt file need not say how long its prompts are.
func fileGives(w setting.Workload, rows int, row func(int) size) error {
	for i := range rows {
		s := row(i)
		if w.Output.Distribution == setting.DistFile && s.output < 1 {
			return fmt.Errorf("row %d gives no output length, but output_tokens says file", i+1)
		}
		if w.Input.Distribution == setting.DistFile && s.input < 1 && w.Prompts.Source != "file" {
			return fmt.Errorf("row %d gives no input length, but input_tokens says file", i+1)
		}
	}
	return nil
}
