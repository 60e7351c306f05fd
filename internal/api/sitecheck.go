package api

import (
	"context"
	"net/http"
	"net/url"
)

// SiteCheckRequest is the body of POST /v1/sites/{name}/check.
type SiteCheckRequest struct {
	// NoJob leaves out what only a job on a compute node can tell.
	NoJob bool `json:"no_job"`
}

// SiteCheck says whether a site is as its file says.
type SiteCheck struct {
	Site    string `json:"site"`
	Cluster string `json:"cluster"`
	// OK: nothing failed. What is unknown is not counted.
	OK     bool        `json:"ok"`
	Checks []SiteProbe `json:"checks"`
}

// The verdicts of a probe.
const (
	VerdictPass    = "pass"
	VerdictFail    = "fail"
	VerdictUnknown = "unknown"
)

// SiteProbe is one thing that was looked at.
type SiteProbe struct {
	Check   string `json:"check"`   // partition, hardware, clock…
	Subject string `json:"subject"` // which one; "" where there is one only
	Verdict string `json:"verdict"`
	Detail  string `json:"detail"` // what was found
	Todo    string `json:"todo"`   // what to do about it; "" for nothing
}

// CheckSite asks the daemon to hold a site against its file. It takes up to a
// minute.
func (c *Client) CheckSite(ctx context.Context, name string, req SiteCheckRequest) (SiteCheck, error) {
	return call[SiteCheck](ctx, c, http.MethodPost, "/v1/sites/"+url.PathEscape(name)+"/check", nil, req)
}
