-- +goose Up

-- The planner asks on every turn which nodes were refused of late.
create index attempt_node_drift on attempt (site, recorded_at) where exit_class = 'drift_node';
