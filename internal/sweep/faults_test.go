package sweep_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/sweep"
)

var update = flag.Bool("update", false, "write golden files and generated documents")

// edit replaces one piece of testdata/plain.yaml; further pairs replace more.
type edit []string

// faults are files with faults. The golden file of each holds what is printed.
func faults() map[string]edit {
	return map[string]edit{
		"none":                    {"name: plain", "name: plain"},
		"unknown-keys":            {"gpus: 1", "gpsu: 1", "seed: 42", "sed: 42", "repeats: 3", "repeat: 3", "process: poisson, rate", "process: poisson, rtae", "cuda:", "cudnn:"},
		"duplicate-keys":          {"seed: 42", "seed: 42\n    seed: 43", "gpus: 1,", "gpus: 1, gpus: 2,", "name: plain", "name: plain\nname: other"},
		"missing-keys":            {"sweep: v1\n", "", "name: plain\n", "", "duration: 100s\n", "\n", "name: tiny, ", "", "gpu: l4, ", ""},
		"wrong-version":           {"sweep: v1", "sweep: v2"},
		"wrong-types":             {"gpus: 1", "gpus: [1]", "temperature: 0", "temperature: warm", "args: {threads: 2}", "args: 2", "checkpoint: {path: tiny.gguf}", "checkpoint: tiny.gguf", "seed: 42", "seed: \"42\"", "{gpu: l4", "{gpu: {l4}"},
		"wrong-units":             {"rate: 8/s}", "rate: 8}", "duration: 100s", "duration: 100", "[4/s, 8/s]", "[4 per s, 8/s, 1e3/s]"},
		"version-numbers":         {"version: \"0.10\"", "version: 0.10", "cuda: \"12.4\"", "cuda: 12.4"},
		"yaml-traps":              {"name: tiny", "name: no", "threads: 2", "threads: 0x10", "gpus: 1", "gpus: 010", "seed: 42", "seed: 1e3", "duration: 100s", "duration: 1:40", "min: 16", "min: 1_6"},
		"nan":                     {"temperature: 0", "temperature: .nan", "rate: 8/s}", "rate: .inf}"},
		"words":                   {"kind: llamacpp", "kind: llama.cpp", "process: poisson", "process: Poisson", "placement: gpu", "placement: exclusive", "precision: fp16", "precision: float16"},
		"hostile-text":            {"name: tiny", "name: \"tiny\\nrm -rf /\"", "path: engine.sif", "path: \"engine\\e[2J.sif\"", "name: plain", "name: \"$(id)\"", "threads: 2", "threads: \"2\\u202e\""},
		"tabs":                    {"    kind: llamacpp", "\tkind: llamacpp"},
		"crlf":                    {"\n", "\r\n"},
		"bom":                     {"# A sweep", "\ufeff# A sweep"},
		"looping-anchor":          {"engine:\n", "engine: &loop\n", "args: {threads: 2}", "args: *loop"},
		"arguments":               {"threads: 2}", "threads: 0.10, --flag: true, port: 80, mmap: no, json: {a: 1}, list: [1], empty: }"},
		"secrets":                 {"args: {threads: 2}", "args: {threads: 2}\n    env: {HF_TOKEN: hf_abc, CUDA_VISIBLE_DEVICES: 0}"},
		"registry-image":          {"path: engine.sif", "path: docker://vllm/vllm-openai:latest"},
		"sandbox-image":           {"path: engine.sif", "path: sandbox/"},
		"oci-kind":                {"image: {path: engine.sif}", "image: {kind: oci, path: engine.sif}"},
		"roles":                   {"args: {threads: 2}", "roles: [{role: prefill, count: 1}]"},
		"digests":                 {"path: engine.sif", "path: engine.sif, digest: \"sha256:…\"", "path: tiny.gguf", "path: tiny.gguf, digest: latest"},
		"ranks":                   {"gpus: 1", "gpus: 4"},
		"ranks-in-matrix":         {"  engine.args.threads: [1, 2]", "  zip:\n    - {parallel.tensor: [1, 2, 4], hardware.gpus: [1, 2, 8]}"},
		"other-variant":           {"process: poisson, rate: 8/s", "process: closed, rate: 8/s, concurrency: 4", "  workload.arrival.rate: [4/s, 8/s]\n", ""},
		"other-variant-in-matrix": {"  workload.arrival.rate: [4/s, 8/s]", "  workload.arrival.process: [poisson, closed]"},
		"repeats":                 {"repeats: 3", "repeats: {min: 2, max: 1, until: {metrics: [ttft_p59, ttft_p95], relative_ci: 2}}"},
		"repeats-zero":            {"repeats: 3", "repeats: 0"},
		"repeats-incomplete":      {"repeats: 3", "repeats: {min: 3, max: 5, until: {}}"},
		"repeats-adaptive":        {"repeats: 3", "repeats: {min: 3, max: 5, until: {metrics: [ttft_p95], relative_ci: 0.05}}"},
		"slo":                     {"{ttft_p95: 500ms}", "{ttft_p59: 500ms, throughput: 8/s, tpot_p95: 0s, e2e: 5}"},
		"slo-unreachable":         {"{ttft_p95: 500ms}", "{ttft_p99: 500ms}", "duration: 100s", "duration: 30s"},
		"until-unreachable":       {"repeats: 3", "repeats: {min: 3, max: 9, until: {metrics: [output_tokens_per_s, ttft_p99], relative_ci: 0.05}}"},
		"reuse":                   {"repeats: 3", "reuse: {max_age: 30, canary: 2}"},
		"reuse-never":             {"repeats: 3", "reuse: never"},
		"priority":                {"repeats: 3", "priority: high"},
		"quality-words":           {"repeats: 3", "quality: {method: bleu, items: [x], endpoint: chats, seed: -1, concurrency: 0, temperature: 3, time_limit: 5, max_output_tokens: 0, metod: x}"},
		"quality-items":           {"repeats: 3", "quality: {method: regex, items: {path: q.jsonl, digest: latest}}"},
		"quality-needs":           {"repeats: 3", "quality: {method: token_f1}"},
		"quality-foreign":         {"repeats: 3", "quality: {method: exact_match, items: {path: q, digest: \"sha256:abababababababababababababababababababababababababababababababab\"}, command: [x], count: 3}"},
		"quality-command":         {"repeats: 3", "quality: {method: command, endpoint: chat, concurrency: 2}"},
		"quality-count":           {"repeats: 3", "quality: {method: command, command: [x], count: 3, items: {path: q, digest: \"sha256:abababababababababababababababababababababababababababababababab\"}}"},
		"quality-good":            {"repeats: 3", "quality: {method: command, command: [evaluate, \"{url}\", 3], count: 3, time_limit: 1m}"},
		"until-quality":           {"repeats: 3", "repeats: {min: 3, max: 9, until: {metrics: [quality_score], relative_ci: 0.05}}"},
		"matrix-axes":             {"workload.arrival.rate: [", "workload.arrival.rat: [", "engine.args.threads", "tensor"},
		"matrix-values":           {"[4/s, 8/s]", "[]", "[1, 2]", "2"},
		"matrix-twice":            {"  engine.args.threads: [1, 2]", "  zip:\n    - {workload.arrival.rate: [1/s, 2/s], hardware.gpu: [l4, t4]}"},
		"matrix-overlap":          {"  engine.args.threads: [1, 2]", "  workload.arrival: [{process: closed, concurrency: 4}]"},
		"zip-lengths":             {"  engine.args.threads: [1, 2]", "  zip:\n    - {parallel.tensor: [1, 2], hardware.gpus: [1, 2, 4]}\n    - {}\n    - hardware.gpu"},
		"zip-mapping":             {"  engine.args.threads: [1, 2]", "  zip: {parallel.tensor: [1, 2], hardware.gpus: [1, 2]}"},
		"where-unknown":           {"  engine.args.threads: [1, 2]", "  where: [\"tensor <= 4\", 'parallel.tesnor == 1', 'hardware.gpu.name == 1', 'nonsense > 1', engine.args.max-num-seqs == '1']"},
		"where-types":             {"  engine.args.threads: [1, 2]", "  where: [\"hardware.gpu == 4\", 'parallel.tensor', 'parallel.tensor < \"4\"', 'parallel == 1', 'workload.arrival.rate < 8 ||']"},
		"where-functions":         {"  engine.args.threads: [1, 2]", "  where: ['now() > 1', 'all(1..9, # > 0)', 'let x = 1; x == 1', 'hardware.gpu.Len() == 2', 'repeat(\"a\", 5) == \"\"', '1..100000000 == []', '$env == nil']"},
		"where-missing":           {"  engine.args.threads: [1, 2]", "  where: [workload.arrival.burstiness < 2]"},
		"where-nothing-left":      {"  engine.args.threads: [1, 2]", "  where: [parallel.tensor > 8]"},
		"exclude":                 {"  engine.args.threads: [1, 2]", "  exclude:\n    - {hardware.gpo: l4}\n    - {}\n    - hardware.gpu: [l4]\n    - {workload.arrival.rate: 4}"},
		"include":                 {"  engine.args.threads: [1, 2]", "  include:\n    - {workload.arrival: {process: closed}, workload.arrival.rate: 4/s}\n    - {hardware.gpus: two}"},
		"merged":                  {"[1, 2]", "[1, 2, \"2\", 1]"},
		"unpinned-images":         {"  engine.args.threads: [1, 2]", "  image.path: [a.sif, b.sif]"},
		"dotted-base":             {"  hardware: {gpu: l4,", "  hardware.gpu: l4\n  hardware: {"},
		"setting-list":            {"setting:\n", "setting: []\nextra:\n"},
		"too-many-requests":       {"[4/s, 8/s]", "[4/s, 1000000/s]"},
		"several-kinds":           {"gpus: 1", "gpus: 4", "name: tiny", "name: \"\"", "seed: 42", "sed: 42", "[4/s, 8/s]", "[4/s, 8]"},
	}
}

// print parses and expands, and returns what a person reads.
func print(data []byte, o sweep.Options) string {
	f, list := sweep.Parse(data, "sweep.yaml")
	if f == nil {
		return list.Text()
	}
	e, more := sweep.Expand(f, o)
	text := list.Text() + more.Text()
	if !more.HasErrors() {
		text += fmt.Sprintf("%d settings, %d runs\n", len(e.Settings), e.Runs)
	}
	return text
}

// TestGoldenFaults: every fault, its place, its caret and its hint.
func TestGoldenFaults(t *testing.T) {
	t.Parallel()
	plain := string(read(t, "testdata/plain.yaml"))
	for name, e := range faults() {
		text := plain
		for i := 0; i+1 < len(e); i += 2 {
			if !strings.Contains(text, e[i]) {
				t.Errorf("%s: %q is not in the file", name, e[i])
			}
			n := 1
			if e[i] == "\n" {
				n = -1
			}
			text = strings.Replace(text, e[i], e[i+1], n)
		}
		got := print([]byte(text), sweep.Options{})
		golden(t, filepath.Join("testdata", "faults", name+".golden"), got)
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
		return
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}
