package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"

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
	Front     bool     `json:"pareto"`
	Excluded  string   `json:"excluded,omitempty"` // why it is not weighed
}

// Recommendation is which setting to take for what.
type Recommendation struct {
	Latency        string   `json:"latency_metric"`
	Points         []Point  `json:"points"`
	BestThroughput string   `json:"best_throughput"` // setting_hash; "" for none
	BestLatency    string   `json:"best_latency"`
	CheapestAtSLO  string   `json:"cheapest_at_slo"`
	Notes          []string `json:"notes"`
}

// Recommend weighs the entries of a ranked comparison. Settings with a finding
// about the engine are shown and not recommended.
func Recommend(c Comparison, w Wishes) (Recommendation, error) {
	r := Recommendation{Latency: cmp.Or(w.Latency, "ttft_p95"), Notes: []string{}, Points: []Point{}}
	m, ok := metrics.Find(r.Latency)
	if !ok || m.Better != metrics.Lower || m.Unit != "s" {
		return r, fmt.Errorf("%q is no latency", r.Latency)
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
	front(r.Points)
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

// front marks the points that no other beats in throughput per GPU and latency.
func front(points []Point) {
	good := func(p Point) bool { return p.Excluded == "" && p.PerGPU != nil && p.Latency != nil }
	for i := range points {
		p := &points[i]
		p.Front = good(*p) && !slices.ContainsFunc(points, func(q Point) bool {
			return good(q) && *q.PerGPU >= *p.PerGPU && *q.Latency <= *p.Latency && (*q.PerGPU > *p.PerGPU || *q.Latency < *p.Latency)
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
