-- +goose Up

-- step is what Slurm accounted for one srun of an allocation; run_id where it
-- executed a run. The gaps between the steps of a task are billed to its runs.
create table step (
    cluster     text        not null,
    job_id_raw  bigint      not null,
    start_time  timestamptz not null, -- step ids begin again after a requeue
    step_id     text        not null, -- batch, extern, 0…
    name        text        not null,
    run_id      bigint      references run,
    state       text        not null, -- Slurm's own word
    end_time    timestamptz,
    elapsed_s   bigint      not null,
    exit_code   integer     not null,
    exit_signal integer     not null,
    nodes       text[]      not null,
    primary key (cluster, job_id_raw, start_time, step_id)
);
create index step_run on step (run_id) where run_id is not null;

alter table allocation add column steps_read boolean not null default false;
create index allocation_steps on allocation (cluster) where ended and not steps_read;

-- settled: it is decided about every run of the ended task.
alter table task add column settled boolean not null default false;
create index task_unsettled on task (token) where state = 'ended' and not settled;

-- Users cancel few of the runs in Slurm; the tracker asks on every tick.
create index run_cancelling on run (batch_token)
    where cancel_requested_at is not null and state in ('submitted', 'provisioning', 'running');
