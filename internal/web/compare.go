package web

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sbench/internal/aggregate"
	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/compare"
	"sbench/internal/fingerprint"
	"sbench/internal/metrics"
	"sbench/internal/setting"
	"sbench/internal/stats"
	"sbench/internal/store"
	"sbench/internal/sweep"
)

// maxCompared bounds the settings of one comparison.
const maxCompared = 1000

func (s *server) compare(r *http.Request, _ auth.Identity) (any, error) {
	var req api.CompareRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if req.Vary != "" {
		if _, _, ok := setting.LookupAxis(req.Vary); !ok {
			return nil, invalid("unknown axis %q to vary", req.Vary)
		}
	}
	if (len(req.Sides) == 2) == (len(req.Where) > 0) {
		return nil, invalid("give two settings or sweeps, or conditions with where")
	}
	if len(req.Where) > 0 {
		list, err := s.latestWhere(r, req)
		if err != nil {
			return nil, err
		}
		rows, err := s.rows(r, list)
		if err != nil {
			return nil, err
		}
		return answer(rows, req)
	}
	var sides [2][]compare.Row
	whole := false
	for i, text := range req.Sides {
		list, sweep, err := s.side(r, text)
		if err != nil {
			return nil, err
		}
		whole = whole || sweep
		if sides[i], err = s.rows(r, list); err != nil {
			return nil, err
		}
	}
	if !whole || len(sides[0]) == 1 && len(sides[1]) == 1 {
		return answer([]compare.Row{sides[0][0], sides[1][0]}, req)
	}
	return pairwise(sides[0], sides[1], req)
}

// side reads a setting's hash, a sweep's number, or number:hash.
func (s *server) side(r *http.Request, text string) (list []store.Latest, whole bool, err error) {
	number, prefix, both := strings.Cut(text, ":")
	if id, e := strconv.ParseInt(number, 10, 64); e == nil && id > 0 && (both || len(number) < 10) {
		if _, err := s.Store.Sweep(r.Context(), id); err != nil {
			return nil, false, err
		}
		list, err := s.Store.LatestOfSweep(r.Context(), id)
		if err != nil {
			return nil, false, err
		}
		if both {
			list = slices.DeleteFunc(list, func(l store.Latest) bool { return !strings.HasPrefix(l.SettingHash, prefix) })
		}
		return list, !both, checkSide(list, text, both)
	}
	if both || !hashPrefix(text) {
		return nil, false, invalid("%q is neither a sweep's number nor a setting's hash", text)
	}
	list, err = s.Store.LatestOfSettings(r.Context(), text, "")
	if err != nil {
		return nil, false, err
	}
	return list, false, checkSide(list, text, true)
}

func checkSide(list []store.Latest, text string, one bool) error {
	switch {
	case len(list) == 0:
		return &api.Problem{Code: api.CodeNotFound, Message: fmt.Sprintf("%s has no result that is summed up", text), Hint: "sbench results shows what there is so far"}
	case one && len(list) > 1:
		return invalid("%s names %d settings", text, len(list))
	}
	return nil
}

func hashPrefix(text string) bool {
	return text != "" && len(text) <= 64 && strings.Trim(text, "0123456789abcdef") == ""
}

// latestWhere are the latest summaries of the settings that meet all conditions.
func (s *server) latestWhere(r *http.Request, req api.CompareRequest) ([]store.Latest, error) {
	var conditions []sweep.Condition
	for _, text := range req.Where {
		c, faults := sweep.ParseCondition("--where", equality(text))
		if faults.HasErrors() {
			return nil, &api.Problem{Code: api.CodeInvalid, Message: "--where: " + faults[0].Message, Hint: faults[0].Hint, Diagnostics: faults}
		}
		conditions = append(conditions, c)
	}
	var list []store.Latest
	var err error
	if req.Sweep != 0 {
		list, err = s.Store.LatestOfSweep(r.Context(), req.Sweep)
	} else {
		list, err = s.Store.LatestOfSettings(r.Context(), "", req.Site)
	}
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(l store.Latest) bool {
		return slices.ContainsFunc(conditions, func(c sweep.Condition) bool {
			// An axis without a meaning for a setting meets no condition about it.
			holds, err := c.Holds(&l.Setting)
			return err != nil || !holds
		})
	})
	switch {
	case len(list) < 2:
		return nil, &api.Problem{Code: api.CodeNotFound, Message: fmt.Sprintf("%d settings with results meet the conditions: two are needed", len(list))}
	case len(list) > maxCompared:
		return nil, invalid("%d settings meet the conditions: at most %d are compared", len(list), maxCompared)
	}
	return list, nil
}

// equality turns key=value into an expression.
func equality(text string) string {
	key, value, ok := strings.Cut(text, "=")
	key = strings.TrimSpace(key)
	axis, entry, known := setting.LookupAxis(key)
	if !ok || !known || strings.HasPrefix(value, "=") {
		return text
	}
	if entry != "" {
		return fmt.Sprintf("%s[%q] == %q", axis.Key, entry, value)
	}
	switch axis.Type.Storage() {
	case setting.StoreInt, setting.StoreFloat, setting.StoreBool:
		return key + " == " + value
	default:
		return fmt.Sprintf("%s == %q", key, strings.Trim(value, `'"`))
	}
}

// rows gives summaries the runs that they are of.
func (s *server) rows(r *http.Request, list []store.Latest) ([]compare.Row, error) {
	measured, err := s.Store.Measured(r.Context(), store.Attempts(list))
	if err != nil {
		return nil, err
	}
	return rowsOf(list, measured), nil
}

func rowsOf(list []store.Latest, measured map[int64]store.Measured) []compare.Row {
	out := make([]compare.Row, len(list))
	for i := range list {
		l := &list[i]
		row := compare.Row{
			SweepID: l.SweepID, SettingHash: l.SettingHash, SeriesHash: l.SeriesHash, Site: l.Site, HardwareClass: l.HardwareClass,
			MetricsVersion: l.MetricsVersion, Axes: api.Axes(&l.Setting), NValid: l.NValid, NTotal: l.NTotal, Final: l.IsFinal,
			Mixed: l.Mixed, Quality: l.QualityHash, Findings: l.Findings,
		}
		var runs []aggregate.Run
		for _, id := range l.Attempts {
			if m, ok := measured[id]; ok {
				runs = append(runs, aggregate.Run{AttemptID: id, Fingerprint: m.FingerprintHash})
			}
		}
		for _, run := range aggregate.Pooled(runs) {
			m := measured[run.AttemptID]
			row.Runs = append(row.Runs, compare.Run{
				AttemptID: m.AttemptID, Repeat: m.Repeat, Nodes: m.Nodes, Fingerprint: m.FingerprintHash, Metrics: m.Metrics,
			})
		}
		out[i] = row
	}
	return out
}

// pairwise compares two sweeps: each setting of the second with the one of the
// first that differs least.
func pairwise(base, other []compare.Row, req api.CompareRequest) (api.Comparison, error) {
	out := api.Comparison{Vary: req.Vary, Ranked: true, Pairs: []api.Comparison{}, Entries: []api.ComparedSetting{}, Warnings: []string{}}
	for _, row := range other {
		best, least := -1, 0
		for i := range base {
			n := 0
			for _, d := range compare.Differences([]compare.Row{base[i], row}) {
				if req.Vary == "" || d.Axis != req.Vary && !strings.HasPrefix(d.Axis, req.Vary+".") {
					n++
				}
			}
			if best < 0 || n < least {
				best, least = i, n
			}
		}
		if best < 0 {
			continue
		}
		pair, err := answer([]compare.Row{base[best], row}, req)
		if err != nil {
			return out, err
		}
		out.Pairs = append(out.Pairs, pair)
		out.Ranked = out.Ranked && pair.Ranked
		if pair.Refused != "" {
			out.Refused = pair.Refused
		}
		out.By, out.Metrics = pair.By, pair.Metrics
	}
	return out, nil
}

// answer compares rows. What may not be ranked is an answer too: it says why.
func answer(rows []compare.Row, req api.CompareRequest) (api.Comparison, error) {
	c, err := compare.Compare(rows, compare.Options{
		Vary: req.Vary, Metrics: req.Metrics, By: req.By, Theta: req.Theta, Anyway: req.Anyway,
	})
	var residue *compare.ResidueError
	refused := ""
	switch {
	case errors.As(err, &residue):
		refused = residue.Error()
		for _, r := range rows {
			c.Entries = append(c.Entries, compare.Entry{Row: r, Level: r.Axes[c.Vary]})
		}
	case errors.Is(err, compare.ErrUnlike):
		return api.Comparison{}, &api.Problem{Code: api.CodeRefused, Message: err.Error()}
	case err != nil:
		return api.Comparison{}, err
	case len(c.Residue) > 0:
		refused = (&compare.ResidueError{Vary: c.Vary, Residue: c.Residue}).Error()
	}
	out := api.Comparison{
		Vary: c.Vary, Ranked: c.Ranked, By: c.By, Residue: nonNil(c.Residue), Coupled: nonNil(c.Coupled), Realized: nonNil(c.Realized),
		Metrics: nonNil(c.Metrics), Pairs: []api.Comparison{}, Scaling: nonNil(compare.Scaling(c)), Warnings: nonNil(c.Warnings), Refused: refused,
		Entries: []api.ComparedSetting{},
	}
	for _, e := range c.Entries {
		out.Entries = append(out.Entries, comparedOf(e, req.Shape))
	}
	if c.Ranked {
		rec, err := compare.Recommend(c, compare.Wishes{Latency: req.Latency, Attainment: req.Attainment, PricePerGPUHour: req.Prices, Pareto: req.Pareto})
		if err != nil {
			return out, invalid("%v", err)
		}
		out.Recommendation = &rec
	}
	return out, nil
}

func comparedOf(e compare.Entry, shape *api.ModelShape) api.ComparedSetting {
	out := api.ComparedSetting{
		SettingHash: e.Row.SettingHash, SweepID: e.Row.SweepID, HardwareClass: e.Row.HardwareClass, Level: e.Level, Axes: e.Row.Axes,
		NValid: e.Row.NValid, NTotal: e.Row.NTotal, IsFinal: e.Row.Final, Findings: nonNil(e.Row.Findings), Unranked: e.Unranked,
		Pairs: nonNil(e.Pairs), Means: map[string]float64{},
	}
	if e.Rank > 0 {
		out.Rank = &e.Rank
	}
	for _, name := range metricNames(e.Row) {
		if v := meanOf(e.Row, name); v != nil {
			out.Means[name] = *v
		}
	}
	roofline(&out, e.Row, shape)
	return out
}

func metricNames(row compare.Row) []string {
	names := map[string]bool{}
	for _, r := range row.Runs {
		for name := range r.Metrics {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// meanOf is the geometric mean over the runs; nil where a run has no positive
// value.
func meanOf(row compare.Row, name string) *float64 {
	var v []float64
	for _, r := range row.Runs {
		p := r.Metrics[name]
		if p == nil || !(*p > 0) {
			return nil
		}
		v = append(v, *p)
	}
	if len(v) == 0 {
		return nil
	}
	g := stats.GeometricMean(v)
	return &g
}

// roofline adds MBU, MFU and the share of the attainable tokens/s. The step is
// the mean time per output token at the mean number of requests in the system.
func roofline(out *api.ComparedSetting, row compare.Row, shape *api.ModelShape) {
	if shape == nil {
		return
	}
	gpu, _ := row.Axes["hardware.gpu"].(string)
	model, ok := fingerprint.Find(gpu)
	tpot, batch := meanOf(row, "tpot_mean"), meanOf(row, "concurrency_mean")
	in, produced, rate := meanOf(row, "input_tokens_mean"), meanOf(row, "output_tokens_mean"), meanOf(row, "output_tokens_per_s")
	switch {
	case !ok || model.BandwidthBytes == 0 || model.PeakFlops == 0:
		out.RooflineNote = fmt.Sprintf("the catalogue knows no peaks of %s", gpu)
		return
	case tpot == nil || batch == nil || in == nil || produced == nil || rate == nil:
		out.RooflineNote = "a run has no time per token, concurrency or token counts"
		return
	}
	gpus := float64(1)
	if n, ok := row.Axes["hardware.gpus"].(int64); ok {
		gpus = float64(n)
	}
	if n, ok := row.Axes["hardware.nodes"].(int64); ok {
		gpus *= float64(n)
	}
	device := metrics.Device{Bandwidth: gpus * model.BandwidthBytes, FLOPS: gpus * model.PeakFlops}
	step := metrics.Roofline(metrics.Shape(*shape), device, *batch, *in+*produced/2)
	mbu, mfu, ratio := step.MBU(device, *tpot), step.MFU(device, *tpot), *rate/step.AttainablePerS
	// Each of these is a measurement error, a wrong shape or speculative decoding.
	switch {
	case mbu > 1:
		out.RooflineNote = fmt.Sprintf("MBU %.2f: above 1 is a measurement error, a wrong shape or speculative decoding", mbu)
		return
	case mfu > 1:
		out.RooflineNote = fmt.Sprintf("MFU %.2f: above 1 is a measurement error, a wrong shape or speculative decoding", mfu)
		return
	case ratio > 1:
		out.RooflineNote = fmt.Sprintf("%.2f of the attainable tokens/s: above 1 is a measurement error, a wrong shape or speculative decoding", ratio)
		return
	}
	out.MBU, out.MFU, out.RooflineRatio = &mbu, &mfu, &ratio
}
