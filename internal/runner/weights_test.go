package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sbench/internal/runner/stage"
	"sbench/internal/setting"
)

func TestDecodeWeights(t *testing.T) {
	t.Parallel()
	const config = `{"vocab_size": 10, "hidden_size": 4, "torch_dtype": "bfloat16", "tie_word_embeddings": false}`
	for _, tt := range []struct {
		name      string
		config    string
		precision string
		args      map[string]string
		files     map[string]int
		want      int64 // 0: not known
	}{
		{"dense", config, "bf16", nil, nil, 5000 - 80},
		{"as it is stored", config, "auto", nil, nil, 5000 - 80},
		{"tied embeddings", strings.Replace(config, "false", "true", 1), "bf16", nil, nil, 5000},
		{"other precision", config, "fp16", nil, nil, 0},
		{"quantized when loaded", config, "fp8", nil, nil, 0},
		{"quantized by an option", config, "bf16", map[string]string{"quantization": "fp8"}, nil, 0},
		{"quantized in the checkpoint", strings.Replace(config, "{", `{"quantization_config": {}, `, 1), "fp8", nil, nil, 5000 - 80},
		{"speculation", config, "bf16", map[string]string{"speculative-config": "{}"}, nil, 0},
		{"draft model", config, "bf16", map[string]string{"model-draft": "x"}, nil, 0},
		{"experts", strings.Replace(config, "{", `{"num_local_experts": 8, `, 1), "bf16", nil, nil, 0},
		{"several models in one", strings.Replace(config, "{", `{"text_config": {}, `, 1), "bf16", nil, nil, 0},
		{"no configuration", "", "bf16", nil, nil, 0},
		{"damaged configuration", "{", "bf16", nil, nil, 0},
		{"no embeddings", `{"torch_dtype": "bfloat16"}`, "bf16", nil, nil, 0},
		{"another format", config, "bf16", nil, map[string]int{"model.gguf": 5000}, 0},
	} {
		dir := t.TempDir()
		files := tt.files
		if files == nil {
			files = map[string]int{"model-1.safetensors": 2000, "model-2.safetensors": 3000, "original/x.safetensors": 9000, "tokenizer.json": 10}
		}
		for name, size := range files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if tt.config != "" {
			if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(tt.config), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		x, err := stage.Digest(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		s := setting.Default()
		s.Model.Precision, s.Engine.Args = tt.precision, tt.args
		if got, why := decodeWeights(s, x); got != tt.want || (got == 0) != (why != "") {
			t.Errorf("%s: %d bytes (%s), want %d", tt.name, got, why, tt.want)
		}
	}
}
