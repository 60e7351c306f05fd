package collect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"sbench/internal/aggregate"
	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/reuse"
	"sbench/internal/seal"
	"sbench/internal/store"
)

// settle sums up the settings whose runs have all ended.
func (c *Collector) settle(ctx context.Context, report *Report) error {
	return c.changed(ctx, &c.settled, func() error {
		for {
			keys, err := c.store.Unsettled(ctx, c.options.Settle)
			if err != nil {
				return err
			}
			settled, err := c.settleAll(ctx, keys)
			report.Settled += settled
			if err != nil || settled == 0 || len(keys) < c.options.Settle {
				return err
			}
		}
	})
}

// settleAll sums up settings side by side and returns how many it did.
func (c *Collector) settleAll(ctx context.Context, keys []store.SettingKey) (int, error) {
	var settled atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(c.options.Workers)
	for _, key := range keys {
		group.Go(func() error {
			done, err := c.settleOne(ctx, key)
			if errors.Is(err, store.ErrStale) {
				return nil // something came in between: it shows again
			}
			if err != nil {
				return err
			}
			settled.Add(1)
			if done.Sweep != "" {
				c.log.Info("sweep ended", "sweep", key.SweepID, "state", string(done.Sweep))
			}
			return nil
		})
	}
	err := group.Wait()
	return int(settled.Load()), err
}

func (c *Collector) settleOne(ctx context.Context, key store.SettingKey) (store.Settled, error) {
	valid, err := c.store.Results(ctx, key)
	if err != nil {
		return store.Settled{}, err
	}
	total, err := c.store.Repeats(ctx, key)
	if err != nil {
		return store.Settled{}, err
	}
	in := aggregate.Input{NTotal: total, Terminal: true, Merge: func(attempts []int64) (aggregate.Merged, error) {
		return c.merge(ctx, valid, attempts)
	}}
	for i := range valid {
		in.Runs = append(in.Runs, valid[i].Run())
	}
	sum, err := aggregate.Compute(in)
	if err != nil {
		return store.Settled{}, err
	}
	reopen, err := c.doubts(ctx, key, sum)
	if err != nil {
		return store.Settled{}, err
	}
	return c.store.Settle(ctx, key, sum, valid, reopen...)
}

// canaryMetrics are held against what is carried.
func canaryMetrics() []string {
	return []string{"output_tokens_per_s", "ttft_p50", "tpot_p50", "e2e_p50"}
}

// doubts says whether the canaries of a setting's stratum, this one included,
// contradict the results that are carried there.
func (c *Collector) doubts(ctx context.Context, key store.SettingKey, sum aggregate.Summary) ([]store.Reopen, error) {
	stratum, canaries, err := c.store.Canaries(ctx, key)
	if err != nil || stratum == "" {
		return nil, err
	}
	for _, name := range canaryMetrics() {
		var pairs []reuse.Pair
		for _, k := range canaries {
			after := k.After
			if k.SettingHash == key.SettingHash {
				after = sum.Metrics
			}
			if after != nil {
				pairs = append(pairs, reuse.Pair{Before: sample(k.Before[name]), After: sample(after[name])})
			}
		}
		if d := reuse.Deviates(pairs, len(canaryMetrics())); d.Found {
			reason := fmt.Sprintf("not carried: %s of %d canaries is %+.1f %% from the carried results (p = %.2g)", name, d.Canaries, 100*(d.Ratio-1), d.P)
			c.log.Warn("canaries contradict carried results", "sweep", key.SweepID, "stratum", stratum, "metric", name,
				"canaries", d.Canaries, "ratio", d.Ratio, "p", d.P)
			return []store.Reopen{{Stratum: stratum, Reason: reason}}, nil
		}
	}
	return nil, nil
}

// sample is nothing where the mean or the spread is not known.
func sample(m aggregate.Metric) reuse.Sample {
	if m.Mean == nil || m.StdDev == nil {
		return reuse.Sample{}
	}
	return reuse.Sample{N: m.N, Mean: *m.Mean, StdDev: *m.StdDev}
}

// merge reads the requests of attempts again. Where one's are not there any
// more, or not what was ingested, there are no merged percentiles, and the
// summary says why.
func (c *Collector) merge(ctx context.Context, valid []store.ValidResult, attempts []int64) (aggregate.Merged, error) {
	windows, err := c.store.Windows(ctx, attempts)
	if err != nil {
		return aggregate.Merged{}, err
	}
	none := func(format string, args ...any) (aggregate.Merged, error) {
		return aggregate.Merged{NullReasons: map[string]string{"": fmt.Sprintf(format, args...)}}, nil
	}
	parts := make([]metrics.Part, 0, len(attempts))
	for i := range valid {
		v := &valid[i]
		if !slices.Contains(attempts, v.AttemptID) {
			continue
		}
		w := windows[v.AttemptID]
		if len(w) != 1 {
			return none("an attempt with %d load points has no percentile of all of them", len(w))
		}
		requests, err := c.requests(v)
		if err != nil {
			c.log.Warn("read requests", "attempt", v.AttemptID, "dir", v.Dir, "error", err)
			return none("the requests of attempt %d cannot be read", v.AttemptID)
		}
		parts = append(parts, metrics.Part{Rows: requests, Start: w[0].Start, End: w[0].End})
	}
	merged, reasons := metrics.MergePercentiles(parts)
	return aggregate.Merged{Metrics: merged, NullReasons: reasons}, nil
}

// requests reads the request rows of an ingested attempt.
func (c *Collector) requests(v *store.ValidResult) ([]result.Request, error) {
	limits := c.options.Limits
	limits.UID = &v.UID
	s, err := seal.Open(v.Dir, limits)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if !slices.Equal(s.Manifest.Files, v.Files) {
		return nil, fmt.Errorf("attempt %s is not the one that was ingested: %w", v.Dir, seal.ErrTorn)
	}
	for _, f := range v.Files {
		if f.Name == result.RequestsFile && f.Size > c.options.DecodeBytes {
			return nil, fmt.Errorf("%s has %d bytes, more than the limit %d", f.Name, f.Size, c.options.DecodeBytes)
		}
	}
	content, err := s.Read(result.RequestsFile)
	if err != nil {
		return nil, err
	}
	return resultfile.DecodeRequestTimes(content)
}
