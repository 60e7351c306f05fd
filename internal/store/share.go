package store

import (
	"context"
	"time"
)

// Usage is what a tier of an account was given of a site lately.
type Usage struct {
	Priority string
	Account  string // the user's name where the sweeps name no account
	// GPUSeconds held: those of ended allocations count less the older they are,
	// those of tasks in the queue as long as their time limit. Work without GPUs
	// counts as one.
	GPUSeconds float64 `db:"gpu_seconds"`
}

const sqlUsage = `
select s.priority, case when s.account = '' then s.user_name else s.account end as account,
       sum(u.gpu_seconds)::double precision as gpu_seconds
  from (select t.token, greatest(t.gpus, 1) * t.time_limit_s::double precision as gpu_seconds
          from task t join batch b using (token)
         where b.site = $1 and b.state in ('intent', 'held', 'released') and t.state <> 'ended'
        union all
        select al.token, greatest(t.gpus, 1) * al.elapsed_s::double precision
               * exp(-extract(epoch from $3::timestamptz - al.end_time)::double precision * ln(2) / $4::double precision)
          from allocation al join task t using (token, task_index) join batch b using (token)
         where b.site = $1 and al.ended and al.end_time > $2 and al.elapsed_s > 0) u
  join batch b using (token) join sweep s on s.id = (b.shape->>'sweep')::bigint
 group by 1, 2 order by 1, 2`

// Usage sums up what the accounts were given of a site: with halfLife, an hour
// that long ago counts half. Ten half-lives are looked at.
func (s *Store) Usage(ctx context.Context, site string, halfLife time.Duration) ([]Usage, error) {
	now := s.now()
	return collect[Usage](ctx, s.pool, "usage", sqlUsage, site, now.Add(-10*halfLife), now, halfLife.Seconds())
}
