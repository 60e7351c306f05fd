package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"sbench/internal/metrics"
)

// Wishes say what a recommendation is to weigh.
type Wishes struct {
	Latency string // metric that latency means; "" for ttft_p95
	// Attainment is the share of requests that must meet every SLO; 0 for 0.99.
	Attainment float64
	// PricePerGPUHour by hardware id, in any currency; without a price the cost is
	// in GPU-hours.
	PricePerGPUHour map[string]float64
	// Pareto are two or three different ones of ParetoAxes, whose front is marked; nil
	// is throughput and latency.
	Pareto []string
}

// The axes that a Pareto front can weigh.
const (
	ParetoThroughput = "throughput" // output tokens/s per GPU: more is better
	ParetoLatency    = "latency"    // less is better
	ParetoQuality    = "quality"    // quality_score: more is better
)

// ParetoAxes lists them.
func ParetoAxes() []string { return []string{ParetoThroughput, ParetoLatency, ParetoQuality} }

func (w Wishes) axes() ([]string, error) {
	if len(w.Pareto) == 0 {
		return []string{ParetoThroughput, ParetoLatency}, nil
	}
	seen := map[string]bool{}
	for _, a := range w.Pareto {
		if !slices.Contains(ParetoAxes(), a) {
			return nil, fmt.Errorf("unknown Pareto axis %q: there are %s", a, strings.Join(ParetoAxes(), ", "))
		}
		seen[a] = true
	}
	if len(seen) != len(w.Pareto) || len(seen) < 2 {
		return nil, fmt.Errorf("a Pareto front weighs two or three different ones of %s", strings.Join(ParetoAxes(), ", "))
	}
	return w.Pareto, nil
}

// Point is a setting on the plane of throughput per GPU and latency.
type Point struct {
	SettingHash string   `json:"setting_hash"`
	Level       any      `json:"level"`
	GPUs        float64  `json:"gpus"`
	Throughput  *float64 `json:"output_tokens_per_s"`
	PerGPU      *float64 `json:"output_tokens_per_s_per_gpu"`
	Latency     *float64 `json:"latency_s"`
	// CostAtSLO is per million output tokens of requests that met every SLO.
	CostAtSLO *float64 `json:"cost_per_million_output_tokens_at_slo"`
	CostUnit  string   `json:"cost_unit"` // gpu_hours, or price
	GoodRatio *float64 `json:"goodput_ratio"`
	// Quality is the score of the answers after the measurement; nil where there is
	// none, or it is not of the same questions for all.
	Quality  *float64 `json:"quality_score"`
	Front    bool     `json:"pareto"`
	Excluded string   `json:"excluded,omitempty"` // why it is not weighed
}

// Recommendation is which setting to take for what.
type Recommendation struct {
	Latency        string   `json:"latency_metric"`
	Axes           []string `json:"pareto_axes"`
	Points         []Point  `json:"points"`
	BestThroughput string   `json:"best_throughput"` // setting_hash; "" for none
	BestLatency    string   `json:"best_latency"`
	CheapestAtSLO  string   `json:"cheapest_at_slo"`
	// BestQuality is "" where nothing was asked; of equal scores the first.
	BestQuality string   `json:"best_quality"`
	Notes       []string `json:"notes"`
}

// Recommend weighs the entries of a ranked comparison. Settings with a finding
// about the engine are shown and not recommended.
func Recommend(c Comparison, w Wishes) (Recommendation, error) {
	r := Recommendation{Latency: cmp.Or(w.Latency, "ttft_p95"), Notes: []string{}, Points: []Point{}}
	m, ok := metrics.Find(r.Latency)
	if !ok || m.Better != metrics.Lower || m.Unit != "s" {
		return r, fmt.Errorf("%q is no latency", r.Latency)
	}
	var err error
	if r.Axes, err = w.axes(); err != nil {
		return r, err
	}
	if !c.Ranked {
		return r, &ResidueError{c.Vary, c.Residue}
	}
	attainment := cmp.Or(w.Attainment, 0.99)
	for _, e := range c.Entries {
		r.Points = append(r.Points, point(e, r.Latency, attainment, w.PricePerGPUHour))
	}
	if len(w.PricePerGPUHour) == 0 {
		r.Notes = append(r.Notes, "without prices the cost is in GPU-hours: those of different hardware are not equal")
	}
	r.weighQuality(c)
	front(r.Points, r.Axes)
	r.BestQuality = best(r.Points, func(p Point) *float64 { return negative(p.Quality) })
	r.BestThroughput = best(r.Points, func(p Point) *float64 { return negative(p.Throughput) })
	r.BestLatency = best(r.Points, func(p Point) *float64 { return p.Latency })
	if !mixedCost(r.Points) {
		r.CheapestAtSLO = best(r.Points, func(p Point) *float64 { return p.CostAtSLO })
	} else {
		r.Notes = append(r.Notes, "some hardware has no price: nothing is called the cheapest")
	}
	if r.CheapestAtSLO == "" {
		r.Notes = append(r.Notes, fmt.Sprintf("no setting meets the SLOs for %.4g %% of its requests, or the sweep has none", 100*attainment))
	}
	return r, nil
}

// weighQuality gives the points their scores, if they are of the same questions.
func (r *Recommendation) weighQuality(c Comparison) {
	asked, missing := false, 0
	for i, e := range c.Entries {
		if e.Row.Quality != c.Entries[0].Row.Quality {
			for k := range r.Points {
				r.Points[k].Quality = nil
			}
			r.Notes = append(r.Notes, "quality is not weighed: "+unlikeQuality)
			return
		}
		asked = asked || e.Row.Quality != ""
		// Of scores the arithmetic mean: one of 0 is a score.
		if r.Points[i].Quality = e.Row.score(); r.Points[i].Quality == nil {
			missing++
		}
	}
	switch {
	case !asked && slices.Contains(r.Axes, ParetoQuality):
		r.Notes = append(r.Notes, "nothing is on the front: no quality was evaluated")
	case asked && missing > 0:
		r.Notes = append(r.Notes, fmt.Sprintf("%d of %d settings have no quality score", missing, len(r.Points)))
	}
}

// score is the mean score over the runs; nil where a run has none.
func (r Row) score() *float64 {
	sum := 0.0
	for _, run := range r.Runs {
		v := run.Metrics[metrics.QualityScore]
		if v == nil {
			return nil
		}
		sum += *v
	}
	if len(r.Runs) == 0 {
		return nil
	}
	sum /= float64(len(r.Runs))
	return &sum
}

func point(e Entry, latency string, attainment float64, prices map[string]float64) Point {
	gpu, _ := e.Row.Axes["hardware.gpu"].(string)
	p := Point{
		SettingHash: e.Row.SettingHash, Level: e.Level, CostUnit: "gpu_hours", Excluded: e.Unranked,
		GPUs: numeric(e.Row.Axes["hardware.gpus"]) * numeric(e.Row.Axes["hardware.nodes"]),
	}
	if math.IsNaN(p.GPUs) || p.GPUs <= 0 {
		p.GPUs = 1
	}
	of := func(metric string) *float64 {
		v, _, _ := e.Row.values(metric)
		return mean(v)
	}
	p.Throughput, p.Latency, p.GoodRatio = of("output_tokens_per_s"), of(latency), of("goodput_ratio")
	if p.Throughput == nil {
		return p
	}
	each := *p.Throughput / p.GPUs
	p.PerGPU = &each
	if p.GoodRatio == nil || *p.GoodRatio < attainment {
		return p
	}
	cost := p.GPUs * 1e6 / (*p.Throughput * *p.GoodRatio) / 3600
	if price, ok := prices[gpu]; ok {
		cost, p.CostUnit = cost*price, "price"
	}
	p.CostAtSLO = &cost
	return p
}

func negative(v *float64) *float64 {
	if v == nil {
		return nil
	}
	n := -*v
	return &n
}

// best is the setting of the smallest value.
func best(points []Point, of func(Point) *float64) string {
	hash, least := "", math.Inf(1)
	for _, p := range points {
		if v := of(p); p.Excluded == "" && v != nil && *v < least {
			hash, least = p.SettingHash, *v
		}
	}
	return hash
}

func mixedCost(points []Point) bool {
	units := map[string]bool{}
	for _, p := range points {
		if p.CostAtSLO != nil {
			units[p.CostUnit] = true
		}
	}
	return len(units) > 1
}

// losses are a point's values on the axes, turned so that less is better; nil where
// it has not all of them, or is not weighed.
func (p Point) losses(axes []string) []float64 {
	if p.Excluded != "" {
		return nil
	}
	var out []float64
	for _, axis := range axes {
		v := p.Latency
		switch axis {
		case ParetoThroughput:
			v = negative(p.PerGPU)
		case ParetoQuality:
			v = negative(p.Quality)
		}
		if v == nil {
			return nil
		}
		out = append(out, *v)
	}
	return out
}

// front marks the points that no other beats: in no axis worse, and better in one.
func front(points []Point, axes []string) {
	beats := func(a, b []float64) bool {
		better := false
		for i := range a {
			if a[i] > b[i] {
				return false
			}
			better = better || a[i] < b[i]
		}
		return better
	}
	for i := range points {
		own := points[i].losses(axes)
		points[i].Front = own != nil && !slices.ContainsFunc(points, func(q Point) bool {
			other := q.losses(axes)
			return other != nil && beats(other, own)
		})
	}
}

// Scale is how well more devices are used.
type Scale struct {
	SettingHash string   `json:"setting_hash"`
	Devices     float64  `json:"devices"`
	Speedup     *float64 `json:"speedup"` // of output tokens/s over the first row
	// Efficiency is the speed-up by the growth in devices; 1 is perfect.
	Efficiency     *float64 `json:"efficiency"`
	EfficiencyLow  *float64 `json:"efficiency_ci_low"`
	EfficiencyHigh *float64 `json:"efficiency_ci_high"`
}

// Scaling is the efficiency of each entry beside the first, in devices. It is nil
// unless the varied axis is a degree of parallelism or a number of devices.
func Scaling(c Comparison) []Scale {
	switch c.Vary {
	case "parallel.tensor", "parallel.pipeline", "parallel.data", "hardware.gpus", "hardware.nodes":
	default:
		return nil
	}
	if len(c.Residue) > 0 {
		return nil
	}
	devices := func(r Row) float64 { return numeric(r.Axes["hardware.gpus"]) * numeric(r.Axes["hardware.nodes"]) }
	base := devices(c.Entries[0].Row)
	one := 1.0
	out := []Scale{{SettingHash: c.Entries[0].Row.SettingHash, Devices: base, Speedup: &one, Efficiency: &one}}
	for _, e := range c.Entries[1:] {
		s := Scale{SettingHash: e.Row.SettingHash, Devices: devices(e.Row)}
		p := MakePair(c.Entries[0].Row, e.Row, "output_tokens_per_s", 0.05, c.pairable())
		by := func(v *float64) *float64 {
			if v == nil || !(s.Devices > 0) || !(base > 0) {
				return nil
			}
			x := *v / (s.Devices / base)
			return &x
		}
		s.Speedup, s.Efficiency, s.EfficiencyLow, s.EfficiencyHigh = p.Ratio, by(p.Ratio), by(p.RatioLow), by(p.RatioHigh)
		out = append(out, s)
	}
	return out
}
