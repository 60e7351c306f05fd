package workload

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestLogarithm_AgreesWithTheLibrary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Float64Range(1e-300, 1e300).Draw(t, "x")
		if got, want := ln(x), math.Log(x); math.Abs(got-want) > 1e-15*math.Max(1, math.Abs(want)) {
			t.Fatalf("ln(%v) = %v, want %v", x, got, want)
		}
		y := rapid.Float64Range(-700, 700).Draw(t, "y")
		if got, want := exp(y), math.Exp(y); math.Abs(got-want) > 4e-16*want {
			t.Fatalf("exp(%v) = %v, want %v", y, got, want)
		}
	})
}

// The moments of each process are those of the distribution it is named after.
func TestStream_Moments(t *testing.T) {
	t.Parallel()
	const n = 400_000
	for _, c := range []struct {
		name           string
		draw           func(*stream) float64
		mean, variance float64
	}{
		{"uniform", (*stream).uniform, 0.5, 1.0 / 12},
		{"exponential", (*stream).exponential, 1, 1},
		{"normal", (*stream).normal, 0, 1},
		{"gamma 0.25", func(s *stream) float64 { return s.gamma(0.25) }, 1, 4},
		{"gamma 1", func(s *stream) float64 { return s.gamma(1) }, 1, 1},
		{"gamma 4", func(s *stream) float64 { return s.gamma(4) }, 1, 0.25},
	} {
		s := seeder{7, 3}.stream(c.name, 0)
		var sum, squares float64
		for range n {
			x := c.draw(s)
			sum += x
			squares += (x - c.mean) * (x - c.mean)
		}
		if mean, limit := sum/n, 5*math.Sqrt(c.variance/n); math.Abs(mean-c.mean) > limit {
			t.Errorf("%s: mean %.5f, want %.5f within %.5f", c.name, mean, c.mean, limit)
		}
		if v := squares / n; math.Abs(v-c.variance) > 0.03*c.variance {
			t.Errorf("%s: variance %.4f, want %.4f", c.name, v, c.variance)
		}
	}
}
