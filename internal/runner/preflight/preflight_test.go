package preflight

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestHost_ThisMachine(t *testing.T) {
	t.Parallel()
	n := Host{Root: "/", Getenv: env(nil)}.Node()
	if n.Kernel == "" || n.Hostname == "" || n.CPUModel == "" || n.CPUs < 1 || len(n.CPUsAllowed) < 1 || n.MemoryBytes < 1<<26 || n.BootID == "" {
		t.Errorf("%+v", n)
	}
	if n.GPUsAllocated != nil {
		t.Errorf("outside of a job %d GPUs are allocated", *n.GPUsAllocated)
	}
}

func TestHost_Node(t *testing.T) {
	t.Parallel()
	cpus := allowed()
	files := map[string]string{
		"proc/sys/kernel/osrelease": "5.14.0-503.el9.x86_64\n", "proc/sys/kernel/hostname": "gpu1\n",
		"etc/os-release":                                "NAME=\"Rocky\"\nPRETTY_NAME=\"Rocky Linux 9.5\"\n",
		"proc/cpuinfo":                                  "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\n",
		"proc/meminfo":                                  "MemTotal:       1056789 kB\nHugePages_Total:    1024\nHugepagesize:       2048 kB\n",
		"sys/devices/system/cpu/online":                 "0-3,8\n",
		"sys/devices/system/node/node0/x":               "",
		"sys/devices/system/node/node10/x":              "",
		"sys/devices/system/node/node0/cpulist":         "0-3\n",
		"sys/devices/system/node/node0/meminfo":         "Node 0 MemTotal:       263856 kB\nNode 0 MemFree: 1 kB\n",
		"sys/devices/system/cpu/intel_pstate/no_turbo":  "1\n",
		"sys/kernel/mm/transparent_hugepage/enabled":    "always [madvise] never\n",
		"proc/loadavg":                                  "0.52 0.58 0.59 1/817 4242\n",
		"proc/self/cgroup":                              "0::/slurm/job_1/step_0\n",
		"sys/fs/cgroup/slurm/job_1/memory.max":          "1000\n",
		"sys/fs/cgroup/slurm/job_1/step_0/memory.max":   "max\n",
		"sys/fs/cgroup/slurm/job_1/step_0/memory.stat":  "",
		"sys/devices/system/cpu/smt/control":            "off\n",
		"sys/devices/system/cpu/cpufreq/boost":          "1\n",
		"sys/devices/system/cpu/cpu9999/cpufreq/nobody": "",
	}
	for i, cpu := range cpus {
		files[filepath.Join("sys/devices/system/cpu", "cpu"+strconv.Itoa(cpu), "cpufreq/scaling_governor")] = []string{"performance\n", "powersave\n"}[min(i, 1)]
	}
	n := Host{Root: tree(t, files), Getenv: env(nil)}.Node()
	governor := "performance"
	if len(cpus) > 1 {
		governor = "mixed: performance, powersave"
	}
	got := []any{n.Kernel, n.Hostname, n.OS, n.CPUModel, n.MemoryBytes, *n.HugepagesTotal, *n.HugepageBytes, n.CPUs, n.Turbo, n.THP, *n.LoadAverage, *n.MemoryMax, n.SMT, n.Governor, len(n.NUMA), n.NUMA[0].MemoryBytes, n.NUMA[0].CPUs, n.NUMA[1].ID}
	want := []any{"5.14.0-503.el9.x86_64", "gpu1", "Rocky Linux 9.5", "Intel(R) Xeon(R) Platinum 8480+", int64(1056789 << 10), int64(1024), int64(2 << 20), 5, "disabled", "madvise", 0.52, int64(1000), "off", governor, 2, int64(263856 << 10), "0-3", 10}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHost_NothingReadable: an empty machine is unknown, never zero values that
// could match a pin.
func TestHost_NothingReadable(t *testing.T) {
	t.Parallel()
	n := Host{Root: t.TempDir(), Getenv: env(nil)}.Node()
	if n.Kernel != "" || n.Governor != "" || n.CPUModel != "" || n.HugepagesTotal != nil || n.LoadAverage != nil || n.MemoryMax != nil || n.THP != "" || n.Turbo != "" {
		t.Errorf("%+v", n)
	}
}

func TestHost_OOMKills(t *testing.T) {
	t.Parallel()
	h := Host{Root: tree(t, map[string]string{
		"proc/self/cgroup":                               "0::/slurm/job_1/step_0\n",
		"sys/fs/cgroup/slurm/job_1/memory.events":        "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\n",
		"sys/fs/cgroup/slurm/job_1/step_0/memory.events": "oom_kill 1\n",
	}), Getenv: env(nil)}
	if n := h.OOMKills(); n == nil || *n != 2 {
		t.Errorf("%v, want 2", n)
	}
	if n := (Host{Root: t.TempDir(), Getenv: env(nil)}).OOMKills(); n != nil {
		t.Errorf("%d where nothing is counted", *n)
	}
}

func TestHost_GPUs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		vars map[string]string
		want int // -1 for unknown
		ids  []string
	}{
		{"no job", nil, -1, nil},
		{"no GPUs", map[string]string{"SLURM_JOB_ID": "1"}, 0, nil},
		{"two", map[string]string{"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,5", "SLURM_JOB_GPUS": "4,5,6"}, 2, []string{"4", "5"}},
		{"a range", map[string]string{"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0-3"}, 4, []string{"0", "1", "2", "3"}},
		{"no device files", map[string]string{"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_GPUS_ON_NODE": "3"}, 3, nil},
		{"MIG", map[string]string{"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, 2, nil},
	}
	for _, tt := range tests {
		n, ids := Host{Root: "/", Getenv: env(tt.vars)}.gpus()
		if got := deref(n); got != tt.want || !slices.Equal(ids, tt.ids) {
			t.Errorf("%s: %d %v, want %d %v", tt.name, got, ids, tt.want, tt.ids)
		}
	}
}

func deref(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

func TestHost_Allocation(t *testing.T) {
	t.Parallel()
	if a := (Host{Root: "/", Getenv: env(nil)}).Allocation(); a != nil {
		t.Errorf("outside of a job: %+v", a)
	}
	a := Host{Root: "/", Getenv: env(map[string]string{
		"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "2", "SLURM_TOPOLOGY_ADDR": "spine.leaf1.gpu1", "SLURM_NNODES": "1", "SLURM_STEPID": "3",
	})}.Allocation()
	if a.JobID != "9" || a.RestartCount != 2 || a.TopologyAddress != "spine.leaf1.gpu1" || deref(a.Nodes) != 1 || a.StepID != "3" {
		t.Errorf("%+v", a)
	}
}

func TestRelevantEnv(t *testing.T) {
	t.Parallel()
	got := RelevantEnv(map[string]string{
		"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_secret", "HOME": "/root", "VLLM_API_KEY": "k", "TOKENIZERS_PARALLELISM": "false", "LD_PRELOAD": "x.so",
	})
	want := map[string]string{
		"NCCL_DEBUG": "INFO", "HF_TOKEN": "(set, not recorded)", "VLLM_API_KEY": "(set, not recorded)", "TOKENIZERS_PARALLELISM": "false", "LD_PRELOAD": "x.so",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseList(t *testing.T) {
	t.Parallel()
	for list, want := range map[string][]int{
		"": nil, "0": {0}, "0-2,5": {0, 1, 2, 5}, "x,1": {1}, "3-1": nil, "1-x": nil, "-1": nil, "0-\n": nil,
	} {
		if got := ParseList(list); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", list, got, want)
		}
	}
	if got := ParseList("0-999999999"); len(got) > 1<<14 {
		t.Errorf("%d numbers", len(got))
	}
}

func TestMappedFiles(t *testing.T) {
	t.Parallel()
	files, err := MappedFiles(os.Getpid())
	self, _ := os.Readlink("/proc/self/exe")
	if err != nil || !slices.Contains(files, self) {
		t.Errorf("%v, %v", files, err)
	}
}

func FuzzParseList(f *testing.F) {
	f.Add("0-3,8")
	f.Fuzz(func(_ *testing.T, s string) { ParseList(s) })
}
