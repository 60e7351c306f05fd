// Package batch is the frozen form of a batch: what the daemon writes into the
// batch's spool folder once, before sbatch, and what every task and step reads
// and verifies. The package is pure.
package batch

import (
	"time"

	"sbench/internal/quality"
	"sbench/internal/setting"
)

// Version is the version of the file format.
const Version = 1

// Spec is one batch: one Slurm job array.
type Spec struct {
	Version       int    `json:"version"`
	Token         string `json:"token"` // unique; in the job's name and comment
	Site          string `json:"site"`
	Cluster       string `json:"cluster"`
	HardwareClass string `json:"hardware_class"` // real or emulated, from the site
	UID           int    `json:"uid"`            // who the batch runs as
	// AttemptsDir is the absolute folder under which attempts are sealed:
	// <AttemptsDir>/<run id>/<job id raw>-r<restart count>/.
	AttemptsDir string `json:"attempts_dir"`
	// CacheDir is the node-local cache for artefacts.
	CacheDir string                     `json:"cache_dir"`
	Node     Node                       `json:"node"`
	Settings map[string]setting.Setting `json:"settings"` // by setting_hash, normalized, with paths
	Tasks    []Task                     `json:"tasks"`    // index = array index
	// Flags are the engine's resolved flags as the first valid attempt had them, by
	// setting_hash and realized image digest; a setting without one is missing.
	Flags map[string]map[string]map[string]string `json:"flags,omitempty"`
}

// Node is what a step needs to know about the site's compute nodes. The zero
// value of every field is a usable default.
type Node struct {
	// Apptainer is the path of the container program; "" looks for apptainer,
	// then singularity, on PATH.
	Apptainer string `json:"apptainer"`
	// ContainerArgs are further options of its exec command, such as --no-privs.
	ContainerArgs []string `json:"container_args"`
	Binds         []Bind   `json:"binds"` // visible to every engine
	// Env is set for every engine; PassEnv names variables of the job that an
	// engine may see. A setting's own engine.env wins.
	Env     map[string]string `json:"env"`
	PassEnv []string          `json:"pass_env"`
	// GPUHelper is the absolute path of sbench-gpu; "" where the site has none.
	GPUHelper string `json:"gpu_helper"`
	// TempDir is node-local scratch; "" is $TMPDIR, else /tmp.
	TempDir string `json:"temp_dir"`
	// ClientCPUs is how many CPUs of the allocation the load generator keeps for
	// itself, away from the engine's; 0 shares them.
	ClientCPUs int       `json:"client_cpus"`
	Deadlines  Deadlines `json:"deadlines"`
	// HashOnce lets a node remember, until it is booted, the digest of a file that
	// has not changed since it was hashed; else every run reads every byte.
	HashOnce bool `json:"hash_once"`
	// CacheLimit is how many bytes of images, and of checkpoints from mirrors, the
	// node's cache may hold; 0 is no limit but the disk's.
	CacheLimit int64 `json:"cache_limit"`
	// VerifyKey is the path of a public key that every SIF must be signed with; ""
	// asks for no signature.
	VerifyKey string `json:"verify_key"`
	// MinSHM and MinMemlock are bytes of shared memory and of lockable memory that
	// the engine must find; 0 checks nothing.
	MinSHM     int64  `json:"min_shm"`
	MinMemlock int64  `json:"min_memlock"`
	Clocks     Clocks `json:"clocks"`
	// Mirrors are asked in turn for pinned images and checkpoints that the node
	// cannot open.
	Mirrors []Mirror `json:"mirrors,omitempty"`
}

// The ways to lock the clocks of GPUs.
const (
	ClocksNone   = "none"   // a pinned clock is checked and never set
	ClocksSlurm  = "slurm"  // srun --gpu-freq, which restores them
	ClocksHelper = "helper" // a command of the site, before and after
)

// Clocks says how pinned clocks come about.
type Clocks struct {
	Method string `json:"method"` // "" is none
	// Helper takes lock-clocks and reset-clocks with sbench-gpu's options.
	Helper []string `json:"helper"`
}

// Bind is a path of the node that the container sees.
type Bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"` // "" is Source
	ReadOnly bool   `json:"read_only"`
}

// Deadlines bound the phases of a run; 0 is the runner's default.
type Deadlines struct {
	Digest      time.Duration `json:"digest"`       // of all artefacts of a run
	GPU         time.Duration `json:"gpu"`          // of one question to sbench-gpu
	EngineStart time.Duration `json:"engine_start"` // from start to the first token
	Stop        time.Duration `json:"stop"`         // grace between SIGTERM and SIGKILL
	// Gang is how long the runners of several nodes wait for each other; how long
	// one may be silent is fixed.
	Gang time.Duration `json:"gang,omitempty"`
}

// Task is one array element: an allocation in which its runs are executed in turn.
type Task struct {
	Index int   `json:"index"`
	Runs  []Run `json:"runs"`
}

// Run is one execution of a setting.
type Run struct {
	ID          int64         `json:"id"`
	Sweep       int64         `json:"sweep"`
	SettingHash string        `json:"setting_hash"`
	SeriesHash  string        `json:"series_hash"`
	Repeat      int           `json:"repeat"` // k, from 0; the seed of the repeat derives from it
	TimeLimit   time.Duration `json:"time_limit"`
	// SLO bounds for goodput: metric name as in the sweep file (ttft_p99) to a
	// duration. Not part of the identity.
	SLO map[string]time.Duration `json:"slo,omitempty"`
	// MaxErrorRate is the share of failed requests above which the attempt is
	// labelled `errors`.
	MaxErrorRate float64 `json:"max_error_rate"`
	// Quality is what the engine is asked after the measurement, with the absolute
	// path of its items; nil for nothing. TimeLimit has its time.
	Quality *quality.Definition `json:"quality,omitempty"`
}
