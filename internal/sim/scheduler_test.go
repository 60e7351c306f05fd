package sim

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drain runs the scheduler until it is empty and returns what each sequence
// got, with the step in which it came.
func drain(t interface{ Fatalf(string, ...any) }, s *scheduler) (made map[*sequence][]int, steps int) {
	made = map[*sequence][]int{}
	for ; len(s.running) > 0 || len(s.waiting) > 0; steps++ {
		if steps > 1_000_000 {
			t.Fatalf("no end: %d running, %d waiting", len(s.running), len(s.waiting))
		}
		if s.plan(int64(steps+1)) == 0 {
			t.Fatalf("nothing to do with %d running, %d waiting", len(s.running), len(s.waiting))
		}
		if s.used > s.capacity() || len(s.running) > s.limits.Slots {
			t.Fatalf("%d of %d blocks used, %d of %d slots", s.used, s.capacity(), len(s.running), s.limits.Slots)
		}
		prefill := 0
		for _, q := range s.running {
			prefill += q.chunk
		}
		if prefill > s.limits.StepTokens {
			t.Fatalf("%d prompt tokens in a step of at most %d", prefill, s.limits.StepTokens)
		}
		s.complete(func(q *sequence, tokens int, done bool) {
			made[q] = append(made[q], tokens)
			if done != (q.made == q.target) || q.made > q.target {
				t.Fatalf("made %d of %d, done %v", q.made, q.target, done)
			}
		})
	}
	return made, steps
}

// TestScheduler_Conserves: whatever the limits, every request gets exactly its
// tokens, no limit is broken and no memory is lost.
func TestScheduler_Conserves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{
			Batching:          rapid.SampledFrom([]Batching{Continuous, Static}).Draw(t, "batching"),
			Slots:             rapid.IntRange(1, 8).Draw(t, "slots"),
			StepTokens:        rapid.IntRange(8, 64).Draw(t, "step tokens"),
			Context:           200,
			KVTokens:          rapid.SampledFrom([]int{0, 208, 320}).Draw(t, "kv"),
			PrefixCacheTokens: rapid.SampledFrom([]int{0, 32, 320}).Draw(t, "prefix cache"),
			Speculative:       rapid.IntRange(0, 4).Draw(t, "speculative"),
			Acceptance:        rapid.Float64Range(0, 1).Draw(t, "acceptance"),
		}
		l.StepTokens = max(l.StepTokens, l.Slots*(1+l.Speculative))
		if err := l.check(); err != nil {
			t.Fatalf("%v", err)
		}
		s := newScheduler(l, DefaultCost())
		var all []*sequence
		for range rapid.IntRange(1, 20).Draw(t, "requests") {
			q := &sequence{
				stream: rapid.Uint64().Draw(t, "stream"),
				prompt: rapid.IntRange(1, 100).Draw(t, "prompt"), target: rapid.IntRange(1, 100).Draw(t, "target"),
			}
			if l.PrefixCacheTokens > 0 {
				q.prefix = prefixHashes(make([]int64, q.prompt))
			}
			if err := s.fits(q.prompt, q.target); err != nil {
				t.Fatalf("%v", err)
			}
			s.add(q)
			all = append(all, q)
		}
		made, _ := drain(t, s)
		for _, q := range all {
			sum := 0
			for _, n := range made[q] {
				sum += n
			}
			if sum != q.target {
				t.Fatalf("got %d tokens, want %d", sum, q.target)
			}
		}
		if s.used != 0 || s.padded != 0 {
			t.Fatalf("%d blocks and %d places are left", s.used, s.padded)
		}
	})
}

// TestScheduler_Continuous: a request joins while another decodes.
func TestScheduler_Continuous(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	l.Slots = 2
	s := newScheduler(l, Cost{PrefillRate: 1000, DecodeRate: 100, PerSequence: time.Millisecond, Efficiency: 1})
	a, b := &sequence{prompt: 10, target: 3}, &sequence{prompt: 20, target: 2}
	s.add(a)
	if d := s.plan(1); d != 10*time.Millisecond {
		t.Errorf("prefill of 10 tokens: %v", d)
	}
	s.complete(func(*sequence, int, bool) {})
	s.add(b)
	if d := s.plan(2); d != 30*time.Millisecond { // 20 prompt tokens beside one decoding step
		t.Errorf("mixed step: %v", d)
	}
	s.complete(func(*sequence, int, bool) {})
	if d := s.plan(3); d != 11*time.Millisecond {
		t.Errorf("two decoding: %v", d)
	}
	done := 0
	s.complete(func(_ *sequence, _ int, end bool) {
		if end {
			done++
		}
	})
	if done != 2 {
		t.Errorf("%d done, want 2", done)
	}
}

// TestScheduler_Static: nobody joins a running batch, and its finished places
// are paid for until all are done.
func TestScheduler_Static(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	l.Batching, l.Slots = Static, 2
	s := newScheduler(l, Cost{PrefillRate: 1e9, DecodeRate: 100, PerSequence: 2 * time.Millisecond, Efficiency: 1})
	short, long, late := &sequence{prompt: 1, target: 1}, &sequence{prompt: 1, target: 5}, &sequence{prompt: 1, target: 1}
	s.add(short)
	s.add(long)
	s.plan(1)
	s.complete(func(*sequence, int, bool) {})
	s.add(late)
	if d := s.plan(2); d != 12*time.Millisecond {
		t.Errorf("a batch of one and a finished place: %v, want 12ms", d)
	}
	if len(s.running) != 1 {
		t.Errorf("%d running, want the long one alone", len(s.running))
	}
	made, _ := drain(t, s)
	if len(made[late]) != 1 || late.admitted <= long.admitted {
		t.Errorf("late: %v, admitted %d", made[late], late.admitted)
	}
}

// TestScheduler_Preempts: a batch that outgrows the memory puts its latest back,
// which computes its tokens again and still gets all.
func TestScheduler_Preempts(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	l.KVTokens = 64
	s := newScheduler(l, DefaultCost())
	a, b := &sequence{prompt: 16, target: 32}, &sequence{prompt: 16, target: 32}
	s.add(a)
	s.add(b)
	drain(t, s)
	if a.preempted != 0 || b.preempted == 0 || s.tally.preemptions == 0 {
		t.Errorf("preempted %d and %d times, want only the second", a.preempted, b.preempted)
	}
}

func TestScheduler_PrefixCache(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	l.PrefixCacheTokens = 64
	s := newScheduler(l, DefaultCost())
	tokens := make([]int64, 40)
	other := append(make([]int64, 20), 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7)
	a := &sequence{prompt: 40, target: 1, prefix: prefixHashes(tokens)}
	b := &sequence{prompt: 40, target: 1, prefix: prefixHashes(tokens)}
	c := &sequence{prompt: 32, target: 1, prefix: prefixHashes(other)}
	exact := &sequence{prompt: 32, target: 1, prefix: prefixHashes(tokens[:32])}
	for _, q := range []*sequence{a, b, c, exact} {
		s.add(q)
		drain(t, s)
	}
	for q, want := range map[*sequence]int{a: 0, b: 32, c: 16, exact: 31} {
		if q.cached != want {
			t.Errorf("cached %d, want %d", q.cached, want)
		}
	}
	if got := len(s.cache.index); got > 4 {
		t.Errorf("%d blocks kept, want at most 4", got)
	}
}

// TestScheduler_Speculative: several tokens a step, in the mean that acceptance
// gives: (1-a^(k+1))/(1-a).
func TestScheduler_Speculative(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	l.Speculative, l.Acceptance = 3, 0.5
	s := newScheduler(l, DefaultCost())
	q := &sequence{stream: 42, prompt: 1, target: 20000}
	s.add(q)
	_, steps := drain(t, s)
	mean := float64(q.target) / float64(steps)
	if want := 1.875; mean < want*0.98 || mean > want*1.02 {
		t.Errorf("%.3f tokens a step, want about %.3f", mean, want)
	}
}

func TestScheduler_Fits(t *testing.T) {
	t.Parallel()
	l := DefaultLimits()
	l.Context, l.KVTokens = 100, 64
	s := newScheduler(l, DefaultCost())
	for _, c := range []struct {
		prompt, target int
		ok             bool
	}{{50, 51, false}, {60, 5, false}, {32, 32, true}} {
		if err := s.fits(c.prompt, c.target); (err == nil) != c.ok {
			t.Errorf("fits(%d, %d): %v", c.prompt, c.target, err)
		}
	}
}

func TestScheduler_DropsCancelled(t *testing.T) {
	t.Parallel()
	s := newScheduler(DefaultLimits(), DefaultCost())
	gone := false
	a := &sequence{prompt: 10, target: 10, cancelled: func() bool { return gone }}
	s.add(a)
	s.plan(1)
	s.complete(func(*sequence, int, bool) {})
	gone = true
	dropped := 0
	s.drop(func(*sequence) { dropped++ })
	if dropped != 1 || s.used != 0 || len(s.running) != 0 {
		t.Errorf("dropped %d, %d blocks used, %d running", dropped, s.used, len(s.running))
	}
}

func TestCost_Roofline(t *testing.T) {
	t.Parallel()
	c := DefaultCost()
	c.PeakFLOPS, c.Bandwidth, c.Parameters, c.KVBytesPerToken = 1e15, 1e12, 1e9, 1e5
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	// One token reads 2 GB of weights: memory bound.
	if d := c.step(work{sequences: 1, verified: 1}); d != 2*time.Millisecond {
		t.Errorf("decode: %v, want 2ms", d)
	}
	// 10,000 tokens of context add 1 GB.
	if d := c.step(work{sequences: 1, verified: 1, context: 10_000}); d != 3*time.Millisecond {
		t.Errorf("decode with context: %v, want 3ms", d)
	}
	// 5,000 prompt tokens are 1e13 operations: compute bound.
	if d := c.step(work{prefill: 5000}); d != 10*time.Millisecond {
		t.Errorf("prefill: %v, want 10ms", d)
	}
}
