-- +goose Up

-- report is for readers with SQL: a view per question, and nothing to write. Give a
-- role usage of the schema and select on its views; it needs no right on the tables.
-- docs/sql.md has the questions.
create schema report;

-- What is the latest result of each setting? One row per setting and site, with
-- every axis as a column.
create view report.latest_results as
select l.* from setting c
 cross join (select distinct site as at_site from sweep) s
 cross join lateral (
       select a.* from aggregate a
        where a.setting_hash = c.setting_hash and a.site = s.at_site and a.n_valid > 0
        order by a.created_at desc, a.id desc limit 1) l;

-- What did a series measure, night by night? Of a run that was measured more than
-- once the first valid result counts; what is labelled is no measurement of speed,
-- and what confirms a suspicion no night.
create view report.history as
select r.series_hash, r.site, r.sweep_id, s.name as sweep_name, r.setting_hash, r.hardware_class, min(r.started_at) as started_at,
       count(*) as n_valid, exp(avg(ln(nullif(r.output_tokens_per_s, 0)))) as output_tokens_per_s, exp(avg(ln(nullif(r.ttft_p95, 0)))) as ttft_p95_s,
       exists (select from cron_firing f where f.sweep_id = r.sweep_id) as scheduled, false as synthetic
  from (select distinct on (series_hash, run_id) * from result where valid and findings = '{}'
         order by series_hash, run_id, ended_at, attempt_id) r
  join sweep s on s.id = r.sweep_id
 where not exists (select from confirmation c where c.sweep_id = r.sweep_id)
 group by r.series_hash, r.site, r.sweep_id, s.name, r.setting_hash, r.hardware_class
union all
select n.series_hash, n.site, null, n.label, n.setting_hash, n.hardware_class, n.night, cardinality(n.output_tokens_per_s),
       (select exp(avg(ln(v))) from unnest(n.output_tokens_per_s) v), (select exp(avg(ln(v))) from unnest(n.ttft_p95) v), false, true
  from synthetic_night n;

-- What got slower? The published regressions, with what they are of.
create view report.regressions as
select j.judged_at, j.sweep_id, s.name as sweep_name, s.user_name, s.site, s.hardware_class, j.series_hash, j.setting_hash, j.stratum,
       ss.setting #>> '{model,name}' as model, ss.setting #>> '{hardware,gpu}' as gpu, ss.setting #>> '{engine,kind}' as engine,
       j.metric, j.ratio - 1 as worse_by, j.p, j.p_adjusted, j.reason, j.confirmed_by
  from judgement j
  join sweep s on s.id = j.sweep_id
  join sweep_setting ss on ss.sweep_id = j.sweep_id and ss.setting_hash = j.setting_hash
 where j.published;

-- How were the nights judged, and which nodes were off?
create view report.nights as
select n.sweep_id, s.name as sweep_name, s.user_name, s.site, s.hardware_class, s.submitted_at, s.ended_at, n.state, n.judged_at, n.n_series, n.n_candidates,
       (select count(*) from judgement j where j.sweep_id = n.sweep_id and j.confirmed) as n_confirmed,
       (select count(*) from judgement j where j.sweep_id = n.sweep_id and j.published) as n_regressions,
       array(select distinct e ->> 'node' from jsonb_array_elements(n.report -> 'nodes') e order by 1) as outlier_nodes, n.reason
  from night n join sweep s on s.id = n.sweep_id;

-- Which results are missing? Settings of ended sweeps with fewer valid runs than
-- were asked for, and why the runs are missing.
create view report.incomplete_settings as
select s.id as sweep_id, s.name as sweep_name, s.user_name, s.site, s.ended_at, ss.setting_hash, ss.n_valid, ss.repeats as n_total,
       array(select distinct r.state || ': ' || r.reason from run r
              where r.sweep_id = s.id and r.setting_hash = ss.setting_hash and r.state not in ('complete', 'skipped') order by 1) as reasons
  from sweep s join sweep_setting ss on ss.sweep_id = s.id
 where s.state <> 'active' and ss.n_valid < ss.repeats;

-- Which nodes refuse or lose runs? Attempts by node and day.
create view report.node_attempts as
select a.site, n.node, date_trunc('day', a.recorded_at) as day, count(*) as attempts, count(*) filter (where a.valid) as valid,
       count(*) filter (where a.exit_class in ('drift_node', 'drift_artefact')) as refused,
       count(*) filter (where a.exit_class in ('lost', 'engine_died')) as lost_or_died
  from current_attempt a cross join lateral unnest(a.nodes) n (node)
 group by a.site, n.node, date_trunc('day', a.recorded_at);

-- What did the sweeps ask for, and what became of them?
create view report.sweeps as
select s.id as sweep_id, s.name, s.user_name, s.account, s.site, s.hardware_class, s.state, s.submitted_at, s.ended_at, s.n_settings, s.n_runs,
       s.gpu_hours as gpu_hours_forecast, c.of_sweep as confirms_sweep
  from sweep s left join confirmation c on c.sweep_id = s.id;
