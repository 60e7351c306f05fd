// Package collect takes what the nodes sealed into the database and sums it up.
// It promises that a sealed attempt is counted once, however often, late or in
// whatever order it is seen; it refuses, and reports, every folder that its
// manifest does not vouch for: torn, oversized, of a foreign owner, or not of the
// run, batch and cluster that it claims.
package collect

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sbench/internal/seal"
	"sbench/internal/store"
)

// Options are the collector's limits and intervals.
type Options struct {
	// Interval is the pause between looks at the runs in flight.
	Interval time.Duration
	// LateEvery is the pause between looks at runs that ended within LateWindow:
	// shared file systems show files late.
	LateEvery, LateWindow time.Duration
	// Workers verify and decode attempts side by side.
	Workers int
	// Batch is how many attempts go into one transaction, and Writers how many
	// transactions are under way while the next attempts are verified.
	Batch, Writers int
	// Limits bound what is accepted of one attempt; UID is set by the collector.
	Limits seal.Limits
	// DecodeBytes bounds each file that is read into memory.
	DecodeBytes int64
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Settle is how many settings are summed up in one go.
	Settle int
	// Failpoint is called between the steps of a tick that has something to do;
	// nil does nothing. Tests end the process there.
	Failpoint func(name string)
}

// The failpoints, in the order of a tick.
const (
	FailFound    = "collect-1-found"    // sealed folders are found, nothing is verified
	FailVerified = "collect-2-verified" // they are verified, nothing is stored
	FailStored   = "collect-3-stored"   // they are stored, nothing is summed up
	FailSettled  = "collect-4-settled"  // settings are summed up
)

// DefaultOptions are used where the daemon says nothing else.
func DefaultOptions() Options {
	return Options{
		Interval: 2 * time.Second, LateEvery: time.Minute, LateWindow: 24 * time.Hour,
		Workers: max(2, runtime.NumCPU()), Batch: 256, Writers: 2, Limits: seal.DefaultLimits(), DecodeBytes: 512 << 20, Settle: 256,
	}
}

// Collector is the service. It must not be used by two goroutines at once.
type Collector struct {
	store   *store.Store
	log     *slog.Logger
	options Options
	now     func() time.Time

	mu      sync.Mutex         // of refused, while chunks are stored side by side
	refused map[string]refusal // by folder: when to look again
	names   map[string]listing // of attempts folders
	lateAt  time.Time
	looked  atomic.Pointer[time.Time]

	// Runs in flight are read again when a run has changed, and now and then.
	active   []store.Candidate
	activeAt changes
	settled  changes // when everything that had ended was summed up
}

// New returns a collector that writes through s, which is fenced where two
// daemons may act.
func New(s *store.Store, log *slog.Logger, options Options) *Collector {
	now := options.Now
	if now == nil {
		now = time.Now
	}
	if options.Failpoint == nil {
		options.Failpoint = func(string) {}
	}
	return &Collector{
		store: s, log: log, options: options, now: now,
		refused: map[string]refusal{}, names: map[string]listing{},
	}
}

// recheck is how long an answer is kept although no run seems to have changed:
// a transaction may become visible after one with a later number.
const recheck = 30 * time.Second

// changes tells whether runs have changed since then.
type changes struct {
	transition, attempt int64
	expires             time.Time
}

// Run collects until ctx ends, whose error it returns, or store.ErrFenced where another
// daemon acts.
func (c *Collector) Run(ctx context.Context) error {
	turn := func(ctx context.Context) error {
		report, err := c.Tick(ctx)
		if report.Ingested > 0 || report.Settled > 0 {
			c.log.InfoContext(ctx, "collected", "attempts", report.Ingested, "refused", report.Refused, "settings", report.Settled)
		}
		return err
	}
	// What is sealed stays sealed.
	return store.UntilFenced(ctx, c.options.Interval, nil, turn, func(err error) {
		c.log.ErrorContext(ctx, "collection is incomplete", "error", err)
	})
}

// Report is what one tick did.
type Report struct {
	Ingested int // attempts that were new
	Refused  int // folders that were refused, for the first time or again
	Settled  int // settings that were summed up
}

// Tick looks once for sealed attempts, ingests them, and sums up the settings
// whose runs have all ended. A folder that cannot be read holds up no other.
func (c *Collector) Tick(ctx context.Context) (Report, error) {
	var report Report
	begun := c.now()
	missed, err := c.ingest(ctx, &report)
	if err != nil {
		return report, errors.Join(missed, err)
	}
	if missed == nil {
		c.looked.Store(&begun)
	}
	err = c.settle(ctx, &report)
	if report.Settled > 0 {
		c.options.Failpoint(FailSettled)
	}
	return report, errors.Join(missed, err)
}

// Looked is when the last complete look at the runs in flight began; the zero
// time where there was none. It may be called from any goroutine.
func (c *Collector) Looked() time.Time {
	if at := c.looked.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// changed calls look where a run has changed since last, and notes that it did.
func (c *Collector) changed(ctx context.Context, last *changes, look func() error) error {
	transition, attempt, err := c.store.Progress(ctx)
	if err != nil {
		return err
	}
	now := c.now()
	if transition == last.transition && attempt == last.attempt && now.Before(last.expires) {
		return nil
	}
	if err := look(); err != nil {
		return err
	}
	// The numbers from before the look: what came after it shows the next time.
	*last = changes{transition, attempt, now.Add(recheck)}
	return nil
}

// ingest returns also why it could not look everywhere.
func (c *Collector) ingest(ctx context.Context, report *Report) (missed, err error) {
	err = c.changed(ctx, &c.activeAt, func() (err error) {
		c.active, err = c.store.ActiveCandidates(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	candidates := c.active
	if now := c.now(); !now.Before(c.lateAt) {
		late, err := c.store.LateCandidates(ctx, now.Add(-c.options.LateWindow))
		if err != nil {
			return nil, err
		}
		candidates = slices.Concat(candidates, late)
		c.lateAt = now.Add(c.options.LateEvery)
	}
	folders, missed := c.find(candidates)
	return missed, c.ingestAll(ctx, folders, report)
}

// ingestAll verifies the folders chunk by chunk, and stores a chunk while the
// next ones are verified. Memory holds a few chunks, however many there are.
func (c *Collector) ingestAll(ctx context.Context, folders []folder, report *Report) error {
	var mu sync.Mutex // of report
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(max(1, c.options.Writers))
	for chunk := range slices.Chunk(folders, c.options.Batch) {
		c.options.Failpoint(FailFound)
		verdicts := c.verifyAll(within, chunk)
		if within.Err() != nil {
			break
		}
		group.Go(func() error {
			done, err := c.storeChunk(within, chunk, verdicts)
			mu.Lock()
			defer mu.Unlock()
			report.Ingested += done.Ingested
			report.Refused += done.Refused
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// storeChunk stores the good ones of a chunk in one transaction; where the
// database refuses them together, one by one, so that one bad attempt does not
// hold up the others.
func (c *Collector) storeChunk(ctx context.Context, folders []folder, verdicts []verdict) (Report, error) {
	var report Report
	var good []store.Sealed
	var of []folder
	for i, v := range verdicts {
		if v.err != nil {
			if err := c.refuse(ctx, folders[i], v.err); err != nil {
				return report, err
			}
			report.Refused++
			continue
		}
		good, of = append(good, v.sealed), append(of, folders[i])
	}
	if len(good) == 0 {
		return report, nil
	}
	c.options.Failpoint(FailVerified)
	added, err := c.take(ctx, good, of)
	report.Ingested += added
	if err == nil || ctx.Err() != nil || errors.Is(err, store.ErrFenced) || len(good) == 1 && !refusedByDatabase(err) {
		return report, err
	}
	for i := range good {
		added, err := c.take(ctx, good[i:i+1], of[i:i+1])
		report.Ingested += added
		switch {
		case err == nil:
		case !refusedByDatabase(err):
			return report, err
		default:
			if err := c.refuse(ctx, of[i], fault{kindUnreadable, err}); err != nil {
				return report, err
			}
			report.Refused++
		}
	}
	return report, nil
}

func (c *Collector) take(ctx context.Context, sealed []store.Sealed, of []folder) (int, error) {
	judged, added, err := c.store.Ingest(ctx, sealed)
	if err != nil {
		return 0, err
	}
	c.options.Failpoint(FailStored)
	c.mu.Lock()
	for _, f := range of {
		delete(c.refused, f.dir)
	}
	c.mu.Unlock()
	for _, j := range judged {
		if j.From != j.To {
			c.log.Info("run", "run", j.RunID, "from", string(j.From), "to", string(j.To), "reason", j.Verdict.Reason)
		}
	}
	return added, nil
}
