package workload

// Vocabulary is what the served model's tokenizer makes of words: the material
// of prompts with an exact token count.
type Vocabulary struct {
	Words []string // each adds exactly one token behind another word
	// Overhead is the number of tokens that a prompt has beyond its words: the
	// chat template, a start token.
	Overhead int
	// First is the number of tokens of a word at the very start of a prompt.
	First int
}
