package runner

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"sbench/internal/fingerprint"
	"sbench/internal/runner/gpu"
	"sbench/internal/runner/stage"
	"sbench/internal/setting"
	"sbench/internal/spool"
)

// speculation are parts of the names of options by which one step may give several
// tokens.
var speculation = []string{"specul", "draft", "eagle", "medusa", "mtp", "lookahead"}

// decodeWeights says what a step of decoding reads, as far as the checkpoint's
// configuration tells: all weights of a dense model, but for its table of input
// embeddings, of which it reads a row.
func decodeWeights(s setting.Setting, x stage.Artefact) (bytes int64, why string) {
	for name := range s.Engine.Args {
		for _, part := range speculation {
			if strings.Contains(strings.ToLower(name), part) {
				return 0, "engine.args." + name + " speculates"
			}
		}
	}
	for _, e := range x.Manifest {
		if strings.HasSuffix(e.Path, ".safetensors") && !strings.Contains(e.Path, "/") {
			bytes += e.Size
		}
	}
	if bytes == 0 {
		return 0, "the checkpoint has no safetensors files"
	}
	text, err := spool.ReadPlain(filepath.Join(x.Path, "config.json"), 1<<20)
	if err != nil {
		return 0, "the checkpoint has no config.json"
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return 0, "config.json of the checkpoint is not understood"
	}
	for key := range config {
		if lower := strings.ToLower(key); strings.Contains(lower, "expert") || strings.Contains(lower, "moe") || key == "text_config" || key == "vision_config" {
			return 0, "the model is not a dense language model: " + key
		}
	}
	number := func(key string) int64 { v, _ := config[key].(float64); return int64(v) }
	_, quantized := config["quantization_config"]
	dtype, _ := config["torch_dtype"].(string)
	if dtype == "" {
		dtype, _ = config["dtype"].(string)
	}
	loaded := map[string]string{"bf16": "bfloat16", "fp16": "float16", "f32": "float32", "auto": dtype}[s.Model.Precision]
	width := map[string]int64{"bfloat16": 2, "float16": 2, "float32": 4}[dtype]
	_, requantized := s.Engine.Args["quantization"]
	switch {
	case !quantized && (requantized || loaded == "" || loaded != dtype):
		return 0, fmt.Sprintf("weights of %q are loaded as %s", dtype, s.Model.Precision)
	case width == 0 || number("vocab_size") == 0 || number("hidden_size") == 0:
		return 0, "config.json of the checkpoint does not say the size of its embeddings"
	}
	if tied, _ := config["tie_word_embeddings"].(bool); !tied {
		bytes -= number("vocab_size") * number("hidden_size") * width
	}
	return max(bytes, 0), ""
}

func (a *attempt) decode() gpu.Decode {
	d := gpu.Decode{Ranks: max(a.setting.Parallel.Tensor, 1)}
	d.Weights, d.Why = decodeWeights(a.setting, a.artefacts.checkpoint)
	if m, ok := fingerprint.Find(a.setting.Hardware.GPU); ok {
		d.Bandwidth = m.BandwidthBytes
	}
	return d
}
