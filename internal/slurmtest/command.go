package slurmtest

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sbench/internal/slurm"
)

var programs = map[string]func(*call) error{
	"sbatch": (*call).sbatch, "squeue": (*call).squeue, "sacct": (*call).sacct,
	"scancel": (*call).scancel, "scontrol": (*call).scontrol, "sacctmgr": (*call).sacctmgr,
	"sshare": (*call).sshare,
}

// call is one run of a command.
type call struct {
	*state
	args []string
	out  strings.Builder
}

// exit is how a command fails: what it prints on stderr, and its status.
type exit struct {
	status int
	text   string
	hang   bool // print, then never return
}

func (e exit) Error() string { return e.text }

func failf(status int, format string, args ...any) error {
	return exit{status: status, text: fmt.Sprintf(format, args...)}
}

// Command runs a command if this process was started as one; it reports the
// status to exit with.
func Command() (status int, ok bool) {
	program := programs[filepath.Base(os.Args[0])]
	dir := os.Getenv(dirVariable)
	if dir == "" && filepath.IsAbs(os.Args[0]) {
		// Who passes on no environment calls the commands by their path.
		dir = filepath.Dir(filepath.Dir(os.Args[0]))
	}
	if program == nil || dir == "" {
		return 0, false
	}
	c := &call{args: os.Args[1:]}
	var failed exit
	err := withState(dir, func(s *state) error {
		c.state = s
		err := program(c)
		if errors.As(err, &failed) {
			return nil // what it did to the state stays
		}
		return err
	})
	if err != nil {
		failed = exit{status: 1, text: "slurmtest: " + err.Error()}
	}
	fmt.Print(c.out.String())
	if failed.text != "" {
		fmt.Fprintln(os.Stderr, failed.text)
	}
	for failed.hang {
		time.Sleep(time.Hour)
	}
	return failed.status, true
}

// shortOptions and flagOptions say how options are written; sbatch's own form of
// them is in its manual page.
var (
	shortOptions = map[string]string{
		"J": "job-name", "a": "array", "p": "partition", "A": "account", "q": "qos", "t": "time", "N": "nodes", "n": "ntasks",
		"c": "cpus-per-task", "C": "constraint", "w": "nodelist", "x": "exclude", "b": "begin", "d": "dependency", "o": "output",
		"e": "error", "D": "chdir", "H": "hold", "G": "gpus",
	}
	flagOptions = []string{"parsable", "hold", "requeue", "no-requeue", "exclusive", "test-only", "overcommit", "spread-job", "contiguous"}
	longOptions = []string{
		"comment", "gres", "mem", "open-mode", "signal", "wckey", "reservation", "nice", "switches", "export", "ntasks-per-node",
		"gpus-per-node", "mail-type", "mail-user", "gpu-freq", "priority", "mem-per-cpu", "kill-on-invalid-dep", "deadline", "clusters",
		"cpu-freq", "threads-per-core", "hint", "get-user-env", "tmp", "prefer", "segment", "no-kill", "parsable",
	}
)

// parseOptions splits words into options by long name and the rest.
func parseOptions(words []string, into map[string]string) (rest []string, err error) {
	for len(words) > 0 {
		w := words[0]
		words = words[1:]
		var name, value string
		hasValue := false
		switch {
		case strings.HasPrefix(w, "--"):
			name, value, hasValue = strings.Cut(w[2:], "=")
		case strings.HasPrefix(w, "-") && len(w) > 1:
			name = shortOptions[w[1:2]]
			value, hasValue = strings.TrimPrefix(w[2:], "="), len(w) > 2
		default:
			return append([]string{w}, words...), nil
		}
		isFlag := slices.Contains(flagOptions, name)
		known := isFlag || slices.Contains(longOptions, name)
		for _, long := range shortOptions {
			known = known || long == name
		}
		if !known {
			return nil, failf(255, "sbatch: unrecognized option '%s'\nTry \"sbatch --help\" for more information", w)
		}
		if !isFlag && !hasValue {
			if len(words) == 0 {
				return nil, failf(255, "sbatch: option '--%s' requires an argument", name)
			}
			value, words = words[0], words[1:]
		}
		into[name] = value
	}
	return nil, nil
}

// directives reads the #SBATCH lines: they end at the first line that is neither
// a comment nor empty.
func directives(script string) ([]string, error) {
	f, err := os.Open(script)
	if err != nil {
		return nil, failf(1, "sbatch: error: Unable to open file %s", script)
	}
	defer f.Close()
	var words []string
	lines := bufio.NewScanner(f)
	for n := 0; lines.Scan(); n++ {
		line := lines.Text()
		if n == 0 && !strings.HasPrefix(line, "#!") {
			return nil, failf(1, "sbatch: error: This does not look like a batch script.  The first\nsbatch: error: line must start with #! followed by the path to an interpreter.")
		}
		if rest, ok := strings.CutPrefix(line, "#SBATCH "); ok {
			words = append(words, splitQuoted(rest)...)
		} else if line != "" && !strings.HasPrefix(line, "#") {
			break
		}
	}
	return words, lines.Err()
}

// splitQuoted splits at blanks outside of quotes and at a comment sign.
func splitQuoted(s string) []string {
	var words []string
	var word strings.Builder
	quote, in := rune(0), false
	for _, r := range s {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == ' ' || r == '\t':
			if in {
				words = append(words, word.String())
			}
			word.Reset()
			in = false
		case r == '#' && !in:
			return words
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if in {
		words = append(words, word.String())
	}
	return words
}

const timedOut = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"

func (c *call) sbatch() error {
	line := map[string]string{}
	rest, err := parseOptions(c.args, line)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return failf(1, "slurmtest: want one script, got %q", rest)
	}
	words, err := directives(rest[0])
	if err != nil {
		return err
	}
	options := map[string]string{}
	if extra, err := parseOptions(words, options); err != nil {
		return err
	} else if len(extra) > 0 {
		return failf(1, "sbatch: error: Invalid directive found in batch script: %s", extra[0])
	}
	for name, value := range line {
		options[name] = value
	}
	if c.Faults.ControllerDown {
		return failf(1, "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)")
	}
	job, err := c.admit(options, rest[0])
	if err != nil {
		return err
	}
	fault := SubmitWell
	if len(c.Faults.Submit) > 0 {
		fault, c.Faults.Submit = c.Faults.Submit[0], c.Faults.Submit[1:]
	}
	switch fault {
	case CreateThenHang:
		c.create(job)
		return exit{hang: true}
	case CreateThenFail:
		c.create(job)
		return failf(1, timedOut)
	case CreateLater:
		c.Later = append(c.Later, job)
		return failf(1, timedOut)
	case FailUnknown:
		return failf(1, "sbatch: error: Batch job submission failed: Unspecified error")
	case Full:
		return exit{hang: true, text: "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"}
	case SubmitWell:
	}
	c.create(job)
	if _, parsable := options["parsable"]; parsable {
		fmt.Fprintf(&c.out, "%d\n", job.ID)
	} else {
		fmt.Fprintf(&c.out, "Submitted batch job %d\n", job.ID)
	}
	return nil
}

// admit checks a submission as slurmctld does.
func (c *call) admit(options map[string]string, script string) (*Job, error) {
	job := &Job{Options: options, Script: script}
	_, job.Held = options["hold"]
	if options["job-name"] == "" {
		options["job-name"] = filepath.Base(script)
	}
	if options["partition"] == "" {
		options["partition"] = c.Conf.Partitions[0]
	}
	if p := options["partition"]; !slices.Contains(c.Conf.Partitions, p) {
		return nil, failf(1, "sbatch: error: invalid partition specified: %s\nsbatch: error: Batch job submission failed: Invalid partition name specified", p)
	}
	if text := c.Faults.Refuse[options["partition"]]; text != "" {
		return nil, failf(1, "%s", text)
	}
	if c.Faults.Rename != "" {
		options["job-name"] = c.Faults.Rename
	}
	job.Tasks = []Task{{State: slurm.Pending, ByUID: -1}}
	if array, ok := options["array"]; ok {
		job.Array, job.Tasks = true, nil
		set, throttle, _ := strings.Cut(array, "%")
		job.Throttle, _ = strconv.Atoi(throttle)
		indexes, err := slurm.ParseIndexes(set)
		if err != nil {
			return nil, failf(1, "sbatch: error: Batch job submission failed: Invalid job array specification")
		}
		for i := range indexes.All() {
			if i >= c.Conf.MaxArraySize {
				return nil, failf(1, "sbatch: error: Batch job submission failed: Invalid job array specification")
			}
			job.Tasks = append(job.Tasks, Task{Index: i, State: slurm.Pending, ByUID: -1})
		}
	}
	if most := c.Conf.MaxSubmit; most > 0 && c.active()+len(job.Tasks) > most {
		return nil, failf(1, "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)")
	}
	return job, nil
}

func (c *call) scancel() error {
	for _, id := range c.args {
		if c.Faults.ControllerDown {
			return failf(8, "scancel: error: Kill job error on job id %s: Unable to contact slurm controller (connect failure)", id)
		}
		_ = c.each(id, func(_ *Job, t *Task) { // unknown ids are passed over in silence
			if t.State.Phase() != slurm.PhaseEnded {
				t.cancel()
			}
		})
	}
	return nil
}

// each applies do to the tasks that "12", "12_3" or "12_[1-3]" name.
func (c *call) each(id string, do func(*Job, *Task)) error {
	parsed, err := slurm.ParseJobID(id)
	if err != nil {
		return failf(1, "Invalid job id specified")
	}
	found := false
	for _, j := range c.Jobs {
		for i := range j.Tasks {
			t := &j.Tasks[i]
			named := j.ID == parsed.Job && (parsed.Tasks == nil || parsed.Tasks.Has(t.Index))
			if !j.Forgotten && (named || t.Raw == parsed.Job && parsed.Tasks == nil) {
				found = true
				do(j, t)
			}
		}
	}
	if !found {
		return failf(1, "slurm_load_jobs error: Invalid job id specified")
	}
	return nil
}

func (c *call) scontrol() error {
	if c.Faults.ControllerDown {
		return failf(1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
	}
	switch {
	case len(c.args) == 2 && c.args[0] == "show" && c.args[1] == "config":
		storage := "accounting_storage/slurmdbd"
		if c.Conf.NoAccounting {
			storage = "accounting_storage/none"
		}
		for _, kv := range [][2]string{
			{"AccountingStorageType", storage},
			{"AccountingStoreFlags", "job_comment"},
			{"ClusterName", c.Conf.ClusterName},
			{"EnforcePartLimits", "NO"},
			{"JobRequeue", "1"},
			{"KillWait", "30 sec"},
			{"MaxArraySize", strconv.Itoa(c.Conf.MaxArraySize)},
			{"MaxJobCount", "100000"},
			{"MessageTimeout", "10 sec"},
			{"MinJobAge", "300 sec"},
			{"SLURM_VERSION", "22.05.8"},
		} {
			fmt.Fprintf(&c.out, "%-23s = %s\n", kv[0], kv[1])
		}
		return nil
	case slices.Equal(c.args, []string{"show", "partition", "--oneliner", "--all"}):
		for i, name := range c.Conf.Partitions {
			isDefault := "NO"
			if i == 0 {
				isDefault = "YES"
			}
			fmt.Fprintf(&c.out, "PartitionName=%s Default=%s QoS=N/A MaxTime=%s State=UP\n", name, isDefault, cmp.Or(limit(c.Conf.MaxTime), "UNLIMITED"))
		}
		return nil
	case len(c.args) == 2 && (c.args[0] == "hold" || c.args[0] == "release"):
		hold := c.args[0] == "hold"
		return c.each(c.args[1], func(j *Job, t *Task) {
			j.Held = hold
			t.Eligible = t.Eligible || !hold
		})
	case len(c.args) == 2 && c.args[0] == "requeue":
		return c.each(c.args[1], func(_ *Job, t *Task) {
			if t.State == slurm.Running {
				t.requeue(slurm.Requeued)
			}
		})
	case len(c.args) == 3 && c.args[0] == "update":
		id, okID := strings.CutPrefix(c.args[1], "JobId=")
		throttle, okThrottle := strings.CutPrefix(c.args[2], "ArrayTaskThrottle=")
		if n, err := strconv.Atoi(throttle); okID && okThrottle && err == nil {
			return c.each(id, func(j *Job, _ *Task) { j.Throttle = n })
		}
	}
	return failf(1, "slurmtest: scontrol %q is not there", c.args)
}

func (c *call) sacctmgr() error {
	if c.Conf.NoAccounting {
		return failf(1, "You are not running a supported accounting_storage plugin\n(accounting_storage/none).\nOnly 'accounting_storage/slurmdbd' is supported.")
	}
	if c.Faults.AccountingDown {
		return failf(1, "sacctmgr: error: Problem talking to the database: Connection refused")
	}
	submit := ""
	if c.Conf.MaxSubmit > 0 {
		submit = strconv.Itoa(c.Conf.MaxSubmit)
	}
	switch {
	case slices.Contains(c.args, "assoc"):
		fmt.Fprintf(&c.out, "ml|normal|%s||\n", submit)
	case slices.Contains(c.args, "qos"):
		fmt.Fprintf(&c.out, "normal||%s|||\n", limit(c.Conf.MaxWall))
	default:
		return failf(1, "slurmtest: sacctmgr %q is not there", c.args)
	}
	return nil
}

func (c *call) sshare() error {
	if c.Faults.AccountingDown || c.Conf.NoAccounting {
		return failf(1, "sshare: error: Slurm accounting storage is disabled")
	}
	c.out.WriteString("root||\n")
	for _, account := range slices.Sorted(maps.Keys(c.Conf.Shares)) {
		fmt.Fprintf(&c.out, " %s||%d\n", account, c.Conf.Shares[account])
	}
	return nil
}

// limit is a number of minutes as Slurm prints it, "" for none.
func limit(minutes int) string {
	if minutes == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%02d:%02d:00", minutes/1440, minutes/60%24, minutes%60)
}

func currentUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}
