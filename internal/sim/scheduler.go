package sim

import (
	"container/list"
	"fmt"
	"math"
	"slices"
	"time"
)

// Batching decides when a waiting request may join.
type Batching string

// The two ways of batching.
const (
	// Continuous lets a request join at any step.
	Continuous Batching = "continuous"
	// Static takes a batch and admits nobody until all of it is done.
	Static Batching = "static"
)

// Limits is what the engine can hold and do in one step. Zero means no limit
// for KVTokens and no cache for PrefixCacheTokens.
type Limits struct {
	Batching          Batching
	Slots             int // sequences in a batch
	StepTokens        int // tokens in a step: decoding first, prompts with the rest
	Context           int // prompt and answer of one request
	KVTokens          int // of all running sequences, in blocks of blockTokens
	PrefixCacheTokens int // least recently used prompt blocks kept
	Speculative       int // tokens drafted for each step
	Acceptance        float64
}

// DefaultLimits resembles common defaults of serving engines.
func DefaultLimits() Limits {
	return Limits{Batching: Continuous, Slots: 64, StepTokens: 2048, Context: 32768, Acceptance: 0.7}
}

func (l Limits) check() error {
	switch {
	case l.Batching != Continuous && l.Batching != Static:
		return fmt.Errorf("--batching %q: want continuous or static", l.Batching)
	case l.Slots < 1 || l.StepTokens < 1 || l.Context < 2:
		return fmt.Errorf("--slots, --step-tokens and --context must be positive")
	case l.KVTokens < 0 || l.PrefixCacheTokens < 0 || l.Speculative < 0:
		return fmt.Errorf("--kv-tokens, --prefix-cache-tokens and --speculative must not be negative")
	case !(l.Acceptance >= 0 && l.Acceptance <= 1):
		return fmt.Errorf("--acceptance %v is not in [0, 1]", l.Acceptance)
	case l.Slots*(1+l.Speculative) > l.StepTokens:
		return fmt.Errorf("--step-tokens %d is less than what --slots %d decode in a step, with --speculative %d each", l.StepTokens, l.Slots, l.Speculative)
	}
	return nil
}

// blockTokens is the unit of KV memory and of prefix matching.
const blockTokens = 16

func blocks(tokens int) int { return (tokens + blockTokens - 1) / blockTokens }

// sequence is one request inside the engine. The first four fields are given,
// the others belong to the scheduler.
type sequence struct {
	stream uint64   // of the random draws
	prompt int      // tokens
	target int      // tokens to make
	prefix []uint64 // of each full prompt block with all before it; nil without a cache

	cancelled func() bool // nil: never
	owner     *request    // whom complete tells; the scheduler never looks

	cached    int // prompt tokens found in the prefix cache
	fed       int // tokens whose keys and values are in memory
	need      int // tokens to feed before decoding: the prompt, and after a preemption what was made
	made      int
	held      int // blocks of KV memory
	preempted int
	admitted  int64 // when it first joined a batch
	draws     uint64

	chunk, gain int // of the current step: prompt tokens fed, tokens to emit
}

// tally counts what the scheduler did.
type tally struct {
	steps, preemptions, promptTokens, cachedTokens, generated, drafted, accepted int64
}

// scheduler is the engine without time: plan says what the next step does and
// how long it takes, complete makes it so. It is not safe for concurrent use.
type scheduler struct {
	limits  Limits
	cost    Cost
	waiting []*sequence
	running []*sequence
	padded  int // static batching: places of the batch that are done but still paid for
	used    int // blocks of KV memory
	cache   prefixCache
	tally   tally
}

func newScheduler(l Limits, c Cost) *scheduler {
	return &scheduler{limits: l, cost: c, cache: prefixCache{capacity: l.PrefixCacheTokens / blockTokens, index: map[uint64]*list.Element{}}}
}

// fits says whether a request can ever run.
func (s *scheduler) fits(prompt, target int) error {
	if prompt+target > s.limits.Context {
		return fmt.Errorf("the prompt has %d tokens and the answer up to %d, but the context is %d tokens", prompt, target, s.limits.Context)
	}
	if s.limits.KVTokens > 0 && blocks(prompt+target) > s.capacity() {
		return fmt.Errorf("the request needs %d tokens of KV memory, of which there are %d", prompt+target, s.limits.KVTokens)
	}
	return nil
}

func (s *scheduler) capacity() int {
	if s.limits.KVTokens == 0 {
		return math.MaxInt
	}
	return s.limits.KVTokens / blockTokens
}

func (s *scheduler) add(q *sequence) {
	q.need = q.prompt
	s.waiting = append(s.waiting, q)
}

// drop takes cancelled sequences out and hands them over.
func (s *scheduler) drop(gone func(*sequence)) {
	cancelled := func(q *sequence) bool { return q.cancelled != nil && q.cancelled() }
	s.waiting = slices.DeleteFunc(s.waiting, func(q *sequence) bool {
		if cancelled(q) {
			gone(q)
			return true
		}
		return false
	})
	s.running = slices.DeleteFunc(s.running, func(q *sequence) bool {
		if cancelled(q) {
			s.release(q)
			gone(q)
			return true
		}
		return false
	})
	if len(s.running) == 0 {
		s.padded = 0
	}
}

func (s *scheduler) release(q *sequence) {
	s.used -= q.held
	q.held = 0
}

// plan chooses the work of a step that begins now; a duration of 0 means that
// there is none.
func (s *scheduler) plan(now int64) time.Duration {
	s.admit(now)
	w := s.decode()
	room := s.limits.StepTokens - w.sequences*(1+s.limits.Speculative)
	for _, q := range s.running {
		if q.fed < q.need {
			q.chunk = min(q.need-q.fed, max(room, 0))
			room -= q.chunk
			w.prefill += q.chunk
			if q.chunk > 0 {
				w.context += q.fed
			}
			if q.fed+q.chunk == q.need {
				q.gain = 1
			}
		}
	}
	return s.cost.step(w)
}

// decode gives every sequence that can decode its tokens of this step; those
// for which there is no memory are preempted, the latest first.
func (s *scheduler) decode() work {
	var w work
	for i := 0; i < len(s.running); i++ {
		q := s.running[i]
		q.chunk, q.gain = 0, 0
		if q.fed < q.need {
			continue
		}
		gain := 1
		if k := s.limits.Speculative; k > 0 {
			for gain <= k && unit(mix(q.stream, 1<<32+q.draws)) < s.limits.Acceptance {
				gain++
				q.draws++
			}
			q.draws++
			s.tally.drafted += int64(k)
		}
		gain = min(gain, q.target-q.made)
		grow := max(blocks(q.fed+gain)-q.held, 0)
		for s.used+grow > s.capacity() && len(s.running) > i+1 {
			s.preempt(len(s.running) - 1)
		}
		if s.used+grow > s.capacity() {
			s.preempt(i)
			break
		}
		q.held += grow
		s.used += grow
		q.gain = gain
		w.sequences++
		w.context += q.fed
	}
	w.sequences += s.padded
	w.verified = w.sequences * (1 + s.limits.Speculative)
	return w
}

// preempt frees the memory of running[i], which computes it again later.
func (s *scheduler) preempt(i int) {
	q := s.running[i]
	s.release(q)
	q.need, q.fed, q.chunk, q.gain = q.prompt+q.made, 0, 0, 0
	q.preempted++
	s.tally.preemptions++
	s.running = slices.Delete(s.running, i, i+1)
	s.waiting = slices.Insert(s.waiting, 0, q)
}

func (s *scheduler) admit(now int64) {
	if s.limits.Batching == Static && (len(s.running) > 0 || s.padded > 0) {
		return
	}
	for len(s.waiting) > 0 && len(s.running) < s.limits.Slots {
		q := s.waiting[0]
		reserve := blocks(q.need + 1)
		if s.limits.Batching == Static { // a batch that began cannot be preempted
			reserve = blocks(q.prompt + q.target)
		}
		if s.used+reserve > s.capacity() {
			return
		}
		s.waiting = slices.Delete(s.waiting, 0, 1)
		q.held = reserve
		s.used += reserve
		if q.admitted == 0 {
			q.admitted = now
			s.tally.promptTokens += int64(q.prompt)
		}
		// The last prompt token is always computed: it gives the first answer.
		hit := min(s.cache.match(q.prefix)*blockTokens, q.need-1)
		if q.made == 0 {
			q.cached = hit
			s.tally.cachedTokens += int64(hit)
		}
		q.fed = hit
		s.running = append(s.running, q)
	}
}

// complete ends the step that plan chose and hands over what each sequence made
// in it, in the order of the batch.
func (s *scheduler) complete(emit func(q *sequence, tokens int, done bool)) {
	s.tally.steps++
	s.running = slices.DeleteFunc(s.running, func(q *sequence) bool {
		if q.chunk > 0 || q.fed < q.need {
			q.fed += q.chunk
			if q.fed == q.need {
				s.cache.insert(q.prefix)
			}
		} else if q.gain > 0 {
			q.fed += q.gain
			s.tally.accepted += int64(q.gain - 1)
		}
		if q.gain == 0 {
			return false
		}
		q.made += q.gain
		s.tally.generated += int64(q.gain)
		done := q.made >= q.target
		emit(q, q.gain, done)
		if done {
			s.release(q)
			if s.limits.Batching == Static {
				s.padded++
			}
		}
		return done
	})
	if len(s.running) == 0 {
		s.padded = 0
	}
}

// prefixCache keeps the most recently used prompt blocks, by the hash of the
// block and all before it.
type prefixCache struct {
	capacity int // blocks
	recent   list.List
	index    map[uint64]*list.Element
}

// match returns how many leading blocks are there, and touches them.
func (c *prefixCache) match(prefix []uint64) int {
	for i, h := range prefix {
		e, ok := c.index[h]
		if !ok {
			return i
		}
		c.recent.MoveToFront(e)
	}
	return len(prefix)
}

func (c *prefixCache) clear() {
	c.recent.Init()
	clear(c.index)
}

func (c *prefixCache) insert(prefix []uint64) {
	if c.capacity == 0 {
		return
	}
	// The last block first, so that a prefix outlives its continuations.
	for _, h := range slices.Backward(prefix) {
		if e, ok := c.index[h]; ok {
			c.recent.MoveToFront(e)
			continue
		}
		c.index[h] = c.recent.PushFront(h)
	}
	for c.recent.Len() > c.capacity {
		oldest := c.recent.Back()
		c.recent.Remove(oldest)
		delete(c.index, oldest.Value.(uint64))
	}
}

// prefixHashes returns the hash of every full block with all before it.
func prefixHashes(tokens []int64) []uint64 {
	hashes := make([]uint64, 0, len(tokens)/blockTokens)
	h := uint64(0)
	for i, token := range tokens {
		h = mix(h, uint64(token))
		if (i+1)%blockTokens == 0 {
			hashes = append(hashes, h)
		}
	}
	return hashes
}
