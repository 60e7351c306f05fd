package web

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/cost"
	"sbench/internal/store"
)

const currency = "USD"

// cost adds up what was spent. Operators see everybody's, others their own.
func (s *server) cost(r *http.Request, who auth.Identity) (any, error) {
	q := r.URL.Query()
	by, err := cost.ParseDimensions(q.Get("by"))
	if err != nil {
		return nil, invalid("by: %v", err)
	}
	period, err := periodOf(q.Get("start"), q.Get("end"))
	if err != nil {
		return nil, err
	}
	book, err := s.Store.Book(r.Context())
	if err != nil {
		return nil, err
	}
	out := api.CostReport{Start: period.Start, End: period.End, By: []string{}, Currency: currency, RateUnit: currency + " per GPU-hour", Complete: true}
	var only func(cost.Allocation, cost.Run) bool
	if !who.Operator {
		out.User = who.User
		only = func(_ cost.Allocation, run cost.Run) bool { return run.User == who.User }
	}
	for _, d := range by {
		out.By = append(out.By, string(d))
	}
	ledger := cost.NewLedger(period, by, book, only)
	if err := s.Store.EachHeld(r.Context(), period, s.Now(), ledger.Add); err != nil {
		return nil, err
	}
	report := ledger.Report()
	out.Rows, out.Totals = costRows(report.Rows, by), costRows(report.Totals, nil)
	for i := range out.Totals {
		out.Complete = out.Complete && out.Totals[i].Complete
	}
	return out, nil
}

// periodOf reads a period of whole seconds: Slurm accounts for no less.
func periodOf(start, end string) (cost.Period, error) {
	var p cost.Period
	for _, f := range []struct {
		name, text string
		into       *time.Time
	}{{"start", start, &p.Start}, {"end", end, &p.End}} {
		t, err := time.Parse(time.RFC3339, f.text)
		if err != nil {
			return p, invalid("%s %q is not a time such as 2026-01-31T22:00:00Z", f.name, clipped(f.text))
		}
		*f.into = t.UTC().Truncate(time.Second)
	}
	if !p.Start.Before(p.End) {
		return p, invalid("the period ends before it begins")
	}
	return p, nil
}

func costRows(rows []cost.Row, by []cost.Dimension) []api.CostRow {
	out := make([]api.CostRow, len(rows))
	for i := range rows {
		r := &rows[i]
		c := api.CostRow{
			HardwareClass: r.Class, Complete: r.Complete(), Allocations: r.Allocations, OpenAllocations: r.Open, UnknownAllocations: r.Unknown,
			RunStarts: r.Runs, BillableGPUSeconds: r.Billable, MeasuredGPUSeconds: r.Measured, LostGPUSeconds: r.Lost, IdleGPUSeconds: r.Idle,
			Efficiency: r.Efficiency(), IdleShare: r.IdleShare(), Rates: nonNil(r.Rates), EnergyJoules: r.Energy, WindowEnergyJoules: r.Window,
			OutputTokens: r.OutputTokens, CostPerMillionSteady: r.Steady, CostPerMillionLoaded: r.Loaded, CostPerMillionAtSLO: r.AtSLO,
			AtSLOSetting: r.AtSLOSetting,
		}
		if rate := r.Rate(); rate != nil {
			usd := *rate / 1e6
			c.Rate = &usd
		}
		if r.Cost != nil {
			usd, micros := r.Cost.USD(), int64(*r.Cost)
			c.Cost, c.CostMicros = &usd, &micros
		}
		for k, d := range by {
			v := r.Key[k]
			switch d {
			case cost.ByAccount:
				c.Account = &v
			case cost.ByUser:
				c.User = &v
			case cost.ByModel:
				c.Model = &v
			case cost.ByHardware:
				c.Hardware = &v
			case cost.BySweep:
				c.Sweep = &v
			case cost.ByPartition:
				c.Partition = &v
			case cost.BySite:
				c.Site = &v
			}
		}
		out[i] = c
	}
	return out
}

func (s *server) listRates(r *http.Request, _ auth.Identity) (any, error) {
	list, err := s.Store.Rates(r.Context())
	if err != nil {
		return nil, err
	}
	now := s.Now()
	current := map[[2]string]int64{}
	for _, rate := range list { // in the order of their times
		if !rate.ValidFrom.After(now) {
			current[[2]string{rate.Site, rate.Hardware}] = rate.ID
		}
	}
	out := make([]api.Rate, len(list))
	for i, rate := range list {
		out[i] = rateOf(rate, current[[2]string{rate.Site, rate.Hardware}] == rate.ID)
	}
	return out, nil
}

func rateOf(r store.Rate, current bool) api.Rate {
	return api.Rate{
		ID: r.ID, Site: r.Site, Hardware: r.Hardware, USDPerGPUHour: cost.Micros(r.MicrosPerGPUHour).USD(), MicrosPerGPUHr: r.MicrosPerGPUHour,
		ValidFrom: r.ValidFrom, Current: current, Comment: r.Comment, SetBy: r.SetBy, SetAt: r.SetAt,
	}
}

func (s *server) setRate(r *http.Request, who auth.Identity) (any, error) {
	var req api.RateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if !s.administers(who, req.Site) {
		return nil, refused(nil, "%s is no admin: only admins set rates", who.User)
	}
	if req.MicrosPerGPUHour < 0 || req.MicrosPerGPUHour > int64(cost.MaxRate) {
		return nil, invalid("a rate is between 0 and %.0f %s per GPU-hour", cost.MaxRate.USD(), currency)
	}
	if err := checkReason(req.Comment); err != nil {
		return nil, err
	}
	if err := s.checkHardware(req.Site, req.Hardware); err != nil {
		return nil, err
	}
	rate := store.Rate{Site: req.Site, Hardware: req.Hardware, MicrosPerGPUHour: req.MicrosPerGPUHour, ValidFrom: s.Now(), Comment: req.Comment, SetBy: who.User}
	if req.ValidFrom != nil {
		rate.ValidFrom = *req.ValidFrom
	}
	rate.ValidFrom = rate.ValidFrom.UTC().Truncate(time.Second)
	ctx := r.Context()
	err := s.Store.WithTx(ctx, func(tx *store.Tx) error { return tx.AddRate(ctx, &rate) })
	if err != nil {
		return nil, err
	}
	s.Log.WarnContext(r.Context(), "rate set", "rate", rate.ID, "site", rate.Site, "hardware", rate.Hardware,
		"micros_per_gpu_hour", rate.MicrosPerGPUHour, "valid_from", rate.ValidFrom, "user", who.User)
	return rateOf(rate, !rate.ValidFrom.After(s.Now())), nil
}

// checkHardware refuses a site or hardware that no site file has: a rate for a
// misspelt one would never apply.
func (s *server) checkHardware(site, hardware string) error {
	sites := s.Sites
	if site != "" {
		st, err := s.site(site)
		if err != nil {
			return invalid("no such site: %q", clipped(site))
		}
		sites = sites[:0:0]
		sites = append(sites, st)
	}
	if hardware == "" {
		return nil
	}
	for _, st := range sites {
		if _, ok := st.Hardware[hardware]; ok {
			return nil
		}
	}
	var known []string
	for _, st := range sites {
		for id := range st.Hardware {
			known = append(known, id)
		}
	}
	slices.Sort(known)
	return &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("no site has hardware %q", clipped(hardware)), Reasons: slices.Compact(known)}
}
