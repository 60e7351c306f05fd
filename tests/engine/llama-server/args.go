package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// options are the flags of llama-server that this server honours. Counts are
// in tokens, slots or threads; Ctx is the total over all slots, as there.
type options struct {
	Model    string
	Alias    string
	Host     string
	Port     int
	Ctx      int // 0: the context length the model was trained with
	Parallel int
	Batch    int
	// Threads is 1 by default: threads that spin on busy cores cost a factor of 1,000.
	Threads      int
	ThreadsBatch int // 0: as Threads
	Predict      int // -1: no limit but the context
	Version      bool
	Help         bool
}

func defaults() options {
	return options{Host: "127.0.0.1", Port: 8080, Parallel: 4, Batch: 512, Threads: 1, Predict: -1}
}

// flagSpec is one option of the command line. Set is called with the value of
// a valued flag and with "" for a switch.
type flagSpec struct {
	names  []string
	valued bool
	help   string
	set    func(o *options, value string) error
}

func integer(field func(*options) *int, low, high int) func(*options, string) error {
	return func(o *options, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("%q is not an integer", value)
		}
		if n < low || n > high {
			return fmt.Errorf("%d is not in [%d, %d]", n, low, high)
		}
		*field(o) = n
		return nil
	}
}

func text(field func(*options) *string) func(*options, string) error {
	return func(o *options, value string) error {
		*field(o) = value
		return nil
	}
}

// noop accepts a switch that asks for what this server always does.
func noop(*options, string) error { return nil }

func flags() []flagSpec {
	return []flagSpec{
		{[]string{"-m", "--model"}, true, "GGUF model to serve", text(func(o *options) *string { return &o.Model })},
		{[]string{"-a", "--alias"}, true, "model name that the API reports (default: the file's name)", text(func(o *options) *string { return &o.Alias })},
		{[]string{"--host"}, true, "address to listen on (default 127.0.0.1)", text(func(o *options) *string { return &o.Host })},
		{[]string{"--port"}, true, "port to listen on (default 8080)", integer(func(o *options) *int { return &o.Port }, 0, 65535)},
		{[]string{"-c", "--ctx-size"}, true, "context in tokens, shared evenly by the slots (default 0: as the model was trained)", integer(func(o *options) *int { return &o.Ctx }, 0, 1<<24)},
		{[]string{"-np", "--parallel"}, true, "slots decoded together (default 4)", integer(func(o *options) *int { return &o.Parallel }, 1, 256)},
		{[]string{"-b", "--batch-size", "-ub", "--ubatch-size"}, true, "tokens in one step (default 512)", integer(func(o *options) *int { return &o.Batch }, 1, 1<<16)},
		{[]string{"-t", "--threads"}, true, "threads (default 1)", integer(func(o *options) *int { return &o.Threads }, 1, 256)},
		{[]string{"-tb", "--threads-batch"}, true, "threads for prompts (default: as --threads)", integer(func(o *options) *int { return &o.ThreadsBatch }, 1, 256)},
		{[]string{"-n", "--predict", "--n-predict"}, true, "tokens generated where a request sets no limit (default -1: until the context is full)", integer(func(o *options) *int { return &o.Predict }, -1, 1<<24)},
		{[]string{"-cb", "--cont-batching"}, false, "continuous batching: always on", noop},
		{[]string{"--no-cache-prompt"}, false, "no prompt cache: there is none", noop},
		{[]string{"--metrics", "--slots", "--no-webui", "--no-ui"}, false, "always so", noop},
		{[]string{"--version"}, false, "print the version and exit", func(o *options, _ string) error { o.Version = true; return nil }},
		{[]string{"-h", "--help"}, false, "print this and exit", func(o *options, _ string) error { o.Help = true; return nil }},
	}
}

// parse reads a command line of llama-server: long and short names, `--name
// value` or `--name=value`. A flag that is not honoured is an error, never
// ignored: an ignored flag would make a measurement of something else.
func parse(args []string) (options, error) {
	o := defaults()
	byName := map[string]flagSpec{}
	for _, f := range flags() {
		for _, name := range f.names {
			byName[name] = f
		}
	}
	for len(args) > 0 {
		name, value, inline := strings.Cut(args[0], "=")
		args = args[1:]
		f, known := byName[name]
		switch {
		case !known:
			return o, fmt.Errorf("unknown flag %q: this server takes only the flags that --help lists", name)
		case f.valued && !inline:
			if len(args) == 0 {
				return o, fmt.Errorf("flag %s: no value", name)
			}
			value, args = args[0], args[1:]
		case !f.valued && inline:
			return o, fmt.Errorf("flag %s takes no value", name)
		}
		if err := f.set(&o, value); err != nil {
			return o, fmt.Errorf("flag %s: %w", name, err)
		}
	}
	if o.Version || o.Help {
		return o, nil
	}
	if o.Model == "" {
		return o, fmt.Errorf("no model: give -m FILE")
	}
	if o.Batch < o.Parallel {
		return o, fmt.Errorf("--batch-size %d is smaller than --parallel %d: each slot decodes one token a step", o.Batch, o.Parallel)
	}
	if o.ThreadsBatch == 0 {
		o.ThreadsBatch = o.Threads
	}
	if o.Alias == "" {
		o.Alias = filepath.Base(o.Model)
	}
	return o, nil
}

func usage() string {
	var b strings.Builder
	b.WriteString("usage: llama-server -m MODEL [flags]\n\n")
	for _, f := range flags() {
		name := strings.Join(f.names, ", ")
		if f.valued {
			name += " N"
		}
		fmt.Fprintf(&b, "  %-42s %s\n", name, f.help)
	}
	return b.String()
}
