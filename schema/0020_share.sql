-- +goose Up

-- What accounts were given lately is summed up at every feed.
create index allocation_ended_at on allocation (end_time) where ended;
