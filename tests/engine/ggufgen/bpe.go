package main

import (
	"maps"
	"slices"
	"strings"
)

// corpus is what the tokenizer is trained on and what the chain model walks.
const corpus = `The cluster runs each benchmark inside a container whose digest was pinned before the job was queued. ` +
	`Every request is timed from the first byte sent to the last token received, and the runner writes what it saw to the log. ` +
	`When the engine is slow the queue grows, when the queue grows the latency grows, and when the latency grows the goodput falls. ` +
	`A careful operator measures the machine twice, keeps the raw numbers, and trusts neither the average nor the memory of yesterday. ` +
	`Tokens flow like water through the pipes of the server: sometimes a stream, sometimes a flood, and sometimes only a drop at a time. ` +
	`The night shift reads the report, finds the node that failed, drains it, and starts the sweep again from the last complete point. `

// byteRunes is GPT-2's table of a printable rune for every byte.
func byteRunes() (table [256]rune) {
	next := rune(256)
	for b := range table {
		if (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff) {
			table[b] = rune(b)
			continue
		}
		table[b] = next
		next++
	}
	return table
}

// words splits before each space and punctuation mark, and spells each word in
// byte runes.
func words(text string) [][]string {
	table := byteRunes()
	var list [][]string
	start := 0
	for i := 1; i <= len(text); i++ {
		if i < len(text) && !strings.ContainsRune(" .,:", rune(text[i])) {
			continue
		}
		var word []string
		for j := start; j < i; j++ {
			word = append(word, string(table[text[j]]))
		}
		list = append(list, word)
		start = i
	}
	return list
}

// tokenizer is a byte-level BPE vocabulary with its merges in order of rank.
type tokenizer struct {
	tokens []string
	merges [][2]string
}

// join replaces every neighbouring pair in word by its union.
func join(word []string, pair [2]string) []string {
	out := make([]string, 0, len(word))
	for i := 0; i < len(word); i++ {
		if i+1 < len(word) && word[i] == pair[0] && word[i+1] == pair[1] {
			out = append(out, pair[0]+pair[1])
			i++
			continue
		}
		out = append(out, word[i])
	}
	return out
}

// train learns up to limit merges, most frequent pair first, ties in
// lexicographic order.
func train(text string, limit int) tokenizer {
	var t tokenizer
	for _, r := range byteRunes() {
		t.tokens = append(t.tokens, string(r))
	}
	list := words(text)
	for len(t.merges) < limit {
		counts := map[[2]string]int{}
		for _, word := range list {
			for i := range len(word) - 1 {
				counts[[2]string{word[i], word[i+1]}]++
			}
		}
		if len(counts) == 0 {
			break
		}
		best := slices.MinFunc(slices.Collect(maps.Keys(counts)), func(a, b [2]string) int {
			if counts[a] != counts[b] {
				return counts[b] - counts[a]
			}
			return slices.Compare(a[:], b[:])
		})
		t.merges = append(t.merges, best)
		if union := best[0] + best[1]; !slices.Contains(t.tokens, union) {
			t.tokens = append(t.tokens, union)
		}
		for i := range list {
			list[i] = join(list[i], best)
		}
	}
	return t
}

// encode turns text into token ids by applying the merges in order of rank.
func (t tokenizer) encode(text string) []int {
	index := map[string]int{}
	for i, token := range t.tokens {
		index[token] = i
	}
	var ids []int
	for _, word := range words(text) {
		for _, pair := range t.merges {
			word = join(word, pair)
		}
		for _, token := range word {
			ids = append(ids, index[token])
		}
	}
	return ids
}
