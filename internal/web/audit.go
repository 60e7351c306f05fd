package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/store"
)

// auditTimeout bounds the writing of an outcome, which happens even where the
// caller has gone.
const auditTimeout = 10 * time.Second

// notes are what a handler adds to its request's row of the audit log.
type notes map[string]any

type notesKey struct{}

// note adds to the audit row of the request that ctx belongs to.
func note(ctx context.Context, key string, value any) {
	if n, ok := ctx.Value(notesKey{}).(notes); ok {
		n[key] = value
	}
}

// mutates reports whether a request may change something.
func mutates(r *http.Request) bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

// audited carries a request out between two rows of the audit log. Without the
// first nothing is done.
func (s *server) audited(h handler) handler {
	return func(r *http.Request, who auth.Identity) (any, error) {
		row := auditOf(r, who)
		row.Outcome = store.AuditAsked
		asked, err := s.Store.Audit(r.Context(), row)
		if err != nil {
			return nil, err
		}
		n := notes{}
		v, err := h(r.WithContext(context.WithValue(r.Context(), notesKey{}, n)), who)
		s.decided(r.Context(), row, asked, n, err)
		return v, err
	}
}

// decided writes the outcome. That it cannot be written does not undo what was
// done: the row of the asking says that it was asked for.
func (s *server) decided(ctx context.Context, row store.AuditRow, asked int64, n notes, err error) {
	row.Request, row.Outcome = &asked, store.AuditDone
	if err != nil {
		p := s.problem(ctx, row.Action, err)
		row.Outcome = store.AuditRefused
		if p.Code == api.CodeInternal || p.Code == api.CodeUnavailable {
			row.Outcome = store.AuditFailed
		}
		n["error"] = p.Error()
	}
	detail, jsonErr := json.Marshal(n)
	if jsonErr != nil {
		detail = nil
	}
	row.Detail = detail
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
	defer cancel()
	if _, err := s.Store.Audit(ctx, row); err != nil {
		s.Log.ErrorContext(ctx, "outcome missing in the audit log", "request", asked, "outcome", row.Outcome, "error", err)
	}
}

func auditOf(r *http.Request, who auth.Identity) store.AuditRow {
	row := store.AuditRow{UserName: who.User, Via: string(who.Via), Remote: r.RemoteAddr, Action: r.Pattern, Object: clipped(r.URL.Path)}
	if who.User != "" {
		row.UID = &who.UID
	}
	if who.Token != 0 {
		row.TokenID = &who.Token
	}
	return row
}

// looked records that somebody read what is not his own.
func (s *server) looked(r *http.Request, who auth.Identity, owner string) error {
	if owner == who.User {
		return nil
	}
	row := auditOf(r, who)
	row.Outcome = store.AuditAsked
	row.Detail, _ = json.Marshal(notes{"owner": owner})
	_, err := s.Store.Audit(r.Context(), row)
	return err
}

// unidentified records a refused credential; of a host that shows one after the
// other, not every one: strangers must not fill the database.
func (s *server) unidentified(r *http.Request, cause error) {
	if s.strangers.take("audit "+host(r), s.Now()) > 0 {
		return
	}
	row := auditOf(r, auth.Identity{})
	row.Outcome = store.AuditAsked
	row.Detail, _ = json.Marshal(notes{"error": cause.Error()})
	if _, err := s.Store.Audit(r.Context(), row); err != nil {
		s.Log.WarnContext(r.Context(), "refusal missing in the audit log", "error", err)
	}
}

// host is where a request comes from; "" on the Unix socket.
func host(r *http.Request) string {
	h, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return h
}

const maxAuditRows = 100_000

// listAudit shows the audit log: all of it to admins, to others their own rows.
func (s *server) listAudit(r *http.Request, who auth.Identity) (any, error) {
	q := r.URL.Query()
	f := store.AuditFilter{UserName: q.Get("user"), Text: q.Get("text"), Asked: q.Get("asked") == "1", Limit: 1000}
	if !who.Admin {
		if f.UserName != "" && f.UserName != who.User {
			return nil, refused(nil, "%s is no admin: only admins read the audit log of others", who.User)
		}
		f.UserName = who.User
	}
	for _, t := range []struct {
		name string
		into *time.Time
	}{{"since", &f.Since}, {"until", &f.Until}} {
		if text := q.Get(t.name); text != "" {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return nil, invalid("%s %q is not a time such as 2026-01-31T22:00:00Z", t.name, clipped(text))
			}
			*t.into = at
		}
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxAuditRows {
			return nil, invalid("limit is not between 1 and %d", maxAuditRows)
		}
		f.Limit = n
	}
	rows, err := s.Store.AuditRows(r.Context(), f)
	if err != nil {
		return nil, err
	}
	out := make([]api.AuditRow, len(rows))
	for i, row := range rows {
		out[i] = api.AuditRow{
			ID: row.ID, Request: row.Request, At: row.At, User: row.UserName, UID: row.UID, Via: row.Via, Token: row.TokenID, Remote: row.Remote,
			Action: row.Action, Object: row.Object, Outcome: string(row.Outcome), Detail: row.Detail,
		}
	}
	return out, nil
}

const (
	maxTokenLife = 366 * 24 * time.Hour
	maxTokens    = 1000 // of one user
)

// createToken gives a program rights of the caller; an admin gives those of
// another user.
func (s *server) createToken(r *http.Request, who auth.Identity) (any, error) {
	var req api.TokenRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	switch {
	case !nameForm.MatchString(req.Name) || len(req.Name) > 100:
		return nil, invalid("a token's name is letters, digits and a few signs")
	case len(req.Scopes) == 0:
		return nil, invalid("a token needs at least one scope")
	case req.LifetimeS < 60 || req.LifetimeS > int64(maxTokenLife/time.Second):
		return nil, invalid("a token lives between a minute and %d days", int(maxTokenLife.Hours()/24))
	case req.Account != "" && !nameForm.MatchString(req.Account):
		return nil, invalid("account %q is not a name", clipped(req.Account))
	}
	owner, uid, err := s.tokenOwner(r.Context(), who, req.User)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, sc := range req.Scopes {
		if seen[sc] || !knownScope(sc) {
			return nil, invalid("scope %q is not one of %v, or named twice", clipped(sc), auth.Scopes())
		}
		seen[sc] = true
	}
	list, err := s.Store.Tokens(r.Context(), owner)
	if err != nil {
		return nil, err
	}
	if live(list, s.Now()) >= maxTokens {
		return nil, refused(nil, "%s has %d tokens: revoke some", owner, maxTokens)
	}
	secret, hash := auth.NewSecret()
	t := store.Token{
		Name: req.Name, SecretHash: hash, UserName: owner, UID: uid, Scopes: req.Scopes, Account: req.Account, CreatedBy: who.User,
		ExpiresAt: s.Now().Add(time.Duration(req.LifetimeS) * time.Second).UTC().Truncate(time.Second),
	}
	if err := s.Store.CreateToken(r.Context(), &t); err != nil {
		return nil, err
	}
	note(r.Context(), "token", t.ID)
	note(r.Context(), "owner", owner)
	note(r.Context(), "scopes", t.Scopes)
	return api.NewToken{Token: tokenOf(t), Text: auth.TokenText(t.ID, secret)}, nil
}

// tokenOwner is whose rights a new token has: the caller's, or, for an admin,
// those of another user.
func (s *server) tokenOwner(ctx context.Context, who auth.Identity, name string) (owner string, uid int, err error) {
	owner, uid = who.User, who.UID
	if name != "" && name != who.User {
		if !who.Admin {
			return "", 0, refused(nil, "%s is no admin: only admins create tokens of others", who.User)
		}
		if uid, err = s.UserID(ctx, name); err != nil {
			if errors.Is(err, auth.ErrUnknownUser) {
				return "", 0, invalid("no such user: %q", clipped(name))
			}
			return "", 0, err
		}
		owner = name
	}
	if uid == 0 {
		return "", 0, refused(nil, "root's rights are not given away: name the user that the token is for")
	}
	return owner, uid, nil
}

func knownScope(text string) bool {
	for _, sc := range auth.Scopes() {
		if string(sc) == text {
			return true
		}
	}
	return false
}

func live(list []store.Token, now time.Time) int {
	n := 0
	for _, t := range list {
		if t.RevokedAt == nil && t.ExpiresAt.After(now) {
			n++
		}
	}
	return n
}

func tokenOf(t store.Token) api.Token {
	return api.Token{
		ID: t.ID, Name: t.Name, User: t.UserName, Scopes: t.Scopes, Account: t.Account, CreatedAt: t.CreatedAt, ExpiresAt: t.ExpiresAt,
		RevokedAt: t.RevokedAt, RevokedBy: t.RevokedBy, LastUsedAt: t.LastUsedAt,
	}
}

// listTokens shows the caller's tokens, and everybody's to admins who ask.
func (s *server) listTokens(r *http.Request, who auth.Identity) (any, error) {
	name := who.User
	if r.URL.Query().Get("all") == "1" {
		if !who.Admin {
			return nil, refused(nil, "%s is no admin: only admins see others' tokens", who.User)
		}
		name = ""
	}
	list, err := s.Store.Tokens(r.Context(), name)
	if err != nil {
		return nil, err
	}
	out := make([]api.Token, len(list))
	for i, t := range list {
		out[i] = tokenOf(t)
	}
	return out, nil
}

// revokeToken ends one of the caller's tokens, or anybody's for an admin.
func (s *server) revokeToken(r *http.Request, who auth.Identity) (any, error) {
	id, err := pathID(r, "token")
	if err != nil {
		return nil, err
	}
	t, err := s.Store.Token(r.Context(), id)
	if err == nil && t.UserName != who.User && !who.Admin {
		err = fmt.Errorf("token %d: %w", id, store.ErrNotFound) // whose it is, is nobody's business
	}
	if err != nil {
		return nil, err
	}
	if err := s.Store.RevokeToken(r.Context(), id, who.User); err != nil {
		return nil, err
	}
	if t, err = s.Store.Token(r.Context(), id); err != nil {
		return nil, err
	}
	return tokenOf(t), nil
}

// scopeOf is what a token needs for an endpoint; "" is what no token is good for.
func scopeOf(r *http.Request) auth.Scope {
	switch {
	case !mutates(r), r.Pattern == "POST /v1/compare", r.Pattern == "POST /v1/check":
		return auth.ScopeRead
	case r.Pattern == "POST /v1/sweeps", r.Pattern == "POST /v1/check/confirm":
		return auth.ScopeSubmit
	case r.Pattern == "POST /v1/actions", r.Pattern == "POST /v1/sweeps/{id}/throttle", r.Pattern == "POST /v1/dead/release":
		return auth.ScopeAct
	}
	return ""
}

// pass lets an identified caller pass, or says why not: too fast, or not with
// this token.
func (s *server) pass(r *http.Request, who auth.Identity) error {
	if wait := s.pace.take("uid "+strconv.Itoa(who.UID), s.Now()); wait > 0 {
		return &api.Problem{
			Code: api.CodeLimited, Message: fmt.Sprintf("%s sends more than %g requests per second", who.User, s.pace.rate),
			Hint: fmt.Sprintf("try again in %v", wait.Round(time.Millisecond)),
		}
	}
	if who.Token != 0 {
		if err := s.Store.TouchToken(r.Context(), who.Token); err != nil {
			return err
		}
	}
	if need := scopeOf(r); !who.Allows(need) {
		if need == "" {
			return refused(nil, "no token is good for this: call as %s", who.User)
		}
		return refused(nil, "token %d is not good for this: it lacks the scope %s", who.Token, need)
	}
	return nil
}

// refusal is the answer to a caller who was not identified.
func refusal(err error) *api.Problem {
	for _, known := range []error{auth.ErrUnknownUser, auth.ErrNoPeer, auth.ErrRefused} {
		if errors.Is(err, known) {
			return &api.Problem{Code: api.CodeRefused, Message: "cannot tell who is calling: " + err.Error()}
		}
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("the request is larger than %d MiB", tooLarge.Limit>>20)}
	}
	return &api.Problem{Code: api.CodeUnavailable, Message: "cannot tell who is calling: " + err.Error(), Hint: "the name service, MUNGE or the database of the daemon's host does not answer"}
}
