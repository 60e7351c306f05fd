package slurmtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"sbench/internal/slurm"
)

// dirVariable tells the commands where their cluster's state lies.
const dirVariable = "SLURMTEST_DIR"

// Config is the part of slurm.conf that the fake knows. Zero fields have
// defaults.
type Config struct {
	ClusterName  string   // "fake"
	Partitions   []string // gpu, l4, cpu
	MaxArraySize int      // 1001
	// MaxSubmit caps the pending and running tasks of all jobs; 0 is no limit.
	MaxSubmit int
	// MaxTime is that of every partition, MaxWall that of the only QOS, in minutes;
	// 0 is no limit.
	MaxTime, MaxWall int
	Shares           map[string]int // of accounts below the root
	NoAccounting     bool
}

// Faults change what the commands do, from the next call on.
type Faults struct {
	// Submit is what the next submissions do, one each.
	Submit []SubmitFault `json:",omitempty"`
	// Refuse is what sbatch says to jobs of a partition, which it then refuses.
	Refuse map[string]string `json:",omitempty"`
	// Rename is the name that the site gives every job; "" leaves them alone.
	Rename string `json:",omitempty"`
	// ControllerDown: squeue, scontrol and scancel fail, sbatch creates nothing.
	ControllerDown bool `json:",omitempty"`
	// AccountingDown: sacct, sacctmgr and sshare fail.
	AccountingDown bool `json:",omitempty"`
	// AccountingLag is how long after a task's start its record stays the half
	// one of Slurm (name "allocation", PENDING, seen only when asked for by id),
	// whatever has become of the task.
	AccountingLag time.Duration `json:",omitempty"`
}

// SubmitFault is what an sbatch does beside or instead of its work.
type SubmitFault string

// The faults of sbatch.
const (
	SubmitWell SubmitFault = ""
	// CreateThenHang creates the job and never returns.
	CreateThenHang SubmitFault = "create-then-hang"
	// CreateThenFail creates the job, but the answer is lost: exit status 1 and
	// "Socket timed out on send/recv operation".
	CreateThenFail SubmitFault = "create-then-fail"
	// CreateLater fails like CreateThenFail; the job comes into being when the
	// test calls Deliver, as with a controller that hung.
	CreateLater SubmitFault = "create-later"
	// FailUnknown creates nothing and fails for a reason that nobody knows.
	FailUnknown SubmitFault = "fail-unknown"
	// Full is sbatch waiting for room in a controller at its MaxJobCount.
	Full SubmitFault = "full"
)

// Cluster is a fake cluster. Its methods may be called while commands run.
type Cluster struct {
	t   testing.TB
	dir string
}

// New makes a cluster and its commands, which live as long as the test.
func New(t testing.TB, conf Config) *Cluster {
	t.Helper()
	if conf.ClusterName == "" {
		conf.ClusterName = "fake"
	}
	if conf.Partitions == nil {
		conf.Partitions = []string{"gpu", "l4", "cpu"}
	}
	if conf.MaxArraySize == 0 {
		conf.MaxArraySize = 1001
	}
	c := &Cluster{t: t, dir: t.TempDir()}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(c.BinDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	for name := range programs {
		if err := os.Symlink(exe, filepath.Join(c.BinDir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeState(c.dir, &state{Conf: conf, NextID: 1}); err != nil {
		t.Fatal(err)
	}
	return c
}

// BinDir holds the commands.
func (c *Cluster) BinDir() string { return filepath.Join(c.dir, "bin") }

// Env is what the commands need in their environment, as NAME=value.
func (c *Cluster) Env() []string { return []string{dirVariable + "=" + c.dir} }

// Client returns a client of the cluster.
func (c *Cluster) Client() *slurm.Client {
	return slurm.New(slurm.Config{
		BinDir: c.BinDir(), Env: c.Env(), Conf: filepath.Join(c.dir, "slurm.conf"),
		Timeout: 20 * time.Second, SubmitTimeout: 5 * time.Second,
	})
}

// Fault replaces the faults.
func (c *Cluster) Fault(f Faults) {
	c.t.Helper()
	c.update(func(s *state) { s.Faults = f })
}

// Reconfigure changes how long an array may be.
func (c *Cluster) Reconfigure(maxArraySize int) {
	c.t.Helper()
	c.update(func(s *state) { s.Conf.MaxArraySize = maxArraySize })
}

// Jobs lists the jobs that the controller knows, in the order of submission.
func (c *Cluster) Jobs() []Job {
	c.t.Helper()
	var jobs []Job
	c.update(func(s *state) {
		for _, j := range s.Jobs {
			if !j.Forgotten {
				jobs = append(jobs, *j)
			}
		}
	})
	return jobs
}

// Start starts pending tasks of a job that is not held (index 0 for a job that
// is no array), on the given node.
func (c *Cluster) Start(job int64, node string, indexes ...int) {
	c.t.Helper()
	c.tasks(job, indexes, func(s *state, j *Job, t *Task) error {
		if j.Held || t.State != slurm.Pending {
			return fmt.Errorf("task %d_%d is %s and held is %v", job, t.Index, t.State, j.Held)
		}
		s.start(j, t, node)
		return nil
	})
}

// End ends running tasks in the given state.
func (c *Cluster) End(job int64, in slurm.State, exitCode int, indexes ...int) {
	c.t.Helper()
	c.tasks(job, indexes, func(_ *state, j *Job, t *Task) error {
		if t.State != slurm.Running {
			return fmt.Errorf("task %d_%d is %s", job, t.Index, t.State)
		}
		t.end(in, exitCode)
		return nil
	})
}

// Requeue puts running tasks back into the queue; the record of the lost start
// is closed in the given state (REQUEUED, NODE_FAIL, PREEMPTED).
func (c *Cluster) Requeue(job int64, as slurm.State, indexes ...int) {
	c.t.Helper()
	c.tasks(job, indexes, func(_ *state, j *Job, t *Task) error {
		if t.State != slurm.Running {
			return fmt.Errorf("task %d_%d is %s", job, t.Index, t.State)
		}
		t.requeue(as)
		return nil
	})
}

// Play starts every pending task of a job that is not held and ends it with the
// exit code.
func (c *Cluster) Play(job int64, exitCode int) {
	c.t.Helper()
	c.tasks(job, nil, func(s *state, j *Job, t *Task) error {
		if j.Held || t.State != slurm.Pending {
			return nil
		}
		s.start(j, t, "node1")
		in := slurm.Completed
		if exitCode != 0 {
			in = slurm.Failed
		}
		t.end(in, exitCode)
		return nil
	})
}

// Forget removes ended jobs from the queue, as after MinJobAge; sacct keeps them.
func (c *Cluster) Forget(job int64) {
	c.t.Helper()
	c.tasks(job, nil, func(_ *state, j *Job, t *Task) error {
		if t.State.Phase() != slurm.PhaseEnded {
			return fmt.Errorf("task %d_%d is %s", job, t.Index, t.State)
		}
		j.Forgotten = true
		return nil
	})
}

// Crash is the controller dying before it has saved its state: jobs submitted
// after the first keep ones are gone from the queue and their ids are given to
// the next submissions. sacct keeps what it had.
func (c *Cluster) Crash(keep int) {
	c.t.Helper()
	c.update(func(s *state) {
		for _, j := range s.Jobs[min(keep, len(s.Jobs)):] {
			j.Forgotten = true
			s.NextID = min(s.NextID, j.ID)
		}
	})
}

// Deliver creates the jobs of submissions that met CreateLater.
func (c *Cluster) Deliver() {
	c.t.Helper()
	c.update(func(s *state) {
		for _, j := range s.Later {
			s.create(j)
		}
		s.Later = nil
	})
}

func (c *Cluster) tasks(job int64, indexes []int, do func(*state, *Job, *Task) error) {
	c.t.Helper()
	var err error
	c.update(func(s *state) {
		j := s.find(job)
		if j == nil {
			err = fmt.Errorf("no job %d", job)
			return
		}
		for i := range j.Tasks {
			if t := &j.Tasks[i]; err == nil && (len(indexes) == 0 || slices.Contains(indexes, t.Index)) {
				err = do(s, j, t)
			}
		}
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) update(do func(*state)) {
	c.t.Helper()
	if err := withState(c.dir, func(s *state) error { do(s); return nil }); err != nil {
		c.t.Fatal(err)
	}
}

// withState holds the lock of the state while do changes it.
func withState(dir string, do func(*state) error) error {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if err := do(&s); err != nil {
		return err
	}
	return writeState(dir, &s)
}

func writeState(dir string, s *state) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "state.json.new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, "state.json"))
}
