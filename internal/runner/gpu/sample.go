package gpu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sbench/internal/fingerprint"
	"sbench/internal/proc"
	"sbench/internal/result"
	"sbench/internal/setting"
)

// Sampler is sbench-gpu sampling into a file: nothing of it runs in the load
// generator's process until Stop reads the file.
type Sampler struct {
	tree *proc.Tree
	file *os.File
}

// Sample starts sampling into path, which must not exist.
func (h Helper) Sample(path string, period time.Duration) (*Sampler, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	tree, err := h.Supervisor.Start(proc.Spec{
		Argv: []string{h.Path, "sample", "--period", period.String()}, Env: environ(), Stdout: f,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, err), f.Close())
	}
	return &Sampler{tree: tree, file: f}, nil
}

// maxSamples bounds what is read: ten hours of eight devices at 100 ms.
const maxSamples = 3_000_000

// Stop ends the sampling and returns what was sampled. A helper that ended by
// itself, or wrote what cannot be read, is an error beside the samples.
func (s *Sampler) Stop() (samples []fingerprint.GPUSample, err error) {
	select {
	case <-s.tree.Done():
		err = fmt.Errorf("%w: sbench-gpu ended while it sampled (%v)", ErrUnavailable, s.tree.Exit())
	default:
	}
	err = errors.Join(err, s.tree.Stop(2*time.Second))
	if _, seekErr := s.file.Seek(0, 0); seekErr != nil {
		return nil, errors.Join(err, seekErr, s.file.Close())
	}
	lines := bufio.NewScanner(s.file)
	for lines.Scan() && len(samples) < maxSamples {
		var x fingerprint.GPUSample
		if json.Unmarshal(lines.Bytes(), &x) != nil {
			break // the last line may be cut; {"error": …} has been noticed above
		}
		samples = append(samples, x)
	}
	return samples, errors.Join(err, lines.Err(), s.file.Close())
}

// Monotonic is CLOCK_MONOTONIC, the clock of the samples, in nanoseconds.
func Monotonic() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return ts.Nano()
}

// Telemetry turns samples of the given devices into rows, at times that are
// origin less.
func Telemetry(samples []fingerprint.GPUSample, devices []int, origin int64) []result.Telemetry {
	var rows []result.Telemetry
	for _, x := range samples {
		if !slices.Contains(devices, x.GPU) {
			continue
		}
		source := "gpu" + strconv.Itoa(x.GPU)
		add := func(name string, v *float64) {
			rows = append(rows, result.Telemetry{T: x.TimeNS - origin, Source: source, Name: name, Value: v})
		}
		add("utilization_percent", float(x.Utilization))
		add("memory_utilization_percent", float(x.MemoryUtilization))
		add("memory_used_bytes", float(x.MemoryUsed))
		add("sm_clock_mhz", float(x.SM))
		add("mem_clock_mhz", float(x.Mem))
		add("power_instant_watts", x.PowerInstant)
		add("power_average_watts", x.PowerAverage)
		add("temperature_c", float(x.TemperatureC))
		var joules *float64
		if x.EnergyMillijoules != nil {
			j := float64(*x.EnergyMillijoules) / 1000
			joules = &j
		}
		add("energy_joules", joules)
	}
	return rows
}

func float(v *int64) *float64 {
	if v == nil {
		return nil
	}
	f := float64(*v)
	return &f
}

// Energy is what the devices used between two times of the samples' clock, in
// joules: the growth of their counters, read at the window's edges by linear
// interpolation. It is nil, with the reason, where any device gives too little.
func Energy(samples []fingerprint.GPUSample, devices []int, start, end int64) (*float64, string) {
	if len(devices) == 0 {
		return nil, "no GPU was allocated"
	}
	total := 0.0
	for _, d := range devices {
		a, okA := counterAt(samples, d, start)
		b, okB := counterAt(samples, d, end)
		if !okA || !okB {
			return nil, fmt.Sprintf("gpu %d gave no energy counter at the window's edges", d)
		}
		if b < a {
			return nil, fmt.Sprintf("the energy counter of gpu %d ran backwards", d)
		}
		total += (b - a) / 1000
	}
	return &total, ""
}

// counterAt interpolates a device's energy counter, in millijoules. The samples
// around the time must not be far apart.
func counterAt(samples []fingerprint.GPUSample, device int, at int64) (float64, bool) {
	const far = int64(5 * time.Second)
	var before, after *fingerprint.GPUSample
	for i := range samples {
		x := &samples[i]
		if x.GPU != device || x.EnergyMillijoules == nil {
			continue
		}
		if x.TimeNS <= at {
			before = x
		} else {
			after = x
			break
		}
	}
	if before == nil || after == nil || after.TimeNS-before.TimeNS > far {
		return 0, false
	}
	share := float64(at-before.TimeNS) / float64(after.TimeNS-before.TimeNS)
	a, b := float64(*before.EnergyMillijoules), float64(*after.EnergyMillijoules)
	return a + share*(b-a), true
}

// clockTolerance is how far a clock may be from its lock: devices step by 15 MHz.
const clockTolerance = 15

// LoadChecks judges the devices while they were under load, between start and
// end: clocks against their lock, and slowdowns. Only samples of a busy device
// count for its clocks.
func LoadChecks(e setting.Environment, samples []fingerprint.GPUSample, devices []int, start, end int64) []result.Check {
	var used []fingerprint.GPUSample
	for _, x := range samples {
		if slices.Contains(devices, x.GPU) && x.TimeNS >= start && x.TimeNS < end {
			used = append(used, x)
		}
	}
	checks := []result.Check{throttled(used), xids(samples, devices)}
	for _, c := range []struct {
		name, pin string
		read      func(fingerprint.GPUSample) *int64
	}{
		{"gpu_sm_clock", e.SMClock, func(x fingerprint.GPUSample) *int64 { return x.SM }},
		{"gpu_mem_clock", e.MemClock, func(x fingerprint.GPUSample) *int64 { return x.Mem }},
	} {
		if c.pin != "" && c.pin != setting.Unpinned {
			checks = append(checks, locked(c.name, c.pin, used, c.read))
		}
	}
	return checks
}

func throttled(samples []fingerprint.GPUSample) result.Check {
	c := result.Check{Name: "gpu_throttle_under_load", Kind: result.CheckHarness, Unit: "ratio"}
	known, bad := 0, 0
	var worst string
	for _, x := range samples {
		if x.Throttle == nil {
			continue
		}
		known++
		for _, reason := range *x.Throttle {
			if fingerprint.IsHarmful(reason) {
				bad++
				worst = fmt.Sprintf("gpu %d: %s", x.GPU, reason)
				break
			}
		}
	}
	if known == 0 {
		c.Verdict, c.Reason = result.VerdictUnknown, "the throttle reasons were not sampled"
		return c
	}
	share, none := float64(bad)/float64(known), 0.0
	c.Value, c.Threshold = &share, &none
	if bad > 0 {
		c.Verdict, c.Reason = result.VerdictFail, fmt.Sprintf("%d of %d samples under load say that a device was slowed down (%s)", bad, known, worst)
		return c
	}
	c.Verdict, c.Reason = result.VerdictPass, "no device was slowed down under load"
	return c
}

// xids judges the errors that the driver reported at any time of the sampling: a
// device that had one before the window is not what it was.
func xids(samples []fingerprint.GPUSample, devices []int) result.Check {
	c := result.Check{Name: "gpu_xid", Kind: result.CheckHarness}
	listened := map[int]bool{}
	var found []string
	for _, x := range samples {
		if x.Xids == nil || !slices.Contains(devices, x.GPU) {
			continue
		}
		listened[x.GPU] = true
		for _, xid := range *x.Xids {
			if text := fmt.Sprintf("Xid %d on gpu %d", xid, x.GPU); !slices.Contains(found, text) {
				found = append(found, text)
			}
		}
	}
	switch {
	case len(found) > 0:
		c.Verdict, c.Reason = result.VerdictFail, "the driver reported "+strings.Join(found, ", ")
	case len(listened) < len(devices) || len(devices) == 0:
		c.Verdict, c.Reason = result.VerdictNotApplicable, "the driver cannot be listened to for errors"
	default:
		c.Verdict, c.Reason = result.VerdictPass, "the driver reported no error of a device"
	}
	return c
}

func locked(name, pin string, samples []fingerprint.GPUSample, read func(fingerprint.GPUSample) *int64) result.Check {
	c := result.Check{Name: name, Kind: result.CheckHarness, Unit: "MHz"}
	var want float64
	if _, err := fmt.Sscanf(pin, "%gMHz", &want); err != nil {
		c.Verdict, c.Reason = result.VerdictUnknown, fmt.Sprintf("the pin %s is no clock", pin)
		return c
	}
	worst, n := 0.0, 0
	for _, x := range samples {
		clock := read(x)
		if clock == nil || x.Utilization != nil && *x.Utilization == 0 {
			continue
		}
		n++
		worst = math.Max(worst, math.Abs(float64(*clock)-want))
	}
	tolerance := float64(clockTolerance)
	c.Threshold = &tolerance
	switch {
	case n == 0:
		c.Verdict, c.Reason = result.VerdictUnknown, "the clock was not sampled under load"
		return c
	case worst > tolerance:
		c.Verdict, c.Reason = result.VerdictFail, fmt.Sprintf("under load the clock was up to %.0f MHz away from the %s that is pinned", worst, pin)
	default:
		c.Verdict, c.Reason = result.VerdictPass, fmt.Sprintf("under load the clock stayed within %.0f MHz of %s", worst, pin)
	}
	c.Value = &worst
	return c
}
