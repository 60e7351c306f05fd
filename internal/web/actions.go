package web

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/lifecycle"
	"sbench/internal/store"
)

const (
	maxTargets = 10_000
	maxReason  = 1000 // characters
)

func (s *server) act(r *http.Request, who auth.Identity) (any, error) {
	var req api.ActionRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	scope, err := s.scope(r, who, req)
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	var m store.Marked
	switch req.Action {
	case api.ActionCancel:
		m, err = s.Store.Cancel(ctx, scope, who.User, req.Reason)
	case api.ActionHold:
		m, err = s.Store.Hold(ctx, scope)
	case api.ActionRelease:
		m, err = s.Store.Release(ctx, scope)
	case api.ActionRequeue:
		m, err = s.Store.Requeue(ctx, scope, who.User, req.Reason)
	default:
		return nil, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("unknown action %q", req.Action)}
	}
	if err != nil {
		return nil, err
	}
	note(ctx, "action", req.Action)
	note(ctx, "kind", req.Kind)
	note(ctx, "ids", req.IDs)
	note(ctx, "sweeps", m.Sweeps)
	note(ctx, "runs", m.Runs)
	note(ctx, "reason", req.Reason)
	s.Log.InfoContext(ctx, "action", "action", req.Action, "user", who.User, "kind", req.Kind, "ids", req.IDs, "all", req.All,
		"runs", m.Runs, "reason", req.Reason)
	return api.ActionResponse{Sweeps: nonNil(m.Sweeps), Runs: m.Runs, Unchanged: m.Unchanged}, nil
}

// maxInflight bounds what a user may ask for.
const maxInflight = 1_000_000

func (s *server) throttle(r *http.Request, who auth.Identity) (any, error) {
	var req api.ThrottleRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	ids, err := numbers("sweep", []string{r.PathValue("id")})
	if err != nil {
		return nil, err
	}
	if req.MaxInflight < 0 || req.MaxInflight > maxInflight {
		return nil, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("max_inflight %d is not between 0 (no limit) and %d", req.MaxInflight, maxInflight)}
	}
	if err := s.mayTouch(r.Context(), who, ids, nil); err != nil {
		return nil, err
	}
	batches, err := s.Store.ThrottleSweep(r.Context(), ids[0], req.MaxInflight)
	if err != nil {
		return nil, err
	}
	s.Log.InfoContext(r.Context(), "limit of tasks at once changed", "sweep", ids[0], "most", req.MaxInflight, "batches", batches, "user", who.User)
	return api.ThrottleResponse{SweepID: ids[0], MaxInflight: req.MaxInflight, Batches: batches}, nil
}

// scope turns the request's targets into runs that the caller may touch.
func (s *server) scope(r *http.Request, who auth.Identity, req api.ActionRequest) (store.Scope, error) {
	var scope store.Scope
	if err := checkReason(req.Reason); err != nil {
		return scope, err
	}
	if !who.Operator {
		scope.UID = &who.UID
	}
	switch {
	case req.All && (len(req.IDs) > 0 || req.Sweep != 0):
		return scope, &api.Problem{Code: api.CodeInvalid, Message: "all and ids exclude each other"}
	case req.All && req.Action != api.ActionCancel:
		return scope, &api.Problem{Code: api.CodeInvalid, Message: "all goes with cancel only"}
	case req.All && req.User != "" && !who.MayAct(req.User):
		return scope, &api.Problem{Code: api.CodeRefused, Message: fmt.Sprintf("%s may not cancel the sweeps of %s", who.User, req.User)}
	case req.All:
		scope.All, scope.UserName, scope.Site = true, req.User, req.Site
		return scope, nil
	case len(req.IDs) == 0:
		return scope, &api.Problem{Code: api.CodeInvalid, Message: "nothing is named"}
	case len(req.IDs) > maxTargets:
		return scope, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("more than %d targets", maxTargets)}
	}
	switch req.Kind {
	case api.KindSetting:
		return s.settingScope(r, who, req, scope)
	case api.KindSweep, api.KindRun:
		ids, err := numbers(string(req.Kind), req.IDs)
		if err != nil {
			return scope, err
		}
		if req.Kind == api.KindSweep {
			scope.Sweeps, scope.UID = ids, nil
			return scope, s.mayTouch(r.Context(), who, ids, nil)
		}
		scope.Runs, scope.UID = ids, nil // all of them are the caller's to touch, or nothing is done
		return scope, s.mayTouch(r.Context(), who, nil, ids)
	default:
		return scope, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("unknown kind %q", req.Kind)}
	}
}

func (s *server) settingScope(r *http.Request, who auth.Identity, req api.ActionRequest, scope store.Scope) (store.Scope, error) {
	for _, prefix := range req.IDs {
		spec, err := s.wholeHash(r, prefix)
		if err != nil {
			return scope, err
		}
		scope.Settings = append(scope.Settings, spec.SettingHash)
	}
	if req.Sweep == 0 {
		return scope, nil // the uid limits it to the caller's own
	}
	scope.Sweeps, scope.UID = []int64{req.Sweep}, nil
	return scope, s.mayTouch(r.Context(), who, scope.Sweeps, nil)
}

// touched is whose a sweep or run is.
type touched struct{ owner, site, account string }

// mayTouch checks that all sweeps and runs exist and are the caller's to touch.
func (s *server) mayTouch(ctx context.Context, who auth.Identity, sweeps, runs []int64) error {
	of := map[int64]touched{}
	what, ids := "sweep", sweeps
	if runs != nil {
		what, ids = "run", runs
		rows, err := s.Store.Runs(ctx, runs...)
		if err != nil {
			return err
		}
		for _, row := range rows {
			of[row.ID] = touched{row.UserName, row.Site, row.Account}
		}
	} else {
		rows, err := s.Store.Sweeps(ctx, sweeps...)
		if err != nil {
			return err
		}
		for _, row := range rows {
			of[row.ID] = touched{row.UserName, row.Site, row.Account}
		}
	}
	var unknown, foreign []string
	for _, id := range ids {
		t, ok := of[id]
		if !ok {
			unknown = append(unknown, fmt.Sprintf("no such %s: %d", what, id))
			continue
		}
		may, err := s.mayAct(ctx, who, t.owner, t.site, t.account)
		if err != nil {
			return err
		}
		if !may {
			foreign = append(foreign, fmt.Sprintf("%s %d is %s's", what, id, t.owner))
		}
	}
	switch {
	case len(unknown) > 0:
		return &api.Problem{Code: api.CodeNotFound, Message: unknown[0], Reasons: unknown[1:]}
	case len(foreign) > 0:
		return &api.Problem{Code: api.CodeRefused, Message: "not yours: nothing was done", Reasons: foreign}
	}
	return nil
}

func numbers(what string, texts []string) ([]int64, error) {
	ids := make([]int64, len(texts))
	for i, text := range texts {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id <= 0 {
			return nil, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("%q is not the number of a %s", text, what)}
		}
		ids[i] = id
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// checkReason bounds what people write into the records.
func checkReason(text string) error {
	if len([]rune(text)) > maxReason || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("a reason is one line of at most %d characters", maxReason)}
	}
	return nil
}

func (s *server) releaseDead(r *http.Request, who auth.Identity) (any, error) {
	var req api.ReleaseRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if len(req.Runs) == 0 || len(req.Runs) > maxTargets {
		return nil, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("between 1 and %d runs are released at a time", maxTargets)}
	}
	ctx := r.Context()
	if err := s.mayTouch(ctx, who, nil, req.Runs); err != nil {
		return nil, err
	}
	rows, err := s.Store.Runs(ctx, req.Runs...)
	if err != nil {
		return nil, err
	}
	var alive []string
	for _, row := range rows {
		if row.State != lifecycle.RunDead {
			alive = append(alive, fmt.Sprintf("run %d is %s", row.ID, row.State))
		}
	}
	if len(alive) > 0 {
		return nil, &api.Problem{Code: api.CodeConflict, Message: "not dead: nothing was done", Reasons: alive, Hint: "sbench requeue repeats failed and cancelled runs"}
	}
	m, err := s.Store.Requeue(ctx, store.Scope{Runs: req.Runs}, who.User, "released from the dead-letter list")
	if err != nil {
		return nil, err
	}
	note(ctx, "runs", req.Runs)
	s.Log.InfoContext(ctx, "dead runs released", "user", who.User, "runs", req.Runs)
	return api.ActionResponse{Sweeps: nonNil(m.Sweeps), Runs: m.Runs, Unchanged: m.Unchanged}, nil
}
