-- +goose Up

-- Attempts come in the order of these times, nearly: a summary of every megabyte is
-- as good for finding a day of them, and costs nothing when they are stored.
drop index attempt_recorded;
drop index attempt_started;
create index attempt_recorded on attempt using brin (recorded_at) with (autosummarize = on);
create index attempt_started on attempt using brin (started_at) with (autosummarize = on);
