package loadgen

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// A packed body is the body, whatever it is and however it came.
func TestPack_Lossless(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var a arena
		defer a.release()
		x := &exchange{}
		var whole []byte
		pieces := rapid.SliceOfN(rapid.OneOf(
			rapid.Map(rapid.IntRange(0, 40), oneEvent),
			rapid.Map(rapid.IntRange(1, 20), func(n int) []byte { return bytes.Repeat(oneEvent(n), n) }),
			rapid.SliceOfN(rapid.SampledFrom([]byte("ab\n\r")), 0, 200),
			rapid.Map(rapid.IntRange(0, 9000), func(n int) []byte { return bytes.Repeat([]byte("x"), n) }),
			rapid.SliceOfN(rapid.Byte(), 0, 1500),
		), 0, 60).Draw(t, "pieces")
		for _, p := range pieces {
			x.append(&a, p)
			whole = append(whole, p...)
		}
		if got := x.body(nil); !bytes.Equal(got, whole) {
			t.Fatalf("%d bytes became %d others", len(whole), len(got))
		}
		u := x.unpack()
		var again []byte
		for r, ok := u.next(); ok; r, ok = u.next() {
			again = u.bytes(again, r)
		}
		if !bytes.Equal(again, whole) || x.size != len(whole) {
			t.Fatalf("by record, %d bytes became %d; size %d", len(whole), len(again), x.size)
		}
		a.take(x)
	})
}

// Events that differ in their text take a tenth of their length.
func TestPack_Small(t *testing.T) {
	t.Parallel()
	var a arena
	x := &exchange{}
	for i := range 1000 {
		event := oneEvent(i)
		x.append(&a, event[bytes.Index(event, []byte("data:")):len(event)-2]) // without the chunk's framing
	}
	if held := a.held.Load(); held*10 > int64(x.size) {
		t.Errorf("%d bytes are kept in %d", x.size, held)
	}
}

func TestCommon(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		a, b := make([]byte, rng.IntN(40)), make([]byte, rng.IntN(40))
		for _, p := range [][]byte{a, b} {
			for i := range p {
				p[i] = byte(rng.IntN(8) / 7) // mostly equal
			}
		}
		prefix, suffix := 0, 0
		for prefix < min(len(a), len(b)) && a[prefix] == b[prefix] {
			prefix++
		}
		for suffix < min(len(a), len(b)) && a[len(a)-1-suffix] == b[len(b)-1-suffix] {
			suffix++
		}
		if p, s := commonPrefix(a, b), commonSuffix(a, b); p != prefix || s != suffix {
			t.Fatalf("%v and %v: %d and %d, want %d and %d", a, b, p, s, prefix, suffix)
		}
	}
}

// The hot path allocates nothing.
func TestFeed_AllocatesNothing(t *testing.T) {
	var a arena
	x := &exchange{}
	piece := bytes.Repeat(oneEvent(3), 16)
	if _, err := x.feed(&a, []byte(streamHead), 1); err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(200, func() {
		if _, err := x.feed(&a, piece, 1); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0 {
		t.Errorf("%g allocations for 16 events", n)
	}
}
