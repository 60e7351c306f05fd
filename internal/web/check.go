package web

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/compare"
	"sbench/internal/regress"
	"sbench/internal/store"
)

var baselineName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// historyDays is how far back a series' own history is read.
const historyDays = 120

// Runs a side of a confirmation.
const (
	minConfirm = 5
	maxConfirm = 20
)

func baselineOf(b store.Baseline) api.Baseline {
	return api.Baseline{Name: b.Name, SweepID: b.SweepID, User: b.UserName, Note: b.Note, CreatedAt: b.CreatedAt}
}

func (s *server) listBaselines(r *http.Request, _ auth.Identity) (any, error) {
	list, err := s.Store.Baselines(r.Context(), "")
	if err != nil {
		return nil, err
	}
	out := make([]api.Baseline, len(list))
	for i, b := range list {
		out[i] = baselineOf(b)
	}
	return out, nil
}

func (s *server) baseline(ctx context.Context, name string) (store.Baseline, error) {
	list, err := s.Store.Baselines(ctx, name)
	if err != nil {
		return store.Baseline{}, err
	}
	if name == "" || len(list) == 0 {
		return store.Baseline{}, &api.Problem{Code: api.CodeNotFound, Message: fmt.Sprintf("no baseline %q", name), Hint: "sbench baseline list shows them"}
	}
	return list[0], nil
}

func (s *server) setBaseline(r *http.Request, who auth.Identity) (any, error) {
	var req api.BaselineRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if !baselineName.MatchString(req.Name) {
		return nil, invalid("%q is no name for a baseline: letters, digits, dot, dash and underscore", req.Name)
	}
	known, err := s.Store.Baselines(r.Context(), req.Name)
	if err != nil {
		return nil, err
	}
	if len(known) > 0 && !who.MayAct(known[0].UserName) {
		return nil, refused(nil, "baseline %s is %s's", req.Name, known[0].UserName)
	}
	summaries, err := s.Store.LatestOfSweep(r.Context(), req.SweepID)
	if err != nil {
		return nil, err
	}
	if _, err := s.Store.Sweep(r.Context(), req.SweepID); err != nil {
		return nil, err
	}
	if len(summaries) == 0 {
		return nil, &api.Problem{
			Code: api.CodeConflict, Message: fmt.Sprintf("sweep %d has no result that is summed up yet", req.SweepID),
			Hint: "set the baseline when the sweep has ended",
		}
	}
	b, err := s.Store.SetBaseline(r.Context(), store.Baseline{Name: req.Name, SweepID: req.SweepID, UserName: who.User, Note: req.Note})
	return baselineOf(b), err
}

func (s *server) removeBaseline(r *http.Request, who auth.Identity) (any, error) {
	b, err := s.baseline(r.Context(), r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	if !who.MayAct(b.UserName) {
		return nil, refused(nil, "baseline %s is %s's", b.Name, b.UserName)
	}
	return baselineOf(b), s.Store.RemoveBaseline(r.Context(), b.Name)
}

func (s *server) check(r *http.Request, _ auth.Identity) (any, error) {
	var req api.CheckRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	return s.report(r, req)
}

// report holds a sweep against a baseline, series by series.
func (s *server) report(r *http.Request, req api.CheckRequest) (api.CheckReport, error) {
	out := api.CheckReport{SweepID: req.SweepID, Threshold: req.Threshold, Counts: map[regress.Outcome]int{}, Series: []regress.SeriesVerdict{}}
	ctx := r.Context()
	if !(req.Threshold > 0 && req.Threshold < 1) {
		return out, invalid("the threshold %g is not between 0 and 1", req.Threshold)
	}
	b, err := s.baseline(ctx, req.Baseline)
	if err != nil {
		return out, err
	}
	out.Baseline = baselineOf(b)
	sweep, err := s.Store.Sweep(ctx, req.SweepID)
	if err != nil {
		return out, err
	}
	out.HardwareClass = sweep.HardwareClass
	if sweep.State == store.SweepActive {
		return out, &api.Problem{Code: api.CodeConflict, Message: fmt.Sprintf("sweep %d has not ended", sweep.ID), Hint: "sbench check waits for it"}
	}
	if req.Confirmation != 0 {
		of, err := s.Store.Confirms(ctx, req.Confirmation)
		if err != nil {
			return out, err
		}
		if of != sweep.ID {
			return out, invalid("sweep %d confirms sweep %d, not %d", req.Confirmation, of, sweep.ID)
		}
		out.Confirmation = &req.Confirmation
	}
	base, err := s.latestRows(r, b.SweepID)
	if err != nil {
		return out, err
	}
	now, err := s.latestRows(r, sweep.ID)
	if err != nil {
		return out, err
	}
	var again []compare.Row
	if req.Confirmation != 0 {
		if again, err = s.latestRows(r, req.Confirmation); err != nil {
			return out, err
		}
	}
	spreads, err := s.spreads(ctx, sweep, base)
	if err != nil {
		return out, err
	}
	for _, v := range verdicts(base, now, again, spreads, req.Threshold) {
		out.Counts[v.Outcome]++
		out.Series = append(out.Series, v)
	}
	return out, nil
}

func (s *server) latestRows(r *http.Request, sweep int64) ([]compare.Row, error) {
	list, err := s.Store.LatestOfSweep(r.Context(), sweep)
	if err != nil {
		return nil, err
	}
	return s.rows(r, list)
}

// spreads reads how much each series varies within and between nights.
func (s *server) spreads(ctx context.Context, sweep store.Sweep, base []compare.Row) (map[string]map[string]regress.Spread, error) {
	var series []string
	for _, row := range base {
		series = append(series, row.SeriesHash)
	}
	// The night in question is not its own history.
	until := sweep.SubmittedAt
	rows, err := s.Store.Nights(ctx, series, sweep.Site, sweep.HardwareClass, until.Add(-historyDays*24*time.Hour), until)
	if err != nil {
		return nil, err
	}
	nights := map[string][]regress.Night{}
	for _, n := range rows {
		nights[n.SeriesHash] = append(nights[n.SeriesHash], n.Judged())
	}
	out := map[string]map[string]regress.Spread{}
	for hash, list := range nights {
		out[hash] = map[string]regress.Spread{}
		for _, metric := range compare.Gating() {
			out[hash][metric] = regress.SpreadOf(list, metric)
		}
	}
	return out, nil
}

// verdicts judges each series of the baseline, and names those that are new. What
// ran again on both sides is judged by that alone; runs again of an unchanged
// setting join its own.
func verdicts(base, now, again []compare.Row, spreads map[string]map[string]regress.Spread, threshold float64) []regress.SeriesVerdict {
	current, fresh := map[string]compare.Row{}, map[string]compare.Row{}
	for _, row := range now {
		current[row.SeriesHash] = row
	}
	for _, row := range again {
		fresh[row.SettingHash] = row
	}
	known := map[string]bool{}
	var out []regress.SeriesVerdict
	for _, b := range base {
		known[b.SeriesHash] = true
		row, measured := current[b.SeriesHash]
		if !measured {
			row = compare.Row{SeriesHash: b.SeriesHash, HardwareClass: b.HardwareClass}
		}
		together := false
		if f, ok := fresh[row.SettingHash]; ok && measured {
			if old, both := fresh[b.SettingHash]; both && b.SettingHash != row.SettingHash {
				b, row, together = old, f, true
			} else if b.SettingHash == row.SettingHash {
				runs := append([]compare.Run{}, row.Runs...)
				for _, run := range f.Runs {
					run.Repeat += len(row.Runs)
					runs = append(runs, run)
				}
				row.Runs = runs
			}
		}
		out = append(out, regress.Gate(b, regress.Side{Row: row, Spread: spreads[b.SeriesHash]}, threshold, together))
	}
	for _, row := range now {
		if !known[row.SeriesHash] {
			out = append(out, regress.SeriesVerdict{
				Series: row.SeriesHash, Setting: row.SettingHash, Outcome: regress.New, Metrics: []regress.MetricVerdict{}, Reason: "not in the baseline",
			})
		}
	}
	return out
}

// confirm submits the undecided series again: the baseline's setting and the
// sweep's, interleaved, within a budget of runs.
func (s *server) confirm(r *http.Request, who auth.Identity) (any, error) {
	var req api.ConfirmRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	sweep, err := s.Store.Sweep(r.Context(), req.SweepID)
	if err != nil {
		return nil, err
	}
	if !who.MayAct(sweep.UserName) {
		return nil, refused(nil, "sweep %d is %s's: its runs again are theirs to pay", sweep.ID, sweep.UserName)
	}
	req.Confirmation = 0
	report, err := s.report(r, req.CheckRequest)
	if err != nil {
		return nil, err
	}
	var list []store.Again
	runs := minConfirm
	for _, v := range report.Series {
		if v.Outcome != regress.Undecided || len(list) >= req.Budget/minConfirm {
			continue
		}
		list = append(list, store.Again{SweepID: sweep.ID, SettingHash: v.Setting})
		if v.Baseline != v.Setting {
			list = append(list, store.Again{SweepID: report.Baseline.SweepID, SettingHash: v.Baseline})
		}
		runs = max(runs, v.RunsNeeded)
	}
	if len(list) == 0 {
		return api.Confirmation{}, nil
	}
	runs = min(runs, maxConfirm, max(minConfirm, req.Budget/len(list)))
	if len(list)*runs > req.Budget {
		return api.Confirmation{}, nil
	}
	for i := range list {
		list[i].Runs = runs
	}
	// The same question asked twice is one confirmation.
	key := fmt.Sprintf("confirm-%d-%d-%g-%d", sweep.ID, report.Baseline.SweepID, req.Threshold, req.Budget)
	id, err := s.again(r.Context(), who, sweep.ID, list, key)
	if err != nil {
		return nil, err
	}
	return api.Confirmation{SweepID: id, Runs: len(list) * runs}, nil
}
