package web

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/schedule"
	"sbench/internal/setting"
	"sbench/internal/store"
)

const (
	maxJitter   = 24 * time.Hour
	maxWindow   = 31 * 24 * time.Hour
	shownFiring = 20  // latest firings of one schedule
	maxNext     = 400 // due times of one answer: more than a year of nights
)

var cronForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// cronOf finds the schedule that the path names: the caller's, or for an operator
// that of the user whom the query names.
func (s *server) cronOf(r *http.Request, who auth.Identity) (store.Cron, error) {
	name, user := r.PathValue("name"), cmp.Or(r.URL.Query().Get("user"), who.User)
	if !cronForm.MatchString(name) {
		return store.Cron{}, invalid("%q is not the name of a schedule", clipped(name))
	}
	if !who.MayAct(user) {
		return store.Cron{}, refused(nil, "%s may not look into the schedules of %s", who.User, user)
	}
	list, err := s.Store.Crons(r.Context(), user, name)
	if err == nil && len(list) == 0 {
		err = &api.Problem{Code: api.CodeNotFound, Message: fmt.Sprintf("%s has no schedule %q", user, name), Hint: "sbench cron list shows the schedules"}
	}
	if err != nil {
		return store.Cron{}, err
	}
	return list[0], nil
}

func (s *server) listCrons(r *http.Request, who auth.Identity) (any, error) {
	user := cmp.Or(r.URL.Query().Get("user"), who.User)
	switch {
	case user == "*" && !who.Operator:
		return nil, refused(nil, "only operators see everybody's schedules")
	case user == "*":
		user = ""
	case !who.MayAct(user):
		return nil, refused(nil, "%s may not look into the schedules of %s", who.User, user)
	}
	list, err := s.Store.Crons(r.Context(), user, "")
	if err != nil {
		return nil, err
	}
	out := make([]api.Cron, len(list))
	for i := range list {
		if out[i], err = s.cronView(r.Context(), list[i], 1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *server) showCron(r *http.Request, who auth.Identity) (any, error) {
	c, err := s.cronOf(r, who)
	if err != nil {
		return nil, err
	}
	return s.cronView(r.Context(), c, shownFiring)
}

func (s *server) cronView(ctx context.Context, c store.Cron, firings int) (api.Cron, error) {
	out := api.Cron{
		Name: c.Name, User: c.UserName, Schedule: c.Schedule, TimeZone: c.TimeZone, Overlap: c.Overlap, CatchUp: c.CatchUp, JitterS: c.JitterS,
		WindowS: c.WindowS, AtWindowEnd: c.AtWindowEnd, Site: c.Site, FileDigest: c.FileDigest, SettingsDigest: c.SettingsDigest,
		Settings: c.NSettings, Runs: c.NRuns, GPUHours: c.GPUHours, Version: c.Version, PausedAt: c.PausedAt, PausedBy: c.PausedBy,
		CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt, Firings: []api.CronFiring{},
	}
	if sched, err := scheduleOf(c.Schedule, c.TimeZone); err == nil && c.PausedAt == nil {
		if next := sched.Next(s.Now()); !next.IsZero() {
			out.NextAt = &next
		}
	}
	list, err := s.Store.Firings(ctx, c.ID, firings)
	if err != nil {
		return out, err
	}
	for _, f := range list {
		out.Firings = append(out.Firings, api.CronFiring{
			DueAt: f.Due, FireAt: f.FireAt, Manual: f.Manual, State: f.State, Reason: f.Reason, SweepID: f.SweepID, WindowEnd: f.WindowEnd,
			EndedAt: f.EndedAt, WindowMet: f.WindowMet,
		})
	}
	return out, nil
}

func scheduleOf(text, zone string) (schedule.Schedule, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "" || zone == "Local" {
		return schedule.Schedule{}, fmt.Errorf("%q is not a time zone: write its IANA name, such as Europe/Berlin", clipped(zone))
	}
	return schedule.Parse(text, loc)
}

func (s *server) nextCron(r *http.Request, who auth.Identity) (any, error) {
	c, err := s.cronOf(r, who)
	if err != nil {
		return nil, err
	}
	n, err := queryInt(r.URL.Query(), "n", 5, maxNext)
	if err != nil {
		return nil, err
	}
	sched, err := scheduleOf(c.Schedule, c.TimeZone)
	if err != nil {
		return nil, err
	}
	out := api.CronNext{Name: c.Name, Due: []api.CronTimes{}}
	at := s.Now()
	for range n {
		if at = sched.Next(at); at.IsZero() {
			break
		}
		delay := schedule.Delay(c.ID, at, time.Duration(c.JitterS)*time.Second)
		out.Due = append(out.Due, api.CronTimes{DueAt: at.In(sched.Location()), FireAt: at.Add(delay).In(sched.Location())})
	}
	return out, nil
}

// addCron freezes a sweep with its schedule. It admits the sweep as if it were
// submitted now, so that what can never work is refused while somebody looks.
func (s *server) addCron(r *http.Request, who auth.Identity) (any, error) {
	var req api.CronRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	switch {
	case !cronForm.MatchString(req.Name):
		return nil, invalid("%q is not a name for a schedule: letters, digits, _ . and -, at most 64", clipped(req.Name))
	case req.File == "":
		return nil, invalid("a schedule needs a sweep file")
	case req.Schedule == "":
		return nil, invalid("a schedule needs --schedule")
	case req.User != "" && req.User != who.User:
		return nil, refused(nil, "a schedule runs as its owner: %s cannot add one for %s", who.User, req.User)
	}
	n := store.NewCron{
		Name: req.Name, UserName: who.User, UID: who.UID, TimeZone: cmp.Or(s.TimeZone, "UTC"), Overlap: string(schedule.OverlapSkip),
		CatchUp: string(schedule.CatchUpLast), AtWindowEnd: "continue", Options: json.RawMessage(`{}`),
	}
	resp, err := s.freezeCron(r.Context(), who, req, &n)
	if err != nil {
		return nil, err
	}
	id, err := s.Store.AddCron(r.Context(), n)
	if errors.Is(err, store.ErrExists) {
		return nil, &api.Problem{Code: api.CodeConflict, Message: fmt.Sprintf("%s has a schedule %s already", who.User, n.Name), Hint: "sbench cron update changes it"}
	}
	if err != nil {
		return nil, err
	}
	s.Log.InfoContext(r.Context(), "schedule added", "cron", n.Name, "user", who.User, "schedule", n.Schedule, "time_zone", n.TimeZone, "file_digest", n.FileDigest)
	return s.cronAnswer(r.Context(), id, resp)
}

func (s *server) cronAnswer(ctx context.Context, id int64, resp api.CronResponse) (any, error) {
	c, err := s.Store.Cron(ctx, id)
	if err != nil {
		return nil, err
	}
	resp.Notes = nonNil(resp.Notes)
	resp.Cron, err = s.cronView(ctx, c, shownFiring)
	return resp, err
}

// freezeCron takes what the request says over n and checks all of it.
func (s *server) freezeCron(ctx context.Context, owner auth.Identity, req api.CronRequest, n *store.NewCron) (api.CronResponse, error) {
	var resp api.CronResponse
	n.Schedule, n.TimeZone = cmp.Or(req.Schedule, n.Schedule), cmp.Or(req.TimeZone, n.TimeZone)
	n.Overlap, n.CatchUp, n.AtWindowEnd = cmp.Or(req.Overlap, n.Overlap), cmp.Or(req.CatchUp, n.CatchUp), cmp.Or(req.AtWindowEnd, n.AtWindowEnd)
	if _, err := scheduleOf(n.Schedule, n.TimeZone); err != nil {
		return resp, invalid("%v", err)
	}
	for _, d := range []struct {
		flag string
		from *int64
		most time.Duration
		into *time.Duration
	}{{"jitter", req.JitterS, maxJitter, &n.Jitter}, {"window", req.WindowS, maxWindow, &n.Window}} {
		if d.from == nil {
			continue
		}
		if *d.from < 0 || *d.from > int64(d.most/time.Second) {
			return resp, invalid("--%s is not between 0 and %v", d.flag, d.most)
		}
		*d.into = time.Duration(*d.from) * time.Second
	}
	for _, w := range []struct {
		flag, value string
		words       []string
	}{
		{"overlap", n.Overlap, []string{"skip", "queue", "cancel-old"}},
		{"catch-up", n.CatchUp, []string{"none", "last", "all"}},
		{"at-window-end", n.AtWindowEnd, []string{"continue", "cancel"}},
	} {
		if !slices.Contains(w.words, w.value) {
			return resp, invalid("--%s %q is none of %v", w.flag, clipped(w.value), w.words)
		}
	}
	if n.Window > 0 && n.Jitter >= n.Window {
		return resp, invalid("a jitter of %v leaves nothing of a window of %v", n.Jitter, n.Window)
	}
	if req.Options != nil {
		text, err := json.Marshal(req.Options)
		if err != nil {
			return resp, fmt.Errorf("encode options: %w", err)
		}
		n.Options = text
	}
	if req.File != "" {
		n.File, n.FileName = req.File, req.FileName
	}
	return resp, s.freezeSweep(ctx, owner, n, &resp)
}

// freezeSweep admits the sweep of a schedule on trial and notes what it is.
func (s *server) freezeSweep(ctx context.Context, owner auth.Identity, n *store.NewCron, resp *api.CronResponse) error {
	var o api.Options
	if err := json.Unmarshal(n.Options, &o); err != nil {
		return fmt.Errorf("decode options: %w", err)
	}
	if o.Begin != nil || o.Hold || o.Dependency != "" {
		return invalid("--begin, --hold and --dependency do not go with a schedule: it says itself when a sweep starts")
	}
	a, err := s.admit(ctx, owner, api.SubmitRequest{FileName: n.FileName, File: n.File, Options: o, TestOnly: true})
	if err != nil {
		return err
	}
	// A history is the point of a schedule: what was measured is measured again,
	// unless the file asks for reuse.
	if !a.file.Reuse.Given {
		o.Force = true
	}
	o.Site = a.site.Name
	if n.Options, err = json.Marshal(o); err != nil {
		return fmt.Errorf("encode options: %w", err)
	}
	sum := sha256.Sum256([]byte(n.File))
	n.Site, n.FileDigest, n.SettingsDigest = a.site.Name, "sha256:"+hex.EncodeToString(sum[:]), a.plan.SettingsDigest
	n.NSettings, n.NRuns, n.GPUHours = a.plan.Settings, a.plan.Runs, a.plan.GPUHours
	plan := a.plan
	plan.Detail = []api.PlanSetting{}
	resp.Plan, resp.Notes = &plan, append(resp.Notes, a.resp.Notes...)
	resp.Notes = append(resp.Notes, cronNotes(a, n)...)
	return nil
}

// cronNotes are what is worth knowing of a schedule.
func cronNotes(a *admission, n *store.NewCron) []string {
	var notes []string
	unpinned := 0
	for i := range a.sweep.Settings {
		set := &a.sweep.Settings[i].Setting
		if set.Model.Checkpoint.Digest == setting.Unpinned || set.Image.Digest == setting.Unpinned {
			unpinned++
		}
	}
	if unpinned > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d settings pin no digest of their checkpoint or image: what lies there when it fires is measured",
			unpinned, len(a.sweep.Settings)))
	}
	if gpus := siteGPUs(a); n.Window > 0 && gpus > 0 {
		if least := time.Duration(a.plan.GPUHours / float64(gpus) * float64(time.Hour)); least > n.Window {
			notes = append(notes, fmt.Sprintf("the window of %v cannot be met: %.1f GPU-hours take %v on all %d GPUs of the site",
				n.Window, a.plan.GPUHours, least.Truncate(time.Minute), gpus))
		}
	}
	return notes
}

// siteGPUs counts the GPUs of the hardware that a sweep uses; 0 where the site
// file does not say.
func siteGPUs(a *admission) int {
	used := map[string]bool{}
	for i := range a.sweep.Settings {
		used[a.sweep.Settings[i].Setting.Hardware.GPU] = true
	}
	total := 0
	for id := range used {
		hw := a.site.Hardware[id]
		if hw.Nodes == 0 {
			return 0
		}
		total += hw.Nodes * hw.GPUsPerNode
	}
	return total
}

func (s *server) actCron(r *http.Request, who auth.Identity) (any, error) {
	act := api.CronAction(r.PathValue("act"))
	c, err := s.cronOf(r, who)
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	resp := api.CronResponse{Notes: []string{}}
	switch act {
	case "update":
		return s.updateCron(r, who, c)
	case api.CronPause:
		err = s.Store.PauseCron(ctx, c.ID, who.User)
	case api.CronResume:
		err = s.Store.ResumeCron(ctx, c.ID)
	case api.CronRun:
		if c.PausedAt != nil {
			return nil, &api.Problem{Code: api.CodeConflict, Message: fmt.Sprintf("schedule %s is paused", c.Name), Hint: "sbench cron resume " + c.Name}
		}
		var due time.Time
		due, err = s.Store.FireCron(ctx, c, time.Duration(c.WindowS)*time.Second, who.User)
		resp.DueAt = &due
	case api.CronRemove:
		if err := s.Store.RemoveCron(ctx, c.ID, who.User); err != nil {
			return nil, err
		}
		s.Log.InfoContext(ctx, "schedule removed", "cron", c.Name, "owner", c.UserName, "user", who.User)
		resp.Cron, err = s.cronView(ctx, c, shownFiring)
		resp.Cron.NextAt = nil
		return resp, err
	default:
		return nil, &api.Problem{Code: api.CodeNotFound, Message: fmt.Sprintf("no such endpoint: %s %s", r.Method, r.URL.Path)}
	}
	if err != nil {
		return nil, err
	}
	s.Log.InfoContext(ctx, "schedule changed", "cron", c.Name, "owner", c.UserName, "user", who.User, "action", act)
	return s.cronAnswer(ctx, c.ID, resp)
}

func (s *server) updateCron(r *http.Request, who auth.Identity, c store.Cron) (any, error) {
	var req api.CronRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if who.UID != c.UID {
		return nil, refused(nil, "a schedule runs as its owner: only %s can change what it runs", c.UserName)
	}
	n := store.NewCron{
		Name: c.Name, UserName: c.UserName, UID: c.UID, Schedule: c.Schedule, TimeZone: c.TimeZone, Overlap: c.Overlap, CatchUp: c.CatchUp,
		Jitter: time.Duration(c.JitterS) * time.Second, Window: time.Duration(c.WindowS) * time.Second, AtWindowEnd: c.AtWindowEnd,
		FileName: c.FileName, File: c.File, Options: c.Options,
	}
	resp, err := s.freezeCron(r.Context(), who, req, &n)
	if err != nil {
		return nil, err
	}
	err = s.Store.UpdateCron(r.Context(), c.ID, c.Version, n)
	if errors.Is(err, store.ErrStale) {
		return nil, &api.Problem{Code: api.CodeConflict, Message: fmt.Sprintf("schedule %s was changed meanwhile", c.Name), Hint: "look at it and try again"}
	}
	if err != nil {
		return nil, err
	}
	s.Log.InfoContext(r.Context(), "schedule updated", "cron", c.Name, "user", who.User, "schedule", n.Schedule, "file_digest", n.FileDigest)
	return s.cronAnswer(r.Context(), c.ID, resp)
}
