package main

import (
	"fmt"
	"math/rand/v2"
)

// shape is the architecture of the generated model.
type shape struct {
	mode                                string // chain or random
	embedding, layers, heads, kvHeads   int
	feedForward, context, vocab, merges int
	seed                                uint64
}

func (s shape) check() error {
	switch {
	case s.mode != "chain" && s.mode != "random":
		return fmt.Errorf("mode %q: want chain or random", s.mode)
	case s.embedding < 1 || s.layers < 1 || s.heads < 1 || s.kvHeads < 1 || s.feedForward < 1 || s.context < 1 || s.merges < 0 || s.vocab < 0:
		return fmt.Errorf("sizes must be positive")
	case s.embedding%s.heads != 0 || s.heads%s.kvHeads != 0:
		return fmt.Errorf("embedding %d must be a multiple of heads %d, and heads of KV heads %d", s.embedding, s.heads, s.kvHeads)
	}
	return nil
}

const chatTemplate = `{{ '<|bos|>' }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|eos|>' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}`

// Token types of GGUF.
const normal, control, unused = 1, 3, 5

// vocabulary is the trained tokenizer with the special tokens and padding.
type vocabulary struct {
	tokenizer
	types               []int32
	bos, eos, assistant int
}

func buildVocabulary(s shape) vocabulary {
	v := vocabulary{tokenizer: train(corpus, s.merges)}
	for range v.tokens {
		v.types = append(v.types, normal)
	}
	special := func(name string) int {
		v.tokens = append(v.tokens, name)
		v.types = append(v.types, control)
		return len(v.tokens) - 1
	}
	v.bos, v.eos = special("<|bos|>"), special("<|eos|>")
	special("<|system|>")
	special("<|user|>")
	v.assistant = special("<|assistant|>")
	for len(v.tokens) < s.vocab {
		v.tokens = append(v.tokens, fmt.Sprintf("<|unused%d|>", len(v.tokens)))
		v.types = append(v.types, unused)
	}
	return v
}

// chain returns embeddings, and output weights that make the next token of the
// corpus likely after each token: greedy decoding walks the text, sampling
// wanders through it.
func chain(s shape, v vocabulary, rng *rand.Rand) (embedding, output []float32) {
	d := s.embedding
	embedding = make([]float32, len(v.tokens)*d)
	for i := range embedding {
		embedding[i] = float32(rng.NormFloat64())
	}
	output = make([]float32, len(v.tokens)*d)
	text := v.encode(corpus)
	for i, token := range text {
		next := text[(i+1)%len(text)]
		for j := range d {
			output[next*d+j] += embedding[token*d+j] * 0.25
		}
	}
	for _, token := range []int{v.bos, v.eos, v.assistant} { // each begins the text
		for j := range d {
			output[text[0]*d+j] += embedding[token*d+j] * 0.5
		}
	}
	return embedding, output
}

// build returns the metadata and tensors of a llama model.
//
// Note: a chain model computes attention and feed-forward in full, but their
// output projections are zero. So its cost is a real model's and its text stays
// readable, valid UTF-8; a random model emits noise.
func build(s shape) ([]keyValue, []tensor) {
	v := buildVocabulary(s)
	rng := rand.New(rand.NewPCG(s.seed, 7))
	random := func(deviation float64) func(int) float32 {
		return func(int) float32 { return float32(rng.NormFloat64() * deviation) }
	}
	one := func(int) float32 { return 1 }
	embedding, output, projection := random(1), random(0.3), random(0.08)
	if s.mode == "chain" {
		e, o := chain(s, v, rng)
		embedding = func(i int) float32 { return e[i] }
		output = func(i int) float32 { return o[i] }
		projection = func(int) float32 { return 0 }
	}
	d, head := s.embedding, s.embedding/s.heads
	kv := head * s.kvHeads
	var tensors []tensor
	add := func(name string, kind uint32, at func(int) float32, dims ...int) {
		tensors = append(tensors, tensor{name, dims, kind, at})
	}
	add("token_embd.weight", tensorF16, embedding, d, len(v.tokens))
	for l := range s.layers {
		block := fmt.Sprintf("blk.%d.", l)
		add(block+"attn_norm.weight", tensorF32, one, d)
		add(block+"attn_q.weight", tensorF16, random(0.08), d, d)
		add(block+"attn_k.weight", tensorF16, random(0.08), d, kv)
		add(block+"attn_v.weight", tensorF16, random(0.08), d, kv)
		add(block+"attn_output.weight", tensorF16, projection, d, d)
		add(block+"ffn_norm.weight", tensorF32, one, d)
		add(block+"ffn_gate.weight", tensorF16, random(0.08), d, s.feedForward)
		add(block+"ffn_up.weight", tensorF16, random(0.08), d, s.feedForward)
		add(block+"ffn_down.weight", tensorF16, projection, s.feedForward, d)
	}
	add("output_norm.weight", tensorF32, one, d)
	add("output.weight", tensorF16, output, d, len(v.tokens))

	merges := make([]string, len(v.merges))
	for i, m := range v.merges {
		merges[i] = m[0] + " " + m[1]
	}
	return []keyValue{
		{"general.architecture", "llama"},
		{"general.type", "model"},
		{"general.name", "tiny-" + s.mode},
		{"general.file_type", uint32(1)},
		{"general.alignment", uint32(alignment)},
		{"llama.vocab_size", uint32(len(v.tokens))},
		{"llama.context_length", uint32(s.context)},
		{"llama.embedding_length", uint32(d)},
		{"llama.block_count", uint32(s.layers)},
		{"llama.feed_forward_length", uint32(s.feedForward)},
		{"llama.attention.head_count", uint32(s.heads)},
		{"llama.attention.head_count_kv", uint32(s.kvHeads)},
		{"llama.attention.layer_norm_rms_epsilon", float32(1e-5)},
		{"llama.rope.dimension_count", uint32(head)},
		{"llama.rope.freq_base", float32(10000)},
		{"tokenizer.ggml.model", "gpt2"},
		{"tokenizer.ggml.pre", "gpt-2"},
		{"tokenizer.ggml.tokens", v.tokens},
		{"tokenizer.ggml.token_type", v.types},
		{"tokenizer.ggml.merges", merges},
		{"tokenizer.ggml.bos_token_id", uint32(v.bos)},
		{"tokenizer.ggml.eos_token_id", uint32(v.eos)},
		{"tokenizer.ggml.add_bos_token", false},
		{"tokenizer.chat_template", chatTemplate},
	}, tensors
}
