package store_test

import (
	"testing"
	"time"

	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/store"
)

// TestUpsertAllocations_CancelledAfterItsEnd: a controller that crashed brings a
// start back that had ended, and the tracker removes it. That is no user's doing,
// and must not cancel the run, which is under way elsewhere by then.
func TestUpsertAllocations_CancelledAfterItsEnd(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first     store.Allocation
		wantCause lifecycle.Cause
	}{
		"it had failed":             {store.Allocation{State: "FAILED", Ended: true}, lifecycle.CauseNone},
		"its node had failed":       {store.Allocation{State: "NODE_FAIL", Cause: lifecycle.CauseNode, Ended: true}, lifecycle.CauseNode},
		"it ran":                    {store.Allocation{State: "RUNNING"}, lifecycle.CauseUser},
		"it was gone, nobody knows": {store.Allocation{State: "UNKNOWN", Ended: true}, lifecycle.CauseUser},
		"it was being cancelled":    {store.Allocation{State: "CANCELLED", Ended: true}, lifecycle.CauseUser},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := pgtest.New(t)
			_, runs := create(t, s, sweepOf("back", 1, 1))
			submit(t, s, batchToken, runs)
			see := func(a store.Allocation) {
				t.Helper()
				a.Cluster, a.JobIDRaw, a.SubmitTime, a.Token = "c1", 350, time.Unix(1796018298, 0), batchToken
				err := s.WithTx(t.Context(), func(tx *store.Tx) error { return tx.UpsertAllocations(t.Context(), []store.Allocation{a}) })
				if err != nil {
					t.Fatal(err)
				}
			}
			tt.first.SeenIn = "squeue"
			see(tt.first)
			see(store.Allocation{State: "CANCELLED", Cause: lifecycle.CauseUser, Ended: true, SeenIn: "sacct"})
			list, err := s.AllocationsOfTasks(t.Context(), []store.TaskKey{{Token: batchToken}})
			if err != nil || len(list) != 1 || list[0].Cause != tt.wantCause {
				t.Errorf("%+v, %v", list, err)
			}
		})
	}
}
