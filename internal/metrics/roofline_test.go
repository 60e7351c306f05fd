package metrics

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"testing"
)

// Llama-3.1-8B in BF16 on an H100 SXM (tests/vectors/stats, "roofline").
func TestRoofline_Vectors(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../tests/vectors/stats/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Roofline struct {
			KV    float64 `json:"kv_bytes_per_token"`
			Cases []struct {
				B, S, Bytes, FLOPs float64
				Memory             float64 `json:"t_mem_ms"`
				Compute            float64 `json:"t_comp_ms"`
				TokS               float64 `json:"tok_s"`
				KVGB               float64 `json:"kv_GB"`
			}
			MBU float64            `json:"mbu_at_12_5ms"`
			MFU float64            `json:"mfu_at_12_5ms"`
			MoE map[string]float64 `json:"moe_expected_experts"`
		}
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	shape := Shape{WeightBytes: 16.06e9, Layers: 32, KVHeads: 8, HeadDim: 128, Heads: 32, KVBytes: 2}
	// The vectors give the active parameters by the arithmetic of their first case.
	shape.ActiveParams = (v.Roofline.Cases[0].FLOPs - 4*32*4096*1024) / 2
	device := Device{Bandwidth: 3.35e12, FLOPS: 989.4e12}
	near := func(what string, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 1e-9*math.Max(1, math.Abs(want))) {
			t.Errorf("%s = %.12g, want %.12g", what, got, want)
		}
	}
	if len(v.Roofline.Cases) != 3 {
		t.Fatalf("%d cases", len(v.Roofline.Cases))
	}
	for _, c := range v.Roofline.Cases {
		s := Roofline(shape, device, c.B, c.S)
		near("bytes", s.Bytes, c.Bytes)
		near("flop", s.FLOP, c.FLOPs)
		near("memory time", 1e3*s.Memory, c.Memory)
		near("compute time", 1e3*s.Compute, c.Compute)
		near("tokens/s", s.AttainablePerS, c.TokS)
		near("cache", s.KVCacheBytes/1e9, c.KVGB)
		near("bytes per token", s.KVCacheBytes/c.B/c.S, v.Roofline.KV)
		if !s.BandwidthLimited {
			t.Errorf("B %g: not limited by memory", c.B)
		}
	}
	s := Roofline(shape, device, 64, 2048)
	near("MBU", s.MBU(device, 0.0125), v.Roofline.MBU)
	near("MFU", s.MFU(device, 0.0125), v.Roofline.MFU)
	for batch, want := range v.Roofline.MoE {
		n, err := strconv.ParseFloat(batch, 64)
		if err != nil {
			t.Fatal(err)
		}
		near("experts", ExpectedExperts(128, 8, n), want)
	}
}
