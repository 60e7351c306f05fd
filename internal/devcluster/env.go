package devcluster

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"strings"
)

// Socket is sbenchd's Unix socket.
func (c *Cluster) Socket() string { return c.path("run", "sbenchd.sock") }

// DSN is PostgreSQL's connection string, "" without one.
func (c *Cluster) DSN() string {
	if c.opts.NoDatabase {
		return ""
	}
	return "postgres:///sbench?" + url.Values{"host": {c.path("run", "pg")}, "user": {"sbench"}}.Encode()
}

// SiteFile is the site file that describes the cluster.
func (c *Cluster) SiteFile() string { return c.path("etc", "site.yaml") }

// Env lists the variables, as NAME=value, with which Slurm's, PostgreSQL's and
// sbench's commands use this cluster.
func (c *Cluster) Env() []string {
	path := c.opts.Binaries + ":" + sbinPath()
	env := []string{"SBENCH_DEV_DIR=" + c.opts.Dir, "SBENCH_SITE=" + c.opts.Name, "SLURM_CONF=" + c.path("etc", "slurm.conf")}
	if !c.opts.NoDaemon {
		env = append(env, "SBENCH_SOCKET="+c.Socket())
	}
	if !c.opts.NoDatabase {
		env = append(env, "SBENCH_DSN="+c.DSN(), "PGHOST="+c.path("run", "pg"), "PGUSER=sbench", "PGDATABASE=sbench")
		if dir, err := postgresDir(); err == nil {
			path = c.opts.Binaries + ":" + dir + ":" + sbinPath()
		}
	}
	return append(env, "PATH="+path)
}

// Environ is the caller's environment with Env in place of its own values and
// without variables that would steer Slurm's commands elsewhere.
func (c *Cluster) Environ() []string {
	own := map[string]bool{}
	for _, v := range c.Env() {
		name, _, _ := strings.Cut(v, "=")
		own[name] = true
	}
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		foreign := strings.HasPrefix(name, "SLURM_") || strings.HasPrefix(name, "SBATCH_") || strings.HasPrefix(name, "SQUEUE_") ||
			strings.HasPrefix(name, "SACCT_") || strings.HasPrefix(name, "SINFO_")
		if !own[name] && !foreign {
			env = append(env, v)
		}
	}
	return append(env, c.Env()...)
}

// daemonEnv is what daemons get: the little they need, and the mark.
func (c *Cluster) daemonEnv() []string {
	env := []string{
		memberVariable + "=" + c.opts.Dir, "PATH=" + sbinPath(), "LC_ALL=C.UTF-8", "SLURM_CONF=" + c.path("etc", "slurm.conf"),
	}
	for _, name := range []string{"HOME", "USER", "LOGNAME", "TMPDIR", "TZ"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// command is one of Slurm's commands, run against this cluster.
func (c *Cluster) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if path, err := lookPath(name); err == nil {
		name = path
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = c.Environ()
	return cmd
}
