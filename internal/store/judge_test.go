package store_test

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/store"
)

// judge stores attempts of tasks that have ended and lets their runs be judged.
func judge(t testing.TB, s *store.Store, by lifecycle.Actor, attempts ...store.NewAttempt) {
	t.Helper()
	endTasks(t, s)
	judgeOpen(t, s, by, attempts...)
	judgeOpen(t, s, lifecycle.ActorTrack, attempts...) // which settles what is known already
}

// endTasks ends all tasks, as the tracker does.
func endTasks(t testing.TB, s *store.Store) {
	t.Helper()
	execute(t, s, `update task set state = 'ended', actor = 'track', changed_at = now() where state <> 'ended'`)
}

// judgeOpen is judge for tasks that Slurm still has.
func judgeOpen(t testing.TB, s *store.Store, by lifecycle.Actor, attempts ...store.NewAttempt) {
	t.Helper()
	inTx(t, s, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.InsertAttempts(ctx, attempts); err != nil {
			return err
		}
		var ended []store.Ended
		for _, a := range attempts {
			ended = append(ended, store.Ended{RunID: a.RunID, Token: a.Token, TaskIndex: a.TaskIndex})
		}
		_, err := tx.Judge(ctx, ended, by, nil)
		return err
	})
}

func lost(run, job int64) store.NewAttempt {
	a := attempt(run, job, lifecycle.ExitLost, false)
	a.Sealed = false
	return a
}

func TestJudge(t *testing.T) {
	t.Parallel()
	const other = "sb-bbbbbbbbbbbbbbbbbbbb"
	for name, test := range map[string]struct {
		do   func(t testing.TB, s *store.Store, run int64)
		want lifecycle.RunState
	}{
		"measured": {func(t testing.TB, s *store.Store, run int64) {
			judge(t, s, lifecycle.ActorCollect, attempt(run, 7, lifecycle.ExitMeasured, true))
		}, lifecycle.RunComplete},
		"staging failed once": {func(t testing.TB, s *store.Store, run int64) {
			judge(t, s, lifecycle.ActorCollect, attempt(run, 7, lifecycle.ExitStaging, false))
		}, lifecycle.RunPending},
		"artefact drift": {func(t testing.TB, s *store.Store, run int64) {
			judge(t, s, lifecycle.ActorCollect, attempt(run, 7, lifecycle.ExitDriftArtefact, false))
		}, lifecycle.RunDead},
		"known before": {func(t testing.TB, s *store.Store, run int64) {
			judge(t, s, lifecycle.ActorCollect, attempt(run, 7, lifecycle.ExitStaging, false))
			for range 3 {
				judge(t, s, lifecycle.ActorCollect, attempt(run, 7, lifecycle.ExitStaging, false))
			}
		}, lifecycle.RunPending},
		"budget spent": {func(t testing.TB, s *store.Store, run int64) {
			for job := int64(7); job < 10; job++ {
				judge(t, s, lifecycle.ActorCollect, attempt(run, job, lifecycle.ExitStaging, false))
				if job < 9 {
					submit(t, s, batchToken, []int64{run})
				}
			}
		}, lifecycle.RunFailed},
		"preempted is free": {func(t testing.TB, s *store.Store, run int64) {
			for job := int64(7); job < 10; job++ {
				execute(t, s, `insert into allocation (cluster, job_id_raw, submit_time, token, task_index, state, cause, last_seen_at)
values ('c1', $1, now(), $2, 0, 'PREEMPTED', 'preempted', now())`, job, batchToken)
				judge(t, s, lifecycle.ActorTrack, lost(run, job))
				submit(t, s, batchToken, []int64{run})
			}
		}, lifecycle.RunSubmitted},
		"late manifest completes a dead run": {func(t testing.TB, s *store.Store, run int64) {
			judge(t, s, lifecycle.ActorCollect, attempt(run, 7, lifecycle.ExitDriftArtefact, false))
			judge(t, s, lifecycle.ActorCollect, attempt(run, 6, lifecycle.ExitMeasured, true))
		}, lifecycle.RunComplete},
		"manifest replaces what was lost": {func(t testing.TB, s *store.Store, run int64) {
			judge(t, s, lifecycle.ActorTrack, lost(run, 7))
			judge(t, s, lifecycle.ActorCollect, attempt(run, 7, lifecycle.ExitDriftArtefact, false))
		}, lifecycle.RunDead},
		"under way elsewhere": {func(t testing.TB, s *store.Store, run int64) {
			judge(t, s, lifecycle.ActorTrack, lost(run, 7))
			submit(t, s, other, []int64{run})
			judge(t, s, lifecycle.ActorCollect, attempt(run, 7, lifecycle.ExitDriftArtefact, false))
		}, lifecycle.RunSubmitted},
		"measured while under way elsewhere": {func(t testing.TB, s *store.Store, run int64) {
			judge(t, s, lifecycle.ActorTrack, lost(run, 7))
			submit(t, s, other, []int64{run})
			judge(t, s, lifecycle.ActorCollect, attempt(run, 7, lifecycle.ExitMeasured, true))
		}, lifecycle.RunComplete},
		"cancelled": {func(t testing.TB, s *store.Store, run int64) {
			execute(t, s, `update run set cancel_requested_at = now() where id = $1`, run)
			judge(t, s, lifecycle.ActorCollect, attempt(run, 7, lifecycle.ExitCancelled, false))
		}, lifecycle.RunCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := pgtest.New(t)
			_, runs := create(t, s, sweepOf("", 1))
			submit(t, s, batchToken, runs)
			test.do(t, s, runs[0])
			if got := stateOf(t, s, runs[0]); got != test.want {
				t.Errorf("run is %s, want %s", got, test.want)
			}
		})
	}
}

// TestJudge_OrderDoesNotMatter: however lost rows and manifests of the same
// attempts arrive, by whom and how often, the run ends alike.
func TestJudge_OrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	classes := []lifecycle.ExitClass{
		lifecycle.ExitMeasured, lifecycle.ExitStaging, lifecycle.ExitDriftArtefact, lifecycle.ExitInvalid, lifecycle.ExitEngineDied,
	}
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(rt, "attempts")
		class := make([]lifecycle.ExitClass, n)
		for i := range class {
			class[i] = rapid.SampledFrom(classes).Draw(rt, "class")
		}
		play := func(order []int, alsoLost []bool) lifecycle.RunState {
			_, runs := create(t, s, sweepOf("", 1))
			submit(t, s, batchToken, runs)
			for i, k := range order {
				job := int64(k + 1)
				if alsoLost[i] {
					judge(t, s, lifecycle.ActorTrack, lost(runs[0], job))
				}
				judge(t, s, lifecycle.ActorCollect, attempt(runs[0], job, class[k], class[k] == lifecycle.ExitMeasured))
			}
			return stateOf(t, s, runs[0])
		}
		forward := make([]int, n)
		for i := range forward {
			forward[i] = i
		}
		shuffled := rapid.Permutation(forward).Draw(rt, "order")
		again := append(slices.Clone(shuffled), rapid.SampledFrom(forward).Draw(rt, "duplicate"))
		lostFirst := make([]bool, n+1)
		for i := range lostFirst {
			lostFirst[i] = rapid.Bool().Draw(rt, "lost first")
		}
		a, b := play(forward, make([]bool, n)), play(again, lostFirst)
		if a != b {
			rt.Fatalf("%v: %s in order, %s in order %v", class, a, b, again)
		}
	})
}

// TestJudge_OpenTask: while Slurm has the task, only what is certain is decided.
func TestJudge_OpenTask(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	_, runs := create(t, s, sweepOf("", 4))
	submit(t, s, batchToken, runs)
	judgeOpen(t, s, lifecycle.ActorCollect,
		attempt(runs[0], 7, lifecycle.ExitMeasured, true), attempt(runs[1], 7, lifecycle.ExitDriftArtefact, false),
		attempt(runs[2], 7, lifecycle.ExitCancelled, false), attempt(runs[3], 7, lifecycle.ExitEngineDied, false))
	for i, want := range []lifecycle.RunState{lifecycle.RunComplete, lifecycle.RunDead, lifecycle.RunSubmitted, lifecycle.RunSubmitted} {
		if got := stateOf(t, s, runs[i]); got != want {
			t.Errorf("run %d is %s, want %s", i, got, want)
		}
	}
	// When it has ended, the rest is decided from the same attempts.
	judge(t, s, lifecycle.ActorTrack, attempt(runs[2], 7, lifecycle.ExitCancelled, false), attempt(runs[3], 7, lifecycle.ExitEngineDied, false))
	for _, i := range []int{2, 3} {
		if got := stateOf(t, s, runs[i]); got != lifecycle.RunPending {
			t.Errorf("run %d is %s", i, got)
		}
	}
}
