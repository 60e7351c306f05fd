-- +goose Up

-- All metrics of a summary take 30 kB of text and lie beside their row, compressed.
-- headline repeats those that a sweep's results are printed with in the row itself,
-- so that the results of 6,000 settings are read without taking all apart. It is
-- null in older rows: then they come from metrics.
alter table aggregate add column headline jsonb;

-- lz4 unpacks the others in half the time of PostgreSQL's own method, for a sixth
-- more space. Rows that are there stay as they are; a server without lz4 goes on as
-- before.
-- +goose StatementBegin
do $$
begin
    alter table aggregate alter column metrics set compression lz4;
exception when feature_not_supported then
    raise notice 'this server has no lz4: the metrics of summaries stay with its own compression';
end $$;
-- +goose StatementEnd
