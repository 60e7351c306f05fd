-- +goose Up

-- rate is what a GPU-hour costs from some time on, in micro-dollars. '' is every
-- site, every hardware. A later row takes an earlier one's place; none is changed.
create table rate (
    id                bigint generated always as identity primary key,
    site              text        not null default '',
    hardware          text        not null default '',
    micros_per_gpu_hour bigint    not null check (micros_per_gpu_hour between 0 and 1000000000000),
    valid_from        timestamptz not null,
    comment           text        not null default '',
    set_by            text        not null,
    set_at            timestamptz not null
);
create trigger append_only before update or delete or truncate on rate
    for each statement execute function refuse_change();

-- energy_j is what Slurm measured on the nodes of a step; null where it has no
-- energy plugin (it then says 0) or says what no node can draw.
alter table step add column energy_j double precision check (energy_j > 0);

-- partition_name is where it ran: a job may ask for several.
alter table allocation add column partition_name text not null default '';

create index allocation_start on allocation (start_time) where start_time is not null;
