package engine

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// vllmStart is what vLLM 0.8.3 writes when its core starts, as users report it.
const vllmStart = "INFO 04-17 23:04:52 [api_server.py:1034] vLLM API server version 0.8.3\n" +
	"(EngineCore_1 pid=2095613) INFO 04-17 23:05:00 [core.py:61] Initializing a V1 LLM engine (v0.8.3) with config: " +
	"model='/sbench/model', speculative_config=None, tokenizer_mode=auto, dtype=torch.bfloat16, max_seq_len=102400, " +
	"kv_cache_dtype=auto,  device_config=cuda, decoding_config=DecodingConfig(guided_decoding_backend='xgrammar', reasoning_backend=None), " +
	"seed=None, enable_prefix_caching=True, compilation_config={\"level\":3,\"custom_ops\":[\"none\"],\"compile_sizes\":[]}\n" +
	"INFO 04-17 23:05:02 [parallel_state.py:957] rank 0 in world size 1 is assigned as DP rank 0\n"

func TestResolved_VLLM(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"model": "/sbench/model", "speculative_config": "None", "tokenizer_mode": "auto", "dtype": "torch.bfloat16", "max_seq_len": "102400",
		"kv_cache_dtype": "auto", "device_config": "cuda",
		"decoding_config": "DecodingConfig(guided_decoding_backend='xgrammar', reasoning_backend=None)",
		"seed":            "None", "enable_prefix_caching": "True", "compilation_config": `{"level":3,"custom_ops":["none"],"compile_sizes":[]}`,
	}
	if diff := cmp.Diff(want, vllm{}.Resolved(nil, vllmStart)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := (vllm{}).Resolved(nil, "INFO nothing of it\n"); got != nil {
		t.Errorf("%v from another log", got)
	}
	long := vllm{}.Resolved(nil, strings.Replace(vllmStart, "[\"none\"]", "["+strings.Repeat("1, ", 500)+"]", 1))
	if !strings.HasPrefix(long["compilation_config"], "sha256:") {
		t.Errorf("a long value is %.40q", long["compilation_config"])
	}
}

func FuzzResolvedVLLM(f *testing.F) {
	f.Add(vllmStart)
	f.Fuzz(func(t *testing.T, log string) {
		for name, value := range resolvedVLLM(log) {
			if len(name) > 300 || len(value) > 1000 {
				t.Errorf("%q=%q", name, value)
			}
		}
	})
}

func TestResetCache(t *testing.T) {
	t.Parallel()
	r := serve(t, func(w http.ResponseWriter, req *http.Request) {
		switch req.Method + " " + req.URL.Path {
		case "POST /flush_cache":
		case "POST /reset_prefix_cache":
			http.NotFound(w, req)
		default:
			t.Errorf("%s %s", req.Method, req.URL.Path)
		}
	})
	base := "http://" + net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
	if route, err := ResetCache(t.Context(), command{}, base); err != nil || route != "/flush_cache" {
		t.Errorf("command: %q, %v", route, err)
	}
	if _, err := ResetCache(t.Context(), vllm{}, base); !errors.Is(err, ErrNoReset) {
		t.Errorf("vllm without its developer mode: %v", err)
	}
	if _, err := ResetCache(t.Context(), llamacpp{}, base); !errors.Is(err, ErrNoReset) {
		t.Errorf("llamacpp: %v", err)
	}
	broken := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusBadRequest) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := ResetCache(ctx, sglang{}, "http://"+net.JoinHostPort(broken.Host, strconv.Itoa(broken.Port)))
	if err == nil || errors.Is(err, ErrNoReset) || !strings.Contains(err.Error(), "answers 400: busy") {
		t.Errorf("an engine that refuses: %v", err)
	}
}
