package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/cost"
)

// Rate is a rate with who set it.
type Rate struct {
	ID               int64
	Site             string
	Hardware         string
	MicrosPerGPUHour int64 `db:"micros_per_gpu_hour"`
	ValidFrom        time.Time
	Comment          string
	SetBy            string
	SetAt            time.Time
}

const (
	sqlRates = `
select id, site, hardware, micros_per_gpu_hour, valid_from, comment, set_by, set_at from rate order by site, hardware, valid_from, id`
	sqlInsertRate = `
insert into rate (site, hardware, micros_per_gpu_hour, valid_from, comment, set_by, set_at) values ($1, $2, $3, $4, $5, $6, $7) returning id`
)

// Rates returns every rate there ever was, by what it is for and its time.
func (s *Store) Rates(ctx context.Context) ([]Rate, error) {
	return collect[Rate](ctx, s.pool, "rates", sqlRates)
}

// Book returns the rates as a price list.
func (s *Store) Book(ctx context.Context) (*cost.Book, error) {
	list, err := s.Rates(ctx)
	if err != nil {
		return nil, err
	}
	rates := make([]cost.Rate, len(list))
	for i, r := range list {
		rates[i] = cost.Rate{ID: r.ID, Site: r.Site, Hardware: r.Hardware, PerGPUHour: cost.Micros(r.MicrosPerGPUHour), From: r.ValidFrom}
	}
	return cost.NewBook(rates), nil
}

// AddRate stores a rate and fills in its id and time.
func (tx *Tx) AddRate(ctx context.Context, r *Rate) error {
	r.SetAt = tx.now
	err := tx.QueryRow(ctx, sqlInsertRate, r.Site, r.Hardware, r.MicrosPerGPUHour, r.ValidFrom, r.Comment, r.SetBy, r.SetAt).Scan(&r.ID)
	if err != nil {
		return fmt.Errorf("store rate: %w", err)
	}
	return nil
}

// heldRow is one run in one allocation.
type heldRow struct {
	Cluster     string
	JobIDRaw    int64
	SubmitTime  time.Time
	Site        string
	Account     string
	Partition   string
	Hardware    string
	StartTime   time.Time
	ElapsedS    *int64
	AllocGPUs   *int
	PlannedGPUs int
	Ended       bool
	StepsRead   bool
	RunID       *int64
	SweepID     *int64
	Class       string
	UserName    string
	Model       string
	SettingHash string
	SettingGPUs int
	Steps       []heldStep
	Windows     []heldWindow
}

type heldStep struct {
	Start   time.Time `json:"start"`
	Seconds int64     `json:"seconds"`
	EnergyJ *float64  `json:"energy_j"`
}

type heldWindow struct {
	Start    time.Time `json:"start"`
	StartNS  int64     `json:"start_ns"`
	EndNS    int64     `json:"end_ns"`
	Tokens   *float64  `json:"tokens_per_s"`
	EnergyJ  *float64  `json:"energy_j"`
	MeetsSLO *bool     `json:"meets_slo"`
}

// Every run that was ever in the task of an allocation, with its steps and the
// valid measurement in this very start of the job. A start without a restart
// count is numbered by the starts before it. An SLO on a metric with a
// percentile is judged on the window; one on every request by goodput_ratio.
const sqlHeld = `
select a.cluster, a.job_id_raw, a.submit_time, b.site, coalesce(nullif(a.account, ''), b.account) as account,
       coalesce(nullif(a.partition_name, ''), b.shape ->> 'partition', '') as partition, coalesce(b.shape ->> 'hardware', '') as hardware,
       a.start_time, a.elapsed_s, a.alloc_gpus, k.gpus as planned_gpus, a.ended, a.steps_read,
       r.id as run_id, r.sweep_id, coalesce(s.hardware_class, 'unknown') as class, coalesce(s.user_name, '') as user_name,
       coalesce(c.canonical_spec -> 'model' ->> 'name', '') as model, coalesce(r.setting_hash, '') as setting_hash,
       coalesce((c.canonical_spec -> 'hardware' ->> 'gpus')::integer * greatest((c.canonical_spec -> 'hardware' ->> 'nodes')::integer, 1), 0) as setting_gpus,
       coalesce(st.list, '[]') as steps, coalesce(w.list, '[]') as windows
  from allocation a
  join batch b on b.token = a.token
  join task k on k.token = a.token and k.task_index = a.task_index
  left join task_run tr on tr.token = a.token and tr.task_index = a.task_index
  left join run r on r.id = tr.run_id
  left join sweep s on s.id = r.sweep_id
  left join setting c on c.setting_hash = r.setting_hash
  left join lateral (
       select jsonb_agg(jsonb_build_object('start', p.start_time, 'seconds', p.elapsed_s, 'energy_j', p.energy_j) order by p.start_time, p.step_id) as list
         from step p
        where p.run_id = r.id and p.cluster = a.cluster and p.job_id_raw = a.job_id_raw and p.start_time >= a.start_time
          and (a.end_time is null or p.start_time <= a.end_time)) st on true
  left join lateral (
       select jsonb_agg(jsonb_build_object('start', t.started_at, 'start_ns', x.start_ns, 'end_ns', x.end_ns,
              'tokens_per_s', x.output_tokens_per_s, 'energy_j', x.energy_joules,
              'meets_slo', s.slo <> '{}' and x.error_rate <= s.max_error_rate and (
                  select bool_and(case when j.doc ? l.key then (j.doc ->> l.key)::double precision <= l.value::double precision / 1e9
                                       else x.goodput_ratio >= 1 end)
                    from jsonb_each_text(s.slo) l cross join (select case when s.slo <> '{}' then to_jsonb(x) end as doc) j)
              ) order by x.window_index) as list
         from attempt t
         join result_window x on x.attempt_id = t.id
        where t.run_id = r.id and t.cluster = a.cluster and t.job_id_raw = a.job_id_raw and t.token = a.token and t.sealed and t.valid
          and t.started_at is not null and t.restart_count = coalesce(a.restart_count, (
              select count(*) from allocation e
               where e.cluster = a.cluster and e.job_id_raw = a.job_id_raw and e.token = a.token and e.submit_time < a.submit_time))) w on true
 where a.start_time is not null and a.start_time < $2 and (not a.ended or a.end_time is null or a.end_time >= $1)
 order by a.cluster, a.job_id_raw, a.submit_time, r.id`

// EachHeld calls fn with every allocation that held something in the period, as
// far as the accounting database has told; open ones hold until now.
func (s *Store) EachHeld(ctx context.Context, p cost.Period, now time.Time, fn func(cost.Allocation)) error {
	rows, err := s.pool.Query(ctx, sqlHeld, p.Start, p.End)
	if err != nil {
		return fmt.Errorf("read allocations: %w", err)
	}
	defer rows.Close()
	var held cost.Allocation
	var of heldRow
	for first := true; rows.Next(); {
		r, err := pgx.RowToStructByName[heldRow](rows)
		if err != nil {
			return fmt.Errorf("read allocations: %w", err)
		}
		if first || of.Cluster != r.Cluster || of.JobIDRaw != r.JobIDRaw || !of.SubmitTime.Equal(r.SubmitTime) {
			if !first {
				fn(held)
			}
			held, of, first = r.allocation(now), r, false
		}
		if r.RunID != nil {
			held.Runs = append(held.Runs, r.run())
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read allocations: %w", err)
	}
	if of.Cluster != "" {
		fn(held)
	}
	return nil
}

func (r *heldRow) allocation(now time.Time) cost.Allocation {
	a := cost.Allocation{
		Site: r.Site, Account: r.Account, Partition: r.Partition, Hardware: r.Hardware, Class: r.Class, Start: r.StartTime,
		Open: !r.Ended, StepsRead: r.StepsRead,
	}
	// A job on a GPU node without a GPU in its record is one of a cluster that
	// does not account for GPUs.
	known := r.AllocGPUs != nil && (*r.AllocGPUs > 0 || r.PlannedGPUs == 0)
	if known {
		a.GPUs = *r.AllocGPUs
	}
	switch {
	case !r.Ended:
		a.Held = max(now.Sub(r.StartTime), 0).Truncate(time.Second)
		if !known {
			a.GPUs = r.PlannedGPUs
		}
	case r.ElapsedS == nil || !known:
		a.Unknown, a.GPUs = true, 0
	default:
		a.Held = time.Duration(*r.ElapsedS) * time.Second
	}
	return a
}

func (r *heldRow) run() cost.Run {
	run := cost.Run{ID: *r.RunID, Sweep: *r.SweepID, User: r.UserName, Model: r.Model, SettingHash: r.SettingHash, GPUs: r.SettingGPUs}
	for _, st := range r.Steps {
		run.Steps = append(run.Steps, cost.Step{Start: st.Start, Seconds: st.Seconds, EnergyJ: st.EnergyJ})
	}
	for _, w := range r.Windows {
		win := cost.Window{
			Start: w.Start.Add(time.Duration(w.StartNS)), End: w.Start.Add(time.Duration(w.EndNS)), EnergyJ: w.EnergyJ,
			MeetsSLO: w.MeetsSLO != nil && *w.MeetsSLO,
		}
		if w.Tokens != nil {
			tokens := *w.Tokens * time.Duration(w.EndNS-w.StartNS).Seconds()
			win.OutputTokens = &tokens
		}
		run.Windows = append(run.Windows, win)
	}
	return run
}
