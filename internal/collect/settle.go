package collect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"sbench/internal/aggregate"
	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/reuse"
	"sbench/internal/seal"
	"sbench/internal/store"
	"sbench/internal/sweep"
)

// settle sums up the settings whose runs have all ended.
func (c *Collector) settle(ctx context.Context, report *Report) error {
	return c.changed(ctx, &c.settled, func() error {
		for {
			list, err := c.store.Unsettled(ctx, c.options.Settle)
			if err != nil {
				return err
			}
			settled, err := c.settleAll(ctx, list)
			report.Settled += settled
			if err != nil || settled == 0 || len(list) < c.options.Settle {
				return err
			}
		}
	})
}

// settleChunk is how many settings are summed up in memory, and stored in one
// transaction.
const settleChunk = 32

// settleAll sums up settings chunk by chunk, and stores a chunk while the next
// one is summed up. It returns how many settings it did.
func (c *Collector) settleAll(ctx context.Context, list []store.Unsettled) (int, error) {
	settled := 0
	group, within := errgroup.WithContext(ctx)
	// One at a time: the canaries of a chunk are held against those before them.
	group.SetLimit(1)
	for chunk := range slices.Chunk(list, settleChunk) {
		sums, err := c.sumAll(within, chunk)
		if within.Err() != nil {
			break
		}
		group.Go(func() error {
			n := 0
			if err == nil {
				n, err = c.storeSums(within, chunk, sums)
			}
			if err != nil && !fatal(within, err) {
				n, err = c.settleEach(within, chunk)
			}
			settled += n
			return err
		})
	}
	err := group.Wait()
	return settled, err
}

// fatal tells what another try would not help from what lies in one setting.
func fatal(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, store.ErrFenced) || store.Unavailable(err)
}

// settleEach sums up settings one by one, so that one that cannot be summed up
// holds up no other.
func (c *Collector) settleEach(ctx context.Context, list []store.Unsettled) (settled int, err error) {
	for i := range list {
		one := list[i : i+1]
		sums, err := c.sumAll(ctx, one)
		n := 0
		if err == nil {
			n, err = c.storeSums(ctx, one, sums)
		}
		settled += n
		switch {
		case err == nil:
		case fatal(ctx, err):
			return settled, err
		default:
			c.log.Error("a setting cannot be summed up", "sweep", one[0].SweepID, "setting", one[0].SettingHash, "error", err)
		}
	}
	return settled, nil
}

// sumAll sums up settings side by side.
func (c *Collector) sumAll(ctx context.Context, list []store.Unsettled) ([]store.Settlement, error) {
	keys := make([]store.SettingKey, len(list))
	for i := range list {
		keys[i] = list[i].SettingKey
	}
	valid, err := c.store.ResultsOf(ctx, keys)
	if err != nil {
		return nil, err
	}
	var attempts []int64
	for _, results := range valid {
		for i := range results {
			attempts = append(attempts, results[i].AttemptID)
		}
	}
	windows, err := c.store.Windows(ctx, attempts)
	if err != nil {
		return nil, err
	}
	sums := make([]store.Settlement, len(list))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(c.options.Workers)
	for i := range list {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			used := valid[keys[i]]
			in := aggregate.Input{NTotal: list[i].Repeats, Terminal: true, Merge: func(attempts []int64) (aggregate.Merged, error) {
				return c.merge(used, windows, attempts), nil
			}}
			for k := range used {
				in.Runs = append(in.Runs, used[k].Run())
			}
			var err error
			s := &sums[i]
			s.Key, s.Used = keys[i], used
			if s.Decision, err = c.decide(ctx, list[i], &in); err != nil || s.Decision != nil && s.Decision.Outcome == aggregate.Open {
				return err // where runs are added there is nothing to sum up yet
			}
			s.Sum, err = aggregate.Compute(in)
			return err
		})
	}
	return sums, group.Wait()
}

// storeSums stores what was summed up and returns how many settings that were.
// What something came in between of is left out: it shows again.
func (c *Collector) storeSums(ctx context.Context, list []store.Unsettled, sums []store.Settlement) (int, error) {
	for i := range list {
		if list[i].Stratum == "" || sums[i].Sum.Metrics == nil {
			continue
		}
		var err error
		if sums[i].Reopen, err = c.doubts(ctx, list[i], sums); err != nil {
			return 0, err
		}
	}
	done, err := c.store.SettleAll(ctx, sums)
	if err != nil {
		return 0, err
	}
	settled := 0
	for i, d := range done {
		if !d.Stale {
			settled++
		}
		if d.Added > 0 {
			c.log.Info("runs added", "sweep", sums[i].Key.SweepID, "setting", sums[i].Key.SettingHash, "runs", d.Added, "reason", sums[i].Decision.Reason)
		}
		if d.Sweep != "" {
			c.log.Info("sweep ended", "sweep", sums[i].Key.SweepID, "state", string(d.Sweep))
		}
	}
	return settled, nil
}

// How far back, and in how many runs, the history of a setting is read.
const (
	historyAge  = 60 * 24 * time.Hour
	historyRuns = 300
)

// decide says whether a setting with an adaptive number of runs gets more, and
// tells the summary how precise it had to be. It returns nil where the number is
// fixed, from the start or by an earlier decision.
func (c *Collector) decide(ctx context.Context, of store.Unsettled, in *aggregate.Input) (*aggregate.Decision, error) {
	if of.Adding == store.AddingNone {
		return nil, nil
	}
	a, err := c.store.Admitted(ctx, of.SettingKey)
	if err != nil {
		return nil, err
	}
	var repeats sweep.Repeats
	if err := json.Unmarshal(a.Policy, &repeats); err != nil {
		return nil, fmt.Errorf("repeat policy: %w", err)
	}
	if repeats.Until == nil {
		return nil, fmt.Errorf("repeat policy %s says nothing about when to stop", a.Policy)
	}
	policy := aggregate.Policy{Min: repeats.Min, Max: a.RepeatsMax, Metrics: repeats.Until.Metrics, Target: repeats.Until.RelativeCI}
	rows, err := c.store.History(ctx, a.SeriesHash, a.Site, a.HardwareClass, a.SubmittedAt.Add(-historyAge), a.SubmittedAt, historyRuns)
	if err != nil {
		return nil, err
	}
	steps, err := c.store.Steps(ctx, []string{a.SeriesHash}, a.SubmittedAt)
	if err != nil {
		return nil, err
	}
	history := aggregate.Histories(nights(rows, steps[a.SeriesHash]), policy.Metrics)
	counts := aggregate.Counts{
		Planned: a.Repeats, Cancelled: a.Cancelled, Dead: a.Dead, Failed: a.Failed, Barred: a.Adding == store.AddingBarred,
	}
	d := aggregate.Decide(policy, counts, in.Runs, history)
	in.Target, in.Gating, in.History, in.HalfWidths = policy.Target, policy.Metrics, history, d.HalfWidths()
	if !a.Adding.Decides() {
		return nil, nil // n_total is fixed: what came late is summed up
	}
	return &d, nil
}

// nights groups what a series measured by sweep, oldest first. A segment of the
// history is of one setting, one realized environment and one side of the last
// confirmed step.
func nights(rows []store.Measured, step time.Time) []aggregate.Night {
	var out []aggregate.Night
	at := map[int64]int{}
	for _, r := range slices.Backward(rows) {
		i, known := at[r.SweepID]
		if !known {
			i = len(out)
			at[r.SweepID] = i
			out = append(out, aggregate.Night{Segment: fmt.Sprintf("%s %v", r.SettingHash, r.StartedAt.Before(step))})
		}
		out[i].Runs = append(out[i].Runs, aggregate.Run{
			AttemptID: r.AttemptID, Repeat: r.Repeat, Nodes: r.Nodes, Fingerprint: r.FingerprintHash, Metrics: r.Metrics,
		})
	}
	for i := range out {
		// Of a night with two environments, the one with more runs.
		out[i].Runs = aggregate.Pooled(out[i].Runs)
		out[i].Segment += " " + out[i].Runs[0].Fingerprint
	}
	return out
}

// canaryMetrics are held against what is carried.
func canaryMetrics() []string {
	return []string{"output_tokens_per_s", "ttft_p50", "tpot_p50", "e2e_p50"}
}

// doubts says whether the canaries of a canary's stratum, also those that sums
// has new results of, contradict the results that are carried there.
func (c *Collector) doubts(ctx context.Context, canary store.Unsettled, sums []store.Settlement) ([]store.Reopen, error) {
	id, stratum := canary.SweepID, canary.Stratum
	canaries, err := c.store.Canaries(ctx, id, stratum)
	if err != nil {
		return nil, err
	}
	for _, name := range canaryMetrics() {
		var pairs []reuse.Pair
		for _, k := range canaries {
			after := k.After
			for i := range sums {
				if sums[i].Sum.Metrics != nil && sums[i].Key == (store.SettingKey{SweepID: id, SettingHash: k.SettingHash}) {
					after = sums[i].Sum.Metrics
				}
			}
			if after != nil {
				pairs = append(pairs, reuse.Pair{Before: sample(k.Before[name]), After: sample(after[name])})
			}
		}
		if d := reuse.Deviates(pairs, len(canaryMetrics())); d.Found {
			reason := fmt.Sprintf("not carried: %s of %d canaries is %+.1f %% from the carried results (p = %.2g)", name, d.Canaries, 100*(d.Ratio-1), d.P)
			c.log.Warn("canaries contradict carried results", "sweep", id, "stratum", stratum, "metric", name,
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
func (c *Collector) merge(valid []store.ValidResult, windows map[int64][]result.Window, attempts []int64) aggregate.Merged {
	none := func(format string, args ...any) aggregate.Merged {
		return aggregate.Merged{NullReasons: map[string]string{"": fmt.Sprintf(format, args...)}}
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
	return aggregate.Merged{Metrics: merged, NullReasons: reasons}
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
