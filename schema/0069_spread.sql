-- +goose Up

-- A run may be for one node: what is run again to tell a node from what runs on it,
-- and what each node is held against its own history by. '' is any node.
alter table run add column node text not null default '';

-- How the runs again of a confirmation were spread over nodes, by setting:
-- {"nodes": […], "reason": "why they were not"}.
alter table confirmation add column spread jsonb not null default '{}';
