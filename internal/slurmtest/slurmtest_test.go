package slurmtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sbench/internal/devcluster"
	"sbench/internal/slurm"
)

func TestMain(m *testing.M) {
	if status, ok := Command(); ok {
		os.Exit(status)
	}
	os.Exit(m.Run())
}

func TestFakeConforms(t *testing.T) {
	t.Parallel()
	c := New(t, Config{})
	Conform(t, c.Client(), t.TempDir(), c.Play)
}

// TestRealConforms holds the checks themselves to a real cluster.
func TestRealConforms(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("brings a cluster up: left out with -short")
	}
	dir, err := os.MkdirTemp("", "sbconf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := devcluster.Stop(context.Background(), dir, true); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	real, err := devcluster.Up(t.Context(), devcluster.Options{
		Dir: filepath.Join(dir), Nodes: devcluster.Nodes{GPU: 1, CPU: 1}, NoDatabase: true,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := slurm.New(slurm.Config{Conf: filepath.Join(real.Dir(), "etc", "slurm.conf")})
	Conform(t, client, t.TempDir(), func(int64, int) {})
}

// held submits a held two-task array.
func held(t *testing.T, c *Cluster, name string) (slurm.Submission, time.Time) {
	t.Helper()
	before := time.Now().Add(-time.Second)
	script := filepath.Join(t.TempDir(), "s.sbatch")
	text := "#!/bin/sh\n#SBATCH --job-name=" + name + "\n#SBATCH --array=0-1 # two\n#SBATCH --gres gpu:h100:2\n\ntrue\n#SBATCH --array=0-9\n"
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := c.Client().Submit(t.Context(), script, true)
	if err != nil {
		t.Fatal(err)
	}
	return s, before
}

func TestFaultsOfSubmission(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fault        SubmitFault
		outcome      slurm.Outcome
		backpressure bool
		found        slurm.Presence
	}{
		{SubmitWell, slurm.Created, false, slurm.Known},
		{CreateThenHang, slurm.Ambiguous, false, slurm.Known},
		{CreateThenFail, slurm.Ambiguous, false, slurm.Known},
		{CreateLater, slurm.Ambiguous, false, slurm.Gone},
		{FailUnknown, slurm.Ambiguous, false, slurm.Gone},
		{Full, slurm.Ambiguous, true, slurm.Gone},
	} {
		t.Run(string(test.fault), func(t *testing.T) {
			t.Parallel()
			c := New(t, Config{})
			c.Fault(Faults{Submit: []SubmitFault{test.fault}})
			s, before := held(t, c, "token")
			if s.Outcome != test.outcome || s.Backpressure != test.backpressure {
				t.Errorf("submission: %+v", s)
			}
			if p, _, err := c.Client().Find(t.Context(), "token", "", before); err != nil || p != test.found {
				t.Errorf("find: %v, %v; want %v", p, err, test.found)
			}
			c.Deliver()
			if p, _, _ := c.Client().Find(t.Context(), "token", "", before); test.fault == CreateLater && p != slurm.Known {
				t.Errorf("find after the late creation: %v", p)
			}
		})
	}
}

func TestFaultsOfServers(t *testing.T) {
	t.Parallel()
	c := New(t, Config{})
	s, before := held(t, c, "token")
	client := c.Client()
	c.Fault(Faults{ControllerDown: true, AccountingDown: true})
	if _, err := client.Queue(t.Context()); !errors.Is(err, slurm.ErrUnreachable) {
		t.Errorf("squeue: %v", err)
	}
	if _, err := client.Accounting(t.Context(), slurm.AccountingQuery{}); !errors.Is(err, slurm.ErrUnreachable) {
		t.Errorf("sacct: %v", err)
	}
	if err := client.Cancel(t.Context(), "1"); !errors.Is(err, slurm.ErrUnreachable) {
		t.Errorf("scancel: %v", err)
	}
	c.Fault(Faults{AccountingLag: time.Hour})
	if err := client.Release(t.Context(), s.JobID); err != nil {
		t.Fatal(err)
	}
	c.Start(s.JobID, "gpu1", 0)
	a, err := client.Accounting(t.Context(), slurm.AccountingQuery{Jobs: []int64{s.JobID}, Since: before})
	if err != nil || len(a.Records) != 2 || !a.Records[1].Placeholder() {
		t.Errorf("records within the lag: %+v, %v", a, err)
	}
	c.Fault(Faults{})
	c.Requeue(s.JobID, slurm.NodeFail, 0)
	c.Start(s.JobID, "gpu2", 0)
	c.End(s.JobID, slurm.Timeout, 0, 0)
	a, err = client.Accounting(t.Context(), slurm.AccountingQuery{Jobs: []int64{s.JobID}, Since: before})
	if err != nil || len(a.Records) != 3 || a.Records[1].State != slurm.NodeFail || a.Records[2].State != slurm.Timeout || a.Records[2].GPUs != 2 {
		t.Errorf("records of a requeued task: %+v, %v", a, err)
	}
	none := New(t, Config{NoAccounting: true}).Client()
	if _, err := none.Accounting(t.Context(), slurm.AccountingQuery{}); !errors.Is(err, slurm.ErrNoAccounting) {
		t.Errorf("sacct without accounting: %v", err)
	}
}

func TestCrashReusesIDs(t *testing.T) {
	t.Parallel()
	c := New(t, Config{MaxSubmit: 4})
	first, before := held(t, c, "first")
	second, _ := held(t, c, "second")
	if third, _ := held(t, c, "third"); third.Outcome != slurm.Refused || !third.Backpressure {
		t.Errorf("over the submit limit: %+v", third)
	}
	c.Crash(1)
	third, _ := held(t, c, "third")
	if third.JobID != second.JobID || first.JobID == second.JobID {
		t.Errorf("ids %d, %d, then %d", first.JobID, second.JobID, third.JobID)
	}
	if p, _, err := c.Client().Find(t.Context(), "second", "", before); err != nil || p != slurm.Gone {
		t.Errorf("find a lost held job: %v, %v", p, err)
	}
	if jobs := c.Jobs(); len(jobs) != 2 || jobs[1].Name() != "third" {
		t.Errorf("jobs: %+v", jobs)
	}
}
