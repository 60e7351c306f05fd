package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"sbench/internal/compare"
	"sbench/internal/fingerprint"
	"sbench/internal/regress"
	"sbench/internal/store"
)

// history is a night with what came before it.
type history struct {
	sweep     store.Sweep
	rows      []store.NightRow // of all series: scheduled and synthetic nights, oldest first within each
	series    []regress.Series // those that were measured tonight
	left      map[string]int   // series that cannot be screened, by why
	reference string           // the site's reference series; "" for none
}

// history reads the nights of every series of a sweep. Nights that no schedule
// submitted are none of its history: somebody tried something.
func (s *Service) history(ctx context.Context, id int64) (*history, error) {
	sweep, err := s.Store.Sweep(ctx, id)
	if err != nil {
		return nil, err
	}
	views, err := s.Store.SettingViews(ctx, id)
	if err != nil {
		return nil, err
	}
	reference, _, err := s.reference(ctx, sweep)
	if err != nil {
		return nil, err
	}
	h := &history{sweep: sweep, left: map[string]int{}, reference: reference.SeriesHash}
	stratum, settings := map[string]string{}, map[string]int{}
	var hashes []string
	for i := range views {
		v := &views[i]
		if settings[v.SeriesHash]++; settings[v.SeriesHash] == 1 {
			hashes = append(hashes, v.SeriesHash)
			stratum[v.SeriesHash] = regress.StratumOf(&v.Setting)
		}
	}
	end := sweep.SubmittedAt
	if sweep.EndedAt != nil {
		end = *sweep.EndedAt
	}
	rows, err := s.Store.Nights(ctx, hashes, sweep.Site, sweep.HardwareClass, sweep.SubmittedAt.Add(-historyAge), end)
	if err != nil {
		return nil, err
	}
	h.rows = slices.DeleteFunc(rows, func(n store.NightRow) bool { return !n.Synthetic && !n.Scheduled })
	steps, err := s.Store.Steps(ctx, hashes, sweep.SubmittedAt)
	if err != nil {
		return nil, err
	}
	bySeries := map[string][]store.NightRow{}
	for _, n := range h.rows {
		bySeries[n.SeriesHash] = append(bySeries[n.SeriesHash], n)
	}
	for _, hash := range hashes {
		nights := bySeries[hash]
		switch {
		case settings[hash] > 1:
			h.left["several settings of one series"]++
		case len(nights) == 0 || nights[len(nights)-1].SweepID != id:
			h.left["no valid result tonight"]++
		default:
			h.series = append(h.series, seriesOf(hash, stratum[hash], nights, steps[hash]))
		}
	}
	return h, nil
}

// seriesOf makes a series of its nights; step is when its latest regression was
// published, the zero time for never.
func seriesOf(hash, stratum string, nights []store.NightRow, step time.Time) regress.Series {
	out := regress.Series{Hash: hash, Stratum: stratum}
	for i, n := range nights {
		if !step.IsZero() && out.Segment == 0 && !n.Night.Before(step) {
			out.Segment = i
		}
		out.Nights = append(out.Nights, n.Judged())
	}
	return out
}

// nodes are the outliers among the nodes tonight, by how far off they are. Each
// metric that gates is looked at.
func (h *history) nodes() []regress.NodeEffect {
	type key struct {
		sweep int64
		night int64 // of a synthetic one
	}
	when, of := map[key]time.Time{}, map[key]map[string]regress.Night{}
	for _, n := range h.rows {
		k := key{sweep: n.SweepID}
		if n.Synthetic {
			k.night = n.Night.Unix() / 3600
		}
		if of[k] == nil {
			of[k], when[k] = map[string]regress.Night{}, n.Night
		}
		if n.Night.Before(when[k]) {
			when[k] = n.Night
		}
		of[k][n.SeriesHash] = n.Judged()
	}
	order := make([]key, 0, len(of))
	for k := range of {
		order = append(order, k)
	}
	slices.SortFunc(order, func(a, b key) int { return cmp.Or(when[a].Compare(when[b]), cmp.Compare(a.sweep, b.sweep)) })
	out := []regress.NodeEffect{}
	if len(order) == 0 || order[len(order)-1].sweep != h.sweep.ID {
		return out // nothing of tonight
	}
	for _, metric := range compare.Gating() {
		var nights [][]regress.NodeValue
		for i, k := range order {
			nights = append(nights, regress.Residuals(int64(i), metric, of[k]))
		}
		for _, e := range regress.Outliers(nights) {
			e.Metric = metric
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b regress.NodeEffect) int { return cmp.Compare(b.Effect, a.Effect) })
	return out
}

// references hold the nodes against their own history of the reference setting,
// where tonight has it.
func (h *history) references() []regress.Reference {
	out := []regress.Reference{}
	i := slices.IndexFunc(h.series, func(s regress.Series) bool { return s.Hash == h.reference })
	if i < 0 {
		return out
	}
	for _, metric := range compare.Gating() {
		out = append(out, regress.ReferenceDrift(h.series[i].Nights, metric)...)
	}
	return out
}

// environments lists, for the candidates of which nothing pinned changed, how
// tonight's environments differ from those before.
func (s *Service) environments(ctx context.Context, h *history, candidates []regress.Candidate) ([]regress.Unlike, error) {
	out := []regress.Unlike{}
	var hashes []string
	for _, c := range candidates {
		if c.Before == c.Tonight {
			hashes = append(hashes, c.Series)
		}
	}
	if len(hashes) == 0 {
		return out, nil
	}
	list, err := s.Store.Environments(ctx, hashes, h.sweep.ID, h.sweep.Site, h.sweep.SubmittedAt.Add(-historyAge))
	if err != nil {
		return nil, err
	}
	before, tonight := map[string][]map[string]string{}, map[string][]map[string]string{}
	for _, e := range list {
		var f fingerprint.Fingerprint
		if err := json.Unmarshal(e.Fingerprint, &f); err != nil {
			return nil, fmt.Errorf("read a fingerprint of sweep %d: %w", e.SweepID, err)
		}
		if e.Tonight {
			tonight[e.SeriesHash] = append(tonight[e.SeriesHash], f.Facts())
		} else {
			before[e.SeriesHash] = append(before[e.SeriesHash], f.Facts())
		}
	}
	for _, hash := range hashes {
		if lines := regress.Differences(before[hash], tonight[hash]); len(lines) > 0 {
			out = append(out, regress.Unlike{Series: hash, Lines: lines})
		}
	}
	return out, nil
}
