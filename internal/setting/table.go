package setting

import (
	"slices"
	"strings"
)

// table is the one list of axes: sweep files, canonical specs, SQL and Parquet
// columns, JSON Schema and the manual are made from it or checked against it.
var table = buildTable()

// byKey and mapIndexes are indexes into table; canonicalOrder lists the axes of
// identity in the key order of RFC 8785.
var (
	byKey          = indexTable()
	mapIndexes     = mapAxes()
	canonicalOrder = orderTable()
)

// words lists the values of a type of words.
func words[T ~string](values ...T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

// buildTable fills in what follows from the rest of a row.
func buildTable() []Axis {
	axes := slices.Concat(softwareAxes(), hardwareAxes(), workloadAxes(),
		lengthAxes("workload.input_tokens", "of prompts", func(s *Setting) *Lengths { return &s.Workload.Input }),
		lengthAxes("workload.output_tokens", "asked for", func(s *Setting) *Lengths { return &s.Workload.Output }),
		promptAxes(), windowAxes())
	labels := []string{"model.checkpoint.path", "image.path", "hardware.class", "workload.arrival.trace_path", "workload.prompts.file_path"}
	moving := []string{
		"image.digest", "model.checkpoint.digest", "engine.version",
		"environment.driver", "environment.cuda", "environment.nccl", "environment.kernel",
	}
	for i := range axes {
		a := &axes[i]
		a.Identity = !slices.Contains(labels, a.Key)
		a.Moving = slices.Contains(moving, a.Key)
		a.Column = strings.ReplaceAll(a.Key, ".", "_")
		switch a.Type {
		case TypeDuration:
			a.Unit, a.Column = "s", a.Column+"_s"
		case TypeRate, TypeRates:
			a.Unit, a.Column = "1/s", a.Column+"_per_s"
		default:
		}
		if a.Pin {
			a.Default = Unpinned
		}
	}
	return axes
}

func softwareAxes() []Axis {
	command := func(s *Setting) bool { return s.Engine.Kind == EngineCommand }
	return []Axis{
		{
			Key: "model.name", Type: TypeText, Doc: "name of the model; stands in for the checkpoint where that is not pinned",
			field: func(s *Setting) any { return &s.Model.Name },
		},
		{
			Key: "model.checkpoint.path", Type: TypePath, Doc: "where the weights are; relative to the site's models folder",
			field: func(s *Setting) any { return &s.Model.Checkpoint.Path },
		},
		{
			Key: "model.checkpoint.digest", Type: TypeDigest, Pin: true,
			Doc:   "SHA-256 of the weights: of the file, or of the manifest of a folder's files; empty without a path",
			field: func(s *Setting) any { return &s.Model.Checkpoint.Digest },
		},
		{
			Key: "model.precision", Type: TypeWord, Words: []string{"auto", "f32", "bf16", "fp16", "fp8", "int8", "int4"}, Default: "auto",
			Doc:   "number format of the weights",
			field: func(s *Setting) any { return &s.Model.Precision },
		},
		{
			Key: "image.kind", Type: TypeWord, Words: words(ImageSIF, ImageHost), Default: "sif",
			Doc:   "how the engine's software is packed: an Apptainer image, or a program on the node",
			field: func(s *Setting) any { return (*string)(&s.Image.Kind) },
		},
		{
			Key: "image.path", Type: TypePath, Doc: "the image file or the executable; relative to the site's images folder",
			field: func(s *Setting) any { return &s.Image.Path },
		},
		{
			Key: "image.digest", Type: TypeDigest, Pin: true, Doc: "SHA-256 of the image file or of the executable",
			field: func(s *Setting) any { return &s.Image.Digest },
		},
		{
			Key: "engine.kind", Type: TypeWord, Words: words(EngineVLLM, EngineSGLang, EngineTRTLLM, EngineLlamaCpp, EngineCommand),
			Doc:   "the inference server",
			field: func(s *Setting) any { return (*string)(&s.Engine.Kind) },
		},
		{
			Key: "engine.version", Type: TypeVersion, Pin: true, Doc: "what the engine says its version is",
			field: func(s *Setting) any { return &s.Engine.Version },
		},
		{
			Key: "engine.args", Type: TypeMap, Doc: "long options without dashes; true is a bare option",
			field: func(s *Setting) any { return &s.Engine.Args },
		},
		{
			Key: "engine.command", Type: TypeStrings, Doc: "arguments of kind command; {host}, {port} and {model} are filled in",
			field: func(s *Setting) any { return &s.Engine.Command }, applies: command,
		},
		{
			Key: "engine.env", Type: TypeMap, Doc: "environment variables of the engine",
			field: func(s *Setting) any { return &s.Engine.Env },
		},
		{
			Key: "engine.server_life", Type: TypeWord, Words: words(ServerLifeRun, ServerLifeShared), Default: "run",
			Doc:   "whether every run starts its own server",
			field: func(s *Setting) any { return (*string)(&s.Engine.ServerLife) },
		},
	}
}

func hardwareAxes() []Axis {
	pin := func(key, doc string, typ Type, field func(*Setting) any, values ...string) Axis {
		return Axis{Key: "environment." + key, Type: typ, Pin: true, Words: values, Doc: doc, field: field}
	}
	return []Axis{
		{
			Key: "hardware.class", Type: TypeWord, Words: []string{"real", "emulated"},
			Doc:   "what the site must be; results carry the site's own class",
			field: func(s *Setting) any { return &s.Hardware.Class },
		},
		{
			Key: "hardware.gpu", Type: TypeText, Doc: "id of the hardware in the site file: h100-sxm, l4, cpu-x86",
			field: func(s *Setting) any { return &s.Hardware.GPU },
		},
		{
			Key: "hardware.gpus", Type: TypeInt, Unit: "GPUs", Default: "1", Doc: "GPUs per node; 0 on CPU nodes",
			field: func(s *Setting) any { return &s.Hardware.GPUs },
		},
		{
			Key: "hardware.nodes", Type: TypeInt, Unit: "nodes", Default: "1", Doc: "nodes of the gang",
			field: func(s *Setting) any { return &s.Hardware.Nodes },
		},
		{
			Key: "hardware.link", Type: TypeWord, Words: []string{"nvlink", "pcie", "none"}, Pin: true,
			Doc:   "how the GPUs of a node are linked",
			field: func(s *Setting) any { return &s.Hardware.Link },
		},
		{
			Key: "hardware.placement", Type: TypeWord, Words: words(PlacementNode, PlacementGPU, PlacementCopacked), Default: "node",
			Doc:   "isolation: whole nodes, own GPUs, or packed beside own runs",
			field: func(s *Setting) any { return (*string)(&s.Hardware.Placement) },
		},
		{
			Key: "hardware.constraint", Type: TypeText, Doc: "Slurm feature expression that the nodes must meet",
			field: func(s *Setting) any { return &s.Hardware.Constraint },
		},
		{
			Key: "hardware.switches", Type: TypeInt, Unit: "switches", Default: "0", Doc: "at most so many leaf switches; 0 is no limit",
			field: func(s *Setting) any { return &s.Hardware.Switches },
		},
		pin("driver", "version of the GPU driver", TypeVersion, func(s *Setting) any { return &s.Environment.Driver }),
		pin("cuda", "version of CUDA in the engine's software", TypeVersion, func(s *Setting) any { return &s.Environment.CUDA }),
		pin("nccl", "version of NCCL in the engine's software", TypeVersion, func(s *Setting) any { return &s.Environment.NCCL }),
		pin("mig", "MIG mode of the GPUs", TypeWord, func(s *Setting) any { return &s.Environment.MIG }, "enabled", "disabled"),
		pin("ecc", "ECC mode of the GPUs", TypeWord, func(s *Setting) any { return &s.Environment.ECC }, "enabled", "disabled"),
		pin("sm_clock", "locked SM clock", TypeFrequency, func(s *Setting) any { return &s.Environment.SMClock }),
		pin("mem_clock", "locked memory clock", TypeFrequency, func(s *Setting) any { return &s.Environment.MemClock }),
		pin("power_limit", "power limit of each GPU", TypePower, func(s *Setting) any { return &s.Environment.PowerLimit }),
		pin("kernel", "release of the kernel", TypeVersion, func(s *Setting) any { return &s.Environment.Kernel }),
		pin("governor", "CPU frequency governor", TypeText, func(s *Setting) any { return &s.Environment.Governor }),
		{
			Key: "parallel.tensor", Type: TypeInt, Default: "1", Doc: "tensor-parallel ranks",
			field: func(s *Setting) any { return &s.Parallel.Tensor },
		},
		{
			Key: "parallel.pipeline", Type: TypeInt, Default: "1", Doc: "pipeline-parallel ranks",
			field: func(s *Setting) any { return &s.Parallel.Pipeline },
		},
		{
			Key: "parallel.data", Type: TypeInt, Default: "1", Doc: "data-parallel ranks",
			field: func(s *Setting) any { return &s.Parallel.Data },
		},
		{
			Key: "parallel.expert", Type: TypeInt, Default: "1", Doc: "expert-parallel ranks",
			field: func(s *Setting) any { return &s.Parallel.Expert },
		},
	}
}

func workloadAxes() []Axis {
	process := func(of ...Process) func(*Setting) bool {
		return func(s *Setting) bool { return slices.Contains(of, s.Workload.Arrival.Process) }
	}
	return []Axis{
		{
			Key: "workload.kind", Type: TypeWord, Words: []string{"serving"}, Default: "serving", Doc: "kind of load",
			field: func(s *Setting) any { return &s.Workload.Kind },
		},
		{
			Key: "workload.request.endpoint", Type: TypeWord, Words: words(EndpointCompletions, EndpointChat), Default: "completions",
			Doc:   "the API that requests use",
			field: func(s *Setting) any { return (*string)(&s.Workload.Request.Endpoint) },
		},
		{
			Key: "workload.request.stream", Type: TypeBool, Default: "true", Doc: "whether tokens are streamed",
			field: func(s *Setting) any { return &s.Workload.Request.Stream },
		},
		{
			Key: "workload.request.ignore_eos", Type: TypeBool, Default: "true", Doc: "generate all tokens asked for, whatever the model says",
			field: func(s *Setting) any { return &s.Workload.Request.IgnoreEOS },
		},
		{
			Key: "workload.request.temperature", Type: TypeFloat, Default: "0", Doc: "sampling temperature",
			field: func(s *Setting) any { return &s.Workload.Request.Temperature },
		},
		{
			Key: "workload.request.top_p", Type: TypeFloat, Default: "1", Doc: "nucleus sampling",
			field: func(s *Setting) any { return &s.Workload.Request.TopP },
		},
		{
			Key: "workload.request.timeout_first_token", Type: TypeDuration, Default: "2m", Doc: "limit to the first token",
			field: func(s *Setting) any { return &s.Workload.Request.TimeoutFirstToken },
		},
		{
			Key: "workload.request.timeout_total", Type: TypeDuration, Default: "10m", Doc: "limit of a whole request",
			field: func(s *Setting) any { return &s.Workload.Request.TimeoutTotal },
		},
		{
			Key: "workload.arrival.process", Type: TypeWord,
			Words: words(ProcessConstant, ProcessPoisson, ProcessGamma, ProcessStages, ProcessTrace, ProcessClosed), Default: "poisson",
			Doc:   "how requests arrive; closed is a fixed concurrency",
			field: func(s *Setting) any { return (*string)(&s.Workload.Arrival.Process) },
		},
		{
			Key: "workload.arrival.rate", Type: TypeRate, Doc: "mean rate of constant, poisson and gamma",
			field:   func(s *Setting) any { return &s.Workload.Arrival.Rate },
			applies: func(s *Setting) bool { return hasRate(s) && len(s.Workload.Ladder) == 0 },
		},
		{
			Key: "workload.arrival.burstiness", Type: TypeFloat, Default: "1", Doc: "shape of gamma: 1 is poisson, below 1 is burstier",
			field: func(s *Setting) any { return &s.Workload.Arrival.Burstiness }, applies: process(ProcessGamma),
		},
		{
			Key: "workload.arrival.concurrency", Type: TypeInt, Unit: "requests", Doc: "requests in flight of closed",
			field: func(s *Setting) any { return &s.Workload.Arrival.Concurrency }, applies: process(ProcessClosed),
		},
		{
			Key: "workload.arrival.stages", Type: TypeStages, Doc: "poisson with a piecewise linear rate",
			field: func(s *Setting) any { return &s.Workload.Arrival.Stages }, applies: process(ProcessStages),
		},
		{
			Key: "workload.arrival.trace_path", Type: TypePath, Doc: "file of arrival times of trace",
			field: func(s *Setting) any { return &s.Workload.Arrival.TracePath }, applies: process(ProcessTrace),
		},
		{
			Key: "workload.arrival.trace_digest", Type: TypeDigest, Doc: "SHA-256 of the trace file",
			field: func(s *Setting) any { return &s.Workload.Arrival.TraceDigest }, applies: process(ProcessTrace),
		},
		{
			Key: "workload.arrival.trace_scale", Type: TypeFloat, Default: "1", Doc: "the trace's times are divided by it",
			field: func(s *Setting) any { return &s.Workload.Arrival.TraceScale }, applies: process(ProcessTrace),
		},
	}
}

// hasRate reports whether the arrival process has one mean rate.
func hasRate(s *Setting) bool {
	switch s.Workload.Arrival.Process {
	case ProcessConstant, ProcessPoisson, ProcessGamma:
		return true
	default:
		return false
	}
}

func lengthAxes(prefix, of string, lengths func(*Setting) *Lengths) []Axis {
	only := func(d ...Distribution) func(*Setting) bool {
		return func(s *Setting) bool { return slices.Contains(d, lengths(s).Distribution) }
	}
	axis := func(key string, typ Type, doc string, field func(*Lengths) any, applies func(*Setting) bool) Axis {
		a := Axis{
			Key: prefix + "." + key, Type: typ, Doc: doc,
			field: func(s *Setting) any { return field(lengths(s)) }, applies: applies,
		}
		if typ == TypeInt || typ == TypeFloat {
			a.Unit = "tokens"
		}
		return a
	}
	axes := []Axis{
		axis("distribution", TypeWord, "how the token counts "+of+" are drawn", func(l *Lengths) any { return (*string)(&l.Distribution) }, nil),
		axis("value", TypeInt, "the count of constant", func(l *Lengths) any { return &l.Value }, only(DistConstant)),
		axis("min", TypeInt, "least count of uniform, normal and lognormal", func(l *Lengths) any { return &l.Min }, only(DistUniform, DistNormal, DistLognormal)),
		axis("max", TypeInt, "greatest count of uniform, normal and lognormal", func(l *Lengths) any { return &l.Max }, only(DistUniform, DistNormal, DistLognormal)),
		axis("mean", TypeFloat, "mean of normal, before clipping", func(l *Lengths) any { return &l.Mean }, only(DistNormal)),
		axis("stddev", TypeFloat, "standard deviation of normal, before clipping", func(l *Lengths) any { return &l.StdDev }, only(DistNormal)),
		axis("median", TypeFloat, "median of lognormal, before clipping", func(l *Lengths) any { return &l.Median }, only(DistLognormal)),
		axis("sigma", TypeFloat, "standard deviation of the logarithms of lognormal", func(l *Lengths) any { return &l.Sigma }, only(DistLognormal)),
		axis("bins", TypeBins, "ranges of histogram with their weights", func(l *Lengths) any { return &l.Bins }, only(DistHistogram)),
		axis("pairs", TypePairs, "joint counts of input and output with their weights", func(l *Lengths) any { return &l.Pairs }, only(DistPairs)),
	}
	axes[0].Words = words(DistConstant, DistUniform, DistNormal, DistLognormal, DistHistogram, DistPairs, DistFile)
	axes[2].Default = "1"
	axes[7].Unit = ""
	if prefix == "workload.output_tokens" {
		axes[9].Doc = "not used: the pairs are those of input_tokens"
		axes[9].applies = func(*Setting) bool { return false }
	}
	return axes
}

func promptAxes() []Axis {
	file := func(s *Setting) bool { return s.Workload.Prompts.Source == "file" }
	groups := func(s *Setting) bool { return s.Workload.Prompts.Groups > 0 }
	return []Axis{
		{
			Key: "workload.prompts.source", Type: TypeWord, Words: []string{"synthetic", "file"}, Default: "synthetic",
			Doc:   "where prompts come from",
			field: func(s *Setting) any { return &s.Workload.Prompts.Source },
		},
		{
			Key: "workload.prompts.file_path", Type: TypePath, Doc: "JSON Lines file of prompts",
			field: func(s *Setting) any { return &s.Workload.Prompts.FilePath }, applies: file,
		},
		{
			Key: "workload.prompts.file_digest", Type: TypeDigest, Doc: "SHA-256 of the prompt file",
			field: func(s *Setting) any { return &s.Workload.Prompts.FileDigest }, applies: file,
		},
		{
			Key: "workload.prompts.nonce", Type: TypeBool, Default: "true", Doc: "a unique prefix for each prompt, so that no hidden cache helps",
			field: func(s *Setting) any { return &s.Workload.Prompts.Nonce },
		},
		{
			Key: "workload.prompts.groups", Type: TypeInt, Default: "0", Doc: "groups of prompts that share a prefix; 0 is none",
			field: func(s *Setting) any { return &s.Workload.Prompts.Groups },
		},
		{
			Key: "workload.prompts.prefix_tokens", Type: TypeInt, Unit: "tokens", Doc: "length of a group's prefix",
			field: func(s *Setting) any { return &s.Workload.Prompts.PrefixLen }, applies: groups,
		},
		{
			Key: "workload.prompts.hit_ratio", Type: TypeFloat, Doc: "share of requests that use a group's prefix",
			field: func(s *Setting) any { return &s.Workload.Prompts.HitRatio }, applies: groups,
		},
		{
			Key: "workload.prompts.turns", Type: TypeInt, Default: "1", Doc: "turns of a conversation",
			field: func(s *Setting) any { return &s.Workload.Prompts.Turns },
		},
		{
			Key: "workload.prompts.think_time", Type: TypeDuration, Default: "0s", Doc: "from the end of a turn to the next one",
			field:   func(s *Setting) any { return &s.Workload.Prompts.ThinkTime },
			applies: func(s *Setting) bool { return s.Workload.Prompts.Turns > 1 },
		},
	}
}

func windowAxes() []Axis {
	return []Axis{
		{
			Key: "workload.ladder", Type: TypeRates, Doc: "rates that are offered one after the other, each for the duration",
			field: func(s *Setting) any { return &s.Workload.Ladder },
		},
		{
			Key: "workload.max_concurrency", Type: TypeInt, Unit: "requests", Default: "0", Doc: "safety limit on requests in flight; 0 is the harness' own",
			field: func(s *Setting) any { return &s.Workload.MaxConcurrency },
		},
		{
			Key: "workload.warmup", Type: TypeDuration, Default: "30s", Doc: "load before anything is measured, with prompts of its own",
			field: func(s *Setting) any { return &s.Workload.Warmup },
		},
		{
			Key: "workload.ramp", Type: TypeDuration, Default: "10s", Doc: "time from no load to the full rate",
			field: func(s *Setting) any { return &s.Workload.Ramp },
		},
		{
			Key: "workload.duration", Type: TypeDuration, Doc: "length of the measurement window",
			field: func(s *Setting) any { return &s.Workload.Duration },
		},
		{
			Key: "workload.drain", Type: TypeDuration, Default: "1m", Doc: "limit of the wait for requests still in flight",
			field: func(s *Setting) any { return &s.Workload.Drain },
		},
		{
			Key: "workload.seed", Type: TypeInt, Default: "0", Doc: "seed of everything that is drawn; each repeat derives its own",
			field: func(s *Setting) any { return &s.Workload.Seed },
		},
	}
}

func indexTable() map[string]int {
	m := make(map[string]int, len(table))
	for i := range table {
		m[table[i].Key] = i
	}
	return m
}

func mapAxes() []int {
	var out []int
	for i := range table {
		if table[i].Type == TypeMap {
			out = append(out, i)
		}
	}
	return out
}
