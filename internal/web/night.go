package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/regress"
	"sbench/internal/store"
)

const (
	shownNights = 400 // of one answer: a year of one schedule
	latestAge   = 90 * 24 * time.Hour
	// Bounds of synthetic nights.
	maxSynthetic     = 20_000
	maxSyntheticRuns = 100
)

// listNights shows how the nights of the schedules were judged.
func (s *server) listNights(r *http.Request, _ auth.Identity) (any, error) {
	ctx, q := r.Context(), r.URL.Query()
	if text := q.Get("sweep"); text != "" {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id <= 0 {
			return nil, invalid("%q is not the number of a sweep", clipped(text))
		}
		return s.oneNight(r, id)
	}
	siteName := q.Get("site")
	if siteName != "" {
		if _, err := s.site(siteName); err != nil {
			return nil, err
		}
	}
	var list []store.NightView
	var err error
	if text := q.Get("since"); text != "" {
		since, e := time.Parse(time.RFC3339, text)
		if e != nil {
			return nil, invalid("since %q is not a time", clipped(text))
		}
		list, err = s.Store.NightsSince(ctx, since, siteName, shownNights)
	} else {
		list, err = s.Store.LatestNights(ctx, s.Now().Add(-latestAge), siteName, shownNights)
	}
	if err != nil {
		return nil, err
	}
	out := make([]api.Night, len(list))
	for i := range list {
		if out[i], err = nightView(list[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// oneNight is the night of a sweep, also before it is judged.
func (s *server) oneNight(r *http.Request, id int64) (any, error) {
	v, err := s.Store.NightOf(r.Context(), id)
	if err == nil {
		n, err := nightView(v)
		return []api.Night{n}, err
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	sweep, err := s.Store.Sweep(r.Context(), id)
	if err != nil {
		return nil, err
	}
	cron, err := s.Store.CronOfSweep(r.Context(), id)
	if err != nil {
		return nil, err
	}
	n := api.Night{
		SweepID: id, SweepName: sweep.Name, User: sweep.UserName, Cron: cron, Site: sweep.Site, HardwareClass: sweep.HardwareClass,
		SubmittedAt: sweep.SubmittedAt, EndedAt: sweep.EndedAt, State: api.NightWaiting,
	}
	switch {
	case cron == "":
		return nil, &api.Problem{
			Code: api.CodeConflict, Message: fmt.Sprintf("sweep %d was not submitted by a schedule: only those are judged", id),
			Hint: "sbench check holds any sweep against a baseline",
		}
	case sweep.State == store.SweepCancelled:
		return nil, &api.Problem{Code: api.CodeConflict, Message: fmt.Sprintf("sweep %d was cancelled: it is not judged", id)}
	case sweep.State == store.SweepActive:
		n.State = api.NightRunning
	}
	return []api.Night{n}, nil
}

func nightView(v store.NightView) (api.Night, error) {
	var report regress.Report
	if err := json.Unmarshal(v.Report, &report); err != nil {
		return api.Night{}, fmt.Errorf("read the report of sweep %d: %w", v.SweepID, err)
	}
	return api.Night{
		SweepID: v.SweepID, SweepName: v.SweepName, User: v.UserName, Cron: v.Cron, Site: v.Site, HardwareClass: v.HardwareClass,
		SubmittedAt: v.SubmittedAt, EndedAt: v.EndedAt, State: v.State, ScreenedAt: &v.ScreenedAt, JudgedAt: v.JudgedAt,
		Confirmation: v.ConfirmedBy, Reason: v.Reason, Series: v.NSeries, Report: &report,
	}, nil
}

// insertSynthetic stores nights that were never measured. They make a history of a
// rehearsal, and every conclusion from one counts them.
func (s *server) insertSynthetic(r *http.Request, who auth.Identity) (any, error) {
	var req api.SyntheticNights
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	sweep, err := s.Store.Sweep(r.Context(), req.SweepID)
	if err != nil {
		return nil, err
	}
	st, err := s.site(sweep.Site)
	if err != nil {
		return nil, err
	}
	if err := s.onlyOperators(r.Context(), who, st, "%s is no operator of site %s: only operators insert synthetic nights", who.User, st.Name); err != nil {
		return nil, err
	}
	switch {
	case sweep.HardwareClass != "emulated":
		return nil, refused(nil, "sweep %d ran on real hardware: synthetic nights are of emulated hardware only", sweep.ID)
	case req.Label == "" || len(req.Label) > maxOption || !printable(req.Label):
		return nil, invalid("label %q: say in some words what the nights are for", clipped(req.Label))
	case len(req.Nights) == 0 || len(req.Nights) > maxSynthetic:
		return nil, invalid("%d nights are not between 1 and %d", len(req.Nights), maxSynthetic)
	}
	views, err := s.Store.SettingViews(r.Context(), sweep.ID)
	if err != nil {
		return nil, err
	}
	series := map[string]string{}
	for i := range views {
		series[views[i].SettingHash] = views[i].SeriesHash
	}
	list := make([]store.NewSyntheticNight, len(req.Nights))
	for i, n := range req.Nights {
		if err := checkSynthetic(n, series, sweep); err != nil {
			return nil, err
		}
		list[i] = store.NewSyntheticNight{
			SeriesHash: series[n.SettingHash], SettingHash: n.SettingHash, Site: sweep.Site, Label: req.Label, By: who.User, Night: n.Night,
			Throughput: nonNil(n.TokensPerS), Latency: nonNil(n.TTFTP95), Nodes: n.Nodes,
		}
	}
	note(r.Context(), "sweep", sweep.ID)
	note(r.Context(), "nights", len(list))
	return api.InsertedNights{Nights: len(list)}, s.Store.InsertSynthetic(r.Context(), list)
}

func checkSynthetic(n api.SyntheticNight, series map[string]string, sweep store.Sweep) error {
	bad := func(v float64) bool { return !(v > 0 && v < 1e12) }
	switch {
	case series[n.SettingHash] == "":
		return invalid("sweep %d has no setting %s", sweep.ID, clipped(n.SettingHash))
	case !n.Night.Before(sweep.SubmittedAt):
		return invalid("%s is not before sweep %d", n.Night.Format(time.RFC3339), sweep.ID)
	case len(n.Nodes) == 0 || len(n.Nodes) > maxSyntheticRuns || slices.ContainsFunc(n.Nodes, func(v string) bool { return !nodesForm.MatchString(v) }):
		return invalid("a night has between 1 and %d runs, each with its node", maxSyntheticRuns)
	}
	for _, values := range [][]float64{n.TokensPerS, n.TTFTP95} {
		if len(values) > 0 && len(values) != len(n.Nodes) || slices.ContainsFunc(values, bad) {
			return invalid("a night has a positive value for each of its %d runs, or none of a metric", len(n.Nodes))
		}
	}
	return nil
}

var hashForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s *server) listReferences(r *http.Request, _ auth.Identity) (any, error) {
	list, err := s.Store.References(r.Context(), "")
	if err != nil {
		return nil, err
	}
	out := make([]api.Reference, len(list))
	for i, v := range list {
		out[i] = api.Reference(v)
	}
	return out, nil
}

// setReference names the setting that each node of a site is held against.
func (s *server) setReference(r *http.Request, who auth.Identity) (any, error) {
	var req api.ReferenceRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	st, err := s.site(req.Site)
	if err != nil {
		return nil, err
	}
	if err := s.onlyOperators(r.Context(), who, st, "%s is no operator of site %s: only operators name its reference setting", who.User, st.Name); err != nil {
		return nil, err
	}
	switch {
	case req.SettingHash == "":
		err = s.Store.RemoveReference(r.Context(), st.Name)
	case !hashForm.MatchString(req.SettingHash):
		return nil, invalid("%q is not the whole hash of a setting", clipped(req.SettingHash))
	default:
		err = s.Store.SetReference(r.Context(), st.Name, req.SettingHash, who.User)
	}
	if err != nil {
		return nil, err
	}
	return s.listReferences(r, who)
}
