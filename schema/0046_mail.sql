-- +goose Up

-- mail_types: the events that a mail is sent for, in sbatch's words; mail_user:
-- to whom, a name or an address. rounds counts how often the sweep was set going:
-- once, and again whenever runs are pending after it had ended. A manifest that
-- comes late re-opens a sweep too, but nothing of it is run.
alter table sweep
    add column mail_types text[] not null default '{}',
    add column mail_user text not null default '',
    add column rounds integer not null default 1;

-- mail is the outbox: one row for each mail that is to be sent, written in the
-- transaction of what it tells of.
create table mail (
    id          bigint generated always as identity primary key,
    sweep_id    bigint      not null references sweep,
    event       text        not null check (event in ('BEGIN', 'END', 'FAIL', 'REQUEUE', 'INVALID_DEPEND')),
    occurrence  integer     not null, -- the sweep's round: what was requeued ends again
    sweep_state text        not null, -- at that moment
    at          timestamptz not null,
    -- sending: claimed, and the outcome is not recorded. unknown: the daemon ended
    -- in between, or nobody knows what the mail program did; it is not sent again.
    state       text        not null default 'waiting' check (state in ('waiting', 'sending', 'sent', 'failed', 'unknown')),
    tries       integer     not null default 0,
    next_try_at timestamptz, -- null: at once
    changed_at  timestamptz not null,
    last_error  text        not null default '',
    unique (sweep_id, event, occurrence)
);
create index mail_open on mail (id) where state in ('waiting', 'sending');
create trigger kept before delete or truncate on mail
    for each statement execute function refuse_change();

-- +goose StatementBegin
create function count_rounds() returns trigger language plpgsql as $$
begin
    if exists (select from run r where r.sweep_id = new.id and r.state = 'pending') then
        new.rounds := old.rounds + 1;
    end if;
    return new;
end
$$;
create function mail_of_sweep() returns trigger language plpgsql as $$
declare
    what text;
begin
    if new.dependency_state = 'never' and old.dependency_state <> 'never' then
        what := 'INVALID_DEPEND';
    elsif old.state = 'active' and new.state = 'incomplete' and 'FAIL' = any (new.mail_types) then
        what := 'FAIL';
    elsif old.state = 'active' and new.state <> 'active' then
        what := 'END';
    elsif new.rounds > old.rounds then
        what := 'REQUEUE';
    end if;
    if what = any (new.mail_types) then
        insert into mail (sweep_id, event, occurrence, sweep_state, at, changed_at)
        values (new.id, what, new.rounds, new.state, now(), now())
            on conflict (sweep_id, event, occurrence) do nothing;
    end if;
    return null;
end
$$;
create function mail_of_run() returns trigger language plpgsql as $$
begin
    insert into mail (sweep_id, event, occurrence, sweep_state, at, changed_at)
    select s.id, 'BEGIN', 1, s.state, now(), now()
      from sweep s where s.id = new.sweep_id and 'BEGIN' = any (s.mail_types)
        on conflict (sweep_id, event, occurrence) do nothing;
    return null;
end
$$;
-- +goose StatementEnd

create trigger sweep_rounds before update on sweep
    for each row when (old.state <> 'active' and new.state = 'active')
    execute function count_rounds();
create trigger sweep_mail after update on sweep
    for each row when (new.mail_types <> '{}' and (old.state <> new.state or old.dependency_state <> new.dependency_state))
    execute function mail_of_sweep();
create trigger run_mail after update on run
    for each row when (new.state in ('provisioning', 'running') and old.state not in ('provisioning', 'running'))
    execute function mail_of_run();
