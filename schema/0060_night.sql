-- +goose Up

-- night is a sweep of a schedule that is judged along its series, once. screened:
-- its candidates are to be run again. confirming: they are. judged: all is decided.
create table night (
    sweep_id     bigint primary key references sweep,
    state        text        not null check (state in ('screened', 'confirming', 'judged')),
    screened_at  timestamptz not null,
    n_series     integer     not null, -- that the screen looked at
    n_candidates integer     not null,
    report       jsonb       not null, -- regress.Report: what the screen, the nodes and the runs again say
    confirmed_by bigint      references sweep,
    reason       text        not null default '', -- why nothing was run again, where something should have been
    judged_at    timestamptz,
    check ((state = 'judged') = (judged_at is not null)),
    check (state <> 'confirming' or confirmed_by is not null)
);
create index night_open on night (sweep_id) where state <> 'judged';
create trigger kept before delete or truncate on night
    for each statement execute function refuse_change();

-- reference_setting is what is run beside the candidates on a site, and what each
-- node is held against its own history by.
create table reference_setting (
    site         text primary key,
    series_hash  text        not null,
    setting_hash text        not null references setting,
    set_by       text        not null,
    set_at       timestamptz not null
);
