package metrics

import "math"

// Shape is what a decoder-only model costs per step. All fields are positive.
type Shape struct {
	WeightBytes  float64 `json:"weight_bytes"`  // read per step; without an untied input embedding
	ActiveParams float64 `json:"active_params"` // that a token passes
	Layers       float64 `json:"layers"`
	KVHeads      float64 `json:"kv_heads"`
	HeadDim      float64 `json:"head_dim"`
	Heads        float64 `json:"heads"`
	KVBytes      float64 `json:"kv_bytes"` // per element of the cache
}

// Device is the peak of all GPUs of a setting together.
type Device struct {
	Bandwidth float64 // bytes/s
	FLOPS     float64 // 1/s
}

// Step is what one decode step of a batch has to do, and what a device could.
type Step struct {
	Bytes, FLOP      float64
	Memory, Compute  float64 // seconds at the peaks
	AttainablePerS   float64 // tokens/s of the whole batch
	KVCacheBytes     float64
	BandwidthLimited bool
}

// Roofline is one decode step of batch sequences with context tokens each.
func Roofline(s Shape, d Device, batch, context float64) Step {
	perToken := 2 * s.Layers * s.KVHeads * s.HeadDim * s.KVBytes
	step := Step{
		KVCacheBytes: batch * context * perToken,
		FLOP:         2*s.ActiveParams*batch + 4*s.Layers*s.Heads*s.HeadDim*context*batch,
	}
	step.Bytes = s.WeightBytes + step.KVCacheBytes
	step.Memory, step.Compute = step.Bytes/d.Bandwidth, step.FLOP/d.FLOPS
	step.BandwidthLimited = step.Memory >= step.Compute
	step.AttainablePerS = batch / math.Max(step.Memory, step.Compute)
	return step
}

// MBU and MFU are the shares of the memory bandwidth and of the arithmetic peak
// that a measured step of so many seconds used. An MBU above 1 is a measurement
// error.
func (s Step) MBU(d Device, seconds float64) float64 { return s.Bytes / seconds / d.Bandwidth }

// MFU is the arithmetic counterpart of MBU.
func (s Step) MFU(d Device, seconds float64) float64 { return s.FLOP / seconds / d.FLOPS }

// ExpectedExperts is how many of experts a layer reads for a batch whose tokens
// choose each at random.
func ExpectedExperts(experts, chosen, batch float64) float64 {
	return experts * (1 - math.Pow(1-chosen/experts, batch))
}
