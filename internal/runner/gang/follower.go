package gang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
)

// Follower is a further rank's side.
type Follower struct {
	link *link
}

// Handler does what the leader asks for. Its ctx ends when the leader asks for
// something else instead, or is gone.
type Handler func(ctx context.Context, verb string, in json.RawMessage) (out any, err error)

// Serve does what the leader asks for, one thing at a time, until the leader ends
// the meeting (nil) or is lost (ErrLost). What is under way is waited for.
func (f *Follower) Serve(ctx context.Context, handle Handler) error {
	defer f.link.close()
	var work sync.WaitGroup
	defer work.Wait()
	stop := func() {}
	defer func() { stop() }()
	for {
		m, err := f.link.receive()
		if err != nil {
			return fmt.Errorf("the leader: %w", lostWhy(err, f.link.timing.Patience))
		}
		switch m.Kind {
		case "end":
			return nil
		case "call":
			stop()
			work.Wait()
			callCtx, cancel := context.WithCancel(ctx)
			stop = cancel
			work.Go(func() { defer cancel(); f.answer(callCtx, m, handle) })
		}
	}
}

func (f *Follower) answer(ctx context.Context, m message, handle Handler) {
	out, err := handle(ctx, m.Verb, m.Body)
	reply := message{Kind: "answer", ID: m.ID}
	if err == nil {
		reply.Body, err = json.Marshal(out)
	}
	if err != nil {
		reply.Body, reply.Err = nil, err.Error()
	}
	if err := f.link.send(reply); err != nil && !errors.Is(err, context.Canceled) {
		f.link.close() // Serve finds out
	}
}

// Tell tells the leader something that it did not ask for.
func (f *Follower) Tell(name string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return f.link.send(message{Kind: "event", Verb: name, Body: text})
}
