-- +goose Up

-- checkpoint is what runs must have in common to be neighbours: the digest, or
-- the model's name and path where none is pinned. Null where nothing is loaded
-- from a file.
alter table sweep_setting add column checkpoint text generated always as (
    case
        when setting #>> '{model,checkpoint,digest}' not in ('', 'unpinned') then setting #>> '{model,checkpoint,digest}'
        when setting #>> '{model,checkpoint,path}' <> '' then (setting #>> '{model,name}') || ' ' || (setting #>> '{model,checkpoint,path}')
    end) stored;

-- checkpoint_served are the checkpoints that an engine has served at a site. One
-- that is not in it is started by few tasks at first.
create table checkpoint_served (
    site       text        not null,
    checkpoint text        not null,
    since      timestamptz not null,
    primary key (site, checkpoint)
);
insert into checkpoint_served
select a.site, ss.checkpoint, min(a.recorded_at)
  from attempt a join run r on r.id = a.run_id join sweep_setting ss on ss.sweep_id = r.sweep_id and ss.setting_hash = r.setting_hash
 where a.exit_class in ('measured', 'invalid') and ss.checkpoint is not null
 group by 1, 2;

-- +goose StatementBegin
create function remember_served() returns trigger language plpgsql as $$
begin
    insert into checkpoint_served
    select distinct on (n.site, ss.checkpoint) n.site, ss.checkpoint, n.recorded_at
      from new_rows n join run r on r.id = n.run_id
      join sweep_setting ss on ss.sweep_id = r.sweep_id and ss.setting_hash = r.setting_hash
     where n.exit_class in ('measured', 'invalid') and ss.checkpoint is not null
     order by n.site, ss.checkpoint, n.recorded_at
    on conflict do nothing;
    return null;
end $$;
-- +goose StatementEnd
create trigger attempt_served after insert on attempt
    referencing new table as new_rows
    for each statement execute function remember_served();

-- What a node ran before a task came to it.
create index attempt_node on attempt (site, (nodes[1]), started_at) where started_at is not null;
create index attempt_started on attempt (started_at) where started_at is not null;
