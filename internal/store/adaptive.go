package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/aggregate"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
)

// Adding is whether runs may be added to a setting of a sweep.
type Adding string

// The states of an adaptive number of runs.
const (
	AddingNone   Adding = "none"   // the number is fixed
	AddingOpen   Adding = "open"   // runs may be added
	AddingHeld   Adding = "held"   // those that are added are held
	AddingBarred Adding = "barred" // a user has cancelled the setting
	AddingCut    Adding = "cut"    // it stopped because of what became of runs
	AddingEnded  Adding = "ended"  // it stopped for good
)

// Decides reports whether the number of runs is still to be decided.
func (a Adding) Decides() bool { return a == AddingOpen || a == AddingHeld || a == AddingBarred }

// Admitted is how many runs a setting has, and what became of them.
type Admitted struct {
	Repeats       int // n_total so far
	RepeatsMax    int // 0 where the number is fixed
	Adding        Adding
	Policy        json.RawMessage // of the sweep; nil where there is none
	Site          string
	HardwareClass string
	SubmittedAt   time.Time
	SeriesHash    string
	Cancelled     int
	Dead          int
	Failed        int
}

const sqlAdmitted = `
select ss.repeats, ss.repeats_max, ss.adding, s.repeats as policy, s.site, s.hardware_class, s.submitted_at, c.series_hash,
       r.cancelled, r.dead, r.failed
  from sweep_setting ss
  join sweep s on s.id = ss.sweep_id
  join setting c on c.setting_hash = ss.setting_hash
  cross join lateral (
       select (count(*) filter (where state = 'cancelled'))::int as cancelled, (count(*) filter (where state = 'dead'))::int as dead,
              (count(*) filter (where state = 'failed'))::int as failed
         from run where run.sweep_id = ss.sweep_id and run.setting_hash = ss.setting_hash) r
 where ss.sweep_id = $1 and ss.setting_hash = $2`

// Admitted returns how many runs a setting of a sweep has and may have.
func (s *Store) Admitted(ctx context.Context, key SettingKey) (Admitted, error) {
	list, err := collect[Admitted](ctx, s.pool, "setting", sqlAdmitted, key.SweepID, key.SettingHash)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("setting %.12s of sweep %d: %w", key.SettingHash, key.SweepID, ErrNotFound)
	}
	if err != nil {
		return Admitted{}, err
	}
	return list[0], nil
}

const (
	sqlLockAdding = `
select ss.sweep_id, ss.setting_hash, ss.repeats, ss.repeats_max, ss.adding
  from unnest($1::bigint[], $2::text[]) as k (sweep_id, setting_hash) join sweep_setting ss using (sweep_id, setting_hash)
 order by ss.sweep_id, ss.ordinal for update of ss`
	sqlInsertDecision = `
insert into repeat_decision (sweep_id, setting_hash, ordinal, n_planned, n_valid, added, outcome, reason, metrics, attempts, decided_at, epoch)
select $1, $2, coalesce(max(ordinal), 0) + 1, $3, $4, $5, $6, $7, $8, $9, $10, $11
  from repeat_decision where sweep_id = $1 and setting_hash = $2`
	sqlAddRepeats = `update sweep_setting set repeats = repeats + $3, stop_reason = $4 where sweep_id = $1 and setting_hash = $2`
	sqlStopAdding = `update sweep_setting set adding = $3, stop_reason = $4 where sweep_id = $1 and setting_hash = $2`
	sqlNextRepeat = `
select coalesce(max(repeat), -1) + 1, coalesce(max(budget_attempts), 0), coalesce(max(budget_free), 0)
  from run where sweep_id = $1 and setting_hash = $2`
	// Where all valid runs were on one node, further ones go to others, if another
	// one has begun work of the same kind within hours: a node that is busy for days
	// must not keep a sweep from ending.
	sqlOtherNodes = `
select exists (
       select from batch mine
         join batch b on b.site = mine.site and b.shape ->> 'hardware' = mine.shape ->> 'hardware'
          and b.shape ->> 'partition' is not distinct from mine.shape ->> 'partition'
          and b.shape ->> 'constraint' is not distinct from mine.shape ->> 'constraint'
         join allocation a on a.token = b.token
        where mine.token = (select batch_token from run where sweep_id = $1 and setting_hash = $2 and batch_token is not null order by id desc limit 1)
          and coalesce(mine.shape ->> 'nodelist', '') = '' and (mine.shape ->> 'nodes')::integer = 1
          and b.created_at > $4::timestamptz - interval '1 day' and a.start_time > $4::timestamptz - interval '6 hours'
          and cardinality(a.nodes) = 1 and a.nodes[1] <> $3)`
)

type lockedSetting struct {
	SettingKey
	Repeats, RepeatsMax int
	Adding              Adding
}

// decideAll records the decisions of the fresh ones of list, adds the runs that
// they ask for, and returns those that are to be summed up. The runs are locked
// already.
func (tx *Tx) decideAll(ctx context.Context, list []Settlement, fresh []int, done []Settled) ([]int, error) {
	keys := make([]SettingKey, len(fresh))
	for i, at := range fresh {
		keys[i] = list[at].Key
	}
	sweeps, hashes := columnsOf(keys)
	settings, err := collect[lockedSetting](ctx, tx, "settings", sqlLockAdding, sweeps, hashes)
	if err != nil {
		return nil, err
	}
	now := make(map[SettingKey]lockedSetting, len(settings))
	for _, s := range settings {
		now[s.SettingKey] = s
	}
	added := map[int64]int{} // by sweep
	var rest []int
	for i, at := range fresh {
		s := &list[at]
		stale, err := now[keys[i]].stale(s.Decision)
		if err != nil {
			return nil, err
		}
		if done[at].Stale = stale; stale {
			continue
		}
		if s.Decision != nil {
			if err := tx.decide(ctx, s, now[keys[i]].Adding == AddingHeld); err != nil {
				return nil, err
			}
			done[at].Added = s.Decision.Add
		}
		if done[at].Added == 0 {
			rest = append(rest, at)
			continue
		}
		added[keys[i].SweepID] += done[at].Added
	}
	if len(added) == 0 {
		return rest, nil
	}
	// All sweeps in order, as whoever ends them locks them.
	if _, err := tx.Exec(ctx, sqlLockSweeps, sweeps); err != nil {
		return nil, fmt.Errorf("lock sweeps: %w", err)
	}
	for sweep, n := range added {
		if _, err := tx.Exec(ctx, sqlMoreRuns, sweep, n); err != nil {
			return nil, fmt.Errorf("count runs: %w", err)
		}
	}
	return rest, nil
}

// stale says whether a decision, or none, is about another state of the setting
// than this one. The error is about a decision that makes no sense.
func (s lockedSetting) stale(d *aggregate.Decision) (bool, error) {
	switch {
	case d == nil:
		return s.Adding.Decides(), nil
	case !s.Adding.Decides(), s.Repeats != d.Planned, s.Adding == AddingBarred && d.Outcome != aggregate.Cancelled:
		return true, nil
	case (d.Outcome == aggregate.Open) != (d.Add > 0), d.Add < 0, d.Add > s.RepeatsMax-s.Repeats:
		return false, fmt.Errorf("a decision (%s) adds %d runs to %d of at most %d", d.Outcome, d.Add, s.Repeats, s.RepeatsMax)
	}
	return false, nil
}

// decide records a decision and does what it says.
func (tx *Tx) decide(ctx context.Context, s *Settlement, held bool) error {
	d, key := s.Decision, s.Key
	metrics, err := json.Marshal(d.Metrics)
	if err != nil {
		return fmt.Errorf("encode decision: %w", err)
	}
	attempts := make([]int64, len(s.Used))
	for i, r := range s.Used {
		attempts[i] = r.AttemptID
	}
	if _, err := tx.Exec(ctx, sqlInsertDecision, key.SweepID, key.SettingHash, d.Planned, d.NValid, d.Add, d.Outcome, d.Reason, metrics, attempts,
		tx.now, tx.epoch); err != nil {
		return fmt.Errorf("insert decision: %w", err)
	}
	if d.Outcome == aggregate.Open {
		return tx.addRuns(ctx, key, d, s.Used, held)
	}
	adding := AddingCut
	if d.Outcome.ForGood() {
		adding = AddingEnded
	}
	if _, err := tx.Exec(ctx, sqlStopAdding, key.SweepID, key.SettingHash, adding, d.Reason); err != nil {
		return fmt.Errorf("stop adding runs: %w", err)
	}
	return nil
}

// addRuns adds the runs that a decision asks for. They have the budget of the
// setting's other ones.
func (tx *Tx) addRuns(ctx context.Context, key SettingKey, d *aggregate.Decision, used []ValidResult, held bool) error {
	var next, attempts, free int
	if err := tx.QueryRow(ctx, sqlNextRepeat, key.SweepID, key.SettingHash).Scan(&next, &attempts, &free); err != nil {
		return fmt.Errorf("number runs: %w", err)
	}
	avoid, err := tx.usedNode(ctx, key, used)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, sqlAddRepeats, key.SweepID, key.SettingHash, d.Add, d.Reason); err != nil {
		return fmt.Errorf("add repeats: %w", err)
	}
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"run"}, append(slices.Clone(runColumns), "reason", "avoid_nodes"),
		pgx.CopyFromSlice(d.Add, func(i int) ([]any, error) {
			return []any{
				key.SweepID, key.SettingHash, int32(next + i), int32(attempts), int32(free), held, string(lifecycle.RunPending),
				string(lifecycle.ActorCollect), tx.now, d.Reason, avoid,
			}, nil
		}))
	if err != nil {
		return fmt.Errorf("copy runs: %w", err)
	}
	return nil
}

// usedNode is the one node that all results are of, where further runs can be
// elsewhere; empty otherwise.
func (tx *Tx) usedNode(ctx context.Context, key SettingKey, used []ValidResult) ([]string, error) {
	none := []string{}
	for _, r := range used {
		if len(r.Nodes) != 1 || r.Nodes[0] != used[0].Nodes[0] {
			return none, nil
		}
	}
	if len(used) == 0 {
		return none, nil
	}
	var other bool
	if err := tx.QueryRow(ctx, sqlOtherNodes, key.SweepID, key.SettingHash, used[0].Nodes[0], tx.now).Scan(&other); err != nil || !other {
		return none, err
	}
	return []string{used[0].Nodes[0]}, nil
}

// DecisionView is one entry of the log of a setting's number of runs.
type DecisionView struct {
	SweepID     int64
	SettingHash string
	Ordinal     int // from 1
	NPlanned    int
	NValid      int
	Added       int
	Outcome     aggregate.Outcome
	Reason      string
	Metrics     map[string]aggregate.MetricDecision
	DecidedAt   time.Time
}

const sqlDecisionsOfSetting = `
select sweep_id, setting_hash, ordinal, n_planned, n_valid, added, outcome, reason, metrics, decided_at
  from repeat_decision where setting_hash = $1 order by id desc limit $2`

// DecisionsOfSetting returns the latest decisions about a setting over all
// sweeps, newest first.
func (s *Store) DecisionsOfSetting(ctx context.Context, settingHash string, limit int) ([]DecisionView, error) {
	return collect[DecisionView](ctx, s.pool, "decisions", sqlDecisionsOfSetting, settingHash, limit)
}

// ResultView is the latest summary of a setting in a sweep, without its metrics.
type ResultView struct {
	SweepID         int64
	Version         int
	NValid          int
	NTotal          int
	IsFinal         bool
	NNodes          int
	Mixed           bool
	Reproducibility *float64
	Verdicts        []string
	Findings        []string
	Warnings        []string
	CreatedAt       time.Time
}

// A summary of what has changed since is not final any more.
const sqlResultViews = `
select distinct on (a.sweep_id) a.sweep_id, a.version, a.n_valid, a.n_total, a.is_final and ss.settled as is_final, a.n_nodes, a.mixed,
       a.reproducibility, a.verdicts, a.findings, a.warnings, a.created_at
  from aggregate a join sweep_setting ss using (sweep_id, setting_hash)
 where a.setting_hash = $1 order by a.sweep_id desc, a.version desc limit $2`

// ResultViews returns the latest summaries of a setting, of at most limit sweeps,
// newest first.
func (s *Store) ResultViews(ctx context.Context, settingHash string, limit int) ([]ResultView, error) {
	return collect[ResultView](ctx, s.pool, "summaries", sqlResultViews, settingHash, limit)
}

// History returns what a series measured validly before a time, newest first and
// at most limit runs: without confirmations and without findings about the engine.
// Synthetic nights are no history of a decision.
func (s *Store) History(ctx context.Context, series, site, class string, since, until time.Time, limit int) ([]Measured, error) {
	rows, err := s.pool.Query(ctx, sqlHistory, series, site, class, since, until, limit, result.MetricsVersion)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return scanMeasured(rows)
}
