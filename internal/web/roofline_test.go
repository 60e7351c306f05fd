package web_test

import (
	"math"
	"strings"
	"testing"

	"sbench/internal/api"
	"sbench/internal/compare"
	"sbench/internal/fingerprint"
	"sbench/internal/setting"
	"sbench/internal/web"
)

// llama8B is Llama 3.1 8B in BF16.
func llama8B() *api.ModelShape {
	return &api.ModelShape{WeightBytes: 16.06e9, ActiveParams: 8.03e9, Layers: 32, KVHeads: 8, HeadDim: 128, Heads: 32, KVBytes: 2}
}

// TestRoofline: 64 sequences of 2,048 tokens in 12.5 ms a step, the known answer
// of the definition; half of everything on twice the devices.
func TestRoofline(t *testing.T) {
	t.Parallel()
	row := func(gpu string, gpus, nodes int, seconds float64) compare.Row {
		s := setting.Default()
		s.Hardware.GPU, s.Hardware.GPUs, s.Hardware.Nodes = gpu, gpus, nodes
		s.Normalize()
		in, out, batch, rate := 1920.0, 256.0, 64.0, 64/seconds
		return compare.Row{Axes: s.FlatValues(), Runs: []compare.Run{{Metrics: map[string]*float64{
			"tpot_mean": &seconds, "concurrency_mean": &batch, "input_tokens_mean": &in, "output_tokens_mean": &out, "output_tokens_per_s": &rate,
		}}}}
	}
	h100, ok := fingerprint.Find("h100-sxm")
	if !ok {
		t.Fatal("the catalogue has no h100-sxm")
	}
	// Bytes and FLOP of the step, from the definition: weights and 131,072 bytes of
	// cache a token; two per parameter and the attention.
	bytes := 16.06e9 + 64*2048*131072.0
	flop := 2*8.03e9*64 + 4*32*4096*2048*64.0
	if bytes != 33239869184 {
		t.Fatalf("%v bytes", bytes)
	}
	near := func(got *float64, want float64) bool { return got != nil && math.Abs(*got/want-1) < 1e-9 }
	for _, test := range []struct{ gpus, nodes int }{{1, 1}, {2, 1}, {2, 4}} {
		n := float64(test.gpus * test.nodes)
		got := web.RooflineOf(row("h100-sxm", test.gpus, test.nodes, 0.0125), llama8B())
		mbu, mfu := bytes/0.0125/(n*h100.BandwidthBytes), flop/0.0125/(n*h100.PeakFlops)
		if !near(got.MBU, mbu) || !near(got.MFU, mfu) || !near(got.RooflineRatio, mbu) || got.RooflineNote != "" {
			t.Errorf("%d GPUs on %d nodes: MBU %v, MFU %v, ratio %v, %q; want %v, %v", test.gpus, test.nodes, deref(got.MBU), deref(got.MFU), deref(got.RooflineRatio), got.RooflineNote, mbu, mfu)
		}
	}
	// Faster than the memory: a number that is wrong is not shown.
	got := web.RooflineOf(row("h100-sxm", 1, 1, 0.009), llama8B())
	if got.MBU != nil || got.MFU != nil || got.RooflineRatio != nil || !strings.Contains(got.RooflineNote, "MBU 1.10: above 1") {
		t.Errorf("beyond the memory's bandwidth: %+v", got)
	}
	// The time per token is possible and the throughput is not: more tokens than the
	// batch at hand makes.
	more := row("h100-sxm", 1, 1, 0.0125)
	rate := 8000.0
	more.Runs[0].Metrics["output_tokens_per_s"] = &rate
	if got := web.RooflineOf(more, llama8B()); got.MBU != nil || !strings.Contains(got.RooflineNote, "1.24 of the attainable tokens/s") {
		t.Errorf("beyond the attainable rate: %+v", got)
	}
	got = web.RooflineOf(row("h900", 1, 1, 0.0125), llama8B())
	if got.MBU != nil || !strings.Contains(got.RooflineNote, "no peaks of h900") {
		t.Errorf("unknown GPU: %+v", got)
	}
	missing := row("h100-sxm", 1, 1, 0.0125)
	missing.Runs[0].Metrics["tpot_mean"] = nil
	if got = web.RooflineOf(missing, llama8B()); got.MBU != nil || got.RooflineNote == "" {
		t.Errorf("no time per token: %+v", got)
	}
	if got = web.RooflineOf(missing, nil); got.RooflineNote != "" {
		t.Errorf("nobody asked: %+v", got)
	}
}

func deref(v *float64) any {
	if v == nil {
		return nil
	}
	return *v
}
