-- +goose Up

-- attempt_files_removed says of which attempts the files are gone, and why: the
-- rows of attempts stay for ever.
create table attempt_files_removed (
    attempt_id bigint primary key references attempt,
    removed_at timestamptz not null,
    reason     text        not null check (reason in ('failed', 'unsealed')),
    files      bigint      not null,
    bytes      bigint      not null
);
create trigger append_only before update or delete or truncate on attempt_files_removed
    for each statement execute function refuse_change();
-- What retention looks at is a small part of all attempts.
create index attempt_dead on attempt (site, recorded_at) where not valid;

-- dataset_part is one part of the compacted dataset: a file of each kind for some
-- attempts of one day. It is committed as 'writing', with its attempts, before the
-- first byte is written: an attempt is in one part, and whoever finds a part
-- unfinished writes the very same one again.
create table dataset_part (
    id          bigint generated always as identity primary key,
    site        text        not null,
    day         date        not null,
    state       text        not null check (state in ('writing', 'done')),
    attempts    integer     not null,
    unreadable  integer     not null default 0, -- of those: their files were gone or not as sealed
    bytes       bigint      not null default 0,
    created_at  timestamptz not null,
    finished_at timestamptz check ((state = 'done') = (finished_at is not null))
);
create index dataset_part_open on dataset_part (site) where state = 'writing';
create trigger kept before delete or truncate on dataset_part
    for each statement execute function refuse_change();

create table dataset_attempt (
    attempt_id bigint primary key references attempt,
    part_id    bigint not null references dataset_part
);
create index dataset_attempt_part on dataset_attempt (part_id);
create trigger append_only before update or delete or truncate on dataset_attempt
    for each statement execute function refuse_change();

-- Rows are added in the order of time: which days are not compacted yet is found
-- without a look at the whole year.
create index result_ended on result using brin (ended_at);
