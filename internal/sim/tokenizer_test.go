package sim

import (
	"slices"
	"testing"
)

func TestTokenize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                 nil,
		"The cluster runs": {"The", " clus", "ter", " runs"},
		"  a":              {" ", " a"},
		"a\n\nb ":          {"a", "\n", "\nb", " "},
		"äöü":              {"äö", "ü"},
		"0123456789":       {"0123", "4567", "89"},
	} {
		ids := tokenize(text)
		var got []string
		for _, id := range ids {
			got = append(got, detokenize([]int64{id}))
		}
		if !slices.Equal(got, want) || countTokens(text) != len(want) {
			t.Errorf("%q: %q and count %d, want %q", text, got, countTokens(text), want)
		}
	}
}

// TestVocabulary: each word of an answer is one token and needs no escape.
func TestVocabulary(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, w := range vocabulary {
		if n := countTokens(" " + w); n != 1 {
			t.Errorf("%q is %d tokens", w, n)
		}
		for i := range len(w) {
			if w[i] < 'a' || w[i] > 'z' {
				t.Errorf("%q needs an escape", w)
			}
		}
		if seen[w] {
			t.Errorf("%q is there twice", w)
		}
		seen[w] = true
	}
}

func FuzzTokenize(f *testing.F) {
	f.Add("The cluster runs", " and more")
	f.Add("\xff\x00 \t", "")
	f.Fuzz(func(t *testing.T, a, b string) {
		ids := tokenize(a)
		if got := detokenize(ids); got != a {
			t.Errorf("%q becomes %q", a, got)
		}
		if b == "" || !isSpace(b[0]) {
			b = " " + b
		}
		if got, want := countTokens(a+b), len(ids)+countTokens(b); got != want {
			t.Errorf("%q + %q: %d tokens, want %d", a, b, got, want)
		}
	})
}

func TestDetokenize_ForeignIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []int64{-5, 0, 2, 255, 1 << 52, 1<<63 - 1} {
		if got := detokenize([]int64{id}); got != "\ufffd" {
			t.Errorf("id %d: %q", id, got)
		}
	}
}
