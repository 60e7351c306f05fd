package slurm

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Record is an allocation in the accounting database: one start of a job or
// array task. A requeue makes another record of the same Raw id with another
// Submit time.
type Record struct {
	Raw    int64
	ID     JobID
	State  State
	ByUID  int // who cancelled it; -1 where nobody is named
	Submit time.Time
	// Start and End are zero where they are not known: a record that has ended
	// but has no End is not final.
	Start, End   time.Time
	Elapsed      time.Duration
	ExitCode     int // as the database shows it: before 25.11 it is off by 128 above 127
	ExitSignal   int
	Nodes        []string
	GPUs         int
	AllocTRES    string
	User         string
	Account, QOS string
	Partition    string
	Restarts     *int // of the job before this start; nil where Slurm, before 24.11, does not say
	Name         string
}

// Placeholder reports whether the record is only the trace of a step that
// reached the database before its job did. It says nothing about the job.
func (r Record) Placeholder() bool { return r.Name == "allocation" || r.Submit.IsZero() }

// Ended reports whether the record is final.
func (r Record) Ended() bool { return r.State.RecordPhase() == PhaseEnded && !r.End.IsZero() }

// accountingColumns are asked for by name; free text is last. Versions add columns
// and take them away, and one that is not there fails the whole query: it is left
// out from then on. Restarts came with 24.11; the others are in 21.08 to 25.11.
var accountingColumns = []string{
	"JobIDRaw", "JobID", "State", "Submit", "Start", "End", "ElapsedRaw", "ExitCode",
	"NodeList", "AllocTRES", "User", "Account", "QOS", "Partition", "Restarts", "JobName",
}

// essential are the columns without which a row says nothing.
var essential = []string{"JobIDRaw", "JobID", "State", "Submit", "End", "JobName"}

var invalidField = regexp.MustCompile(`Invalid field requested: "([A-Za-z0-9_]+)"`)

// sacct asks for those of the columns that this Slurm has, and returns them.
func (c *Client) sacct(ctx context.Context, all []string, args func(columns []string) []string) (output, []string, error) {
	for {
		columns := c.present(all)
		out, err := c.run(ctx, call{program: "sacct", args: args(columns), timeout: c.conf.Timeout})
		m := invalidField.FindStringSubmatch(out.stderr)
		if err == nil || m == nil {
			return out, columns, err
		}
		same := func(name string) bool { return strings.EqualFold(name, m[1]) }
		if !slices.ContainsFunc(columns, same) || slices.ContainsFunc(essential, same) {
			return out, columns, err
		}
		c.lacks(strings.ToLower(m[1]))
	}
}

func (c *Client) present(all []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return c.missing[strings.ToLower(name)] })
}

func (c *Client) lacks(column string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missing[column] = true
}

// Accounting is the answer of sacct.
type Accounting struct {
	Records []Record
	Skipped []Skipped
}

// AccountingQuery selects records of our user's jobs.
type AccountingQuery struct {
	// Jobs are job or array ids; empty asks for all jobs of the window, which
	// leaves out those that were never eligible to start.
	Jobs []int64
	// Names limits the records to jobs of these names.
	Names []string
	// Since excludes what ended before; the zero time is the beginning. Ids are
	// used again, so a caller sets it to a while before the first submission.
	Since time.Time
}

// Accounting makes one sacct call: allocations only, duplicates (requeues)
// included. The error wraps ErrUnreachable or ErrNoAccounting where the database
// did not answer: then nothing is known.
func (c *Client) Accounting(ctx context.Context, q AccountingQuery) (Accounting, error) {
	for _, n := range q.Names {
		if err := checkName(n); err != nil {
			return Accounting{}, err
		}
	}
	out, columns, err := c.sacct(ctx, accountingColumns, func(columns []string) []string {
		args := append(c.accountingArgs(q.Jobs, q.Since, columns), "--allocations")
		if len(q.Names) > 0 {
			args = append(args, "--name="+strings.Join(q.Names, ","))
		}
		return args
	})
	if err != nil {
		return Accounting{}, fmt.Errorf("read accounting records: %w", err)
	}
	return parseAccounting(out.stdout, columns), nil
}

func (c *Client) accountingArgs(jobs []int64, since time.Time, columns []string) []string {
	args := []string{
		"--noheader", "--parsable2", "--delimiter=" + fieldSep, "--duplicates",
		"--format=" + strings.Join(columns, ","),
	}
	if c.conf.User != "" {
		args = append(args, "--user="+c.conf.User)
	}
	if len(jobs) > 0 {
		ids := make([]string, len(jobs))
		for i, j := range jobs {
			ids[i] = strconv.FormatInt(j, 10)
		}
		args = append(args, "--jobs="+strings.Join(ids, ","))
	}
	if since.IsZero() {
		since = time.Unix(0, 0)
	}
	// sacct reads local times, and runs with TZ=UTC.
	return append(args, "--starttime="+since.UTC().Format("2006-01-02T15:04:05"))
}

// errShort is a record that goes on in the next line: a name with a newline.
var errShort = errors.New("too few fields")

func parseAccounting(text string, columns []string) Accounting {
	var a Accounting
	var bad skips
	for _, record := range accountingRows(text, len(columns)) {
		r, err := parseRecord(record, columns)
		if err != nil {
			bad.add(record, err)
			continue
		}
		a.Records = append(a.Records, r)
	}
	a.Skipped = bad
	return a
}

// accountingRows joins the lines of a record whose last field, free text, has
// newlines. A line that has as many fields as a record begins one.
func accountingRows(text string, columns int) []string {
	var rows []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.Count(line, fieldSep) < columns-1 {
			if n := len(rows); n > 0 && line != "" {
				rows[n-1] += "\n" + line
			} else if line != "" {
				rows = append(rows, line)
			}
			continue
		}
		rows = append(rows, line)
	}
	return rows
}

func parseRecord(record string, columns []string) (Record, error) {
	fields := strings.SplitN(record, fieldSep, len(columns))
	if len(fields) != len(columns) {
		return Record{}, errShort
	}
	r := &row{columns: columns, fields: fields}
	rec := Record{
		Raw: r.integer("JobIDRaw"), Submit: r.instant("Submit"), Start: r.instant("Start"), End: r.instant("End"),
		Elapsed: time.Duration(r.integer("ElapsedRaw")) * time.Second,
		Nodes:   r.nodes("NodeList"), AllocTRES: r.text("AllocTRES"),
		User: r.text("User"), Account: r.text("Account"), QOS: r.text("QOS"), Partition: r.text("Partition"), Name: r.text("JobName"),
	}
	rec.GPUs = gpus(rec.AllocTRES)
	rec.State, rec.ByUID = parseState(r.text("State"))
	rec.ExitCode, rec.ExitSignal = r.exitStatus("ExitCode")
	if r.text("Restarts") != "" {
		n := int(r.integer("Restarts"))
		rec.Restarts = &n
	}
	if r.err != nil {
		return Record{}, r.err
	}
	id, err := ParseJobID(r.text("JobID"))
	if err != nil {
		return Record{}, err
	}
	rec.ID = id
	if rec.Raw <= 0 {
		return Record{}, errors.New("no job id")
	}
	return rec, nil
}

// Step is a step of an allocation.
type Step struct {
	Raw        int64 // of the job
	Step       string
	Name       string
	State      State
	Start, End time.Time
	Elapsed    time.Duration
	ExitCode   int
	ExitSignal int
	Nodes      []string
	// EnergyJ is what the nodes consumed in joules; nil where Slurm measured none
	// (it says 0 without a plugin) or says what they cannot have drawn.
	EnergyJ *float64
}

var stepColumns = []string{"JobIDRaw", "State", "Start", "End", "ElapsedRaw", "ExitCode", "NodeList", energyColumn, "JobName"}

const energyColumn = "ConsumedEnergyRaw"

// maxNodeWatts is more than any node draws: energy counters that wrapped or were
// reset show as far more.
const maxNodeWatts = 30_000

// energy reads the joules of a step that ran on nodes for so long.
func (r *row) energy(nodes int, elapsed time.Duration) *float64 {
	v, err := strconv.ParseFloat(r.text(energyColumn), 64)
	if err != nil || !(v > 0) || v > maxNodeWatts*float64(nodes)*(elapsed.Seconds()+1) {
		return nil
	}
	return &v
}

// MaxStepJobs is how many jobs one call of Steps takes: the list is an argument,
// and the database joins every step of every job.
const MaxStepJobs = 500

// Steps makes one sacct call for the steps of jobs that have ended, by their raw
// ids, requeued allocations included.
func (c *Client) Steps(ctx context.Context, since time.Time, raw ...int64) ([]Step, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	if len(raw) > MaxStepJobs {
		return nil, fmt.Errorf("read steps: %d jobs, at most %d at once", len(raw), MaxStepJobs)
	}
	out, columns, err := c.sacct(ctx, stepColumns, func(columns []string) []string { return c.accountingArgs(raw, since, columns) })
	if err != nil {
		return nil, fmt.Errorf("read steps: %w", err)
	}
	return parseSteps(out.stdout, columns), nil
}

func parseSteps(text string, columns []string) []Step {
	var steps []Step
	for _, record := range accountingRows(text, len(columns)) {
		fields := strings.SplitN(record, fieldSep, len(columns))
		if len(fields) != len(columns) {
			continue
		}
		r := &row{columns: columns, fields: fields}
		id, err := ParseJobID(r.text("JobIDRaw"))
		if err != nil || id.Step == "" {
			continue
		}
		s := Step{
			Raw: id.Job, Step: id.Step, Name: r.text("JobName"), Start: r.instant("Start"), End: r.instant("End"),
			Elapsed: time.Duration(r.integer("ElapsedRaw")) * time.Second, Nodes: r.nodes("NodeList"),
		}
		s.State, _ = parseState(r.text("State"))
		s.ExitCode, s.ExitSignal = r.exitStatus("ExitCode")
		if slices.Contains(columns, energyColumn) {
			s.EnergyJ = r.energy(len(s.Nodes), s.Elapsed)
		}
		if r.err == nil {
			steps = append(steps, s)
		}
	}
	return steps
}
