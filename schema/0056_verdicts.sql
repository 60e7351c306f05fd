-- +goose Up

-- verdicts say what a setting's numbers are worth: precise, noisy or unknown, and
-- node-bound and bimodal where they are that too.
alter table aggregate add column verdicts text[] not null default '{}';
