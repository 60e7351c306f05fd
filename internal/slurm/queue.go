package slurm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Job is a row of squeue: one job, one started array task, or all the tasks of
// an array that still wait.
type Job struct {
	ArrayID int64   // the array's own id; the job's where it is no array
	Raw     int64   // the job's own id; of waiting tasks, the array's
	Tasks   Indexes // nil where it is no array
	State   State
	Reason  string // why it waits
	Submit  time.Time
	Start   time.Time // zero before the start is known; an estimate while it waits
	Nodes   []string
	User    string
	// Name and Comment are the submitter's, as the controller keeps them.
	Name, Comment string
}

// queueColumns are squeue's format letters and our names for them.
var queueColumns = []struct{ letter, name string }{
	{"%F", "array"},
	{"%A", "raw"},
	{"%K", "tasks"},
	{"%T", "state"},
	{"%V", "submit"},
	{"%S", "start"},
	{"%N", "nodes"},
	{"%u", "user"},
	{"%r", "reason"},
	{"%k", "comment"},
	{"%j", "name"},
}

// Queue is what the controller knows of our user's jobs, ended ones included
// until it forgets them (MinJobAge).
type Queue struct {
	Jobs    []Job
	Skipped []Skipped
}

// Queue makes one squeue call for all jobs. An error means that nothing is known
// about any job. It wraps ErrUnreachable where the controller did not answer.
func (c *Client) Queue(ctx context.Context) (Queue, error) {
	return c.queue(ctx)
}

// QueueByName is Queue for jobs of the given names only.
func (c *Client) QueueByName(ctx context.Context, names ...string) (Queue, error) {
	for _, n := range names {
		if err := checkName(n); err != nil {
			return Queue{}, err
		}
	}
	return c.queue(ctx, "--name="+strings.Join(names, ","))
}

func (c *Client) queue(ctx context.Context, extra ...string) (Queue, error) {
	var format, columns []string
	for _, col := range queueColumns {
		format = append(format, col.letter)
		columns = append(columns, col.name)
	}
	args := []string{"--noheader", "--all", "--states=all", "--format=" + strings.Join(format, fieldSep) + recordSep}
	if c.conf.User != "" {
		args = append(args, "--user="+c.conf.User)
	} else {
		args = append(args, "--me")
	}
	out, err := c.run(ctx, call{program: "squeue", args: append(args, extra...), timeout: c.conf.Timeout})
	if err != nil {
		return Queue{}, fmt.Errorf("read the queue: %w", err)
	}
	return parseQueue(out.stdout, columns), nil
}

// checkName allows in a job name only what no command and no list splits at.
func checkName(name string) error {
	if name == "" || len(name) > 200 || strings.Trim(name, nameAlphabet) != "" {
		return fmt.Errorf("%q cannot be searched for as a job name", name)
	}
	return nil
}

const nameAlphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

func parseQueue(text string, columns []string) Queue {
	var q Queue
	var bad skips
	for record := range strings.SplitSeq(text, recordSep) {
		record = strings.Trim(record, "\r\n")
		if record == "" {
			continue
		}
		job, err := parseJob(record, columns)
		if err != nil {
			bad.add(record, err)
			continue
		}
		q.Jobs = append(q.Jobs, job)
	}
	q.Skipped = bad
	return q
}

func parseJob(record string, columns []string) (Job, error) {
	// A name may hold the separator; it is last.
	fields := strings.SplitN(record, fieldSep, len(columns))
	if len(fields) != len(columns) {
		return Job{}, fmt.Errorf("%d fields, %d expected", len(fields), len(columns))
	}
	r := &row{columns: columns, fields: fields}
	j := Job{
		ArrayID: r.integer("array"), Raw: r.integer("raw"),
		Submit: r.instant("submit"), Start: r.instant("start"), Nodes: r.nodes("nodes"),
		User: r.text("user"), Name: r.text("name"), Comment: r.text("comment"),
	}
	j.State, _ = parseState(r.text("state"))
	if reason := r.text("reason"); reason != "None" {
		j.Reason = reason
	}
	if tasks := r.text("tasks"); tasks != "" && tasks != "N/A" {
		var err error
		if j.Tasks, err = ParseIndexes(tasks); err != nil {
			return Job{}, err
		}
	}
	if j.Raw <= 0 || j.ArrayID <= 0 {
		r.fail("raw", "no job id")
	}
	return j, r.err
}

// Named returns the jobs of that name, or that carry the text as a word of their
// comment: sites may rewrite the one or the other.
func (q Queue) Named(name string) []Job {
	var found []Job
	for _, j := range q.Jobs {
		if j.Name == name || slices.Contains(strings.Fields(j.Comment), name) {
			found = append(found, j)
		}
	}
	return found
}
