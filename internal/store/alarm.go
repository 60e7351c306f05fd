package store

import (
	"context"
	"time"
)

// The kinds of alarm.
const (
	AlarmIncomplete = "incomplete_sweep" // ended with fewer valid runs than were asked for
	AlarmStuck      = "stuck_sweep"      // under way, and nothing happens
	AlarmMissed     = "missed_firing"    // a schedule fired nothing, or not in its window
	AlarmPreflight  = "preflight_rate"   // too many runs are refused before they measure
	AlarmStale      = "stale_settings"   // a schedule's settings without a recent result
	AlarmNight      = "unjudged_night"   // a night that stays unjudged
	AlarmDrift      = "node_drift"       // a node got slower than it was, or than the others two nights running
)

// Alarm is something that nobody would notice by itself.
type Alarm struct {
	Kind    string
	Site    string
	Subject string // sweep 17, schedule nightly of ada, site lab
	Since   time.Time
	Value   float64 // what was found: missing settings, a share, hours
	Bound   float64 // what it is held against
	Detail  string
}

// AlarmLimits say from when on something is an alarm.
type AlarmLimits struct {
	Since    time.Time     // nothing that ended before
	Stuck    time.Duration // without any change of a sweep under way
	Stale    time.Duration // of the latest valid result of a schedule's setting
	PassRate float64       // of runs that pass the pre-flight checks, 0 to 1
	Attempts int           // fewer tell nothing about a rate
}

const (
	sqlIncompleteSweeps = `
select 'incomplete_sweep' as kind, s.site, 'sweep ' || s.id as subject, s.ended_at as since, count(*)::double precision as value, s.n_settings::double precision as bound,
       s.name || ' of ' || s.user_name || ' is ' || s.state || ': ' || count(*) || ' of ' || s.n_settings || ' settings lack valid runs' as detail
  from sweep s join sweep_setting ss on ss.sweep_id = s.id
 where s.ended_at >= $1 and s.state in ('complete', 'incomplete') and ss.n_valid < ss.repeats
   and not exists (select from confirmation c where c.sweep_id = s.id)
 group by s.id order by s.id`
	sqlStuckSweeps = `
select 'stuck_sweep' as kind, s.site, 'sweep ' || s.id as subject, l.changed_at as since, extract(epoch from $1 - l.changed_at)::double precision / 3600 as value,
       $2::double precision as bound, s.name || ' of ' || s.user_name || ': ' || l.n || ' runs are open and nothing has happened' as detail
  from sweep s
 cross join lateral (select max(r.changed_at) as changed_at, count(*) filter (where r.state in ('pending', 'submitted', 'provisioning', 'running') and not r.held) as n
                       from run r where r.sweep_id = s.id) l
 where s.state = 'active' and l.n > 0 and l.changed_at < $1 - make_interval(secs => $2 * 3600) and (s.begin_at is null or s.begin_at < $1 - make_interval(secs => $2 * 3600))
   and not exists (select from site_mode m where m.site = s.site and m.mode <> 'active')
 order by s.id`
	sqlMissedFirings = `
select 'missed_firing' as kind, c.site, 'schedule ' || c.name || ' of ' || c.user_name as subject, f.due as since, 1::double precision as value, 0::double precision as bound,
       case when f.state = 'submitted' then 'sweep ' || f.sweep_id || ' did not end in its window' else f.state || ': ' || f.reason end as detail
  from cron_firing f join cron c on c.id = f.cron_id
 where f.due >= $1 and c.removed_at is null and (f.state in ('skipped', 'refused') or f.window_met = false)
 order by f.due`
	sqlPreflight = `
select 'preflight_rate' as kind, site, 'site ' || site as subject, min(recorded_at) as since, 1 - refused / n as value, $2::double precision as bound,
       refused || ' of ' || n || ' attempts were refused before they measured; most often on ' || coalesce(mode() within group (order by node) filter (where node is not null), 'no node') as detail
  from (select a.site, a.recorded_at, case when a.exit_class in ('drift_artefact', 'drift_node') then a.nodes[1] end as node,
               count(*) over (partition by a.site)::double precision as n,
               (count(*) filter (where a.exit_class in ('drift_artefact', 'drift_node')) over (partition by a.site))::double precision as refused
          from current_attempt a
         where a.recorded_at >= $1 and a.exit_class not in ('lost', 'cancelled')) x
 where n >= $3 and 1 - refused / n < $2
 group by site, n, refused order by site`
	// The settings of the last sweep of each schedule; a result of any sweep counts.
	sqlStaleSettings = `
select 'stale_settings' as kind, c.site, 'schedule ' || c.name || ' of ' || c.user_name as subject, min(l.at) as since, count(*)::double precision as value,
       c.n_settings::double precision as bound, count(*) || ' of ' || c.n_settings || ' settings have no valid result that is recent; ' ||
       count(*) filter (where l.at = c.created_at and not l.found) || ' never had one' as detail
  from cron c
 cross join lateral (select f.sweep_id from cron_firing f where f.cron_id = c.id and f.sweep_id is not null order by f.due desc limit 1) f
  join sweep_setting ss on ss.sweep_id = f.sweep_id
 cross join lateral (select coalesce(max(a.last_ended_at), c.created_at) as at, max(a.last_ended_at) is not null as found
                       from aggregate a where a.setting_hash = ss.setting_hash and a.site = c.site and a.n_valid > 0) l
 where c.removed_at is null and c.paused_at is null and l.at < $1
 group by c.id order by c.id`
	sqlUnjudgedNights = `
select 'unjudged_night' as kind, s.site, 'sweep ' || s.id as subject, n.screened_at as since, n.n_candidates::double precision as value, 0::double precision as bound,
       s.name || ' of ' || s.user_name || ' is ' || n.state || ', ' || n.n_candidates || ' candidates' as detail
  from night n join sweep s on s.id = n.sweep_id
 where n.state <> 'judged' and n.screened_at < $1 order by s.id`
	// By the latest night of each schedule: one in which the node is as it was ends it.
	sqlDriftAlarm = `
select 'node_drift' as kind, l.site, 'node ' || d.node as subject, min(l.submitted_at) as since, max(d.worse) as value, 0.01::double precision as bound,
       string_agg(distinct 'sweep ' || l.sweep_id || ': ' || d.said, '; ') as detail
  from (select distinct on (s.site, s.user_name, s.name) s.site, s.submitted_at, n.sweep_id, n.report
          from night n join sweep s on s.id = n.sweep_id
         where s.submitted_at >= $1 order by s.site, s.user_name, s.name, s.submitted_at desc, s.id desc) l
 cross join lateral (
       select e ->> 'node' as node, (e ->> 'change')::double precision as worse,
              'the reference setting is ' || round(100 * (e ->> 'change')::numeric, 1) || ' % worse than in ' || (e ->> 'nights') || ' nights before, by ' || (e ->> 'metric') as said
         from jsonb_array_elements(nullif(l.report -> 'references', 'null')) e where (e ->> 'drift')::boolean
       union all
       select e ->> 'node', (e ->> 'effect')::double precision, (e ->> 'advice') || ', by ' || (e ->> 'metric')
         from jsonb_array_elements(nullif(l.report -> 'nodes', 'null')) e where (e ->> 'quarantine')::boolean) d
 group by l.site, d.node order by l.site, d.node`
)

// Alarms looks for what nobody would notice by itself, kind by kind.
func (s *Store) Alarms(ctx context.Context, l AlarmLimits) ([]Alarm, error) {
	now := s.now().UTC()
	var all []Alarm
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{sqlIncompleteSweeps, []any{l.Since}},
		{sqlStuckSweeps, []any{now, l.Stuck.Hours()}},
		{sqlMissedFirings, []any{l.Since}},
		{sqlPreflight, []any{l.Since, l.PassRate, l.Attempts}},
		{sqlStaleSettings, []any{now.Add(-l.Stale)}},
		{sqlUnjudgedNights, []any{now.Add(-l.Stuck)}},
		{sqlDriftAlarm, []any{l.Since}},
	} {
		sqlOne := q.sql
		list, err := collect[Alarm](ctx, s.pool, "alarms", sqlOne, q.args...)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}
