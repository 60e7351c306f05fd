package web

import (
	"sync"
	"time"
)

// pace limits how many requests a caller may send: a bucket of tokens for each,
// filled at a rate. It is safe for concurrent use.
type pace struct {
	rate  float64 // per second
	burst float64

	mu      sync.Mutex
	buckets map[string]bucket
}

type bucket struct {
	left float64
	at   time.Time
}

// maxBuckets bounds the memory: full buckets are forgotten first.
const maxBuckets = 10_000

func newPace(rate float64, burst int) *pace {
	return &pace{rate: rate, burst: float64(burst), buckets: map[string]bucket{}}
}

// take takes a token of the caller's, or returns how long to wait for one.
func (p *pace) take(caller string, now time.Time) time.Duration {
	if p.rate <= 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b, ok := p.buckets[caller]
	if !ok {
		if len(p.buckets) >= maxBuckets {
			p.forget(now)
		}
		b = bucket{p.burst, now}
	}
	b.left = min(p.burst, b.left+max(now.Sub(b.at).Seconds(), 0)*p.rate)
	b.at = now
	defer func() { p.buckets[caller] = b }()
	if b.left < 1 {
		return time.Duration((1 - b.left) / p.rate * float64(time.Second))
	}
	b.left--
	return 0
}

// forget drops the buckets that are full by now.
func (p *pace) forget(now time.Time) {
	for caller, b := range p.buckets {
		if b.left+now.Sub(b.at).Seconds()*p.rate >= p.burst {
			delete(p.buckets, caller)
		}
	}
}
