package submit

import (
	"cmp"
	"context"
	"maps"
	"math"
	"time"

	"sbench/internal/plan"
	"sbench/internal/site"
	"sbench/internal/store"
)

// shareHalfLife is how fast it is forgotten what an account was given.
const shareHalfLife = 24 * time.Hour

// share is whose work goes first into the room that there is.
func (s *Service) share(ctx context.Context, r *room, pending store.Pending, runs []plan.Run) (*plan.Feed, error) {
	usage, err := s.Store.Usage(ctx, s.Site.Name, shareHalfLife)
	if err != nil {
		return nil, err
	}
	f := &plan.Feed{
		Room: r.site, Hardware: maps.Clone(r.hardware), Depth: func(hw string) int { return min(r.queue, s.Site.QueueLimit(hw)) },
		Owners: map[int64]plan.Owner{}, TierWeight: map[string]int{}, TierUsed: map[string]float64{}, AccountUsed: map[string]float64{},
	}
	for tier, p := range s.Site.Priorities {
		f.TierWeight[tier] = p.Weight
	}
	for _, u := range usage {
		f.TierUsed[u.Priority] += u.GPUSeconds
		f.AccountUsed[u.Account] += u.GPUSeconds
	}
	for id, sweep := range pending.Sweeps {
		o := options(sweep)
		f.Owners[id] = plan.Owner{Tier: cmp.Or(o.Priority, "normal"), Account: cmp.Or(o.Account, sweep.UserName)}
	}
	f.AccountWeight = weigh(s.Site.FairShare, s.shares(ctx), f.Owners)
	f.Cold, err = s.cold(ctx, runs)
	return f, err
}

// shares are the accounts' shares by Slurm, where the site goes by them; nil
// where all are the same.
func (s *Service) shares(ctx context.Context) map[string]float64 {
	if s.Site.FairShare.Source != site.SharesSlurm {
		return nil
	}
	shares, err := s.limits.sharesOf(ctx, s.Cluster)
	if err != nil {
		s.Log.WarnContext(ctx, "Slurm's shares cannot be read: accounts are fed by the last ones known, or alike", "error", err)
	}
	return shares
}

// weigh says what the owners' accounts weigh. One that Slurm has no share of, such
// as a user without account, weighs as much as the others do on average.
func weigh(fair site.FairShare, shares map[string]float64, owners map[int64]plan.Owner) map[string]int {
	// A weight is a whole number: a share of a millionth still counts.
	const scale = 1e6
	mean := 1.0
	if len(shares) > 0 {
		sum := 0.0
		for _, v := range shares {
			sum += v
		}
		mean = sum / float64(len(shares)) * scale
	}
	weights := map[string]int{}
	for _, o := range owners {
		weight := mean
		if v, known := shares[o.Account]; known {
			weight = v * scale
		}
		weights[o.Account] = max(1, int(math.Round(weight))) * max(1, fair.Weights[o.Account])
	}
	return weights
}

// cold says of each checkpoint that no engine has served here how many more tasks
// may start it now. What is new may be broken, and has to come from afar: one
// task finds out, and brings it nearer, before a hundred nodes do the same.
func (s *Service) cold(ctx context.Context, runs []plan.Run) (map[string]int, error) {
	most := s.Site.Limits.ColdStarts
	if most == 0 {
		return nil, nil
	}
	ask := map[string]bool{}
	for _, r := range runs {
		if !s.served[r.Checkpoint] && plan.LoadsFiles(r.Checkpoint) {
			ask[r.Checkpoint] = true
		}
	}
	if len(ask) == 0 {
		return nil, nil
	}
	var names []string
	for c := range ask {
		names = append(names, c)
	}
	starting, err := s.Store.ColdStarts(ctx, s.Site.Name, names)
	if err != nil {
		return nil, err
	}
	cold := map[string]int{}
	for c := range ask {
		open, isCold := starting[c]
		if !isCold {
			s.served[c] = true // for good
			continue
		}
		cold[c] = max(0, most-open)
	}
	return cold, nil
}
