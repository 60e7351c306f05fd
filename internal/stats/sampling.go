package stats

import "math"

// Canaries is how many of many settings are run again so that, where a share
// drifted and each re-run notices it with that power, at least one does with
// probability p: ln(1-p)/ln(1-share*power), rounded up.
func Canaries(share, power, p float64) int {
	if hit := share * power; hit < 1 {
		return int(math.Ceil(math.Log(1-p)/math.Log1p(-hit) - 1e-9))
	}
	return 1
}

// CatchOne is the probability that k of m settings, drawn without replacement,
// hold at least one of the d that drifted (hypergeometric).
func CatchOne(m, d, k int) float64 {
	if k > m-d {
		return 1
	}
	miss := 0.0
	for i := range k {
		miss += math.Log(float64(m-d-i)) - math.Log(float64(m-i))
	}
	return -math.Expm1(miss)
}

// CleanShare bounds, at 95 %, the share of bad time where k independent polls
// were all clean: 1 - 0.05^(1/k).
func CleanShare(k int) float64 { return -math.Expm1(math.Log(0.05) / float64(k)) }

// RunsPerStart is how many runs one start-up of a server is worth (Kalibera and
// Jones): sqrt(start cost by run cost, times run variance by start variance).
func RunsPerStart(startCost, runCost, runSD, startSD float64) float64 {
	return math.Sqrt(startCost / runCost * (runSD * runSD) / (startSD * startSD))
}
