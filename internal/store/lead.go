package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// leaderLock is the key of the advisory lock that the acting daemon holds.
const leaderLock int64 = 0x5362656e6368 // "Sbench"

const (
	sqlTryLead    = `select pg_try_advisory_lock($1)`
	sqlRaiseEpoch = `update fence set epoch = epoch + 1, holder = $1, since = $2 returning epoch`
	sqlStillHere  = `select 1`
	sqlMortal     = `select set_config('idle_session_timeout', $1, false)`
	sqlUnlead     = `select pg_advisory_unlock($1)`
)

// Leadership is held while its connection lives. It is safe for concurrent use.
type Leadership struct {
	// Epoch goes to Store.Fenced.
	Epoch int64
	// Lost is closed when the connection that holds the lock has died, or on
	// Release: stop acting. Writes are safe even before that is noticed.
	Lost <-chan struct{}

	stop context.CancelFunc
}

// Elect tries to become the acting daemon. It returns nil and no error where
// another daemon acts; the caller tries again later. The lock lives on a
// connection of its own, which is asked every interval whether it still does; the
// server ends it where nothing was asked for silentFor, so that a daemon that
// hangs, or a host that has vanished, does not lead for ever.
func (s *Store) Elect(ctx context.Context, holder string, interval time.Duration) (*Leadership, error) {
	return s.elect(ctx, holder, interval, silentFor(interval))
}

func (s *Store) elect(ctx context.Context, holder string, interval, silence time.Duration) (*Leadership, error) {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("elect: %w", err)
	}
	conn := pooled.Hijack()
	keep := false
	defer func() {
		if !keep {
			closeConn(ctx, conn)
		}
	}()
	var won bool
	if err := conn.QueryRow(ctx, sqlTryLead, leaderLock).Scan(&won); err != nil {
		return nil, fmt.Errorf("elect: %w", err)
	}
	if !won {
		return nil, nil
	}
	// The server's own clock: TCP would tell of a lost host only after hours.
	if _, err := conn.Exec(ctx, sqlMortal, strconv.FormatInt(silence.Milliseconds(), 10)); err != nil {
		return nil, fmt.Errorf("elect: bound the silence of the leader: %w", err)
	}
	l := &Leadership{}
	if err := conn.QueryRow(ctx, sqlRaiseEpoch, holder, s.now()).Scan(&l.Epoch); err != nil {
		return nil, fmt.Errorf("elect: raise epoch: %w", err)
	}
	// The guard outlives ctx, which bounds the election alone.
	guard, stop := context.WithCancel(context.WithoutCancel(ctx))
	lost := make(chan struct{})
	l.Lost, l.stop = lost, stop
	keep = true
	go func() {
		defer close(lost)
		defer closeConn(guard, conn)
		guardConn(guard, conn, interval)
		unlock(guard, conn)
	}()
	return l, nil
}

// silentFor is how long the leader's connection may be silent: some probes, so
// that a busy machine does not lose the lead.
func silentFor(interval time.Duration) time.Duration { return max(10*interval, minSilence) }

const minSilence = 5 * time.Second

// Release gives the leadership back and waits until the lock is free.
func (l *Leadership) Release() {
	l.stop()
	<-l.Lost
}

func guardConn(ctx context.Context, conn *pgx.Conn, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		probe, cancel := context.WithTimeout(ctx, interval)
		_, err := conn.Exec(probe, sqlStillHere)
		cancel()
		if err != nil {
			return
		}
	}
}

// unlock frees the lock at once: the server notices a closed connection a little
// later. Where the connection is broken the lock goes with it.
func unlock(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, sqlUnlead, leaderLock)
}

// closeConn closes a connection although ctx may have ended, within a bounded time.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// The entities whose changes Listen reports.
const channel = "sbench_changed"

const sqlListen = `listen sbench_changed`

// Listen calls changed with "sweep", "run", "batch" or "task" whenever one of
// them has changed, and with "" after each (re)connection, when anything may
// have. It blocks until ctx ends or the connection fails.
func (s *Store) Listen(ctx context.Context, changed func(entity string)) error {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	conn := pooled.Hijack()
	defer closeConn(ctx, conn)
	if _, err := conn.Exec(ctx, sqlListen); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	changed("")
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("listen: %w", err))
		}
		if n.Channel == channel {
			changed(n.Payload)
		}
	}
}

// UntilFenced lets a service of the acting daemon take its turns: one at once, and
// another an interval after each, or when wake, which may be nil, says that there is
// something to do. It ends with ctx, whose error it returns, or with ErrFenced where
// another daemon acts. What else goes wrong in a turn is told to failed: the database
// or the file system may be back for the next.
func UntilFenced(
	ctx context.Context, interval time.Duration, wake <-chan struct{}, turn func(context.Context) error, failed func(error),
) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-wake:
		}
		err := turn(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrFenced):
			return err
		case err != nil:
			failed(err)
		}
		timer.Reset(interval)
	}
}
