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

	"golang.org/x/sys/unix"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/seal"
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

// A shared file system may show the frozen batch late to this node, or a part of
// it. A whole file with another digest is no such case: it is not waited for long.
const (
	specMissing = time.Minute
	specWrong   = 3 * time.Second
)

// maxSpec bounds the frozen batch: 100,000 runs of one batch are far below.
const maxSpec = 256 << 20

// maxClaim bounds the claim of a task.
const maxClaim = 64 << 10

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
	data, err := readPlain(path, maxSpec)
	if err != nil {
		return nil, fmt.Errorf("read frozen batch: %w", err)
	}
	return batch.Decode(data, digest)
}

// readPlain reads a regular file of at most so many bytes. A link, a pipe or a
// device in its place must not make the task read something else, or hang.
func readPlain(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes, more than the limit %d", path, info.Size(), most)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// claim is the file that says which job measures a task.
type claim struct {
	Cluster  string    `json:"cluster"`
	JobIDRaw int64     `json:"job_id_raw"`
	Node     string    `json:"node"`
	At       time.Time `json:"at"`
}

func claimPath(dir string, task int) string {
	return filepath.Join(dir, batch.ClaimsDir, "task-"+strconv.Itoa(task))
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
	owner, err := takeClaim(p.batch, p.task, claim{spec.Cluster, j.id, j.node, time.Now().UTC()})
	if err != nil {
		return fail(lifecycle.ExitInternal, err)
	}
	if owner.Cluster != spec.Cluster || owner.JobIDRaw != j.id {
		fmt.Fprintf(stderr, "sbench-runner claim: task %d is measured by job %d of cluster %s\n", p.task, owner.JobIDRaw, owner.Cluster)
		return 0
	}
	for _, run := range task.Runs {
		if !isDone(spec.AttemptsDir, run.ID, j.id) {
			line := fmt.Sprintf("%d %d %s", run.ID, int64((run.TimeLimit+time.Second-1)/time.Second), gpuFreq(spec.Node, spec.Settings[run.SettingHash].Environment))
			fmt.Fprintln(stdout, strings.TrimSpace(line))
		}
	}
	return 0
}

// takeClaim links the claim into place, which one of any number of jobs can do,
// and returns the claim that is there.
func takeClaim(dir string, task int, c claim) (claim, error) {
	path := claimPath(dir, task)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return claim{}, fmt.Errorf("claim task %d: %w", task, err)
	}
	text, err := json.Marshal(c)
	if err != nil {
		return claim{}, err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".claim-*")
	if err != nil {
		return claim{}, fmt.Errorf("claim task %d: %w", task, err)
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(text)
	if err = errors.Join(err, temporary.Chmod(0o644), temporary.Sync(), temporary.Close()); err != nil {
		return claim{}, fmt.Errorf("claim task %d: %w", task, err)
	}
	linkErr := os.Link(temporary.Name(), path)
	// Over NFS the answer to a link that worked may be lost: what counts is what
	// the file says.
	text, err = readPlain(path, maxClaim)
	if err != nil {
		return claim{}, fmt.Errorf("claim task %d: %w", task, errors.Join(linkErr, err))
	}
	var owner claim
	if err := json.Unmarshal(text, &owner); err != nil {
		return claim{}, fmt.Errorf("claim task %d: read %s: %w", task, path, err)
	}
	return owner, nil
}

// isDone reports whether this job has sealed an attempt of the run that needs no
// other. One that was cancelled does: preemption and requeue are its usual end.
func isDone(attempts string, run, jobID int64) bool {
	found, _ := filepath.Glob(filepath.Join(attempts, strconv.FormatInt(run, 10), strconv.FormatInt(jobID, 10)+"-r*"))
	for _, dir := range found {
		text, err := readPlain(filepath.Join(dir, result.ManifestName), seal.DefaultLimits().ManifestBytes)
		var m result.Manifest
		if err == nil && json.Unmarshal(text, &m) == nil && m.ExitClass != lifecycle.ExitCancelled {
			return true
		}
	}
	return false
}
