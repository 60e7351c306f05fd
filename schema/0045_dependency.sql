-- +goose Up

-- dependency: what has to come true of other sweeps before this one is planned,
-- as --dependency was written; '' for nothing. waiting and never are looked at
-- again as long as the sweep is active; met stays so, whatever becomes of the
-- others. never: its runs were cancelled, and dependency_reason says why.
alter table sweep
    add column dependency text not null default '',
    add column dependency_state text not null default 'met' check (dependency_state in ('waiting', 'met', 'never')),
    add column dependency_reason text not null default '';
create index sweep_dependency on sweep (site, id) where state = 'active' and dependency_state <> 'met';
create index sweep_singleton on sweep (uid, name, id) where state = 'active';
