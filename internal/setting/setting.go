// Package setting holds the pinned experiment: the Setting, the table of its
// axes, its canonical spec (RFC 8785) and the two hashes that identify it,
// setting_hash and series_hash.
//
// A Setting that Normalize has accepted has every default explicit and every
// pin that the user left out written as Unpinned. The package is pure.
package setting

import "time"

// Unpinned is what a pin holds that the user left out: the realized value is
// recorded, not enforced.
const Unpinned = "unpinned"

// SpecVersion is the version of the canonical spec; it is part of the hash.
const SpecVersion = 1

// Setting is one experiment. Fields marked "label" are not part of the identity.
type Setting struct {
	Model       Model       `json:"model"`
	Image       Image       `json:"image"`
	Engine      Engine      `json:"engine"`
	Hardware    Hardware    `json:"hardware"`
	Environment Environment `json:"environment"`
	Parallel    Parallel    `json:"parallel"`
	Workload    Workload    `json:"workload"`
}

// Model is what is served.
type Model struct {
	Name       string     `json:"name"`
	Checkpoint Checkpoint `json:"checkpoint"`
	Precision  string     `json:"precision"` // bf16, fp16, fp8, int8, int4, f32, auto
}

// Checkpoint is the weights on disk. Path is a label; Digest is the identity:
// "sha256:<hex>" of the file, or of the manifest of per-file digests where Path
// is a directory; Unpinned where the user gave none; "" where the engine needs
// no checkpoint (no path either).
type Checkpoint struct {
	Path   string `json:"path"`
	Digest string `json:"digest"`
}

// ImageKind says how the engine's software is packed.
type ImageKind string

// The kinds of image.
const (
	ImageSIF  ImageKind = "sif"  // an Apptainer image file, pinned by its SHA-256
	ImageHost ImageKind = "host" // a program on the node, pinned by the SHA-256 of its executable
)

// Image is the engine's software. Path is a label.
type Image struct {
	Kind   ImageKind `json:"kind"`
	Path   string    `json:"path"`
	Digest string    `json:"digest"` // "sha256:<hex>" or Unpinned
}

// EngineKind names the adapter that starts and questions the engine.
type EngineKind string

// The engine kinds.
const (
	EngineVLLM     EngineKind = "vllm"
	EngineSGLang   EngineKind = "sglang"
	EngineTRTLLM   EngineKind = "trtllm"
	EngineLlamaCpp EngineKind = "llamacpp"
	EngineCommand  EngineKind = "command"
)

// ServerLife says whether every run starts its own server.
type ServerLife string

// The server lives.
const (
	ServerLifeRun    ServerLife = "run"
	ServerLifeShared ServerLife = "shared"
)

// Engine is the inference server under test.
type Engine struct {
	Kind    EngineKind `json:"kind"`
	Version string     `json:"version"` // exact version, or Unpinned
	// Args are the engine's long options without the leading dashes, as the
	// strings that will be rendered: {"max-num-seqs": "256"}. A true boolean is
	// "true", which adapters render as a bare flag.
	Args map[string]string `json:"args"`
	// Command is the argv of kind "command" after the image's executable, with
	// {port}, {host}, {model} placeholders. Empty for other kinds.
	Command    []string          `json:"command"`
	Env        map[string]string `json:"env"`
	ServerLife ServerLife        `json:"server_life"`
}

// Placement is the isolation a setting asks for (DESIGN §7).
type Placement string

// The placements.
const (
	PlacementNode     Placement = "node"     // nobody else on the node
	PlacementGPU      Placement = "gpu"      // own GPUs, CPUs and memory
	PlacementCopacked Placement = "copacked" // beside other runs of ours, on purpose
)

// Hardware is what the run is placed on. GPUs is per node.
type Hardware struct {
	// Class is a label: "real", "emulated", or "" where the site decides. Where
	// it is given, admission refuses a site that says otherwise.
	Class      string    `json:"class"`
	GPU        string    `json:"gpu"` // catalogue id: h100-sxm, l4, cpu-x86
	GPUs       int       `json:"gpus"`
	Nodes      int       `json:"nodes"`
	Link       string    `json:"link"` // nvlink, pcie, none, Unpinned
	Placement  Placement `json:"placement"`
	Constraint string    `json:"constraint"` // Slurm feature expression; "" for none
	Switches   int       `json:"switches"`   // at most so many leaf switches; 0 for no limit
}

// Environment is what the node and the container must hold. Each is an exact
// value or Unpinned. Clocks are in MHz and power in watts where given.
type Environment struct {
	Driver     string `json:"driver"`
	CUDA       string `json:"cuda"`
	NCCL       string `json:"nccl"`
	MIG        string `json:"mig"` // enabled, disabled
	ECC        string `json:"ecc"` // enabled, disabled
	SMClock    string `json:"sm_clock"`
	MemClock   string `json:"mem_clock"`
	PowerLimit string `json:"power_limit"`
	Kernel     string `json:"kernel"`
	Governor   string `json:"governor"`
}

// Parallel is how the model is cut; tensor*pipeline*data == gpus*nodes.
type Parallel struct {
	Tensor   int `json:"tensor"`
	Pipeline int `json:"pipeline"`
	Data     int `json:"data"`
	Expert   int `json:"expert"`
}

// Workload is the load that is offered.
type Workload struct {
	Kind    string  `json:"kind"` // serving
	Request Request `json:"request"`
	Arrival Arrival `json:"arrival"`
	Input   Lengths `json:"input_tokens"`
	Output  Lengths `json:"output_tokens"`
	Prompts Prompts `json:"prompts"`
	// Ladder is a list of rates in requests/s that are offered one after the
	// other in one server life, each for Duration; empty for a single load point.
	Ladder []float64 `json:"ladder"`
	// MaxConcurrency is the safety limit on requests in flight; reaching it
	// marks the attempt. 0 means the harness default.
	MaxConcurrency int           `json:"max_concurrency"`
	Warmup         time.Duration `json:"warmup"`
	Ramp           time.Duration `json:"ramp"`
	Duration       time.Duration `json:"duration"`
	Drain          time.Duration `json:"drain"`
	Seed           int64         `json:"seed"`
}

// Endpoint is the API the requests use.
type Endpoint string

// The endpoints.
const (
	EndpointCompletions Endpoint = "completions"
	EndpointChat        Endpoint = "chat"
)

// Request is what every request has in common.
type Request struct {
	Endpoint    Endpoint `json:"endpoint"`
	Stream      bool     `json:"stream"`
	IgnoreEOS   bool     `json:"ignore_eos"`
	Temperature float64  `json:"temperature"`
	TopP        float64  `json:"top_p"`
	// TimeoutFirstToken and TimeoutTotal end a request as timeout_first_token
	// or timeout_total.
	TimeoutFirstToken time.Duration `json:"timeout_first_token"`
	TimeoutTotal      time.Duration `json:"timeout_total"`
}

// Process is an arrival process.
type Process string

// The arrival processes. ProcessClosed is a fixed concurrency: closed loop, and
// never compared with an open one.
const (
	ProcessConstant Process = "constant"
	ProcessPoisson  Process = "poisson"
	ProcessGamma    Process = "gamma"
	ProcessStages   Process = "stages"
	ProcessTrace    Process = "trace"
	ProcessClosed   Process = "closed"
)

// Arrival says when requests are due. Only the fields of the chosen process are
// set and part of the canonical spec.
type Arrival struct {
	Process     Process `json:"process"`
	Rate        float64 `json:"rate"`        // requests/s: constant, poisson, gamma
	Burstiness  float64 `json:"burstiness"`  // gamma: the shape; 1 is Poisson, below 1 burstier
	Concurrency int     `json:"concurrency"` // closed
	Stages      []Stage `json:"stages"`      // stages: Poisson with a piecewise linear rate
	TracePath   string  `json:"trace_path"`  // trace: label
	TraceDigest string  `json:"trace_digest"`
	TraceScale  float64 `json:"trace_scale"` // trace: times are divided by it
}

// Stage is a stretch of the stages process: the rate moves linearly from the
// previous one's to Rate (requests/s) during Duration.
type Stage struct {
	Rate     float64       `json:"rate"`
	Duration time.Duration `json:"duration"`
}

// Distribution is how token counts are drawn.
type Distribution string

// The distributions.
const (
	DistConstant  Distribution = "constant"
	DistUniform   Distribution = "uniform"
	DistNormal    Distribution = "normal"    // clipped to [Min, Max]
	DistLognormal Distribution = "lognormal" // clipped to [Min, Max]
	DistHistogram Distribution = "histogram"
	DistPairs     Distribution = "pairs" // joint (input, output): written in input_tokens, output_tokens says pairs too
	DistFile      Distribution = "file"  // lengths of the prompt file
)

// Lengths is a distribution of token counts. Only the fields of the chosen
// distribution are set and part of the canonical spec.
type Lengths struct {
	Distribution Distribution `json:"distribution"`
	Value        int          `json:"value"`  // constant
	Min          int          `json:"min"`    // uniform, normal, lognormal
	Max          int          `json:"max"`    // uniform, normal, lognormal
	Mean         float64      `json:"mean"`   // normal
	StdDev       float64      `json:"stddev"` // normal
	Median       float64      `json:"median"` // lognormal
	Sigma        float64      `json:"sigma"`  // lognormal
	Bins         []Bin        `json:"bins"`   // histogram
	Pairs        []Pair       `json:"pairs"`  // pairs
}

// Bin is a range of token counts [Min, Max] with a relative Weight.
type Bin struct {
	Min    int     `json:"min"`
	Max    int     `json:"max"`
	Weight float64 `json:"weight"`
}

// Pair is a joint (input, output) token count with a relative Weight.
type Pair struct {
	Input  int     `json:"input"`
	Output int     `json:"output"`
	Weight float64 `json:"weight"`
}

// Prompts says what the prompts are made of.
type Prompts struct {
	Source     string  `json:"source"`      // synthetic, file
	FilePath   string  `json:"file_path"`   // file: JSONL; label
	FileDigest string  `json:"file_digest"` // file
	Nonce      bool    `json:"nonce"`       // a unique prefix for each prompt, so that no hidden cache helps
	Groups     int     `json:"groups"`      // shared-prefix groups; 0 for none
	PrefixLen  int     `json:"prefix_tokens"`
	HitRatio   float64 `json:"hit_ratio"` // share of requests that use a group's prefix
	// Turns and ThinkTime make sessions: Turns > 1 sends each conversation's
	// next turn ThinkTime after the last one ended.
	Turns     int           `json:"turns"`
	ThinkTime time.Duration `json:"think_time"`
}
