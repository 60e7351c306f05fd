package sim

import (
	"fmt"
	"math"
	"time"
)

// Cost says how long one step of the engine takes. The linear model is stated
// in rates; the roofline model, in force where PeakFLOPS is set, derives the
// time from the hardware: the larger of arithmetic and memory traffic.
type Cost struct {
	PrefillRate float64       // prompt tokens per second
	DecodeRate  float64       // decoding steps per second with one sequence
	PerSequence time.Duration // what each further sequence adds to a decoding step
	Overhead    time.Duration // of every step, in both models

	PeakFLOPS         float64 // of the whole engine, 1/s; 0: the linear model
	Bandwidth         float64 // bytes per second
	Parameters        float64 // weights that a token passes
	BytesPerParameter float64
	KVBytesPerToken   float64
	Efficiency        float64 // part of both peaks that is reached, in (0, 1]
}

// DefaultCost resembles an 8-billion-parameter model on one large GPU.
func DefaultCost() Cost {
	return Cost{
		PrefillRate: 20_000, DecodeRate: 100, PerSequence: 20 * time.Microsecond,
		BytesPerParameter: 2, Efficiency: 1,
	}
}

func (c Cost) check() error {
	positive := map[string]float64{"--prefill-rate": c.PrefillRate, "--decode-rate": c.DecodeRate}
	if c.PeakFLOPS != 0 {
		positive = map[string]float64{
			"--peak-flops": c.PeakFLOPS, "--bandwidth": c.Bandwidth, "--parameters": c.Parameters,
			"--bytes-per-parameter": c.BytesPerParameter, "--efficiency": c.Efficiency,
		}
		if c.Efficiency > 1 {
			return fmt.Errorf("--efficiency %v is over 1", c.Efficiency)
		}
	}
	for name, v := range positive {
		if !(v > 0) || math.IsInf(v, 0) {
			return fmt.Errorf("%s %v: want a positive number", name, v)
		}
	}
	if c.KVBytesPerToken < 0 || c.PerSequence < 0 || c.Overhead < 0 {
		return fmt.Errorf("costs must not be negative")
	}
	return nil
}

// work is what one step does.
type work struct {
	prefill   int // prompt tokens
	sequences int // sequences that decode
	verified  int // tokens the decoding sequences pass through the model, drafts included
	context   int // tokens of all sequences whose keys and values are read
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// step is 0 for no work, and at least a nanosecond for any.
func (c Cost) step(w work) time.Duration {
	if w.prefill == 0 && w.sequences == 0 {
		return 0
	}
	if c.PeakFLOPS > 0 {
		arithmetic := 2 * c.Parameters * float64(w.prefill+w.verified) / (c.PeakFLOPS * c.Efficiency)
		traffic := (c.Parameters*c.BytesPerParameter + c.KVBytesPerToken*float64(w.context)) / (c.Bandwidth * c.Efficiency)
		return max(c.Overhead+seconds(max(arithmetic, traffic)), 1)
	}
	d := c.Overhead + seconds(float64(w.prefill)/c.PrefillRate)
	if w.sequences > 0 {
		d += seconds(1/c.DecodeRate) + time.Duration(w.sequences-1)*c.PerSequence
	}
	return max(d, 1)
}
