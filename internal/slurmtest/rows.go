package slurmtest

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"sbench/internal/slurm"
)

// row is a line of squeue or sacct by the names of its columns.
type row map[string]string

func stamp(epoch int64, none string) string {
	switch {
	case epoch == 0:
		return none
	case os.Getenv("SLURM_TIME_FORMAT") == "%s":
		return strconv.FormatInt(epoch, 10)
	default:
		return time.Unix(epoch, 0).Format("2006-01-02T15:04:05")
	}
}

func formatID(n int64) string { return strconv.FormatInt(n, 10) }

// indexesOf writes the indexes of tasks that share a row as Slurm does.
func indexesOf(tasks []Task) string {
	var list []int
	for _, t := range tasks {
		list = append(list, t.Index)
	}
	return slurm.IndexesOf(list).String()
}

// split separates tasks with a row of their own from those that share one: an
// array's tasks that never started, by their state.
func (j *Job) split() (own []Task, shared [][]Task) {
	byState := map[slurm.State][]Task{}
	for _, t := range j.Tasks {
		if j.Array && t.Raw == 0 {
			byState[t.State] = append(byState[t.State], t)
		} else {
			own = append(own, t)
		}
	}
	for _, s := range []slurm.State{slurm.Pending, slurm.Cancelled} {
		if len(byState[s]) > 0 {
			shared = append(shared, byState[s])
		}
	}
	return own, shared
}

func (c *call) squeue() error {
	if c.Faults.ControllerDown {
		return failf(1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
	}
	format, all, names := "%i %j %T", false, []string(nil)
	for _, a := range c.args {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "--noheader", "--all", "--me":
		case "--states":
			all = value == "all"
		case "--format":
			format = value
		case "--name":
			names = strings.Split(value, ",")
		case "--user":
			if value != currentUser() {
				return nil
			}
		default:
			return failf(1, "squeue: unrecognized option '%s'", a)
		}
	}
	for _, j := range c.Jobs {
		if j.Forgotten || (names != nil && !slices.Contains(names, j.Name())) {
			continue
		}
		for _, r := range j.queueRows() {
			if all || slurm.State(r["T"]).Phase() != slurm.PhaseEnded {
				c.out.WriteString(expand(format, r) + "\n")
			}
		}
	}
	return nil
}

// expand fills squeue's format letters in.
func expand(format string, r row) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] == '%' && i+1 < len(format) {
			i++
			b.WriteString(r[format[i:i+1]])
		} else {
			b.WriteByte(format[i])
		}
	}
	return b.String()
}

func (j *Job) queueRows() []row {
	base := func(state slurm.State, submit int64) row {
		comment := cmp.Or(j.Options["comment"], "(null)")
		return row{
			"F": formatID(j.ID), "T": string(state), "V": stamp(submit, "N/A"), "S": "N/A", "N": "", "u": currentUser(),
			"r": "None", "k": comment, "j": j.Name(), "K": "N/A", "A": formatID(j.ID), "i": formatID(j.ID), "P": j.Options["partition"],
		}
	}
	reason := "Priority"
	if j.Held {
		reason = "JobHeldUser"
	}
	var rows []row
	own, shared := j.split()
	for _, tasks := range shared {
		r := base(tasks[0].State, j.Submit)
		r["K"] = indexesOf(tasks)
		r["i"] = formatID(j.ID) + "_[" + r["K"] + "]"
		if tasks[0].State == slurm.Pending {
			r["r"] = reason
			if j.Throttle > 0 {
				r["K"] += "%" + strconv.Itoa(j.Throttle)
			}
		}
		rows = append(rows, r)
	}
	for _, t := range own {
		r := base(t.State, t.Submit)
		r["A"] = formatID(cmp.Or(t.Raw, j.ID))
		if j.Array {
			r["K"] = strconv.Itoa(t.Index)
			r["i"] = formatID(j.ID) + "_" + r["K"]
		}
		if t.State == slurm.Pending {
			r["r"] = reason
		}
		r["S"], r["N"] = stamp(t.Start, "N/A"), t.Node
		rows = append(rows, r)
	}
	return rows
}

type sacctQuery struct {
	format, jobs, names   []string
	delimiter             string
	duplicates, allocOnly bool
	since                 int64
}

func (c *call) sacctOptions() (sacctQuery, error) {
	q := sacctQuery{format: []string{"JobID", "State"}, delimiter: "|"}
	for _, a := range c.args {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "--noheader", "--parsable2":
		case "--duplicates":
			q.duplicates = true
		case "--allocations":
			q.allocOnly = true
		case "--delimiter":
			q.delimiter = value
		case "--format":
			q.format = strings.Split(value, ",")
		case "--jobs":
			q.jobs = strings.Split(value, ",")
		case "--name":
			q.names = strings.Split(value, ",")
		case "--user":
			if value != currentUser() {
				q.names = []string{} // nobody else has jobs here
			}
		case "--starttime":
			t, err := time.ParseInLocation("2006-01-02T15:04:05", value, time.Local)
			if err != nil {
				return q, failf(1, "sacct: error: Invalid time specification (pos=0): %s", value)
			}
			q.since = t.Unix()
		default:
			return q, failf(1, "sacct: unrecognized option '%s'", a)
		}
	}
	return q, nil
}

func (c *call) sacct() error {
	switch {
	case c.Conf.NoAccounting:
		return failf(1, "Slurm accounting storage is disabled")
	case c.Faults.AccountingDown:
		return failf(1, "sacct: error: Problem talking to the database: Connection refused")
	}
	q, err := c.sacctOptions()
	if err != nil {
		return err
	}
	for _, j := range c.Jobs {
		if q.names != nil && !slices.Contains(q.names, j.Name()) {
			continue
		}
		for _, r := range j.records(c.Faults.AccountingLag, len(q.jobs) > 0) {
			if len(q.jobs) > 0 && !slices.Contains(q.jobs, formatID(j.ID)) && !slices.Contains(q.jobs, r["jobidraw"]) && !slices.Contains(q.jobs, r["jobid"]) {
				continue
			}
			if r["past"] != "" && !q.duplicates {
				continue
			}
			if end, err := strconv.ParseInt(r["endepoch"], 10, 64); err == nil && end > 0 && end < q.since {
				continue
			}
			for _, line := range steps(r, q.allocOnly) {
				var fields []string
				for _, column := range q.format {
					fields = append(fields, line[strings.ToLower(column)])
				}
				c.out.WriteString(strings.Join(fields, q.delimiter) + "\n")
			}
		}
	}
	return nil
}

// steps adds the batch step of an allocation that started.
func steps(r row, allocOnly bool) []row {
	if allocOnly || r["nodelist"] == "None assigned" || r["jobname"] == "allocation" {
		return []row{r}
	}
	batch := row{}
	for k, v := range r {
		batch[k] = v
	}
	batch["jobid"] += ".batch"
	batch["jobidraw"] += ".batch"
	batch["jobname"], batch["user"], batch["partition"] = "batch", "", ""
	return []row{r, batch}
}

// records are the rows of the accounting database: one for each start of a task,
// one for the waiting tasks of an array, none for array tasks that were
// cancelled before they started unless the whole array was.
func (j *Job) records(lag time.Duration, byID bool) []row {
	var rows []row
	own, shared := j.split()
	for _, tasks := range shared {
		whole := len(tasks) == len(j.Tasks)
		if tasks[0].State == slurm.Cancelled && !whole {
			continue
		}
		if tasks[0].Eligible || byID || tasks[0].State == slurm.Cancelled {
			t := tasks[0]
			t.Raw, t.Submit = j.ID, j.Submit
			rows = append(rows, j.record(t, formatID(j.ID)+"_["+indexesOf(tasks)+"]"))
		}
	}
	for _, t := range own {
		id := formatID(j.ID)
		if j.Array {
			id += "_" + strconv.Itoa(t.Index)
		}
		t.Raw = cmp.Or(t.Raw, j.ID)
		for _, p := range t.Past {
			r := j.record(p, id)
			r["past"] = "yes"
			rows = append(rows, r)
		}
		r := j.record(t, id)
		if half := t.Start > 0 && time.Since(time.Unix(t.Start, 0)) < lag; half {
			if !byID {
				continue
			}
			r = row{
				"jobid": r["jobid"], "jobidraw": r["jobidraw"], "jobname": "allocation", "state": "PENDING", "submit": r["submit"],
				"start": "Unknown", "end": "Unknown", "elapsedraw": "0", "exitcode": "0:0", "nodelist": "None assigned", "user": r["user"],
			}
		} else if !t.Eligible && !byID && t.State != slurm.Cancelled {
			continue
		}
		rows = append(rows, r)
	}
	return rows
}

func (j *Job) record(t Task, id string) row {
	state := string(t.State)
	if t.State == slurm.Cancelled && t.ByUID >= 0 {
		state += " by " + strconv.Itoa(t.ByUID)
	}
	elapsed := int64(0)
	if t.Start > 0 {
		elapsed = cmp.Or(t.End, now()) - t.Start
	}
	tres := ""
	if t.Start > 0 {
		tres = "billing=1,cpu=1,node=1"
		if n := gpus(j.Options["gres"]); n > 0 {
			tres = "billing=1,cpu=1,gres/gpu=" + strconv.Itoa(n) + ",node=1"
		}
	}
	return row{
		"jobid": id, "jobidraw": formatID(t.Raw), "jobname": j.Name(), "state": state, "user": currentUser(),
		"account": cmp.Or(j.Options["account"], "ml"), "qos": cmp.Or(j.Options["qos"], "normal"), "partition": j.Options["partition"],
		"submit": stamp(t.Submit, "Unknown"), "eligible": stamp(t.Submit, "Unknown"), "start": stamp(t.Start, "Unknown"),
		"end": stamp(t.End, "Unknown"), "endepoch": formatID(t.End), "elapsedraw": formatID(elapsed),
		"exitcode": strconv.Itoa(t.Exit) + ":0", "nodelist": cmp.Or(t.Node, "None assigned"), "alloctres": tres,
		"comment": j.Options["comment"],
	}
}

// gpus reads the count of "gpu:h100:2" or "gpu:2".
func gpus(gres string) int {
	if !strings.HasPrefix(gres, "gpu") {
		return 0
	}
	n, err := strconv.Atoi(gres[strings.LastIndexByte(gres, ':')+1:])
	if err != nil {
		return 1
	}
	return n
}
