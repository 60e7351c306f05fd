package workload

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"sbench/internal/setting"
)

// Vocabulary is what the served model's tokenizer makes of words: the material
// of prompts with an exact token count.
type Vocabulary struct {
	// Words add exactly one token each behind another word. They consist of ASCII
	// letters. Empty where no such words are known: lengths are then approximate.
	Words []string
	// Base is the number of tokens of a one-turn prompt beyond its words: the chat
	// template, a start token.
	Base int
}

// Exact says whether prompts of an exact length can be made.
func (v Vocabulary) Exact() bool { return len(v.Words) >= 2 }

// Prompter writes the text of a plan's prompts. It is safe for concurrent use
// once made.
type Prompter struct {
	plan   *Plan
	vocab  Vocabulary
	words  []string
	corpus []byte   // words with a space behind each
	starts []uint32 // where each word of the corpus begins, and the corpus' end
	nonce  int      // words of a nonce
	files  [][]byte // prompt file's texts, escaped for JSON
}

const (
	minCorpus = 1 << 15 // words
	maxCorpus = 1 << 21
)

// NewPrompter prepares the prompts of a plan. It fails where a prompt is too
// short for what the served model's template needs.
func NewPrompter(p *Plan, v Vocabulary) (*Prompter, error) {
	pr := &Prompter{plan: p, vocab: v, words: v.Words}
	if !v.Exact() {
		pr.words = slices.Compact(slices.Sorted(slices.Values(Candidates())))
		pr.vocab.Base = 0
	}
	// 64 bits of nonce, whatever the size of the vocabulary.
	pr.nonce = int(math.Ceil(64 / math.Log2(float64(len(pr.words)))))
	if p.prompts != nil {
		return pr, pr.escapeFile()
	}
	longest := max(minCorpus/2, longestInput(p.Workload))
	for i := range p.Requests {
		r := &p.Requests[i]
		if r.Turn == 0 && int(r.Input)-int(r.Prefix) <= pr.vocab.Base {
			return nil, fmt.Errorf("a prompt of %d tokens cannot be made: the served model's template alone has %d", r.Input, pr.vocab.Base)
		}
		longest = max(longest, int(r.Input))
	}
	if longest > maxCorpus/2 {
		return nil, fmt.Errorf("a prompt of %d tokens is longer than the %d that can be made", longest, maxCorpus/2)
	}
	pr.fillCorpus(2 * longest)
	return pr, nil
}

func (pr *Prompter) escapeFile() error {
	for i, f := range pr.plan.prompts {
		quoted, err := json.Marshal(f.text)
		if err != nil {
			return fmt.Errorf("prompt %d: %w", i, err)
		}
		pr.files = append(pr.files, quoted[1:len(quoted)-1])
	}
	return nil
}

// fillCorpus draws n words. Every synthetic prompt is a piece of the corpus
// behind its nonce, so a prompt costs a copy, whatever its length.
func (pr *Prompter) fillCorpus(n int) {
	s := seeder{pr.plan.Workload.Seed, 0}.stream("corpus", 0)
	pr.starts = make([]uint32, 0, n+1)
	for range n {
		pr.starts = append(pr.starts, uint32(len(pr.corpus)))
		pr.corpus = append(append(pr.corpus, pr.words[s.below(uint64(len(pr.words)))]...), ' ')
	}
	pr.starts = append(pr.starts, uint32(len(pr.corpus)))
}

// Append appends the user's text of a request to dst, escaped for a JSON string.
func (pr *Prompter) Append(dst []byte, r *Request) []byte {
	nonce := pr.plan.Workload.Prompts.Nonce && r.Turn == 0
	if r.Prompt >= 0 {
		if nonce {
			dst = append(strconv.AppendUint(append(dst, '['), r.Seed, 16), "] "...)
		}
		return append(dst, pr.files[r.Prompt]...)
	}
	n := int(r.Input)
	if r.Turn == 0 {
		n -= pr.vocab.Base
	}
	n = max(n, 1)
	if prefix := min(int(r.Prefix), n-1); prefix > 0 && r.Group >= 0 {
		// A shared prefix comes first: nothing before it may differ.
		shared := seeder{pr.plan.Workload.Seed, 0}.stream("prefix", int(r.Group))
		dst = pr.piece(dst, shared.source.Uint64(), prefix)
		n -= prefix
	}
	if nonce {
		k := min(pr.nonce, n)
		for v := r.Seed; k > 0; k-- {
			dst = append(append(dst, pr.words[v%uint64(len(pr.words))]...), ' ')
			v /= uint64(len(pr.words))
			n--
		}
	}
	dst = pr.piece(dst, r.Seed, n)
	return dst[:len(dst)-1] // the last word's space
}

// longestInput bounds what a workload's input lengths can be; 0 where only the
// planned requests tell.
func longestInput(w setting.Workload) int {
	in := w.Input
	longest := max(in.Value, in.Max)
	for _, b := range in.Bins {
		longest = max(longest, b.Max)
	}
	for _, p := range in.Pairs {
		longest = max(longest, p.Input)
	}
	return longest + w.Prompts.PrefixLen
}

// piece appends n words of the corpus.
func (pr *Prompter) piece(dst []byte, seed uint64, n int) []byte {
	if n <= 0 {
		return dst
	}
	words := len(pr.starts) - 1
	n = min(n, words)
	from := int(seed % uint64(words-n+1))
	return append(dst, pr.corpus[pr.starts[from]:pr.starts[from+n]]...)
}
