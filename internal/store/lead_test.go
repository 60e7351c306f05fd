package store_test

import (
	"errors"
	"testing"
	"time"

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
