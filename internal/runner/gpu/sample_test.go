package gpu

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sbench/internal/fingerprint"
	"sbench/internal/proc"
	"sbench/internal/result"
	"sbench/internal/setting"
)

func ptr[T any](v T) *T { return &v }

func TestHelper_Sample(t *testing.T) {
	s, err := proc.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	start := func(script string) *Sampler {
		dir := t.TempDir()
		path := filepath.Join(dir, "sbench-gpu")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		sampler, err := Helper{Path: path, Supervisor: s}.Sample(filepath.Join(dir, "samples"), 100*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		return sampler
	}
	good := start(`[ "$*" = "sample --period 100ms" ] || exit 2; echo '{"time_ns":1,"gpu":0,"sm_mhz":1410}'; printf '{"time_ns":2,"gp'; touch "$0.done"; exec sleep 300`)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(good.file.Name()[:len(good.file.Name())-len("samples")] + "sbench-gpu.done"); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the helper did not write")
		}
	}
	samples, err := good.Stop()
	if err != nil || len(samples) != 1 || *samples[0].SM != 1410 || samples[0].Mem != nil {
		t.Errorf("%+v, %v", samples, err)
	}
	bad := start(`echo '{"error":"lost","code":"gpu_lost"}'; exit 1`)
	<-bad.tree.Done()
	if _, err := bad.Stop(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a helper that ended: %v", err)
	}
}

func series(device int, from, to int64, millijoules func(t int64) int64) []fingerprint.GPUSample {
	var out []fingerprint.GPUSample
	for at := from; at <= to; at += int64(100 * time.Millisecond) {
		out = append(out, fingerprint.GPUSample{
			TimeNS: at, GPU: device, EnergyMillijoules: ptr(millijoules(at)), Utilization: ptr(int64(100)), SM: ptr(int64(1410)),
			Throttle: &[]string{"sw_power_cap"}, Xids: &[]int64{},
		})
	}
	return out
}

func TestEnergy(t *testing.T) {
	t.Parallel()
	const second = int64(time.Second)
	// 400 W and 100 W.
	samples := append(series(0, 0, 10*second, func(t int64) int64 { return 400 * t / 1e6 }), series(1, 0, 10*second, func(t int64) int64 { return 100 * t / 1e6 })...)
	got, why := Energy(samples, []int{0, 1}, second+50_000_000, 5*second+50_000_000)
	if got == nil || math.Abs(*got-2000) > 0.01 {
		t.Errorf("%v %s, want 2000 J", got, why)
	}
	for name, f := range map[string]func() (*float64, string){
		"no device": func() (*float64, string) { return Energy(samples, nil, 0, second) },
		"unknown":   func() (*float64, string) { return Energy(samples, []int{0, 2}, second, 2*second) },
		"too early": func() (*float64, string) { return Energy(samples, []int{0}, -1, second) },
		"too late":  func() (*float64, string) { return Energy(samples, []int{0}, 0, 11*second) },
		"a gap": func() (*float64, string) {
			return Energy([]fingerprint.GPUSample{samples[0], samples[100]}, []int{0}, second, 2*second)
		},
		"a new start": func() (*float64, string) {
			return Energy(series(0, 0, 2*second, func(t int64) int64 { return -t / 1e6 }), []int{0}, 0, second)
		},
		"not there": func() (*float64, string) {
			return Energy([]fingerprint.GPUSample{{TimeNS: 0}, {TimeNS: 2}}, []int{0}, 0, 1)
		},
	} {
		if v, why := f(); v != nil || why == "" {
			t.Errorf("%s: %v, %q", name, v, why)
		}
	}
}

func TestLoadChecks(t *testing.T) {
	t.Parallel()
	const second = int64(time.Second)
	good := func() []fingerprint.GPUSample { return series(0, 0, 10*second, func(int64) int64 { return 0 }) }
	tests := []struct {
		name   string
		change func([]fingerprint.GPUSample) []fingerprint.GPUSample
		pin    string
		want   string // name=verdict of what is not a pass
	}{
		{"good", func(x []fingerprint.GPUSample) []fingerprint.GPUSample { return x }, "1410MHz", ""},
		{"one step", func(x []fingerprint.GPUSample) []fingerprint.GPUSample { x[50].SM = ptr(int64(1395)); return x }, "1410MHz", ""},
		{"drop", func(x []fingerprint.GPUSample) []fingerprint.GPUSample { x[50].SM = ptr(int64(1200)); return x }, "1410MHz", "gpu_sm_clock=fail"},
		{"drop, not pinned", func(x []fingerprint.GPUSample) []fingerprint.GPUSample { x[50].SM = ptr(int64(1200)); return x }, setting.Unpinned, ""},
		{"drop outside", func(x []fingerprint.GPUSample) []fingerprint.GPUSample { x[0].SM = ptr(int64(200)); return x }, "1410MHz", ""},
		{"idle drop", func(x []fingerprint.GPUSample) []fingerprint.GPUSample {
			x[50].SM, x[50].Utilization = ptr(int64(200)), ptr(int64(0))
			return x
		}, "1410MHz", ""},
		{"hot", func(x []fingerprint.GPUSample) []fingerprint.GPUSample {
			x[50].Throttle = &[]string{"hw_thermal_slowdown"}
			return x
		}, setting.Unpinned, "gpu_throttle_under_load=fail"},
		{"nothing", func([]fingerprint.GPUSample) []fingerprint.GPUSample { return nil }, "1410MHz", "gpu_throttle_under_load=unknown gpu_xid=not_applicable gpu_sm_clock=unknown"},
		{"xid before the window", func(x []fingerprint.GPUSample) []fingerprint.GPUSample { x[0].Xids = &[]int64{79}; return x }, setting.Unpinned, "gpu_xid=fail"},
		{"nobody listens", func(x []fingerprint.GPUSample) []fingerprint.GPUSample {
			for i := range x {
				x[i].Xids = nil
			}
			return x
		}, setting.Unpinned, "gpu_xid=not_applicable"},
		{"no clock", func(x []fingerprint.GPUSample) []fingerprint.GPUSample { return x }, "fast", "gpu_sm_clock=unknown"},
	}
	for _, tt := range tests {
		var got []string
		for _, c := range LoadChecks(setting.Environment{SMClock: tt.pin, MemClock: setting.Unpinned}, tt.change(good()), []int{0}, second, 9*second) {
			if c.Verdict != result.VerdictPass {
				got = append(got, c.Name+"="+string(c.Verdict))
			}
			if c.Reason == "" || c.Kind != result.CheckHarness {
				t.Errorf("%s: %+v", tt.name, c)
			}
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, s, tt.want)
		}
	}
}

func TestTelemetry(t *testing.T) {
	t.Parallel()
	rows := Telemetry([]fingerprint.GPUSample{{TimeNS: 105, GPU: 1, EnergyMillijoules: ptr(int64(1500))}, {TimeNS: 106, GPU: 0}}, []int{1}, 100)
	found := false
	for _, r := range rows {
		if r.T != 5 || r.Source != "gpu1" {
			t.Errorf("%+v", r)
		}
		if r.Name == "energy_joules" {
			found = r.Value != nil && *r.Value == 1.5
		} else if r.Value != nil {
			t.Errorf("%s: %v, want null", r.Name, *r.Value)
		}
	}
	if !found {
		t.Error("no energy")
	}
}
