package setting

import (
	"strings"
	"time"

	"sbench/internal/unit"
)

// Default is the setting that a sweep file which says nothing would have: every
// default that does not depend on other axes is in place. What a user must give
// is still empty.
func Default() Setting {
	return Setting{
		Model:  Model{Precision: "auto"},
		Image:  Image{Kind: ImageSIF},
		Engine: Engine{ServerLife: ServerLifeRun},
		Hardware: Hardware{
			GPUs: 1, Nodes: 1, Placement: PlacementNode,
		},
		Parallel: Parallel{Tensor: 1, Pipeline: 1, Data: 1, Expert: 1},
		Workload: Workload{
			Kind: "serving",
			Request: Request{
				Endpoint: EndpointCompletions, Stream: true, IgnoreEOS: true, TopP: 1,
				TimeoutFirstToken: 2 * time.Minute, TimeoutTotal: 10 * time.Minute,
			},
			Arrival: Arrival{Process: ProcessPoisson},
			Prompts: Prompts{Source: "synthetic", Nonce: true, Turns: 1},
			Warmup:  30 * time.Second,
			Ramp:    10 * time.Second,
			Drain:   time.Minute,
		},
	}
}

// Normalize makes every default explicit and writes every value in its one
// form: pins that were left out as Unpinned, digests in lower case, clocks in
// MHz, powers in W, no nil maps or lists. It changes nothing that the user gave
// and is idempotent. It does not judge: see Validate. Maps and slices are never
// changed in place.
func (s *Setting) Normalize() {
	if s.Model.Checkpoint.Path == "" && s.Model.Checkpoint.Digest == "" {
		s.Model.Checkpoint.Digest = ""
	} else {
		pin(&s.Model.Checkpoint.Digest)
	}
	if s.Engine.Args == nil {
		s.Engine.Args = map[string]string{}
	}
	if s.Engine.Env == nil {
		s.Engine.Env = map[string]string{}
	}
	if s.Engine.Command == nil {
		s.Engine.Command = []string{}
	}
	if s.Workload.Ladder == nil {
		s.Workload.Ladder = []float64{}
	}
	for _, p := range []*string{
		&s.Image.Digest, &s.Engine.Version, &s.Hardware.Link,
		&s.Environment.Driver, &s.Environment.CUDA, &s.Environment.NCCL, &s.Environment.MIG, &s.Environment.ECC,
		&s.Environment.SMClock, &s.Environment.MemClock, &s.Environment.PowerLimit, &s.Environment.Kernel, &s.Environment.Governor,
	} {
		pin(p)
	}
	for _, p := range []*string{&s.Image.Digest, &s.Model.Checkpoint.Digest, &s.Workload.Arrival.TraceDigest, &s.Workload.Prompts.FileDigest} {
		*p = strings.ToLower(*p)
	}
	for _, p := range []*string{&s.Environment.SMClock, &s.Environment.MemClock} {
		if mhz, err := unit.Megahertz(*p); err == nil {
			*p = unit.FormatMegahertz(mhz)
		}
	}
	if w, err := unit.Watts(s.Environment.PowerLimit); err == nil {
		s.Environment.PowerLimit = unit.FormatWatts(w)
	}
	w := &s.Workload
	if w.Arrival.Process == ProcessGamma && w.Arrival.Burstiness == 0 {
		w.Arrival.Burstiness = 1
	}
	if w.Arrival.Process == ProcessTrace && w.Arrival.TraceScale == 0 {
		w.Arrival.TraceScale = 1
	}
	if w.Arrival.Process == ProcessStages && w.Duration == 0 {
		for _, stage := range w.Arrival.Stages {
			w.Duration += stage.Duration
		}
	}
	for _, l := range []*Lengths{&w.Input, &w.Output} {
		switch l.Distribution {
		case DistUniform, DistNormal, DistLognormal:
			if l.Min == 0 {
				l.Min = 1
			}
		default:
		}
	}
}

func pin(p *string) {
	if *p == "" {
		*p = Unpinned
	}
}
