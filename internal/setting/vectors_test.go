package setting_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/canon"
	"sbench/internal/setting"
)

var update = flag.Bool("update", false, "write the golden files that are missing or stale; setting_hash vectors are only added, never changed")

// vector is a golden file: what a setting is hashed as. CanonicalSpec is a JSON
// value: its RFC 8785 form is what setting_hash is the SHA-256 of.
type vector struct {
	Doc           string          `json:"doc"`
	Setting       setting.Setting `json:"setting"` // normalized, as frozen in a batch
	CanonicalSpec json.RawMessage `json:"canonical_spec"`
	SettingHash   string          `json:"setting_hash"`
	SeriesHash    string          `json:"series_hash"`
}

func vectors() map[string]vector {
	digest := func(digits string) string { return "sha256:" + strings.Repeat(digits, 64/len(digits)) }
	with := func(doc string, change func(*setting.Setting)) vector {
		s := valid()
		change(&s)
		s.Normalize()
		return vector{Doc: doc, Setting: s}
	}
	return map[string]vector{
		"plain": with("defaults, nothing pinned", func(*setting.Setting) {}),
		"pinned": with("every pin given; clocks and power in their normal form", func(s *setting.Setting) {
			s.Model.Checkpoint.Digest, s.Image.Digest = digest("0a"), digest("1b")
			s.Engine = setting.Engine{
				Kind: setting.EngineVLLM, Version: "0.9.2", Args: map[string]string{"max-num-seqs": "256", "gpu-memory-utilization": "0.9", "enable-chunked-prefill": "true"},
				Env: map[string]string{"VLLM_USE_V1": "1"}, ServerLife: setting.ServerLifeShared,
			}
			s.Hardware = setting.Hardware{Class: "real", GPU: "h100-sxm", GPUs: 4, Nodes: 2, Link: "nvlink", Placement: setting.PlacementNode, Constraint: "isl1&h100", Switches: 1}
			s.Environment = setting.Environment{
				Driver: "550.54.15", CUDA: "12.4", NCCL: "2.20.5", MIG: "disabled", ECC: "enabled",
				SMClock: "1.41GHz", MemClock: "2619MHz", PowerLimit: "0.7kW", Kernel: "5.14.0-427.el9.x86_64", Governor: "performance",
			}
			s.Parallel = setting.Parallel{Tensor: 4, Pipeline: 2, Data: 1, Expert: 1}
		}),
		"text": with("strings that JSON writers treat differently, and keys in UTF-16 order", func(s *setting.Setting) {
			s.Model.Name = "modèle <大> & \"quoted\" \\ 😀 /"
			s.Engine.Args = map[string]string{"b": "'$(id)'", "a": "", "B": "ﬁ", "a.b": "x", "a-b": "<&>"}
			s.Engine.Env = map[string]string{"_": "€ \u00e9", "Z": "e\u0301"}
		}),
		"numbers": with("numbers whose shortest form is easy to get wrong", func(s *setting.Setting) {
			s.Workload.Arrival = setting.Arrival{Process: setting.ProcessGamma, Rate: 1.0 / 3, Burstiness: 1e-7}
			s.Workload.Request.Temperature = 0.1
			s.Workload.Warmup, s.Workload.Ramp, s.Workload.Drain = 1, 100*time.Millisecond, 3600*time.Second+1
			s.Workload.Seed = -canon.MaxInt
		}),
		"ladder": with("a ladder instead of a rate", func(s *setting.Setting) {
			s.Workload.Arrival.Rate, s.Workload.Ladder = 0, []float64{0.5, 1, 2.25}
		}),
		"stages": with("piecewise linear rates", func(s *setting.Setting) {
			s.Workload.Duration = 0
			s.Workload.Arrival = setting.Arrival{Process: setting.ProcessStages, Stages: []setting.Stage{
				{Rate: 1, Duration: 10 * time.Second}, {Rate: 4.5, Duration: 1500 * time.Millisecond},
			}}
		}),
		"closed": with("a closed loop", func(s *setting.Setting) {
			s.Workload.Arrival = setting.Arrival{Process: setting.ProcessClosed, Concurrency: 16}
		}),
		"trace": with("a trace and a file of prompts", func(s *setting.Setting) {
			s.Workload.Arrival = setting.Arrival{Process: setting.ProcessTrace, TracePath: "t.jsonl", TraceDigest: digest("2c"), TraceScale: 2}
			s.Workload.Prompts = setting.Prompts{Source: "file", FilePath: "p.jsonl", FileDigest: digest("3d"), Turns: 1}
			s.Workload.Input, s.Workload.Output = setting.Lengths{Distribution: setting.DistFile}, setting.Lengths{Distribution: setting.DistFile}
		}),
		"histogram": with("a histogram and a normal distribution", func(s *setting.Setting) {
			s.Workload.Input = setting.Lengths{Distribution: setting.DistHistogram, Bins: []setting.Bin{{Min: 1, Max: 10, Weight: 0.25}, {Min: 11, Max: 99, Weight: 3}}}
			s.Workload.Output = setting.Lengths{Distribution: setting.DistNormal, Mean: 100, StdDev: 12.5, Max: 200}
		}),
		"pairs": with("joint lengths, shared prefixes and sessions", func(s *setting.Setting) {
			s.Workload.Input = setting.Lengths{Distribution: setting.DistPairs, Pairs: []setting.Pair{{Input: 512, Output: 64, Weight: 1}, {Input: 8, Output: 1024, Weight: 0.5}}}
			s.Workload.Output = setting.Lengths{Distribution: setting.DistPairs}
			s.Workload.Prompts.Groups, s.Workload.Prompts.PrefixLen, s.Workload.Prompts.HitRatio = 4, 256, 0.75
			s.Workload.Prompts.Turns, s.Workload.Prompts.ThinkTime = 3, 2*time.Second
		}),
		"command": with("a command on the host, without a checkpoint", func(s *setting.Setting) {
			s.Model.Checkpoint, s.Image.Kind, s.Image.Path = setting.Checkpoint{}, setting.ImageHost, "/opt/sbench/bin/sbench-sim"
			s.Engine.Kind, s.Engine.Command = setting.EngineCommand, []string{"--port", "{port}", "--name", "a b"}
			s.Hardware.GPU, s.Hardware.GPUs, s.Hardware.Placement = "cpu-x86", 0, setting.PlacementGPU
		}),
	}
}

// TestGoldenHashes: the identity of a setting never changes. A changed hash is a
// new SpecVersion, never an update of these files.
func TestGoldenHashes(t *testing.T) {
	t.Parallel()
	const dir = "../../tests/vectors/setting_hash"
	all := vectors()
	for name, v := range all {
		if faults := v.Setting.Validate(); len(faults) > 0 {
			t.Errorf("%s is not valid: %+v", name, faults)
			continue
		}
		v.CanonicalSpec, v.SettingHash, v.SeriesHash = v.Setting.Canonical(), v.Setting.Hash(), v.Setting.SeriesHash()
		got, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name+".json")
		want, err := os.ReadFile(file)
		if os.IsNotExist(err) && *update {
			if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != len(all) {
		t.Errorf("%d files for %d vectors, %v", len(files), len(all), err)
	}
}

// TestGoldenHashes_Independent: the files alone, read by another JSON reader,
// give the hashes.
func TestGoldenHashes_Independent(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../tests/vectors/setting_hash/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v vector
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		spec, err := canon.Transform(v.CanonicalSpec)
		if err != nil {
			t.Fatal(err)
		}
		if got := canon.Hash(spec); got != v.SettingHash {
			t.Errorf("%s: the spec hashes to %s", file, got)
		}
		if got := v.Setting.Hash(); got != v.SettingHash {
			t.Errorf("%s: the setting hashes to %s", file, got)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	s := vectors()["pinned"].Setting
	b.ReportAllocs()
	for b.Loop() {
		_, _ = s.Hashes()
	}
}

func BenchmarkValidate(b *testing.B) {
	s := vectors()["pinned"].Setting
	b.ReportAllocs()
	for b.Loop() {
		s.Normalize()
		_ = s.Validate()
	}
}
