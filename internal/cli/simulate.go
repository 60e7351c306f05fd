package cli

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/runner/audit"
	"sbench/internal/setting"
	"sbench/internal/sim"
	"sbench/internal/sweep"
	"sbench/internal/unit"
	"sbench/internal/workload"
)

type simulateOptions struct {
	rates  []string
	find   bool
	demand string
	repeat int
	engine sim.Config
	table  tableFlags
}

func newSimulateCommand(a *app) *cobra.Command {
	o := &simulateOptions{engine: sim.DefaultConfig()}
	cmd := &cobra.Command{
		Use:   "simulate [flags] WORKLOAD.yaml",
		Short: "plan capacity with the simulated engine, in virtual time",
		Long: `Offers a workload to the model of an engine in virtual time: minutes of load in
seconds, without an engine. The workload file is that of sbench bench; the flags
of the engine are those of sbench-sim. Each rate is a simulation of its own. With
--find, the highest rate is searched that meets the file's SLO without saturating
the engine; --demand says how many such engines a rate needs. A limit without a
percentile is judged at p95, and a window too short for a limit's percentile is
lengthened. What comes out is a model's word, not a measurement:
it is as good as the costs that are given.`,
		Example: "sbench simulate --rates 2/s,8/s,32/s chat.yaml\nsbench simulate --find --demand 200/s --peak-flops 9.9e14 --bandwidth 3.35e12 --parameters 8e9 --efficiency 0.5 chat.yaml",
		Args:    nArgs(1, 1, "WORKLOAD.yaml"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.simulate(o, args[0]) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.rates, "rates", nil, "rates to simulate, as `2/s,4/s` (default: the file's ladder, or its rate)")
	f.BoolVar(&o.find, "find", false, "search the highest rate that meets the SLO")
	f.StringVar(&o.demand, "demand", "", "`rate` that is to be served: says how many engines it needs")
	f.IntVar(&o.repeat, "repeat", 0, "number of the repeat: each draws requests of its own from the seed")
	model := flag.NewFlagSet("", flag.ContinueOnError)
	o.engine.ModelFlags(model)
	f.AddGoFlagSet(model)
	addTableFlags(f, &o.table)
	exits(cmd, exitOK, exitFailed, exitUsage)
	return cmd
}

// simulatedPoint is one rate in a simulation of its own.
type simulatedPoint struct {
	Rate        float64           `json:"rate_per_s"`
	Meets       bool              `json:"meets_slo"`
	Why         []string          `json:"reasons"` // why it does not
	Metrics     result.Metrics    `json:"metrics"`
	NullReasons map[string]string `json:"null_reasons"`
}

// simulation is what the command prints as JSON.
type simulation struct {
	Engine   string           `json:"engine"`
	Points   []simulatedPoint `json:"points"`
	Capacity *float64         `json:"capacity_per_s"` // highest rate that meets the SLO
	Demand   *float64         `json:"demand_per_s"`
	Engines  *int             `json:"engines"` // that the demand needs
}

// simulator simulates one rate after the other.
type simulator struct {
	load           *sweep.Load
	trace, prompts []byte
	repeat         int
	engine         sim.Config
	slo            metrics.SLO
	points         map[float64]simulatedPoint
}

func (a *app) simulate(o *simulateOptions, name string) error {
	load, trace, prompts, err := a.readLoad(name)
	if err != nil {
		return err
	}
	usage := func(message, hint string) error {
		return &failure{status: exitUsage, message: message, hint: hint}
	}
	w := load.Workload
	rated := w.Arrival.Process == setting.ProcessConstant || w.Arrival.Process == setting.ProcessPoisson || w.Arrival.Process == setting.ProcessGamma
	switch {
	case w.Prompts.Source == "file" && w.Input.Distribution == setting.DistFile:
		return usage("how many tokens the prompts of a file have is only known to a server", "give input_tokens a distribution")
	case (o.find || len(o.rates) > 0 || o.demand != "") && !rated:
		return usage(fmt.Sprintf("arrival process %s has no rate to vary", w.Arrival.Process), "take constant, poisson or gamma")
	case o.find && len(load.SLO) == 0:
		return usage("--find needs limits to meet", "give the file an slo: {ttft_p95: 500ms}")
	}
	s := &simulator{load: load, trace: trace, prompts: prompts, repeat: o.repeat, engine: o.engine, slo: metrics.SLO{}, points: map[float64]simulatedPoint{}}
	for key, limit := range load.SLO {
		s.slo[key] = limit.Seconds()
	}
	rates, demand, err := simulateRates(o, w, rated)
	if err != nil {
		return usage(err.Error(), "as in --rates 2/s,8/s")
	}
	out := simulation{Engine: o.engine.String(), Demand: demand}
	for _, rate := range rates {
		if _, err := s.point(rate); err != nil {
			return &failure{status: exitUsage, message: err.Error(), err: err}
		}
	}
	if o.find {
		best, err := s.search(rates[0])
		if err != nil {
			return &failure{status: exitUsage, message: err.Error(), err: err}
		}
		out.Capacity = best
	}
	for _, rate := range slices.Sorted(maps.Keys(s.points)) {
		out.Points = append(out.Points, s.points[rate])
	}
	if out.Capacity != nil && demand != nil {
		n := int(math.Ceil(*demand / *out.Capacity))
		out.Engines = &n
	}
	if a.json {
		return writeJSON(a.stdout, out)
	}
	a.printSimulation(o, out)
	return nil
}

// simulateRates are the rates asked for: by the flag, the ladder, or the rate.
func simulateRates(o *simulateOptions, w setting.Workload, rated bool) (rates []float64, demand *float64, err error) {
	for _, text := range o.rates {
		rate, err := unit.Rate(text)
		if err != nil {
			return nil, nil, fmt.Errorf("--rates: %w", err)
		}
		rates = append(rates, rate)
	}
	if o.demand != "" {
		rate, err := unit.Rate(o.demand)
		if err != nil {
			return nil, nil, fmt.Errorf("--demand: %w", err)
		}
		if o.find {
			demand = &rate
		} else {
			return nil, nil, fmt.Errorf("--demand needs --find: how many engines serve a rate follows from what one can")
		}
	}
	switch {
	case len(rates) > 0:
	case len(w.Ladder) > 0:
		rates = w.Ladder
	case rated:
		rates = []float64{w.Arrival.Rate}
	default:
		rates = []float64{0}
	}
	return rates, demand, nil
}

// point simulates one rate, once.
func (s *simulator) point(rate float64) (simulatedPoint, error) {
	if p, ok := s.points[rate]; ok {
		return p, nil
	}
	w := s.load.Workload
	w.Ladder = nil
	if rate > 0 {
		w.Arrival.Rate = rate
		w.Duration = max(w.Duration, unit.FromSeconds(float64(s.samples())/rate))
	}
	plan, err := workload.New(w, s.repeat, workload.Options{Trace: s.trace, Prompts: s.prompts})
	if err != nil {
		return simulatedPoint{}, fmt.Errorf("plan the workload: %w", err)
	}
	rows, windows, err := sim.Simulate(plan, s.engine)
	if err != nil {
		return simulatedPoint{}, err
	}
	win := metrics.Compute(rows, windows[0], s.slo)
	p := simulatedPoint{Rate: win.OfferedRate, Metrics: win.Metrics, NullReasons: win.NullReasons, Why: []string{}}
	if c := audit.CheckSaturated(w, &win); c.Verdict == result.VerdictFail {
		p.Why = append(p.Why, "saturated: "+c.Reason)
	}
	for _, key := range slices.Sorted(maps.Keys(s.slo)) {
		name := judged(key).Name
		switch v := win.Metrics[name]; {
		case v == nil:
			p.Why = append(p.Why, fmt.Sprintf("%s is not known: %s", name, win.NullReasons[name]))
		case *v > s.slo[key]:
			p.Why = append(p.Why, fmt.Sprintf("%s is %s s, the limit %s s", name, number(v), formatted(s.slo[key])))
		}
	}
	p.Meets = len(p.Why) == 0
	s.points[rate] = p
	return p, nil
}

// judged is the metric that a limit is held against.
func judged(key string) metrics.Metric {
	m, known := metrics.Find(key)
	if !known {
		m, _ = metrics.Find(key + "_p95")
	}
	return m
}

// samples is how many requests the limits' percentiles need, and some more, because
// a random process may bring fewer than its mean.
func (s *simulator) samples() int {
	most := 0
	for key := range s.slo {
		if num, den := judged(key).Quantile(); num > 0 {
			most = max(most, 12*den/(den-num))
		}
	}
	return most
}

func formatted(v float64) string { return number(&v) }

// search finds the highest rate that meets the SLO, to a twentieth: it doubles the
// rate until it fails, or halves it until it holds, and bisects. nil where none does.
func (s *simulator) search(from float64) (*float64, error) {
	const mostSteps, precision = 12, 1.05
	low, high := 0.0, 0.0
	for rate, n := from, 0; (low == 0 || high == 0) && n < mostSteps; n++ {
		p, err := s.point(rate)
		if err != nil {
			return nil, err
		}
		if p.Meets {
			low = rate
			rate *= 2
		} else {
			high = rate
			rate /= 2
		}
		if low > 0 && high > 0 {
			break
		}
	}
	if low == 0 {
		return nil, nil
	}
	for high > low*precision {
		middle := math.Sqrt(low * high)
		p, err := s.point(middle)
		if err != nil {
			return nil, err
		}
		if p.Meets {
			low = middle
		} else {
			high = middle
		}
	}
	return &low, nil
}

func (a *app) printSimulation(o *simulateOptions, out simulation) {
	columns := []string{"achieved_rate", "output_tokens_per_s", "concurrency_mean", "ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "e2e_p95", "goodput_ratio"}
	head := []string{"RATE>"}
	for _, c := range columns {
		head = append(head, c+">")
	}
	t := newTable(append(head, "MEETS SLO")...)
	for _, p := range out.Points {
		row := []any{fmt.Sprintf("%.4g/s", p.Rate)}
		for _, c := range columns {
			row = append(row, number(p.Metrics[c]))
		}
		meets := "yes"
		if !p.Meets {
			meets = "no"
		}
		t.add(append(row, meets)...)
		if !p.Meets {
			t.note(strings.Join(p.Why, "; "))
		}
	}
	t.print(a, o.table)
	a.message("simulated, not measured: %s", out.Engine)
	switch {
	case !o.find:
	case out.Capacity == nil:
		a.message("no rate meets the SLO")
	default:
		a.message("an engine serves up to %s requests/s within the SLO", formatted(*out.Capacity))
	}
	if out.Engines != nil {
		a.message("%s requests/s need %d engines", formatted(*out.Demand), *out.Engines)
	}
}
