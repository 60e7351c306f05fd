package gpu

import (
	"fmt"

	"sbench/internal/result"
)

// Decode is what a step of decoding has to read.
type Decode struct {
	// Weights are the bytes that every token of a request needs once; 0 where that
	// is not known, and Why says so.
	Weights int64
	Why     string
	// Ranks share the weights between them: the tensor-parallel ones. The stages of
	// a pipeline read theirs one after the other.
	Ranks int
	// Bandwidth is one device's peak, bytes/s; 0 where the catalogue has none.
	Bandwidth float64
}

// BandwidthCheck holds the fastest window against the devices' memory (memory
// bandwidth utilization, MBU): without speculation every token needs a step that
// reads all weights, so that tpot_p50 · ranks · bandwidth is at least the weights'
// size. An attempt beyond that measured something else than decoding.
func BandwidthCheck(windows []result.Window, d Decode) result.Check {
	c := result.Check{Name: "gpu_bandwidth", Kind: result.CheckHarness, Verdict: result.VerdictNotApplicable, Unit: "ratio"}
	switch {
	case d.Weights <= 0:
		c.Reason = "what a step reads is not known: " + d.Why
		return c
	case d.Bandwidth <= 0 || d.Ranks <= 0:
		c.Reason = "the peak bandwidth of the device is not known"
		return c
	}
	highest := 0.0
	for _, w := range windows {
		if tpot := w.Metrics["tpot_p50"]; tpot != nil && *tpot > 0 {
			highest = max(highest, float64(d.Weights)/(*tpot*float64(d.Ranks)*d.Bandwidth))
		}
	}
	if highest == 0 {
		c.Reason = "no window has a time per output token"
		return c
	}
	one := 1.0
	c.Value, c.Threshold = &highest, &one
	if highest > one {
		c.Verdict = result.VerdictFail
		c.Reason = fmt.Sprintf("the tokens came faster than the memory can deliver the weights: %.2f times its peak bandwidth", highest)
		return c
	}
	c.Verdict, c.Reason = result.VerdictPass, fmt.Sprintf("decoding used at most %.0f %% of the memory's peak bandwidth", 100*highest)
	return c
}
