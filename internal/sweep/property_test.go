package sweep_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/sweep"
)

// tree is a sweep file as values; spellings of scalars are chosen when it is
// written.
type tree map[string]any

// number and the like have several spellings in YAML.
type (
	integer  int
	decimal  float64
	duration time.Duration
	rate     float64 // per second, a whole number
	text     string
	option   string // an engine's argument
	clock    int    // MHz, a multiple of 10
	digest   string
)

func manualTree() tree {
	return tree{
		"model":       tree{"name": text("llama"), "precision": text("bf16"), "checkpoint": tree{"path": text("models/x"), "digest": digest(strings.Repeat("0a", 32))}},
		"image":       tree{"path": text("vllm.sif"), "digest": digest(strings.Repeat("cd", 32))},
		"engine":      tree{"kind": text("vllm"), "version": text("0.10"), "args": tree{"max-num-seqs": option("256"), "flag": option("true"), "ratio": option("0.9")}, "env": tree{"A": option("x")}},
		"hardware":    tree{"gpu": text("h100-sxm"), "gpus": integer(4)},
		"parallel":    tree{"tensor": integer(4)},
		"environment": tree{"sm_clock": clock(1410), "cuda": text("12.4")},
		"workload": tree{
			"request":       tree{"temperature": decimal(0.5), "top_p": decimal(1)},
			"arrival":       tree{"process": text("poisson"), "rate": rate(8)},
			"input_tokens":  tree{"distribution": text("uniform"), "min": integer(16), "max": integer(48)},
			"output_tokens": tree{"distribution": text("constant"), "value": integer(256)},
			"warmup":        duration(90 * time.Second), "duration": duration(5 * time.Minute), "seed": integer(42),
		},
	}
}

// spell draws one of the ways to write a value.
func spell(t *rapid.T, v any) string {
	pick := func(choices ...string) string { return rapid.SampledFrom(choices).Draw(t, "spelling") }
	switch v := v.(type) {
	case integer:
		return strconv.Itoa(int(v))
	case decimal:
		s := strconv.FormatFloat(float64(v), 'f', -1, 64)
		padded := s + ".0"
		if strings.Contains(s, ".") {
			padded = s + "00"
		}
		return pick(s, padded, strconv.FormatFloat(float64(v), 'e', -1, 64))
	case duration:
		d := time.Duration(v)
		return pick(fmt.Sprintf("%ds", d/time.Second), fmt.Sprintf("%dms", d/time.Millisecond), fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second),
			fmt.Sprintf("%d.0s", d/time.Second))
	case rate:
		return pick(fmt.Sprintf("%g/s", float64(v)), fmt.Sprintf("%g/min", float64(v)*60), fmt.Sprintf("%g.00/s", float64(v)), fmt.Sprintf("%g/h", float64(v)*3600))
	case clock:
		return pick(fmt.Sprintf("%dMHz", v), fmt.Sprintf("%d.%02dGHz", v/1000, v%1000/10))
	case digest:
		return strconv.Quote("sha256:" + pick(string(v), strings.ToUpper(string(v))))
	case text:
		if strings.Contains(string(v), ".") && !strings.ContainsAny(string(v), "abcdefghijklmnopqrstuvwxyz") {
			return pick(strconv.Quote(string(v)), "'"+string(v)+"'") // a version
		}
		return pick(string(v), strconv.Quote(string(v)), "'"+string(v)+"'")
	case option:
		return pick(string(v), strconv.Quote(string(v)))
	default:
		t.Fatalf("no spelling for %T", v)
		return ""
	}
}

// write lays a tree out: keys in any order, flow or block style, comments, blank
// lines, anchors.
func write(t *rapid.T, b *strings.Builder, v tree, indent int, flow bool, anchors *int) {
	keys := rapid.Permutation(slices.Sorted(maps.Keys(v))).Draw(t, "order")
	if flow {
		b.WriteString("{")
	}
	for i, key := range keys {
		if flow && i > 0 {
			b.WriteString(", ")
		}
		if !flow {
			if rapid.IntRange(0, 5).Draw(t, "comment") == 0 {
				b.WriteString("\n# remark: {not: parsed}\n")
			}
			b.WriteString(strings.Repeat(" ", indent))
		}
		if rapid.IntRange(0, 9).Draw(t, "quoted key") == 0 {
			key = strconv.Quote(key)
		}
		b.WriteString(key + ": ")
		child, isTree := v[strings.Trim(key, `"`)].(tree)
		anchor := ""
		if rapid.IntRange(0, 5).Draw(t, "anchor") == 0 {
			*anchors++
			anchor = fmt.Sprintf("&a%d ", *anchors)
		}
		switch {
		case !isTree:
			b.WriteString(anchor + spell(t, v[strings.Trim(key, `"`)]))
		case flow || rapid.Bool().Draw(t, "flow"):
			b.WriteString(anchor)
			write(t, b, child, 0, true, anchors)
		default:
			b.WriteString(anchor + "\n")
			write(t, b, child, indent+rapid.IntRange(1, 4).Draw(t, "indent"), false, anchors)
			continue
		}
		if !flow {
			b.WriteString("\n")
		}
	}
	if flow {
		b.WriteString("}")
	}
}

// TestHash_Writing: order, layout, comments, anchors and spellings never change
// what a file means.
func TestHash_Writing(t *testing.T) {
	t.Parallel()
	var want []byte
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		anchors := 0
		b.WriteString("sweep: v1\nsetting:\n")
		write(t, &b, manualTree(), 2, false, &anchors)
		b.WriteString("name: x\n")
		f, list := sweep.Parse([]byte(b.String()), "f")
		if f == nil {
			t.Fatalf("%s\n%s", b.String(), list.Text())
		}
		e, list := sweep.Expand(f, sweep.Options{})
		if list.HasErrors() || len(e.Settings) != 1 {
			t.Fatalf("%s\n%s", b.String(), list.Text())
		}
		spec := e.Settings[0].Setting.Canonical()
		if want == nil {
			want = spec
		}
		if !bytes.Equal(spec, want) {
			t.Fatalf("%s\ngives %s\nnot   %s", b.String(), spec, want)
		}
	})
}

// TestHash_Anchors: an alias and a merge mean what they stand for.
func TestHash_Anchors(t *testing.T) {
	t.Parallel()
	plain := string(read(t, "testdata/plain.yaml"))
	want := expand(t, []byte(plain), sweep.Options{})
	for _, e := range [][2]string{
		{"{distribution: uniform, min: 16, max: 48}\n    output_tokens: {distribution: constant, value: 16}", "{distribution: uniform, min: &n 16, max: 48}\n    output_tokens: {distribution: constant, value: *n}"},
		{"workload.arrival.rate: [4/s, 8/s]", "workload.arrival.rate: &r [4/s, 8/s]\n  exclude: []\n  where: []"},
		{"hardware: {gpu: l4, gpus: 1, placement: gpu}", "hardware: {gpus: 2, <<: {gpu: l4, gpus: 1}, gpus: 1, placement: gpu}"},
		{"hardware: {gpu: l4, gpus: 1, placement: gpu}", "hardware: {<<: [{gpu: l4}, {gpu: h100, gpus: 1}], placement: gpu}"},
	} {
		if !strings.Contains(plain, e[0]) {
			t.Fatalf("%q is not in the file", e[0])
		}
		f, list := sweep.Parse([]byte(strings.Replace(plain, e[0], e[1], 1)), "f")
		if strings.Contains(e[1], "gpus: 2") {
			if f != nil {
				t.Errorf("a duplicate key beside a merge is accepted")
			}
			continue
		}
		if f == nil {
			t.Errorf("%s", list.Text())
			continue
		}
		got, _ := sweep.Expand(f, sweep.Options{})
		if diff := cmp.Diff(want.Settings, got.Settings); diff != "" {
			t.Errorf("%q (-want +got):\n%s", e[1], diff)
		}
	}
}

// TestExpand_Repeatable: the same file gives the same settings, byte by byte.
func TestExpand_Repeatable(t *testing.T) {
	t.Parallel()
	data := read(t, "testdata/manual.yaml")
	var first []byte
	for range 20 {
		e := expand(t, data, sweep.Options{})
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = text
		}
		if !bytes.Equal(first, text) {
			t.Fatal("two expansions differ")
		}
	}
}

// TestParse_Bombs: hostile files are answered quickly.
func TestParse_Bombs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes many seconds of CPU time")
	}
	plain := string(read(t, "testdata/plain.yaml"))
	fill := func(line func(i int) string) string {
		var b strings.Builder
		for i := 0; b.Len() < sweep.MaxBytes-len(plain)-200; i++ {
			b.WriteString(line(i))
		}
		return b.String()
	}
	for name, text := range map[string]string{
		"unknown keys":       plain + fill(func(i int) string { return fmt.Sprintf("key%d: 1\n", i) }),
		"unknown axes":       plain + fill(func(i int) string { return fmt.Sprintf("  hardware.gpu%d: [1]\n", i) }),
		"arguments":          plain + fill(func(i int) string { return fmt.Sprintf("  engine.args.a%d: [1]\n", i) }),
		"values":             plain + "  workload.seed: [" + fill(func(i int) string { return fmt.Sprintf("%d, ", i) }) + "]\n",
		"the same values":    plain + "  workload.seed: [" + fill(func(int) string { return "1, " }) + "]\n",
		"wrong values":       plain + "  workload.seed: [" + fill(func(int) string { return "x, " }) + "]\n",
		"included points":    plain + "  include:\n" + fill(func(i int) string { return fmt.Sprintf("  - {workload.seed: %d}\n", i) }),
		"wrong points":       plain + "  include:\n" + fill(func(i int) string { return fmt.Sprintf("  - {hardware.gpus: %d}\n", i+2) }),
		"wide point":         plain + "  include:\n  - {" + fill(func(i int) string { return fmt.Sprintf("engine.args.a%d: 1, ", i) }) + "}\n",
		"excluded points":    plain + "  exclude:\n" + fill(func(i int) string { return fmt.Sprintf("  - {workload.seed: %d}\n", i) }),
		"excluded and many":  plain + "  workload.seed: [" + numbers(24000) + "]\n  exclude:\n" + strings.Repeat("  - {hardware.gpu: t4}\n", 20000),
		"conditions":         plain + "  where:\n" + fill(func(int) string { return "  - workload.seed == 1\n" }),
		"deep condition":     plain + "  where: [\"" + strings.Repeat("(", 900) + "1" + strings.Repeat(")", 900) + " == 1\"]\n",
		"negated condition":  plain + "  where: [\"" + strings.Repeat("!", 1900) + "true\"]\n",
		"power":              plain + "  where: [\"9**9**9**9**9 > 1\"]\n",
		"pattern":            plain + "  where: [\"hardware.gpu matches '(a+)+$'\"]\n",
		"zips":               plain + "  zip:\n" + fill(func(i int) string { return fmt.Sprintf("  - {engine.args.z%d: [1]}\n", i) }),
		"bins":               strings.Replace(plain, "{distribution: constant, value: 16}", "{distribution: histogram, bins: ["+numberedBins(40000)+"]}", 1),
		"stages of a matrix": plain + "  workload.ladder: [" + fill(func(int) string { return "[1/s, 2/s], " }) + "]\n",
		"long name":          strings.Replace(plain, "name: tiny", "name: "+fill(func(int) string { return "x" }), 1),
		"100 MB":             strings.Repeat("# filler\n", 100<<20/9),
	} {
		start := time.Now()
		got := print([]byte(text), sweep.Options{})
		took := time.Since(start)
		headline, _, _ := strings.Cut(got, "\n")
		t.Logf("%-18s %7v  %.120s", name, took.Round(time.Millisecond), headline)
		if took > time.Minute { // a hundredfold of what an idle machine takes
			t.Errorf("%s took %v", name, took)
		}
	}
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d, ", i)
	}
	return b.String()
}

func numberedBins(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{min: %d, max: %d, weight: 1}, ", i+1, i+1)
	}
	return b.String()
}

// FuzzParse: nothing panics, every fault lies within the file, and what is
// accepted expands.
func FuzzParse(f *testing.F) {
	f.Add(read(f, "testdata/plain.yaml"))
	f.Add(read(f, "testdata/manual.yaml"))
	plain := string(read(f, "testdata/plain.yaml"))
	for _, e := range faults() {
		text := plain
		for i := 0; i+1 < len(e); i += 2 {
			text = strings.Replace(text, e[i], e[i+1], 1)
		}
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, list := sweep.Parse(data, "f")
		lines := bytes.Count(data, []byte("\n")) + 1
		for _, d := range list {
			if d.Line < 0 || d.Line > lines || d.Line > 0 && d.Column < 1 {
				t.Fatalf("%+v is outside of the file of %d lines", d, lines)
			}
		}
		if (file == nil) != list.HasErrors() {
			t.Fatalf("file %v with\n%s", file != nil, list.Text())
		}
		if file == nil {
			return
		}
		e, list := sweep.Expand(file, sweep.Options{Limit: 200})
		if list.HasErrors() {
			return
		}
		for i := range e.Settings {
			s := &e.Settings[i].Setting
			if faults := s.Validate(); len(faults) > 0 {
				t.Fatalf("an expanded setting is not valid: %+v", faults)
			}
			if s.Hash() != e.Settings[i].Hash {
				t.Fatal("the hash is not the setting's")
			}
		}
	})
}
