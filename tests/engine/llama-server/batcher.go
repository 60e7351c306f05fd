package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hybridgroup/yzma/pkg/llama"
)

// job is one completion on its way through the engine.
type job struct {
	ctx         context.Context
	prompt      []llama.Token
	max         int // tokens to generate
	temperature float64
	seed        uint32
	ignoreEOS   bool
	// events holds every event the job can have, so that a slow client never
	// stalls the others; the batcher closes it after the event with a finish.
	events chan event
}

type event struct {
	piece  []byte
	finish string // "", then one of stop, length, abort, error
}

// slot is one sequence of the batch.
type slot struct {
	job     *job
	fed     int // prompt tokens already in the batch
	pos     int
	last    llama.Token
	made    int
	sampler llama.Sampler
	row     int32 // row of the batch whose logits are this slot's, or -1
}

// counters are read by /metrics while the batcher runs.
type counters struct {
	promptTokens, generatedTokens, decodes, busySlots atomic.Int64
	promptNanos, decodeNanos                          atomic.Int64
	processing, deferred                              atomic.Int64
}

// batcher decodes all slots together, one step after the other: first one
// token of every running sequence, then prompts with what is left of the step.
type batcher struct {
	ctx      llama.Context
	vocab    llama.Vocab
	memory   llama.Memory
	batch    llama.Batch
	perStep  int
	slots    []slot
	incoming chan *job
	counters counters
}

// run decodes until ctx ends, then aborts what is left. Samplers are freed on
// the way; the context and the model belong to the caller.
func (b *batcher) run(ctx context.Context) error {
	defer func() {
		for i := range b.slots {
			b.end(i, "abort")
		}
		for {
			select {
			case j := <-b.incoming:
				j.events <- event{finish: "abort"}
				close(j.events)
			default:
				return
			}
		}
	}()
	for {
		if err := b.admit(ctx); err != nil {
			return nil //nolint:nilerr // the only error is the end that was asked for
		}
		if err := b.fill(); err != nil {
			return err
		}
		if b.batch.NTokens == 0 {
			continue
		}
		b.step()
	}
}

// admit drops cancelled jobs and gives free slots to waiting ones; it blocks
// while there is nothing to do.
func (b *batcher) admit(ctx context.Context) error {
	active := 0
	for i := range b.slots {
		if j := b.slots[i].job; j != nil {
			if j.ctx.Err() != nil {
				b.end(i, "abort")
				continue
			}
			active++
		}
	}
	for i := range b.slots {
		if b.slots[i].job != nil {
			continue
		}
		var j *job
		if active == 0 {
			select {
			case j = <-b.incoming:
			case <-ctx.Done():
				return ctx.Err()
			}
		} else {
			select {
			case j = <-b.incoming:
			default:
			}
		}
		if j == nil {
			break
		}
		b.counters.deferred.Add(-1)
		b.counters.processing.Add(1)
		b.slots[i] = slot{job: j, sampler: newSampler(j), row: -1}
		active++
	}
	return ctx.Err()
}

func newSampler(j *job) llama.Sampler {
	chain := llama.SamplerChainInit(llama.SamplerChainDefaultParams())
	if j.temperature > 0 {
		llama.SamplerChainAdd(chain, llama.SamplerInitTemp(float32(j.temperature)))
		llama.SamplerChainAdd(chain, llama.SamplerInitDist(j.seed))
	} else {
		llama.SamplerChainAdd(chain, llama.SamplerInitGreedy())
	}
	return chain
}

func (b *batcher) fill() error {
	if err := b.batch.Clear(); err != nil {
		return err
	}
	room := b.perStep
	for i := range b.slots {
		s := &b.slots[i]
		s.row = -1
		if s.job == nil || s.fed < len(s.job.prompt) {
			continue
		}
		s.row = b.batch.NTokens
		if err := b.add(i, s.last, true); err != nil {
			return err
		}
		room--
	}
	for i := range b.slots {
		s := &b.slots[i]
		for s.job != nil && s.fed < len(s.job.prompt) && room > 0 {
			last := s.fed == len(s.job.prompt)-1
			if last {
				s.row = b.batch.NTokens
			}
			if err := b.add(i, s.job.prompt[s.fed], last); err != nil {
				return err
			}
			s.fed++
			room--
			b.counters.promptTokens.Add(1)
		}
	}
	return nil
}

func (b *batcher) add(i int, token llama.Token, logits bool) error {
	s := &b.slots[i]
	if err := b.batch.Add(token, llama.Pos(s.pos), []llama.SeqId{llama.SeqId(i)}, logits); err != nil {
		return fmt.Errorf("fill batch: %w", err)
	}
	s.pos++
	return nil
}

// step decodes the batch and hands every slot its next token.
func (b *batcher) step() {
	start := time.Now()
	rc, err := llama.Decode(b.ctx, b.batch)
	elapsed := time.Since(start).Nanoseconds()
	b.counters.decodes.Add(1)
	if err != nil || rc != 0 {
		for i := range b.slots {
			b.end(i, "error")
		}
		return
	}
	sampled := 0
	for i := range b.slots {
		s := &b.slots[i]
		if s.job == nil {
			continue
		}
		b.counters.busySlots.Add(1)
		if s.row < 0 {
			continue
		}
		sampled++
		token := llama.SamplerSample(s.sampler, b.ctx, s.row)
		if llama.VocabIsEOG(b.vocab, token) && !s.job.ignoreEOS {
			b.end(i, "stop")
			continue
		}
		piece := make([]byte, 128)
		n := llama.TokenToPiece(b.vocab, token, piece, 0, true)
		s.last = token
		s.made++
		b.counters.generatedTokens.Add(1)
		s.job.events <- event{piece: piece[:max(n, 0)]}
		if s.made >= s.job.max {
			b.end(i, "length")
		}
	}
	// A step's time is shared by its rows: those that sampled, and the prompt.
	rows := int64(b.batch.NTokens)
	b.counters.decodeNanos.Add(elapsed * int64(sampled) / rows)
	b.counters.promptNanos.Add(elapsed * (rows - int64(sampled)) / rows)
}

// end finishes the job of slot i, if it has one.
func (b *batcher) end(i int, why string) {
	s := &b.slots[i]
	if s.job == nil {
		return
	}
	s.job.events <- event{finish: why}
	close(s.job.events)
	llama.SamplerFree(s.sampler)
	if _, err := llama.MemorySeqRm(b.memory, llama.SeqId(i), -1, -1); err != nil {
		// The sequence stays in memory and the next decode of the slot fails,
		// which that request is told.
		s.row = -1
	}
	*s = slot{row: -1}
	b.counters.processing.Add(-1)
}
