package workload

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"sbench/internal/setting"
	"sbench/internal/stats"
)

// Profile is what a request log says about the load that it recorded.
type Profile struct {
	Requests int     // with a time
	Skipped  int     // rows with a time whose token counts are 0: failures
	Seconds  float64 // from the first to the last
	Rate     float64 // requests/s
	// GapCV is the coefficient of variation of the gaps: 0 constant, 1 Poisson, more
	// for bursts. Dispersion is the variance of the counts per second by their mean.
	GapCV, Dispersion float64
	// Drift is the relative change of the rate between the log's halves.
	Drift float64
	// Input and Output describe the token counts; zero where the log has none.
	Input, Output Spread
	// Correlation is that of the logarithms of input and output, NaN where unknown.
	Correlation float64
	// PerMinute are the requests of each minute; Inputs and Outputs the counts.
	PerMinute       []int
	Inputs, Outputs []int32
}

// Spread describes a sample of token counts.
type Spread struct {
	Min, Max           int
	P50, P90, P95, P99 float64
	Mean               float64
	Sigma              float64 // standard deviation of the logarithms
	// Distance is the largest one between the sample and the lognormal distribution
	// of its median and sigma (Kolmogorov-Smirnov).
	Distance float64
}

// ProfileLog reads request logs of the forms that a trace has, as one log.
func ProfileLog(logs ...[]byte) (Profile, error) {
	var p Profile
	var times []float64
	var pairs [][2]float64
	for i, data := range logs {
		err := eachRow(data, func(row map[string]any) error {
			at, err := rowTime(row)
			if err != nil {
				return err
			}
			s := rowSize(row)
			if counted(row, inputKeys()) && counted(row, outputKeys()) && (s.input == 0 || s.output == 0) {
				p.Skipped++ // an answer without tokens is a failure, not a length
				return nil
			}
			times = append(times, at)
			if s.input > 0 {
				p.Inputs = append(p.Inputs, s.input)
			}
			if s.output > 0 {
				p.Outputs = append(p.Outputs, s.output)
			}
			if s.input > 0 && s.output > 0 {
				pairs = append(pairs, [2]float64{math.Log(float64(s.input)), math.Log(float64(s.output))})
			}
			return nil
		})
		if err != nil {
			return Profile{}, fmt.Errorf("log %d: %w", i+1, err)
		}
	}
	if len(times) < 2 {
		return Profile{}, errors.New("a log needs at least two requests")
	}
	slices.Sort(times)
	p.Requests, p.Seconds = len(times), times[len(times)-1]-times[0]
	switch {
	case p.Seconds <= 0:
		return Profile{}, errors.New("all requests of the log have one time")
	case p.Seconds > longestLog:
		return Profile{}, fmt.Errorf("the log spans %.3g days: more than a year, or its times are not what they seem", p.Seconds/86400)
	}
	p.arrivals(times)
	p.Input, p.Output = spread(p.Inputs), spread(p.Outputs)
	p.Correlation = correlation(pairs)
	return p, nil
}

const (
	longestLog = 366 * 86400.0 // s
	mostBins   = 100_000
)

func counted(row map[string]any, keys []string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { _, ok := row[key]; return ok })
}

// arrivals describes the times, which are sorted.
func (p *Profile) arrivals(times []float64) {
	p.Rate = float64(len(times)-1) / p.Seconds
	gaps := make([]float64, len(times)-1)
	for i := range gaps {
		gaps[i] = times[i+1] - times[i]
	}
	p.GapCV = 0
	if len(gaps) > 1 {
		p.GapCV = stats.CV(gaps)
	}
	width := max(1, p.Seconds/mostBins) // s; of a Poisson process any will do
	perSecond := make([]float64, int(p.Seconds/width)+1)
	p.PerMinute = make([]int, int(p.Seconds/60)+1)
	half := 0
	for _, t := range times {
		perSecond[min(len(perSecond)-1, int((t-times[0])/width))]++
		p.PerMinute[int((t-times[0])/60)]++
		if t-times[0] < p.Seconds/2 {
			half++
		}
	}
	if whole := perSecond[:len(perSecond)-1]; len(whole) > 1 {
		p.Dispersion = stats.Variance(whole) / stats.Mean(whole)
	}
	p.Drift = float64(len(times)-2*half) / float64(len(times)) * 2
}

func spread(counts []int32) Spread {
	if len(counts) == 0 {
		return Spread{}
	}
	sorted := make([]float64, len(counts))
	for i, c := range counts {
		sorted[i] = float64(c)
	}
	slices.Sort(sorted)
	s := Spread{
		Min: int(sorted[0]), Max: int(sorted[len(sorted)-1]), Mean: stats.Mean(sorted),
		P50: stats.NearestRank(sorted, 50, 100), P90: stats.NearestRank(sorted, 90, 100),
		P95: stats.NearestRank(sorted, 95, 100), P99: stats.NearestRank(sorted, 99, 100),
	}
	if len(sorted) > 1 {
		s.Sigma = stats.StdDev(stats.Logs(sorted))
	}
	if s.Sigma > 0 {
		mu := stats.Mean(stats.Logs(sorted))
		for i, v := range sorted {
			f := math.Erfc((mu-math.Log(v))/(s.Sigma*math.Sqrt2)) / 2
			n := float64(len(sorted))
			s.Distance = max(s.Distance, f-float64(i)/n, float64(i+1)/n-f)
		}
	}
	return s
}

func correlation(pairs [][2]float64) float64 {
	if len(pairs) < 3 {
		return math.NaN()
	}
	var x, y []float64
	for _, p := range pairs {
		x, y = append(x, p[0]), append(y, p[1])
	}
	mx, my := stats.Mean(x), stats.Mean(y)
	var xy, xx, yy float64
	for i := range x {
		xy += (x[i] - mx) * (y[i] - my)
		xx += (x[i] - mx) * (x[i] - mx)
		yy += (y[i] - my) * (y[i] - my)
	}
	return xy / math.Sqrt(xx*yy)
}

const (
	// A lognormal distribution stands for a sample that lies this close to it.
	lognormalDistance = 0.05
	// Gaps within a tenth of a Poisson process' coefficient of variation are one.
	poissonSlack = 0.1
	// Above this correlation, input and output are drawn together.
	jointCorrelation = 0.3
	histogramBins    = 20
	jointBins        = 8
)

// Workload is a workload that offers the like of the log: its rate and burstiness,
// and the distributions of its token counts. Everything else has its default.
func (p Profile) Workload() setting.Workload {
	s := setting.Default()
	w := s.Workload
	w.Arrival = setting.Arrival{Process: setting.ProcessPoisson, Rate: round(p.Rate, 4)}
	switch {
	case p.GapCV < 0.05:
		w.Arrival.Process = setting.ProcessConstant
	case math.Abs(p.GapCV-1) > poissonSlack:
		w.Arrival.Process, w.Arrival.Burstiness = setting.ProcessGamma, round(1/(p.GapCV*p.GapCV), 3)
	}
	w.Duration = max(time.Minute, min(time.Duration(p.Seconds)*time.Second, 10*time.Minute))
	if len(p.Inputs) == len(p.Outputs) && math.Abs(p.Correlation) > jointCorrelation {
		w.Input = setting.Lengths{Distribution: setting.DistPairs, Pairs: p.pairs()}
		w.Output = setting.Lengths{Distribution: setting.DistPairs}
		return w
	}
	if len(p.Inputs) > 0 {
		w.Input = p.Input.lengths(p.Inputs)
	}
	if len(p.Outputs) > 0 {
		w.Output = p.Output.lengths(p.Outputs)
	}
	return w
}

// round keeps that many significant digits.
func round(x float64, digits int) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	scale := math.Pow(10, float64(digits-1)-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}

func (s Spread) lengths(counts []int32) setting.Lengths {
	switch {
	case s.Min == s.Max:
		return setting.Lengths{Distribution: setting.DistConstant, Value: s.Min}
	case s.Distance <= lognormalDistance:
		return setting.Lengths{Distribution: setting.DistLognormal, Median: s.P50, Sigma: round(s.Sigma, 3), Min: s.Min, Max: s.Max}
	}
	return setting.Lengths{Distribution: setting.DistHistogram, Bins: bins(counts, histogramBins)}
}

// bins cuts a sample into ranges of about equal weight.
func bins(counts []int32, n int) []setting.Bin {
	sorted := slices.Sorted(slices.Values(counts))
	var all []setting.Bin
	for from := 0; from < len(sorted); {
		to := min(len(sorted), max(from+1, (len(all)+1)*len(sorted)/n))
		for to < len(sorted) && sorted[to] == sorted[to-1] {
			to++ // equal counts stay together
		}
		all = append(all, setting.Bin{Min: int(sorted[from]), Max: int(sorted[to-1]), Weight: float64(to - from)})
		from = to
	}
	return all
}

// pairs are the cells of a grid of equal weights, each by its median request.
func (p Profile) pairs() []setting.Pair {
	order := make([]int, len(p.Inputs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(p.Inputs[a] - p.Inputs[b]) })
	var all []setting.Pair
	for i := range jointBins {
		row := slices.Clone(order[i*len(order)/jointBins : (i+1)*len(order)/jointBins])
		slices.SortStableFunc(row, func(a, b int) int { return int(p.Outputs[a] - p.Outputs[b]) })
		for j := range jointBins {
			cell := row[j*len(row)/jointBins : (j+1)*len(row)/jointBins]
			if len(cell) == 0 {
				continue
			}
			middle := cell[len(cell)/2]
			all = append(all, setting.Pair{Input: int(p.Inputs[middle]), Output: int(p.Outputs[middle]), Weight: float64(len(cell))})
		}
	}
	return all
}
