package web

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/site"
	"sbench/internal/store"
)

func (s *server) listSites(r *http.Request, _ auth.Identity) (any, error) {
	modes, err := s.Store.SiteModes(r.Context())
	if err != nil {
		return nil, err
	}
	out := make([]api.Site, len(s.Sites))
	for i, st := range s.Sites {
		out[i] = siteOf(st, modes[st.Name])
	}
	return out, nil
}

func siteOf(st *site.Site, m store.SiteMode) api.Site {
	out := api.Site{Name: st.Name, Cluster: st.Cluster, HardwareClass: st.HardwareClass, Mode: store.SiteActive}
	if m.Mode != "" {
		out.Mode, out.Reason, out.ChangedBy, out.ChangedAt = m.Mode, m.Reason, m.ChangedBy, &m.ChangedAt
	}
	return out
}

// site finds a site by name.
func (s *server) site(name string) (*site.Site, error) {
	i := slices.IndexFunc(s.Sites, func(st *site.Site) bool { return st.Name == name })
	if i < 0 {
		return nil, &api.Problem{Code: api.CodeNotFound, Message: fmt.Sprintf("no such site: %q", name), Hint: "sites: " + strings.Join(s.siteNames(), ", ")}
	}
	return s.Sites[i], nil
}

func (s *server) siteNames() []string {
	names := make([]string, len(s.Sites))
	for i, st := range s.Sites {
		names[i] = st.Name
	}
	return names
}

func (s *server) setSiteMode(r *http.Request, who auth.Identity) (any, error) {
	var req api.SiteRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	st, err := s.site(r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	if err := s.onlyOperators(r.Context(), who, st, "%s is no operator: only operators change how a site is fed", who.User); err != nil {
		return nil, err
	}
	if !slices.Contains([]string{store.SiteActive, store.SiteDrain, store.SitePaused}, req.Mode) {
		return nil, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("unknown mode %q", req.Mode)}
	}
	if err := checkReason(req.Reason); err != nil {
		return nil, err
	}
	m, err := s.Store.SetSiteMode(r.Context(), store.SiteMode{Site: st.Name, Mode: req.Mode, Reason: req.Reason, ChangedBy: who.User})
	if err != nil {
		return nil, err
	}
	s.Log.WarnContext(r.Context(), "site mode changed", "site", st.Name, "mode", req.Mode, "user", who.User, "reason", req.Reason)
	return siteOf(st, m), nil
}

// checkSite lets operators look at what their site file says: it submits jobs.
func (s *server) checkSite(r *http.Request, who auth.Identity) (any, error) {
	var req api.SiteCheckRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	st, err := s.site(r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	if err := s.onlyOperators(r.Context(), who, st, "%s is no operator: only operators check a site, which submits jobs", who.User); err != nil {
		return nil, err
	}
	if s.CheckSite == nil {
		return nil, &api.Problem{Code: api.CodeRefused, Message: "this daemon checks no sites"}
	}
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	default:
		return nil, &api.Problem{Code: api.CodeConflict, Message: "a site is being checked already", Hint: "try again in a minute"}
	}
	found, err := s.CheckSite(r.Context(), st, !req.NoJob)
	if err != nil {
		return nil, err
	}
	note(r.Context(), "ok", found.OK)
	return found, nil
}

func (s *server) removeFiles(r *http.Request, who auth.Identity) (any, error) {
	var req api.RemoveFilesRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if !who.Operator {
		return nil, &api.Problem{Code: api.CodeRefused, Message: fmt.Sprintf("%s is no operator: only operators remove the files of attempts", who.User)}
	}
	st, err := s.site(r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	if s.RemoveFiles == nil {
		return nil, &api.Problem{Code: api.CodeRefused, Message: "this daemon removes no files"}
	}
	removed, err := s.RemoveFiles(r.Context(), st, req.DryRun)
	if err != nil {
		return nil, err
	}
	s.Log.InfoContext(r.Context(), "files removed on request", "site", st.Name, "user", who.User, "dry_run", req.DryRun, "attempts", len(removed.Attempts), "bytes", removed.Bytes)
	return removed, nil
}
