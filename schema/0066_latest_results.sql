-- +goose Up

-- A condition on the setting reaches the settings themselves: as a column of what
-- was found of each, it came after all had been looked up.
-- +goose StatementBegin
do $$
declare
    columns text;
begin
    select string_agg(case attname when 'setting_hash' then 'c.setting_hash' else 'l.' || quote_ident(attname) end, ', ' order by attnum)
      into columns
      from pg_attribute
     where attrelid = 'report.latest_results'::regclass and attnum > 0 and not attisdropped;
    execute 'create or replace view report.latest_results as
select ' || columns || '
  from setting c
 cross join (select distinct site as at_site from sweep) s
 cross join lateral (
       select a.* from aggregate a
        where a.setting_hash = c.setting_hash and a.site = s.at_site and a.n_valid > 0
        order by a.created_at desc, a.id desc limit 1) l';
end $$;
-- +goose StatementEnd
