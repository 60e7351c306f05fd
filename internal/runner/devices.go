package runner

import (
	"path/filepath"
	"runtime"
	"time"

	"sbench/internal/fingerprint"
	"sbench/internal/result"
	"sbench/internal/runner/gpu"
)

// devicePeriod is how often the devices are sampled, by a process of its own.
const devicePeriod = 100 * time.Millisecond

// gpuHelper is the helper for this node: the spec names the one for x86-64, beside
// which lies that for ARM.
func (a *attempt) gpuHelper() gpu.Helper {
	path := a.spec.Node.GPUHelper
	if arm := path + "-arm64"; runtime.GOARCH == "arm64" && exists(arm) {
		path = arm
	}
	return gpu.Helper{
		Path: path, Supervisor: a.supervisor,
		Deadline: orDefault(a.spec.Node.Deadlines.GPU, 20*time.Second),
	}
}

// startDevices samples the devices where the node has real ones; nil elsewhere.
func (a *attempt) startDevices() *gpu.Sampler {
	if a.fingerprint.Nodes[0].GPUs == nil {
		return nil
	}
	s, err := a.gpuHelper().Sample(filepath.Join(a.dirs.temp, "gpu-samples"), devicePeriod)
	if err != nil {
		a.log.Warn("the GPUs are not sampled", "error", err)
		return nil
	}
	return s
}

// deviceSamples are what was sampled, on the helper's clock.
type deviceSamples struct {
	samples []fingerprint.GPUSample
	origin  int64 // of the attempt's clock, on the helper's
	devices []int
}

func (a *attempt) stopDevices(s *gpu.Sampler) deviceSamples {
	d := deviceSamples{origin: gpu.Monotonic() - a.clock.Now()}
	for _, g := range a.fingerprint.Nodes[0].Assigned() {
		d.devices = append(d.devices, g.Index)
	}
	if s == nil {
		return d
	}
	var err error
	if d.samples, err = s.Stop(); err != nil {
		a.log.Warn("sampling the GPUs", "error", err)
	}
	a.telemetry = append(a.telemetry, gpu.Telemetry(d.samples, d.devices, d.origin)...)
	return d
}

// addEnergy completes the metrics that need the devices' counters.
func (a *attempt) addEnergy(w *result.Window, d deviceSamples) {
	const total, each = "energy_joules", "energy_per_output_token"
	if _, known := w.Metrics[total]; !known || a.fingerprint.Nodes[0].GPUs == nil {
		return
	}
	joules, why := a.energy(*w, d)
	if joules == nil {
		w.NullReasons[total], w.NullReasons[each] = why, why
		return
	}
	w.Metrics[total] = joules
	delete(w.NullReasons, total)
	rate := w.Metrics["output_tokens_per_s"]
	if rate == nil || *rate <= 0 {
		w.NullReasons[each] = "the output tokens are not known"
		return
	}
	share := *joules / (*rate * float64(w.End-w.Start) / 1e9)
	w.Metrics[each] = &share
	delete(w.NullReasons, each)
}

// energy is what this node's devices took in a window; nil where it is not known.
func (a *attempt) energy(w result.Window, d deviceSamples) (joules *float64, why string) {
	return gpu.Energy(d.samples, d.devices, w.Start+d.origin, w.End+d.origin)
}

// checkDevices judges the devices under load, over all windows together.
func (a *attempt) checkDevices(windows []result.Window, d deviceSamples) {
	if a.fingerprint.Nodes[0].GPUs == nil || len(windows) == 0 {
		return
	}
	from, to := windows[0].Start+d.origin, windows[len(windows)-1].End+d.origin
	a.checks = append(a.checks, gpu.LoadChecks(a.setting.Environment, d.samples, d.devices, from, to)...)
}
