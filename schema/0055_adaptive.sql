-- +goose Up

-- The number of a setting's runs may depend on what they measure. repeats is
-- then how many there are so far, up to repeats_max.
alter table sweep_setting
    add column repeats_max integer not null default 0, -- 0: the number is fixed
    -- none: the number is fixed. open: runs may be added. held: those that are
    -- added are held. barred: a user has cancelled it. cut: it stopped for another
    -- reason than what was measured. ended: it stopped for good.
    add column adding text not null default 'none' check (adding in ('none', 'open', 'held', 'barred', 'cut', 'ended')),
    add check ((repeats_max = 0) = (adding = 'none')),
    add check (repeats_max = 0 or repeats <= repeats_max);

-- repeat_decision is the log of these decisions: one row for each time that all
-- runs of a setting had ended.
create table repeat_decision (
    id           bigint generated always as identity primary key,
    sweep_id     bigint      not null,
    setting_hash text        not null,
    ordinal      integer     not null check (ordinal > 0),
    n_planned    integer     not null, -- runs before it
    n_valid      integer     not null,
    added        integer     not null, -- runs that it added; 0 where it stopped
    outcome      text        not null check (outcome in ('open', 'reached', 'max', 'decided', 'undefined', 'cancelled', 'dead', 'failed')),
    reason       text        not null, -- for people
    metrics      jsonb       not null, -- by metric: {n, relative_ci, rule, runs_wanted, history_df, …}
    attempts     bigint[]    not null, -- whose results decided
    decided_at   timestamptz not null,
    epoch        bigint,
    unique (sweep_id, setting_hash, ordinal),
    foreign key (sweep_id, setting_hash) references sweep_setting,
    check ((added > 0) = (outcome = 'open'))
);
create index repeat_decision_setting on repeat_decision (setting_hash, id);
create trigger append_only before update or delete or truncate on repeat_decision
    for each statement execute function refuse_change();
