-- +goose Up

-- blamed are the nodes of a gang that were not as pinned: null is not said, which
-- blames the first node; empty is none, as where Slurm's placement was at fault.
alter table attempt add column blamed text[];

create or replace view current_attempt as
select a.* from attempt a
where a.sealed or not exists (
    select from attempt s
    where s.run_id = a.run_id and s.cluster = a.cluster and s.job_id_raw = a.job_id_raw
      and s.restart_count = a.restart_count and s.sealed);
