// Package fingerprint says what an attempt ran on and compares it with what the
// setting pins, difference by difference. It promises that a pinned item which
// could not be read never passes: unknown refuses like wrong does. The package
// is pure.
package fingerprint

import "time"

// Version is the version of the fingerprint's format.
const Version = 1

// Fingerprint is the realized environment of an attempt. A nil pointer or an
// empty string means: could not be read, or does not exist.
type Fingerprint struct {
	Version    int         `json:"version"`
	Runner     string      `json:"runner"` // version of sbench-runner
	Image      Artefact    `json:"image"`
	Checkpoint Artefact    `json:"checkpoint"`
	Container  Container   `json:"container"`
	Engine     Engine      `json:"engine"`
	Nodes      []Node      `json:"nodes"` // rank 0 first
	Allocation *Allocation `json:"allocation"`
}

// Artefact is a file or folder by content.
type Artefact struct {
	Kind   string `json:"kind"` // sif, host, file, directory; "" for none
	Path   string `json:"path"`
	Digest string `json:"digest"` // "sha256:<hex>"
	Size   int64  `json:"size_bytes"`
	Files  int    `json:"files"`
	// Hashed is how many of the bytes were read by this run; the digests of the
	// others are this node's of an earlier run, the oldest of HashedSince.
	Hashed      int64      `json:"hashed_bytes"`
	HashedSince *time.Time `json:"hashed_since,omitempty"`
	// Libraries are the shared libraries of a host program.
	Libraries []Library `json:"libraries,omitempty"`
}

// Library is a shared library that a host program is linked with.
type Library struct {
	Name   string `json:"name"`
	Path   string `json:"path"`   // "" where it was not found
	Digest string `json:"digest"` // "sha256:<hex>"
}

// Container is the program that runs an image.
type Container struct {
	Program string `json:"program"` // "" for image.kind host
	Version string `json:"version"` // what it says of itself
	// Variant is how it comes by its rights on this node: setuid, user namespaces,
	// root; "" where it does not say.
	Variant string `json:"variant"`
	// Signature says with which key the image's signature was verified; "" where
	// the site asks for none.
	Signature string `json:"signature,omitempty"`
}

// Engine is what the engine says of itself, asked from inside its container.
type Engine struct {
	Kind    string            `json:"kind"`
	Version string            `json:"version"`
	CUDA    string            `json:"cuda"` // CUDA runtime
	NCCL    string            `json:"nccl"`
	Torch   string            `json:"torch"`
	Argv    []string          `json:"argv"`  // as started, after the container program
	Flags   map[string]string `json:"flags"` // resolved, where the engine reports them
	Life    Life              `json:"life"`
}

// Life is what the server had behind it when the measurement began.
type Life struct {
	Kind string `json:"kind"` // run, shared
	// Position counts the runs of this server's life from 0; Started is when it was
	// started, RFC 3339.
	Position int    `json:"position"`
	Started  string `json:"started"`
	// Cache is the state of the prefix cache at the start: "reset" by the route,
	// "fresh" where the server has served nothing but the readiness prompt.
	Cache      string `json:"cache"`
	CacheRoute string `json:"cache_route"`
	// CacheWhy is why it was not emptied; "" where it was.
	CacheWhy string `json:"cache_why"`
}

// Node is what can be read on one node.
type Node struct {
	Rank            int               `json:"rank"`
	Name            string            `json:"name"` // as Slurm names it; "" outside of a job
	Hostname        string            `json:"hostname"`
	Kernel          string            `json:"kernel"` // uname -r
	OS              string            `json:"os"`
	Arch            string            `json:"arch"` // GOARCH
	BootID          string            `json:"boot_id"`
	CPUModel        string            `json:"cpu_model"`
	CPUs            int               `json:"cpus"`         // online
	CPUsAllowed     []int             `json:"cpus_allowed"` // of this step
	Governor        string            `json:"governor"`     // "mixed: a, b" where CPUs differ
	Turbo           string            `json:"turbo"`        // enabled, disabled
	SMT             string            `json:"smt"`          // on, off, …
	NUMA            []NUMANode        `json:"numa"`
	MemoryBytes     int64             `json:"memory_bytes"`
	HugepagesTotal  *int64            `json:"hugepages_total"`
	HugepageBytes   *int64            `json:"hugepage_bytes"`
	THP             string            `json:"transparent_hugepages"`
	ShmBytes        *int64            `json:"shm_bytes"`            // size of /dev/shm
	MemlockBytes    *int64            `json:"memlock_limit_bytes"`  // nil also for unlimited
	NofileHard      *int64            `json:"nofile_hard_limit"`    //
	MemoryMax       *int64            `json:"cgroup_memory_bytes"`  // limit of the step; nil for none
	LoadAverage     *float64          `json:"load_average_1m"`      // before the engine started
	Env             map[string]string `json:"env"`                  // relevant variables
	GPUSource       string            `json:"gpu_source"`           // nvml, slurm (emulated), none
	GPUError        string            `json:"gpu_error"`            // why there is no snapshot
	GPUs            *GPUs             `json:"gpus"`                 // from NVML
	GPUsAllocated   *int              `json:"gpus_allocated"`       // that Slurm gave this step on this node
	GPUsAllocatedID []string          `json:"gpus_allocated_index"` // as Slurm numbers them
	Placed          Placed            `json:"placed"`
	// Software is what this node has of it; nil on rank 0, which the fingerprint's
	// own fields are of.
	Software *Software `json:"software,omitempty"`
}

// Placed is what Slurm gave on one node, as the node itself can see.
type Placed struct {
	TopologyAddress string `json:"topology_address"` // switches above it and the node, with dots
	TopologyPattern string `json:"topology_pattern"` // what each part is: switch.switch.node
	CPUsGiven       *int   `json:"cpus_given"`       // to this step, in Slurm's count
	// OtherJobs are the raw ids of jobs beside ours on the node; nil where it
	// cannot be seen.
	OtherJobs []int64 `json:"other_jobs"`
}

// Software is what an engine is made of on a node of the gang.
type Software struct {
	Image      Artefact  `json:"image"`
	Checkpoint Artefact  `json:"checkpoint"`
	Container  Container `json:"container"`
	Engine     Engine    `json:"engine"`
}

// Where is what people know the node by.
func (n Node) Where() string {
	if n.Name != "" {
		return n.Name
	}
	return n.Hostname
}

// SoftwareOf is the software of a node.
func (f Fingerprint) SoftwareOf(n Node) Software {
	if n.Software != nil {
		return *n.Software
	}
	return Software{Image: f.Image, Checkpoint: f.Checkpoint, Container: f.Container, Engine: f.Engine}
}

// NUMANode is a memory node.
type NUMANode struct {
	ID          int    `json:"id"`
	CPUs        string `json:"cpus"` // as the kernel lists them: 0-3,8
	MemoryBytes int64  `json:"memory_bytes"`
}

// Allocation is what Slurm gave.
type Allocation struct {
	Cluster         string `json:"cluster"`
	JobID           string `json:"job_id"` // raw
	ArrayJobID      string `json:"array_job_id"`
	ArrayTaskID     string `json:"array_task_id"`
	StepID          string `json:"step_id"`
	RestartCount    int    `json:"restart_count"`
	Partition       string `json:"partition"`
	Account         string `json:"account"`
	QOS             string `json:"qos"`
	NodeList        string `json:"node_list"`
	NodeName        string `json:"node_name"` // of this step's first node
	Nodes           *int   `json:"nodes"`
	CPUsOnNode      string `json:"cpus_on_node"`
	TRES            string `json:"tres"` // what was asked for per job, step, node or task
	GPUs            string `json:"gpus"` // indices on this node
	Constraints     string `json:"constraints"`
	TopologyAddress string `json:"topology_address"` // switch.switch.node
	TopologyPattern string `json:"topology_pattern"`
	CPUBind         string `json:"cpu_bind"`
	MemPerNode      string `json:"mem_per_node"`
}
