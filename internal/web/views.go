package web

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/lifecycle"
	"sbench/internal/metrics"
	"sbench/internal/store"
)

// Limits of what one answer lists.
const (
	maxSweeps      = 1000
	maxDead        = 10_000
	maxSettingRuns = 1000
)

func (s *server) listSweeps(r *http.Request, _ auth.Identity) (any, error) {
	q := r.URL.Query()
	f := store.SweepFilter{UserNames: q["user"], Accounts: q["account"], EndedSince: s.Now(), Limit: maxSweeps}
	recent, err := queryInt(q, "recent_s", 0, 10*365*86400)
	if err != nil {
		return nil, err
	}
	f.EndedSince = f.EndedSince.Add(-time.Duration(recent) * time.Second)
	limit, err := queryInt(q, "limit", maxSweeps, maxSweeps)
	if err != nil {
		return nil, err
	}
	f.Limit = int(limit)
	for _, text := range q["id"] {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("%q is not the number of a sweep", text)}
		}
		f.IDs = append(f.IDs, id)
	}
	if len(f.IDs) > 0 {
		f.EndedSince = time.Time{}
	}
	views, err := s.Store.SweepViews(r.Context(), f)
	if err != nil {
		return nil, err
	}
	out := []api.SweepSummary{}
	for _, v := range slices.Backward(views) { // oldest first
		sum := s.summaryOf(v)
		if states := q["state"]; len(states) == 0 || slices.Contains(states, sum.State) {
			out = append(out, sum)
		}
	}
	return out, nil
}

func queryInt(q url.Values, key string, fallback, limit int64) (int64, error) {
	text := q.Get(key)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("%s: %q is not a count", key, text)}
	}
	return min(n, limit), nil
}

func (s *server) summary(r *http.Request, _ auth.Identity) (any, error) {
	id, err := pathID(r, "sweep")
	if err != nil {
		return nil, err
	}
	v, err := s.Store.SweepView(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return s.summaryOf(v), nil
}

// summaryOf is a sweep's line of the queue.
func (s *server) summaryOf(v store.SweepView) api.SweepSummary {
	sum := api.SweepSummary{
		ID: v.ID, Name: v.Name, User: v.UserName, Account: v.Account, Site: v.Site, Priority: v.Priority,
		SubmittedAt: v.SubmittedAt, BeginAt: v.BeginAt, Dependency: v.Dependency, EndedAt: v.EndedAt, GPUHours: v.GPUHours,
		SettingsTotal: v.NSettings, SettingsFinal: v.SettingsFinal, SettingsComplete: v.SettingsComplete,
		RunsTotal: v.NRuns, Runs: countsOf(v.RunsByState), State: string(v.State),
	}
	now := s.Now()
	if v.DependencyState == store.DependencyNever {
		sum.Reason = waits(v, sum.State, now)
	}
	if v.State == store.SweepActive {
		pending := v.RunsByState[lifecycle.RunPending]
		open := sum.RunsOpen()
		switch {
		case open == 0: // what is left is to sum it up
			sum.State = "completing"
		case open > pending:
			sum.State = "running"
		case pending > 0 && v.RunsHeld == pending:
			sum.State = "held"
		case pending < v.NRuns:
			sum.State = "running"
		default:
			sum.State = "pending"
		}
		sum.ETA = eta(v, open, now)
		sum.Reason = waits(v, sum.State, now)
	}
	if end := cmp.Or(v.EndedAt, sum.ETA); end != nil {
		// A sweep that was cancelled before it might begin took no time.
		took := max(0, end.Sub(begin(v)).Seconds())
		sum.MakespanS = &took
	}
	return sum
}

// begin is from when on a sweep might run.
func begin(v store.SweepView) time.Time {
	if v.BeginAt != nil && v.BeginAt.After(v.SubmittedAt) {
		return *v.BeginAt
	}
	return v.SubmittedAt
}

// waits says in words why nothing of a sweep starts; "" where something may.
func waits(v store.SweepView, state string, now time.Time) string {
	switch {
	case v.DependencyState == store.DependencyWaiting:
		return cmp.Or(v.DependencyReason, "waits for "+v.Dependency)
	case v.DependencyState == store.DependencyNever:
		return "the dependency can never be satisfied: " + v.DependencyReason
	case state == "held":
		return "held: sbench release lets it go"
	case v.BeginAt != nil && now.Before(*v.BeginAt):
		return "waits for its --begin"
	}
	return ""
}

// eta carries the sweep's pace so far on; nil until a run has ended.
func eta(v store.SweepView, open int, now time.Time) *time.Time {
	start := begin(v)
	ended := v.NRuns - open
	if ended <= 0 || open == 0 || !now.After(start) {
		return nil
	}
	t := now.Add(time.Duration(float64(now.Sub(start)) / float64(ended) * float64(open))).Truncate(time.Second)
	return &t
}

func countsOf(m map[lifecycle.RunState]int) map[string]int {
	out := map[string]int{}
	for state, n := range m {
		out[string(state)] = n
	}
	return out
}

func (s *server) showSweep(r *http.Request, who auth.Identity) (any, error) {
	id, err := pathID(r, "sweep")
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	v, err := s.Store.SweepView(ctx, id)
	if err != nil {
		return nil, err
	}
	out := api.Sweep{SweepSummary: s.summaryOf(v), HardwareClass: v.HardwareClass, Transitions: []api.Transition{}, RunList: []api.Run{}, Mail: []api.Mail{}}
	may, err := s.mayAct(ctx, who, v.UserName, v.Site, v.Account)
	if err != nil {
		return nil, err
	}
	if may {
		text, err := s.Store.SweepText(ctx, id)
		if err != nil {
			return nil, err
		}
		out.File, out.Options = &text.File, text.Options
		mails, err := s.Store.MailsOfSweep(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, m := range mails {
			out.Mail = append(out.Mail, api.Mail{Event: m.Event, To: m.To, At: m.At, State: m.State, Tries: m.Tries, Error: m.LastError})
		}
	}
	if out.Settings, err = s.settingsOf(r, id); err != nil {
		return nil, err
	}
	locality, err := s.Store.LocalityOf(ctx, id)
	if err != nil {
		return nil, err
	}
	out.Locality = api.Locality{TaskStarts: locality.Starts, WarmTaskStarts: locality.Warm}
	if r.URL.Query().Get("runs") == "" {
		return out, nil
	}
	runs, err := s.Store.RunsOfSweep(ctx, id, nil)
	if err != nil {
		return nil, err
	}
	if out.RunList, err = s.runsOf(r, runs, true); err != nil {
		return nil, err
	}
	history, err := s.Store.SweepHistory(ctx, id)
	if err != nil {
		return nil, err
	}
	out.Transitions = transitionsOf(history)
	return out, nil
}

func (s *server) settingsOf(r *http.Request, sweep int64) ([]api.SettingSummary, error) {
	views, err := s.Store.SettingViews(r.Context(), sweep)
	if err != nil {
		return nil, err
	}
	reasons, err := s.reasonsOf(r, sweep)
	if err != nil {
		return nil, err
	}
	carried, err := s.Store.CarriedViews(r.Context(), sweep, []string{})
	if err != nil {
		return nil, err
	}
	out := make([]api.SettingSummary, len(views))
	for i, v := range views {
		out[i] = api.SettingSummary{
			SettingHash: v.SettingHash, Axes: api.Axes(&v.Setting), NValid: v.NValid, NTotal: v.Repeats, IsFinal: v.Settled,
			Reasons: nonNil(reasons[v.SettingHash]), Runs: countsOf(v.RunsByState), Adaptive: adaptiveOf(v),
		}
		if c, ok := carried[v.SettingHash]; ok && !c.Canary {
			out[i].NValid, out[i].NTotal, out[i].CarriedFrom = c.NValid, c.NTotal, carriedFrom(c)
		}
	}
	return out, nil
}

// adaptiveOf is nil where the number of runs is fixed.
func adaptiveOf(v store.SettingView) *api.Adaptive {
	if v.RepeatsMax == 0 {
		return nil
	}
	return &api.Adaptive{NMax: v.RepeatsMax, State: string(v.Adding), Decided: v.StopReason}
}

func carriedFrom(c store.CarriedView) *api.CarriedFrom {
	return &api.CarriedFrom{SweepID: c.FromSweep, MeasuredAt: c.MeasuredAt}
}

// reasonsOf returns per setting why runs are missing, most frequent first.
func (s *server) reasonsOf(r *http.Request, sweep int64) (map[string][]string, error) {
	rows, err := s.Store.SettingReasons(r.Context(), sweep)
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, row := range rows {
		out[row.SettingHash] = append(out[row.SettingHash], row.Reason)
	}
	return out, nil
}

func (s *server) sweepRuns(r *http.Request, _ auth.Identity) (any, error) {
	id, err := pathID(r, "sweep")
	if err != nil {
		return nil, err
	}
	if _, err := s.Store.Sweep(r.Context(), id); err != nil {
		return nil, err
	}
	runs, err := s.Store.RunsOfSweep(r.Context(), id, r.URL.Query()["state"])
	if err != nil {
		return nil, err
	}
	return s.runsOf(r, runs, false)
}

// runsOf turns rows into the API's runs, with the place of each in Slurm and,
// where asked for, the attempts.
func (s *server) runsOf(r *http.Request, rows []store.Run, attempts bool) ([]api.Run, error) {
	ids := make([]int64, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	places, err := s.Store.Places(r.Context(), ids...)
	if err != nil {
		return nil, err
	}
	at := map[int64]store.Place{}
	for _, p := range places {
		at[p.RunID] = p
	}
	made := map[int64][]api.Attempt{}
	if attempts {
		views, err := s.Store.AttemptViews(r.Context(), ids...)
		if err != nil {
			return nil, err
		}
		for _, v := range views {
			made[v.RunID] = append(made[v.RunID], attemptOf(v))
		}
	}
	out := make([]api.Run, len(rows))
	for i, row := range rows {
		out[i] = api.Run{
			ID: row.ID, SweepID: row.SweepID, SettingHash: row.SettingHash, Repeat: row.Repeat, State: string(row.State), Reason: row.Reason,
			User: row.UserName, Site: row.Site, BatchToken: row.BatchToken, TaskIndex: row.TaskIndex, UpdatedAt: row.ChangedAt, Held: row.Held,
			Attempts: nonNil(made[row.ID]), Transitions: []api.Transition{}, RefusalReasons: []string{},
		}
		if p, ok := at[row.ID]; ok {
			out[i].SlurmJobID = jobID(p.ArrayJobID, p.JobIDRaw, p.TaskIndex)
			if out[i].Reason == "" && p.Waits != "" {
				out[i].Reason = "waits in Slurm: " + p.Waits
			}
		}
		if n := len(out[i].Attempts); n > 0 {
			if last := out[i].Attempts[n-1]; last.Valid == nil || !*last.Valid {
				out[i].RefusalReasons = nonNil(last.Reasons)
			}
		}
	}
	return out, nil
}

// jobID is how Slurm's commands name a task: 123_4, or 127 where it is in no array.
func jobID(array, raw *int64, task int) *string {
	var text string
	switch {
	case array != nil:
		text = fmt.Sprintf("%d_%d", *array, task)
	case raw != nil:
		text = strconv.FormatInt(*raw, 10)
	default:
		return nil
	}
	return &text
}

func attemptOf(v store.AttemptView) api.Attempt {
	class := string(v.ExitClass)
	checks := v.Checks
	if checks == nil {
		checks = json.RawMessage("[]")
	}
	return api.Attempt{
		ID: v.ID, SlurmJobID: *jobID(v.ArrayJobID, &v.JobIDRaw, v.TaskIndex), Cluster: v.Cluster, JobIDRaw: v.JobIDRaw,
		RestartCount: v.RestartCount, SlurmState: v.SlurmState, Nodes: nonNil(v.Nodes), ExitClass: &class, Valid: &v.Valid, Sealed: v.Sealed,
		Reasons: nonNil(v.Reasons), Findings: nonNil(v.Findings), StartedAt: v.StartedAt, EndedAt: v.EndedAt, Checks: checks, Directory: v.Dir,
	}
}

func transitionsOf(rows []store.Transition) []api.Transition {
	out := make([]api.Transition, len(rows))
	for i, t := range rows {
		out[i] = api.Transition{
			Entity: string(t.Entity), EntityID: t.EntityID, From: t.FromState, To: t.ToState, At: t.At, Actor: string(t.Actor),
			Reason: t.Reason, Evidence: t.Evidence,
		}
	}
	return out
}

func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (s *server) showRun(r *http.Request, _ auth.Identity) (any, error) {
	id, err := pathID(r, "run")
	if err != nil {
		return nil, err
	}
	row, err := s.Store.Run(r.Context(), id)
	if err != nil {
		return nil, err
	}
	runs, err := s.runsOf(r, []store.Run{row}, true)
	if err != nil {
		return nil, err
	}
	history, err := s.Store.RunHistory(r.Context(), id)
	if err != nil {
		return nil, err
	}
	runs[0].Transitions = transitionsOf(history)
	return runs[0], nil
}

// wholeHash finds the setting that a hash, or the beginning of one, names.
func (s *server) wholeHash(r *http.Request, prefix string) (store.SettingSpec, error) {
	if len(prefix) < 4 || len(prefix) > 64 || strings.Trim(prefix, "0123456789abcdef") != "" {
		return store.SettingSpec{}, &api.Problem{
			Code: api.CodeInvalid, Message: fmt.Sprintf("%q is not a setting's hash", prefix), Hint: "give at least its first 4 hex digits",
		}
	}
	found, err := s.Store.SettingSpecs(r.Context(), prefix)
	switch {
	case err != nil:
		return store.SettingSpec{}, err
	case len(found) == 0:
		return store.SettingSpec{}, &api.Problem{Code: api.CodeNotFound, Message: "no setting has a hash that begins with " + prefix}
	case len(found) > 1:
		return store.SettingSpec{}, &api.Problem{
			Code: api.CodeInvalid, Message: "several settings' hashes begin with " + prefix, Hint: "give more digits",
			Reasons: []string{found[0].SettingHash, found[1].SettingHash},
		}
	}
	return found[0], nil
}

func (s *server) showSetting(r *http.Request, _ auth.Identity) (any, error) {
	spec, err := s.wholeHash(r, r.PathValue("hash"))
	if err != nil {
		return nil, err
	}
	rows, err := s.Store.RunsOfSetting(r.Context(), spec.SettingHash, maxSettingRuns)
	if err != nil {
		return nil, err
	}
	runs, err := s.runsOf(r, rows, true)
	if err != nil {
		return nil, err
	}
	decisions, err := s.Store.DecisionsOfSetting(r.Context(), spec.SettingHash, maxSettingRuns)
	if err != nil {
		return nil, err
	}
	results, err := s.Store.ResultViews(r.Context(), spec.SettingHash, maxSettingRuns)
	if err != nil {
		return nil, err
	}
	return api.Setting{
		Results: settingResults(results), Decisions: decisionsOf(decisions), SettingHash: spec.SettingHash, SeriesHash: spec.SeriesHash, Axes: api.Axes(&spec.Setting), CanonicalSpec: spec.CanonicalSpec,
		Sweeps: nonNil(spec.Sweeps), Runs: runs,
	}, nil
}

func settingResults(list []store.ResultView) []api.SettingResult {
	out := make([]api.SettingResult, len(list))
	for i, v := range list {
		out[i] = api.SettingResult{
			SweepID: v.SweepID, Version: v.Version, NValid: v.NValid, NTotal: v.NTotal, IsFinal: v.IsFinal, NNodes: v.NNodes, Mixed: v.Mixed,
			Reproducibility: v.Reproducibility, Verdicts: nonNil(v.Verdicts), Findings: nonNil(v.Findings), Warnings: nonNil(v.Warnings),
			CreatedAt: v.CreatedAt,
		}
	}
	return out
}

func decisionsOf(list []store.DecisionView) []api.RepeatDecision {
	out := make([]api.RepeatDecision, len(list))
	for i, d := range list {
		out[i] = api.RepeatDecision{
			SweepID: d.SweepID, Ordinal: d.Ordinal, NPlanned: d.NPlanned, NValid: d.NValid, Added: d.Added, Outcome: string(d.Outcome),
			Reason: d.Reason, Metrics: d.Metrics, DecidedAt: d.DecidedAt,
		}
	}
	return out
}

func (s *server) results(r *http.Request, _ auth.Identity) (any, error) {
	id, err := pathID(r, "sweep")
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	v, err := s.Store.SweepView(ctx, id)
	if err != nil {
		return nil, err
	}
	settings, err := s.Store.SettingViews(ctx, id)
	if err != nil {
		return nil, err
	}
	wanted := r.URL.Query()["metric"] // nil: all
	aggregates, err := s.Store.AggregateViews(ctx, id, wanted)
	if err != nil {
		return nil, err
	}
	reasons, err := s.reasonsOf(r, id)
	if err != nil {
		return nil, err
	}
	latest := map[string]store.AggregateView{}
	for _, a := range aggregates {
		latest[a.SettingHash] = a
	}
	// What is not settled is shown as far as it goes.
	partial, err := s.Store.PartialViews(ctx, id, wanted)
	if err != nil {
		return nil, err
	}
	maps.Copy(latest, partial)
	carried, err := s.Store.CarriedViews(ctx, id, wanted)
	if err != nil {
		return nil, err
	}
	admitted, err := s.Store.Sweep(ctx, id)
	if err != nil {
		return nil, err
	}
	out := api.Results{
		SweepID: id, Name: v.Name, Complete: v.State == store.SweepComplete, Quality: admitted.Quality, QualityHash: admitted.Quality.Hash(),
		Settings: make([]api.Result, len(settings)),
	}
	for i, st := range settings {
		a, measured := latest[st.SettingHash]
		row := api.Result{
			SettingHash: st.SettingHash, SeriesHash: st.SeriesHash, HardwareClass: cmp.Or(a.HardwareClass, v.HardwareClass), Axes: api.Axes(&st.Setting),
			NValid: a.NValid, NTotal: st.Repeats, IsFinal: measured && a.IsFinal && st.Settled,
			Adaptive: adaptiveOf(st), NNodes: a.NNodes, Mixed: a.Mixed, Reproducibility: a.Reproducibility, Verdicts: nonNil(a.Verdicts),
			Findings: nonNil(a.Findings), Reasons: nonNil(reasons[st.SettingHash]), Warnings: nonNil(a.Warnings), Metrics: map[string]api.Metric{},
		}
		if c, ok := carried[st.SettingHash]; ok && !c.Canary {
			measured, a.Metrics = true, c.Metrics
			row.NValid, row.NTotal, row.IsFinal, row.CarriedFrom = c.NValid, c.NTotal, true, carriedFrom(c)
			row.Findings, row.Warnings = nonNil(c.Findings), nonNil(c.Warnings)
			row.NNodes, row.Reproducibility, row.Verdicts, row.Adaptive = c.NNodes, c.Reproducibility, nonNil(c.Verdicts), nil
		}
		if measured {
			if err := json.Unmarshal(a.Metrics, &row.Metrics); err != nil {
				return nil, fmt.Errorf("metrics of setting %s: %w", st.SettingHash, err)
			}
			if admitted.Quality == nil {
				// An older result may have scores, of something that this sweep did not ask.
				maps.DeleteFunc(row.Metrics, func(name string, _ api.Metric) bool { return metrics.IsQuality(name) })
			}
		}
		out.Settings[i] = row
	}
	return out, nil
}

func (s *server) listDead(r *http.Request, _ auth.Identity) (any, error) {
	var sweep int64
	if text := r.URL.Query().Get("sweep"); text != "" {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id <= 0 {
			return nil, &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("%q is not the number of a sweep", text)}
		}
		sweep = id
	}
	rows, err := s.Store.DeadRuns(r.Context(), sweep, maxDead)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	attempts, err := s.Store.AttemptViews(r.Context(), ids...)
	if err != nil {
		return nil, err
	}
	tried := map[int64]int{}
	for _, a := range attempts {
		tried[a.RunID]++
	}
	out := make([]api.DeadRun, len(rows))
	for i, row := range rows {
		out[i] = api.DeadRun{
			RunID: row.ID, SweepID: row.SweepID, SettingHash: row.SettingHash, Repeat: row.Repeat, User: row.UserName, Reason: row.Reason,
			Attempts: tried[row.ID], DeadSince: row.ChangedAt,
		}
	}
	return out, nil
}
