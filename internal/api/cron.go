package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// CronRequest is the body of POST /v1/crons and of POST /v1/crons/{name}/update,
// where what is nil or empty stays as it is.
type CronRequest struct {
	Name     string `json:"name"`
	Schedule string `json:"schedule"`  // five fields of crontab(5), or @daily and the like
	TimeZone string `json:"time_zone"` // IANA name; "" is the daemon's
	Overlap  string `json:"overlap"`   // skip, queue, cancel-old; "" is skip
	CatchUp  string `json:"catch_up"`  // none, last, all; "" is last
	JitterS  *int64 `json:"jitter_s"`
	WindowS  *int64 `json:"window_s"` // 0 is none
	// AtWindowEnd says what happens to a sweep that its window did not suffice
	// for: continue, cancel; "" is continue.
	AtWindowEnd string `json:"at_window_end"`
	// File and Options are as in SubmitRequest. An update without a file keeps
	// the file and, unless Options is given, its options.
	FileName string   `json:"file_name"`
	File     string   `json:"file"`
	Options  *Options `json:"options"`
	// User names the owner for an operator who updates; "" is the caller.
	User string `json:"user,omitempty"`
}

// Cron is a schedule.
type Cron struct {
	Name        string `json:"name"`
	User        string `json:"user"`
	Schedule    string `json:"schedule"`
	TimeZone    string `json:"time_zone"`
	Overlap     string `json:"overlap"`
	CatchUp     string `json:"catch_up"`
	JitterS     int64  `json:"jitter_s"`
	WindowS     int64  `json:"window_s"` // 0: no window
	AtWindowEnd string `json:"at_window_end"`
	Site        string `json:"site"`
	// FileDigest and SettingsDigest are what was frozen at the last add or update.
	FileDigest     string     `json:"file_digest"`
	SettingsDigest string     `json:"settings_digest"`
	Settings       int        `json:"settings"`
	Runs           int        `json:"runs"`
	GPUHours       float64    `json:"gpu_hours_forecast"`
	Version        int        `json:"version"` // counts the updates, from 1
	PausedAt       *time.Time `json:"paused_at"`
	PausedBy       string     `json:"paused_by"`
	CreatedAt      time.Time  `json:"created_at"`
	UpdatedAt      time.Time  `json:"updated_at"`
	// NextAt is the next due time without its jitter; null while paused.
	NextAt *time.Time `json:"next_at"`
	// Firings are the latest ones, latest first.
	Firings []CronFiring `json:"firings"`
}

// CronFiring is one due time and what became of it.
type CronFiring struct {
	DueAt     time.Time  `json:"due_at"`
	FireAt    time.Time  `json:"fire_at"` // with the jitter
	Manual    bool       `json:"manual"`
	State     string     `json:"state"` // waiting, submitted, skipped, refused
	Reason    string     `json:"reason"`
	SweepID   *int64     `json:"sweep_id"`
	WindowEnd *time.Time `json:"window_end"`
	EndedAt   *time.Time `json:"ended_at"`
	WindowMet *bool      `json:"window_met"` // null: no window, or not known yet
}

// CronResponse answers an add, an update and a run.
type CronResponse struct {
	Cron  Cron     `json:"cron"`
	Plan  *Plan    `json:"plan"` // of an add or an update with a file
	Notes []string `json:"notes"`
	// DueAt is the firing that a run asked for.
	DueAt *time.Time `json:"due_at"`
}

// CronNext are due times to come.
type CronNext struct {
	Name string      `json:"name"`
	Due  []CronTimes `json:"due"`
}

// CronTimes is one due time to come.
type CronTimes struct {
	DueAt  time.Time `json:"due_at"`  // in the schedule's time zone
	FireAt time.Time `json:"fire_at"` // with its jitter
}

// Crons lists schedules: the caller's, or those of user; "*" is everybody's.
func (c *Client) Crons(ctx context.Context, user string) ([]Cron, error) {
	return call[[]Cron](ctx, c, http.MethodGet, "/v1/crons", cronUser(user), nil)
}

// Cron returns one schedule with its firings. user "" is the caller.
func (c *Client) Cron(ctx context.Context, user, name string) (Cron, error) {
	return call[Cron](ctx, c, http.MethodGet, cronPath(name, ""), cronUser(user), nil)
}

// CronNext returns the next n due times of a schedule.
func (c *Client) CronNext(ctx context.Context, user, name string, n int) (CronNext, error) {
	q := cronUser(user)
	q.Set("n", strconv.Itoa(n))
	return call[CronNext](ctx, c, http.MethodGet, cronPath(name, "next"), q, nil)
}

// AddCron stores a schedule of the caller.
func (c *Client) AddCron(ctx context.Context, req CronRequest) (CronResponse, error) {
	return call[CronResponse](ctx, c, http.MethodPost, "/v1/crons", nil, req)
}

// UpdateCron changes a schedule.
func (c *Client) UpdateCron(ctx context.Context, req CronRequest) (CronResponse, error) {
	return call[CronResponse](ctx, c, http.MethodPost, cronPath(req.Name, "update"), cronUser(req.User), req)
}

// CronAction is what is done to a schedule.
type CronAction string

// The actions on a schedule.
const (
	CronPause  CronAction = "pause"
	CronResume CronAction = "resume"
	CronRun    CronAction = "run"
	CronRemove CronAction = "rm"
)

// ActCron pauses, resumes, runs or removes a schedule.
func (c *Client) ActCron(ctx context.Context, user, name string, action CronAction) (CronResponse, error) {
	return call[CronResponse](ctx, c, http.MethodPost, cronPath(name, string(action)), cronUser(user), struct{}{})
}

func cronPath(name, rest string) string {
	p := "/v1/crons/" + url.PathEscape(name)
	if rest != "" {
		p += "/" + rest
	}
	return p
}

func cronUser(user string) url.Values {
	q := url.Values{}
	if user != "" {
		q.Set("user", user)
	}
	return q
}
