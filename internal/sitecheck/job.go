package sitecheck

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sbench/internal/site"
	"sbench/sbatch"
)

// scriptFile is what the jobs execute, in a folder of the spool.
const scriptFile = "site-check.sh"

// probe is the job for one kind of hardware.
type probe struct {
	hardware, name string // name is the job's
	job            int64
	before, after  time.Time         // around the call of sbatch
	seen           time.Time         // when its answer was there
	answer         map[string]string // nil while there is none
}

// jobs asks the controller for each kind of hardware whether it would take a job,
// and, where that is wanted, the nodes for what only they know.
func (c *check) jobs(ctx context.Context) {
	if c.settings == nil {
		return
	}
	nonce := strings.ToLower(rand.Text())
	dir := filepath.Join(c.site.Paths.Spool, "site-check", nonce)
	if err := within(ctx, func() error { return prepare(dir, nonce) }); err != nil {
		c.unknown("job", "", "see the path checks", "%v", err)
		return
	}
	defer func() {
		_ = within(context.WithoutCancel(ctx), func() error { return os.RemoveAll(dir) })
	}()
	var probes []*probe
	for _, id := range slices.Sorted(maps.Keys(c.site.Hardware)) {
		if p := c.submit(ctx, id, dir, nonce); p != nil {
			probes = append(probes, p)
		}
	}
	if len(probes) == 0 {
		return
	}
	c.await(ctx, probes, dir)
	// A job that has not ended by now is not wanted any more; one that has is left
	// alone by scancel.
	ids := make([]string, len(probes))
	for i, p := range probes {
		ids[i] = strconv.FormatInt(p.job, 10)
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), pathTimeout)
	defer cancel()
	if err := c.cluster.Cancel(stop, ids...); err != nil {
		c.unknown("job", strings.Join(ids, ","), "scancel "+strings.Join(ids, " "), "the jobs of the check could not be cancelled: %v", err)
	}
	for _, p := range probes {
		c.judge(ctx, p, nonce)
	}
}

func prepare(dir, nonce string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, scriptFile), sbatch.SiteCheck, 0o755); err != nil {
		return err
	}
	return durable(filepath.Join(dir, "nonce"), nonce+"\n")
}

// submit tries a job and, where jobs are wanted, submits it; nil where there is none.
func (c *check) submit(ctx context.Context, id, dir, nonce string) *probe {
	h := c.site.Hardware[id]
	full, err := c.script(id, h, dir, max(1, h.GPUsPerNode), nonce)
	if err != nil {
		c.unknown("submission", id, "", "%v", err)
		return nil
	}
	path := filepath.Join(dir, id+".sbatch")
	write := func(text string) error { return os.WriteFile(path, []byte(text), 0o644) }
	if err := within(ctx, func() error { return write(full) }); err != nil {
		c.unknown("submission", id, "", "%v", err)
		return nil
	}
	switch refusal, err := c.cluster.Try(ctx, path); {
	case err != nil:
		c.unknown("submission", id, "try again when the controller answers", "%v", err)
		return nil
	case refusal != "":
		c.fail("submission", id, "correct partition, gres, constraint, account or QOS", "Slurm refuses a job for a whole node: %s", refusal)
		return nil
	}
	c.pass("submission", id, "Slurm would take a job for a whole node")
	if !c.options.Job {
		return nil
	}
	// One GPU is enough to ask, and sooner free than a node.
	small, err := c.script(id, h, dir, 1, nonce)
	if err == nil {
		err = within(ctx, func() error { return write(small) })
	}
	if err != nil {
		c.unknown("job", id, "", "%v", err)
		return nil
	}
	p := &probe{hardware: id, name: jobName(id, nonce), before: time.Now()}
	sub, err := c.cluster.Submit(ctx, path, false)
	p.after = time.Now()
	if err != nil || sub.JobID == 0 {
		c.unknown("job", id, "", "it was not submitted: %s%v", sub.Message, errText(err))
		return nil
	}
	p.job = sub.JobID
	return p
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return " " + err.Error()
}

func jobName(id, nonce string) string { return "sbench-site-check-" + id + "-" + nonce[:8] }

// plainOption is a value that needs no thought in an #SBATCH line.
var plainOption = regexp.MustCompile(`^[A-Za-z0-9_.,:=/@%+&|*()\[\]!-]*$`)

// script is a batch script for a node with so many GPUs. The values of the site
// file were checked when it was read, and are checked again for this use.
func (c *check) script(id string, h site.Hardware, dir string, gpus int, nonce string) (string, error) {
	options := maps.Clone(c.site.Jobs.Options)
	set := func(key, value string) {
		if value != "" {
			options[key] = value
		}
	}
	set("job-name", jobName(id, nonce))
	set("partition", c.site.PartitionFor(id))
	set("account", c.site.Defaults.Account)
	set("qos", c.site.QOSFor("normal"))
	set("constraint", h.Constraint)
	if h.GRES != "" {
		set("gres", fmt.Sprintf("%s:%d", h.GRES, gpus))
	}
	for key, value := range map[string]string{
		"time": "1", "nodes": "1", "ntasks": "1", "output": "/dev/null", "error": "/dev/null", "chdir": "/", "comment": "sbench site check",
	} {
		options[key] = value
	}
	var b strings.Builder
	b.WriteString("#!/bin/bash\n")
	for _, key := range slices.Sorted(maps.Keys(options)) {
		switch value := options[key]; {
		case key != "comment" && !plainOption.MatchString(value):
			return "", fmt.Errorf("jobs.options.%s %q: not used here", key, value)
		case value == "":
			fmt.Fprintf(&b, "#SBATCH --%s\n", key)
		default:
			fmt.Fprintf(&b, "#SBATCH --%s=\"%s\"\n", key, value)
		}
	}
	p, helper := c.site.Paths, ""
	if len(c.site.Engine.Clocks.Helper) > 0 {
		helper = c.site.Engine.Clocks.Helper[0]
	}
	b.WriteString("exec")
	for _, arg := range []string{"/bin/bash", filepath.Join(dir, scriptFile), dir, id, p.Results, p.Cache, p.Temp, p.Models, p.Images, p.Apptainer, helper} {
		b.WriteString(" '" + strings.ReplaceAll(arg, "'", `'\''`) + "'")
	}
	b.WriteString("\n")
	return b.String(), nil
}

// await looks for the answers until all are there or the time is over.
func (c *check) await(ctx context.Context, probes []*probe, dir string) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Wait)
	defer cancel()
	for open := len(probes); open > 0; {
		timer := time.NewTimer(200 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		for _, p := range probes {
			if p.answer != nil {
				continue
			}
			var text []byte
			err := within(ctx, func() (err error) {
				text, err = readSmall(filepath.Join(dir, p.hardware+".out"))
				return err
			})
			if err == nil {
				p.answer, p.seen = answers(string(text)), time.Now()
				open--
			}
		}
	}
}

// readSmall reads what a node wrote, and no more than it may have.
func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > 64<<10 || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not what a node writes", path)
	}
	return os.ReadFile(path)
}

func answers(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
		m[key] = value
	}
	return m
}

// judge turns what a node said into verdicts.
func (c *check) judge(ctx context.Context, p *probe, nonce string) {
	c.controllerClock(ctx, p)
	if p.answer == nil {
		why := "no answer"
		if q, err := c.cluster.QueueByName(ctx, p.name); err == nil && len(q.Jobs) > 0 {
			why = "it waits: " + q.Jobs[0].Reason
		}
		c.unknown("job", p.hardware, "run the check again when nodes are free, or see squeue and sinfo", "job %d was not done within %s; %s", p.job, c.options.Wait, why)
		return
	}
	node := p.answer["host"]
	c.pass("job", p.hardware, "job %d ran on %s, answer after %.1f s, GPUs %s", p.job, node, p.seen.Sub(p.before).Seconds(), p.answer["gpus"])
	if c.site.Hardware[p.hardware].GRES != "" && p.answer["gpus"] == "none" {
		c.fail("gpu", p.hardware, "see gres.conf and task plugins", "a job with one GPU sees none on %s", node)
	}
	if p.answer["nonce"] != nonce {
		c.fail("shared", p.hardware, "put paths.spool on a file system that all nodes share", "%s read %q where the daemon wrote another text", node, p.answer["nonce"])
	} else {
		c.pass("shared", p.hardware, "%s reads what the daemon wrote into the spool, and the daemon what %s wrote", node, node)
	}
	for _, f := range []struct{ key, ok, todo string }{
		{"exec", "programs in the spool start", "mount the spool without noexec"},
		{"results", "paths.results is writable", "let the user write there from the nodes"},
		{"cache", "paths.cache is writable", "create it on the nodes for the user, with room for images"},
		{"temp", "the scratch folder is writable", "set paths.temp"},
		{"models", "paths.models is readable", "mount it on the nodes"},
		{"images", "paths.images is readable", "mount it on the nodes"},
		{"helper", "the clocks' helper is there", "install engine.clocks.helper on the nodes"},
	} {
		switch v, said := p.answer[f.key]; {
		case !said:
		case v == "ok":
			c.pass(f.key, p.hardware, "on %s %s", node, f.ok)
		default:
			c.fail(f.key, p.hardware, f.todo, "on %s: %s", node, v)
		}
	}
	c.container(p, node)
	c.nodeClock(p, node)
}

func (c *check) container(p *probe, node string) {
	verdict, detail, _ := strings.Cut(p.answer["container"], " ")
	switch {
	case verdict == "ok":
		c.pass("container", p.hardware, "on %s: %s", node, detail)
	case verdict == "missing" && c.site.Paths.Apptainer == "":
		c.unknown("container", p.hardware, "install apptainer, or run image.kind host only", "on %s %s", node, detail)
	default:
		c.fail("container", p.hardware, "correct paths.apptainer, or install it on the nodes", "on %s: %s", node, detail)
	}
}

// nodeClock: the node's time must lie between the submission and the arrival of
// its answer, by the daemon's clock.
func (c *check) nodeClock(p *probe, node string) {
	seconds, err := strconv.ParseFloat(p.answer["time"], 64)
	if err != nil {
		c.unknown("clock", p.hardware, "", "%s printed %q for its time", node, p.answer["time"])
		return
	}
	c.clock(p.hardware, node, time.Unix(0, int64(seconds*1e9)), p.before, p.seen)
}

// controllerClock compares the controller's time of submission likewise.
func (c *check) controllerClock(ctx context.Context, p *probe) {
	_, found, err := c.cluster.Find(ctx, p.name, "", p.before.Add(-time.Hour))
	if err != nil || len(found) == 0 {
		c.unknown("clock", "controller", "", "the controller does not say when job %d was submitted%s", p.job, errText(err))
		return
	}
	// Whole seconds, cut off.
	c.clock("controller", "the controller", found[0].Submit, p.before.Add(-time.Second), p.after)
}

func (c *check) clock(subject, who string, told, from, to time.Time) {
	const todo = "run chrony or ntpd on every node: MUNGE refuses more than five minutes, and results carry the nodes' times"
	switch {
	case told.Before(from.Add(-c.options.Skew)):
		c.fail("clock", subject, todo, "%s is at least %.1f s behind the daemon's host", who, from.Sub(told).Seconds())
	case told.After(to.Add(c.options.Skew)):
		c.fail("clock", subject, todo, "%s is at least %.1f s ahead of the daemon's host", who, told.Sub(to).Seconds())
	default:
		c.pass("clock", subject, "%s agrees with the daemon's host, as far as %.1f s can tell", who, to.Sub(from).Seconds())
	}
}
