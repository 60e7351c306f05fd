package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Errors that callers tell apart.
var (
	// ErrAlreadyUp: every component of the cluster in the directory is alive.
	ErrAlreadyUp = errors.New("the cluster is already up")
	// ErrNoCluster: the directory holds no cluster.
	ErrNoCluster = errors.New("no cluster here")
)

// Cluster is a cluster in a directory. Its methods may be used by several
// processes at once: Up, Down and Restart exclude one another by a lock on the
// directory.
type Cluster struct {
	opts       Options
	port       int // slurmctld's; +1 slurmdbd, +2… the nodes
	namespaces bool
}

// clusterFile is what etc/cluster.json keeps between commands.
type clusterFile struct {
	Options    Options `json:"options"`
	Port       int     `json:"port"`
	Namespaces bool    `json:"namespaces"`
}

// Open returns the cluster that was brought up in dir, running or not, or
// ErrNoCluster.
func Open(dir string) (*Cluster, error) {
	abs, err := cleanDir(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: Options{Dir: abs}}
	b, err := os.ReadFile(c.path("etc", "cluster.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", abs, ErrNoCluster)
	}
	if err != nil {
		return nil, err
	}
	var f clusterFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("read %s: %w", c.path("etc", "cluster.json"), err)
	}
	f.Options.Dir = abs // the directory may have been moved
	return &Cluster{opts: f.Options, port: f.Port, namespaces: f.Namespaces}, nil
}

// Dir is the directory that holds everything.
func (c *Cluster) Dir() string { return c.opts.Dir }

// Name is Slurm's name of the cluster and the site's.
func (c *Cluster) Name() string { return c.opts.Name }

// Up brings a cluster up and returns when all nodes are idle and every server
// answers. State that an earlier cluster left in the directory is kept and its
// left-over processes are ended. progress, which may be nil, gets a line per
// step. On an error nothing is left running.
func Up(ctx context.Context, o Options, progress func(string)) (*Cluster, error) {
	if progress == nil {
		progress = func(string) {}
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := requirePrograms(o); err != nil {
		return nil, err
	}
	c := &Cluster{opts: o}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, err := Open(o.Dir)
	switch {
	case errors.Is(err, ErrNoCluster):
		if err := refuseForeign(o.Dir); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case old.allAlive():
		return old, fmt.Errorf("%s: %w", o.Dir, ErrAlreadyUp)
	default:
		c.port = old.port
	}
	if err := c.sweepUp(); err != nil {
		return nil, err
	}
	ports, err := reservePorts(o.BasePort, c.port, 2+len(o.Nodes.names()))
	if err != nil {
		return nil, err
	}
	defer ports.release()
	c.port = ports.base
	c.namespaces = !o.NoNamespaces && namespacesWork(ctx)
	if err := c.save(); err != nil { // first: it makes the directory ours
		return nil, err
	}
	if err := c.writeConfig(); err != nil {
		return nil, err
	}
	progress(fmt.Sprintf("configuration written to %s (ports %d-%d)", c.path("etc"), c.port, c.port+1+len(o.Nodes.names())))
	if err := c.start(ctx, progress); err != nil {
		if stopErr := c.sweepUp(); stopErr != nil {
			err = errors.Join(err, stopErr)
		}
		return nil, err
	}
	return c, nil
}

// refuseForeign keeps a directory with other things in it from being taken for
// a cluster's, whose folders Wipe removes.
func refuseForeign(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return optionErrorf("directory %s is neither empty nor a cluster's (it holds %s): give another one", dir, entries[0].Name())
	}
	return nil
}

func (c *Cluster) save() error {
	if err := c.mkdir("etc", 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(clusterFile{Options: c.opts, Port: c.port, Namespaces: c.namespaces}, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(c.path("etc", "cluster.json"), append(b, '\n'), 0o644)
}

// start runs the two independent halves side by side, then the daemon that
// needs both.
func (c *Cluster) start(ctx context.Context, progress func(string)) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.startSlurm(gctx, progress) })
	if !c.opts.NoDatabase {
		g.Go(func() error { return c.startPostgres(gctx, progress) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if c.opts.NoDaemon {
		return nil
	}
	if err := c.startComponent(ctx, "sbenchd"); err != nil {
		return err
	}
	progress("sbenchd answers")
	return nil
}

func (c *Cluster) startSlurm(ctx context.Context, progress func(string)) error {
	if err := c.startComponent(ctx, "munged"); err != nil {
		return err
	}
	if !c.opts.NoAccounting {
		if err := c.initAccounting(ctx); err != nil {
			return err
		}
		for _, name := range []string{"mariadbd", "slurmdbd"} {
			if err := c.startComponent(ctx, name); err != nil {
				return err
			}
		}
		progress("slurmdbd answers")
	}
	// Accounts come first: slurmctld reads them as it starts, and what is added
	// while it registers can pass it by.
	if !c.opts.NoAccounting {
		if err := c.addAccounts(ctx); err != nil {
			return err
		}
		progress("accounts are there")
	}
	if err := c.startComponent(ctx, "slurmctld"); err != nil {
		return err
	}
	progress("slurmctld answers")
	for _, name := range c.opts.Nodes.names() {
		if err := c.spawnComponent(ctx, name); err != nil {
			return err
		}
	}
	if !c.opts.NoAccounting {
		if err := c.limitDebug(ctx); err != nil {
			return err
		}
	}
	if err := c.awaitNodes(ctx); err != nil {
		return err
	}
	progress(fmt.Sprintf("%d nodes are idle", len(c.opts.Nodes.names())))
	return nil
}

// Stop takes down whatever belongs to dir and removes its files if wipe is set.
// It is no error if there is nothing; a directory that is not a cluster's loses
// no file.
func Stop(ctx context.Context, dir string, wipe bool) error {
	c, err := Open(dir)
	if errors.Is(err, ErrNoCluster) {
		abs, err := cleanDir(dir)
		if err != nil {
			return err
		}
		return (&Cluster{opts: Options{Dir: abs}}).endMembers()
	}
	if err != nil {
		return err
	}
	if wipe {
		return c.Wipe(ctx)
	}
	return c.Down(ctx)
}

// Down stops everything and verifies that no process, socket or lock is left.
// The state (jobs, accounts, database, results, logs) stays, for another Up.
func (c *Cluster) Down(ctx context.Context) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	components := c.components()
	for _, k := range components { // a stopped daemon can neither answer nor end
		if p, ok := c.recorded(k.name); ok {
			_ = p.signal(syscall.SIGCONT)
		}
	}
	c.cancelJobs(ctx)
	for i := len(components) - 1; i >= 0; i-- {
		k := components[i]
		if p, ok := c.recorded(k.name); ok {
			_ = p.end(k.stopSignal, k.grace) // sweepUp reports what stays
		}
	}
	return c.sweepUp()
}

// Wipe kills everything at once and removes what the cluster has written,
// results included. The directory itself goes too unless something else is in it.
func (c *Cluster) Wipe(ctx context.Context) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.sweepUp(); err != nil {
		return err
	}
	for _, name := range []string{"run", "log", "state", "spool", "gpu", "spool-sbench", "results", "cache", "models", "images", "key", "db", "pg", "etc"} {
		if err := os.RemoveAll(c.path(name)); err != nil {
			return fmt.Errorf("wipe: %w", err)
		}
	}
	if err := os.Remove(c.opts.Dir); err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EBUSY) && !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("wipe: %w", err)
	}
	return nil
}

// sweepUp ends whatever process belongs to the directory, by record or by what
// /proc tells, and removes sockets, locks and records.
func (c *Cluster) sweepUp() error {
	if err := c.endMembers(); err != nil {
		return err
	}
	if err := c.clearPostgres(); err != nil {
		return err
	}
	// The runners' own locks lie beside what they staged, and none runs any more.
	stages, err := filepath.Glob(c.path("cache", "*.lock"))
	if err != nil {
		return err
	}
	for _, stale := range append(stages, c.path("db", "mysqld.sock"), c.path("key", "munged.seed.lock")) {
		if err := os.Remove(stale); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.RemoveAll(c.path("run"))
}

// lock excludes other commands on the directory; it lies on the directory
// itself, so that no file is left.
func (c *Cluster) lock(ctx context.Context) (unlock func(), err error) {
	d, err := os.Open(c.opts.Dir)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = d.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = d.Close()
			return nil, fmt.Errorf("lock %s: %w", c.opts.Dir, err)
		}
		select {
		case <-ctx.Done():
			_ = d.Close()
			return nil, fmt.Errorf("lock %s: another command is at work there: %w", c.opts.Dir, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}

func (c *Cluster) allAlive() bool {
	for _, k := range c.components() {
		if p, ok := c.recorded(k.name); !ok || !p.alive() {
			return false
		}
	}
	return true
}

// Kill sends a signal to a component: munged, mariadbd, slurmdbd, slurmctld,
// postgres, sbenchd or a node by its name. SIGKILL on a node with namespaces is
// its loss of power: slurmd, steps and all their children are gone at once.
func (c *Cluster) Kill(name string, sig syscall.Signal) error {
	if _, err := c.component(name); err != nil {
		return err
	}
	p, ok := c.recorded(name)
	if !ok {
		return fmt.Errorf("%s: %w", name, os.ErrProcessDone)
	}
	if c.isNode(name) && c.namespaces && sig != syscall.SIGKILL {
		// The recorded process only waits for slurmd, its child.
		child, err := childOf(p)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p = child
	}
	if err := p.signal(sig); err != nil {
		return fmt.Errorf("send %v to %s: %w", sig, name, err)
	}
	if sig == syscall.SIGKILL {
		if !waitFor(10*time.Second, func() bool { return !p.alive() }) {
			return fmt.Errorf("%s: process %d is still there after SIGKILL", name, p.PID)
		}
	}
	return nil
}

// Restart stops a component if it runs and starts it again; it returns when the
// component answers.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	k, err := c.component(name)
	if err != nil {
		return err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if p, ok := c.recorded(name); ok {
		if err := p.end(k.stopSignal, k.grace); err != nil {
			return err
		}
	}
	if c.isNode(name) {
		if err := c.spawnComponent(ctx, name); err != nil {
			return err
		}
		return c.awaitNodes(ctx, name)
	}
	return c.startComponent(ctx, name)
}

// Alive says whether the component's process is there.
func (c *Cluster) Alive(name string) bool {
	p, ok := c.recorded(name)
	return ok && p.alive()
}
