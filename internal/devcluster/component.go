package devcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// startLimit bounds the wait for one component; a loaded machine is slow.
const startLimit = 60 * time.Second

// component is one daemon: how it starts, when it answers, how it stops.
type component struct {
	name       string
	argv       []string
	env        []string
	ready      func(context.Context) error
	stopSignal syscall.Signal
	grace      time.Duration
}

// components lists what the cluster consists of, in the order of starting.
func (c *Cluster) components() []component {
	conf := c.path("etc", "slurm.conf")
	list := []component{{
		name: "munged",
		argv: []string{
			"munged", "--foreground", "--force", "--key-file=" + c.path("key", "munge.key"), "--socket=" + c.path("run", "munge.sock"),
			"--pid-file=" + c.path("run", "munged.pid"), "--seed-file=" + c.path("key", "munged.seed"), "--num-threads=4",
		},
		ready: c.dials("unix", c.path("run", "munge.sock")), stopSignal: syscall.SIGTERM, grace: 2 * time.Second,
	}}
	if !c.opts.NoAccounting {
		list = append(list, component{
			name: "mariadbd", argv: append(c.mariadbd(c.path("db", "data")), "--skip-grant-tables", "--skip-networking",
				"--socket="+c.mysqlSocket(), "--pid-file="+c.path("run", "mysqld.pid"),
				"--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900"),
			ready: c.dials("unix", c.mysqlSocket()), stopSignal: syscall.SIGTERM, grace: 10 * time.Second,
		}, component{
			name: "slurmdbd", argv: []string{"slurmdbd", "-D"}, env: []string{"MYSQL_UNIX_PORT=" + c.mysqlSocket()},
			ready: c.dials("tcp", c.address(1)), stopSignal: syscall.SIGTERM, grace: 10 * time.Second,
		})
	}
	list = append(list, component{
		name: "slurmctld", argv: []string{"slurmctld", "-D", "-f", conf},
		ready: func(ctx context.Context) error { return c.command(ctx, "scontrol", "ping").Run() }, stopSignal: syscall.SIGTERM, grace: 10 * time.Second,
	})
	for _, node := range c.opts.Nodes.names() {
		list = append(list, component{
			name: node, argv: c.slurmd(node), stopSignal: syscall.SIGKILL, grace: 5 * time.Second,
		})
	}
	if !c.opts.NoDatabase {
		list = append(list, component{
			name: "postgres", argv: c.postgresServer(), ready: c.postgresAnswers,
			stopSignal: syscall.SIGINT, grace: 10 * time.Second, // SIGTERM would wait for the clients
		})
	}
	if !c.opts.NoDaemon {
		list = append(list, component{
			name: "sbenchd", argv: []string{filepath.Join(c.opts.Binaries, "sbenchd"), "--config", c.path("etc", "sbenchd.yaml")},
			env: c.Env(), ready: c.daemonAnswers, stopSignal: syscall.SIGTERM, grace: 10 * time.Second,
		})
	}
	return list
}

func (c *Cluster) component(name string) (component, error) {
	list := c.components()
	i := slices.IndexFunc(list, func(k component) bool { return k.name == name })
	if i < 0 {
		var names []string
		for _, k := range list {
			names = append(names, k.name)
		}
		return component{}, fmt.Errorf("no component %q: there are %s", name, strings.Join(names, ", "))
	}
	return list[i], nil
}

func (c *Cluster) isNode(name string) bool { return slices.Contains(c.opts.Nodes.names(), name) }

// slurmd gives the node a PID and UTS namespace of its own where the host
// allows it: `hostname` in jobs is then the node's, and killing the first
// process takes everything on the node with it.
func (c *Cluster) slurmd(node string) []string {
	daemon := []string{"slurmd", "-D", "-f", c.path("etc", "slurm.conf"), "-N", node}
	if !c.namespaces {
		return daemon
	}
	// An ordinary user has capabilities only until the node has its name:
	// bubblewrap, for one, refuses to run with any.
	if os.Geteuid() != 0 {
		daemon = append([]string{"setpriv", "--ambient-caps=-all", "--inh-caps=-all"}, daemon...)
	}
	return slices.Concat(unshareNode, []string{"sh", "-c", `hostname "$1"; shift; exec "$@"`, "sh", node}, daemon)
}

var unshareNode = func() []string {
	argv := []string{"unshare"}
	if os.Geteuid() != 0 {
		argv = append(argv, "--map-current-user", "--keep-caps")
	}
	return append(argv, "--pid", "--uts", "--mount-proc", "--fork", "--kill-child")
}()

func namespacesWork(ctx context.Context) bool {
	argv := slices.Concat(unshareNode, []string{"sh", "-c", "hostname sbench-test"})
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + sbinPath()}
	return cmd.Run() == nil
}

// spawnComponent starts the process and records it.
func (c *Cluster) spawnComponent(ctx context.Context, name string) error {
	k, err := c.component(name)
	if err != nil {
		return err
	}
	program, err := lookPath(k.argv[0])
	if filepath.IsAbs(k.argv[0]) {
		program, err = k.argv[0], nil
	}
	if err != nil {
		return err
	}
	if name == "postgres" {
		if err := c.clearPostgres(); err != nil {
			return err
		}
	}
	env := append(c.daemonEnv(), k.env...)
	p, err := spawn(ctx, c.opts.Dir, env, c.outputFile(name), append([]string{program}, k.argv[1:]...)...)
	if err != nil {
		return err
	}
	return c.record(name, p)
}

func (c *Cluster) outputFile(name string) string { return c.path("log", name+".out") }

// startComponent starts the process and waits until it answers.
func (c *Cluster) startComponent(ctx context.Context, name string) error {
	if err := c.spawnComponent(ctx, name); err != nil {
		return err
	}
	k, err := c.component(name)
	if err != nil {
		return err
	}
	p, _ := c.recorded(name)
	err = await(ctx, name, func(ctx context.Context) error {
		err := k.ready(ctx)
		if err != nil && !p.alive() {
			return fatalError{fmt.Errorf("%s ended%s", name, logTail(c.outputFile(name)))}
		}
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w%s", err, logTail(c.outputFile(name)))
	}
	return err
}

// fatalError ends a wait at once.
type fatalError struct{ error }

// await polls ready until it is nil.
func await(ctx context.Context, what string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if fatal, ok := err.(fatalError); ok { //nolint:errorlint // never wrapped
			return fatal.error
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w (last: %w)", what, ctx.Err(), err)
		case <-time.After(pollInterval):
		}
	}
}

func (c *Cluster) address(offset int) string {
	return fmt.Sprintf("127.0.0.1:%d", c.port+offset)
}

func (c *Cluster) dials(network, address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// daemonAnswers asks sbenchd for anything: any answer but a server error is one.
func (c *Cluster) daemonAnswers(ctx context.Context) error {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.Socket())
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sbenchd/v1/version", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("sbenchd answers %s", resp.Status)
	}
	return nil
}

// awaitNodes waits until the nodes (all, if none is named) can take jobs. Those that
// are named were started again, and are put back into service.
func (c *Cluster) awaitNodes(ctx context.Context, only ...string) error {
	restarted := len(only) > 0
	if !restarted {
		only = c.opts.Nodes.names()
	}
	return await(ctx, "the nodes", func(ctx context.Context) error {
		states := c.nodeStates(ctx)
		for _, node := range only {
			if !c.Alive(node) {
				return fatalError{fmt.Errorf("slurmd of %s ended%s", node, logTail(c.outputFile(node)))}
			}
			if restarted && strings.HasPrefix(states[node], "drain") {
				// What its last slurmd left behind had Slurm take the node out of service.
				_ = c.command(ctx, "scontrol", "update", "NodeName="+node, "State=RESUME").Run()
			}
			if s := states[node]; !slices.Contains([]string{"idle", "mixed", "allocated", "completing"}, s) {
				return fmt.Errorf("node %s is %q", node, s)
			}
		}
		return nil
	})
}

// cancelJobs lets running jobs end in an orderly way, where slurmctld answers.
func (c *Cluster) cancelJobs(ctx context.Context) {
	if !c.Alive("slurmctld") || !c.Alive("munged") {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	running := func() []string {
		out, err := c.command(ctx, "squeue", "-h", "-t", "R,CG,S", "-o", "%A").Output()
		if err != nil {
			return nil
		}
		return strings.Fields(string(out))
	}
	ids := running()
	if len(ids) == 0 {
		return
	}
	_ = c.command(ctx, "scancel", append([]string{"--state=RUNNING"}, ids...)...).Run()
	for len(running()) > 0 && ctx.Err() == nil {
		time.Sleep(pollInterval)
	}
}
