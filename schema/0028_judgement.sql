-- +goose Up

-- baseline names a sweep that others are held against. It moves only by an
-- explicit act.
create table baseline (
    name       text primary key check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'),
    sweep_id   bigint      not null references sweep,
    user_name  text        not null,
    note       text        not null default '',
    created_at timestamptz not null
);

-- confirmation marks sweeps that run a few settings again to decide about
-- another sweep. Their results are no night of the history: they would enter it
-- twice, and only where something was suspected.
create table confirmation (
    sweep_id   bigint primary key references sweep,
    of_sweep   bigint      not null references sweep,
    created_at timestamptz not null
);
create index confirmation_of on confirmation (of_sweep);

-- judgement is what was decided about a series in a sweep: one row per candidate
-- that was run again.
create table judgement (
    id           bigint generated always as identity primary key,
    sweep_id     bigint           not null references sweep,
    confirmed_by bigint           references sweep, -- the sweep of the runs again
    series_hash  text             not null,
    setting_hash text             not null,
    stratum      text             not null,
    metric       text             not null,
    estimate     double precision not null, -- of the screen, relative, worse positive
    ratio        double precision, -- of the runs again, worse above 1; null where there are too few
    p            double precision, -- one-sided
    p_adjusted   double precision, -- by Benjamini and Hochberg's rule over the night
    confirmed    boolean          not null,
    published    boolean          not null,
    reason       text             not null,
    judged_by    text             not null,
    judged_at    timestamptz      not null,
    unique (sweep_id, series_hash, confirmed_by)
);
create index judgement_series on judgement (series_hash, judged_at);
create trigger append_only before update or delete or truncate on judgement
    for each statement execute function refuse_change();
create trigger append_only before update or delete or truncate on confirmation
    for each statement execute function refuse_change();

-- synthetic_night is a night that was never measured, for rehearsals on emulated
-- hardware alone. Whatever is concluded from one says so.
create table synthetic_night (
    series_hash    text             not null,
    site           text             not null,
    hardware_class text             not null check (hardware_class = 'emulated'),
    night          timestamptz      not null,
    setting_hash   text             not null,
    label          text             not null check (label <> ''),
    output_tokens_per_s double precision[] not null,
    ttft_p95       double precision[] not null,
    nodes          text[]           not null,
    created_by     text             not null,
    primary key (series_hash, site, night)
);

create view regressions as
select j.id, j.judged_at, j.sweep_id, s.name as sweep_name, s.site, s.hardware_class, j.series_hash, j.setting_hash, j.stratum, j.metric,
       j.ratio, j.p, j.p_adjusted, j.reason, j.confirmed_by
  from judgement j join sweep s on s.id = j.sweep_id
 where j.published;
