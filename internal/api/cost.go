package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// CostQuery asks what was spent from Start, before End.
type CostQuery struct {
	Start, End time.Time
	// By are dimensions: account, user, model, hardware, sweep, partition, site.
	By []string
}

// CostReport is what was spent in a period, by what Slurm accounted for.
type CostReport struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	By    []string  `json:"by"`
	// User is set where only this user's share is shown, because the caller may
	// not see others'.
	User     string `json:"user,omitempty"`
	Currency string `json:"currency"`  // of cost
	RateUnit string `json:"rate_unit"` // of rate
	// Complete: everything in the period has ended and is accounted for.
	Complete bool      `json:"complete"`
	Rows     []CostRow `json:"rows"`
	// Totals has one row for each hardware class: real and emulated are never
	// added up.
	Totals []CostRow `json:"totals"`
}

// CostRow sums up what has the same dimensions. What is not known is null.
type CostRow struct {
	Account   *string `json:"account,omitempty"`
	User      *string `json:"user,omitempty"`
	Model     *string `json:"model,omitempty"`
	Hardware  *string `json:"hardware,omitempty"`
	Sweep     *string `json:"sweep,omitempty"`
	Partition *string `json:"partition,omitempty"`
	Site      *string `json:"site,omitempty"`
	// HardwareClass is real or emulated.
	HardwareClass string `json:"hardware_class"`
	Complete      bool   `json:"complete"`

	Allocations        int `json:"allocations"`
	OpenAllocations    int `json:"open_allocations"`    // not ended: held so far
	UnknownAllocations int `json:"unknown_allocations"` // ended without accounting: not in the sums
	RunStarts          int `json:"run_starts"`

	BillableGPUSeconds int64    `json:"billable_gpu_seconds"`
	MeasuredGPUSeconds float64  `json:"measured_gpu_seconds"`
	LostGPUSeconds     int64    `json:"lost_gpu_seconds"` // of run starts without a valid measurement
	IdleGPUSeconds     *int64   `json:"idle_gpu_seconds"` // held while no run used the GPU
	Efficiency         *float64 `json:"efficiency"`       // measured / billable
	IdleShare          *float64 `json:"idle_share"`       // idle / billable

	Rate       *float64 `json:"rate"` // the mean of what was billed, per GPU-hour
	Rates      []int64  `json:"rate_ids"`
	Cost       *float64 `json:"cost"`
	CostMicros *int64   `json:"cost_micros"` // the same, exactly, in millionths

	EnergyJoules       *float64 `json:"energy_joules"`        // Slurm's, of the steps of all runs
	WindowEnergyJoules *float64 `json:"window_energy_joules"` // the GPUs' own, of the measured windows

	OutputTokens *float64 `json:"output_tokens"` // of the measured windows
	// Cost per million output tokens: steady is the engine's GPUs in the window,
	// loaded everything held, at_slo the cheapest steady setting that met its
	// sweep's SLO in every window.
	CostPerMillionSteady *float64 `json:"cost_per_million_output_tokens_steady"`
	CostPerMillionLoaded *float64 `json:"cost_per_million_output_tokens_loaded"`
	CostPerMillionAtSLO  *float64 `json:"cost_per_million_output_tokens_at_slo"`
	AtSLOSetting         string   `json:"at_slo_setting_hash"`
}

// Dimension returns the value of a dimension; "" where it was not asked for.
func (r *CostRow) Dimension(name string) string {
	p := map[string]*string{
		"account": r.Account, "user": r.User, "model": r.Model, "hardware": r.Hardware, "sweep": r.Sweep, "partition": r.Partition, "site": r.Site,
	}[name]
	if p == nil {
		return ""
	}
	return *p
}

// Rate is what a GPU-hour costs from some time on.
type Rate struct {
	ID int64 `json:"id"`
	// Site and Hardware narrow the rate; "" is every one.
	Site           string    `json:"site"`
	Hardware       string    `json:"hardware"`
	USDPerGPUHour  float64   `json:"usd_per_gpu_hour"`
	MicrosPerGPUHr int64     `json:"micros_per_gpu_hour"`
	ValidFrom      time.Time `json:"valid_from"`
	// Current: it is what holds now for what it is for.
	Current bool      `json:"current"`
	Comment string    `json:"comment"`
	SetBy   string    `json:"set_by"`
	SetAt   time.Time `json:"set_at"`
}

// RateRequest sets a rate. It never changes an earlier one.
type RateRequest struct {
	Site             string     `json:"site"`
	Hardware         string     `json:"hardware"`
	MicrosPerGPUHour int64      `json:"micros_per_gpu_hour"`
	ValidFrom        *time.Time `json:"valid_from"` // nil is now
	Comment          string     `json:"comment"`
}

// Cost asks what was spent.
func (c *Client) Cost(ctx context.Context, q CostQuery) (CostReport, error) {
	v := url.Values{
		"start": {q.Start.UTC().Format(time.RFC3339)}, "end": {q.End.UTC().Format(time.RFC3339)}, "by": {strings.Join(q.By, ",")},
	}
	return call[CostReport](ctx, c, http.MethodGet, "/v1/cost", v, nil)
}

// Rates lists every rate there ever was.
func (c *Client) Rates(ctx context.Context) ([]Rate, error) {
	return call[[]Rate](ctx, c, http.MethodGet, "/v1/rates", nil, nil)
}

// SetRate sets a rate.
func (c *Client) SetRate(ctx context.Context, req RateRequest) (Rate, error) {
	return call[Rate](ctx, c, http.MethodPost, "/v1/rates", nil, req)
}
