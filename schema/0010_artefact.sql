-- +goose Up

-- artefact is a checkpoint or image that somebody registered: what its bytes are.
create table artefact (
    digest     text        primary key check (digest ~ '^sha256:[0-9a-f]{64}$'),
    kind       text        not null check (kind in ('checkpoint', 'image')),
    name       text        not null, -- for people; '' for none
    bytes      bigint      not null check (bytes >= 0),
    files      integer     not null check (files > 0),
    manifest   jsonb       not null, -- of a folder: its files, whose lines' digest is the artefact's; else []
    accounts   text[],               -- who may measure it; null is everybody
    added_by   text        not null,
    added_uid  integer     not null,
    added_at   timestamptz not null
);

-- artefact_place is where an artefact lies on a site. The node that measures it
-- hashes what is there: a place is a hint, never a proof.
create table artefact_place (
    digest   text        not null references artefact,
    site     text        not null,
    path     text        not null check (path like '/%'),
    added_by text        not null,
    added_at timestamptz not null,
    primary key (digest, site, path)
);
create index artefact_place_path on artefact_place (site, path);
