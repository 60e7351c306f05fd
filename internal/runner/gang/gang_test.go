package gang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var quick = Timing{Meet: 5 * time.Second, Beat: 20 * time.Millisecond, Patience: 300 * time.Millisecond}

// meet makes a gang of so many, whose followers serve by handle; what their Serve
// returned is sent on ended.
func meet(t *testing.T, size int, handle func(rank int) Handler) (l *Leader, ended chan error, followers map[int]*Follower) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gang", "meet")
	ended, followers = make(chan error, size), map[int]*Follower{}
	joined := make(chan *Follower, size)
	for rank := 1; rank < size; rank++ {
		go func() {
			f, err := Join(t.Context(), path, Member{Rank: rank, Node: fmt.Sprintf("n%d", rank+1)}, quick)
			joined <- f
			if err != nil {
				ended <- err
				return
			}
			ended <- f.Serve(context.Background(), handle(rank))
		}()
	}
	l, err := Lead(t.Context(), path, "n1", size, quick)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	members, err := l.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range members {
		if m.Rank != i+1 || m.Node != fmt.Sprintf("n%d", i+2) || m.Via == "" {
			t.Errorf("member %d: %+v", i, m)
		}
		f := <-joined
		followers[m.Rank] = f
	}
	return l, ended, followers
}

func echo(rank int) Handler {
	return func(_ context.Context, verb string, in json.RawMessage) (any, error) {
		if verb == "fail" {
			return nil, errors.New("cannot")
		}
		return map[string]string{"rank": strconv.Itoa(rank), "verb": verb, "in": string(in)}, nil
	}
}

func TestGang_CallsAndEnd(t *testing.T) {
	l, ended, _ := meet(t, 3, echo)
	for rank := 1; rank <= 2; rank++ {
		var got map[string]string
		if err := l.Call(t.Context(), rank, "verify", 7, &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"rank": strconv.Itoa(rank), "verb": "verify", "in": "7"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if err := l.Call(t.Context(), rank, "fail", nil, nil); err == nil || !strings.Contains(err.Error(), "fail: cannot") {
			t.Errorf("failing call: %v", err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
	if _, err := os.Stat(l.path); !os.IsNotExist(err) {
		t.Errorf("the meeting file is left: %v", err)
	}
}

// TestGang_LostMember: a member whose runner ends, and one that falls silent, are
// lost within the patience; a call to it ends, and so does the waiting.
func TestGang_LostMember(t *testing.T) {
	for name, lose := range map[string]func(f *Follower){
		"ends":         func(f *Follower) { f.link.close() },
		"falls silent": func(f *Follower) { f.link.once.Do(func() { close(f.link.closed) }) }, // stops beating
	} {
		t.Run(name, func(t *testing.T) {
			hang := func(int) Handler {
				return func(ctx context.Context, _ string, _ json.RawMessage) (any, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			}
			l, _, followers := meet(t, 2, hang)
			began := time.Now()
			called := make(chan error, 1)
			go func() { called <- l.Call(t.Context(), 1, "verify", nil, nil) }()
			lose(followers[1])
			e := <-l.Events()
			if !errors.Is(e.Err, ErrLost) || e.Member.Node != "n2" {
				t.Errorf("event %+v", e)
			}
			if err := <-called; !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "rank 1 on n2") {
				t.Errorf("call: %v", err)
			}
			if err := l.Call(t.Context(), 1, "again", nil, nil); !errors.Is(err, ErrLost) {
				t.Errorf("later call: %v", err)
			}
			if d := time.Since(began); d > 10*quick.Patience {
				t.Errorf("took %v", d)
			}
		})
	}
}

// TestGang_LostLeader: a follower does not outlive a leader that ends.
func TestGang_LostLeader(t *testing.T) {
	l, ended, _ := meet(t, 2, echo)
	for _, s := range l.members {
		s.link.close()
	}
	if err := <-ended; !errors.Is(err, ErrLost) {
		t.Errorf("Serve: %v", err)
	}
}

// TestGang_CallReplacesCall: what was given up does not hold up what comes next.
func TestGang_CallReplacesCall(t *testing.T) {
	began := make(chan struct{}, 1)
	l, _, _ := meet(t, 2, func(rank int) Handler {
		return func(ctx context.Context, verb string, in json.RawMessage) (any, error) {
			if verb == "long" {
				began <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return echo(rank)(ctx, verb, in)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if err := l.Call(ctx, 1, "long", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("long call: %v", err)
	}
	if err := l.Call(t.Context(), 1, "stop", nil, nil); err != nil {
		t.Errorf("next call: %v", err)
	}
}

func TestGang_Event(t *testing.T) {
	l, _, followers := meet(t, 2, echo)
	if err := followers[1].Tell("engine", "exit status 1"); err != nil {
		t.Fatal(err)
	}
	if e := <-l.Events(); e.Name != "engine" || string(e.Body) != `"exit status 1"` || e.Member.Rank != 1 || e.Err != nil {
		t.Errorf("event %+v", e)
	}
}

// TestGang_MissingMember: who never comes is named, in time.
func TestGang_MissingMember(t *testing.T) {
	timing := quick
	timing.Meet = 100 * time.Millisecond
	l, err := Lead(t.Context(), filepath.Join(t.TempDir(), "meet"), "n1", 3, timing)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Await(t.Context()); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "rank 1, 2 of 3") {
		t.Errorf("got %v", err)
	}
	if _, err := Join(t.Context(), filepath.Join(t.TempDir(), "nobody"), Member{Rank: 1}, timing); err == nil || !strings.Contains(err.Error(), "the leader was not met within") {
		t.Errorf("join: %v", err)
	}
}

// TestGang_Strangers: who has no secret, the wrong rank, or is there twice is not
// let in, and an impostor in the leader's place gets no secret.
func TestGang_Strangers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meet")
	l, err := Lead(t.Context(), path, "n1", 2, quick)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := readPlace(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(change func(*place), rank int) error {
		changed := p
		change(&changed)
		_, err := join(t.Context(), changed, "127.0.0.1", Member{Rank: rank}, quick)
		return err
	}
	if try(func(p *place) { p.Secret = strings.Repeat("0", 64) }, 1) == nil {
		t.Error("a stranger without the secret was let in")
	}
	if err := try(func(p *place) { p.Certificate = strings.Repeat("0", 64) }, 1); err == nil || !strings.Contains(err.Error(), "not the leader") {
		t.Errorf("an impostor: %v", err)
	}
	if err := try(func(*place) {}, 2); err == nil || !strings.Contains(err.Error(), "rank 2 of 2") {
		t.Errorf("rank 2: %v", err)
	}
	if err := try(func(*place) {}, 1); err != nil {
		t.Errorf("rank 1: %v", err)
	}
	if err := try(func(*place) {}, 1); err == nil || !strings.Contains(err.Error(), "there already") {
		t.Errorf("rank 1 again: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the meeting file: %v %v", info.Mode(), err)
	}
}

// TestJoin_StaleFile: an older meeting file of the same name does not mislead.
func TestJoin_StaleFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meet")
	if err := writePlace(path, place{Addresses: []string{"127.0.0.1"}, Port: 1, Certificate: "00", Secret: "00"}); err != nil {
		t.Fatal(err)
	}
	joined := make(chan error, 1)
	go func() {
		_, err := Join(t.Context(), path, Member{Rank: 1, Node: "n2"}, quick)
		joined <- err
	}()
	l, err := Lead(t.Context(), path, "n1", 2, quick)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := <-joined; err != nil {
		t.Error(err)
	}
}

// FuzzReceive: whatever comes over the wire, nothing breaks and nothing grows
// beyond what came.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x07, 0xff, 0xff, 0xff, '{'})
	f.Fuzz(func(t *testing.T, data []byte) {
		here, there := net.Pipe()
		defer here.Close()
		go func() { _, _ = there.Write(data); _ = there.Close() }()
		k := newLink(here, quick.withDefaults())
		for range 4 {
			if _, err := k.receive(); err != nil {
				return
			}
		}
	})
}
