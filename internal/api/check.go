package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"sbench/internal/regress"
)

// Baseline is a sweep with a name that others are held against.
type Baseline struct {
	Name      string    `json:"name"`
	SweepID   int64     `json:"sweep_id"`
	User      string    `json:"user"`
	Note      string    `json:"note"`
	CreatedAt time.Time `json:"created_at"`
}

// BaselineRequest is the body of POST /v1/baselines.
type BaselineRequest struct {
	Name    string `json:"name"`
	SweepID int64  `json:"sweep_id"`
	Note    string `json:"note,omitempty"`
}

// CheckRequest is the body of POST /v1/check.
type CheckRequest struct {
	Baseline  string  `json:"baseline"`
	SweepID   int64   `json:"sweep_id"`
	Threshold float64 `json:"threshold"` // relative: 0.05
	// Confirmation is the sweep of the runs again, 0 for none.
	Confirmation int64 `json:"confirmation,omitempty"`
}

// CheckReport is the answer of POST /v1/check: a sweep beside a baseline.
type CheckReport struct {
	Baseline      Baseline                `json:"baseline"`
	SweepID       int64                   `json:"sweep_id"`
	Confirmation  *int64                  `json:"confirmation_sweep_id"`
	Threshold     float64                 `json:"threshold"`
	HardwareClass string                  `json:"hardware_class"`
	Counts        map[regress.Outcome]int `json:"counts"`
	Series        []regress.SeriesVerdict `json:"series"`
}

// ConfirmRequest is the body of POST /v1/check/confirm: run the undecided series
// again, both sides interleaved.
type ConfirmRequest struct {
	CheckRequest
	Budget int `json:"budget"` // runs at most, both sides together
}

// Confirmation says what was submitted; SweepID is 0 where nothing was.
type Confirmation struct {
	SweepID int64 `json:"sweep_id"`
	Runs    int   `json:"runs"`
}

// Baselines lists the baselines by name.
func (c *Client) Baselines(ctx context.Context) ([]Baseline, error) {
	return call[[]Baseline](ctx, c, http.MethodGet, "/v1/baselines", nil, nil)
}

// SetBaseline names a sweep, or moves a name to it.
func (c *Client) SetBaseline(ctx context.Context, req BaselineRequest) (Baseline, error) {
	return call[Baseline](ctx, c, http.MethodPost, "/v1/baselines", nil, req)
}

// RemoveBaseline forgets a name and returns what it named.
func (c *Client) RemoveBaseline(ctx context.Context, name string) (Baseline, error) {
	return call[Baseline](ctx, c, http.MethodDelete, "/v1/baselines/"+url.PathEscape(name), nil, nil)
}

// Check holds a sweep against a baseline.
func (c *Client) Check(ctx context.Context, req CheckRequest) (CheckReport, error) {
	return call[CheckReport](ctx, c, http.MethodPost, "/v1/check", nil, req)
}

// Confirm submits the runs again of the undecided series.
func (c *Client) Confirm(ctx context.Context, req ConfirmRequest) (Confirmation, error) {
	return call[Confirmation](ctx, c, http.MethodPost, "/v1/check/confirm", nil, req)
}
