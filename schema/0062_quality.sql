-- +goose Up

-- What is asked of the engine after each measurement of a sweep, and how its
-- answers are scored. It is no part of a setting: the numbers of a measurement are
-- the same with it and without. quality_hash says which scores are scores of the
-- same thing; '' is of none.
alter table sweep
    add column quality jsonb, -- quality.Definition; null: nothing is asked
    add column quality_hash text not null default '',
    add check ((quality is null) = (quality_hash = ''));
-- A database that is made now has the columns of the metrics from 0002.
alter table result
    add column quality_hash text not null default '',
    add column if not exists quality_score double precision,
    add column if not exists quality_stddev double precision,
    add column if not exists quality_items double precision,
    add column if not exists quality_scored double precision,
    add column if not exists quality_failed double precision,
    add column if not exists quality_truncated double precision,
    add column if not exists quality_seconds double precision;

create or replace view report.sweeps as
select s.id as sweep_id, s.name, s.user_name, s.account, s.site, s.hardware_class, s.state, s.submitted_at, s.ended_at, s.n_settings, s.n_runs,
       s.gpu_hours as gpu_hours_forecast, c.of_sweep as confirms_sweep, s.quality_hash
  from sweep s left join confirmation c on c.sweep_id = s.id;
