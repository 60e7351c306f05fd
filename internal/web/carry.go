package web

import (
	"context"
	"fmt"
	"time"

	"sbench/internal/api"
	"sbench/internal/result"
	"sbench/internal/reuse"
	"sbench/internal/store"
)

// carry finds the settings that need not run: their latest result is final,
// complete, clean, precise and young enough. A share of them runs all the same.
func (s *server) carry(ctx context.Context, a *admission) error {
	a.plan.Skipped, a.plan.Canaries = []api.PlanSkip{}, []string{}
	policy := a.file.Reuse
	if policy.Off || a.options.Force || a.options.EachNode || a.options.Only != nil {
		return nil
	}
	if !policy.Given {
		policy.MaxAge, policy.Canary = reuse.DefaultMaxAge, reuse.DefaultCanary
	}
	hashes := make([]string, len(a.sweep.Settings))
	for i := range a.sweep.Settings {
		hashes[i] = a.sweep.Settings[i].Hash
	}
	now := s.Now()
	fresh, err := s.Store.FreshResults(ctx, a.site.Name, a.site.HardwareClass, result.MetricsVersion, hashes, now.Add(-policy.MaxAge), a.sweep.Repeats.Min,
		a.quality().Hash())
	if err != nil || len(fresh) == 0 {
		return err
	}
	candidates := make([]reuse.Candidate, len(a.sweep.Settings))
	for i := range a.sweep.Settings {
		x := &a.sweep.Settings[i]
		_, ok := fresh[x.Hash]
		candidates[i] = reuse.Candidate{Hash: x.Hash, Stratum: reuse.StratumOf(&x.Setting), Fresh: ok}
	}
	actions := reuse.Decide(candidates, policy.Canary, now.Unix()/int64(24*time.Hour/time.Second))
	a.carried = make(map[string]store.Carried, len(fresh))
	for _, c := range candidates {
		if !c.Fresh {
			continue
		}
		f := fresh[c.Hash]
		canary := actions[c.Hash] == reuse.Canary
		a.carried[c.Hash] = store.Carried{Aggregate: f.AggregateID, Stratum: c.Stratum, Canary: canary}
		if canary {
			a.plan.Canaries = append(a.plan.Canaries, c.Hash)
			continue
		}
		a.plan.Skipped = append(a.plan.Skipped, api.PlanSkip{
			SettingHash: c.Hash,
			Reason:      fmt.Sprintf("carried from sweep %d of %s: %d valid runs, complete and precise", f.SweepID, f.MeasuredAt.Format(time.DateOnly), f.NValid),
		})
	}
	if n := len(a.plan.Skipped); n > 0 {
		a.resp.Notes = append(a.resp.Notes, fmt.Sprintf(
			"%d of %d settings have a fresh result and are not run again, %d more are run to see whether these still hold; --force runs them all",
			n, len(candidates), len(a.plan.Canaries)))
	}
	return nil
}
