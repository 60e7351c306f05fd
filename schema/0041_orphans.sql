-- +goose Up

-- Results come by the hundred, and attempts and runs are never removed. Whether
-- each row has its attempt, and each attempt its run, is therefore asked once for
-- a statement: a foreign key asks, and locks, for each row.
-- +goose StatementBegin
create function refuse_orphans() returns trigger language plpgsql as $$
declare
    orphan bigint;
begin
    if tg_table_name = 'attempt' then
        select n.run_id into orphan from new_rows n left join run r on r.id = n.run_id where r.id is null limit 1;
    else
        select n.attempt_id into orphan from new_rows n left join attempt a on a.id = n.attempt_id where a.id is null limit 1;
    end if;
    if found then
        raise exception 'row of % for %, which does not exist', tg_table_name, orphan using errcode = 'foreign_key_violation';
    end if;
    return null;
end $$;
-- +goose StatementEnd

alter table attempt drop constraint attempt_run_id_fkey;
alter table result drop constraint result_attempt_id_fkey;
alter table result_window drop constraint result_window_attempt_id_fkey;
create trigger no_orphans after insert on attempt
    referencing new table as new_rows for each statement execute function refuse_orphans();
create trigger no_orphans after insert on result
    referencing new table as new_rows for each statement execute function refuse_orphans();
create trigger no_orphans after insert on result_window
    referencing new table as new_rows for each statement execute function refuse_orphans();
