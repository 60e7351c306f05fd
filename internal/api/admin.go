package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Token is a token without its text.
type Token struct {
	ID         int64      `json:"id"`
	Name       string     `json:"name"`
	User       string     `json:"user"`
	Scopes     []string   `json:"scopes"`  // read, submit, act
	Account    string     `json:"account"` // the only one it may spend for; "" is any of the user's
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
	RevokedBy  string     `json:"revoked_by"`
	LastUsedAt *time.Time `json:"last_used_at"`
}

// NewToken is a token that was just made. Text is shown this once.
type NewToken struct {
	Token
	Text string `json:"token"`
}

// TokenRequest makes a token of the caller's rights.
type TokenRequest struct {
	Name string `json:"name"`
	// User is whose rights it has; "" is the caller. Others are for admins.
	User      string   `json:"user"`
	Scopes    []string `json:"scopes"`
	Account   string   `json:"account"`
	LifetimeS int64    `json:"lifetime_s"`
}

// AuditRow is one row of the audit log.
type AuditRow struct {
	ID int64 `json:"id"`
	// Request is the row of the asking that this one decides; null on that row,
	// and on refused credentials and reads of other people's logs.
	Request *int64          `json:"request"`
	At      time.Time       `json:"at"`
	User    string          `json:"user"`
	UID     *int            `json:"uid"`
	Via     string          `json:"via"` // peer, munge, token, cron; "" where nobody was identified
	Token   *int64          `json:"token_id"`
	Remote  string          `json:"remote"`
	Action  string          `json:"action"`
	Object  string          `json:"object"`
	Outcome string          `json:"outcome"` // asked, done, refused, failed
	Detail  json.RawMessage `json:"detail"`
}

// AuditQuery narrows the audit log; a zero field does not.
type AuditQuery struct {
	Since, Until time.Time
	User, Text   string
	Asked        bool
	Limit        int
}

// Quota bounds the GPU-hours held in a calendar period (UTC).
type Quota struct {
	ID int64 `json:"id"`
	// Site and Account narrow the quota; "" is every one. User is "" for all users
	// together and "*" for each user.
	Site     string   `json:"site"`
	Account  string   `json:"account"`
	User     string   `json:"user"`
	Period   string   `json:"period"`    // day, week, month, quarter, year
	GPUHours *float64 `json:"gpu_hours"` // null where it was taken away
	// Used is what Slurm accounted for in the period, reserved what active sweeps
	// are forecast to hold yet; of "*", the caller's.
	UsedGPUHours     *float64   `json:"used_gpu_hours"`
	ReservedGPUHours *float64   `json:"reserved_gpu_hours"`
	PeriodStart      *time.Time `json:"period_start"`
	PeriodEnd        *time.Time `json:"period_end"`
	Comment          string     `json:"comment"`
	SetBy            string     `json:"set_by"`
	SetAt            time.Time  `json:"set_at"`
}

// QuotaRequest sets a quota, or takes it away.
type QuotaRequest struct {
	Site     string   `json:"site"`
	Account  string   `json:"account"`
	User     string   `json:"user"`
	Period   string   `json:"period"`
	GPUHours *float64 `json:"gpu_hours"` // null takes it away
	Comment  string   `json:"comment"`
}

// Quotas lists what bounds the caller's work; to operators all quotas, those of
// each user as they are for user, where it is not "".
func (c *Client) Quotas(ctx context.Context, user string) ([]Quota, error) {
	q := url.Values{}
	if user != "" {
		q.Set("user", user)
	}
	return call[[]Quota](ctx, c, http.MethodGet, "/v1/quotas", q, nil)
}

// SetQuota sets a quota, or takes it away.
func (c *Client) SetQuota(ctx context.Context, req QuotaRequest) (Quota, error) {
	return call[Quota](ctx, c, http.MethodPost, "/v1/quotas", nil, req)
}

// CreateToken makes a token.
func (c *Client) CreateToken(ctx context.Context, req TokenRequest) (NewToken, error) {
	return call[NewToken](ctx, c, http.MethodPost, "/v1/tokens", nil, req)
}

// Tokens lists the caller's tokens, or everybody's.
func (c *Client) Tokens(ctx context.Context, everybody bool) ([]Token, error) {
	q := url.Values{}
	if everybody {
		q.Set("all", "1")
	}
	return call[[]Token](ctx, c, http.MethodGet, "/v1/tokens", q, nil)
}

// RevokeToken ends a token at once.
func (c *Client) RevokeToken(ctx context.Context, id int64) (Token, error) {
	return call[Token](ctx, c, http.MethodPost, "/v1/tokens/"+strconv.FormatInt(id, 10)+"/revoke", nil, struct{}{})
}

// Audit reads the audit log, newest first.
func (c *Client) Audit(ctx context.Context, f AuditQuery) ([]AuditRow, error) {
	q := url.Values{}
	for name, t := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !t.IsZero() {
			q.Set(name, t.UTC().Format(time.RFC3339))
		}
	}
	for name, v := range map[string]string{"user": f.User, "text": f.Text} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if f.Asked {
		q.Set("asked", "1")
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return call[[]AuditRow](ctx, c, http.MethodGet, "/v1/audit", q, nil)
}
