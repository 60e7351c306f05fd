package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sbench/internal/lifecycle"
)

// Ended names a run of which an attempt has ended in a task.
type Ended struct {
	RunID     int64
	Token     string // the batch and task of the attempt that ended
	TaskIndex int
}

// Judged is what became of a run.
type Judged struct {
	RunID    int64
	From, To lifecycle.RunState // equal where nothing changed
	Verdict  lifecycle.Verdict
	// Moot: it is complete by an attempt of another task than the one it is in.
	Moot bool
}

const (
	sqlLockJudged = `
select id, sweep_id, batch_token, task_index, budget_attempts, budget_free, forgiven_attempt, cancel_requested_at, state, charged, avoid_nodes,
       coalesce((select t.state <> 'ended' from task t where t.token = run.batch_token and t.task_index = run.task_index), false) as task_open
  from run where id = any($1) order by id for update`
	sqlJudgedAttempts = `
select a.id, a.run_id, a.exit_class, a.signature, a.valid, a.nodes, a.blamed, coalesce(a.reasons[1], '') as reason, coalesce(c.cause, '') as cause
  from current_attempt a
  left join lateral (
       select al.cause from allocation al
        where al.cluster = a.cluster and al.job_id_raw = a.job_id_raw and al.token = a.token
          and (al.restart_count is null or al.restart_count = a.restart_count)
        order by al.restart_count nulls last, al.submit_time desc limit 1) c on true
 where a.run_id = any($1)
 order by a.id`
	// A verdict that moves nothing leaves the words of the last move alone.
	sqlApplyVerdicts = `
update run r set state = v.state, charged = v.charged, moot = r.moot or v.moot, avoid_nodes = string_to_array(v.avoid, ' '),
       reason = case when r.state = v.state then r.reason else v.reason end,
       actor = case when r.state = v.state then r.actor else $6 end,
       changed_at = case when r.state = v.state then r.changed_at else $7 end,
       evidence = case when r.state = v.state then r.evidence else $8 end
  from unnest($1::bigint[], $2::text[], $3::text[], $4::integer[], $5::text[], $9::boolean[]) as v (id, state, reason, charged, avoid, moot)
 where r.id = v.id`
)

type judgedRun struct {
	ID, SweepID       int64
	BatchToken        *string
	TaskIndex         *int
	BudgetAttempts    int
	BudgetFree        int
	ForgivenAttempt   int64
	CancelRequestedAt *time.Time
	State             lifecycle.RunState
	Charged           int
	AvoidNodes        []string
	TaskOpen          bool // Slurm has or may have its task, and may run it again
}

type judgedAttempt struct {
	ID, RunID int64
	ExitClass lifecycle.ExitClass
	Signature string
	Valid     bool
	Nodes     []string
	Blamed    []string // nil: the first node
	Reason    string
	Cause     lifecycle.Cause
}

// Judge lets lifecycle.Judge decide about runs of which an attempt has ended,
// and moves them there where the actor may. A run that is under way elsewhere by
// now only moves to complete. One whose task is not settled may only die besides,
// and it is the tracker that settles it: a requeued task runs it again, and why
// an attempt was cut short, or whether one was lost, is known only when the
// allocation has ended. It returns one row per run that exists.
func (tx *Tx) Judge(ctx context.Context, ended []Ended, by lifecycle.Actor, evidence any) ([]Judged, error) {
	if len(ended) == 0 {
		return nil, nil
	}
	places := map[int64][]Ended{}
	var ids []int64
	for _, e := range ended {
		if places[e.RunID] == nil {
			ids = append(ids, e.RunID)
		}
		places[e.RunID] = append(places[e.RunID], e)
	}
	runs, err := collect[judgedRun](ctx, tx, "runs", sqlLockJudged, ids)
	if err != nil {
		return nil, err
	}
	rows, err := collect[judgedAttempt](ctx, tx, "attempts", sqlJudgedAttempts, ids)
	if err != nil {
		return nil, err
	}
	attempts := map[int64][]judgedAttempt{}
	for _, a := range rows {
		attempts[a.RunID] = append(attempts[a.RunID], a)
	}
	judged := make([]Judged, 0, len(runs))
	for _, r := range runs {
		judged = append(judged, r.judge(attempts[r.ID], places[r.ID], by))
	}
	return judged, tx.applyVerdicts(ctx, runs, judged, by, evidence)
}

func (r judgedRun) judge(attempts []judgedAttempt, ended []Ended, by lifecycle.Actor) Judged {
	known := make([]lifecycle.Attempt, len(attempts))
	for i, a := range attempts {
		known[i] = lifecycle.Attempt{
			Class: a.ExitClass, Signature: a.Signature, Valid: a.Valid, Cause: a.Cause,
			Reason: a.Reason, Forgiven: a.ID <= r.ForgivenAttempt,
		}
		switch {
		case len(a.Blamed) > 0:
			known[i].Node = a.Blamed[0]
		case a.Blamed == nil && len(a.Nodes) > 0:
			known[i].Node = a.Nodes[0]
		}
	}
	budget := lifecycle.Budget{Attempts: r.BudgetAttempts, Free: r.BudgetFree}
	j := Judged{RunID: r.ID, From: r.State, To: r.State}
	j.Verdict = lifecycle.Judge(known, budget, r.CancelRequestedAt != nil)
	here := slices.ContainsFunc(ended, func(e Ended) bool {
		return r.BatchToken != nil && *r.BatchToken == e.Token && r.TaskIndex != nil && *r.TaskIndex == e.TaskIndex
	})
	if r.State.Active() && j.Verdict.State != lifecycle.RunComplete {
		unsettled := r.TaskOpen || by != lifecycle.ActorTrack
		if !here || unsettled && j.Verdict.State != lifecycle.RunDead {
			return j
		}
	}
	if lifecycle.MayTransition(by, r.State, j.Verdict.State) {
		j.To = j.Verdict.State
	}
	j.Moot = r.State.Active() && j.To == lifecycle.RunComplete && !here
	return j
}

func (tx *Tx) applyVerdicts(ctx context.Context, runs []judgedRun, judged []Judged, by lifecycle.Actor, evidence any) error {
	var ids []int64
	var charged []int
	var states, reasons, avoid []string
	var moot []bool
	for i, j := range judged {
		if j.To == j.From && j.Verdict.Charged == runs[i].Charged && slices.Equal(j.Verdict.Avoid, runs[i].AvoidNodes) {
			continue
		}
		ids, states, reasons = append(ids, j.RunID), append(states, string(j.To)), append(reasons, j.Verdict.Reason)
		charged, avoid = append(charged, j.Verdict.Charged), append(avoid, strings.Join(j.Verdict.Avoid, " "))
		moot = append(moot, j.Moot)
	}
	if len(ids) == 0 {
		return nil
	}
	text, err := encodeEvidence(evidence)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, sqlApplyVerdicts, ids, states, reasons, charged, avoid, by, tx.now, text, moot); err != nil {
		return fmt.Errorf("apply verdicts: %w", err)
	}
	return nil
}
