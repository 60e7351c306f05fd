//go:build year

package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"sbench/internal/aggregate"
	"sbench/internal/store"
)

// warm prints the median of further runs of a query that ran before, and the best.
func (y *year) warm(name, target string, query func(ctx context.Context, round int) (rows int, err error)) {
	y.Helper()
	const before, rounds = 3, 15
	var took []time.Duration
	for i := range before + rounds {
		start := time.Now()
		rows, err := query(context.Background(), i)
		if err != nil || rows == 0 {
			y.Fatalf("%s: %d rows, %v", name, rows, err)
		}
		if i >= before {
			took = append(took, time.Since(start))
		}
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	fmt.Printf("year_%s_ms %.1f %s\n", name, ms(took[rounds/2]), target)
	fmt.Printf("year_%s_best_ms %.1f -\n", name, ms(took[0]))
}

// queries are the product's own: what sbench results, compare and the judgement of a
// night read.
func (y *year) queries() {
	last := y.sweep + int64(y.nights) - 1
	y.warm("latest_of_sweep", "<=200", func(ctx context.Context, _ int) (int, error) {
		list, err := y.store.AggregateViews(ctx, last, aggregate.Headline())
		return len(list), err
	})
	// All nights of a series, as the screen reads them.
	y.warm("history_of_setting", "<=200", func(ctx context.Context, round int) (int, error) {
		nights, err := y.store.Nights(ctx, y.series[round%3:round%3+1], "lab", "emulated", time.Unix(0, 0), time.Now().AddDate(2, 0, 0))
		if err == nil && len(nights) != y.nights {
			err = fmt.Errorf("%d nights of %d", len(nights), y.nights)
		}
		return len(nights), err
	})
	// Two settings side by side, with the runs that their latest summaries are of.
	y.warm("compare", "<=200", func(ctx context.Context, round int) (int, error) {
		var list []store.Latest
		for _, hash := range []string{y.hashes[round%3], y.hashes[1000+round%3]} {
			one, err := y.store.LatestOfSettings(ctx, hash, "")
			if err != nil {
				return 0, err
			}
			list = append(list, one...)
		}
		measured, err := y.store.Measured(ctx, store.Attempts(list))
		if err == nil && (len(list) != 2 || len(measured) != 2*benchRepeats) {
			err = fmt.Errorf("%d settings, %d runs", len(list), len(measured))
		}
		return len(measured), err
	})
	// What compare --where reads before it looks at the conditions: every setting.
	y.warm("latest_of_all_settings", "-", func(ctx context.Context, _ int) (int, error) {
		list, err := y.store.LatestOfSettings(ctx, "", "lab")
		return len(list), err
	})
	y.warm("report_history", "<=200", func(ctx context.Context, round int) (n int, err error) {
		err = y.store.Pool().QueryRow(ctx, "select count(*) from report.history where series_hash = $1", y.series[round%3]).Scan(&n)
		return n, err
	})
	y.warm("report_latest_results", "<=200", func(ctx context.Context, round int) (n int, err error) {
		err = y.store.Pool().QueryRow(ctx, "select count(*) from report.latest_results where setting_hash = any($1)", y.hashes[round%3:round%3+10]).Scan(&n)
		return n, err
	})
	// Everything else that sbench results reads with it, the settings and the runs of
	// the sweep above all.
	y.warm("results_command", "-", func(ctx context.Context, _ int) (int, error) {
		settings, err := y.store.SettingViews(ctx, last)
		_, err1 := y.store.SettingReasons(ctx, last)
		_, err2 := y.store.AggregateViews(ctx, last, aggregate.Headline())
		_, err3 := y.store.PartialViews(ctx, last, aggregate.Headline())
		_, err4 := y.store.CarriedViews(ctx, last, aggregate.Headline())
		return len(settings), errors.Join(err, err1, err2, err3, err4)
	})
}

// ingest stores attempts of new settings beside the year: its indexes must not be
// in the way.
func (y *year) ingest() {
	const attempts = 2048
	seed := rand.Uint64()
	n := nightly()
	n.Settings = n.Settings[:attempts/benchRepeats+1]
	for i := range n.Settings {
		s := &n.Settings[i]
		s.Setting.Model.Name = fmt.Sprintf("model-%d-%d", seed, i)
		s.Hash, s.SeriesHash, s.CanonicalSpec = s.Setting.Hash(), s.Setting.SeriesHash(), s.Setting.Canonical()
	}
	_, runs := create(y, y.store, n)
	submit(y, y.store, batchToken, runs)
	took, err := y.ingestRuns(runs[:attempts])
	if err != nil {
		y.Fatal(err)
	}
	fmt.Printf("year_ingest_attempts_per_s %.0f >=100\n", attempts/took.Seconds())
}
