// Package sitecheck holds a site file against the real Slurm, the shared file
// system and the compute nodes. It promises one verdict for each thing it looked
// at, with what was found and what to do; what nobody could tell is unknown, not
// passed. It refuses to change anything but files of its own.
package sitecheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"sbench/internal/api"
	"sbench/internal/batch"
	"sbench/internal/site"
	"sbench/internal/slurm"
)

// Options say how far a check goes.
type Options struct {
	// Job submits a job of a minute for each kind of hardware.
	Job bool
	// Wait is how long the jobs may take to start and end; 0 is DefaultWait.
	Wait time.Duration
	// Skew is how far clocks may be apart; 0 is DefaultSkew.
	Skew time.Duration
}

// The defaults of Options. A check ends within a minute.
const (
	DefaultWait = 40 * time.Second
	DefaultSkew = 2 * time.Second
)

// oldest is the first version of Slurm that sbench works with.
const oldest = "21.08"

// check is one run of it.
type check struct {
	site    *site.Site
	cluster *slurm.Client
	options Options
	user    string
	probes  []api.SiteProbe

	settings *slurm.Settings // nil where the controller did not answer
	parts    map[string]slurm.Partition
	nodes    []slurm.Node
}

// Run looks at everything. The error says that ctx ended.
func Run(ctx context.Context, st *site.Site, cluster *slurm.Client, o Options) (api.SiteCheck, error) {
	o.Wait, o.Skew = cmp.Or(o.Wait, DefaultWait), cmp.Or(o.Skew, DefaultSkew)
	c := &check{site: st, cluster: cluster, options: o, parts: map[string]slurm.Partition{}, probes: []api.SiteProbe{}}
	if u, err := user.Current(); err == nil {
		c.user = u.Username
	}
	for _, look := range []func(context.Context){
		c.controller, c.partitions, c.hardware, c.accounting, c.limits, c.topology, c.epilog, c.files, c.paths, c.mirrors, c.jobs,
	} {
		look(ctx)
		if ctx.Err() != nil {
			return api.SiteCheck{}, ctx.Err()
		}
	}
	ok := !slices.ContainsFunc(c.probes, func(p api.SiteProbe) bool { return p.Verdict == api.VerdictFail })
	return api.SiteCheck{Site: st.Name, Cluster: st.Cluster, OK: ok, Checks: c.probes}, nil
}

func (c *check) add(verdict, what, subject, todo, format string, args ...any) {
	c.probes = append(c.probes, api.SiteProbe{Check: what, Subject: subject, Verdict: verdict, Detail: fmt.Sprintf(format, args...), Todo: todo})
}

func (c *check) pass(what, subject, format string, args ...any) {
	c.add(api.VerdictPass, what, subject, "", format, args...)
}

func (c *check) fail(what, subject, todo, format string, args ...any) {
	c.add(api.VerdictFail, what, subject, todo, format, args...)
}

func (c *check) unknown(what, subject, todo, format string, args ...any) {
	c.add(api.VerdictUnknown, what, subject, todo, format, args...)
}

// controller asks the commands and the controller who they are.
func (c *check) controller(ctx context.Context) {
	client, err := c.cluster.ClientVersion(ctx)
	if err != nil {
		c.fail("commands", "", "install Slurm's commands on the daemon's host, or set slurm.bin", "%v", err)
		return
	}
	if older(client, oldest) {
		c.fail("commands", "", "install Slurm "+oldest+" or later", "version %s", client)
	} else {
		c.pass("commands", "", "version %s", client)
	}
	s, err := c.cluster.Settings(ctx)
	if err != nil {
		c.fail("controller", "", "see that slurmctld runs, and slurm.conf in the site file", "%v", err)
		return
	}
	c.settings = &s
	if s.ClusterName != c.site.Cluster {
		c.fail("controller", "", "set cluster: "+s.ClusterName, "it is cluster %s, the site file says %s", s.ClusterName, c.site.Cluster)
	} else {
		c.pass("controller", "", "cluster %s, version %s", s.ClusterName, s.Version)
	}
}

// older compares versions such as 22.05.8 by their first two numbers.
func older(version, than string) bool {
	cut := func(v string) string {
		words := strings.SplitN(v, ".", 3)
		return strings.Join(words[:min(2, len(words))], ".")
	}
	return cut(version) < than // two digits each
}

func (c *check) partitions(ctx context.Context) {
	wanted := map[string]bool{}
	for name := range c.site.Partitions {
		wanted[name] = true
	}
	for id := range c.site.Hardware {
		wanted[c.site.PartitionFor(id)] = true
	}
	delete(wanted, "")
	list, err := c.cluster.Partitions(ctx)
	known := make([]string, len(list))
	for i, p := range list {
		c.parts[p.Name], known[i] = p, p.Name
	}
	slices.Sort(known)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		p, ok := c.parts[name]
		longest := c.site.Partitions[name].MaxTime
		switch {
		case err != nil:
			c.unknown("partition", name, "try again when the controller answers", "%v", err)
		case !ok:
			c.fail("partition", name, "correct the name: there are "+strings.Join(known, ", "), "the cluster has no such partition")
		case p.State != "UP":
			c.fail("partition", name, "scontrol update PartitionName="+name+" State=UP, or take it out of the site file", "its state is %s", p.State)
		case p.MaxTime > 0 && longest > p.MaxTime:
			c.fail("partition", name, fmt.Sprintf("set max_time to %s", p.MaxTime), "its longest job is %s, the site file says %s", p.MaxTime, longest)
		default:
			c.pass("partition", name, "up, %d nodes, longest job %s", p.Nodes, limitText(p.MaxTime))
		}
	}
}

func limitText(d time.Duration) string {
	if d == 0 {
		return "unlimited"
	}
	return d.String()
}

// hardware looks for the nodes that the file describes, and asks the controller
// whether it would take a job for them.
func (c *check) hardware(ctx context.Context) {
	nodes, err := c.cluster.Nodes(ctx)
	c.nodes = nodes
	for _, id := range slices.Sorted(maps.Keys(c.site.Hardware)) {
		if err != nil {
			c.unknown("hardware", id, "try again when the controller answers", "%v", err)
			continue
		}
		c.hardwareOf(id, c.site.Hardware[id])
	}
}

func (c *check) hardwareOf(id string, h site.Hardware) {
	partition := c.site.PartitionFor(id)
	var fit, usable, in int
	var near string
	cpus := 0
	for _, n := range c.nodes {
		if partition != "" && !slices.Contains(n.Partitions, partition) {
			continue
		}
		in++
		have := n.GRES[h.GRES]
		if h.GRES == "gpu" { // of any type
			for kind, count := range n.GRES {
				if strings.HasPrefix(kind, "gpu:") {
					have += count
				}
			}
		}
		switch {
		case have < h.GPUsPerNode:
			near = fmt.Sprintf("%s has %s", n.Name, counts(n.GRES))
			continue
		case !features(h.Constraint, n.Features):
			near = fmt.Sprintf("%s has features %s, which %s does not fit", n.Name, cmp.Or(strings.Join(n.Features, ","), "(none)"), h.Constraint)
			continue
		}
		if fit++; n.Usable() {
			usable++
		}
		if cpus == 0 || n.CPUs < cpus {
			cpus = n.CPUs
		}
	}
	want := fmt.Sprintf("%d %s", h.GPUsPerNode, h.GRES)
	if h.GRES == "" {
		want = "no GPUs"
	}
	where := ""
	if partition != "" {
		where = " in partition " + partition
	}
	switch {
	case fit == 0 && in == 0:
		c.fail("hardware", id, "correct hardware."+id+".partition", "no node%s", where)
	case fit == 0:
		c.fail("hardware", id, "correct gres, gpus_per_node or constraint", "no node%s has %s; %s", where, want, cmp.Or(near, "nothing fits"))
	case usable == 0:
		c.fail("hardware", id, "sinfo -R says why", "all %d nodes%s are down or drained", fit, where)
	case h.CPUsPerNode > cpus:
		c.fail("hardware", id, fmt.Sprintf("set cpus_per_node to %d", cpus), "a node has %d CPUs, the site file says %d", cpus, h.CPUsPerNode)
	case h.Nodes > fit:
		c.fail("hardware", id, fmt.Sprintf("set nodes to %d", fit), "%d nodes%s have %s, the site file says %d", fit, where, want, h.Nodes)
	default:
		c.pass("hardware", id, "%d nodes%s with %s, %d of them usable", fit, where, want, usable)
	}
}

func counts(gres map[string]int) string {
	var list []string
	for _, kind := range slices.Sorted(maps.Keys(gres)) {
		list = append(list, fmt.Sprintf("%s:%d", kind, gres[kind]))
	}
	return cmp.Or(strings.Join(list, ","), "no generic resources")
}

// features judges names joined by & , or |; expressions with brackets, counts or
// a negation are the controller's to judge, which is asked too.
func features(expression string, have []string) bool {
	if expression == "" || strings.ContainsAny(expression, "()[]*!:") {
		return true
	}
	for all := range strings.SplitSeq(expression, "|") {
		missing := slices.DeleteFunc(strings.FieldsFunc(all, func(r rune) bool { return r == '&' || r == ',' }), func(f string) bool {
			return slices.Contains(have, f)
		})
		if len(missing) == 0 {
			return true
		}
	}
	return false
}

// accounting looks at QOS and accounts.
func (c *check) accounting(ctx context.Context) {
	qos := map[string]bool{c.site.Defaults.QOS: true}
	for _, p := range c.site.Priorities {
		qos[p.QOS] = true
	}
	delete(qos, "")
	known, err := c.cluster.QOS(ctx)
	if errors.Is(err, slurm.ErrNoAccounting) {
		c.unknown("accounting", "", "run slurmdbd, if costs, limits and the ends of lost jobs are wanted", "the cluster keeps no accounting")
		return
	}
	if err != nil {
		c.unknown("accounting", "", "see that slurmdbd runs", "%v", err)
		return
	}
	c.pass("accounting", "", "slurmdbd answers")
	slices.Sort(known)
	for _, name := range slices.Sorted(maps.Keys(qos)) {
		if !slices.Contains(known, name) {
			c.fail("qos", name, "correct priorities or defaults.qos: there are "+strings.Join(known, ", "), "the cluster has no such QOS")
			continue
		}
		c.pass("qos", name, "it exists")
	}
	u, err := c.cluster.User(ctx, c.site.Cluster, c.user)
	account := c.site.Defaults.Account
	switch {
	case errors.Is(err, slurm.ErrNoUser):
		c.fail("account", account, "sacctmgr add user "+c.user+" account="+cmp.Or(account, "ACCOUNT"), "the daemon's user %s has no association: Slurm may refuse its jobs", c.user)
		return
	case err != nil:
		c.unknown("account", account, "", "%v", err)
		return
	}
	mine := map[string]bool{}
	for _, a := range u.Associations {
		mine[a.Account] = true
	}
	if account != "" && !mine[account] {
		c.fail("account", account, "correct defaults.account, or sacctmgr add user "+c.user+" account="+account,
			"the daemon's user %s may spend for %s only", c.user, strings.Join(slices.Sorted(maps.Keys(mine)), ", "))
		return
	}
	c.pass("account", account, "%s may spend for %s", c.user, strings.Join(slices.Sorted(maps.Keys(mine)), ", "))
}

// limits compares what the file counts on with what Slurm takes.
func (c *check) limits(ctx context.Context) {
	l := c.site.Limits
	if c.settings != nil {
		if most := c.settings.MaxArraySize; l.MaxArraySize > most {
			c.fail("limit", "max_array_size", fmt.Sprintf("set it to %d", most), "Slurm's MaxArraySize is %d, the site file says %d", most, l.MaxArraySize)
		} else {
			c.pass("limit", "max_array_size", "Slurm's MaxArraySize is %d, the site file says %d", most, l.MaxArraySize)
		}
		if most := c.settings.MaxJobCount; l.MaxQueue > most {
			c.fail("limit", "max_queue", "lower it well below MaxJobCount, which counts everybody's jobs", "Slurm keeps %d jobs, the site file would queue %d", most, l.MaxQueue)
		} else {
			c.pass("limit", "max_queue", "Slurm keeps %d jobs, the site file queues up to %d", most, l.MaxQueue)
		}
	}
	task := time.Duration(l.TaskMinutes) * time.Minute
	for _, name := range slices.Sorted(maps.Keys(c.parts)) {
		if _, used := c.site.Partitions[name]; used && c.parts[name].MaxTime > 0 && task > c.parts[name].MaxTime {
			c.fail("limit", "task_minutes", "lower it, or leave the partition out", "a task may last %s, a job in partition %s %s", task, name, c.parts[name].MaxTime)
		}
	}
	if c.settings == nil || !c.settings.Accounting {
		return
	}
	submit, err := c.cluster.Limits(ctx, c.user, c.site.Defaults.Account, c.site.Defaults.QOS)
	switch {
	case err != nil:
		c.unknown("limit", "submit", "", "%v", err)
	case submit.Source != "" && submit.MaxSubmit < l.MaxQueue:
		c.pass("limit", "submit", "%s takes %d jobs of %s: what is beyond waits in sbench", submit.Source, submit.MaxSubmit, c.user)
	default:
		c.pass("limit", "submit", "no limit below max_queue for %s", c.user)
	}
}

func (c *check) topology(context.Context) {
	if c.settings == nil {
		return
	}
	plugin := c.settings.Raw["TopologyPlugin"]
	switch plugin {
	case "", "topology/none", "topology/default", "topology/flat":
		c.unknown("topology", "", "set TopologyPlugin if sweeps ask for hardware.switches", "%s: Slurm knows no switches, and --switches has no effect", cmp.Or(plugin, "no plugin"))
	default:
		c.pass("topology", "", "%s", plugin)
	}
}

func (c *check) epilog(context.Context) {
	if c.settings == nil {
		return
	}
	var epilogs []string
	for _, key := range []string{"Epilog", "Epilog[0]"} {
		if v := c.settings.Raw[key]; v != "" && v != "(null)" {
			epilogs = append(epilogs, v)
		}
	}
	switch method := c.site.Engine.Clocks.Method; {
	case len(epilogs) > 0:
		c.pass("epilog", "", "%s", strings.Join(epilogs, ", "))
	case method == batch.ClocksHelper:
		c.fail("epilog", "", "put epilog-clocks.sh into Slurm's Epilog", "none is set, and clocks are locked by a helper: a node that loses its runner keeps them locked")
	default:
		c.pass("epilog", "", "none is set, and clocks.method %s needs none", method)
	}
}

// files looks at the files of the site that only the daemon reads.
func (c *check) files(context.Context) {
	for _, name := range slices.Sorted(maps.Keys(c.site.Secrets)) {
		path := c.site.Secrets[name]
		info, err := os.Stat(path)
		switch {
		case err != nil:
			c.fail("secret", name, "write the value into the file, mode 0600", "%v", err)
		case info.Mode().Perm()&0o077 != 0:
			c.fail("secret", name, "chmod 600 "+path, "%s is mode %04o: others may read it", path, info.Mode().Perm())
		default:
			c.pass("secret", name, "%s", path)
		}
	}
	if key := c.site.Engine.VerifyKey; key != "" {
		if _, err := os.Stat(key); err != nil {
			c.fail("verify_key", "", "put the public key there", "%v", err)
		} else {
			c.pass("verify_key", "", "%s", key)
		}
	}
}
