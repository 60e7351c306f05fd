//go:build load

package load_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"sbench/internal/setting"
)

// How late requests leave, beside one thread that only sleeps and writes.
func TestSchedule_Lateness(t *testing.T) {
	measuring(t)
	for _, rate := range []float64{200, 1000, 5000} {
		address := serve(t, serverConfig{Plain: true})
		c := clientConfig{
			Address: address, Rate: rate, Process: setting.ProcessPoisson, Seconds: 6, Warmup: 1, Output: 1, Preopen: 256,
		}
		bare, ours, median := math.Inf(1), math.Inf(1), math.Inf(1)
		for range rounds {
			b := do[clientResult](t, "sender", c)
			a := do[clientResult](t, "ours", c)
			if a.Failed > 0 {
				t.Fatalf("%d failures: %s", a.Failed, a.Detail)
			}
			bare, ours = min(bare, quantile(b.Lateness, 0.99)), min(ours, quantile(a.Lateness, 0.99))
			median = min(median, quantile(a.Lateness, 0.5))
		}
		figure(t, fmt.Sprintf("send_lateness_p50_us_at_%g", rate), median*1e6, "-")
		figure(t, fmt.Sprintf("send_lateness_p99_bare_us_at_%g", rate), bare*1e6, "-")
		figure(t, fmt.Sprintf("send_lateness_p99_us_at_%g", rate), ours*1e6, "-")
		figure(t, fmt.Sprintf("send_lateness_p99_ratio_at_%g", rate), ours/bare, "<=1.3")
	}
}

// What left is the process that was asked for: the gaps between the sends, not
// those of the plan.
func TestSchedule_Processes(t *testing.T) {
	measuring(t)
	const rate, seconds = 500, 8
	address := serve(t, serverConfig{Plain: true})
	for _, c := range []struct {
		name    string
		process setting.Process
		shape   float64
		cv      float64                 // of the gaps
		below   func(x float64) float64 // distribution of the gaps, of mean 1
	}{
		{"constant", setting.ProcessConstant, 0, 0, nil},
		{"poisson", setting.ProcessPoisson, 0, 1, func(x float64) float64 { return 1 - math.Exp(-x) }},
		{"gamma", setting.ProcessGamma, 0.5, math.Sqrt2, func(x float64) float64 { return math.Erf(math.Sqrt(x / 2)) }},
	} {
		// The round that was disturbed least: the one whose requests were least late.
		var r clientResult
		for i := range rounds {
			one := do[clientResult](t, "ours", clientConfig{
				Address: address, Rate: rate, Process: c.process, Burstiness: c.shape, Seconds: seconds, Warmup: 1, Output: 1, Preopen: 256,
			})
			if i == 0 || quantile(one.Lateness, 0.99) < quantile(r.Lateness, 0.99) {
				r = one
			}
		}
		n := float64(len(r.Gaps))
		mean, sd := moments(r.Gaps)
		if c.below == nil {
			figure(t, c.name+"_gap_cv", sd/mean, "<=0.05")
			continue
		}
		// Three standard errors of the coefficient of variation.
		figure(t, c.name+"_gap_cv_error", math.Abs(sd/mean-c.cv), fmt.Sprintf("<=%.3g", 3*c.cv*math.Sqrt((1+2*c.cv*c.cv)/n)))
		figure(t, c.name+"_gap_ks_p", kolmogorov(r.Gaps, 1.0/rate, c.below), ">=0.001")
		if c.process == setting.ProcessPoisson {
			index, p := dispersion(r.Gaps, 20.0/rate)
			figure(t, c.name+"_dispersion", index, "-")
			figure(t, c.name+"_dispersion_p", p, ">=0.001")
		}
	}
}

// resolution is the time that a send may take, in s.
const resolution = 100e-6

func moments(values []float64) (mean, sd float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		sd += (v - mean) * (v - mean) / float64(len(values)-1)
	}
	return mean, math.Sqrt(sd)
}

// kolmogorov is the probability that gaps of that distribution are as far from it
// as these (asymptotic distribution of the Kolmogorov-Smirnov statistic). Gaps
// shorter than resolution are not told apart.
func kolmogorov(gaps []float64, mean float64, below func(float64) float64) float64 {
	sorted, most := slices.Sorted(slices.Values(gaps)), 0.0
	n := float64(len(sorted))
	for i, g := range sorted {
		if g < resolution {
			continue // sending one request takes that long
		}
		f := below(g / mean)
		most = max(most, f-float64(i)/n, float64(i+1)/n-f)
	}
	x, p := most*math.Sqrt(n), 0.0
	for k := 1.0; k <= 100; k++ {
		p += 2 * math.Pow(-1, k-1) * math.Exp(-2*k*k*x*x)
	}
	return min(1, max(0, p))
}

// dispersion is the index of dispersion of the counts in bins of that width, 1 for
// a Poisson process, and the two-sided probability of it (normal approximation of
// the chi-squared distribution, for the many bins that there are).
func dispersion(gaps []float64, width float64) (index, p float64) {
	counts, at := []float64{0}, 0.0
	for _, g := range gaps {
		at += g
		for int(at/width) >= len(counts) {
			counts = append(counts, 0)
		}
		counts[int(at/width)]++
	}
	counts = counts[:len(counts)-1] // the last bin is not whole
	mean, sd := moments(counts)
	index = sd * sd / mean
	df := float64(len(counts) - 1)
	return index, math.Erfc(math.Abs(index-1) * math.Sqrt(df/2) / math.Sqrt2)
}

// Coordinated omission: the server answers nothing for half a second. Each of the
// requests that became due meanwhile waited for the rest of it: at a constant rate
// r, r*(stall-x) of them longer than x. A client that waits with them sees one.
func TestSchedule_Stall(t *testing.T) {
	measuring(t)
	const rate, seconds, stall = 200.0, 10.0, 0.5
	var r clientResult
	for i := range rounds {
		address := serve(t, serverConfig{Plain: true, StallFrom: 4, StallFor: stall}) // one stall each
		one := do[clientResult](t, "ours", clientConfig{
			Address: address, Rate: rate, Process: setting.ProcessConstant, Seconds: seconds, Warmup: 1, Output: 1, Preopen: 256,
		})
		// Without the stall's part, the round that the machine disturbed least.
		if i == 0 || quantile(one.TTFT, 0.9) < quantile(r.TTFT, 0.9) {
			r = one
		}
	}
	n := rate * seconds
	slow := 0
	for _, v := range r.TTFT {
		if v > stall/10 {
			slow++
		}
	}
	figure(t, "stall_requests_slower_than_50ms", float64(slow), fmt.Sprintf(">=%.0f", math.Floor(0.97*rate*stall*0.9)))
	figure(t, "stall_requests_slower_than_50ms_model", rate*stall*0.9, "-")
	for _, q := range []float64{0.96, 0.98, 0.99} {
		model := stall - (1-q)*n/rate
		seen := quantile(r.TTFT, q)
		figure(t, fmt.Sprintf("stall_p%g_ms", q*100), seen*1e3, "-")
		figure(t, fmt.Sprintf("stall_p%g_model_ms", q*100), model*1e3, "-")
		figure(t, fmt.Sprintf("stall_p%g_error_ms", q*100), math.Abs(seen-model)*1e3, "<=10")
	}
}
