package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/pgtest"
	"sbench/internal/store"
)

func TestElect_OneLeads(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	first, err := s.Elect(t.Context(), "a", time.Minute)
	if err != nil || first == nil {
		t.Fatalf("first election: %v, %v", first, err)
	}
	if second, err := s.Elect(t.Context(), "b", time.Minute); err != nil || second != nil {
		t.Fatalf("two lead: %v, %v", second, err)
	}
	old := s.Fenced(first.Epoch)
	nothing := func(*store.Tx) error { return nil }
	if err := old.WithTx(t.Context(), nothing); err != nil {
		t.Fatalf("the leader may not write: %v", err)
	}
	first.Release()
	second, err := s.Elect(t.Context(), "b", time.Minute)
	if err != nil || second == nil {
		t.Fatalf("after release: %v, %v", second, err)
	}
	defer second.Release()
	if second.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", second.Epoch, first.Epoch)
	}
	if err := old.WithTx(t.Context(), nothing); !errors.Is(err, store.ErrFenced) {
		t.Errorf("the deposed leader writes: %v", err)
	}
	// Each change of state names the epoch that wrote it.
	_, runs := create(t, s.Fenced(second.Epoch), sweepOf("", 1))
	history, err := s.Transitions(t.Context(), "run", "1")
	if err != nil || len(history) != 1 || history[0].Epoch == nil || *history[0].Epoch != second.Epoch {
		t.Errorf("run %d: %+v, %v", runs[0], history, err)
	}
}

func TestElect_NoticesALostConnection(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	l, err := s.Elect(t.Context(), "a", 10*time.Millisecond)
	if err != nil || l == nil {
		t.Fatalf("election: %v, %v", l, err)
	}
	execute(t, s, `select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and pid <> pg_backend_pid()
 and database = (select oid from pg_database where datname = current_database())`)
	select {
	case <-l.Lost:
	case <-time.After(30 * time.Second):
		t.Fatal("the loss was not noticed")
	}
}

// TestElect_SilentLeader: a leader that hangs, or whose host has vanished, keeps
// nobody else from leading, and writes nothing when it goes on.
func TestElect_SilentLeader(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	hung, err := s.ElectHanging(t.Context(), "a", 200*time.Millisecond)
	if err != nil || hung == nil {
		t.Fatalf("election: %v, %v", hung, err)
	}
	defer hung.Release()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		next, err := s.Elect(t.Context(), "b", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if next == nil {
			if time.Now().After(deadline) {
				t.Fatal("nobody else leads")
			}
			continue
		}
		defer next.Release()
		break
	}
	if err := s.Fenced(hung.Epoch).WithTx(t.Context(), func(*store.Tx) error { return nil }); !errors.Is(err, store.ErrFenced) {
		t.Errorf("the leader that hung writes: %v", err)
	}
}

// TestOpen_TransactionLeftAlone: the server ends a transaction that nobody goes on
// with; it would hold the fence, and with it every election.
func TestOpen_TransactionLeftAlone(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	err := s.WithTx(t.Context(), func(tx *store.Tx) error {
		var most string
		if err := tx.QueryRow(t.Context(), `select setting from pg_settings where name = 'idle_in_transaction_session_timeout'`).Scan(&most); err != nil {
			return err
		}
		if most != "60000" {
			t.Errorf("a transaction may be left alone for %s ms", most)
		}
		_, err := tx.Exec(t.Context(), `select set_config('idle_in_transaction_session_timeout', '50', true)`)
		if err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond) // the process hangs: what is tested is the time itself
		_, err = tx.Exec(t.Context(), `select 1`)
		return err
	})
	if err == nil {
		t.Error("a transaction that was left alone goes on")
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	heard := make(chan string, 100)
	done := make(chan error, 1)
	ctx, stop := contextOf(t)
	go func() { done <- s.Listen(ctx, func(entity string) { heard <- entity }) }()
	if got := <-heard; got != "" {
		t.Fatalf("heard %q before anything", got)
	}
	create(t, s, sweepOf("", 2))
	select {
	case got := <-heard:
		if got != "run" {
			t.Errorf("heard %q, want run", got)
		}
	case <-time.After(30 * time.Second):
		t.Error("heard nothing")
	}
	stop()
	<-done
}

func TestUntilFenced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		wake := make(chan struct{}, 1)
		begun := time.Now()
		away := errors.New("the database is away")
		var turns []time.Duration
		var told []error
		turn := func(context.Context) error {
			turns = append(turns, time.Since(begun))
			switch len(turns) {
			case 1:
				return away
			case 2: // something to do before the interval is over
				time.AfterFunc(3*time.Second, func() { wake <- struct{}{} })
			case 4:
				return fmt.Errorf("tracking: %w", store.ErrFenced)
			}
			return nil
		}
		err := store.UntilFenced(ctx, 10*time.Second, wake, turn, func(err error) { told = append(told, err) })
		if !errors.Is(err, store.ErrFenced) {
			t.Errorf("ended with %v", err)
		}
		want := []time.Duration{0, 10 * time.Second, 13 * time.Second, 23 * time.Second}
		if diff := cmp.Diff(want, turns); diff != "" {
			t.Errorf("turns (-want +got):\n%s", diff)
		}
		if len(told) != 1 || !errors.Is(told[0], away) {
			t.Errorf("told %v", told)
		}
		cutShort := func(context.Context) error { cancel(); return errors.New("cut short") }
		if err := store.UntilFenced(ctx, time.Second, nil, cutShort, func(err error) { t.Errorf("told %v", err) }); !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v after ctx", err)
		}
	})
}
