package sim

// The tokenizer has no vocabulary: a token is at most one white-space byte and
// then up to four bytes that are none. So "The cluster runs" is "The", " clus",
// "ter" and " runs". A text that begins with white space can be appended to
// another without changing the other's tokens. A token's id holds its bytes, so
// ids can be turned back into text.

const pieceBytes = 4

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\t' || b == '\r' }

// nextToken returns the length of the first token of a text that is not empty.
func nextToken(text string) int {
	i := 0
	if isSpace(text[0]) {
		i = 1
	}
	for end := i + pieceBytes; i < len(text) && i < end && !isSpace(text[i]); i++ {
	}
	return i
}

func countTokens(text string) int {
	n := 0
	for ; text != ""; n++ {
		text = text[nextToken(text):]
	}
	return n
}

// tokenID reads the bytes as a number with a leading 1, below 2^41.
func tokenID(piece string) int64 {
	id := int64(1)
	for i := range len(piece) {
		id = id<<8 | int64(piece[i])
	}
	return id
}

func tokenize(text string) []int64 {
	ids := make([]int64, 0, len(text)/pieceBytes+1)
	for text != "" {
		n := nextToken(text)
		ids = append(ids, tokenID(text[:n]))
		text = text[n:]
	}
	return ids
}

// detokenize turns an id that tokenize never makes into U+FFFD.
func detokenize(ids []int64) string {
	var text []byte
	for _, id := range ids {
		var piece [pieceBytes + 1]byte
		n := len(piece)
		for ; id > 0xff && n > 0; id >>= 8 {
			n--
			piece[n] = byte(id)
		}
		if id != 1 {
			text = append(text, "\ufffd"...)
			continue
		}
		text = append(text, piece[n:]...)
	}
	return string(text)
}

// vocabulary is what answers are made of: each word with a space before it is
// one token, and none needs an escape in JSON.
var vocabulary = [...]string{
	"node", "rack", "job", "task", "run", "step", "rate", "time", "disk", "core", "chip", "fan", "link", "mesh", "ring", "tree",
	"the", "a", "one", "two", "ten", "any", "each", "both", "few", "all", "some", "none", "last", "next", "new", "old",
	"is", "was", "has", "had", "may", "can", "will", "must", "runs", "ends", "wait", "send", "read", "hold", "keep", "find",
	"fast", "slow", "late", "soon", "idle", "busy", "full", "warm", "cold", "hot", "and", "or", "but", "then", "so", "yet",
}

// word returns the i-th word of the answer whose stream is key.
func word(key uint64, i int) string {
	return vocabulary[mix(key, uint64(i))%uint64(len(vocabulary))]
}

// mix is SplitMix64's finalizer over both words: independent streams from one
// seed without state.
func mix(a, b uint64) uint64 {
	z := a + (b+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// mixString folds a text into a stream.
func mixString(a uint64, s string) uint64 {
	for i := range len(s) {
		a = mix(a, uint64(s[i]))
	}
	return mix(a, uint64(len(s)))
}

// unit maps a hash to [0, 1).
func unit(h uint64) float64 { return float64(h>>11) / (1 << 53) }
