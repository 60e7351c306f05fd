-- +goose Up

-- A short run may end between two looks at the queue: nobody sees it running. Its
-- attempt says that it has begun.
-- +goose StatementBegin
create function mail_of_attempt() returns trigger language plpgsql as $$
begin
    insert into mail (sweep_id, event, occurrence, sweep_state, at, changed_at)
    select s.id, 'BEGIN', 1, s.state, now(), now()
      from run r join sweep s on s.id = r.sweep_id where r.id = new.run_id and 'BEGIN' = any (s.mail_types)
        on conflict (sweep_id, event, occurrence) do nothing;
    return null;
end
$$;
-- +goose StatementEnd
create trigger attempt_mail after insert on attempt
    for each row execute function mail_of_attempt();
