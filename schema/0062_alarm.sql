-- +goose Up

-- Attempts come in the order of their time: what was recorded lately is found by
-- few pages of summaries, which cost an insert next to nothing.
create index attempt_recorded on attempt using brin (recorded_at);
