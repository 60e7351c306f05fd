package store

import (
	"context"
	"fmt"
	"time"
)

const sqlServed = `
select c.checkpoint from unnest($2::text[]) as c (checkpoint)
  join checkpoint_served s on s.site = $1 and s.checkpoint = c.checkpoint`

// A task in a batch that is not over will start its checkpoint, or has done so.
const sqlStarting = `
select o.checkpoint, count(*)::int as tasks
  from (select distinct t.token, t.task_index, ss.checkpoint
          from batch b join task t using (token)
          join run r on r.batch_token = t.token and r.task_index = t.task_index
          join sweep_setting ss on ss.sweep_id = r.sweep_id and ss.setting_hash = r.setting_hash
         where b.site = $1 and b.state in ('intent', 'held', 'released') and t.state <> 'ended' and ss.checkpoint = any($2)) o
 group by o.checkpoint`

// ColdStarts returns those of the checkpoints (plan.Checkpoint) that no engine
// has served at the site yet, with how many of its open tasks will start each.
func (s *Store) ColdStarts(ctx context.Context, site string, checkpoints []string) (map[string]int, error) {
	type served struct{ Checkpoint string }
	warm, err := collect[served](ctx, s.pool, "served checkpoints", sqlServed, site, checkpoints)
	if err != nil {
		return nil, err
	}
	cold := map[string]int{}
	for _, c := range checkpoints {
		cold[c] = 0
	}
	for _, w := range warm {
		delete(cold, w.Checkpoint)
	}
	if len(cold) == 0 {
		return cold, nil
	}
	var names []string
	for c := range cold {
		names = append(names, c)
	}
	type starting struct {
		Checkpoint string
		Tasks      int
	}
	open, err := collect[starting](ctx, s.pool, "starting checkpoints", sqlStarting, site, names)
	for _, o := range open {
		cold[o.Checkpoint] = o.Tasks
	}
	return cold, err
}

// Locality is how often a task found its checkpoint on the node: what the node
// had run for sbench right before, in another job, was of the same checkpoint.
type Locality struct {
	Site   string
	Starts int // starts of tasks that load a checkpoint
	Warm   int
}

const (
	taskStarts = `
with starts as (
     select distinct on (a.cluster, a.job_id_raw, a.restart_count)
            a.site, a.cluster, a.job_id_raw, a.restart_count, a.started_at, a.nodes[1] as node, ss.checkpoint
       from attempt a join run r on r.id = a.run_id
       join sweep_setting ss on ss.sweep_id = r.sweep_id and ss.setting_hash = r.setting_hash
      where a.started_at is not null and a.nodes[1] is not null and `
	beforeThem = `
      order by a.cluster, a.job_id_raw, a.restart_count, a.started_at)
select s.site, count(*)::int as starts, count(*) filter (where b.checkpoint = s.checkpoint)::int as warm
  from starts s
  left join lateral (
       select ss.checkpoint
         from attempt p join run r on r.id = p.run_id
         join sweep_setting ss on ss.sweep_id = r.sweep_id and ss.setting_hash = r.setting_hash
        where p.site = s.site and p.nodes[1] = s.node and p.started_at < s.started_at
          and (p.cluster, p.job_id_raw, p.restart_count) <> (s.cluster, s.job_id_raw, s.restart_count)
        order by p.started_at desc limit 1) b on true
 where s.checkpoint is not null and s.started_at >= $2
 group by s.site order by s.site`
	// A task that began before the period is none of its starts: the runs of a day
	// earlier tell.
	sqlLocalitySince = taskStarts + `a.started_at >= $1::timestamptz` + beforeThem
	sqlLocalityOf    = taskStarts + `r.sweep_id = $1` + beforeThem
)

// LocalitySince returns the locality of the tasks that started since, by site.
func (s *Store) LocalitySince(ctx context.Context, since time.Time) ([]Locality, error) {
	return collect[Locality](ctx, s.pool, "locality", sqlLocalitySince, since.Add(-24*time.Hour), since)
}

// LocalityOf returns the locality of a sweep's tasks. A task whose runs are not
// sealed yet is not in it.
func (s *Store) LocalityOf(ctx context.Context, sweep int64) (Locality, error) {
	list, err := collect[Locality](ctx, s.pool, "locality", sqlLocalityOf, sweep, time.Time{})
	if err != nil || len(list) == 0 {
		return Locality{}, err
	}
	if len(list) > 1 {
		return Locality{}, fmt.Errorf("sweep %d has tasks of %d sites", sweep, len(list))
	}
	return list[0], nil
}
