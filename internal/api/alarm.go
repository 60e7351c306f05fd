package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Alarm is something that nobody would notice by itself.
type Alarm struct {
	// Kind is incomplete_sweep, stuck_sweep, missed_firing, preflight_rate,
	// stale_settings, unjudged_night or node_drift.
	Kind    string    `json:"kind"`
	Site    string    `json:"site"`
	Subject string    `json:"subject"`
	Since   time.Time `json:"since"`
	Value   float64   `json:"value"` // settings, firings or candidates; a share of preflight_rate; hours of stuck_sweep
	Bound   float64   `json:"bound"` // what the value is held against
	Detail  string    `json:"detail"`
}

// AlarmQuery says from when on something is an alarm; 0 is the daemon's default.
type AlarmQuery struct {
	Since                time.Time
	StuckAfter, StaleAge time.Duration
	PassRate             float64 // 0 to 1
}

// Alarms lists what needs somebody's look.
func (c *Client) Alarms(ctx context.Context, q AlarmQuery) ([]Alarm, error) {
	v := url.Values{}
	if !q.Since.IsZero() {
		v.Set("since", q.Since.Format(time.RFC3339))
	}
	for name, seconds := range map[string]float64{"stuck_s": q.StuckAfter.Seconds(), "stale_s": q.StaleAge.Seconds(), "pass_rate": q.PassRate} {
		if seconds != 0 {
			v.Set(name, strconv.FormatFloat(seconds, 'g', -1, 64))
		}
	}
	return call[[]Alarm](ctx, c, http.MethodGet, "/v1/alarms", v, nil)
}
