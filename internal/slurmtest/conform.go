package slurmtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sbench/internal/slurm"
)

// Settle makes the released tasks of a job that asks for the exit code run to
// their end. A real cluster does so by itself.
type Settle func(job int64, exitCode int)

// Conform checks what clients rely on: the same on the fake and on a real
// cluster. MaxArraySize must be 1001 and there must be accounting. scripts must
// be readable by the cluster.
func Conform(t *testing.T, client *slurm.Client, scripts string, settle Settle) {
	t.Helper()
	k := &conformance{client: client, dir: scripts, settle: settle, started: time.Now().Add(-2 * time.Second)}
	for _, check := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"settings", k.settings},
		{"array", k.array},
		{"failure", k.failure},
		{"cancel before start", k.cancelPending},
		{"refusals", k.refusals},
		{"unknown", k.unknown},
		{"throttle", k.throttle},
		{"single job", k.single},
	} {
		t.Run(check.name, check.run)
	}
}

type conformance struct {
	client  *slurm.Client
	dir     string
	settle  Settle
	started time.Time
	jobs    int
}

// submit submits a held job and returns its id and name.
func (k *conformance) submit(t *testing.T, directives, command string) (int64, string) {
	t.Helper()
	s, name := k.trySubmit(t, directives, command)
	if s.Outcome != slurm.Created || s.JobID <= 0 {
		t.Fatalf("sbatch: %+v", s)
	}
	return s.JobID, name
}

func (k *conformance) trySubmit(t *testing.T, directives, command string) (slurm.Submission, string) {
	t.Helper()
	k.jobs++
	name := fmt.Sprintf("conform-%d-%d", os.Getpid(), k.jobs)
	script := filepath.Join(k.dir, name+".sbatch")
	text := fmt.Sprintf("#!/bin/sh\n#SBATCH --job-name=%s\n#SBATCH --comment='token %s'\n#SBATCH --output=/dev/null\n#SBATCH --time=5\n%s\n%s\n", name, name, directives, command)
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := k.client.Submit(t.Context(), script, true)
	if err != nil {
		t.Fatal(err)
	}
	return s, name
}

func (k *conformance) release(t *testing.T, job int64) {
	t.Helper()
	if err := k.client.Release(t.Context(), job); err != nil {
		t.Fatal(err)
	}
}

func (k *conformance) queue(t *testing.T, name string) []slurm.Job {
	t.Helper()
	q, err := k.client.QueueByName(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if len(q.Skipped) > 0 {
		t.Fatalf("not understood: %+v", q.Skipped)
	}
	return q.Jobs
}

// records waits until sacct has final records of n allocations.
func (k *conformance) records(t *testing.T, job int64, n int) []slurm.Record {
	t.Helper()
	var a slurm.Accounting
	await(t, fmt.Sprintf("%d final records of job %d", n, job), func(ctx context.Context) (bool, error) {
		var err error
		a, err = k.client.Accounting(ctx, slurm.AccountingQuery{Jobs: []int64{job}, Since: k.started})
		ended := 0
		for _, r := range a.Records {
			if r.Ended() && !r.Placeholder() {
				ended++
			}
		}
		return ended == n && len(a.Records) == n, err
	})
	return a.Records
}

func await(t *testing.T, what string, done func(context.Context) (bool, error)) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		ok, err := done(t.Context())
		if ok && err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s in time: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (k *conformance) settings(t *testing.T) {
	s, err := k.client.Settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.MaxArraySize != 1001 || s.ClusterName == "" || !s.Accounting || !s.StoresComment || s.Version == "" {
		t.Errorf("settings: %+v", s)
	}
}

func (k *conformance) array(t *testing.T) {
	job, name := k.submit(t, "#SBATCH --array=0-2", "true")
	rows := k.queue(t, name)
	if len(rows) != 1 {
		t.Fatalf("the waiting tasks of an array are one row, got %+v", rows)
	}
	r := rows[0]
	if r.ArrayID != job || r.Raw != job || r.Tasks.String() != "0-2" || r.State != slurm.Pending || r.Reason != "JobHeldUser" ||
		r.Name != name || r.Comment != "token "+name || r.Submit.Before(k.started) || !r.Start.IsZero() || len(r.Nodes) > 0 {
		t.Errorf("held array: %+v", r)
	}
	// sacct shows what was never eligible only when it is asked for by id.
	a, err := k.client.Accounting(t.Context(), slurm.AccountingQuery{Names: []string{name}, Since: k.started})
	if err != nil || len(a.Records) > 0 {
		t.Errorf("records of a held job by name: %+v, %v", a, err)
	}
	if p, found, err := k.client.Find(t.Context(), name, "", k.started); err != nil || p != slurm.Known || len(found) != 1 || found[0].JobID != job {
		t.Errorf("find: %v %+v %v", p, found, err)
	}
	k.release(t, job)
	k.settle(job, 0)
	raws := map[int64]bool{}
	for _, r := range k.records(t, job, 3) {
		task, ok := r.ID.Task()
		if !ok || task < 0 || task > 2 || r.ID.Job != job || r.State != slurm.Completed || r.ExitCode != 0 || len(r.Nodes) != 1 ||
			r.Name != name || r.Submit.Before(k.started) || r.Start.Before(r.Submit) || r.End.Before(r.Start) {
			t.Errorf("record: %+v", r)
		}
		raws[r.Raw] = true
	}
	if len(raws) != 3 || !raws[job] {
		t.Errorf("raw ids %v: want three, the array's own among them", raws)
	}
	// The controller still knows the ended tasks, each with its raw id.
	for _, r := range k.queue(t, name) {
		if r.State.Phase() != slurm.PhaseEnded || !raws[r.Raw] || r.ArrayID != job || len(r.Tasks) != 1 {
			t.Errorf("ended task: %+v", r)
		}
	}
}

func (k *conformance) failure(t *testing.T) {
	job, _ := k.submit(t, "#SBATCH --array=7", "exit 3")
	k.release(t, job)
	k.settle(job, 3)
	r := k.records(t, job, 1)[0]
	if r.State != slurm.Failed || r.ExitCode != 3 || r.ExitSignal != 0 {
		t.Errorf("record: %+v", r)
	}
	steps, err := k.client.Steps(t.Context(), k.started, r.Raw)
	if err != nil || len(steps) != 1 || steps[0].Step != "batch" || steps[0].Raw != r.Raw {
		t.Errorf("steps: %+v, %v", steps, err)
	}
}

func (k *conformance) cancelPending(t *testing.T) {
	job, name := k.submit(t, "#SBATCH --array=0-4", "true")
	if err := k.client.Cancel(t.Context(), fmt.Sprintf("%d_[1-2]", job)); err != nil {
		t.Fatal(err)
	}
	for _, r := range k.queue(t, name) {
		if r.State == slurm.Pending && (r.Tasks.Has(1) || !r.Tasks.Has(3)) {
			t.Errorf("waiting after the cancellation of 1-2: %+v", r)
		}
	}
	if err := k.client.Cancel(t.Context(), fmt.Sprint(job)); err != nil {
		t.Fatal(err)
	}
	for _, r := range k.queue(t, name) {
		if r.State != slurm.Cancelled || r.Raw != job {
			t.Errorf("cancelled: %+v", r)
		}
	}
	if p, _, err := k.client.Find(t.Context(), name, "", k.started); err != nil || p != slurm.Known {
		t.Errorf("find a cancelled job: %v %v", p, err)
	}
}

func (k *conformance) refusals(t *testing.T) {
	for _, directives := range []string{
		"#SBATCH --partition=nosuch", "#SBATCH --array=0-1001", "#SBATCH --array=a-b", "#SBATCH --no-such-option=1",
	} {
		s, name := k.trySubmit(t, directives, "true")
		if s.Outcome != slurm.Refused || s.Message == "" {
			t.Errorf("%s: %+v", directives, s)
		}
		if p, found, err := k.client.Find(t.Context(), name, "", k.started); err != nil || p != slurm.Gone {
			t.Errorf("%s: find: %v %+v %v", directives, p, found, err)
		}
	}
	// The highest index is MaxArraySize - 1.
	job, _ := k.submit(t, "#SBATCH --array=1000", "true")
	if err := k.client.Cancel(t.Context(), fmt.Sprint(job)); err != nil {
		t.Error(err)
	}
}

func (k *conformance) unknown(t *testing.T) {
	if p, _, err := k.client.Find(t.Context(), "conform-nobody", "", k.started); err != nil || p != slurm.Gone {
		t.Errorf("find: %v %v", p, err)
	}
	if err := k.client.Cancel(t.Context(), "999999"); err != nil {
		t.Errorf("scancel of an unknown id: %v", err)
	}
	if err := k.client.Release(t.Context(), 999999); err == nil {
		t.Error("scontrol release of an unknown id succeeded")
	}
	a, err := k.client.Accounting(t.Context(), slurm.AccountingQuery{Jobs: []int64{999999}, Since: k.started})
	if err != nil || len(a.Records) > 0 {
		t.Errorf("sacct of an unknown id: %+v %v", a, err)
	}
}

func (k *conformance) throttle(t *testing.T) {
	job, name := k.submit(t, "#SBATCH --array=0-9%2", "true")
	if err := k.client.UpdateThrottle(t.Context(), job, 5); err != nil {
		t.Fatal(err)
	}
	if rows := k.queue(t, name); len(rows) != 1 || rows[0].Tasks.String() != "0-9" {
		t.Errorf("throttled array: %+v", rows)
	}
	k.release(t, job)
	k.settle(job, 0)
	k.records(t, job, 10)
}

func (k *conformance) single(t *testing.T) {
	job, name := k.submit(t, "", "true")
	rows := k.queue(t, name)
	if len(rows) != 1 || rows[0].Tasks != nil || rows[0].ArrayID != job || rows[0].Raw != job {
		t.Errorf("a job that is no array: %+v", rows)
	}
	k.release(t, job)
	k.settle(job, 0)
	if r := k.records(t, job, 1)[0]; r.Raw != job || r.ID.Job != job || r.ID.Tasks != nil || r.State != slurm.Completed {
		t.Errorf("record: %+v", r)
	}
}
