package quality

import (
	"strings"
	"unicode"
)

// Score is the score of an answer to an item, between 0 and 1: the best over the
// item's references. The item is one that ParseItems gave for the method, which is
// not Command.
func Score(method Method, item Item, answer string) float64 {
	best := 0.0
	for i, reference := range item.References {
		var s float64
		switch method {
		case ExactMatch:
			s = truth(strings.TrimSpace(answer) == strings.TrimSpace(reference))
		case Contains:
			s = truth(strings.Contains(answer, reference))
		case Regex:
			s = truth(item.patterns[i].MatchString(answer))
		case TokenF1:
			s = F1(answer, reference)
		case Command:
		}
		best = max(best, s)
	}
	return best
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// F1 is the token F1 of SQuAD (Rajpurkar et al., "SQuAD: 100,000+ Questions for
// Machine Comprehension of Text", EMNLP 2016, and its evaluation script of version
// 2.0): the harmonic mean of precision and recall over the multiset of words that
// answer and reference have in common. Where one of them has no word, it is 1 if
// neither has, else 0.
func F1(answer, reference string) float64 {
	given, want := words(answer), words(reference)
	if len(given) == 0 || len(want) == 0 {
		return truth(len(given) == len(want))
	}
	counts := map[string]int{}
	for _, w := range want {
		counts[w]++
	}
	same := 0
	for _, w := range given {
		if counts[w] > 0 {
			counts[w]--
			same++
		}
	}
	if same == 0 {
		return 0
	}
	precision, recall := float64(same)/float64(len(given)), float64(same)/float64(len(want))
	return 2 * precision * recall / (precision + recall)
}

// punctuation is Python's string.punctuation.
const punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"

// words normalizes as SQuAD does: lower case, ASCII punctuation removed, the
// articles a, an and the removed, split at white space.
func words(text string) []string {
	text = strings.Map(func(r rune) rune {
		if r < unicode.MaxASCII && strings.ContainsRune(punctuation, r) {
			return -1
		}
		return r
	}, strings.ToLower(text))
	return strings.Fields(withoutArticles(text))
}

// withoutArticles replaces articles between word boundaries, as \b(a|an|the)\b
// does: a word is a run of letters and digits.
func withoutArticles(text string) string {
	var b strings.Builder
	for text != "" {
		end := strings.IndexFunc(text, func(r rune) bool { return !wordRune(r) })
		if end < 0 {
			end = len(text)
		}
		switch word := text[:end]; word {
		case "a", "an", "the":
			b.WriteByte(' ')
		default:
			b.WriteString(word)
		}
		text = text[end:]
		next := strings.IndexFunc(text, wordRune)
		if next < 0 {
			next = len(text)
		}
		b.WriteString(text[:next])
		text = text[next:]
	}
	return b.String()
}

func wordRune(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }
