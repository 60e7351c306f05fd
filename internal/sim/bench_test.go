package sim

import (
	"io"
	"net"
	"sync"
	"testing"
)

// BenchmarkEmit is what one event of one stream costs the engine's thread, with
// a client that reads.
func BenchmarkEmit(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			_, _ = io.Copy(io.Discard, c)
		}
	}()
	accepted, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer accepted.Close()
	var wait sync.WaitGroup
	c, err := newConn(accepted, &wait)
	if err != nil {
		b.Fatal(err)
	}
	clock, err := newClock()
	if err != nil {
		b.Fatal(err)
	}
	e := &engine{config: DefaultConfig(), clock: clock}
	s := &server{config: e.config, engine: e}
	r := &request{conn: c, id: "cmpl-1", stream: true, keepAlive: true, done: make(chan struct{}), model: []byte(`"sim"`)}
	r.sequence = sequence{prompt: 1, target: b.N + 1, owner: r}
	r.head = s.head(r)
	b.ReportAllocs()
	for b.Loop() {
		r.made++
		e.emit(&r.sequence, 1, false)
	}
}

// BenchmarkStep is what one step of a full batch costs the scheduler.
func BenchmarkStep(b *testing.B) {
	l := DefaultLimits()
	l.Slots, l.StepTokens, l.Context = 1000, 8192, 1<<30
	s := newScheduler(l, DefaultCost())
	for range l.Slots {
		s.add(&sequence{prompt: 1, target: 1 << 29})
	}
	b.ReportAllocs()
	for b.Loop() {
		s.plan(1)
		s.complete(func(*sequence, int, bool) {})
	}
}
