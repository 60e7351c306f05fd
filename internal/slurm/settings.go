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

// Limits are the submit limits of our user; 0 is no limit.
type Limits struct {
	// MaxSubmit is how many jobs (tasks) may be pending or running at once: the
	// least over the user's associations and QOS.
	MaxSubmit int
	Source    string // where the limit comes from, for people
}

// Limits asks sacctmgr for the associations of our user with the given account
// and for the QOS; "" is any account and the default QOS.
func (c *Client) Limits(ctx context.Context, user, account, qos string) (Limits, error) {
	args := []string{"--noheader", "--parsable2", "show", "assoc", "where", "user=" + user}
	if account != "" {
		args = append(args, "account="+account)
	}
	out, err := c.run(ctx, call{program: "sacctmgr", args: append(args, "format=account,defaultqos,maxsubmit,grpsubmit"), timeout: c.conf.Timeout})
	if err != nil {
		return Limits{}, fmt.Errorf("read submit limits: %w", err)
	}
	var l Limits
	for line := range strings.Lines(out.stdout) {
		f := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(f) != 4 {
			continue
		}
		if qos == "" {
			qos = f[1]
		}
		l.tighten(f[2], "association of account "+f[0])
		l.tighten(f[3], "association of account "+f[0])
	}
	if qos == "" {
		qos = "normal"
	}
	out, err = c.run(ctx, call{
		program: "sacctmgr", timeout: c.conf.Timeout,
		args: []string{"--noheader", "--parsable2", "show", "qos", "where", "name=" + qos, "format=name,maxsubmitpu,maxsubmitpa,grpsubmit"},
	})
	if err != nil {
		return Limits{}, fmt.Errorf("read submit limits: %w", err)
	}
	for line := range strings.Lines(out.stdout) {
		f := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(f) == 4 && f[0] == qos {
			for _, v := range f[1:] {
				l.tighten(v, "QOS "+qos)
			}
		}
	}
	return l, nil
}

func (l *Limits) tighten(value, source string) {
	if n, err := strconv.Atoi(value); err == nil && n >= 0 && (l.Source == "" || n < l.MaxSubmit) {
		l.MaxSubmit, l.Source = n, source
	}
}
