package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"sbench/internal/api"
	"sbench/internal/plan"
	"sbench/internal/sweep"
)

// envPrefix and the upper-cased flag name, dashes as underscores, make the
// environment variable of a submit flag.
const envPrefix = "SBENCH_"

// submitOptions are the flags of submit as they were written. The same set is
// read from the command line, from SBENCH_* and from #SBENCH lines.
type submitOptions struct {
	site, jobName, partition, account, qos, time, constraint string
	nodelist, exclude, begin, dependency, gres               string
	reservation, wckey, comment, mailType, mailUser          string
	priority                                                 string
	repeats, switches, nice, maxInflight                     string
	maxGPUHours, maxCost                                     string
	exclusive, hold, force, eachNode                         bool
	set                                                      assignments

	parsable, testOnly, wait bool
}

// assignments collects every --set; unlike pflag's own lists it takes values
// with commas as they are.
type assignments []string

func (s *assignments) String() string { return strings.Join(*s, " ") }
func (s *assignments) Type() string   { return "key=value" }
func (s *assignments) Set(v string) error {
	key, _, ok := strings.Cut(v, "=")
	if !ok || strings.TrimSpace(key) == "" {
		return fmt.Errorf("%q is not key=value", v)
	}
	*s = append(*s, v)
	return nil
}

// AddFlags declares the flags that say what is submitted and where: they are
// shared with the commands that only look at the same settings.
func (o *submitOptions) AddFlags(fs *pflag.FlagSet) {
	fs.Var(&o.set, "set", "replace a value of the base setting before anything is expanded or hashed, `key=value` as workload.seed=7; may be repeated")
	fs.StringVar(&o.repeats, "repeats", "", "run every setting `N` times")
	fs.StringVar(&o.gres, "gres", "", "the `gres` of a node as for sbatch, e.g. gpu:h100:4; sets hardware.gpu and hardware.gpus")
	fs.StringVarP(&o.constraint, "constraint", "C", "", "node features, an `expression` as for sbatch; sets hardware.constraint")
	fs.StringVar(&o.switches, "switches", "", "at most `count` leaf switches; sets hardware.switches")
	fs.BoolVar(&o.exclusive, "exclusive", false, "nobody else on the nodes; sets hardware.placement to node")
	fs.StringVar(&o.site, "site", "", "the `name` of the cluster (default: the only one, else the file's)")
}

// addJobFlags declares the flags that do not change a setting.
func (o *submitOptions) addJobFlags(fs *pflag.FlagSet) {
	fs.StringVarP(&o.jobName, "job-name", "J", "", "the sweep's `name`, instead of the file's")
	fs.StringVarP(&o.partition, "partition", "p", "", "submit to partition `name`")
	fs.StringVarP(&o.account, "account", "A", "", "charge `account`")
	fs.StringVarP(&o.qos, "qos", "q", "", "use the quality of service `qos`")
	fs.StringVarP(&o.time, "time", "t", "", "the longest `limit` of one task, as sbatch: minutes, HH:MM:SS, D-HH:MM:SS")
	fs.StringVarP(&o.nodelist, "nodelist", "w", "", "run on these `nodes` only")
	fs.StringVarP(&o.exclude, "exclude", "x", "", "never run on these `nodes`")
	fs.BoolVar(&o.eachNode, "each-node", false, "make every repeat once on each node that can take it now, to hold the nodes against each other and against their own past")
	fs.StringVarP(&o.begin, "begin", "b", "", "start nothing before `time`, as sbatch: 22:00, now+1hour, 2026-01-31T22:00")
	fs.StringVarP(&o.dependency, "dependency", "d", "", "start after other sweeps: `type:ID`, as afterok:17:18 or singleton; types are after, afterany, afterok, afternotok, singleton")
	fs.StringVar(&o.reservation, "reservation", "", "use the reservation `name`")
	fs.StringVar(&o.nice, "nice", "", "lower the jobs' priority by `N`")
	fs.Lookup("nice").NoOptDefVal = "100"
	fs.StringVar(&o.wckey, "wckey", "", "the jobs' workload characterization `key`")
	fs.StringVar(&o.comment, "comment", "", "a `text` kept with the sweep")
	fs.StringVar(&o.mailType, "mail-type", "", "send mail on these `events` of the sweep: BEGIN, END, FAIL, REQUEUE, INVALID_DEPEND, ALL, NONE")
	fs.StringVar(&o.mailUser, "mail-user", "", "send mail to `address` (default: the user who submits)")
	fs.BoolVarP(&o.hold, "hold", "H", false, "submit held: nothing starts before sbench release")
	fs.StringVar(&o.priority, "priority", "", "the `tier`: urgent, normal or bulk")
	fs.BoolVar(&o.force, "force", false, "run also what reuse would skip")
	fs.StringVar(&o.maxInflight, "max-inflight", "", "keep at most `N` runs of this sweep in Slurm at once")
	fs.StringVar(&o.maxGPUHours, "max-gpu-hours", "", "refuse the sweep if the forecast is above `hours`")
	fs.StringVar(&o.maxCost, "max-cost", "", "refuse the sweep if the forecast costs more than `USD`")
}

// addModeFlags declares what submit does with the sweep.
func (o *submitOptions) addModeFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.parsable, "parsable", false, "print the sweep's id alone")
	fs.BoolVar(&o.testOnly, "test-only", false, "print the whole plan and submit nothing")
	fs.BoolVarP(&o.wait, "wait", "W", false, "wait until the sweep has ended; Ctrl-C stops waiting, not the sweep")
}

// submitFlags returns an empty set of all the flags that #SBENCH lines and the
// environment may give.
func submitFlags(o *submitOptions) *pflag.FlagSet {
	fs := pflag.NewFlagSet("sbench submit", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() {} // an error is reported with its place instead
	o.AddFlags(fs)
	o.addJobFlags(fs)
	o.addModeFlags(fs)
	return fs
}

// load reads a sweep file and everything that may be said about it.
func (a *app) load(command *pflag.FlagSet, name string) (*source, error) {
	shown, text, err := a.readSweepFile(name)
	if err != nil {
		return nil, err
	}
	src := &source{shown: shown, text: text}
	if src.file, src.warnings, err = parse(shown, text); err != nil {
		return nil, err
	}
	if src.flags, err = a.layered(shown, text, src.file.Directives, command); err != nil {
		return nil, err
	}
	src.options, err = src.flags.request(a)
	return src, err
}

// layered merges what #SBENCH lines, the environment and the command line say;
// the last has the last word. Assignments of all three are kept in this order,
// so that the later one wins key by key.
func (a *app) layered(shown string, text []byte, lines []sweep.Directive, command *pflag.FlagSet) (*submitOptions, error) {
	merged := &submitOptions{}
	target := submitFlags(merged)
	directives, err := directiveFlags(shown, text, lines)
	if err != nil {
		return nil, err
	}
	environment, err := a.environmentFlags()
	if err != nil {
		return nil, err
	}
	for _, layer := range []*pflag.FlagSet{directives, environment, command} {
		var failed error
		layer.Visit(func(f *pflag.Flag) {
			if list, ok := f.Value.(*assignments); ok {
				merged.set = append(merged.set, *list...)
				return
			}
			if target.Lookup(f.Name) == nil {
				return // --json and the like
			}
			if err := target.Set(f.Name, f.Value.String()); err != nil && failed == nil {
				failed = err
			}
		})
		if failed != nil {
			return nil, usagef("%v", failed)
		}
	}
	return merged, nil
}

// environmentFlags reads the SBENCH_* variables of submit's flags. An empty
// variable is not given.
func (a *app) environmentFlags() (*pflag.FlagSet, error) {
	fs := submitFlags(&submitOptions{})
	var failed error
	fs.VisitAll(func(f *pflag.Flag) {
		name := envPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		v, ok := a.lookup(name)
		if !ok || v == "" || failed != nil {
			return
		}
		if f.Name == "set" {
			// One variable, several assignments: separated by blanks.
			for _, kv := range strings.Fields(v) {
				if err := fs.Set(f.Name, kv); err != nil {
					failed = usagef("%s: %v", name, err)
					return
				}
			}
			return
		}
		if err := fs.Set(f.Name, v); err != nil {
			failed = usagef("%s: %q is not a value for --%s", name, v, f.Name)
		}
	})
	return fs, failed
}

// request turns the texts into the API's options. What is not built yet is
// refused here, in so many words.
func (o *submitOptions) request(a *app) (api.Options, error) {
	out := api.Options{
		Site: o.site, Set: slices.Clone(o.set), JobName: o.jobName, Partition: o.partition, Account: o.account, QOS: o.qos,
		Constraint: o.constraint, NodeList: o.nodelist, ExcludeNodes: o.exclude, EachNode: o.eachNode, Gres: o.gres, Exclusive: o.exclusive,
		Reservation: o.reservation, Wckey: o.wckey, Comment: o.comment, Hold: o.hold, Dependency: o.dependency, Priority: o.priority, Force: o.force,
	}
	types, err := api.ParseMailType(o.mailType)
	if err != nil {
		return out, usagef("--mail-type: %v", err)
	}
	out.MailType = types
	if o.mailUser != "" {
		if err := api.CheckMailUser(o.mailUser); err != nil {
			return out, usagef("--mail-user: %v", err)
		}
		out.MailUser = o.mailUser
	}
	if _, err := plan.ParseDependency(o.dependency); err != nil {
		return out, usagef("--dependency: %v", err)
	}
	if o.maxCost != "" {
		v, err := strconv.ParseFloat(o.maxCost, 64)
		if err != nil || !(v >= 0) || math.IsInf(v, 0) {
			return out, usagef("--max-cost %q is no amount of US dollars", o.maxCost)
		}
		out.MaxCost = &v
	}
	if o.priority != "" && !slices.Contains([]string{"urgent", "normal", "bulk"}, o.priority) {
		return out, usagef("--priority %q is none of urgent, normal, bulk", o.priority)
	}
	if o.time != "" {
		d, err := timeLimit(o.time)
		if err != nil {
			return out, usagef("--time: %v", err)
		}
		s := int64(d.Seconds())
		out.TimeLimitS = &s
	}
	if o.begin != "" {
		t, err := beginTime(o.begin, a.now())
		if err != nil {
			return out, usagef("--begin: %v", err)
		}
		out.Begin = &t
	}
	for _, n := range []struct {
		flag, text string
		low        int
		to         **int
	}{
		{"repeats", o.repeats, 1, &out.Repeats},
		{"switches", o.switches, 1, &out.Switches},
		{"nice", o.nice, 0, &out.Nice},
		{"max-inflight", o.maxInflight, 1, &out.MaxInflight},
	} {
		if n.text == "" {
			continue
		}
		v, err := strconv.Atoi(n.text)
		if err != nil || v < n.low {
			return out, usagef("--%s %q is not a whole number of at least %d", n.flag, n.text, n.low)
		}
		*n.to = &v
	}
	if o.maxGPUHours != "" {
		v, err := strconv.ParseFloat(o.maxGPUHours, 64)
		if err != nil || !(v >= 0) || v > 1e15 {
			return out, usagef("--max-gpu-hours %q is not an amount", o.maxGPUHours)
		}
		out.MaxGPUHours = &v
	}
	return out, nil
}
