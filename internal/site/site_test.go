package site_test

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/batch"
	"sbench/internal/diag"
	"sbench/internal/site"
)

var update = flag.Bool("update", false, "write golden files and generated documents")

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func load(t testing.TB, data []byte) *site.Site {
	t.Helper()
	s, list := site.Load(data, "site.yaml")
	if len(list) > 0 {
		t.Fatal(list.Text())
	}
	return s
}

func examples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../site-configs/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	return files
}

// TestLoad_Examples: the files that people copy are valid.
func TestLoad_Examples(t *testing.T) {
	t.Parallel()
	for _, file := range examples(t) {
		s, list := site.Load(read(t, file), filepath.Base(file))
		if len(list) > 0 {
			t.Errorf("%s:\n%s", file, list.Text())
			continue
		}
		if s.Name == "" || s.Cluster == "" || len(s.Hardware) == 0 {
			t.Errorf("%s: incomplete: %+v", file, s)
		}
	}
}

// TestLoad_EveryField: each field of Site can be set, and testdata/full.yaml
// sets it.
func TestLoad_EveryField(t *testing.T) {
	t.Parallel()
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		if v.IsZero() {
			t.Errorf("%s is not set", path)
		}
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Tag.Get("json"), v.Field(i))
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(path+"[]", v.Index(i))
			}
		default:
		}
	}
	s := load(t, read(t, "testdata/full.yaml"))
	for i := range reflect.TypeFor[site.Site]().NumField() {
		f := reflect.TypeFor[site.Site]().Field(i)
		walk(f.Tag.Get("json"), reflect.ValueOf(*s).Field(i))
	}
	walk("hardware.h100-sxm", reflect.ValueOf(s.Hardware["h100-sxm"]))
	walk("partitions.gpu", reflect.ValueOf(s.Partitions["gpu"]))
	for name, p := range s.Priorities {
		walk("priorities."+name, reflect.ValueOf(p))
	}
}

func TestSite_Lookups(t *testing.T) {
	t.Parallel()
	s := load(t, read(t, "testdata/full.yaml"))
	id, ok := s.HardwareByGRES("gpu:h100")
	if id != "h100-sxm" || !ok {
		t.Errorf("gpu:h100 is %q, %v", id, ok)
	}
	if _, ok := s.HardwareByGRES("gpu:b200"); ok {
		t.Error("gpu:b200 is found")
	}
	if _, ok := s.HardwareByGRES(""); ok {
		t.Error("no GRES is found")
	}
	for name, c := range map[string][2]string{
		"relative model": {s.ModelPath("llama/8b"), "/shared/models/llama/8b"},
		"absolute model": {s.ModelPath("/data/llama"), "/data/llama"},
		"no model":       {s.ModelPath(""), ""},
		"relative image": {s.ImagePath("vllm.sif"), "/shared/images/vllm.sif"},
		"batch":          {s.BatchDir("sb-x"), "/shared/sbench/spool/batches/sb-x"},
		"binaries":       {s.BinDir("ab"), "/shared/sbench/spool/bin/ab"},
		"attempts":       {s.AttemptsDir(), "/shared/sbench/results/attempts"},
		"partition":      {s.PartitionFor("cpu-x86"), "cpu"},
		"any partition":  {s.PartitionFor("other"), "gpu"},
		"QOS":            {s.QOSFor("bulk"), "low"},
		"any QOS":        {s.QOSFor("other"), "normal"},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %q, want %q", name, c[0], c[1])
		}
	}
	if s.QueueLimit("h100-sxm") != 100 || s.QueueLimit("cpu-x86") != 700 {
		t.Error("queue limits differ")
	}
	n := s.Node("/spool/bin/x/sbench-gpu")
	mirrors := []batch.Mirror{{URL: "sftp://mirror@eu.example.org:2222/srv/sbench", Key: "/etc/sbench/mirror_ed25519", KnownHosts: "/etc/sbench/mirror_known_hosts"}}
	if diff := cmp.Diff(mirrors, n.Mirrors); diff != "" {
		t.Error(diff)
	}
	want := []batch.Bind{{Source: "/etc/pki", Target: "/etc/ssl/pki", ReadOnly: true}}
	if diff := cmp.Diff(want, n.Binds); diff != "" || n.ClientCPUs != 4 || n.GPUHelper != "/spool/bin/x/sbench-gpu" || n.TempDir != "/local/tmp" {
		t.Errorf("%+v\n%s", n, diff)
	}
}

// faults are edits of testdata/full.yaml, pairs of old and new text; the golden
// file of each holds what is printed.
func faults() map[string][]string {
	return map[string][]string{
		"unknown-keys":     {"gpus_per_node", "gpu_per_node", "poll_interval", "poll_intervall", "max_queue: 700", "max_qeue: 700", "urgent:", "urgnt:"},
		"writable-overlay": {"container_args: [--no-privs]", "container_args: [--no-privs, --overlay=/tmp/x]"},
		"missing-keys":     {"site: v1\n", "", "name: full\n", "", "  spool: /shared/sbench/spool\n", "", "  cache: /local/sbench\n", ""},
		"wrong-types":      {"gpus_per_node: 8", "gpus_per_node: eight", "max_queue: 700", "max_queue: 1e3", "requeue: true", "requeue: yes", "pass_env: [TMPDIR]", "pass_env: TMPDIR", "nvml_name: NVIDIA H100 80GB HBM3", "nvml_name: 100"},
		"wrong-units":      {"poll_interval: 5s", "poll_interval: 5", "memory_per_gpu: 100GiB", "memory_per_gpu: 100", "signal: 90s", "signal: 2h", "max_time: 2d", "max_time: 2-00:00:00"},
		"paths":            {"spool: /shared/sbench/spool", "spool: spool", "models: /shared/models", "models: /shared/../models", "images: /shared/images", "images: \"/shared/a:b\"", "cache: /local/sbench", "cache: /shared/sbench/results/cache"},
		"names":            {"name: full", "name: \"a b\"", "cluster: slurm-full", "cluster: \"x\\ny\"", "account: ml", "account: $(id)", "  cpu:\n", "  \"cpu;id\":\n", "  h100-sxm:", "  H100 SXM:"},
		"gres":             {"gres: gpu:h100", "gres: gpu:h100:8", "constraint: h100&isl1", "constraint: \"h100;id\"", "memory: 64G", "memory: 64GB"},
		"gres-and-gpus":    {"    gres: gpu:h100\n", "", "cpu-x86: {", "cpu-x86: {gres: gpu:l4, "},
		"partitions":       {"defaults: {partition: gpu", "defaults: {partition: gpuu", "partition: cpu}", "partition: nowhere}"},
		"options":          {"licenses: \"vllm:1\"", "--licenses: \"vllm:1\"", "spread-job: true", "partition: x, array: 1-9"},
		"secrets":          {"HF_TOKEN: /etc/sbench/secrets/hf_token", "HF-TOKEN: /x, OTHER: hf_abc"},
		"binds":            {"{source: /etc/pki, target: /etc/ssl/pki, read_only: true}", "{target: /x}, /etc/pki, {source: etc}"},
		"mirrors":          {"url: sftp://mirror@eu.example.org:2222/srv/sbench", "url: sftp://mirror:sesame@eu.example.org/srv", "key: /etc/sbench/mirror_ed25519, known_hosts: /etc/sbench/mirror_known_hosts", "key: sesame"},
		"words":            {"hardware_class: emulated", "hardware_class: fake", "submit_as: service", "submit_as: root", "exclusive: gres", "exclusive: user", "link: nvlink", "link: infinity"},
		"limits":           {"max_array_size: 5001", "max_array_size: 1", "task_minutes: 90", "task_minutes: 0", "nice: 1,", "nice: 99999999999,"},
		"no-hardware":      {"hardware:\n", "hardware: {}\nhardware_other:\n"},
		"crlf":             {"\n", "\r\n"},
	}
}

// TestGoldenFaults: every fault, its place, its caret and its hint.
func TestGoldenFaults(t *testing.T) {
	t.Parallel()
	full := string(read(t, "testdata/full.yaml"))
	for name, e := range faults() {
		text := full
		for i := 0; i+1 < len(e); i += 2 {
			if !strings.Contains(text, e[i]) {
				t.Errorf("%s: %q is not in the file", name, e[i])
			}
			text = strings.Replace(text, e[i], e[i+1], 1)
		}
		s, list := site.Load([]byte(text), "site.yaml")
		if s != nil {
			t.Errorf("%s: the file is accepted", name)
		}
		golden(t, filepath.Join("testdata", "faults", name+".golden"), list.Text())
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
	if diff := cmp.Diff(string(read(t, file)), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// FuzzLoad: nothing panics, every fault lies within the file, and what is
// accepted is whole.
func FuzzLoad(f *testing.F) {
	full := string(read(f, "testdata/full.yaml"))
	f.Add([]byte(full))
	for _, e := range faults() {
		text := full
		for i := 0; i+1 < len(e); i += 2 {
			text = strings.Replace(text, e[i], e[i+1], 1)
		}
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, list := site.Load(data, "f")
		lines := strings.Count(string(data), "\n") + 1
		for _, d := range list {
			if d.Line < 0 || d.Line > lines || d.Line > 0 && d.Column < 1 {
				t.Fatalf("%+v is outside of the file of %d lines", d, lines)
			}
		}
		if (s == nil) != list.HasErrors() {
			t.Fatalf("site %v with\n%s", s != nil, diag.List(list).Text())
		}
		if s != nil && (s.Name == "" || s.Cluster == "" || !strings.HasPrefix(s.Paths.Spool, "/") || len(s.Hardware) == 0) {
			t.Fatalf("incomplete: %+v", s)
		}
	})
}
