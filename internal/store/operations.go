package store

import (
	"context"
	"time"
)

// Operations are the figures that operators watch: what waits and since when,
// and what became of the work of the last while. Sites without anything are not
// listed.
type Operations struct {
	Runs      []StateCount
	Pending   []PendingCount
	Queue     []QueueCount
	Batches   []BatchCount
	Sweeps    []StateCount
	Makespans []Makespan
	Attempts  []AttemptCount
	Firings   []FiringCount
	Locality  []Locality
}

// PendingCount are the runs of a priority that could be fed now: not held, and of
// sweeps that may begin.
type PendingCount struct {
	Site     string
	Priority string
	N        int64
	Since    time.Time // when the one that waits longest became pending
}

// QueueCount are the tasks in Slurm, or on their way there, of a kind of hardware.
type QueueCount struct {
	Site     string
	Hardware string
	State    string // waiting, running
	N        int64
	Since    time.Time // when the oldest one's batch was made
}

// BatchCount are the batches that are not over.
type BatchCount struct {
	Site  string
	State string // intent, held, released
	N     int64
	Since time.Time // when the oldest one was made
}

// Makespan is how long ended sweeps took, from when they might begin.
type Makespan struct {
	Site    string
	N       int64
	Median  float64 // seconds
	P95     float64 // seconds
	Longest float64 // seconds
}

// AttemptCount are attempts by how they ended.
type AttemptCount struct {
	Site        string
	ExitClass   string
	EnvVerified bool
	N           int64
}

// FiringCount are due times of schedules and what became of them.
type FiringCount struct {
	Site   string
	State  string // waiting, submitted, skipped, refused
	Window string // met, missed, open, none
	N      int64
}

const (
	sqlPendingCounts = `
select s.site, s.priority, count(*) as n, min(greatest(r.changed_at, s.begin_at)) as since
  from run r join sweep s on s.id = r.sweep_id
 where r.state = 'pending' and not r.held and (s.begin_at is null or s.begin_at <= $1)
 group by 1, 2 order by 1, 2`
	sqlQueueCounts = `
select b.site, coalesce(b.shape ->> 'hardware', '') as hardware, t.state, count(*) as n, min(b.created_at) as since
  from batch b join task t using (token)
 where b.state in ('intent', 'held', 'released') and t.state <> 'ended'
 group by 1, 2, 3 order by 1, 2, 3`
	sqlBatchCounts = `
select site, state, count(*) as n, min(created_at) as since from batch where state in ('intent', 'held', 'released')
 group by 1, 2 order by 1, 2`
	sqlSweepCounts = `
select site, state, count(*) as n from sweep where state = 'active' or ended_at >= $1 group by 1, 2 order by 1, 2`
	sqlMakespans = `
select m.site, count(*) as n, percentile_cont(0.5) within group (order by m.s) as median,
       percentile_cont(0.95) within group (order by m.s) as p95, max(m.s) as longest
  from (select site, greatest(0, extract(epoch from ended_at - greatest(submitted_at, begin_at)))::double precision as s
          from sweep where state in ('complete', 'incomplete') and ended_at >= $1) m
 group by 1 order by 1`
	sqlAttemptCounts = `
select site, exit_class, env_verified, count(*) as n from current_attempt where recorded_at >= $1 group by 1, 2, 3 order by 1, 2, 3`
	// A window that is over is missed, whether or not its sweep has ended.
	sqlFiringCounts = `
select c.site, f.state, w.met as window, count(*) as n
  from cron_firing f join cron c on c.id = f.cron_id
  cross join lateral (
       select case when f.window_end is null then 'none'
                   when f.window_met then 'met'
                   when not f.window_met or f.window_end < $2 then 'missed'
                   else 'open' end as met) w
 where f.fire_at >= $1 and f.fire_at <= $2
 group by 1, 2, 3 order by 1, 2, 3`
)

// Operations reads the figures; those of the past are of the time since.
func (s *Store) Operations(ctx context.Context, since time.Time) (Operations, error) {
	var o Operations
	var err error
	now := s.now()
	for _, read := range []func(){
		func() { o.Runs, err = s.RunCounts(ctx) },
		func() { o.Pending, err = collect[PendingCount](ctx, s.pool, "pending counts", sqlPendingCounts, now) },
		func() { o.Queue, err = collect[QueueCount](ctx, s.pool, "queue counts", sqlQueueCounts) },
		func() { o.Batches, err = collect[BatchCount](ctx, s.pool, "batch counts", sqlBatchCounts) },
		func() { o.Sweeps, err = collect[StateCount](ctx, s.pool, "sweep counts", sqlSweepCounts, since) },
		func() { o.Makespans, err = collect[Makespan](ctx, s.pool, "makespans", sqlMakespans, since) },
		func() {
			o.Attempts, err = collect[AttemptCount](ctx, s.pool, "attempt counts", sqlAttemptCounts, since)
		},
		func() {
			o.Firings, err = collect[FiringCount](ctx, s.pool, "firing counts", sqlFiringCounts, since, now)
		},
		func() { o.Locality, err = s.LocalitySince(ctx, since) },
	} {
		if read(); err != nil {
			return Operations{}, err
		}
	}
	return o, nil
}
