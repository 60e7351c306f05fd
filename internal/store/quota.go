package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// EachUser is the user name of a quota that every user has for himself.
const EachUser = "*"

// Quota bounds the GPU-hours that are held in a calendar period (UTC). "" is
// every site, every account, all users together.
type Quota struct {
	ID       int64
	Site     string
	Account  string
	UserName string   // or EachUser
	Period   string   // day, week (from Monday), month, quarter, year
	GPUHours *float64 `db:"gpu_hours"` // nil takes the quota away
	Comment  string
	SetBy    string
	SetAt    time.Time
}

// QuotaUse is how much of a quota is gone.
type QuotaUse struct {
	Quota
	PeriodStart time.Time
	PeriodEnd   time.Time
	// UsedHours is what allocations held in the period by Slurm's accounting;
	// ReservedHours what the runs of active sweeps that have not ended are
	// forecast to hold. Of EachUser, both are of the user who was asked for.
	UsedHours, ReservedHours float64
}

// QuotaError says that a sweep does not fit into a quota.
type QuotaError struct {
	QuotaUse
	AskedHours float64
}

// Error says by how much.
func (e *QuotaError) Error() string {
	whose := "everybody together"
	switch {
	case e.UserName == EachUser:
		whose = "each user"
	case e.UserName != "":
		whose = "user " + e.UserName
	}
	if e.Account != "" {
		whose += " of account " + e.Account
	}
	if e.Site != "" {
		whose += " at site " + e.Site
	}
	over := e.UsedHours + e.ReservedHours + e.AskedHours - *e.GPUHours
	return fmt.Sprintf("%s may hold %.1f GPU-hours a %s: %.1f are used, %.1f reserved for active sweeps, %.1f asked for, %.1f too many",
		whose, *e.GPUHours, e.Period, e.UsedHours, e.ReservedHours, e.AskedHours, over)
}

const (
	// Admission is one at a time where there are quotas: what one submission
	// reserves, the next one sees.
	sqlLockQuotas  = `select pg_advisory_xact_lock(hashtextextended('sbench quota', 0))`
	sqlInsertQuota = `
insert into quota (site, account, user_name, period, gpu_hours, comment, set_by, set_at) values ($1, $2, $3, $4, $5, $6, $7, $8) returning id`
	sqlQuotas = `
select id, site, account, user_name, period, gpu_hours, comment, set_by, set_at
  from (select distinct on (site, account, user_name, period) * from quota order by site, account, user_name, period, id desc) q
 where gpu_hours is not null order by site, account, user_name, period`
	// The quotas that bind a sweep of a site, account and user, each with what is
	// gone of it. An allocation belongs to the one sweep of its batch; while it
	// is not accounted for, it holds what was planned.
	sqlQuotaUse = `
with q as (
    select * from (select distinct on (site, account, user_name, period) * from quota order by site, account, user_name, period, id desc) l
     where gpu_hours is not null and ($1::text is null or site in ('', $1)) and ($2::text is null or account in ('', $2))
       and ($1::text is null or user_name in ('', '*', $3::text))
), p as (
    select q.*, date_trunc(q.period, $4::timestamptz, 'UTC') as period_start,
           (date_trunc(q.period, $4::timestamptz at time zone 'UTC') + case q.period when 'quarter' then interval '3 months'
            else ('1 ' || q.period)::interval end) at time zone 'UTC' as period_end,
           case q.user_name when '' then null when '*' then $3 else q.user_name end as whose
      from q
)
select p.id, p.site, p.account, p.user_name, p.period, p.gpu_hours, p.comment, p.set_by, p.set_at, p.period_start, p.period_end,
       coalesce(u.hours, 0) as used_hours, coalesce(r.hours, 0) as reserved_hours
  from p
  left join lateral (
       select sum(h.gpus * greatest(extract(epoch from least(h.until, p.period_end) - greatest(a.start_time, p.period_start)), 0) / 3600)::double precision as hours
         from allocation a
         join batch b on b.token = a.token
         join task k on k.token = a.token and k.task_index = a.task_index
         join sweep s on s.id = (b.shape ->> 'sweep')::bigint
        cross join lateral (select coalesce(a.start_time + make_interval(secs => a.elapsed_s), a.end_time, $4) as until,
                                   coalesce(nullif(a.alloc_gpus, 0), k.gpus) as gpus) h
        where a.start_time < p.period_end and h.until > p.period_start
          and (p.site = '' or s.site = p.site) and (p.account = '' or s.account = p.account)
          and (p.whose is null or s.user_name = p.whose)) u on true
  left join lateral (
       select sum(s.gpu_hours * o.n / greatest(s.n_runs, 1)) as hours
         from sweep s
        cross join lateral (select count(*) as n from run where run.sweep_id = s.id and run.state in ('pending', 'submitted', 'provisioning', 'running')) o
        where s.state = 'active' and ($5::bigint is null or s.id <> $5)
          and (p.site = '' or s.site = p.site) and (p.account = '' or s.account = p.account)
          and (p.whose is null or s.user_name = p.whose)) r on true
 order by p.id`
)

// SetQuota stores a quota and fills in its id and time.
func (s *Store) SetQuota(ctx context.Context, q *Quota) error {
	return s.WithTx(ctx, func(tx *Tx) error {
		if _, err := tx.Exec(ctx, sqlLockQuotas); err != nil {
			return fmt.Errorf("lock quotas: %w", err)
		}
		q.SetAt = tx.now
		err := tx.QueryRow(ctx, sqlInsertQuota, q.Site, q.Account, q.UserName, q.Period, q.GPUHours, q.Comment, q.SetBy, q.SetAt).Scan(&q.ID)
		if err != nil {
			return fmt.Errorf("store quota: %w", err)
		}
		return nil
	})
}

// Quotas returns the quotas in force.
func (s *Store) Quotas(ctx context.Context) ([]Quota, error) {
	return collect[Quota](ctx, s.pool, "quotas", sqlQuotas)
}

// QuotaUsage returns all quotas in force with what is gone of them; those of
// EachUser as they are for userName.
func (s *Store) QuotaUsage(ctx context.Context, userName string) ([]QuotaUse, error) {
	return collect[QuotaUse](ctx, s.pool, "quotas", sqlQuotaUse, nil, nil, userName, s.now().UTC(), nil)
}

// CheckQuota returns a QuotaError where a sweep of so many GPU-hours would not
// fit now. It reserves nothing: CreateSweep does.
func (s *Store) CheckQuota(ctx context.Context, site, account, userName string, hours float64) error {
	usage, err := collect[QuotaUse](ctx, s.pool, "quotas", sqlQuotaUse, site, account, userName, s.now().UTC(), nil)
	if err != nil {
		return err
	}
	return fits(usage, hours)
}

// reserve holds the lock on all quotas until the transaction ends and returns a
// QuotaError where the sweep, which is stored already, does not fit. A sweep
// without a forecast fits into no quota.
func (tx *Tx) reserve(ctx context.Context, sweep int64, n *NewSweep) error {
	if _, err := tx.Exec(ctx, sqlLockQuotas); err != nil {
		return fmt.Errorf("lock quotas: %w", err)
	}
	usage, err := collect[QuotaUse](ctx, tx, "quotas", sqlQuotaUse, n.Site, n.Account, n.UserName, tx.now, sweep)
	if err != nil || len(usage) == 0 {
		return err
	}
	if n.GPUHours == nil {
		return errors.New("a quota binds the sweep, and nothing is known of what it will hold")
	}
	return fits(usage, *n.GPUHours)
}

func fits(usage []QuotaUse, hours float64) error {
	for _, u := range usage {
		if u.UsedHours+u.ReservedHours+hours > *u.GPUHours {
			return &QuotaError{QuotaUse: u, AskedHours: hours}
		}
	}
	return nil
}

// recheck refuses what sent ended runs of these sweeps back to pending where
// their quotas have no room.
func (tx *Tx) recheck(ctx context.Context, sweeps []int64) error {
	if len(sweeps) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, sqlLockQuotas); err != nil {
		return fmt.Errorf("lock quotas: %w", err)
	}
	list, err := collect[Sweep](ctx, tx, "sweeps", sqlSweeps, sweeps)
	if err != nil {
		return err
	}
	for _, sw := range list {
		usage, err := collect[QuotaUse](ctx, tx, "quotas", sqlQuotaUse, sw.Site, sw.Account, sw.UserName, tx.now, nil)
		if err != nil {
			return err
		}
		if err := fits(usage, 0); err != nil {
			return err
		}
	}
	return nil
}
