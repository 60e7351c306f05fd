-- +goose Up
-- A setting of a sweep may stand on a result that exists already. It then has
-- no runs (repeats is 0) until the canaries of its stratum say that the result
-- does not hold any more. A canary has a result as well, and is run all the same.
alter table sweep_setting
    add column carried_from    bigint,  -- the aggregate that stands for it, or that a canary is held against
    add column canary          boolean not null default false,
    add column stratum         text    not null default '',
    add column carried_repeats integer not null default 0, -- the runs that it has if it is run after all
    add check (carried_from is not null or not canary);
create index sweep_setting_stratum on sweep_setting (sweep_id, stratum) where carried_from is not null;
