package gang

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Event is what a member says unasked, or that it is lost.
type Event struct {
	Member Member
	Name   string          // as the member names it; "" where it is lost
	Body   json.RawMessage // of the member
	Err    error           // wraps ErrLost where it is lost
}

// Leader is rank 0's side. Its methods may be called concurrently.
type Leader struct {
	path     string
	listener net.Listener
	timing   Timing
	size     int
	secret   string
	events   chan Event

	mu      sync.Mutex
	members map[int]*seat
	arrived chan struct{} // closed when all are there
	closing bool
}

// seat is a member that has joined.
type seat struct {
	Member
	link  *link
	calls sync.Mutex // one at a time

	mu      sync.Mutex
	next    int64
	waiting map[int64]chan message
	lost    error
	gone    chan struct{} // closed when lost is set
}

// Lead opens the meeting: it listens, and writes where into the file at path.
// size counts the leader.
func Lead(ctx context.Context, path, node string, size int, t Timing) (*Leader, error) {
	certificate, digest, err := newCertificate()
	if err != nil {
		return nil, fmt.Errorf("lead the gang: %w", err)
	}
	//nolint:gosec // the others are on other machines, whose way here is not known
	listener, err := tls.Listen("tcp", ":0", &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return nil, fmt.Errorf("lead the gang: %w", err)
	}
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	l := &Leader{
		path: path, listener: listener, timing: t.withDefaults(), size: size, secret: hex.EncodeToString(secret[:]),
		events: make(chan Event, 64), members: map[int]*seat{}, arrived: make(chan struct{}),
	}
	err = writePlace(path, place{
		Addresses: addresses(ctx, node), Port: listener.Addr().(*net.TCPAddr).Port, Certificate: digest, Secret: l.secret,
	})
	if err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("lead the gang: write where: %w", err)
	}
	if size <= 1 {
		close(l.arrived)
	}
	go l.accept()
	return l, nil
}

func (l *Leader) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		go l.receive(conn)
	}
}

// receive takes a member in and reads from it until it is gone.
func (l *Leader) receive(conn net.Conn) {
	k := newLink(conn, l.timing)
	// Who is nobody must not keep a place.
	stranger := time.AfterFunc(10*time.Second, k.close)
	m, err := k.receive()
	var h hello
	if err != nil || m.Kind != "hello" || json.Unmarshal(m.Body, &h) != nil ||
		subtle.ConstantTimeCompare([]byte(h.Secret), []byte(l.secret)) != 1 || !stranger.Stop() {
		k.close()
		return
	}
	s := &seat{Member: h.Member, link: k, waiting: map[int64]chan message{}, gone: make(chan struct{})}
	if why := l.seat(s); why != "" {
		_ = k.send(message{Kind: "refused", Err: why})
		k.close()
		return
	}
	go k.beat()
	for {
		m, err := k.receive()
		if err != nil {
			l.lose(s, lostWhy(err, l.timing.Patience))
			return
		}
		switch m.Kind {
		case "answer":
			s.mu.Lock()
			answer := s.waiting[m.ID]
			delete(s.waiting, m.ID)
			s.mu.Unlock()
			if answer != nil {
				answer <- m
			}
		case "event":
			l.tell(Event{Member: s.Member, Name: m.Verb, Body: m.Body})
		}
	}
}

func (l *Leader) seat(s *seat) (refused string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closing:
		return "the meeting is over"
	case s.Rank <= 0 || s.Rank >= l.size:
		return fmt.Sprintf("rank %d of %d", s.Rank, l.size)
	case l.members[s.Rank] != nil:
		return fmt.Sprintf("rank %d is there already", s.Rank)
	}
	// Nothing is asked of it before it knows that it is in.
	if err := s.link.send(message{Kind: "welcome"}); err != nil {
		return err.Error()
	}
	l.members[s.Rank] = s
	if len(l.members) == l.size-1 {
		close(l.arrived)
	}
	return ""
}

// tell passes an event on. One more than anybody reads is not needed: the first
// ends the attempt.
func (l *Leader) tell(e Event) {
	select {
	case l.events <- e:
	default:
	}
}

func (l *Leader) lose(s *seat, why error) {
	s.link.close()
	s.mu.Lock()
	s.lost = why
	close(s.gone)
	for id, answer := range s.waiting {
		delete(s.waiting, id)
		close(answer)
	}
	s.mu.Unlock()
	l.mu.Lock()
	closing := l.closing
	l.mu.Unlock()
	if !closing {
		l.tell(Event{Member: s.Member, Err: why})
	}
}

// Await waits until all members have joined and returns them by rank, from 1 on.
func (l *Leader) Await(ctx context.Context) ([]Member, error) {
	timer := time.NewTimer(l.timing.Meet)
	defer timer.Stop()
	select {
	case <-l.arrived:
		return l.Members(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
	}
	var missing []string
	l.mu.Lock()
	for rank := 1; rank < l.size; rank++ {
		if l.members[rank] == nil {
			missing = append(missing, fmt.Sprint(rank))
		}
	}
	l.mu.Unlock()
	return l.Members(), fmt.Errorf("rank %s of %d: %w: did not join within %v", strings.Join(missing, ", "), l.size, ErrLost, l.timing.Meet)
}

// Members are those that have joined, by rank.
func (l *Leader) Members() []Member {
	l.mu.Lock()
	defer l.mu.Unlock()
	var members []Member
	for _, s := range l.members {
		members = append(members, s.Member)
	}
	slices.SortFunc(members, func(a, b Member) int { return a.Rank - b.Rank })
	return members
}

// Events are what members say unasked, and losses.
func (l *Leader) Events() <-chan Event { return l.events }

// Call asks a member to do something and waits for its answer, which goes into
// out. The error wraps ErrLost where the member is gone; it is ctx's where ctx
// ends first: the member then drops what it does when it is asked the next time.
func (l *Leader) Call(ctx context.Context, rank int, verb string, in, out any) error {
	l.mu.Lock()
	s := l.members[rank]
	l.mu.Unlock()
	if s == nil {
		return fmt.Errorf("rank %d: %w: it never joined", rank, ErrLost)
	}
	s.calls.Lock()
	defer s.calls.Unlock()
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("rank %d: %s: %w", rank, verb, err)
	}
	answer := make(chan message, 1)
	s.mu.Lock()
	lost := s.lost
	s.next++
	id := s.next
	if lost == nil {
		s.waiting[id] = answer
	}
	s.mu.Unlock()
	if lost != nil {
		return fmt.Errorf("rank %d on %s: %w", rank, s.Node, lost)
	}
	if err := s.link.send(message{Kind: "call", ID: id, Verb: verb, Body: body}); err != nil {
		return fmt.Errorf("rank %d on %s: %w", rank, s.Node, lostWhy(err, l.timing.Patience))
	}
	select {
	case m, ok := <-answer:
		switch {
		case !ok:
			s.mu.Lock()
			defer s.mu.Unlock()
			return fmt.Errorf("rank %d on %s: %w", rank, s.Node, s.lost)
		case m.Err != "":
			return fmt.Errorf("rank %d on %s: %s: %s", rank, s.Node, verb, m.Err)
		case out == nil:
			return nil
		}
		if err := json.Unmarshal(m.Body, out); err != nil {
			return fmt.Errorf("rank %d on %s: %s: answer not understood: %w", rank, s.Node, verb, err)
		}
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.waiting, id)
		s.mu.Unlock()
		return fmt.Errorf("rank %d on %s: %s: %w", rank, s.Node, verb, ctx.Err())
	}
}

// Close ends the meeting: every member's Serve returns.
func (l *Leader) Close() error {
	l.mu.Lock()
	l.closing = true
	seats := make([]*seat, 0, len(l.members))
	for _, s := range l.members {
		seats = append(seats, s)
	}
	l.mu.Unlock()
	for _, s := range seats {
		_ = s.link.send(message{Kind: "end"}) // who is gone needs no telling
	}
	// Each hangs up itself: a connection that is closed here with something unread
	// would be reset, and the end with it.
	timer := time.NewTimer(2 * time.Second)
	defer timer.Stop()
	for _, s := range seats {
		select {
		case <-s.gone:
		case <-timer.C:
		}
		s.link.close()
	}
	_ = l.listener.Close()
	if err := os.Remove(l.path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("end the meeting: %w", err)
	}
	return nil
}
