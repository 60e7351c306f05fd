-- +goose Up

-- A night without an outlier has null for the list of them, which has no elements to
-- be listed: the whole view failed.
create or replace view report.nights as
select n.sweep_id, s.name as sweep_name, s.user_name, s.site, s.hardware_class, s.submitted_at, s.ended_at, n.state, n.judged_at, n.n_series, n.n_candidates,
       (select count(*) from judgement j where j.sweep_id = n.sweep_id and j.confirmed) as n_confirmed,
       (select count(*) from judgement j where j.sweep_id = n.sweep_id and j.published) as n_regressions,
       array(select distinct e ->> 'node' from jsonb_array_elements(nullif(n.report -> 'nodes', 'null')) e order by 1) as outlier_nodes, n.reason
  from night n join sweep s on s.id = n.sweep_id;
