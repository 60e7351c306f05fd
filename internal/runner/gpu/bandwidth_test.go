package gpu

import (
	"math"
	"testing"

	"sbench/internal/result"
)

func TestBandwidthCheck(t *testing.T) {
	t.Parallel()
	window := func(tpot *float64) []result.Window {
		return []result.Window{{Metrics: result.Metrics{"tpot_p50": nil}}, {Metrics: result.Metrics{"tpot_p50": tpot}}}
	}
	// 16 GB of weights on two devices of 2 TB/s: 4 ms a token at the least.
	d := Decode{Weights: 16e9, Ranks: 2, Bandwidth: 2e12}
	for _, tt := range []struct {
		name    string
		tpot    *float64
		d       Decode
		verdict result.Verdict
		value   float64
	}{
		{"half", ptr(0.008), d, result.VerdictPass, 0.5},
		{"all of it", ptr(0.004), d, result.VerdictPass, 1},
		{"too fast", ptr(0.003), d, result.VerdictFail, 4.0 / 3},
		{"no tokens", nil, d, result.VerdictNotApplicable, 0},
		{"unknown weights", ptr(0.003), Decode{Why: "x", Ranks: 2, Bandwidth: 2e12}, result.VerdictNotApplicable, 0},
		{"unknown device", ptr(0.003), Decode{Weights: 16e9, Ranks: 2}, result.VerdictNotApplicable, 0},
	} {
		c := BandwidthCheck(window(tt.tpot), tt.d)
		if c.Verdict != tt.verdict || c.Reason == "" || (c.Value != nil) != (tt.value > 0) || c.Value != nil && math.Abs(*c.Value-tt.value) > 1e-9 {
			t.Errorf("%s: %+v", tt.name, c)
		}
	}
}
