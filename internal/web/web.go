// Package web answers the API: who asks is established first, what they send is
// bounded and parsed again from scratch, and every failure is an api.Problem. It
// refuses what is not the caller's to change, and admits a sweep only where a
// site exists that it fits.
package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/jobscript"
	"sbench/internal/site"
	"sbench/internal/store"
)

// authenticator says who sent a request.
type authenticator interface {
	Identify(r *http.Request) (auth.Identity, error)
}

// Config is what the handlers work with.
type Config struct {
	Store *store.Store
	Auth  authenticator
	// Sites have names that differ.
	Sites []*site.Site
	Log   *slog.Logger
	Now   func() time.Time
	// Version is the daemon's build.
	Version string
	// UID is the user that the daemon runs as, and that jobs belong to; RunsAs is
	// the name.
	UID    int
	RunsAs string
	// Leader reports whether this daemon is the one that acts.
	Leader func() bool
	// SlurmCalls returns how often each site's Slurm was asked since the start; nil
	// leaves it out of the metrics.
	SlurmCalls func() []SlurmCalls
	// RemoveFiles removes the files of a site's dead attempts, or says in a dry run
	// which they are; nil refuses.
	RemoveFiles func(ctx context.Context, site *site.Site, dry bool) (api.RemovedFiles, error)
	// State is a line that /readyz adds, "" for none; nil is none.
	State func() string
	// CheckSite holds a site against its file; nil refuses.
	CheckSite func(ctx context.Context, site *site.Site, job bool) (api.SiteCheck, error)
	// Mail says why mail cannot be sent, as far as that is known beforehand; nil is
	// not asked.
	Mail func() error
	// TimeZone is of the schedules that name none: an IANA name; "" is UTC.
	TimeZone string
	// Poll is the interval at which a followed log is looked at; 0 for a second.
	Poll time.Duration
	// Pace is how many requests a caller may send per second, for any length of
	// time; 0 is DefaultPace, less than 0 no limit.
	Pace float64
	// Accounts asks the Slurm of a site, by the site's name, who may do what; a
	// site without an entry is not asked, and refuses nobody for it.
	Accounts map[string]Accounts
	// UserID finds a user by name; nil where tokens are made for callers only.
	UserID func(ctx context.Context, name string) (int, error)
}

// DefaultPace is enough for dozens of waiting and watching commands of a user.
const DefaultPace = 50

type server struct {
	Config
	counts    *instruments
	templates *jobscript.Templates
	// expanding bounds how many sweeps are expanded at once: each may take
	// hundreds of megabytes.
	expanding chan struct{}
	// checking lets one check of a site run at a time.
	checking chan struct{}
	// pace is of known callers, strangers of hosts before anybody is identified.
	pace, strangers *pace
	roles           rolesCache
}

// Server answers the API, and admits sweeps for the daemon's own services by the
// same rules. It is safe for concurrent use.
type Server struct {
	*server
	mux *http.ServeMux
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Admit submits a sweep as who would by the API. A failure is an *api.Problem.
func (s *Server) Admit(ctx context.Context, who auth.Identity, req api.SubmitRequest) (api.SubmitResponse, error) {
	row := store.AuditRow{
		UserName: who.User, UID: &who.UID, Via: "cron", Action: "admit", Object: clipped(req.FileName), Outcome: store.AuditAsked,
	}
	asked, err := s.Store.Audit(ctx, row)
	if err != nil {
		return api.SubmitResponse{}, s.problem(ctx, "audit log", err)
	}
	n := notes{}
	a, err := s.admit(context.WithValue(ctx, notesKey{}, n), who, req)
	s.decided(ctx, row, asked, n, err)
	if err != nil {
		p := s.problem(ctx, "admission for "+who.User, err)
		s.counts.refused(err, p)
		return api.SubmitResponse{}, p
	}
	return a.resp, nil
}

// New returns the handler of the whole API.
func New(c Config) (*Server, error) {
	templates, err := jobscript.Load("")
	if err != nil {
		return nil, err
	}
	if c.Poll == 0 {
		c.Poll = time.Second
	}
	if c.Pace == 0 {
		c.Pace = DefaultPace
	}
	if c.UserID == nil {
		c.UserID = func(context.Context, string) (int, error) { return 0, auth.ErrUnknownUser }
	}
	s := &server{Config: c, templates: templates, expanding: make(chan struct{}, 2), checking: make(chan struct{}, 1), roles: rolesCache{known: map[[2]string]cachedRoles{}}}
	s.counts = newInstruments(s)
	s.pace, s.strangers = newPace(c.Pace, int(4*c.Pace)), newPace(2*c.Pace, int(8*c.Pace))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /metrics", s.metrics)
	for pattern, h := range s.routes() {
		if !strings.HasPrefix(pattern, "GET ") {
			h = s.audited(h)
		}
		mux.HandleFunc(pattern, s.handle(h))
	}
	for pattern, h := range s.streams() {
		mux.HandleFunc(pattern, s.handleStream(h))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, &api.Problem{Code: api.CodeNotFound, Message: fmt.Sprintf("no such endpoint: %s %s", r.Method, r.URL.Path)})
	})
	return &Server{s, mux}, nil
}

// routes are the endpoints that answer with one document. What is not a GET is
// audited.
func (s *server) routes() map[string]handler {
	return map[string]handler{
		"POST /v1/compare":              s.compare,
		"GET /v1/baselines":             s.listBaselines,
		"POST /v1/baselines":            s.setBaseline,
		"DELETE /v1/baselines/{name}":   s.removeBaseline,
		"POST /v1/check":                s.check,
		"POST /v1/check/confirm":        s.confirm,
		"GET /v1/nights":                s.listNights,
		"GET /v1/alarms":                s.listAlarms,
		"POST /v1/nights/synthetic":     s.insertSynthetic,
		"GET /v1/references":            s.listReferences,
		"POST /v1/references":           s.setReference,
		"GET /v1/version":               s.version,
		"POST /v1/sweeps":               s.submit,
		"GET /v1/sweeps":                s.listSweeps,
		"GET /v1/sweeps/{id}":           s.showSweep,
		"GET /v1/sweeps/{id}/summary":   s.summary,
		"GET /v1/sweeps/{id}/runs":      s.sweepRuns,
		"GET /v1/sweeps/{id}/results":   s.results,
		"GET /v1/settings/{hash}":       s.showSetting,
		"GET /v1/runs/{id}":             s.showRun,
		"POST /v1/sweeps/{id}/throttle": s.throttle,
		"POST /v1/actions":              s.act,
		"GET /v1/sites":                 s.listSites,
		"POST /v1/sites/{name}/mode":    s.setSiteMode,
		"GET /v1/cost":                  s.cost,
		"GET /v1/rates":                 s.listRates,
		"POST /v1/rates":                s.setRate,
		"GET /v1/audit":                 s.listAudit,
		"GET /v1/tokens":                s.listTokens,
		"POST /v1/tokens":               s.createToken,
		"POST /v1/tokens/{id}/revoke":   s.revokeToken,
		"GET /v1/quotas":                s.listQuotas,
		"POST /v1/quotas":               s.setQuota,
		"GET /v1/dead":                  s.listDead,
		"POST /v1/artefacts":            s.addArtefact,
		"GET /v1/artefacts":             s.listArtefacts,
		"GET /v1/artefacts/{digest}":    s.showArtefact,
		"POST /v1/sites/{name}/gc":      s.removeFiles,

		"POST /v1/sites/{name}/check":          s.checkSite,
		"POST /v1/artefacts/{digest}/accounts": s.restrictArtefact,
		"POST /v1/dead/release":                s.releaseDead,
		"GET /v1/crons":                        s.listCrons,
		"POST /v1/crons":                       s.addCron,
		"GET /v1/crons/{name}":                 s.showCron,
		"GET /v1/crons/{name}/next":            s.nextCron,
		"POST /v1/crons/{name}/{act}":          s.actCron,
	}
}

// streamer answers as it goes.
type streamer func(w http.ResponseWriter, r *http.Request, who auth.Identity) error

// streams are the endpoints whose answers are written as they come.
func (s *server) streams() map[string]streamer {
	return map[string]streamer{"GET /v1/runs/{id}/log": s.log, "GET /v1/runs/{id}/bundle": s.bundle}
}

// handler answers with a value that becomes the JSON document, or an error.
type handler func(r *http.Request, who auth.Identity) (any, error)

func (s *server) handle(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, ok := s.identify(w, r)
		if !ok {
			return
		}
		v, err := h(r, who)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		body, err := json.Marshal(v)
		if err != nil {
			s.fail(w, r, fmt.Errorf("encode answer: %w", err))
			return
		}
		s.counts.request(r.Pattern, http.StatusOK)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(body, '\n'))
	}
}

// handleStream is handle for answers that are written as they come. An error
// can only be reported before the first byte.
func (s *server) handleStream(h streamer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, ok := s.identify(w, r)
		if !ok {
			return
		}
		if err := h(w, r, who); err != nil {
			s.fail(w, r, err)
			return
		}
		s.counts.request(r.Pattern, http.StatusOK)
	}
}

func (s *server) identify(w http.ResponseWriter, r *http.Request) (auth.Identity, bool) {
	r.Body = http.MaxBytesReader(w, r.Body, api.MaxRequestBytes)
	if from := host(r); from != "" && s.strangers.take("host "+from, s.Now()) > 0 {
		s.fail(w, r, &api.Problem{Code: api.CodeLimited, Message: "too many requests from " + from})
		return auth.Identity{}, false
	}
	who, err := s.Auth.Identify(r)
	if err != nil {
		s.Log.WarnContext(r.Context(), "caller refused", "path", r.URL.Path, "remote", r.RemoteAddr, "error", err)
		p := refusal(err)
		if p.Code == api.CodeRefused {
			s.unidentified(r, err)
		}
		s.fail(w, r, p)
		return who, false
	}
	if err := s.pass(r, who); err != nil {
		s.fail(w, r, err)
		return who, false
	}
	return who, true
}

// fail answers with a problem.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := s.problem(r.Context(), r.Method+" "+r.URL.Path, err)
	status := statusOf(p.Code)
	s.counts.refused(err, p)
	s.counts.request(r.Pattern, status)
	body, err := json.Marshal(p)
	if err != nil {
		body = []byte(`{"code":"internal","message":"internal fault"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

func statusOf(c api.Code) int {
	switch c {
	case api.CodeInvalid:
		return http.StatusBadRequest
	case api.CodeRefused:
		return http.StatusForbidden
	case api.CodeNotFound:
		return http.StatusNotFound
	case api.CodeConflict:
		return http.StatusConflict
	case api.CodeUnavailable:
		return http.StatusServiceUnavailable
	case api.CodeLimited:
		return http.StatusTooManyRequests
	case api.CodeInternal:
		return http.StatusInternalServerError
	}
	return http.StatusInternalServerError
}

// problem gives any error its category. What is not the caller's fault is
// logged; the caller is told no more than that.
func (s *server) problem(ctx context.Context, what string, err error) *api.Problem {
	var p *api.Problem
	var tooLarge *http.MaxBytesError
	var over *store.QuotaError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &tooLarge):
		return &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("the request is larger than %d MiB", tooLarge.Limit>>20)}
	case errors.As(err, &over):
		return overQuota(over)
	case errors.Is(err, store.ErrNotFound):
		return &api.Problem{Code: api.CodeNotFound, Message: "no such " + err.Error()}
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrIllegalTransition):
		return &api.Problem{Code: api.CodeConflict, Message: err.Error()}
	case store.Unavailable(err):
		s.Log.WarnContext(ctx, "database cannot be reached", "request", what, "error", err)
		return &api.Problem{Code: api.CodeUnavailable, Message: "the database cannot be reached", Hint: "try again later; nothing was lost"}
	case ctx.Err() != nil:
		return &api.Problem{Code: api.CodeUnavailable, Message: "the request was cut off"}
	default:
		s.Log.ErrorContext(ctx, "request failed", "request", what, "error", err)
		return &api.Problem{Code: api.CodeInternal, Message: "internal fault", Hint: "the daemon's log says more"}
	}
}

// decode reads a JSON body strictly.
func decode(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return err
		}
		return &api.Problem{Code: api.CodeInvalid, Message: "the request is not what this daemon understands: " + err.Error()}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return &api.Problem{Code: api.CodeInvalid, Message: "the request has something after its document"}
	}
	return nil
}

// pathID reads a number out of the path.
func pathID(r *http.Request, what string) (int64, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || id <= 0 {
		return 0, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("%q is not the number of a %s", r.PathValue("id"), what)}
	}
	return id, nil
}

func (s *server) version(_ *http.Request, who auth.Identity) (any, error) {
	return api.Version{Version: s.Version, User: who.User}, nil
}

func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	if err := s.Store.Ping(ctx); err != nil {
		s.fail(w, r, err)
		return
	}
	text := "ready\n"
	if s.State != nil {
		if line := s.State(); line != "" {
			text += line + "\n"
		}
	}
	_, _ = io.WriteString(w, text)
}
