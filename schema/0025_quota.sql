-- +goose Up

-- quota bounds the GPU-hours of a period. '' is every site, every account, all
-- users together; user_name '*' is each user for himself. The latest row of a
-- key counts; gpu_hours null takes the quota away.
create table quota (
    id        bigint generated always as identity primary key,
    site      text             not null default '',
    account   text             not null default '',
    user_name text             not null default '',
    period    text             not null check (period in ('day', 'week', 'month', 'quarter', 'year')),
    gpu_hours double precision check (gpu_hours >= 0 and gpu_hours < 1e12),
    comment   text             not null default '',
    set_by    text             not null,
    set_at    timestamptz      not null
);
create index quota_key on quota (site, account, user_name, period, id);
create trigger append_only before update or delete or truncate on quota
    for each statement execute function refuse_change();
