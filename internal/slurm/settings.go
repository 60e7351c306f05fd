package slurm

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Settings are the controller's own settings that a client must respect.
type Settings struct {
	Version     string // "22.05.8"
	ClusterName string
	// MaxArraySize is one more than the highest array index; 0 turns arrays off.
	MaxArraySize int
	// MaxJobCount is how many jobs the controller keeps, ended ones included
	// until MinJobAge has passed. Every task of an array is one.
	MaxJobCount    int
	MinJobAge      time.Duration
	MessageTimeout time.Duration
	KillWait       time.Duration
	JobRequeue     bool
	EnforceLimits  bool // EnforcePartLimits is not NO
	Accounting     bool // there is an accounting database
	StoresComment  bool // the database keeps comments
	// MaxArrayTasks caps the tasks of one array (SchedulerParameters); 0 is none.
	MaxArrayTasks int
	// Raw has every setting as printed.
	Raw map[string]string
}

// Settings asks scontrol.
func (c *Client) Settings(ctx context.Context) (Settings, error) {
	out, err := c.run(ctx, call{program: "scontrol", args: []string{"show", "config"}, timeout: c.conf.Timeout})
	if err != nil {
		return Settings{}, fmt.Errorf("read Slurm's settings: %w", err)
	}
	return parseSettings(out.stdout)
}

func parseSettings(text string) (Settings, error) {
	raw := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, "="); ok {
			raw[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	s := Settings{
		Version: raw["SLURM_VERSION"], ClusterName: raw["ClusterName"],
		JobRequeue: raw["JobRequeue"] != "0", EnforceLimits: raw["EnforcePartLimits"] != "NO",
		Accounting:    raw["AccountingStorageType"] == "accounting_storage/slurmdbd",
		StoresComment: strings.Contains(raw["AccountingStoreFlags"], "job_comment"),
		Raw:           raw,
	}
	var err error
	number := func(key string) int {
		n, e := strconv.Atoi(firstWord(raw[key]))
		if e != nil && err == nil {
			err = fmt.Errorf("read Slurm's settings: %s is %q", key, raw[key])
		}
		return n
	}
	s.MaxArraySize, s.MaxJobCount = number("MaxArraySize"), number("MaxJobCount")
	s.MinJobAge = time.Duration(number("MinJobAge")) * time.Second
	s.MessageTimeout = time.Duration(number("MessageTimeout")) * time.Second
	s.KillWait = time.Duration(number("KillWait")) * time.Second
	for p := range strings.SplitSeq(raw["SchedulerParameters"], ",") {
		if v, ok := strings.CutPrefix(p, "max_array_tasks="); ok {
			s.MaxArrayTasks, _ = strconv.Atoi(v)
		}
	}
	return s, err
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

// Limits are the limits of our user; 0 is no limit.
type Limits struct {
	// MaxSubmit is how many jobs (tasks) may be pending or running at once: the
	// least over the user's associations and QOS.
	MaxSubmit int
	Source    string // where the limit comes from, for people
	// qos is that of the jobs; maxWall is how long they may run by the association
	// with the account.
	qos     qosLimits
	account string
	maxWall time.Duration
}

// qosLimits are the limits of a QOS.
type qosLimits struct {
	name    string
	flags   []string
	maxWall time.Duration // 0 is no limit
	submit  []string      // limits of pending and running jobs, as printed
}

// Limits asks sacctmgr for the associations of our user with the given account
// and for the QOS; "" is any account and the default QOS. The error is
// ErrNoAccounting where the cluster keeps no accounting, and so has no limits.
func (c *Client) Limits(ctx context.Context, user, account, qos string) (Limits, error) {
	args := []string{"assoc", "where", "user=" + user}
	if account != "" {
		args = append(args, "account="+account)
	}
	out, err := c.manager(ctx, append(args, "format=account,defaultqos,maxsubmit,grpsubmit,maxwall")...)
	if err != nil {
		return Limits{}, fmt.Errorf("read limits: %w", err)
	}
	l, defaultQOS := parseAssociations(out)
	if qos == "" {
		qos = defaultQOS
	}
	if qos == "" {
		qos = "normal"
	}
	known, err := c.qos(ctx, []string{qos})
	if err != nil {
		return Limits{}, err
	}
	l.qos = known[qos]
	for _, v := range l.qos.submit {
		l.tighten(v, "QOS "+qos)
	}
	return l, nil
}

// parseAssociations reads one line for each association. Where they differ in
// how long a job may run, what is not certain is no limit.
func parseAssociations(text string) (l Limits, qos string) {
	first := true
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(f) != 5 {
			continue
		}
		if qos == "" {
			qos = f[1]
		}
		l.tighten(f[2], "association of account "+f[0])
		l.tighten(f[3], "association of account "+f[0])
		// What cannot be read is no limit: Slurm itself will tell.
		wall, _ := span(f[4])
		switch {
		case first:
			l.account, l.maxWall = f[0], wall
		case wall == 0 || l.maxWall == 0:
			l.maxWall = 0
		case wall > l.maxWall:
			l.account, l.maxWall = f[0], wall
		}
		first = false
	}
	return l, qos
}

// qos asks sacctmgr for the limits of QOS by their names; those that it does not
// know are missing.
func (c *Client) qos(ctx context.Context, names []string) (map[string]qosLimits, error) {
	if len(names) == 0 {
		return nil, nil
	}
	out, err := c.manager(ctx, "qos", "where", "name="+strings.Join(names, ","), "format=name,flags,maxwall,maxsubmitpu,maxsubmitpa,grpsubmit")
	if err != nil {
		return nil, fmt.Errorf("read limits of QOS: %w", err)
	}
	return parseQOS(out), nil
}

func parseQOS(text string) map[string]qosLimits {
	known := map[string]qosLimits{}
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(f) != 6 || f[0] == "" {
			continue
		}
		wall, _ := span(f[2]) // what cannot be read is no limit
		known[f[0]] = qosLimits{name: f[0], flags: list(f[1]), maxWall: wall, submit: f[3:]}
	}
	return known
}

func (l *Limits) tighten(value, source string) {
	if n, err := strconv.Atoi(value); err == nil && n >= 0 && (l.Source == "" || n < l.MaxSubmit) {
		l.MaxSubmit, l.Source = n, source
	}
}
