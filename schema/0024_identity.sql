-- +goose Up

-- token lets a program act as its user, for some things and some time. The text
-- is shown once and not stored: secret_hash is the SHA-256 of its secret.
create table token (
    id          bigint generated always as identity primary key,
    name        text        not null,
    secret_hash bytea       not null check (length(secret_hash) = 32),
    user_name   text        not null,
    uid         integer     not null check (uid > 0), -- root's rights are not given away
    scopes      text[]      not null check (cardinality(scopes) > 0 and scopes <@ '{read,submit,act}'),
    account     text        not null default '', -- the only one it may spend for
    created_at  timestamptz not null,
    created_by  text        not null,
    expires_at  timestamptz not null check (expires_at > created_at),
    revoked_at  timestamptz,
    revoked_by  text        not null default '',
    last_used_at timestamptz
);
create index token_user on token (user_name);
create trigger kept before delete or truncate on token
    for each statement execute function refuse_change();

-- credential_seen are the MUNGE credentials of the last minutes: a credential
-- counts once, whichever of several daemons it is shown to.
create table credential_seen (
    digest text        primary key,
    until  timestamptz not null
);
create index credential_seen_until on credential_seen (until);

-- audit has one row before anything is changed on somebody's word (asked), and
-- one when it is decided, which names the first. A request whose first row cannot
-- be written is not carried out.
create table audit (
    id        bigint generated always as identity primary key,
    request   bigint      references audit, -- the row of the asking; null on that row
    at        timestamptz not null,
    user_name text        not null, -- '' where nobody was identified
    uid       integer,
    via       text        not null, -- peer, munge, token, cron; '' where nobody was identified
    token_id  bigint,
    remote    text        not null default '',
    action    text        not null, -- the endpoint
    object    text        not null, -- its path
    outcome   text        not null check (outcome in ('asked', 'done', 'refused', 'failed')),
    detail    jsonb       not null default '{}',
    check ((outcome = 'asked') = (request is null))
);
create index audit_at on audit (at, id);
create index audit_user on audit (user_name, id);
create trigger append_only before update or delete or truncate on audit
    for each statement execute function refuse_change();
