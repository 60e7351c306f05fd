-- +goose Up

-- setting_flags are the engine's resolved flags, as the engine reported them, of
-- the first valid attempt of a setting on an image. Later ones must have the same.
create table setting_flags (
    setting_hash text        not null references setting,
    image_digest text        not null, -- realized
    flags        jsonb       not null,
    run_id       bigint      not null references run,
    recorded_at  timestamptz not null,
    primary key (setting_hash, image_digest)
);
