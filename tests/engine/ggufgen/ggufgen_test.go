package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"testing"
)

// TestBuild_Deterministic pins the demo's model: its digest is part of the
// identity of every setting that was measured with it.
func TestBuild_Deterministic(t *testing.T) {
	t.Parallel()
	s := shape{mode: "chain", embedding: 128, layers: 4, heads: 4, kvHeads: 2, feedForward: 384, context: 8192, merges: 4000, seed: 1}
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	metadata, tensors := build(s)
	if err := writeGGUF(&b, metadata, tensors); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	if got, want := hex.EncodeToString(sum[:]), "10272ac0d02c683f235ab2472881ce62e08e8ac922ea3fc4ced2e66794605566"; got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
}

func TestHalf(t *testing.T) {
	t.Parallel()
	for f, want := range map[float32]uint16{
		0: 0, 1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 1e9: 0x7bff, 65519: 0x7bff, 65535: 0x7bff,
		1.0 / 3: 0x3555, 6.103515625e-05: 0x0400, 5.960464477539063e-08: 0x0001, 1e-9: 0,
		float32(math.Copysign(0, -1)): 0x8000,
	} {
		if got := half(f); got != want && f != 0 {
			t.Errorf("half(%v) = %#04x, want %#04x", f, got, want)
		}
	}
}

func TestTrain_RoundTrip(t *testing.T) {
	t.Parallel()
	v := train(corpus, 4000)
	var text []rune
	for _, id := range v.encode(corpus) {
		text = append(text, []rune(v.tokens[id])...)
	}
	table := byteRunes()
	var want []rune
	for i := range len(corpus) {
		want = append(want, table[corpus[i]])
	}
	if string(text) != string(want) {
		t.Error("the tokens of the corpus do not spell it")
	}
}
