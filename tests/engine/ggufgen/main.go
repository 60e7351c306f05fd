// Command ggufgen writes a small, complete GGUF model of the llama
// architecture: vocabulary, chat template and weights. The same flags give the
// same bytes on every machine.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("ggufgen", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var s shape
	out := flags.String("o", "model.gguf", "file to write")
	flags.StringVar(&s.mode, "mode", "chain", "chain: readable text; random: noise, often invalid UTF-8")
	flags.IntVar(&s.embedding, "embd", 128, "embedding length")
	flags.IntVar(&s.layers, "layers", 4, "blocks")
	flags.IntVar(&s.heads, "heads", 4, "attention heads")
	flags.IntVar(&s.kvHeads, "kv", 2, "KV heads")
	flags.IntVar(&s.feedForward, "ff", 384, "feed-forward length")
	flags.IntVar(&s.context, "ctx", 8192, "context length")
	flags.IntVar(&s.vocab, "vocab", 0, "pad the vocabulary to this many tokens")
	flags.IntVar(&s.merges, "merges", 4000, "most merges of the tokenizer")
	flags.Uint64Var(&s.seed, "seed", 1, "seed of the weights")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := s.check(); err != nil || flags.NArg() > 0 {
		fmt.Fprintf(stderr, "ggufgen: error: %v\n", errors.Join(err, extra(flags.Args())))
		return 2
	}
	metadata, tensors := build(s)
	if err := write(*out, metadata, tensors); err != nil {
		fmt.Fprintf(stderr, "ggufgen: error: write %s: %v\n", *out, err)
		return 1
	}
	parameters := 0
	for _, t := range tensors {
		parameters += t.elements()
	}
	fmt.Fprintf(stdout, "%s: %d parameters\n", *out, parameters)
	return 0
}

func extra(args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unexpected argument %q", args[0])
}

func write(path string, metadata []keyValue, tensors []tensor) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return writeGGUF(f, metadata, tensors)
}
