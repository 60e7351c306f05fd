-- +goose Up

-- The mail that a sweep has begun is owed once, however many of its runs begin: one
-- look per statement instead of one per row, which was a sixth of the time in which
-- attempts are stored. Several sweeps' go in one order, so that no two transactions
-- wait for each other.
drop trigger attempt_mail on attempt;
drop trigger run_mail on run;
-- +goose StatementBegin
create or replace function mail_of_attempt() returns trigger language plpgsql as $$
begin
    insert into mail (sweep_id, event, occurrence, sweep_state, at, changed_at)
    select distinct s.id, 'BEGIN', 1, s.state, now(), now()
      from new_rows n join run r on r.id = n.run_id join sweep s on s.id = r.sweep_id
     where 'BEGIN' = any (s.mail_types)
     order by 1
        on conflict (sweep_id, event, occurrence) do nothing;
    return null;
end
$$;
create or replace function mail_of_run() returns trigger language plpgsql as $$
begin
    insert into mail (sweep_id, event, occurrence, sweep_state, at, changed_at)
    select distinct s.id, 'BEGIN', 1, s.state, now(), now()
      from new_rows n join old_rows o on o.id = n.id join sweep s on s.id = n.sweep_id
     where n.state in ('provisioning', 'running') and o.state not in ('provisioning', 'running')
       and 'BEGIN' = any (s.mail_types)
     order by 1
        on conflict (sweep_id, event, occurrence) do nothing;
    return null;
end
$$;
-- +goose StatementEnd
create trigger attempt_mail after insert on attempt
    referencing new table as new_rows for each statement execute function mail_of_attempt();
create trigger run_mail after update on run
    referencing old table as old_rows new table as new_rows for each statement execute function mail_of_run();
