// Package preflight reads what a node and its allocation are. It promises that
// what cannot be read stays empty, so that a pin of it refuses; it never guesses
// and never waits for a device.
package preflight

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sbench/internal/fingerprint"
)

// Host is where a node is read from.
type Host struct {
	// Root is "/" on a node; tests give a folder that looks like one.
	Root string
	// Getenv is os.Getenv on a node.
	Getenv func(string) string
}

// Node reads everything but the devices.
func (h Host) Node() fingerprint.Node {
	n := fingerprint.Node{
		Arch:           runtime.GOARCH,
		Kernel:         h.line("proc/sys/kernel/osrelease"),
		Hostname:       h.line("proc/sys/kernel/hostname"),
		BootID:         h.line("proc/sys/kernel/random/boot_id"),
		OS:             h.osRelease(),
		CPUModel:       h.cpuModel(),
		CPUs:           len(ParseList(h.line("sys/devices/system/cpu/online"))),
		CPUsAllowed:    allowed(),
		Turbo:          h.turbo(),
		SMT:            h.line("sys/devices/system/cpu/smt/control"),
		NUMA:           h.numa(),
		THP:            bracketed(h.line("sys/kernel/mm/transparent_hugepage/enabled")),
		ShmBytes:       h.fileSystemSize("dev/shm"),
		MemlockBytes:   limit(unix.RLIMIT_MEMLOCK),
		NofileHard:     limit(unix.RLIMIT_NOFILE),
		MemoryMax:      h.memoryMax(),
		LoadAverage:    h.loadAverage(),
		HugepagesTotal: h.meminfo("HugePages_Total", 1),
		HugepageBytes:  h.meminfo("Hugepagesize", 1<<10),
	}
	n.Governor = h.governor(n.CPUsAllowed)
	if total := h.meminfo("MemTotal", 1<<10); total != nil {
		n.MemoryBytes = *total
	}
	n.GPUSource = "none"
	n.GPUsAllocated, n.GPUsAllocatedID = h.gpus()
	n.Name, n.Placed = h.Getenv("SLURMD_NODENAME"), h.placed()
	return n
}

func (h Host) path(name string) string { return filepath.Join(h.Root, name) }

// line returns the first line of a file, "" if it cannot be read.
func (h Host) line(name string) string {
	b, err := os.ReadFile(h.path(name))
	if err != nil {
		return ""
	}
	first, _, _ := bytes.Cut(b, []byte("\n"))
	return strings.TrimSpace(string(first))
}

// field returns the value of the first "name: value" or name=value line.
func (h Host) field(file, name, separator string) string {
	f, err := os.Open(h.path(file))
	if err != nil {
		return ""
	}
	defer f.Close()
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		key, value, ok := strings.Cut(scanner.Text(), separator)
		if ok && strings.TrimSpace(key) == name {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}

func (h Host) osRelease() string { return h.field("etc/os-release", "PRETTY_NAME", "=") }

func (h Host) cpuModel() string {
	if model := h.field("proc/cpuinfo", "model name", ":"); model != "" {
		return model
	}
	// Arm kernels give numbers only.
	implementer, part := h.field("proc/cpuinfo", "CPU implementer", ":"), h.field("proc/cpuinfo", "CPU part", ":")
	if implementer == "" {
		return ""
	}
	return "implementer " + implementer + " part " + part
}

// meminfo returns a number of /proc/meminfo times its unit.
func (h Host) meminfo(name string, unit int64) *int64 {
	fields := strings.Fields(h.field("proc/meminfo", name, ":"))
	if len(fields) == 0 {
		return nil
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return nil
	}
	n *= unit
	return &n
}

// governor returns the frequency governor of the CPUs of this step.
func (h Host) governor(cpus []int) string {
	var found []string
	for _, cpu := range cpus {
		g := h.line(fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", cpu))
		if g == "" {
			return ""
		}
		if !slices.Contains(found, g) {
			found = append(found, g)
		}
	}
	slices.Sort(found)
	if len(found) > 1 {
		return "mixed: " + strings.Join(found, ", ")
	}
	return strings.Join(found, "")
}

func (h Host) turbo() string {
	switch h.line("sys/devices/system/cpu/intel_pstate/no_turbo") {
	case "0":
		return "enabled"
	case "1":
		return "disabled"
	}
	switch h.line("sys/devices/system/cpu/cpufreq/boost") {
	case "1":
		return "enabled"
	case "0":
		return "disabled"
	}
	return ""
}

func (h Host) numa() []fingerprint.NUMANode {
	dirs, _ := filepath.Glob(h.path("sys/devices/system/node/node[0-9]*"))
	var nodes []fingerprint.NUMANode
	for _, dir := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue
		}
		rel := filepath.Join("sys/devices/system/node", filepath.Base(dir))
		node := fingerprint.NUMANode{ID: id, CPUs: h.line(filepath.Join(rel, "cpulist"))}
		// "Node 0 MemTotal:  263856 kB"
		fields := strings.Fields(h.field(filepath.Join(rel, "meminfo"), fmt.Sprintf("Node %d MemTotal", id), ":"))
		if len(fields) > 0 {
			if kb, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
				node.MemoryBytes = kb << 10
			}
		}
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, func(a, b fingerprint.NUMANode) int { return a.ID - b.ID })
	return nodes
}

func (h Host) fileSystemSize(name string) *int64 {
	var st unix.Statfs_t
	if unix.Statfs(h.path(name), &st) != nil {
		return nil
	}
	size := int64(st.Blocks) * st.Bsize //nolint:unconvert // Bsize is another type on other architectures
	return &size
}

// memoryMax returns the memory limit of this step's cgroup, the tightest of it
// and those above, under version 2; nil where there is none.
func (h Host) memoryMax() *int64 {
	b, err := os.ReadFile(h.path("proc/self/cgroup"))
	if err != nil {
		return nil
	}
	var tightest *int64
	for line := range strings.Lines(string(b)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		for ; ok && group != "/" && group != "." && group != ""; group = filepath.Dir(group) {
			n, err := strconv.ParseInt(h.line(filepath.Join("sys/fs/cgroup", group, "memory.max")), 10, 64)
			if err == nil && (tightest == nil || n < *tightest) {
				tightest = &n
			}
		}
	}
	return tightest
}

// OOMKills is how many processes the kernel has killed in this step's cgroup and
// those above because memory ran out; nil where it is not counted.
func (h Host) OOMKills() *int64 {
	b, err := os.ReadFile(h.path("proc/self/cgroup"))
	if err != nil {
		return nil
	}
	var most *int64
	for line := range strings.Lines(string(b)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		for ; ok && group != "/" && group != "." && group != ""; group = filepath.Dir(group) {
			n, err := strconv.ParseInt(h.field(filepath.Join("sys/fs/cgroup", group, "memory.events"), "oom_kill", " "), 10, 64)
			if err == nil && (most == nil || n > *most) {
				most = &n
			}
		}
	}
	return most
}

func (h Host) loadAverage() *float64 {
	fields := strings.Fields(h.line("proc/loadavg"))
	if len(fields) == 0 {
		return nil
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return nil
	}
	return &v
}

// gpus returns what Slurm gave this step on this node: how many, and the node's
// numbers of them. Outside of a job it is nil: not known.
func (h Host) gpus() (*int, []string) {
	if h.Getenv("SLURM_JOB_ID") == "" {
		return nil, nil
	}
	var ids []string
	for _, name := range []string{"SLURM_STEP_GPUS", "SLURM_JOB_GPUS"} {
		if list := h.Getenv(name); list != "" {
			for _, id := range ParseList(list) {
				ids = append(ids, strconv.Itoa(id))
			}
			break
		}
	}
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"} {
		if list := h.Getenv(name); list != "" && list != "NoDevFiles" {
			n := len(strings.Split(list, ","))
			return &n, ids
		}
	}
	if len(ids) > 0 {
		n := len(ids)
		return &n, ids
	}
	n, err := strconv.Atoi(h.Getenv("SLURM_GPUS_ON_NODE"))
	if err != nil {
		n = 0
	}
	return &n, nil
}

// Allocation reads what Slurm says about the job and step; nil outside of one.
func (h Host) Allocation() *fingerprint.Allocation {
	get := h.Getenv
	if get("SLURM_JOB_ID") == "" {
		return nil
	}
	first := func(names ...string) string {
		for _, name := range names {
			if v := get(name); v != "" {
				return v
			}
		}
		return ""
	}
	a := &fingerprint.Allocation{
		Cluster: get("SLURM_CLUSTER_NAME"), JobID: get("SLURM_JOB_ID"),
		ArrayJobID: get("SLURM_ARRAY_JOB_ID"), ArrayTaskID: get("SLURM_ARRAY_TASK_ID"),
		StepID: first("SLURM_STEP_ID", "SLURM_STEPID"), Partition: get("SLURM_JOB_PARTITION"),
		Account: get("SLURM_JOB_ACCOUNT"), QOS: get("SLURM_JOB_QOS"), NodeList: get("SLURM_JOB_NODELIST"),
		NodeName: get("SLURMD_NODENAME"), CPUsOnNode: get("SLURM_CPUS_ON_NODE"),
		TRES:        first("SLURM_TRES_PER_TASK", "SLURM_TRES_PER_NODE", "SLURM_TRES_PER_JOB"),
		GPUs:        first("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"),
		Constraints: get("SLURM_JOB_CONSTRAINTS"), TopologyAddress: get("SLURM_TOPOLOGY_ADDR"),
		TopologyPattern: get("SLURM_TOPOLOGY_ADDR_PATTERN"), CPUBind: get("SLURM_CPU_BIND"), MemPerNode: get("SLURM_MEM_PER_NODE"),
	}
	a.RestartCount, _ = strconv.Atoi(get("SLURM_RESTART_COUNT")) // unset on the first start
	if n, err := strconv.Atoi(first("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")); err == nil {
		a.Nodes = &n
	}
	return a
}

// relevant are the beginnings of variables that can change a number.
var relevant = []string{
	"NCCL_", "CUDA_", "VLLM_", "SGLANG_", "SGL_", "TRTLLM_", "TLLM_", "TENSORRT_", "TORCH", "PYTORCH_", "HF_", "TRANSFORMERS_",
	"OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "UCX_", "NVIDIA_", "ROCR_", "HIP_", "HSA_", "LLAMA_", "GGML_", "RAY_",
	"LD_", "MALLOC_", "TOKENIZERS_", "PYTHON", "TRITON_", "FLASHINFER_", "XLA_", "GOMAXPROCS", "GOGC",
}

// secret are parts of names whose values are not recorded.
var secret = []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "APIKEY", "PRIVATE"}

// RelevantEnv selects from an engine's environment what belongs in the
// fingerprint. Of a secret it says only that it is set.
func RelevantEnv(env map[string]string) map[string]string {
	out := map[string]string{}
	for name, value := range env {
		upper := strings.ToUpper(name)
		switch {
		case slices.ContainsFunc(secret, func(s string) bool { return strings.Contains(upper, s) }) && upper != "TOKENIZERS_PARALLELISM":
			out[name] = "(set, not recorded)"
		case slices.ContainsFunc(relevant, func(s string) bool { return strings.HasPrefix(upper, s) }):
			out[name] = value
		}
	}
	return out
}

// ParseList reads a list of numbers as Linux and Slurm write it: 0-3,8. What is
// not understood is left out.
func ParseList(list string) []int {
	var out []int
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		from, to, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(from)
		if err != nil {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(to); err != nil {
				continue
			}
		}
		const most = 1 << 14
		for i := a; i <= b && len(out) < most; i++ {
			out = append(out, i)
		}
	}
	return out
}

// bracketed returns the chosen word of a list as in "always [madvise] never".
func bracketed(line string) string {
	_, rest, ok := strings.Cut(line, "[")
	word, _, closed := strings.Cut(rest, "]")
	if !ok || !closed {
		return ""
	}
	return word
}

// allowed returns the CPUs that this process may use.
func allowed() []int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	var cpus []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

func limit(resource int) *int64 {
	var r unix.Rlimit
	if unix.Getrlimit(resource, &r) != nil || r.Max == unix.RLIM_INFINITY {
		return nil
	}
	n := int64(r.Max)
	return &n
}

// MappedFiles returns the files that a process has mapped as code: its
// executable and shared libraries, sorted, each once.
func MappedFiles(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, fmt.Errorf("read what process %d has mapped: %w", pid, err)
	}
	var files []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 6 || !strings.Contains(f[1], "x") || !strings.HasPrefix(f[5], "/") {
			continue
		}
		path := strings.Join(f[5:], " ")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue // deleted, or not of this file system
		}
		if !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	slices.Sort(files)
	return files, nil
}
