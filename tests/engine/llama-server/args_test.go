package main

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	o, err := parse(strings.Fields("-m /m/x.gguf --host 127.0.0.1 --port=9000 -c 2048 --parallel 8 -t 1 -tb 1 --alias tiny --no-cache-prompt"))
	if err != nil {
		t.Fatal(err)
	}
	want := options{Model: "/m/x.gguf", Alias: "tiny", Host: "127.0.0.1", Port: 9000, Ctx: 2048, Parallel: 8, Batch: 512, Threads: 1, ThreadsBatch: 1, Predict: -1}
	if o != want {
		t.Errorf("got %+v, want %+v", o, want)
	}
}

func TestParse_Refusals(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-m x --n-gpu-layers 99": `unknown flag "--n-gpu-layers"`,
		"-m x stray":             `unknown flag "stray"`,
		"":                       "no model",
		"-m":                     "flag -m: no value",
		"-m x --port http":       `flag --port: "http" is not an integer`,
		"-m x --port 70000":      "flag --port: 70000 is not in [0, 65535]",
		"-m x --metrics=on":      "flag --metrics takes no value",
		"-m x -t 0":              "flag -t: 0 is not in [1, 256]",
		"-m x -np 9 -b 8":        "--batch-size 8 is smaller than --parallel 9",
	} {
		if _, err := parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse(%q): %v, want an error with %q", args, err, want)
		}
	}
}
