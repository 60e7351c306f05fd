//go:build soak

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sbench/internal/api"
)

// TestFairness_Live: 200 short runs of three accounts on one kind of hardware. What
// comes later waits for the queue that is there, not for the 185 runs before it;
// what is urgent not even for that; and every run is measured.
func TestFairness_Live(t *testing.T) {
	const depth = 6
	// One run a task, and few tasks in the queue.
	env.withSite(t, "  max_queue: 2000\n  task_minutes: 60\n", "  max_queue: 6\n  task_minutes: 1\n  max_running: 3\n")
	for _, account := range []string{"small", "hasty"} {
		env.must(t, "sacctmgr", "-i", "add", "account", account)
		env.must(t, "sacctmgr", "-i", "add", "user", "root", "account="+account, "qos=normal,high,low", "defaultqos=normal")
	}
	submit := func(name, account string, repeats int, flags ...string) (string, time.Time) {
		t.Helper()
		id := env.submit(t, simSweep(t, name, repeats, "[20/s]", "500ms"), append(flags, "-A", account)...)
		return id, env.sweep(t, id).SubmittedAt
	}
	big, _ := submit("big", "ml", 185)
	poll(t, 3*time.Minute, "the big sweep to be under way", func() bool { return env.sweep(t, big).Runs["complete"] >= 3 },
		func() string { return env.exec(t, "squeue", "-a").stdout })
	small, smallAt := submit("small", "small", 5)
	smallRuns := env.settleFor(t, small, 15*time.Minute)
	urgent, urgentAt := submit("urgent", "hasty", 10, "--priority", "urgent")
	urgentRuns := env.settleFor(t, urgent, 15*time.Minute)
	bigRuns := env.settleFor(t, big, time.Hour)

	between := func(from, to time.Time) int {
		n := 0
		for _, at := range begun(bigRuns) {
			if at.After(from) && at.Before(to) {
				n++
			}
		}
		return n
	}
	// Between the submission and the last start of what came later, the big sweep had
	// what was in the queue already, and its own share: as much again as the other.
	last := slices.MaxFunc(begun(smallRuns), time.Time.Compare)
	if n := between(smallAt, last); n > depth+5+1 {
		t.Errorf("%d runs of the big sweep began before the last of the small one", n)
	} else {
		t.Logf("%d runs of the big sweep began before the last of the small one, which waited %v", n, last.Sub(smallAt))
	}
	last = slices.MaxFunc(begun(urgentRuns), time.Time.Compare)
	if n := between(urgentAt, last); n > depth+1 {
		t.Errorf("%d runs of the big sweep began before the last of the urgent one", n)
	} else {
		t.Logf("%d runs of the big sweep began before the last of the urgent one, which waited %v", n, last.Sub(urgentAt))
	}
	for id, want := range map[string]int{big: 185, small: 5, urgent: 10} {
		s := env.sweep(t, id)
		if s.RunsTotal != want || s.Runs["complete"]+s.Runs["failed"] != want {
			t.Errorf("sweep %s: %v of %d", id, s.Runs, want)
		}
	}
}

// settleFor waits until a sweep has ended, and returns it with its history.
func (c *cluster) settleFor(t *testing.T, id string, limit time.Duration) api.Sweep {
	t.Helper()
	var last api.Sweep
	poll(t, limit, "sweep "+id+" to end", func() bool {
		last = c.sweep(t, id)
		return last.Terminal()
	}, func() string { return c.exec(t, "squeue", "-a").stdout })
	return last
}

// begun are the times at which the runs of a sweep first left Slurm's queue.
func begun(s api.Sweep) []time.Time {
	first := map[string]time.Time{}
	for _, x := range s.Transitions {
		if x.Entity != "run" || x.To != "provisioning" && x.To != "running" && !strings.HasPrefix(x.To, "complete") {
			continue
		}
		if at, seen := first[x.EntityID]; !seen || x.At.Before(at) {
			first[x.EntityID] = x.At
		}
	}
	var all []time.Time
	for _, at := range first {
		all = append(all, at)
	}
	return all
}
