package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sbench/internal/regress"
)

// The states of a night that is not in the store yet, beside the store's own.
const (
	NightRunning    = "running"    // its sweep has not ended
	NightWaiting    = "waiting"    // for its screen
	NightScreened   = "screened"   // for its candidates to be run again
	NightConfirming = "confirming" // its candidates run again
	NightJudged     = "judged"
)

// Night is the judgement of one scheduled sweep.
type Night struct {
	SweepID       int64      `json:"sweep_id"`
	SweepName     string     `json:"sweep_name"`
	User          string     `json:"user"`
	Cron          string     `json:"cron"`
	Site          string     `json:"site"`
	HardwareClass string     `json:"hardware_class"`
	SubmittedAt   time.Time  `json:"submitted_at"`
	EndedAt       *time.Time `json:"ended_at"`
	State         string     `json:"state"` // running, waiting, screened, confirming, judged
	ScreenedAt    *time.Time `json:"screened_at"`
	JudgedAt      *time.Time `json:"judged_at"`
	Confirmation  *int64     `json:"confirmation_sweep_id"`
	Reason        string     `json:"reason"` // why nothing was run again, where something should have been
	Series        int        `json:"series_screened"`
	// Report is null until the night is screened.
	Report *regress.Report `json:"report"`
}

// Published counts the regressions that were published.
func (n *Night) Published() int {
	count := 0
	if n.Report != nil {
		for _, c := range n.Report.Confirmations {
			if c.Published {
				count++
			}
		}
	}
	return count
}

// NightsQuery selects nights: of one sweep, or those submitted since then; without
// either, the latest of each schedule.
type NightsQuery struct {
	Sweep int64
	Site  string
	Since time.Time
}

// Nights returns the judgements, latest first.
func (c *Client) Nights(ctx context.Context, q NightsQuery) ([]Night, error) {
	v := url.Values{}
	if q.Sweep != 0 {
		v.Set("sweep", strconv.FormatInt(q.Sweep, 10))
	}
	if q.Site != "" {
		v.Set("site", q.Site)
	}
	if !q.Since.IsZero() {
		v.Set("since", q.Since.Format(time.RFC3339))
	}
	return call[[]Night](ctx, c, http.MethodGet, "/v1/nights", v, nil)
}

// SyntheticNights is the body of POST /v1/nights/synthetic: nights that were never
// measured, for rehearsals on emulated hardware.
type SyntheticNights struct {
	SweepID int64            `json:"sweep_id"` // whose settings they are of
	Label   string           `json:"label"`
	Nights  []SyntheticNight `json:"nights"`
}

// SyntheticNight is one night of one setting: a value for each run.
type SyntheticNight struct {
	SettingHash string    `json:"setting_hash"`
	Night       time.Time `json:"night"`
	TokensPerS  []float64 `json:"output_tokens_per_s"`
	TTFTP95     []float64 `json:"ttft_p95_s"`
	Nodes       []string  `json:"nodes"`
}

// InsertedNights is the answer of POST /v1/nights/synthetic.
type InsertedNights struct {
	Nights int `json:"nights"`
}

// InsertSynthetic stores nights that were never measured.
func (c *Client) InsertSynthetic(ctx context.Context, req SyntheticNights) (InsertedNights, error) {
	return call[InsertedNights](ctx, c, http.MethodPost, "/v1/nights/synthetic", nil, req)
}

// Reference is the reference setting of a site.
type Reference struct {
	Site        string    `json:"site"`
	SeriesHash  string    `json:"series_hash"`
	SettingHash string    `json:"setting_hash"`
	SetBy       string    `json:"set_by"`
	SetAt       time.Time `json:"set_at"`
}

// ReferenceRequest is the body of POST /v1/references.
type ReferenceRequest struct {
	Site        string `json:"site"`
	SettingHash string `json:"setting_hash"` // whole; "" removes the site's
}

// References lists the reference settings by site.
func (c *Client) References(ctx context.Context) ([]Reference, error) {
	return call[[]Reference](ctx, c, http.MethodGet, "/v1/references", nil, nil)
}

// SetReference names the reference setting of a site, or removes it.
func (c *Client) SetReference(ctx context.Context, req ReferenceRequest) ([]Reference, error) {
	return call[[]Reference](ctx, c, http.MethodPost, "/v1/references", nil, req)
}
