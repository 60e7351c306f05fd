// Package engine knows each kind of inference server: how it is started, when it
// is ready (one token was generated, not: a port is open), what it says of
// itself, and why it ended. It promises that options are rendered the same way
// every time; it refuses options that the harness itself must set.
package engine

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sbench/internal/setting"
)

// Params is what a command line is made of.
type Params struct {
	Setting setting.Setting
	// Program is the path of the executable of a host image; "" in a container,
	// where the kind's usual program is looked up on the image's PATH.
	Program string
	Model   string // path of the checkpoint as the engine sees it; "" for none
	Host    string
	Port    int
	// Gang is set where the engine has a process on each of several nodes.
	Gang *Gang
}

// Gang is one rank's view of the nodes that an engine spans.
type Gang struct {
	Rank   int
	Nodes  []string // by rank, as Slurm names them
	Leader string   // address of rank 0's node that the others have reached
	Port   int      // free there, for the engine's own meeting
}

// Engine is one kind of inference server.
type Engine interface {
	// Spans reports whether the engine has a process on every node of a gang, or,
	// false, on rank 0's alone. It is an error where the setting's number of nodes
	// is not the engine's to use.
	Spans(s setting.Setting) (bool, error)
	// Argv is the command line, without the container program.
	Argv(p Params) ([]string, error)
	// Probe is a command that prints a Report as JSON from inside the image,
	// before the engine is started; nil where the kind has none.
	Probe(p Params) []string
	// VersionPath is where the running server reports its version, and how it is
	// read from the answer; "" where it does not.
	VersionPath() (path string, read func(answer []byte) string)
	// Resolved are the options as the server resolved them, from what it answered at
	// VersionPath and from the beginning of its log; nil where it reports none.
	Resolved(answer []byte, log string) map[string]string
	// ResetPaths are routes that empty the prefix cache, the likeliest first.
	ResetPaths() []string
}

// Report is what is known of the software inside the image. "" is unknown.
type Report struct {
	Version string `json:"version"`
	Torch   string `json:"torch"`
	CUDA    string `json:"cuda"`
	NCCL    string `json:"nccl"`
}

// New returns the adapter of a kind.
func New(kind setting.EngineKind) (Engine, error) {
	switch kind {
	case setting.EngineVLLM:
		return vllm{}, nil
	case setting.EngineSGLang:
		return sglang{}, nil
	case setting.EngineTRTLLM:
		return trtllm{}, nil
	case setting.EngineLlamaCpp:
		return llamacpp{}, nil
	case setting.EngineCommand:
		return command{}, nil
	}
	return nil, fmt.Errorf("engine kind %q is not known", kind)
}

// falseStyle is how an engine's command line says false.
type falseStyle int

const (
	falseIsAbsent falseStyle = iota // a flag that is not given is false
	falseIsNo                       // --no-name, Python's BooleanOptionalAction
)

// options renders the user's options, sorted by name. reserved are those that
// the harness sets itself.
func options(args map[string]string, style falseStyle, reserved ...string) ([]string, error) {
	var argv []string
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if err := checkOption(name, reserved); err != nil {
			return nil, err
		}
		dashes := "--"
		if len(name) == 1 {
			dashes = "-"
		}
		switch value := args[name]; {
		case value == "true":
			argv = append(argv, dashes+name)
		case value == "false" && style == falseIsNo:
			argv = append(argv, "--no-"+name)
		case value == "false":
		case strings.HasPrefix(value, "-") && style == falseIsNo:
			// argparse takes a value that begins with a dash for an option.
			argv = append(argv, dashes+name+"="+value)
		default:
			argv = append(argv, dashes+name, value)
		}
	}
	return argv, nil
}

const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

func checkOption(name string, reserved []string) error {
	plain := name != "" && !strings.HasPrefix(name, "-") && strings.IndexFunc(name, func(r rune) bool { return !strings.ContainsRune(alphanumeric+"-_.", r) }) < 0
	if !plain {
		return fmt.Errorf("engine.args: %q is not the name of a long option without its dashes", name)
	}
	if slices.Contains(reserved, strings.ReplaceAll(name, "_", "-")) {
		return fmt.Errorf("engine.args.%s is set by the harness", name)
	}
	return nil
}

// program is the executable, or the usual name of it inside an image.
func program(p Params, usual ...string) []string {
	if p.Program != "" {
		return []string{p.Program}
	}
	return usual
}

func has(args map[string]string, name string) bool {
	_, a := args[name]
	_, b := args[strings.ReplaceAll(name, "-", "_")]
	return a || b
}

func itoa(n int) string { return strconv.Itoa(max(n, 1)) }

type vllm struct{}

func (vllm) Resolved(_ []byte, log string) map[string]string { return resolvedVLLM(log) }

// vLLM has the route in its developer mode alone (VLLM_SERVER_DEV_MODE=1).
func (vllm) ResetPaths() []string { return []string{"/reset_prefix_cache"} }

func (vllm) Spans(s setting.Setting) (bool, error) {
	_, err := vllmGang(s, nil)
	return true, err
}

// vllmGang renders the options by which a rank finds the others. One replica that
// is larger than a node is cut over the nodes by vLLM's own multiprocessing; of
// several replicas that fit on a node each, every node has its share.
func vllmGang(s setting.Setting, g *Gang) ([]string, error) {
	replica := max(s.Parallel.Tensor, 1) * max(s.Parallel.Pipeline, 1)
	var argv []string
	switch data := max(s.Parallel.Data, 1); {
	case data == 1:
		if g == nil {
			return nil, nil
		}
		argv = []string{
			"--distributed-executor-backend", "mp", "--nnodes", strconv.Itoa(len(g.Nodes)), "--node-rank", strconv.Itoa(g.Rank),
			"--master-addr", g.Leader, "--master-port", strconv.Itoa(g.Port),
		}
	case replica > s.Hardware.GPUs || s.Hardware.GPUs%replica != 0:
		return nil, fmt.Errorf("parallel.data %d: vllm puts whole replicas on a node, and one takes %d of its %d GPUs", data, replica, s.Hardware.GPUs)
	default:
		if g == nil {
			return nil, nil
		}
		local := s.Hardware.GPUs / replica
		argv = []string{
			"--data-parallel-size-local", strconv.Itoa(local), "--data-parallel-start-rank", strconv.Itoa(local * g.Rank),
			"--data-parallel-address", g.Leader, "--data-parallel-rpc-port", strconv.Itoa(g.Port),
		}
	}
	if g.Rank > 0 {
		argv = append(argv, "--headless")
	}
	return argv, nil
}

func (vllm) Argv(p Params) ([]string, error) {
	s := p.Setting
	user, err := options(s.Engine.Args, falseIsNo, "host", "port", "uds", "model", "served-model-name", "tensor-parallel-size",
		"pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel", "nnodes", "node-rank", "master-addr", "master-port",
		"headless", "data-parallel-size-local", "data-parallel-start-rank", "data-parallel-address", "data-parallel-rpc-port")
	if err != nil {
		return nil, err
	}
	argv := append(program(p, "vllm"), "serve", p.Model, "--host", p.Host, "--port", strconv.Itoa(p.Port),
		"--served-model-name", s.Model.Name, "--tensor-parallel-size", itoa(s.Parallel.Tensor))
	if s.Parallel.Pipeline > 1 {
		argv = append(argv, "--pipeline-parallel-size", itoa(s.Parallel.Pipeline))
	}
	if s.Parallel.Data > 1 {
		argv = append(argv, "--data-parallel-size", itoa(s.Parallel.Data))
	}
	if p.Gang != nil {
		gang, err := vllmGang(s, p.Gang)
		if err != nil {
			return nil, err
		}
		argv = append(argv, gang...)
	}
	switch expert, ranks := s.Parallel.Expert, s.Parallel.Tensor*s.Parallel.Data; {
	case expert <= 1:
	case expert == ranks:
		// vLLM spreads the experts over all tensor and data ranks, or over none.
		argv = append(argv, "--enable-expert-parallel")
	default:
		return nil, fmt.Errorf("parallel.expert %d: vllm can only spread experts over all %d tensor x data ranks", expert, ranks)
	}
	return append(append(argv, precision(s, "dtype", "quantization")...), user...), nil
}

func (vllm) Probe(Params) []string { return pythonProbe("vllm") }

func (vllm) VersionPath() (string, func([]byte) string) { return "/version", jsonField("version") }

// precision renders model.precision unless the user's own options say it.
func precision(s setting.Setting, dtype, quantization string) []string {
	names := map[string]string{"bf16": "bfloat16", "fp16": "float16", "f32": "float32"}
	switch name, known := names[s.Model.Precision]; {
	case known && !has(s.Engine.Args, dtype):
		return []string{"--" + dtype, name}
	case s.Model.Precision == "fp8" && quantization != "" && !has(s.Engine.Args, quantization):
		return []string{"--" + quantization, "fp8"}
	}
	// auto, and the precisions that are a property of the checkpoint.
	return nil
}

type sglang struct{}

func (sglang) Resolved(answer []byte, _ string) map[string]string { return plainValues(answer) }

func (sglang) ResetPaths() []string { return []string{"/flush_cache"} }

func (sglang) Argv(p Params) ([]string, error) {
	s := p.Setting
	user, err := options(s.Engine.Args, falseIsAbsent, "host", "port", "model-path", "model", "served-model-name",
		"tp-size", "tp", "tensor-parallel-size", "pp-size", "pipeline-parallel-size", "dp-size", "dp", "data-parallel-size", "ep-size", "ep", "expert-parallel-size",
		"nnodes", "node-rank", "dist-init-addr")
	if err != nil {
		return nil, err
	}
	argv := program(p, "python3", "-m", "sglang.launch_server")
	if strings.HasPrefix(filepath.Base(p.Program), "python") {
		argv = append(argv, "-m", "sglang.launch_server")
	}
	argv = append(argv, "--model-path", p.Model, "--host", p.Host, "--port", strconv.Itoa(p.Port),
		"--served-model-name", s.Model.Name, "--tp-size", itoa(s.Parallel.Tensor))
	for _, o := range []struct {
		name string
		n    int
	}{{"--pp-size", s.Parallel.Pipeline}, {"--dp-size", s.Parallel.Data}, {"--ep-size", s.Parallel.Expert}} {
		if o.n > 1 {
			argv = append(argv, o.name, itoa(o.n))
		}
	}
	if g := p.Gang; g != nil {
		argv = append(argv, "--nnodes", strconv.Itoa(len(g.Nodes)), "--node-rank", strconv.Itoa(g.Rank),
			"--dist-init-addr", net.JoinHostPort(g.Leader, strconv.Itoa(g.Port)))
	}
	return append(append(argv, precision(s, "dtype", "quantization")...), user...), nil
}

func (sglang) Spans(setting.Setting) (bool, error) { return true, nil }

func (sglang) Probe(Params) []string { return pythonProbe("sglang") }

func (sglang) VersionPath() (string, func([]byte) string) {
	return "/get_server_info", jsonField("version")
}

type trtllm struct{}

// trtllm-serve reports its version, and no options.
func (trtllm) Resolved([]byte, string) map[string]string { return nil }

func (trtllm) ResetPaths() []string { return nil }

func (trtllm) Argv(p Params) ([]string, error) {
	s := p.Setting
	user, err := options(s.Engine.Args, falseIsAbsent, "host", "port", "model", "tp-size", "pp-size", "ep-size")
	if err != nil {
		return nil, err
	}
	if s.Parallel.Data > 1 {
		return nil, fmt.Errorf("parallel.data %d: trtllm-serve has no data parallelism", s.Parallel.Data)
	}
	argv := append(program(p, "trtllm-serve"), "serve", p.Model, "--host", p.Host, "--port", strconv.Itoa(p.Port),
		"--tp_size", itoa(s.Parallel.Tensor))
	if s.Parallel.Pipeline > 1 {
		argv = append(argv, "--pp_size", itoa(s.Parallel.Pipeline))
	}
	if s.Parallel.Expert > 1 {
		argv = append(argv, "--ep_size", itoa(s.Parallel.Expert))
	}
	return append(argv, user...), nil
}

func (trtllm) Spans(setting.Setting) (bool, error) {
	return false, errors.New("hardware.nodes: trtllm-serve spans nodes by MPI alone, whose ranks this runner does not start")
}

func (trtllm) Probe(Params) []string { return pythonProbe("tensorrt_llm") }

func (trtllm) VersionPath() (string, func([]byte) string) { return "/version", jsonField("version") }

type llamacpp struct{}

func (llamacpp) Resolved(answer []byte, _ string) map[string]string { return plainValues(answer) }

// llama-server can empty a slot, but says of none what it holds.
func (llamacpp) ResetPaths() []string { return nil }

func (llamacpp) Argv(p Params) ([]string, error) {
	s := p.Setting
	user, err := options(s.Engine.Args, falseIsAbsent, "host", "port", "model", "m")
	if err != nil {
		return nil, err
	}
	argv := append(program(p, "llama-server"), "-m", p.Model, "--host", p.Host, "--port", strconv.Itoa(p.Port))
	return append(argv, user...), nil
}

func (llamacpp) Spans(setting.Setting) (bool, error) {
	return false, errors.New("hardware.nodes: llama-server runs on one node")
}

func (llamacpp) Probe(Params) []string { return nil }

func (llamacpp) VersionPath() (string, func([]byte) string) {
	return "/props", jsonField("build_info")
}

// command is any program. Its argv is the setting's, with {host}, {port} and
// {model} filled in; options follow. In a gang {rank}, {nodes}, {leader},
// {gang_port} and {hosts} are filled in too, and a command that names its {rank}
// is started on every node.
type command struct{}

func (command) Resolved(answer []byte, _ string) map[string]string { return plainValues(answer) }

func (command) ResetPaths() []string { return []string{"/reset_prefix_cache", "/flush_cache"} }

func (command) Spans(s setting.Setting) (bool, error) {
	return strings.Contains(strings.Join(s.Engine.Command, " "), "{rank}"), nil
}

func (command) Argv(p Params) ([]string, error) {
	s := p.Setting
	user, err := options(s.Engine.Args, falseIsAbsent)
	if err != nil {
		return nil, err
	}
	argv := program(p)
	g := p.Gang
	if g == nil {
		g = &Gang{Nodes: []string{"localhost"}, Leader: p.Host}
	}
	fill := strings.NewReplacer("{host}", p.Host, "{port}", strconv.Itoa(p.Port), "{model}", p.Model, "{rank}", strconv.Itoa(g.Rank),
		"{nodes}", strconv.Itoa(len(g.Nodes)), "{leader}", g.Leader, "{gang_port}", strconv.Itoa(g.Port), "{hosts}", strings.Join(g.Nodes, ","))
	for _, a := range s.Engine.Command {
		argv = append(argv, fill.Replace(a))
	}
	if len(argv) == 0 {
		return nil, fmt.Errorf("engine.command is empty: say what to run inside the image")
	}
	return append(argv, user...), nil
}

func (command) Probe(Params) []string { return nil }

func (command) VersionPath() (string, func([]byte) string) { return "/version", jsonField("version") }
