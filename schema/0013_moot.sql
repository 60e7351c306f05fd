-- +goose Up

-- moot: an attempt of an earlier task, read late, has completed the run while it
-- waits in the task that it is in now. The tracker keeps that task from
-- measuring it again, and clears the mark.
alter table run add column moot boolean not null default false;
create index run_moot on run (batch_token) where moot;
