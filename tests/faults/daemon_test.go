package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"sbench/internal/collect"
	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/store"
	"sbench/internal/submit"
	"sbench/internal/track"
)

// The environment of the daemon under test.
const (
	envDSN       = "FAULTS_DSN"
	envSite      = "FAULTS_SITE"
	envRunner    = "FAULTS_RUNNER"
	envFailpoint = "FAULTS_FAILPOINT" // where it kills itself; "" nowhere
)

// quickDaemon runs the daemon's services as the elected one, with the patience
// of a test.
func quickDaemon(ctx context.Context) error {
	text, err := os.ReadFile(os.Getenv(envSite))
	if err != nil {
		return err
	}
	st, faults := site.Load(text, os.Getenv(envSite))
	if st == nil {
		return errors.New(faults.Text())
	}
	s, err := store.Open(ctx, os.Getenv(envDSN))
	if err != nil {
		return err
	}
	defer s.Close()
	var term *store.Leadership
	for term == nil {
		if term, err = s.Elect(ctx, fmt.Sprint(os.Getpid()), time.Second); err != nil {
			return err
		}
		if term == nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	defer term.Release()
	fmt.Println("acting")
	s = s.Fenced(term.Epoch)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	die := func(name string) {
		if name == os.Getenv(envFailpoint) {
			log.Info("killed at a failpoint", "name", name)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	cluster := slurm.New(slurm.Config{Conf: st.Slurm.Conf, Timeout: 15 * time.Second, SubmitTimeout: 15 * time.Second})
	submitter, err := submit.New(submit.Config{
		Site: st, Store: s, Cluster: cluster, Log: log, Runner: os.Getenv(envRunner), Interval: 300 * time.Millisecond, Settle: 12 * time.Second, Failpoint: die,
	})
	if err != nil {
		return err
	}
	options := collect.DefaultOptions()
	options.Interval, options.LateEvery, options.Failpoint = 500*time.Millisecond, 5*time.Second, die
	collector := collect.New(s, log.With("service", "collect"), options)
	// A daemon that is killed every ten seconds must not wait longer for anything, and
	// a machine on which a whole cluster is being killed answers slowly: with the usual
	// rest, one answer of 15 s is followed by five minutes in which nothing is seen.
	tracker := track.New(track.Config{
		Site: st, Store: s, Cluster: cluster, Log: log, Interval: 500 * time.Millisecond, Visibility: 3 * time.Second, Collect: 20 * time.Second,
		Absent: 6 * time.Second, Requeue: 5 * time.Second, Rest: 1, Failpoint: die, Collected: collector.Looked,
	})
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{submitter.Run, tracker.Run, collector.Run} {
		g.Go(func() error { return run(ctx) })
	}
	g.Go(func() error {
		select {
		case <-term.Lost:
			return errors.New("deposed")
		case <-ctx.Done():
			return nil
		}
	})
	return g.Wait()
}
