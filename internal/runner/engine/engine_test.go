package engine

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/batch"
	"sbench/internal/setting"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func params(kind setting.EngineKind, change func(*Params)) Params {
	p := Params{Host: "127.0.0.1", Port: 8000, Model: "/sbench/model", Setting: setting.Setting{
		Model:    setting.Model{Name: "llama-3.1-8b", Precision: "auto"},
		Engine:   setting.Engine{Kind: kind},
		Parallel: setting.Parallel{Tensor: 1, Pipeline: 1, Data: 1, Expert: 1},
	}}
	if change != nil {
		change(&p)
	}
	return p
}

// TestArgv_Golden holds the command lines of every kind as files.
func TestArgv_Golden(t *testing.T) {
	t.Parallel()
	args := func(a map[string]string) func(*Params) {
		return func(p *Params) { p.Setting.Engine.Args = a }
	}
	type argvTest struct {
		name   string
		kind   setting.EngineKind
		change func(*Params)
	}
	tests := []argvTest{
		{"vllm-plain", setting.EngineVLLM, nil},
		{"vllm-parallel", setting.EngineVLLM, func(p *Params) {
			p.Setting.Parallel = setting.Parallel{Tensor: 4, Pipeline: 2, Data: 2, Expert: 8}
			p.Setting.Model.Precision = "bf16"
		}},
		{"vllm-args", setting.EngineVLLM, args(map[string]string{
			"max-num-seqs": "256", "enable-prefix-caching": "false", "trust-remote-code": "true",
			"speculative-config": `{"method": "ngram", "num_speculative_tokens": 4}`, "seed": "-1", "dtype": "half",
		})},
		{"vllm-fp8", setting.EngineVLLM, func(p *Params) { p.Setting.Model.Precision = "fp8" }},
		{"vllm-host", setting.EngineVLLM, func(p *Params) { p.Program = "/opt/vllm/bin/vllm" }},
		{"sglang-plain", setting.EngineSGLang, nil},
		{"sglang-parallel", setting.EngineSGLang, func(p *Params) {
			p.Setting.Parallel = setting.Parallel{Tensor: 8, Pipeline: 1, Data: 2, Expert: 8}
			p.Setting.Model.Precision = "fp16"
			p.Setting.Engine.Args = map[string]string{"mem-fraction-static": "0.85", "disable-radix-cache": "true"}
		}},
		{"sglang-host-python", setting.EngineSGLang, func(p *Params) { p.Program = "/opt/env/bin/python3.12" }},
		{"trtllm-plain", setting.EngineTRTLLM, nil},
		{"trtllm-parallel", setting.EngineTRTLLM, func(p *Params) {
			p.Setting.Parallel = setting.Parallel{Tensor: 8, Pipeline: 2, Data: 1, Expert: 4}
			p.Setting.Engine.Args = map[string]string{"max_batch_size": "512", "backend": "pytorch"}
		}},
		{"llamacpp-plain", setting.EngineLlamaCpp, func(p *Params) { p.Model = "/sbench/model.gguf" }},
		{"llamacpp-args", setting.EngineLlamaCpp, args(map[string]string{
			"ctx-size": "4096", "threads": "1", "parallel": "4", "t": "1", "n-predict": "-1", "no-mmap": "true", "flash-attn": "false",
		})},
		{"command-container", setting.EngineCommand, func(p *Params) {
			p.Setting.Engine.Command = []string{"serve", "--listen={host}:{port}", "{model}", "{other}"}
			p.Setting.Engine.Args = map[string]string{"slots": "8"}
		}},
		{"command-host", setting.EngineCommand, func(p *Params) {
			p.Program, p.Model = "/opt/sim", ""
			p.Setting.Engine.Command = []string{"--port", "{port}"}
		}},
	}
	for _, rank := range []int{0, 1} {
		gang := func(change func(p *Params)) func(p *Params) {
			return func(p *Params) {
				p.Setting.Hardware.Nodes, p.Setting.Hardware.GPUs = 2, 8
				p.Gang = &Gang{Rank: rank, Nodes: []string{"n1", "n2"}, Leader: "10.0.0.1", Port: 20011}
				change(p)
			}
		}
		name := fmt.Sprintf("-gang-rank%d", rank)
		tests = append(tests, []argvTest{
			{"vllm" + name, setting.EngineVLLM, gang(func(p *Params) { p.Setting.Parallel = setting.Parallel{Tensor: 8, Pipeline: 2, Data: 1, Expert: 1} })},
			{"vllm-data" + name, setting.EngineVLLM, gang(func(p *Params) { p.Setting.Parallel = setting.Parallel{Tensor: 4, Pipeline: 1, Data: 4, Expert: 16} })},
			{"sglang" + name, setting.EngineSGLang, gang(func(p *Params) { p.Setting.Parallel = setting.Parallel{Tensor: 16, Pipeline: 1, Data: 1, Expert: 1} })},
			{"command" + name, setting.EngineCommand, gang(func(p *Params) {
				p.Setting.Engine.Command = []string{"--listen={host}:{port}", "--rank={rank}/{nodes}", "--meet={leader}:{gang_port}", "--hosts={hosts}"}
			})},
		}...)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, err := New(tt.kind)
			if err != nil {
				t.Fatal(err)
			}
			argv, err := e.Argv(params(tt.kind, tt.change))
			if err != nil {
				t.Fatal(err)
			}
			golden(t, tt.name+".argv", strings.Join(argv, "\n")+"\n")
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestArgv_Refuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		kind   setting.EngineKind
		change func(*Params)
		want   string
	}{
		{"port", setting.EngineVLLM, func(p *Params) { p.Setting.Engine.Args = map[string]string{"port": "1"} }, "engine.args.port is set by the harness"},
		{"underscores", setting.EngineVLLM, func(p *Params) { p.Setting.Engine.Args = map[string]string{"tensor_parallel_size": "2"} }, "set by the harness"},
		{"llamacpp model", setting.EngineLlamaCpp, func(p *Params) { p.Setting.Engine.Args = map[string]string{"m": "x"} }, "set by the harness"},
		{"dashes", setting.EngineSGLang, func(p *Params) { p.Setting.Engine.Args = map[string]string{"--x": "1"} }, "without its dashes"},
		{"a space", setting.EngineCommand, func(p *Params) { p.Setting.Engine.Args = map[string]string{"x y": "1"} }, "not the name"},
		{"an equals sign", setting.EngineTRTLLM, func(p *Params) { p.Setting.Engine.Args = map[string]string{"host=0.0.0.0": "true"} }, "not the name"},
		{"experts", setting.EngineVLLM, func(p *Params) { p.Setting.Parallel.Expert, p.Setting.Parallel.Tensor = 2, 4 }, "parallel.expert 2"},
		{"replicas across nodes", setting.EngineVLLM, func(p *Params) {
			p.Setting.Hardware.Nodes, p.Setting.Hardware.GPUs = 4, 4
			p.Setting.Parallel = setting.Parallel{Tensor: 8, Pipeline: 1, Data: 2, Expert: 1}
			p.Gang = &Gang{Nodes: []string{"a", "b", "c", "d"}, Leader: "a", Port: 1}
		}, "whole replicas on a node"},
		{"gang option", setting.EngineSGLang, func(p *Params) { p.Setting.Engine.Args = map[string]string{"dist_init_addr": "x"} }, "set by the harness"},
		{"data", setting.EngineTRTLLM, func(p *Params) { p.Setting.Parallel.Data = 2 }, "no data parallelism"},
		{"nothing to run", setting.EngineCommand, nil, "engine.command is empty"},
	}
	for _, tt := range tests {
		e, err := New(tt.kind)
		if err != nil {
			t.Fatal(err)
		}
		if argv, err := e.Argv(params(tt.kind, tt.change)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %q, %v; want an error with %q", tt.name, argv, err, tt.want)
		}
	}
	if _, err := New("made-up"); err == nil {
		t.Error("an unknown kind was accepted")
	}
}

// TestArgv_Deterministic: equal options in any order give one command line.
func TestArgv_Deterministic(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[a-z][a-z0-9-]{1,10}`)
	rapid.Check(t, func(t *rapid.T) {
		args := rapid.MapOf(name, rapid.String()).Draw(t, "args")
		p := params(setting.EngineCommand, func(p *Params) {
			p.Setting.Engine.Command, p.Setting.Engine.Args = []string{"x"}, args
		})
		a, errA := command{}.Argv(p)
		b, errB := command{}.Argv(p)
		if errA != nil || errB != nil || !cmp.Equal(a, b) {
			t.Fatalf("%q %v\n%q %v", a, errA, b, errB)
		}
	})
}

func TestContainer_Argv(t *testing.T) {
	t.Parallel()
	c := Container{
		Program: "/usr/bin/apptainer", Args: []string{"--no-privs"}, Image: "/cache/x.sif", NVIDIA: true,
		Binds: []batch.Bind{{Source: "/m/model.gguf", Target: "/sbench/model.gguf", ReadOnly: true}, {Source: "/scratch"}},
		Env:   map[string]string{"B": "2", "A": "1", "LIST": "a,b", "JSON": `{"a": 1}`},
	}
	got, err := c.Argv([]string{"llama-server", "-m", "/sbench/model.gguf"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/usr/bin/apptainer", "exec", "--nv", "--containall", "--no-home", "--no-privs",
		"--bind", "/m/model.gguf:/sbench/model.gguf:ro", "--bind", "/scratch:/scratch",
		"--env", "A=1", "--env", "B=2", "/cache/x.sif", "llama-server", "-m", "/sbench/model.gguf",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("argv (-want +got):\n%s", diff)
	}
	env := []string{
		`APPTAINERENV_JSON={"a": 1}`, `SINGULARITYENV_JSON={"a": 1}`,
		"APPTAINERENV_LIST=a,b", "SINGULARITYENV_LIST=a,b",
	}
	if diff := cmp.Diff(env, c.Environ()); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	c.Binds = []batch.Bind{{Source: "/a:b"}}
	if _, err := c.Argv(nil); err == nil {
		t.Error("a path with a colon was accepted")
	}
}

func TestFindContainerProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if _, err := FindContainerProgram(""); !errors.Is(err, ErrNoContainerProgram) {
		t.Errorf("empty PATH: %v", err)
	}
	for _, name := range []string{"singularity", "apptainer"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if got, err := FindContainerProgram(""); err != nil || got != path {
			t.Errorf("got %s, %v; want %s", got, err, path)
		}
	}
	if _, err := FindContainerProgram(filepath.Join(dir, "absent")); err == nil {
		t.Error("a configured program that does not exist was accepted")
	}
}

// TestProbe runs the real script over package metadata as pip writes it.
func TestProbe(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	dir := t.TempDir()
	for name, version := range map[string]string{"vllm": "0.9.2", "torch": "2.7.0+cu126", "nvidia-nccl-cu12": "2.26.2"} {
		info := filepath.Join(dir, strings.ReplaceAll(name, "-", "_")+"-"+version+".dist-info")
		if err := os.Mkdir(info, 0o755); err != nil {
			t.Fatal(err)
		}
		text := "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
		if err := os.WriteFile(filepath.Join(info, "METADATA"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	torch := filepath.Join(dir, "torch")
	if err := os.Mkdir(torch, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"__init__.py": "raise SystemExit('the framework was imported')",
		"version.py":  "from typing import Optional\n__version__ = '2.7.0+cu126'\ncuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n",
	} {
		if err := os.WriteFile(filepath.Join(torch, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	argv := vllm{}.Probe(Params{})
	cmd := exec.Command(python, argv[1:]...)
	cmd.Env = []string{"PYTHONPATH=" + dir}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseReport(append([]byte("INFO: a banner\n"), out...))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Report{Version: "0.9.2", Torch: "2.7.0+cu126", CUDA: "12.6", NCCL: "2.26.2"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := ParseReport([]byte("nonsense\n")); err == nil {
		t.Error("nonsense was taken for a report")
	}
}

func TestVersionPath(t *testing.T) {
	t.Parallel()
	for kind, answer := range map[setting.EngineKind]string{
		setting.EngineVLLM: `{"version":"v"}`, setting.EngineSGLang: `{"tp_size":1,"version":"v"}`,
		setting.EngineTRTLLM: `{"version":"v"}`, setting.EngineLlamaCpp: `{"build_info":"v","x":[1]}`,
	} {
		e, err := New(kind)
		if err != nil {
			t.Fatal(err)
		}
		_, read := e.VersionPath()
		if got := read([]byte(answer)); got != "v" {
			t.Errorf("%s: %q", kind, got)
		}
		for _, bad := range []string{"", "[]", "null", `{"version":1,"build_info":{}}`} {
			if got := read([]byte(bad)); got != "" {
				t.Errorf("%s: %q read from %s", kind, got, bad)
			}
		}
	}
}

func TestReadFailure(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, log, line string
		cause           Cause
	}{
		{
			"vllm device memory",
			"INFO 07-01 12:00:00 [core.py:70] Initializing\n(EngineCore pid=7) ERROR 07-01 12:00:01 [core.py:586] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nTraceback (most recent call last):\n  File \"x\"\nRuntimeError: Engine core initialization failed.\n",
			"(EngineCore pid=7) ERROR 07-01 12:00:01 [core.py:586] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
			CauseDeviceOOM,
		},
		{"host memory", "loading\nterminate called after throwing an instance of 'std::bad_alloc'\n", "terminate called after throwing an instance of 'std::bad_alloc'", CauseHostOOM},
		{"option", "usage: vllm\nvllm: error: unrecognized arguments: --max-num-seq 8\n", "vllm: error: unrecognized arguments: --max-num-seq 8", CauseUsage},
		{"llama.cpp option", "error: invalid argument: --foo\n", "error: invalid argument: --foo", CauseUsage},
		{"llama.cpp model", "llama_model_load: error loading model: invalid magic\n", "llama_model_load: error loading model: invalid magic", CauseModel},
		{"library", "./llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared object file\n", "./llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared object file", CauseLibrary},
		{"traceback", "x\nTraceback (most recent call last):\n  File \"a\", line 1\nValueError: bad value 7\nbye\n", "ValueError: bad value 7", CauseCrash},
		{"only an error line", "starting\nbind: error: address in use\nstopping\n", "bind: error: address in use", CauseUnknown},
		{"nothing", "", "", CauseUnknown},
		{"terminal controls", "\x1b[31mpanic: oh\x1b[0m\x07", "panic: oh", CauseCrash},
	}
	for _, tt := range tests {
		got := ReadFailure(tt.log, "exit status 1")
		if got.Cause != tt.cause || got.Line != tt.line || got.Signature == "" {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

func TestReadFailure_Signature(t *testing.T) {
	t.Parallel()
	sign := func(log, how string) string { return ReadFailure(log, how).Signature }
	a := sign("(Worker pid=17) ERROR 07-01 12:00:01 [w.py:5] CUDA out of memory. Tried to allocate 2.00 GiB at 0x7f00 in /tmp/run-1/a.py", "exit status 1")
	b := sign("(Worker pid=99) ERROR 08-02 03:04:05 [w.py:6] CUDA out of memory. Tried to allocate 2.50 GiB at 0x7fff in /tmp/run-2/a.py", "exit status 1")
	if a != b {
		t.Error("the same failure has two signatures")
	}
	for _, other := range []string{
		sign("ERROR CUDA out of memory. Something else", "exit status 1"),
		sign("std::bad_alloc", "exit status 1"),
		sign("(Worker pid=17) ERROR 07-01 12:00:01 [w.py:5] CUDA out of memory. Tried to allocate 2.00 GiB at 0x7f00 in /tmp/run-1/a.py", "killed by signal 9 (killed)"),
	} {
		if other == a {
			t.Error("different failures have one signature")
		}
	}
}

func TestContainerFault(t *testing.T) {
	t.Parallel()
	const fuse = "INFO:    squashfuse\nFATAL:   while mounting image: failed to open /dev/fuse: permission denied\n"
	for _, tt := range []struct {
		log  string
		code int
		want string
	}{
		{fuse, 255, "while mounting image: failed to open /dev/fuse: permission denied"},
		{fuse, 1, ""},
		{"FATAL:   exec: \"llama-server\": executable file not found in $PATH\n", 255, ""},
		{"ValueError: FATAL: not at the beginning\n", 255, ""},
		{"", 255, ""},
	} {
		if got := ContainerFault(tt.log, tt.code); got != tt.want {
			t.Errorf("%q, %d: %q, want %q", tt.log, tt.code, got, tt.want)
		}
	}
}

func FuzzReadFailure(f *testing.F) {
	f.Add("Traceback (most recent call last):\n", "exit status 1")
	f.Fuzz(func(t *testing.T, log, how string) {
		got := ReadFailure(log, how)
		if len(got.Line) > 1200 || strings.ContainsAny(got.Line, "\n\x1b\x00") || got.Signature == "" {
			t.Errorf("%+q", got)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Error(err)
		}
	})
}
