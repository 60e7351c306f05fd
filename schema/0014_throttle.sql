-- +goose Up

-- throttle_wanted: how many tasks of the array a user wants at once from now on;
-- null where Slurm has been told. 0 is no limit.
alter table batch add column throttle_wanted integer;
create index batch_throttle on batch (site) where throttle_wanted is not null;
