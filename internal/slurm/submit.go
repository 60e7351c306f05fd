package slurm

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Outcome is what is known about a submission.
type Outcome int

// The outcomes. Ambiguous means that a job may exist, now or later: search for
// it before submitting again.
const (
	Ambiguous Outcome = iota
	Created
	Refused
)

// String names the outcome.
func (o Outcome) String() string {
	switch o {
	case Created:
		return "created"
	case Refused:
		return "refused"
	default:
		return "ambiguous"
	}
}

// Submission is the answer of sbatch.
type Submission struct {
	Outcome Outcome
	JobID   int64  // of a created job; an array's own id
	Cluster string // as sbatch printed it; "" on a single cluster
	Message string // Slurm's own words where nothing was created or nothing is known
	// Backpressure says that Slurm has as many jobs as it, an association or a
	// QOS takes: the same submission may be accepted later.
	Backpressure bool
	// NotNow says that it was refused for a state that passes and has nothing to do
	// with the job: a partition that is drained, a controller that cannot write.
	NotNow bool
	// TooLong says that the array has a higher index than Slurm takes.
	TooLong bool
}

// sleeping is what sbatch prints before it waits up to two minutes for room.
const sleeping = "Slurm temporarily unable to accept job"

// Submit runs sbatch on a script whose #SBATCH lines say everything. It submits
// held if hold is set. It returns an error only if sbatch was not executed at
// all; everything else is an outcome.
func (c *Client) Submit(ctx context.Context, script string, hold bool) (Submission, error) {
	args := []string{"--parsable"}
	if hold {
		args = append(args, "--hold")
	}
	out, err := c.run(ctx, call{
		program: "sbatch", args: append(args, script), timeout: c.conf.SubmitTimeout,
		stop: func(line string) bool { return strings.Contains(line, sleeping) },
	})
	var e *Error
	if errors.As(err, &e) && out.exit < 0 && !e.TimedOut && !out.stopped && ctx.Err() == nil && out.stderr == "" && out.stdout == "" {
		return Submission{}, err
	}
	return classify(out, e), nil
}

// parsable is a line of sbatch --parsable: an id, perhaps with a cluster.
var parsable = regexp.MustCompile(`^([1-9][0-9]{0,9})(?:;([A-Za-z0-9_.-]+))?$`)

// classify decides what a finished sbatch has done.
func classify(out output, err *Error) Submission {
	id, cluster := int64(0), ""
	// Site wrappers may print before the id; the last line that is one counts.
	for line := range strings.Lines(out.stdout) {
		if m := parsable.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			id, _ = strconv.ParseInt(m[1], 10, 64) // ten digits always fit
			cluster = m[2]
		}
	}
	s := Submission{Message: message(out.stderr), JobID: id, Cluster: cluster}
	switch {
	case err == nil && id > 0:
		// Text on stderr beside a status 0 and an id is no failure.
		return Submission{Outcome: Created, JobID: id, Cluster: cluster}
	case err == nil:
		s.Message = "sbatch ended well but printed no job id"
	case out.stopped:
		s.Backpressure = true
	case err.TimedOut || out.exit < 0:
		s.Message = err.Error()
	case id == 0 && refusal(out.stderr):
		s.Outcome = Refused
		s.Backpressure = full(out.stderr)
		s.NotNow = slices.ContainsFunc(passing, func(text string) bool { return strings.Contains(out.stderr, text) })
		s.TooLong = strings.Contains(out.stderr, "Invalid job array specification")
	}
	return s
}

// refusal reports whether the text can only come from a submission that created
// no job. Everything unknown is ambiguous.
func refusal(stderr string) bool {
	if saysUnreachable(stderr) {
		return false
	}
	if _, reason, ok := strings.Cut(stderr, "Batch job submission failed: "); ok {
		// The controller has answered with an error code; an unknown one
		// ("Unspecified error", a number) may have come after the creation.
		return !strings.HasPrefix(reason, "Unspecified") && !strings.HasPrefix(reason, "Unknown")
	}
	// Refused by sbatch itself, before it asked the controller.
	for _, text := range []string{
		"unrecognized option", "Invalid --", "Invalid time specification", "Invalid generic resource",
		"Batch script", "does not look like a batch script", "Unable to open file", "Script arguments not permitted",
		"Invalid numeric value", "invalid partition specified", "Invalid directive", "requires an argument", "does not allow scripts",
		"Invalid job array specification", "Invalid node name",
	} {
		if strings.Contains(stderr, text) {
			return true
		}
	}
	return false
}

// passing are refusals that say nothing about the job.
var passing = []string{
	"Required partition not available (inactive or drain)",
	"I/O error writing script/environment to file",
	"Requested operation is presently disabled",
}

// policyReason is the limit that Slurm names beside a violated policy.
var policyReason = regexp.MustCompile(`\b(?:QOS|Assoc)[A-Z][A-Za-z]+\b`)

// full reports whether a refusal is about how many jobs there are. The text of a
// violated policy names every kind of limit: which it was stands beside it. A
// limit of size or time will not be met by waiting.
func full(stderr string) bool {
	if reason := policyReason.FindString(stderr); reason != "" {
		return strings.Contains(reason, "SubmitJob")
	}
	for _, text := range []string{"job submit limit", sleeping, "Job/step already completing", "Too many jobs"} {
		if strings.Contains(stderr, text) {
			return true
		}
	}
	return false
}

// message is the text of stderr without the program's name, on one line.
func message(stderr string) string {
	var parts []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		for _, prefix := range []string{"sbatch: ", "error: ", "fatal: ", "Batch job submission failed: "} {
			line = strings.TrimPrefix(line, prefix)
		}
		if line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}

// Cancel cancels jobs, whole arrays or single tasks ("12", "12_3", "12_[4-6]").
// scancel says nothing about unknown ids and jobs that have ended, so success
// means only that the controller took the request.
func (c *Client) Cancel(ctx context.Context, ids ...string) error {
	if len(ids) == 0 {
		return nil
	}
	for _, id := range ids {
		if !target.MatchString(id) {
			return fmt.Errorf("cancel: %q is not a job id", id)
		}
	}
	_, err := c.run(ctx, call{program: "scancel", args: ids, timeout: c.conf.Timeout})
	if err != nil {
		return fmt.Errorf("cancel %s: %w", strings.Join(ids, " "), err)
	}
	return nil
}

var target = regexp.MustCompile(`^[1-9][0-9]{0,9}(_([0-9]{1,7}|\[[0-9,-]+\]))?$`)

// Release lets a held job start.
func (c *Client) Release(ctx context.Context, job int64) error {
	return c.control(ctx, "release", strconv.FormatInt(job, 10))
}

// ReleaseTasks lets held tasks of an array start.
func (c *Client) ReleaseTasks(ctx context.Context, array int64, tasks ...int) error {
	if len(tasks) == 0 {
		return nil
	}
	ids := make([]string, len(tasks))
	for i, t := range tasks {
		ids[i] = fmt.Sprintf("%d_%d", array, t)
	}
	return c.control(ctx, "release", strings.Join(ids, ","))
}

// Hold keeps what is pending of a job from starting.
func (c *Client) Hold(ctx context.Context, job int64) error {
	return c.control(ctx, "hold", strconv.FormatInt(job, 10))
}

// UpdateThrottle changes how many tasks of an array run at once; 0 is no limit.
func (c *Client) UpdateThrottle(ctx context.Context, array int64, most int) error {
	return c.control(ctx, "update", "JobId="+strconv.FormatInt(array, 10), "ArrayTaskThrottle="+strconv.Itoa(most))
}

func (c *Client) control(ctx context.Context, args ...string) error {
	_, err := c.run(ctx, call{program: "scontrol", args: args, timeout: c.conf.Timeout})
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return nil
}
