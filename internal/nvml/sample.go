//go:build cgo

package nvml

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"sbench/internal/fingerprint"
)

// Sample writes one JSON line per device and period until ctx ends or w fails.
func Sample(ctx context.Context, w io.Writer, period time.Duration) error {
	s, closeLibrary, err := open()
	if err != nil {
		return err
	}
	defer closeLibrary()
	return s.sample(ctx, w, period)
}

func (s *session) sample(ctx context.Context, w io.Writer, period time.Duration) error {
	devices, err := s.devices()
	if err != nil {
		return err
	}
	xids, stopListening := s.listen(devices)
	defer stopListening()
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	out := json.NewEncoder(w)
	for {
		reported := xids()
		for i, d := range devices {
			x := s.one(i, d)
			x.Xids = reported(i)
			if err := out.Encode(x); err != nil {
				return fmt.Errorf("write sample: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// one reads a device. Its time is between before and after the questions.
func (s *session) one(index int, d lib.Device) fingerprint.GPUSample {
	before := monotonic()
	x := fingerprint.GPUSample{GPU: index}
	if u := ask(s, d.GetUtilizationRates, "nvmlDeviceGetUtilizationRates"); u != nil {
		x.Utilization, x.MemoryUtilization = number(&u.Gpu), number(&u.Memory)
	}
	if m := ask(s, d.GetMemoryInfo, "nvmlDeviceGetMemoryInfo"); m != nil {
		x.MemoryUsed = number(&m.Used)
	}
	x.SM = number(ask(s, func() (uint32, lib.Return) { return d.GetClockInfo(lib.CLOCK_SM) }, "nvmlDeviceGetClockInfo"))
	x.Mem = number(ask(s, func() (uint32, lib.Return) { return d.GetClockInfo(lib.CLOCK_MEM) }, "nvmlDeviceGetClockInfo"))
	x.TemperatureC = number(ask(s, func() (uint32, lib.Return) { return d.GetTemperature(lib.TEMPERATURE_GPU) }, "nvmlDeviceGetTemperature"))
	x.EnergyMillijoules = number(ask(s, d.GetTotalEnergyConsumption, "nvmlDeviceGetTotalEnergyConsumption"))
	if bits := s.throttle(d); bits != nil {
		reasons := throttleReasons(*bits)
		x.Throttle = &reasons
	}
	x.PowerInstant, x.PowerAverage = s.power(d)
	x.TimeNS = before + (monotonic()-before)/2
	return x
}

// power asks for the instantaneous and the averaged draw. Drivers that do not
// know the difference give one figure, which is an average on data-centre
// devices before Hopper and instantaneous on others: it is stored as neither.
func (s *session) power(d lib.Device) (instant, average *float64) {
	values := []lib.FieldValue{{FieldId: lib.FI_DEV_POWER_INSTANT}, {FieldId: lib.FI_DEV_POWER_AVERAGE}}
	got := ask(s, func() ([]lib.FieldValue, lib.Return) { return values, d.GetFieldValues(values) }, "nvmlDeviceGetFieldValues")
	if got == nil {
		return nil, nil
	}
	read := func(v lib.FieldValue) *float64 {
		if lib.Return(v.NvmlReturn) != lib.SUCCESS {
			return nil
		}
		milliwatts := uint32(binary.NativeEndian.Uint64(v.Value[:]))
		return watts(&milliwatts)
	}
	return read((*got)[0]), read((*got)[1])
}

// LockClocks fixes the SM clock of the devices, in MHz, and the memory clock
// where that is not 0. It needs root.
func LockClocks(which []string, sm, mem uint32) error {
	return eachDevice(which, func(s *session, d lib.Device) error {
		if err := command(s, "lock SM clock", func() lib.Return { return d.SetGpuLockedClocks(sm, sm) }, "nvmlDeviceSetGpuLockedClocks"); err != nil || mem == 0 {
			return err
		}
		return command(s, "lock memory clock", func() lib.Return { return d.SetMemoryLockedClocks(mem, mem) }, "nvmlDeviceSetMemoryLockedClocks")
	})
}

// ResetClocks undoes LockClocks.
func ResetClocks(which []string) error {
	return eachDevice(which, func(s *session, d lib.Device) error {
		err := command(s, "reset SM clock", func() lib.Return { return d.ResetGpuLockedClocks() }, "nvmlDeviceResetGpuLockedClocks")
		if !s.has("nvmlDeviceResetMemoryLockedClocks") {
			return err
		}
		// Devices whose memory clock cannot be locked cannot reset it either.
		if code := d.ResetMemoryLockedClocks(); code != lib.SUCCESS && code != lib.ERROR_NOT_SUPPORTED && err == nil {
			err = fault("reset memory clock", code)
		}
		return err
	})
}

func command(s *session, what string, call func() lib.Return, symbol string) error {
	if !s.has(symbol) {
		return &Fault{Code: "unknown", Text: what + ": not in this driver"}
	}
	if code := call(); code != lib.SUCCESS {
		return fault(what, code)
	}
	return nil
}

// eachDevice does something to the chosen devices, all of them where none is, and
// stops at the first fault.
func eachDevice(which []string, do func(*session, lib.Device) error) error {
	s, closeLibrary, err := open()
	if err != nil {
		return err
	}
	defer closeLibrary()
	devices, err := s.devices()
	if err != nil {
		return err
	}
	chosen := devices
	if len(which) > 0 {
		chosen = nil
	}
	for _, w := range which {
		d, err := s.find(devices, w)
		if err != nil {
			return err
		}
		chosen = append(chosen, d)
	}
	for i, d := range chosen {
		if err := do(s, d); err != nil {
			return fmt.Errorf("gpu %s: %w", name(which, i), err)
		}
	}
	return nil
}

func name(which []string, i int) string {
	if i < len(which) {
		return which[i]
	}
	return strconv.Itoa(i)
}

// find returns the device of a number or UUID.
func (s *session) find(devices []lib.Device, which string) (lib.Device, error) {
	if i, err := strconv.Atoi(which); err == nil && i >= 0 && i < len(devices) {
		return devices[i], nil
	}
	for _, d := range devices {
		if uuid := ask(s, d.GetUUID, "nvmlDeviceGetUUID"); uuid != nil && *uuid == which {
			return d, nil
		}
	}
	return nil, &Fault{Code: "usage", Text: "there is no gpu " + which}
}
