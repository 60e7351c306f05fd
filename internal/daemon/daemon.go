// Package daemon is sbenchd: it reads the configuration, brings the database up
// to date, answers the API, and runs the services while it is the elected one of
// possibly several daemons. It keeps no state of its own: a killed daemon loses
// nothing.
package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/site"
	"sbench/internal/sitecheck"
	"sbench/internal/slurm"
	"sbench/internal/store"
	"sbench/internal/submit"
	"sbench/internal/version"
	"sbench/internal/web"
)

// Exit statuses, as sbench's.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const usage = `usage: sbenchd --config FILE [--print-config] [--version]

The daemon: answers sbench over a Unix socket, submits, tracks and collects.
SIGTERM lets requests finish and stops; jobs go on and are picked up again.
SIGHUP reads the site files again; if one is wrong, the old ones stay in force.

exit status:
    0  stopped on request
    1  failed
    2  usage or invalid configuration
`

// Main runs the daemon until ctx ends and returns its exit status.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("sbenchd", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	path := fs.String("config", "", "")
	printConfig := fs.Bool("print-config", false, "")
	showVersion := fs.Bool("version", false, "")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = io.WriteString(stdout, usage)
		return exitOK
	case err != nil:
		return fail(stderr, exitUsage, err, "see sbenchd --help")
	case *showVersion:
		_, _ = fmt.Fprintln(stdout, "sbenchd "+version.Long())
		return exitOK
	case fs.NArg() > 0:
		return fail(stderr, exitUsage, fmt.Errorf("unexpected argument %q", fs.Arg(0)), "see sbenchd --help")
	case *path == "":
		return fail(stderr, exitUsage, errors.New("missing flag: --config FILE"), "see sbenchd --help")
	}
	c, err := Load(*path)
	if err != nil {
		return fail(stderr, exitUsage, err, "")
	}
	sites, err := loadSites(c.Sites)
	if err != nil {
		return fail(stderr, exitUsage, err, "")
	}
	if *printConfig {
		text, err := c.Redacted()
		if err != nil {
			return fail(stderr, exitFailed, err, "")
		}
		_, _ = io.WriteString(stdout, text)
		return exitOK
	}
	if err := run(ctx, c, sites, c.logger(stderr)); err != nil {
		return fail(stderr, exitFailed, err, "")
	}
	return exitOK
}

func fail(stderr io.Writer, status int, err error, hint string) int {
	_, _ = fmt.Fprintf(stderr, "sbenchd: error: %v\n", err)
	if hint != "" {
		_, _ = fmt.Fprintf(stderr, "sbenchd: hint: %s\n", hint)
	}
	return status
}

func run(ctx context.Context, c Config, sites []*site.Site, log *slog.Logger) error {
	log.InfoContext(ctx, "starting", "version", version.String(), "pid", os.Getpid(), "socket", c.Socket, "sites", len(sites))
	s, err := openStore(ctx, c.DSN, log)
	if err != nil {
		return err
	}
	if s == nil {
		return nil // stopped before the database answered
	}
	defer s.Close()
	hangup, ignore := onHangup()
	defer ignore()
	lead := &leader{store: s, log: log, again: make(chan struct{}, 1)}
	users := auth.NewUsers()
	chain := callers(c, users, s)
	handler := &reloader{config: c, log: log, store: s, lead: lead, peers: chain.Peers}
	handler.handler = func(sites []*site.Site, clusters map[string]*slurm.Client) (*web.Server, error) {
		return web.New(web.Config{
			Store: s, Auth: chain, Sites: sites, Log: log, Now: time.Now, Version: version.String(), UID: os.Getuid(), RunsAs: submit.RunsAs(), Leader: lead.acting.Load,
			TimeZone: c.TimeZone, SlurmCalls: func() []web.SlurmCalls { return calls(clusters) },
			RemoveFiles: removeFiles(s, sites, log), Accounts: accounts(sites), UserID: users.ID, Pace: float64(c.RequestsPerS),
			State: handler.state, Mail: c.Mail.ready, CheckSite: func(ctx context.Context, st *site.Site, job bool) (api.SiteCheck, error) {
				return sitecheck.Run(ctx, st, clusters[st.Name], sitecheck.Options{Job: job})
			},
		})
	}
	if err := handler.use(sites); err != nil {
		return err
	}
	lead.services = handler.services
	l, err := listen(c.Socket)
	if err != nil {
		return err
	}
	remote, secure, err := c.Listen.open(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	log.InfoContext(ctx, "ready", "socket", c.Socket, "address", c.Listen.Address)
	// The leader stops first: what users see of a stopping daemon is what it did.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serve(ctx, l, nil, handler, log) })
	if remote != nil {
		g.Go(func() error { return serve(ctx, remote, secure, handler, log) })
	}
	g.Go(func() error { return handler.run(ctx, hangup) })
	g.Go(func() error { return lead.run(ctx) })
	err = g.Wait()
	log.InfoContext(ctx, "stopped", "error", err)
	return err
}

// openStore waits for the database, because a daemon that starts with the
// machine is often there first. It returns nil where ctx ended before.
func openStore(ctx context.Context, dsn string, log *slog.Logger) (*store.Store, error) {
	for {
		s, err := store.Open(ctx, dsn)
		if err == nil {
			if err = s.Migrate(ctx); err == nil {
				return s, nil
			}
			s.Close()
			if !store.Unavailable(err) && ctx.Err() == nil {
				return nil, err
			}
		}
		if ctx.Err() != nil {
			return nil, nil
		}
		log.WarnContext(ctx, "database does not answer; trying again", "error", err)
		sleep(ctx, restWait)
	}
}
