// Package site holds what is true of one Slurm cluster: partitions, the mapping
// of hardware ids to GRES and constraints, paths, limits and rates, read
// strictly from site-configs/*.yaml. The package is pure.
package site

import (
	"path"
	"strings"
	"time"

	"sbench/internal/batch"
)

// Site is one Slurm cluster. Load fills in every default.
type Site struct {
	Name    string `json:"name"`
	Cluster string `json:"cluster"` // Slurm's ClusterName
	// HardwareClass is real or emulated (fake GPUs, simulated engines).
	HardwareClass string `json:"hardware_class"`
	Description   string `json:"description"`

	Slurm    Slurm    `json:"slurm"`
	SubmitAs SubmitAs `json:"submit_as"`
	Roles    Roles    `json:"roles"`
	Defaults Defaults `json:"defaults"`
	// Partitions by name. A job may only go to a partition that is listed.
	Partitions map[string]Partition `json:"partitions"`
	// Priorities says what urgent, normal and bulk mean; all three are present.
	Priorities map[string]Priority `json:"priorities"`
	// FairShare says how the accounts share what each priority gets.
	FairShare FairShare `json:"fair_share"`
	// Hardware by the ids that hardware.gpu of a sweep file may name.
	Hardware map[string]Hardware `json:"hardware"`
	Paths    Paths               `json:"paths"`
	Limits   Limits              `json:"limits"`
	Jobs     Jobs                `json:"jobs"`
	Engine   Engine              `json:"engine"`
	// Secrets maps an environment variable of engines to a file that holds its
	// value: absolute, mode 0600, never copied into a spool, log or database.
	Secrets map[string]string `json:"secrets"`
	// Mirrors are asked in turn for pinned images and checkpoints that a node cannot
	// open on the shared file system.
	Mirrors      []Mirror      `json:"mirrors"`
	PollInterval time.Duration `json:"poll_interval"` // between two looks at squeue and sacct
	Retention    Retention     `json:"retention"`
}

// Retention says how long the files of attempts stay. What is valid stays for ever.
type Retention struct {
	// Failed is for attempts that count for nothing: refused, failed or invalid. 0
	// keeps them.
	Failed time.Duration `json:"failed"`
	// Unsealed is for what runners left behind that ended without sealing. 0 keeps it.
	Unsealed time.Duration `json:"unsealed"`
	// Compact is how long after a day its attempts go into the dataset. 0 makes none.
	Compact time.Duration `json:"compact"`
}

// Slurm says how Slurm's programs are called.
type Slurm struct {
	Conf    string        `json:"conf"`    // SLURM_CONF; "" is Slurm's own default
	Bin     string        `json:"bin"`     // folder of sbatch, squeue, …; "" is PATH
	Timeout time.Duration `json:"timeout"` // of one command
}

// SubmitAs says whom jobs belong to.
type SubmitAs string

// The ways to submit.
const (
	// SubmitAsUser: the daemon runs as the user or group whose jobs these are.
	SubmitAsUser SubmitAs = "user"
	// SubmitAsService: one service account submits for everybody; only trusted
	// code runs.
	SubmitAsService SubmitAs = "service"
)

// Roles says who is more than a user here, beside those whom the daemon's own
// configuration names for all its sites.
type Roles struct {
	Operators []string `json:"operators"` // may act on everybody's sweeps here, and pause the site
	Admins    []string `json:"admins"`    // operators who may also set this site's rates and quotas
	// FromSlurm believes Slurm: users of its admin level Operator or Administrator
	// are operators here, and the coordinators of an account may act on its sweeps.
	FromSlurm bool `json:"from_slurm"`
	// Associations refuses whoever has no association with the account in Slurm's
	// database; on unless switched off.
	Associations bool `json:"associations"`
}

// Defaults are used where neither command line nor hardware say anything; ""
// leaves the choice to Slurm.
type Defaults struct {
	Partition string `json:"partition"`
	Account   string `json:"account"`
	QOS       string `json:"qos"`
}

// Partition is a partition of the cluster.
type Partition struct {
	MaxTime time.Duration `json:"max_time"` // longest job; 0 is no limit
}

// Priority is how urgent, normal or bulk work is submitted.
type Priority struct {
	QOS    string `json:"qos"`    // "" is Defaults.QOS
	Nice   int    `json:"nice"`   // sbatch --nice; 0 is none
	Weight int    `json:"weight"` // share of the feed against the other priorities
}

// FairShare weighs accounts against one another: of two with weights 2 and 1 that
// both have work waiting, the first is given twice the GPU-hours.
type FairShare struct {
	// Source is what accounts weigh by themselves: equal, all the same, or slurm,
	// their shares in Slurm's own fair-share tree.
	Source string `json:"source"`
	// Weights multiply what single accounts weigh; one that is not named has 1.
	Weights map[string]int `json:"weights"`
}

// The values of FairShare.Source.
const (
	SharesEqual = "equal"
	SharesSlurm = "slurm"
)

// Hardware is a kind of node, or of GPUs in a node.
type Hardware struct {
	// GRES is the generic resource without its count: "gpu:h100"; "" on CPU nodes.
	GRES        string `json:"gres"`
	GPUsPerNode int    `json:"gpus_per_node"` // 0 on CPU nodes
	Nodes       int    `json:"nodes"`         // how many there are; 0 is unknown
	CPUsPerNode int    `json:"cpus_per_node"` // 0 is unknown
	// CPUsPerGPU is what a job with placement gpu asks for; on CPU nodes, what a
	// run asks for. 0 leaves it to Slurm.
	CPUsPerGPU int `json:"cpus_per_gpu"`
	// MemoryPerGPU in bytes, rounded up to MiB when asked for; 0 leaves it to Slurm.
	MemoryPerGPU int64  `json:"memory_per_gpu"`
	Constraint   string `json:"constraint"` // Slurm feature expression; "" for none
	Partition    string `json:"partition"`  // "" is Defaults.Partition
	NVMLName     string `json:"nvml_name"`  // what NVML calls the GPU; "" accepts any
	Link         string `json:"link"`       // nvlink, pcie, none; "" is unknown
	// MaxQueue bounds the tasks that sbench keeps in the queue for this hardware;
	// 0 is Limits.MaxQueue.
	MaxQueue int `json:"max_queue"`
}

// Paths are absolute. Spool, Results, Models and Images lie on the shared file
// system; Cache and Temp on the node.
type Paths struct {
	Spool   string `json:"spool"`
	Results string `json:"results"`
	Models  string `json:"models"` // what relative checkpoint, trace and prompt paths are relative to
	Images  string `json:"images"` // what relative image paths are relative to
	Cache   string `json:"cache"`
	Temp    string `json:"temp"` // "" is $TMPDIR of the job, else /tmp
	// Apptainer is the container program; "" looks for apptainer, then
	// singularity, on the node's PATH.
	Apptainer string `json:"apptainer"`
	// Runner and GPUHelper are the binaries that are copied into the spool; ""
	// takes the ones that the daemon was told of.
	Runner    string `json:"runner"`
	GPUHelper string `json:"gpu_helper"`
}

// Limits keep sbench a good citizen of the cluster.
type Limits struct {
	// MaxArraySize is Slurm's own: it caps the array index at one less.
	MaxArraySize int `json:"max_array_size"`
	MaxSubmit    int `json:"max_submit"`  // tasks of one submission
	MaxQueue     int `json:"max_queue"`   // tasks in the queue, pending and running
	MaxRunning   int `json:"max_running"` // %N of each array; 0 is no limit
	// ColdStarts is how many tasks may start a checkpoint that no engine has served
	// here yet, until one has; 0 is no limit.
	ColdStarts int `json:"cold_starts"`
	// TaskMinutes is how long a task should at most take: runs are packed into
	// tasks up to it.
	TaskMinutes int `json:"task_minutes"`
}

// Jobs says what every job asks for beside its hardware.
type Jobs struct {
	// Exclusive says what placement node becomes: "exclusive" is --exclusive,
	// "gres" asks for all GPUs of the node where the site forbids --exclusive.
	Exclusive string `json:"exclusive"`
	// Memory is the value of --mem of placement node: "0" is all of it; "" asks
	// for nothing.
	Memory  string            `json:"memory"`
	Requeue bool              `json:"requeue"` // --requeue: preempted and lost tasks come back
	Signal  time.Duration     `json:"signal"`  // SIGTERM this long before the time limit
	Options map[string]string `json:"options"` // further sbatch options without dashes; "" is a bare one
}

// Engine is what every engine of the site gets.
type Engine struct {
	Env           map[string]string `json:"env"`
	PassEnv       []string          `json:"pass_env"` // variables of the job that engines may see
	Binds         []Bind            `json:"binds"`
	ContainerArgs []string          `json:"container_args"` // further options of the container's exec command
	ClientCPUs    int               `json:"client_cpus"`    // kept for the load generator; 0 shares
	StartTimeout  time.Duration     `json:"start_timeout"`  // to the first token; 0 is the runner's own
	StopTimeout   time.Duration     `json:"stop_timeout"`   // SIGTERM to SIGKILL; 0 is the runner's own
	DigestTimeout time.Duration     `json:"digest_timeout"` // all artefacts of a run; 0 is the runner's own
	// Hash says how often a node reads artefacts: always, for every run, or
	// once-per-node: a file that was hashed since the node was booted, and has not
	// changed since, is not read again.
	Hash string `json:"hash"`
	// CacheLimit is how many bytes of images, and of checkpoints from mirrors, a
	// node's cache may hold; 0 is no limit but the disk's.
	CacheLimit int64 `json:"cache_limit"`
	// VerifyKey is a public key that every SIF must be signed with; "" asks for no
	// signature.
	VerifyKey string `json:"verify_key"`
	// MinSHM and MinMemlock are the least size of the shared memory and of the
	// memory lock limit that a node must give an engine; 0 checks nothing.
	MinSHM     int64  `json:"min_shm"`
	MinMemlock int64  `json:"min_memlock"`
	Clocks     Clocks `json:"clocks"`
}

// Clocks says how a node locks the clocks of its GPUs where a setting pins them.
type Clocks struct {
	// Method is none (a pin is only checked), slurm (srun --gpu-freq) or helper.
	Method string `json:"method"`
	// Helper is a command that takes lock-clocks and reset-clocks with the options
	// of sbench-gpu, with the rights that these need: [sudo, -n, /usr/sbin/sbench-gpu].
	Helper []string `json:"helper"`
}

// The values of Engine.Hash.
const (
	HashAlways = "always"
	HashOnce   = "once-per-node"
)

// Bind is a path of the node that containers see.
type Bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"` // "" is Source
	ReadOnly bool   `json:"read_only"`
}

// Mirror is a server with copies of artefacts, read over SFTP.
type Mirror struct {
	// URL is sftp://user@host[:port]/base. The artefact of path P lies at base
	// followed by P.
	URL string `json:"url"`
	// Key is a private key of mode 0600 on the nodes, readable by whom jobs run as.
	Key        string `json:"key"`
	KnownHosts string `json:"known_hosts"` // the host keys that are believed, on the nodes
}

// ModelPath resolves a path of a sweep file (checkpoint, trace, prompts): an
// absolute one stays as it is, a relative one lies in Paths.Models; "" stays.
func (s *Site) ModelPath(p string) string { return resolve(s.Paths.Models, p) }

// ImagePath resolves the path of an image or executable against Paths.Images.
func (s *Site) ImagePath(p string) string { return resolve(s.Paths.Images, p) }

func resolve(folder, p string) string {
	if p == "" || strings.HasPrefix(p, "/") {
		return p
	}
	return path.Join(folder, p)
}

// BatchDir is the frozen folder of a batch: <spool>/batches/<token>.
func (s *Site) BatchDir(token string) string { return path.Join(s.Paths.Spool, "batches", token) }

// BinDir is the folder of a content-addressed binary: <spool>/bin/<sha256>.
func (s *Site) BinDir(sha256 string) string { return path.Join(s.Paths.Spool, "bin", sha256) }

// AttemptsDir is where attempts are sealed: <results>/attempts.
func (s *Site) AttemptsDir() string { return path.Join(s.Paths.Results, "attempts") }

// DatasetDir is where compacted results lie: <results>/dataset. It and the
// attempts never lie under one glob.
func (s *Site) DatasetDir() string { return path.Join(s.Paths.Results, "dataset") }

// PartitionFor is the partition of a kind of hardware; "" leaves it to Slurm.
func (s *Site) PartitionFor(hardware string) string {
	if h, ok := s.Hardware[hardware]; ok && h.Partition != "" {
		return h.Partition
	}
	return s.Defaults.Partition
}

// QOSFor is the quality of service of a priority; "" leaves it to Slurm.
func (s *Site) QOSFor(priority string) string {
	if p, ok := s.Priorities[priority]; ok && p.QOS != "" {
		return p.QOS
	}
	return s.Defaults.QOS
}

// QueueLimit is how many tasks of a kind of hardware may be in the queue.
func (s *Site) QueueLimit(hardware string) int {
	if h, ok := s.Hardware[hardware]; ok && h.MaxQueue > 0 {
		return h.MaxQueue
	}
	return s.Limits.MaxQueue
}

// HardwareByGRES finds the hardware id that a GRES of sbatch means: its type,
// "gpu:h100". Of several with the same GRES the first in alphabetical order.
func (s *Site) HardwareByGRES(gres string) (id string, ok bool) {
	for candidate, h := range s.Hardware {
		if h.GRES != "" && h.GRES == gres && (!ok || candidate < id) {
			id, ok = candidate, true
		}
	}
	return id, ok
}

// Node is what a batch tells its steps about the site. gpuHelper is the path of
// sbench-gpu in the spool, "" for none.
func (s *Site) Node(gpuHelper string) batch.Node {
	n := batch.Node{
		Apptainer: s.Paths.Apptainer, ContainerArgs: s.Engine.ContainerArgs, Env: s.Engine.Env, PassEnv: s.Engine.PassEnv,
		GPUHelper: gpuHelper, TempDir: s.Paths.Temp, ClientCPUs: s.Engine.ClientCPUs,
		Deadlines: batch.Deadlines{Digest: s.Engine.DigestTimeout, EngineStart: s.Engine.StartTimeout, Stop: s.Engine.StopTimeout},
	}
	n.HashOnce, n.CacheLimit, n.VerifyKey = s.Engine.Hash == HashOnce, s.Engine.CacheLimit, s.Engine.VerifyKey
	n.MinSHM, n.MinMemlock = s.Engine.MinSHM, s.Engine.MinMemlock
	n.Clocks = batch.Clocks{Method: s.Engine.Clocks.Method, Helper: s.Engine.Clocks.Helper}
	for _, b := range s.Engine.Binds {
		n.Binds = append(n.Binds, batch.Bind{Source: b.Source, Target: b.Target, ReadOnly: b.ReadOnly})
	}
	for _, m := range s.Mirrors {
		n.Mirrors = append(n.Mirrors, batch.Mirror{URL: m.URL, Key: m.Key, KnownHosts: m.KnownHosts})
	}
	return n
}
