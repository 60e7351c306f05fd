package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sbench/internal/store"
)

const (
	electEvery = 2 * time.Second // between two tries to become the leader
	probeEvery = 2 * time.Second // between two looks whether the lock is still held
	restWait   = 5 * time.Second // after services failed, before they are tried again
)

// service is a part of the daemon that only the leader runs. It blocks until
// ctx ends.
type service struct {
	name string
	run  func(ctx context.Context) error
}

// leader runs the services while this daemon is the one that acts.
type leader struct {
	store    *store.Store
	log      *slog.Logger
	services func(s *store.Store) ([]service, error)
	acting   atomic.Bool
	// again ends a term, so that another one begins at once with new services.
	again chan struct{}
}

// run stands for election again and again until ctx ends. A service that fails
// ends the term, so that another daemon may do better.
func (l *leader) run(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	holder := fmt.Sprintf("%s:%d", host, os.Getpid())
	for ctx.Err() == nil {
		term, err := l.store.Elect(ctx, holder, probeEvery)
		switch {
		case err != nil && ctx.Err() == nil:
			l.log.WarnContext(ctx, "no election", "error", err)
			sleep(ctx, restWait)
			continue
		case term == nil:
			sleep(ctx, electEvery)
			continue
		}
		l.log.InfoContext(ctx, "this daemon acts", "epoch", term.Epoch)
		err = l.serveTerm(ctx, term)
		l.log.InfoContext(ctx, "this daemon acts no more", "epoch", term.Epoch, "cause", err)
		if ctx.Err() == nil && !errors.Is(err, errReloaded) {
			sleep(ctx, restWait)
		}
	}
	return nil
}

// errDeposed ends a term whose lock was lost.
var errDeposed = errors.New("the leader's connection was lost")

// serveTerm runs the services until one fails, the lock is lost or ctx ends. It
// returns after all of them have returned and the lock is free.
func (l *leader) serveTerm(ctx context.Context, term *store.Leadership) error {
	defer term.Release()
	l.acting.Store(true)
	defer l.acting.Store(false)
	select { // the services are about to be new
	case <-l.again:
	default:
	}
	list, err := l.services(l.store.Fenced(term.Epoch))
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		select {
		case <-term.Lost:
			return errDeposed
		case <-l.again:
			return errReloaded
		case <-ctx.Done():
			return nil
		}
	})
	for _, sv := range list {
		g.Go(func() error {
			err := sv.run(ctx)
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil:
				return fmt.Errorf("%s ended by itself", sv.name)
			default:
				return fmt.Errorf("%s: %w", sv.name, err)
			}
		})
	}
	return g.Wait()
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
