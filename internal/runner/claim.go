package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/seal"
	"sbench/internal/spool"
)

// job is the allocation that this process runs in.
type job struct {
	id      int64 // raw: of the array's element
	restart int
	step    string
	node    string
	rank    int // of this node in the step
	size    int // nodes of the step
}

func jobFromEnv(getenv func(string) string) (job, error) {
	var j job
	var err error
	if j.id, err = strconv.ParseInt(getenv("SLURM_JOB_ID"), 10, 64); err != nil || j.id <= 0 {
		return job{}, errors.New("not inside a Slurm job: SLURM_JOB_ID is not a job's id")
	}
	if s := getenv("SLURM_RESTART_COUNT"); s != "" {
		if j.restart, err = strconv.Atoi(s); err != nil || j.restart < 0 {
			return job{}, fmt.Errorf("SLURM_RESTART_COUNT %q is not a count", s)
		}
	}
	if s := getenv("SLURM_PROCID"); s != "" {
		if j.rank, err = strconv.Atoi(s); err != nil || j.rank < 0 {
			return job{}, fmt.Errorf("SLURM_PROCID %q is not a rank", s)
		}
	}
	j.size = 1
	for _, name := range []string{"SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"} {
		// The step's own counts; outside of one there is one task.
		if n, err := strconv.Atoi(getenv(name)); err == nil && n > 0 && getenv("SLURM_PROCID") != "" {
			j.size = n
		}
	}
	if j.step = getenv("SLURM_STEP_ID"); j.step == "" {
		j.step = getenv("SLURM_STEPID")
	}
	if j.node = getenv("SLURMD_NODENAME"); j.node == "" {
		if j.node, err = os.Hostname(); err != nil {
			return job{}, fmt.Errorf("name of this node: %w", err)
		}
	}
	return j, nil
}

// start is the job as the spool notes it.
func (j job) start(cluster string) spool.Job {
	return spool.Job{Cluster: cluster, JobIDRaw: j.id, Restart: j.restart, Node: j.node, At: time.Now().UTC()}
}

// A shared file system may show the frozen batch late to this node, or a part of
// it. A whole file with another digest is no such case: it is not waited for long.
const (
	specMissing = time.Minute
	specWrong   = 3 * time.Second
)

// maxSpec bounds the frozen batch: 100,000 runs of one batch are far below.
const maxSpec = 256 << 20

// readSpec reads the frozen batch and verifies its digest.
func readSpec(ctx context.Context, p place) (*batch.Spec, error) {
	path := filepath.Join(p.batch, batch.SpecFile)
	began := time.Now()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		spec, err := readSpecOnce(path, p.digest)
		patience := specWrong
		if errors.Is(err, os.ErrNotExist) {
			patience = specMissing
		}
		if err == nil || ctx.Err() != nil || time.Since(began) > patience {
			return spec, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func readSpecOnce(path, digest string) (*batch.Spec, error) {
	data, err := spool.ReadPlain(path, maxSpec)
	if err != nil {
		return nil, fmt.Errorf("read frozen batch: %w", err)
	}
	return batch.Decode(data, digest)
}

func claimMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p, err := parsePlace("claim", args, false, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "sbench-runner claim: %v\n", err)
		return 2
	}
	fail := func(class lifecycle.ExitClass, err error) int {
		fmt.Fprintf(stderr, "sbench-runner claim: %v\n", err)
		return class.Code()
	}
	j, err := jobFromEnv(os.Getenv)
	if err != nil {
		return fail(lifecycle.ExitInternal, err)
	}
	spec, err := readSpec(ctx, p)
	if err != nil {
		return fail(lifecycle.ExitSpec, err)
	}
	task, ok := spec.Task(p.task)
	if !ok {
		return fail(lifecycle.ExitSpec, fmt.Errorf("the batch has no task %d", p.task))
	}
	owner, err := spool.Claim(p.batch, p.task, j.start(spec.Cluster))
	if err != nil {
		return fail(lifecycle.ExitInternal, err)
	}
	if owner.Cluster != spec.Cluster || owner.JobIDRaw != j.id {
		fmt.Fprintf(stderr, "sbench-runner claim: task %d is measured by job %d of cluster %s\n", p.task, owner.JobIDRaw, owner.Cluster)
		return 0
	}
	var todo []batch.Run
	for _, run := range task.Runs {
		if !isDone(spec.AttemptsDir, run.ID, j.id) {
			todo = append(todo, run)
		}
	}
	for _, group := range share(spec, todo) {
		var ids []string
		for _, run := range group {
			ids = append(ids, strconv.FormatInt(run.ID, 10))
		}
		// Of several, the runner itself looks whether each still fits.
		first := group[0]
		line := fmt.Sprintf("%s %d %s", strings.Join(ids, ","), int64((first.TimeLimit+time.Second-1)/time.Second), gpuFreq(spec.Node, spec.Settings[first.SettingHash].Environment))
		fmt.Fprintln(stdout, strings.TrimSpace(line))
	}
	return 0
}

// startMain notes that the job begins a run, and ends as the class cancelled where
// the daemon has given the run up in this batch.
func startMain(args []string, stderr io.Writer) int {
	fail := func(code int, err error) int {
		fmt.Fprintf(stderr, "sbench-runner start: %v\n", err)
		return code
	}
	p, err := parsePlace("start", args, true, stderr)
	if err != nil {
		return fail(2, err)
	}
	j, err := jobFromEnv(os.Getenv)
	if err != nil {
		return fail(lifecycle.ExitInternal.Code(), err)
	}
	// The cluster is in the claim, which this job has.
	closed, err := spool.Start(p.batch, p.run, j.start(""))
	switch {
	case err != nil:
		return fail(lifecycle.ExitInternal.Code(), err)
	case closed != "":
		return fail(lifecycle.ExitCancelled.Code(), fmt.Errorf("run %d is not begun here any more: %s", p.run, closed))
	}
	return 0
}

// isDone reports whether this job has sealed an attempt of the run that needs no
// other. One that was cancelled does: preemption and requeue are its usual end.
func isDone(attempts string, run, jobID int64) bool {
	found, _ := filepath.Glob(filepath.Join(attempts, strconv.FormatInt(run, 10), strconv.FormatInt(jobID, 10)+"-r*"))
	for _, dir := range found {
		text, err := spool.ReadPlain(filepath.Join(dir, result.ManifestName), seal.DefaultLimits().ManifestBytes)
		var m result.Manifest
		if err == nil && json.Unmarshal(text, &m) == nil && m.ExitClass != lifecycle.ExitCancelled {
			return true
		}
	}
	return false
}
