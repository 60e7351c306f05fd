package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client talks to the daemon. It is safe for concurrent use.
type Client struct {
	socket string // or the URL of a daemon over TCP; for messages
	base   string // of every URL
	http   *http.Client
	// authorize returns the Authorization of a request; nil on the Unix socket,
	// where the kernel says who calls.
	authorize Authorize
}

// Authorize makes the Authorization header of one request. uri is the path with
// its query.
type Authorize func(ctx context.Context, method, uri string, body []byte) (string, error)

// NewClient returns a client for the daemon behind a Unix socket; nothing is
// connected before the first request.
func NewClient(socket string) *Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	// The host is a fixed word: the transport dials the socket whatever it says.
	return &Client{socket: socket, base: "http://sbenchd", http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
		DisableCompression: true,
	}}}
}

// NewRemoteClient returns a client for a daemon over TCP at http://host:port or
// https://host:port. secure may be nil; it is for https.
func NewRemoteClient(address string, secure *tls.Config, authorize Authorize) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("%q is not the address of a daemon: write http://host:port or https://host:port", address)
	}
	return &Client{
		socket: address, base: u.Scheme + "://" + u.Host, authorize: authorize,
		http: &http.Client{
			Transport: &http.Transport{
				DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, TLSClientConfig: secure, DisableCompression: true, ForceAttemptHTTP2: true,
			},
			// A credential is for one request at one place.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// UnreachableError means that no answer came from the daemon.
type UnreachableError struct {
	Socket string
	// Connected says that the connection broke later, so that the daemon may have
	// acted on the request.
	Connected bool
	Err       error
}

// Error says which socket was tried.
func (e *UnreachableError) Error() string {
	return fmt.Sprintf("cannot reach the daemon at %s: %v", e.Socket, e.Err)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Submit submits a sweep, or plans it where the request says TestOnly. A broken
// connection is tried once more with the same idempotency key.
func (c *Client) Submit(ctx context.Context, req SubmitRequest) (SubmitResponse, error) {
	resp, err := call[SubmitResponse](ctx, c, http.MethodPost, "/v1/sweeps", nil, req)
	var lost *UnreachableError
	if errors.As(err, &lost) && lost.Connected && ctx.Err() == nil && req.IdempotencyKey != "" {
		return call[SubmitResponse](ctx, c, http.MethodPost, "/v1/sweeps", nil, req)
	}
	return resp, err
}

// SweepFilter narrows the list of sweeps.
type SweepFilter struct {
	Users    []string // empty for everybody's
	Accounts []string
	States   []string
	IDs      []int64
	// Recent also lists sweeps that ended within so long.
	Recent time.Duration
	Limit  int
}

// Sweeps lists sweeps that have not ended (and recent ones), oldest first.
func (c *Client) Sweeps(ctx context.Context, f SweepFilter) ([]SweepSummary, error) {
	q := url.Values{"user": f.Users, "account": f.Accounts, "state": f.States}
	for _, id := range f.IDs {
		q.Add("id", strconv.FormatInt(id, 10))
	}
	if f.Recent > 0 {
		q.Set("recent_s", strconv.FormatInt(int64(f.Recent/time.Second), 10))
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return call[[]SweepSummary](ctx, c, http.MethodGet, "/v1/sweeps", q, nil)
}

// Summary returns one sweep's line of the queue.
func (c *Client) Summary(ctx context.Context, sweep int64) (SweepSummary, error) {
	return call[SweepSummary](ctx, c, http.MethodGet, sweepPath(sweep, "summary"), nil, nil)
}

// Sweep returns everything about a sweep; its runs with their attempts, and its
// history, only where runs is true.
func (c *Client) Sweep(ctx context.Context, sweep int64, runs bool) (Sweep, error) {
	q := url.Values{}
	if runs {
		q.Set("runs", "1")
	}
	return call[Sweep](ctx, c, http.MethodGet, sweepPath(sweep, ""), q, nil)
}

// SweepRuns lists the runs of a sweep, without their attempts.
func (c *Client) SweepRuns(ctx context.Context, sweep int64, states []string) ([]Run, error) {
	return call[[]Run](ctx, c, http.MethodGet, sweepPath(sweep, "runs"), url.Values{"state": states}, nil)
}

// Results returns the aggregates of a sweep's settings in the sweep's order, with
// these metrics; with all of them, 30 kB a setting, where none is named.
func (c *Client) Results(ctx context.Context, sweep int64, metrics ...string) (Results, error) {
	return call[Results](ctx, c, http.MethodGet, sweepPath(sweep, "results"), url.Values{"metric": metrics}, nil)
}

// Setting returns everything about the setting whose hash begins with prefix.
func (c *Client) Setting(ctx context.Context, prefix string) (Setting, error) {
	return call[Setting](ctx, c, http.MethodGet, "/v1/settings/"+url.PathEscape(prefix), nil, nil)
}

// Run returns everything about a run.
func (c *Client) Run(ctx context.Context, id int64) (Run, error) {
	return call[Run](ctx, c, http.MethodGet, "/v1/runs/"+strconv.FormatInt(id, 10), nil, nil)
}

// Act cancels, holds, releases or requeues.
func (c *Client) Act(ctx context.Context, req ActionRequest) (ActionResponse, error) {
	return call[ActionResponse](ctx, c, http.MethodPost, "/v1/actions", nil, req)
}

// Throttle limits how many tasks of a sweep run at once; 0 is no limit.
func (c *Client) Throttle(ctx context.Context, sweep int64, most int) (ThrottleResponse, error) {
	path := "/v1/sweeps/" + strconv.FormatInt(sweep, 10) + "/throttle"
	return call[ThrottleResponse](ctx, c, http.MethodPost, path, nil, ThrottleRequest{MaxInflight: most})
}

// Sites lists the clusters that the daemon feeds.
func (c *Client) Sites(ctx context.Context) ([]Site, error) {
	return call[[]Site](ctx, c, http.MethodGet, "/v1/sites", nil, nil)
}

// SetSiteMode pauses, drains or resumes a site.
func (c *Client) SetSiteMode(ctx context.Context, name string, req SiteRequest) (Site, error) {
	return call[Site](ctx, c, http.MethodPost, "/v1/sites/"+url.PathEscape(name)+"/mode", nil, req)
}

// RemoveFiles removes the files of a site's dead attempts whose retention is over.
func (c *Client) RemoveFiles(ctx context.Context, name string, req RemoveFilesRequest) (RemovedFiles, error) {
	return call[RemovedFiles](ctx, c, http.MethodPost, "/v1/sites/"+url.PathEscape(name)+"/gc", nil, req)
}

// Dead lists the dead-letter list, of one sweep where sweep is not 0.
func (c *Client) Dead(ctx context.Context, sweep int64) ([]DeadRun, error) {
	q := url.Values{}
	if sweep != 0 {
		q.Set("sweep", strconv.FormatInt(sweep, 10))
	}
	return call[[]DeadRun](ctx, c, http.MethodGet, "/v1/dead", q, nil)
}

// ReleaseDead gives runs of the dead-letter list a new chance.
func (c *Client) ReleaseDead(ctx context.Context, runs []int64) (ActionResponse, error) {
	return call[ActionResponse](ctx, c, http.MethodPost, "/v1/dead/release", nil, ReleaseRequest{runs})
}

// Version asks the daemon for its build and for who it takes the caller for.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return call[Version](ctx, c, http.MethodGet, "/v1/version", nil, nil)
}

// Log copies a log of a run's latest attempt to w. With follow it goes on
// until the run has ended.
func (c *Client) Log(ctx context.Context, w io.Writer, run int64, kind LogKind, follow bool) error {
	q := url.Values{"kind": {string(kind)}}
	if follow {
		q.Set("follow", "1")
	}
	return c.copy(ctx, w, "/v1/runs/"+strconv.FormatInt(run, 10)+"/log", q)
}

// Bundle copies the bundle of a run's latest sealed attempt to w. The caller
// verifies it: an answer that breaks off ends without an error of its own.
func (c *Client) Bundle(ctx context.Context, w io.Writer, run int64) error {
	return c.copy(ctx, w, "/v1/runs/"+strconv.FormatInt(run, 10)+"/bundle", nil)
}

// copy copies an answer that is no document to w.
func (c *Client) copy(ctx context.Context, w io.Writer, path string, q url.Values) error {
	resp, err := c.do(ctx, http.MethodGet, path, q, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

func sweepPath(id int64, rest string) string {
	p := "/v1/sweeps/" + strconv.FormatInt(id, 10)
	if rest != "" {
		p += "/" + rest
	}
	return p
}

// call sends one request and decodes its answer into a T.
func call[T any](ctx context.Context, c *Client, method, path string, q url.Values, body any) (T, error) {
	var out T
	resp, err := c.do(ctx, method, path, q, body)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	// Axis values keep their digits: a seed does not fit into a float64.
	d := json.NewDecoder(resp.Body)
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		return out, &UnreachableError{Socket: c.socket, Connected: true, Err: fmt.Errorf("read answer: %w", err)}
	}
	return out, nil
}

func (c *Client) do(ctx context.Context, method, path string, q url.Values, body any) (*http.Response, error) {
	var encoded []byte
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		encoded, payload = b, bytes.NewReader(b)
	}
	target := c.base + path
	if len(q) > 0 {
		target += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, payload)
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
		// Without it the transport would send a request again whose credential
		// has been used.
		req.GetBody = nil
	}
	if c.authorize != nil {
		header, err := c.authorize(ctx, method, req.URL.RequestURI(), encoded)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", header)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, c.unreachable(err)
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, problemOf(resp)
	}
	return resp, nil
}

// problemOf reads a failed answer. One that is not ours is an internal fault.
func problemOf(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxRequestBytes))
	var p Problem
	if err == nil && json.Unmarshal(b, &p) == nil && p.Code != "" {
		return &p
	}
	text := strings.TrimSpace(string(b))
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return &Problem{Code: CodeInternal, Message: fmt.Sprintf("the daemon answered %s: %s", resp.Status, text)}
}

// unreachable strips the method and the made-up URL off a transport error.
func (c *Client) unreachable(err error) *UnreachableError {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return &UnreachableError{Socket: c.socket, Err: op.Err}
	}
	return &UnreachableError{Socket: c.socket, Connected: true, Err: err}
}
