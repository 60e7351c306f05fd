package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sbench/internal/aggregate"
	"sbench/internal/compare"
	"sbench/internal/regress"
	"sbench/internal/stats"
	"sbench/internal/store"
)

// within are the candidates that one night runs again: the least probable first, up
// to maxRuns.
func within(all []regress.Candidate) []regress.Candidate {
	list := slices.Clone(all)
	slices.SortStableFunc(list, func(a, b regress.Candidate) int {
		return cmp.Or(cmp.Compare(a.P, b.P), cmp.Compare(a.Series, b.Series))
	})
	runs := 0
	for i, c := range list {
		sides := 1
		if c.Before != c.Tonight {
			sides = 2
		}
		if runs += sides * c.Runs; runs > maxRuns {
			return list[:i]
		}
	}
	return list
}

// conclude judges a night whose runs again have ended.
func (s *Service) conclude(ctx context.Context, n store.Night) error {
	again, err := s.Store.Sweep(ctx, *n.ConfirmedBy)
	if err != nil {
		return err
	}
	if again.State == store.SweepActive {
		return s.giveUpNodes(ctx, again)
	}
	h, err := s.history(ctx, n.SweepID)
	if err != nil {
		return err
	}
	var report regress.Report
	if err := json.Unmarshal(n.Report, &report); err != nil {
		return fmt.Errorf("read the screen: %w", err)
	}
	fresh, err := s.fresh(ctx, again.ID)
	if err != nil {
		return err
	}
	shift, err := s.referenceShift(ctx, h.sweep, fresh)
	if err != nil {
		return err
	}
	spread, err := s.Store.SpreadOf(ctx, again.ID)
	if err != nil {
		return err
	}
	run := within(report.Candidates)
	for _, c := range run {
		i := slices.IndexFunc(h.series, func(s regress.Series) bool { return s.Hash == c.Series })
		if i < 0 {
			report.NotRun = append(report.NotRun, regress.Unconfirmed{Series: c.Series, Reason: "its result of the night is not valid any more"})
			continue
		}
		nights := h.series[i].Nights
		nights = nights[h.series[i].Segment:max(h.series[i].Segment, len(nights)-max(1, c.Since))]
		confirmation := regress.Confirm(c, regress.Fresh{
			Now: fresh[c.Tonight], Before: fresh[c.Before], Nights: nights, Reference: shift[c.Metric], NotSpread: spread[c.Tonight].Reason,
		})
		if nodes := nodesOf(fresh[c.Tonight]); len(nodes) > 0 {
			confirmation.Reason += " on " + strings.Join(nodes, ", ")
		}
		report.Confirmations = append(report.Confirmations, confirmation)
	}
	for _, c := range report.Candidates {
		if !slices.ContainsFunc(run, func(r regress.Candidate) bool { return r.Series == c.Series }) {
			report.NotRun = append(report.NotRun, regress.Unconfirmed{Series: c.Series, Reason: fmt.Sprintf("more than %d runs again in one night", maxRuns)})
		}
	}
	report.Alerts = regress.Publish(report.Confirmations)
	s.Failpoint("night-concluded")
	return s.finish(ctx, h.sweep, n, report, report.Confirmations)
}

// giveUpNodes cancels the runs again that have waited too long for the node that
// they are for: one that is down must not keep the night from being judged by the
// others.
func (s *Service) giveUpNodes(ctx context.Context, again store.Sweep) error {
	if s.Now().Sub(again.SubmittedAt) < nodePatience {
		return nil
	}
	waiting, err := s.Store.WaitingForNodes(ctx, again.ID)
	if err != nil || len(waiting) == 0 {
		return err
	}
	var runs []int64
	seen := map[string]bool{}
	for _, r := range waiting {
		runs, seen[r.Node] = append(runs, r.ID), true
	}
	nodes := strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
	s.Log.WarnContext(ctx, "nodes did not take the runs again of a night", "sweep", again.ID, "nodes", nodes, "runs", len(runs))
	_, err = s.Store.Cancel(ctx, store.Scope{Runs: runs}, "sbench", fmt.Sprintf("%s did not take it within %v", nodes, nodePatience))
	return err
}

// finish stores the judgement. What was not run again is on the record as well.
func (s *Service) finish(ctx context.Context, sweep store.Sweep, n store.Night, report regress.Report, list []regress.Confirmation) error {
	confirmed := int64(0)
	if n.ConfirmedBy != nil {
		confirmed = *n.ConfirmedBy
	}
	var rows []store.NewJudgement
	for _, c := range list {
		rows = append(rows, store.NewJudgement{
			SweepID: sweep.ID, ConfirmedBy: confirmed, SeriesHash: c.Series, SettingHash: c.Tonight, Stratum: c.Stratum, Metric: c.Metric,
			Estimate: c.Estimate, Ratio: c.Ratio, P: c.ConfirmP, PAdjusted: c.PAdjusted, Confirmed: c.Confirmed, Published: c.Published,
			Reason: c.Reason, By: "sbench",
		})
	}
	for _, c := range report.Candidates {
		if slices.ContainsFunc(rows, func(j store.NewJudgement) bool { return j.SeriesHash == c.Series }) {
			continue
		}
		reason := n.Reason
		if i := slices.IndexFunc(report.NotRun, func(u regress.Unconfirmed) bool { return u.Series == c.Series }); i >= 0 {
			reason = report.NotRun[i].Reason
		}
		rows = append(rows, store.NewJudgement{
			SweepID: sweep.ID, ConfirmedBy: confirmed, SeriesHash: c.Series, SettingHash: c.Tonight, Stratum: c.Stratum, Metric: c.Metric,
			Estimate: c.Estimate, Reason: cmp.Or(reason, "not run again"), By: "sbench",
		})
	}
	text, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	n.Report = text
	done, err := s.Store.FinishNight(ctx, n, rows)
	if err != nil || !done {
		return err
	}
	s.Log.InfoContext(ctx, "night judged", "sweep", sweep.ID, "candidates", len(report.Candidates), "run_again", len(list), "alerts", len(report.Alerts))
	for _, a := range report.Alerts {
		s.Log.WarnContext(ctx, "regression", "sweep", sweep.ID, "user", sweep.UserName, "stratum", a.Stratum, "series", a.Series, "text", a.Text)
	}
	return nil
}

// fresh are the clean results of the runs again, by setting.
func (s *Service) fresh(ctx context.Context, sweep int64) (map[string]compare.Row, error) {
	list, err := s.Store.LatestOfSweep(ctx, sweep)
	if err != nil {
		return nil, err
	}
	measured, err := s.Store.Measured(ctx, store.Attempts(list))
	if err != nil {
		return nil, err
	}
	out := map[string]compare.Row{}
	for i := range list {
		l := &list[i]
		row := compare.Row{SweepID: l.SweepID, SettingHash: l.SettingHash, SeriesHash: l.SeriesHash, HardwareClass: l.HardwareClass}
		var runs []aggregate.Run
		for _, id := range l.Attempts {
			// A labelled run is a finding about the engine, no speed of it.
			if m, ok := measured[id]; ok && len(m.Findings) == 0 {
				runs = append(runs, aggregate.Run{AttemptID: id, Fingerprint: m.FingerprintHash})
			}
		}
		for _, r := range aggregate.Pooled(runs) {
			m := measured[r.AttemptID]
			row.Runs = append(row.Runs, compare.Run{AttemptID: m.AttemptID, Repeat: m.Repeat, Nodes: m.Nodes, Fingerprint: m.FingerprintHash, Metrics: m.Metrics})
		}
		out[l.SettingHash] = row
	}
	return out, nil
}

func nodesOf(r compare.Row) []string {
	seen := map[string]bool{}
	for _, run := range r.Runs {
		for _, n := range run.Nodes {
			seen[n] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// referenceShift is how the reference setting's fresh runs differ from its own
// history, as a log ratio by metric; nothing where it was not run or has fewer than
// five nights.
func (s *Service) referenceShift(ctx context.Context, sweep store.Sweep, fresh map[string]compare.Row) (map[string]float64, error) {
	reference, known, err := s.reference(ctx, sweep)
	row, ran := fresh[reference.SettingHash]
	if err != nil || !known || !ran {
		return nil, err
	}
	rows, err := s.Store.Nights(ctx, []string{reference.SeriesHash}, sweep.Site, sweep.HardwareClass, sweep.SubmittedAt.Add(-historyAge), sweep.SubmittedAt)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, metric := range compare.Gating() {
		var means, now []float64
		for _, n := range rows {
			if x := n.Judged().Values[metric]; len(x) > 0 && (n.Scheduled || n.Synthetic) {
				means = append(means, stats.Mean(stats.Logs(x)))
			}
		}
		for _, run := range row.Runs {
			if v := run.Metrics[metric]; v != nil && *v > 0 {
				now = append(now, *v)
			}
		}
		if len(means) >= 5 && len(now) >= 3 {
			out[metric] = stats.Mean(stats.Logs(now)) - stats.Mean(means)
		}
	}
	return out, nil
}
