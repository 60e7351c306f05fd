package setting_test

import (
	"fmt"
	"strings"
	"time"

	"pgregory.net/rapid"

	"sbench/internal/setting"
)

// valid is a complete setting of the plainest kind.
func valid() setting.Setting {
	s := setting.Default()
	s.Model.Name = "tiny-llama"
	s.Model.Checkpoint.Path = "model.gguf"
	s.Image.Path = "engine.sif"
	s.Engine.Kind = setting.EngineLlamaCpp
	s.Hardware.GPU = "l4"
	s.Workload.Arrival.Rate = 8
	s.Workload.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 32}
	s.Workload.Output = setting.Lengths{Distribution: setting.DistConstant, Value: 16}
	s.Workload.Duration = time.Minute
	s.Normalize()
	return s
}

// drawSetting draws a normalized, valid setting.
func drawSetting(t *rapid.T) setting.Setting {
	digest := func(label string) string {
		return "sha256:" + fmt.Sprintf("%064x", rapid.Uint64().Draw(t, label))
	}
	pin := func(label string, values ...string) string {
		return rapid.SampledFrom(append(values, setting.Unpinned)).Draw(t, label)
	}
	seconds := func(label string, low, high int64) time.Duration {
		return time.Duration(rapid.Int64Range(low, high).Draw(t, label)) * time.Millisecond
	}
	s := valid()
	s.Model.Name = rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9 ._/é-]{0,20}[a-z]`).Draw(t, "model")
	s.Model.Checkpoint.Digest = digest("checkpoint")
	s.Model.Precision = rapid.SampledFrom([]string{"auto", "bf16", "fp8"}).Draw(t, "precision")
	s.Image.Digest = rapid.SampledFrom([]string{digest("image"), setting.Unpinned}).Draw(t, "pinned")
	s.Engine.Kind = rapid.SampledFrom([]setting.EngineKind{setting.EngineVLLM, setting.EngineSGLang, setting.EngineLlamaCpp, setting.EngineCommand}).Draw(t, "engine")
	s.Engine.Version = pin("version", "0.9.2", "b4567")
	s.Engine.Env = map[string]string{"VAR_A": rapid.StringMatching(`[ -~]{0,10}[a-z]`).Draw(t, "env")}
	s.Engine.Env["VAR_A"] = strings.TrimSpace(s.Engine.Env["VAR_A"])
	if s.Engine.Kind == setting.EngineCommand {
		s.Engine.Command = []string{"--port", "{port}", rapid.StringMatching(`[a-zäöü]{0,5}`).Draw(t, "arg")}
	} else {
		s.Engine.Args = map[string]string{"max-num-seqs": rapid.StringMatching(`[0-9]{1,3}`).Draw(t, "seqs"), "x.y": "true"}
	}
	s.Hardware.GPUs = rapid.IntRange(0, 8).Draw(t, "gpus")
	s.Hardware.Nodes = rapid.IntRange(1, 4).Draw(t, "nodes")
	if s.Engine.Kind == setting.EngineLlamaCpp {
		s.Hardware.Nodes = 1
	}
	s.Hardware.Link = pin("link", "nvlink", "pcie")
	s.Hardware.Switches = rapid.IntRange(0, 3).Draw(t, "switches")
	s.Environment.CUDA = pin("cuda", "12.4", "12.6")
	s.Environment.SMClock = pin("clock", "1410MHz", "1980MHz")
	s.Parallel = setting.Parallel{Tensor: max(s.Hardware.GPUs, 1), Pipeline: s.Hardware.Nodes, Data: 1, Expert: rapid.IntRange(1, 8).Draw(t, "expert")}
	w := &s.Workload
	w.Request.Temperature = rapid.SampledFrom([]float64{0, 0.7, 1, 1e-7}).Draw(t, "temperature")
	w.Request.Stream = rapid.Bool().Draw(t, "stream")
	w.Warmup, w.Ramp, w.Duration, w.Drain = seconds("warmup", 0, 60e3), seconds("ramp", 0, 60e3), seconds("duration", 1, 600e3), seconds("drain", 0, 60e3)
	w.Seed = rapid.Int64Range(-1<<53+1, 1<<53-1).Draw(t, "seed")
	drawArrival(t, w)
	w.Input, w.Output = drawLengths(t, "input"), drawLengths(t, "output")
	if rapid.Bool().Draw(t, "pairs") {
		w.Input = setting.Lengths{Distribution: setting.DistPairs, Pairs: []setting.Pair{{Input: rapid.IntRange(1, 99).Draw(t, "in"), Output: 5, Weight: 0.5}}}
		w.Output = setting.Lengths{Distribution: setting.DistPairs}
	}
	if rapid.Bool().Draw(t, "groups") {
		w.Prompts.Groups, w.Prompts.PrefixLen, w.Prompts.HitRatio = 3, rapid.IntRange(1, 99).Draw(t, "prefix"), 0.5
	}
	if rapid.Bool().Draw(t, "turns") {
		w.Prompts.Turns, w.Prompts.ThinkTime = 2, seconds("think", 0, 5e3)
	}
	s.Normalize()
	if faults := s.Validate(); len(faults) > 0 {
		t.Fatalf("the generator draws what is not valid: %+v", faults)
	}
	return s
}

func drawArrival(t *rapid.T, w *setting.Workload) {
	rate := rapid.SampledFrom([]float64{0.1, 1.0 / 3, 2, 8, 1000}).Draw(t, "rate")
	switch p := rapid.SampledFrom([]setting.Process{
		setting.ProcessConstant, setting.ProcessPoisson, setting.ProcessGamma,
		setting.ProcessStages, setting.ProcessTrace, setting.ProcessClosed, "ladder",
	}).Draw(t, "process"); p {
	case setting.ProcessClosed:
		w.Arrival = setting.Arrival{Process: p, Concurrency: rapid.IntRange(1, 64).Draw(t, "concurrency")}
	case setting.ProcessStages:
		w.Arrival = setting.Arrival{Process: p, Stages: []setting.Stage{{Rate: rate, Duration: w.Duration}}}
	case setting.ProcessTrace:
		w.Arrival = setting.Arrival{Process: p, TracePath: "trace.jsonl", TraceDigest: "sha256:" + strings.Repeat("0", 64), TraceScale: rate}
	case setting.ProcessGamma:
		w.Arrival = setting.Arrival{Process: p, Rate: rate, Burstiness: 0.5}
	case "ladder":
		w.Arrival = setting.Arrival{Process: setting.ProcessPoisson}
		w.Ladder = []float64{rate, 2 * rate}
	default:
		w.Arrival = setting.Arrival{Process: p, Rate: rate}
	}
}

func drawLengths(t *rapid.T, label string) setting.Lengths {
	n := rapid.IntRange(1, 500).Draw(t, label)
	switch d := rapid.SampledFrom([]setting.Distribution{
		setting.DistConstant, setting.DistUniform, setting.DistNormal, setting.DistLognormal, setting.DistHistogram,
	}).Draw(t, label+" distribution"); d {
	case setting.DistUniform:
		return setting.Lengths{Distribution: d, Min: n, Max: 2 * n}
	case setting.DistNormal:
		return setting.Lengths{Distribution: d, Mean: float64(n), StdDev: 1.5, Max: 4 * n}
	case setting.DistLognormal:
		return setting.Lengths{Distribution: d, Median: float64(n), Sigma: 0.6, Max: 4 * n}
	case setting.DistHistogram:
		return setting.Lengths{Distribution: d, Bins: []setting.Bin{{Min: n, Max: n + 5, Weight: 1}}}
	default:
		return setting.Lengths{Distribution: setting.DistConstant, Value: n}
	}
}
