-- +goose Up

-- What became of the attempts and sweeps of the last day is counted for /metrics.
create index attempt_recorded on attempt (recorded_at);
create index sweep_ended on sweep (ended_at) where ended_at is not null;
create index cron_firing_at on cron_firing (fire_at);
