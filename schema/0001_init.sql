-- +goose Up

-- Work state -----------------------------------------------------------------
--
-- Every entity with a state (run, batch, task) has the same five columns:
-- state, reason, actor, changed_at and evidence. Writing state is the only way
-- to change it, and a trigger turns each change into a row of transition or
-- refuses it: what lifecycle's table does not allow cannot be stored, and no
-- change goes unrecorded, whoever writes.

-- legal_transition is the copy of lifecycle's table (0003 fills it; a test
-- compares them). from_state is '' at creation.
create table legal_transition (
    entity     text   not null check (entity in ('run', 'batch', 'task')),
    from_state text   not null,
    to_state   text   not null check (to_state <> ''),
    actors     text[] not null,
    primary key (entity, from_state, to_state)
);

-- transition says who changed what, when, why and on what evidence.
-- entity_id: the run's id, the batch's token, or "token/index" of a task.
create table transition (
    id         bigint generated always as identity primary key,
    entity     text        not null,
    entity_id  text        not null,
    from_state text        not null,
    to_state   text        not null,
    at         timestamptz not null,
    actor      text        not null,
    reason     text        not null,
    evidence   jsonb,
    epoch      bigint      -- of the daemon that acted; null for what any daemon may do
);
create index transition_entity on transition (entity, entity_id, id);

-- fence holds the epoch of the daemon that acts. Each election raises it; a
-- write of an older epoch is refused.
create table fence (
    only_row boolean primary key default true check (only_row),
    epoch    bigint      not null,
    holder   text        not null,
    since    timestamptz not null
);
insert into fence (epoch, holder, since) values (0, '', now());

-- site_mode is the kill switch; a site without a row is active.
create table site_mode (
    site       text primary key,
    mode       text        not null check (mode in ('active', 'drain', 'paused')),
    reason     text        not null,
    changed_by text        not null,
    changed_at timestamptz not null
);

create table sweep (
    id                bigint generated always as identity primary key,
    name              text        not null,
    user_name         text        not null,
    uid               integer     not null,
    account           text        not null default '',
    site              text        not null,
    priority          text        not null default 'normal' check (priority in ('urgent', 'normal', 'bulk')),
    -- A repeated request with the same key is the same sweep.
    idempotency_key   text        check (idempotency_key <> ''),
    request_digest    text        not null, -- SHA-256 of what was asked for
    file              text        not null, -- the sweep file as submitted
    options           jsonb       not null default '{}', -- api.Options
    repeats           jsonb,      -- the repeat policy
    slo               jsonb       not null default '{}', -- metric to seconds
    max_error_rate    double precision not null default 0,
    hardware_class    text        not null check (hardware_class in ('real', 'emulated')),
    gpu_hours         double precision, -- forecast of held GPUs
    begin_at          timestamptz, -- not planned before
    submitted_at      timestamptz not null,
    -- active: something may still happen. complete: every run complete or skipped.
    -- incomplete: over, with runs failed or dead. cancelled: over, with runs cancelled.
    state             text        not null default 'active' check (state in ('active', 'complete', 'incomplete', 'cancelled')),
    changed_at        timestamptz not null,
    ended_at          timestamptz check ((state = 'active') = (ended_at is null)),
    n_settings        integer     not null,
    n_runs            integer     not null,
    unique (uid, idempotency_key)
);
create index sweep_active on sweep (id) where state = 'active';
create index sweep_user on sweep (user_name, id);

-- setting is immutable: one row per setting_hash. canonical_spec keeps the exact
-- bytes that were hashed.
create table setting (
    setting_hash   text primary key check (setting_hash ~ '^[0-9a-f]{64}$'),
    series_hash    text not null check (series_hash ~ '^[0-9a-f]{64}$'),
    canonical_spec json not null
);
create index setting_series on setting (series_hash);

-- sweep_setting is a setting within a sweep, with its labels (paths, names).
create table sweep_setting (
    sweep_id     bigint  not null references sweep,
    setting_hash text    not null references setting,
    ordinal      integer not null,
    repeats      integer not null check (repeats >= 0), -- n_total; fixed once adaptive N stops
    setting      jsonb   not null,
    stop_reason  text    not null default '', -- why adaptive N stopped
    -- settled: every run is terminal and the latest aggregate says so. A trigger
    -- clears it when a run changes or an attempt arrives.
    settled      boolean not null default false,
    n_valid      integer not null default 0, -- of the latest aggregate
    primary key (sweep_id, setting_hash),
    unique (sweep_id, ordinal)
);
create index sweep_setting_hash on sweep_setting (setting_hash);
create index sweep_setting_unsettled on sweep_setting (sweep_id) where not settled;

-- batch is one submission to Slurm. It is committed as intent before sbatch runs.
create table batch (
    token          text primary key check (token ~ '^sb-[a-z2-7]{20}$'),
    site           text        not null,
    cluster        text        not null, -- Slurm's ClusterName
    form           text        not null default 'array' check (form in ('array', 'het')),
    uid            integer     not null, -- who the jobs run as, and who must own what they seal
    user_name      text        not null,
    account        text        not null default '',
    dir            text        not null, -- <spool>/batches/<token>
    attempts_dir   text        not null, -- <results>/attempts
    digest         text        not null, -- sha256:<hex> of batch.json
    shape          jsonb       not null default '{}',
    time_limit_s   bigint      not null,
    n_tasks        integer     not null,
    throttle       integer     not null default 0, -- %N of the array; 0 for none
    job_name       text        not null default '',
    job_id         bigint, -- of the array, once Slurm has told it
    slurm_submit_time timestamptz, -- Slurm's own; ids are re-issued after a controller crash
    created_at     timestamptz not null,
    submit_tries   integer     not null default 0, -- how often sbatch was called
    last_try_at    timestamptz,
    last_error     text        not null default '',
    cancel_requested_at timestamptz,
    state          text        not null,
    reason         text        not null default '',
    actor          text        not null,
    changed_at     timestamptz not null,
    evidence       jsonb
);
create index batch_open on batch (site, token) where state in ('intent', 'held', 'released');
create index batch_job on batch (cluster, job_id);

-- task is one element of a batch.
create table task (
    token        text    not null references batch,
    task_index   integer not null,
    time_limit_s bigint  not null,
    gpus         integer not null default 0, -- held by one allocation, over all nodes
    -- reopened counts how often the daemon gave the task's claim to another job.
    reopened     integer not null default 0,
    state        text    not null,
    reason       text    not null default '',
    actor        text    not null,
    changed_at   timestamptz not null,
    evidence     jsonb,
    primary key (token, task_index)
);
create index task_open on task (token, task_index) where state <> 'ended';

create table run (
    id             bigint generated always as identity primary key,
    sweep_id       bigint  not null,
    setting_hash   text    not null,
    repeat         integer not null check (repeat >= 0),
    -- where it is now, or was last
    batch_token    text,
    task_index     integer,
    task_position  integer, -- order within the task, from 0
    budget_attempts integer not null default 3,
    budget_free    integer not null default 10,
    charged        integer not null default 0, -- attempts counted against the budget
    -- attempts up to this id lie before a user's requeue or release
    forgiven_attempt bigint not null default 0,
    avoid_nodes    text[]  not null default '{}',
    held           boolean not null default false,
    cancel_requested_at timestamptz,
    cancelled_by   text    not null default '',
    state          text    not null,
    reason         text    not null default '',
    actor          text    not null,
    changed_at     timestamptz not null,
    evidence       jsonb,
    unique (sweep_id, setting_hash, repeat),
    foreign key (sweep_id, setting_hash) references sweep_setting,
    foreign key (batch_token, task_index) references task,
    check (state not in ('submitted', 'provisioning', 'running') or task_index is not null)
);
create index run_pending on run (sweep_id) where state = 'pending';
create index run_active on run (batch_token, task_index) where state in ('submitted', 'provisioning', 'running');
create index run_task on run (batch_token, task_index) where batch_token is not null;
create index run_dead on run (id) where state = 'dead';
create index run_ended on run (changed_at) where batch_token is not null and state not in ('submitted', 'provisioning', 'running');

-- task_run remembers every task that a run was ever in; a trigger writes it.
create table task_run (
    token      text    not null,
    task_index integer not null,
    run_id     bigint  not null references run,
    primary key (run_id, token, task_index),
    foreign key (token, task_index) references task
);
create index task_run_task on task_run (token, task_index);

-- allocation is one start of a Slurm job or array element; a requeue makes a new
-- one. It mirrors what squeue and sacct say, and is the one place for the cause
-- of an end that came from outside.
create table allocation (
    cluster       text        not null,
    job_id_raw    bigint      not null,
    submit_time   timestamptz not null,
    array_job_id  bigint,
    restart_count integer,     -- null while unknown
    token         text        not null,
    task_index    integer     not null,
    state         text        not null, -- Slurm's own word
    slurm_reason  text        not null default '',
    cause         text        not null default '' check (cause in ('', 'user', 'preempted', 'node_fail', 'time_limit')),
    nodes         text[]      not null default '{}',
    start_time    timestamptz,
    end_time      timestamptz,
    exit_code     integer,
    exit_signal   integer,
    elapsed_s     bigint,
    alloc_gpus    integer,
    alloc_tres    text        not null default '',
    account       text        not null default '',
    user_name     text        not null default '',
    last_seen_at  timestamptz not null,
    seen_in       text        not null default '', -- squeue, sacct
    ended         boolean     not null default false,
    primary key (cluster, job_id_raw, submit_time),
    foreign key (token, task_index) references task
);
create index allocation_task on allocation (token, task_index);
create index allocation_open on allocation (token) where not ended;

-- Results ----------------------------------------------------------------------
--
-- Append-only: a later row corrects an earlier one, nothing is changed.

-- attempt is one run on one allocation. A run whose allocation ended unsealed
-- gets a row with sealed = false; a manifest that appears later adds the sealed
-- one, which then counts in its place (view current_attempt).
create table attempt (
    id             bigint generated always as identity primary key,
    run_id         bigint      not null references run,
    cluster        text        not null,
    job_id_raw     bigint      not null,
    restart_count  integer     not null,
    sealed         boolean     not null,
    token          text        not null,
    task_index     integer     not null,
    site           text        not null,
    step_id        text        not null default '',
    nodes          text[]      not null,
    hardware_class text        not null check (hardware_class in ('real', 'emulated')),
    started_at     timestamptz, -- null: not known
    ended_at       timestamptz,
    exit_class     text        not null,
    valid          boolean     not null,
    env_verified   boolean     not null,
    reasons        text[]      not null,
    signature      text        not null default '',
    checks         jsonb       not null default '[]',
    runner         text        not null default '',
    dir            text        not null default '', -- where it is sealed
    files          jsonb       not null default '[]', -- result.File: what the manifest vouches for
    recorded_at    timestamptz not null,
    epoch          bigint,
    unique (run_id, cluster, job_id_raw, restart_count, sealed),
    check (sealed or not valid)
);

create view current_attempt as
select a.* from attempt a
where a.sealed or not exists (
    select from attempt s
    where s.run_id = a.run_id and s.cluster = a.cluster and s.job_id_raw = a.job_id_raw
      and s.restart_count = a.restart_count and s.sealed);

-- result is what a measured attempt found, valid or not. 0002 adds a column for
-- every axis and every metric.
create table result (
    attempt_id       bigint primary key references attempt,
    run_id           bigint      not null,
    sweep_id         bigint      not null,
    setting_hash     text        not null,
    series_hash      text        not null,
    repeat           integer     not null,
    site             text        not null,
    cluster          text        not null,
    hardware_class   text        not null check (hardware_class in ('real', 'emulated')),
    nodes            text[]      not null,
    started_at       timestamptz not null,
    ended_at         timestamptz not null,
    valid            boolean     not null,
    env_verified     boolean     not null,
    findings         text[]      not null,
    metrics_version  text        not null,
    plan_hash        text        not null,
    fingerprint_hash text        not null, -- of what can differ between attempts of one setting
    fingerprint      jsonb,
    null_reasons     jsonb       not null default '{}'
);
create index result_setting on result (sweep_id, setting_hash);
create index result_series on result (series_hash, started_at);

-- result_window is one load point of a measured attempt; ladders have several.
create table result_window (
    attempt_id         bigint           not null references attempt,
    window_index       integer          not null,
    hardware_class     text             not null check (hardware_class in ('real', 'emulated')),
    offered_rate_per_s double precision not null,
    start_ns           bigint           not null, -- on the attempt's clock
    end_ns             bigint           not null,
    findings           text[]           not null,
    null_reasons       jsonb            not null default '{}',
    primary key (attempt_id, window_index)
);

-- aggregate is the summary of a setting's valid results in a sweep, one row per
-- version; the highest version counts. 0002 adds the axes.
create table aggregate (
    id               bigint generated always as identity primary key,
    sweep_id         bigint      not null,
    setting_hash     text        not null,
    series_hash      text        not null,
    site             text        not null,
    version          integer     not null check (version > 0),
    hardware_class   text        not null check (hardware_class in ('real', 'emulated')),
    metrics_version  text        not null,
    n_valid          integer     not null check (n_valid >= 0),
    n_total          integer     not null check (n_total >= n_valid),
    is_final         boolean     not null,
    mixed            boolean     not null, -- realized fingerprints differ: labelled, never pooled silently
    n_nodes          integer     not null,
    findings         text[]      not null,
    warnings         text[]      not null,
    reproducibility  double precision,
    attempts         bigint[]    not null, -- the attempts it is made of
    first_started_at timestamptz, -- of those attempts; null without any
    last_ended_at    timestamptz,
    metrics          jsonb       not null, -- name to {n, mean, stddev, ci_low, ci_high, …}
    created_at       timestamptz not null,
    epoch            bigint,
    unique (sweep_id, setting_hash, site, version),
    foreign key (sweep_id, setting_hash) references sweep_setting
);
create index aggregate_series on aggregate (series_hash, created_at);
create index aggregate_setting on aggregate (setting_hash, created_at);

-- rejected_attempt lists folders that were not ingested, and why; they are shown
-- to people and looked at again only when they change.
create table rejected_attempt (
    dir        text primary key,
    run_id     bigint      not null,
    kind       text        not null check (kind in ('torn', 'hostile', 'foreign', 'unreadable')),
    reason     text        not null,
    mark       text        not null, -- changes when the folder does
    first_seen timestamptz not null,
    last_seen  timestamptz not null,
    tries      integer     not null default 1
);
create index rejected_attempt_run on rejected_attempt (run_id);

-- Rules ------------------------------------------------------------------------

-- +goose StatementBegin
create function refuse_change() returns trigger language plpgsql as $$
begin
    raise exception '% is append-only: % is refused', tg_table_name, lower(tg_op) using errcode = 'SB002';
end $$;
-- +goose StatementEnd

-- record_transitions(entity, id expression, join condition) checks every change
-- of state of a statement against legal_transition and records it. It works on
-- the statement's rows at once, so that 30,000 rows cost two queries.
-- +goose StatementBegin
create function record_transitions() returns trigger language plpgsql as $$
declare
    moved text;
    bad   record;
begin
    if tg_op = 'INSERT' then
        moved := format(
            'select %s as entity_id, '''' as from_state, n.state, n.actor, n.changed_at, n.reason, n.evidence from new_rows n',
            tg_argv[1]);
    else
        moved := format(
            'select %s as entity_id, coalesce(o.state, '''') as from_state, n.state, n.actor, n.changed_at, n.reason, n.evidence
               from new_rows n left join old_rows o on %s where n.state is distinct from o.state',
            tg_argv[1], tg_argv[2]);
    end if;
    execute format(
        'with moved as (%s), bad as (
            select m.* from moved m left join legal_transition l
                on l.entity = %L and l.from_state = m.from_state and l.to_state = m.state and m.actor = any (l.actors)
             where l.entity is null
         ), recorded as (
            insert into transition (entity, entity_id, from_state, to_state, at, actor, reason, evidence, epoch)
            select %L, entity_id, from_state, state, changed_at, actor, reason, evidence,
                   nullif(current_setting(''sbench.epoch'', true), '''')::bigint
              from moved
            returning 1
         )
         select (select count(*) from recorded) as n, (select min(entity_id) from bad) as entity_id,
                (select from_state from bad order by entity_id limit 1) as from_state,
                (select state from bad order by entity_id limit 1) as to_state,
                (select actor from bad order by entity_id limit 1) as actor',
        moved, tg_argv[0], tg_argv[0]) into bad;
    if bad.entity_id is not null then
        raise exception '% %: no legal transition from "%" to "%" by %',
            tg_argv[0], bad.entity_id, bad.from_state, bad.to_state, bad.actor using errcode = 'SB001';
    end if;
    if bad.n > 0 then
        perform pg_notify('sbench_changed', tg_argv[0]);
    end if;
    return null;
end $$;
-- +goose StatementEnd

create trigger run_created after insert on run
    referencing new table as new_rows
    for each statement execute function record_transitions('run', 'n.id::text', 'o.id = n.id');
create trigger run_changed after update on run
    referencing old table as old_rows new table as new_rows
    for each statement execute function record_transitions('run', 'n.id::text', 'o.id = n.id');
create trigger batch_created after insert on batch
    referencing new table as new_rows
    for each statement execute function record_transitions('batch', 'n.token', 'o.token = n.token');
create trigger batch_changed after update on batch
    referencing old table as old_rows new table as new_rows
    for each statement execute function record_transitions('batch', 'n.token', 'o.token = n.token');
create trigger task_created after insert on task
    referencing new table as new_rows
    for each statement execute function record_transitions('task', 'n.token || ''/'' || n.task_index', 'o.token = n.token and o.task_index = n.task_index');
create trigger task_changed after update on task
    referencing old table as old_rows new table as new_rows
    for each statement execute function record_transitions('task', 'n.token || ''/'' || n.task_index', 'o.token = n.token and o.task_index = n.task_index');

-- +goose StatementBegin
create function remember_task_runs() returns trigger language plpgsql as $$
begin
    insert into task_run (token, task_index, run_id)
    select n.batch_token, n.task_index, n.id from new_rows n join old_rows o on o.id = n.id
     where n.batch_token is not null and n.task_index is not null
       and (n.batch_token is distinct from o.batch_token or n.task_index is distinct from o.task_index)
    on conflict do nothing;
    return null;
end $$;
-- +goose StatementEnd
create trigger run_task_remembered after update on run
    referencing old table as old_rows new table as new_rows
    for each statement execute function remember_task_runs();

-- reopen_setting marks settings whose runs changed, and their sweeps, as not
-- settled: what was summed up has to be summed up again. Whoever settles locks
-- the runs and then the sweep, and whoever adds an attempt locks its run first,
-- so that neither misses the other.
-- +goose StatementBegin
create function reopen_setting() returns trigger language plpgsql as $$
begin
    if tg_table_name = 'attempt' then
        update sweep_setting ss set settled = false
          from new_rows n join run r on r.id = n.run_id
         where ss.sweep_id = r.sweep_id and ss.setting_hash = r.setting_hash and ss.settled;
        if not found then return null; end if;
        perform from sweep where id in (select r.sweep_id from new_rows n join run r on r.id = n.run_id) order by id for update;
        update sweep s set state = 'active', ended_at = null, changed_at = n.recorded_at
          from new_rows n join run r on r.id = n.run_id
         where s.id = r.sweep_id and s.state <> 'active';
    else
        update sweep_setting ss set settled = false
          from new_rows n join old_rows o on o.id = n.id
         where n.state <> o.state and ss.sweep_id = n.sweep_id and ss.setting_hash = n.setting_hash and ss.settled;
        if not found then return null; end if;
        perform from sweep where id in (select sweep_id from new_rows) order by id for update;
        update sweep s set state = 'active', ended_at = null, changed_at = n.changed_at
          from new_rows n join old_rows o on o.id = n.id
         where n.state <> o.state and s.id = n.sweep_id and s.state <> 'active';
    end if;
    return null;
end $$;
-- +goose StatementEnd
create trigger run_reopens_setting after update on run
    referencing old table as old_rows new table as new_rows
    for each statement execute function reopen_setting();
create trigger attempt_reopens_setting after insert on attempt
    referencing new table as new_rows
    for each statement execute function reopen_setting();

create trigger append_only before update or delete or truncate on transition
    for each statement execute function refuse_change();
create trigger append_only before update or delete or truncate on attempt
    for each statement execute function refuse_change();
create trigger append_only before update or delete or truncate on result
    for each statement execute function refuse_change();
create trigger append_only before update or delete or truncate on result_window
    for each statement execute function refuse_change();
create trigger append_only before update or delete or truncate on aggregate
    for each statement execute function refuse_change();
create trigger append_only before update or delete or truncate on setting
    for each statement execute function refuse_change();
create trigger append_only before update or delete or truncate on task_run
    for each statement execute function refuse_change();
create trigger kept before delete or truncate on run
    for each statement execute function refuse_change();
create trigger kept before delete or truncate on sweep
    for each statement execute function refuse_change();
create trigger kept before delete or truncate on sweep_setting
    for each statement execute function refuse_change();
create trigger kept before delete or truncate on batch
    for each statement execute function refuse_change();
create trigger kept before delete or truncate on task
    for each statement execute function refuse_change();
