-- +goose Up

-- cron is a sweep that is submitted again and again. The file, its options and
-- the settings that it expands to are those of the last add or update; a cron
-- that was removed keeps its row for its firings.
create table cron (
    id              bigint generated always as identity primary key,
    name            text        not null check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'),
    user_name       text        not null,
    uid             integer     not null,
    version         integer     not null default 1 check (version > 0), -- raised by each update
    schedule        text        not null,
    time_zone       text        not null, -- IANA name
    overlap         text        not null check (overlap in ('skip', 'queue', 'cancel-old')),
    catch_up        text        not null check (catch_up in ('none', 'last', 'all')),
    jitter_s        bigint      not null check (jitter_s >= 0),
    window_s        bigint      not null check (window_s >= 0), -- 0: no window
    at_window_end   text        not null check (at_window_end in ('continue', 'cancel')),
    site            text        not null,
    file_name       text        not null,
    file            text        not null,
    file_digest     text        not null, -- sha256:<hex> of file
    settings_digest text        not null, -- of the settings' hashes in their order
    n_settings      integer     not null,
    n_runs          integer     not null,
    gpu_hours       double precision not null, -- forecast at the last add or update
    options         jsonb       not null,
    paused_at       timestamptz,
    paused_by       text        not null default '',
    created_at      timestamptz not null,
    updated_at      timestamptz not null,
    removed_at      timestamptz,
    -- What became of due times up to here is decided.
    decided_until   timestamptz not null
);
create unique index cron_name on cron (uid, name) where removed_at is null;

-- cron_firing is one due time of a cron and what became of it. That there is one
-- row for each is what makes a firing happen once, whoever decides on it.
create table cron_firing (
    id         bigint generated always as identity primary key,
    cron_id    bigint      not null references cron,
    due        timestamptz not null,
    manual     boolean     not null,
    fire_at    timestamptz not null, -- due and jitter
    window_end timestamptz, -- null: no window
    version    integer     not null, -- of the cron that was submitted
    -- waiting: for its time, for the last one's sweep or for a service that does
    -- not answer. skipped: by a policy. refused: by the admission.
    state      text        not null check (state in ('waiting', 'submitted', 'skipped', 'refused')),
    reason     text        not null default '',
    sweep_id   bigint      references sweep,
    decided_at timestamptz not null,
    changed_at timestamptz not null,
    ended_at   timestamptz, -- when its sweep ended
    window_met boolean,     -- null: no window, or not known yet
    unique (cron_id, due),
    check ((state = 'submitted') = (sweep_id is not null))
);
create index cron_firing_open on cron_firing (cron_id, due) where state = 'waiting' or state = 'submitted' and ended_at is null;
create index cron_firing_sweep on cron_firing (sweep_id) where sweep_id is not null;

create trigger kept before delete or truncate on cron
    for each statement execute function refuse_change();
create trigger kept before delete or truncate on cron_firing
    for each statement execute function refuse_change();
