package api

import (
	"context"
	"net/http"
	"net/url"

	"sbench/internal/compare"
)

// CompareRequest is the body of POST /v1/compare. Either two of Sides or Where is
// given.
type CompareRequest struct {
	// Sides are settings (a hash or a unique prefix of one), sweeps (a number), or
	// one setting of a sweep (17:ab12).
	Sides []string `json:"sides,omitempty"`
	// Where are conditions over the axes, as in a sweep's matrix.where; a setting
	// has to meet all. key=value is short for equality.
	Where   []string `json:"where,omitempty"`
	Sweep   int64    `json:"sweep,omitempty"` // with Where: of this sweep only
	Site    string   `json:"site,omitempty"`
	Vary    string   `json:"vary,omitempty"`
	Metrics []string `json:"metrics,omitempty"`
	By      string   `json:"by,omitempty"`
	Theta   float64  `json:"threshold,omitempty"`
	Anyway  bool     `json:"anyway,omitempty"`
	// The wishes of the recommendation; see compare.Wishes.
	Latency    string             `json:"latency,omitempty"`
	Attainment float64            `json:"attainment,omitempty"`
	Prices     map[string]float64 `json:"prices,omitempty"`
	Pareto     []string           `json:"pareto,omitempty"`
	// Shape is the model's, for MBU and MFU; nil leaves them unknown.
	Shape *ModelShape `json:"shape,omitempty"`
}

// ModelShape is what a decoder-only model costs per step.
type ModelShape struct {
	WeightBytes  float64 `json:"weight_bytes"`
	ActiveParams float64 `json:"active_params"`
	Layers       float64 `json:"layers"`
	KVHeads      float64 `json:"kv_heads"`
	HeadDim      float64 `json:"head_dim"`
	Heads        float64 `json:"heads"`
	KVBytes      float64 `json:"kv_bytes"`
}

// Comparison is the answer of POST /v1/compare.
type Comparison struct {
	Vary     string               `json:"vary"`
	Ranked   bool                 `json:"ranked"`
	By       string               `json:"by"`
	Residue  []compare.Difference `json:"residue_axes"`
	Coupled  []compare.Difference `json:"coupled_axes"`
	Realized []string             `json:"realized_fingerprints"` // several: an unpinned difference
	Metrics  []string             `json:"metrics"`
	Entries  []ComparedSetting    `json:"settings"`
	// Pairs are sweeps compared setting by setting; empty else.
	Pairs          []Comparison            `json:"pairs"`
	Recommendation *compare.Recommendation `json:"recommendation"`
	Scaling        []compare.Scale         `json:"scaling"`
	Warnings       []string                `json:"warnings"`
	// Refused says why nothing is ranked; "" where it is.
	Refused string `json:"refused"`
}

// ComparedSetting is one row of a comparison.
type ComparedSetting struct {
	SettingHash   string             `json:"setting_hash"`
	SweepID       int64              `json:"sweep_id"`
	HardwareClass string             `json:"hardware_class"`
	Level         any                `json:"level"` // of the varied axis
	Axes          map[string]any     `json:"axes"`
	NValid        int                `json:"n_valid"`
	NTotal        int                `json:"n_total"`
	IsFinal       bool               `json:"is_final"`
	Findings      []string           `json:"findings"`
	Means         map[string]float64 `json:"geometric_means"`
	Rank          *int               `json:"rank"` // null where it is not ranked
	Unranked      string             `json:"unranked_reason,omitempty"`
	Pairs         []compare.Pair     `json:"metrics"` // beside the first setting; empty for itself
	MBU           *float64           `json:"mbu"`
	MFU           *float64           `json:"mfu"`
	RooflineRatio *float64           `json:"roofline_efficiency"` // output tokens/s by the attainable
	RooflineNote  string             `json:"roofline_note,omitempty"`
}

// Compare sets settings side by side.
func (c *Client) Compare(ctx context.Context, req CompareRequest) (Comparison, error) {
	return call[Comparison](ctx, c, http.MethodPost, "/v1/compare", url.Values{}, req)
}
