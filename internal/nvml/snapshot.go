//go:build cgo

package nvml

import (
	"fmt"
	"strconv"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"sbench/internal/fingerprint"
	"sbench/internal/version"
)

// Snapshot reads the state of all devices of the node.
func Snapshot() (*fingerprint.GPUs, error) {
	s, closeLibrary, err := open()
	if err != nil {
		return nil, err
	}
	defer closeLibrary()
	return s.snapshot()
}

func (s *session) snapshot() (*fingerprint.GPUs, error) {
	g := &fingerprint.GPUs{Version: fingerprint.GPUVersion, Helper: version.String(), TimeNS: monotonic()}
	g.Driver = ask(s, s.lib.SystemGetDriverVersion, "nvmlSystemGetDriverVersion")
	g.NVML = ask(s, s.lib.SystemGetNVMLVersion, "nvmlSystemGetNVMLVersion")
	if v := ask(s, s.lib.SystemGetCudaDriverVersion_v2, "nvmlSystemGetCudaDriverVersion_v2"); v != nil {
		g.CUDADriver = text(fmt.Sprintf("%d.%d", *v/1000, *v%1000/10))
	}
	devices, err := s.devices()
	if err != nil {
		return nil, err
	}
	g.Devices = make([]fingerprint.GPU, len(devices))
	for i, d := range devices {
		g.Devices[i] = s.device(i, d)
	}
	g.Topology = s.topology(devices, g.Devices)
	g.Unsupported = s.reasons
	return g, nil
}

func monotonic() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return ts.Nano()
}

func text(s string) *string { return &s }

// number widens what NVML gives.
func number[T int | uint32 | uint64 | int32](v *T) *int64 {
	if v == nil {
		return nil
	}
	n := int64(*v)
	return &n
}

// on returns whether a mode is enabled.
func on(v *lib.EnableState) *bool {
	if v == nil {
		return nil
	}
	b := *v == lib.FEATURE_ENABLED
	return &b
}

// watts converts milliwatts.
func watts(v *uint32) *float64 {
	if v == nil {
		return nil
	}
	w := float64(*v) / 1000
	return &w
}

func (s *session) device(index int, d lib.Device) fingerprint.GPU {
	g := fingerprint.GPU{
		Index:             index,
		UUID:              ask(s, d.GetUUID, "nvmlDeviceGetUUID"),
		Name:              ask(s, d.GetName, "nvmlDeviceGetName"),
		Serial:            ask(s, d.GetSerial, "nvmlDeviceGetSerial"),
		VBIOS:             ask(s, d.GetVbiosVersion, "nvmlDeviceGetVbiosVersion"),
		TemperatureC:      number(ask(s, func() (uint32, lib.Return) { return d.GetTemperature(lib.TEMPERATURE_GPU) }, "nvmlDeviceGetTemperature")),
		EnergyMillijoules: number(ask(s, d.GetTotalEnergyConsumption, "nvmlDeviceGetTotalEnergyConsumption")),
		Persistence:       on(ask(s, d.GetPersistenceMode, "nvmlDeviceGetPersistenceMode")),
	}
	if pci := ask(s, d.GetPciInfo, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"); pci != nil {
		g.PCI = text(busID(*pci))
	}
	if m := ask(s, d.GetMemoryInfo, "nvmlDeviceGetMemoryInfo"); m != nil {
		g.MemoryTotal, g.MemoryUsed = number(&m.Total), number(&m.Used)
	}
	if mode := ask(s, d.GetComputeMode, "nvmlDeviceGetComputeMode"); mode != nil {
		g.ComputeMode = text(computeMode(*mode))
	}
	s.identity(&g, d)
	s.mig(&g, d)
	s.ecc(&g, d)
	s.clocks(&g, d)
	s.links(&g, d)
	s.processes(&g, d)
	return g
}

func busID(p lib.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}

func computeMode(m lib.ComputeMode) string {
	names := map[lib.ComputeMode]string{
		lib.COMPUTEMODE_DEFAULT: "default", lib.COMPUTEMODE_PROHIBITED: "prohibited", lib.COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
	}
	if name, ok := names[m]; ok {
		return name
	}
	return strconv.Itoa(int(m))
}

type pair[T any] struct{ a, b T }

func (s *session) identity(g *fingerprint.GPU, d lib.Device) {
	if a := ask(s, d.GetArchitecture, "nvmlDeviceGetArchitecture"); a != nil {
		names := map[lib.DeviceArchitecture]string{
			lib.DEVICE_ARCH_KEPLER: "kepler", lib.DEVICE_ARCH_MAXWELL: "maxwell", lib.DEVICE_ARCH_PASCAL: "pascal",
			lib.DEVICE_ARCH_VOLTA: "volta", lib.DEVICE_ARCH_TURING: "turing", lib.DEVICE_ARCH_AMPERE: "ampere",
			lib.DEVICE_ARCH_ADA: "ada", lib.DEVICE_ARCH_HOPPER: "hopper", lib.DEVICE_ARCH_BLACKWELL: "blackwell",
		}
		name, known := names[*a]
		if !known {
			name = strconv.Itoa(int(*a))
		}
		g.Architecture = &name
	}
	if c := ask(s, func() (pair[int], lib.Return) {
		major, minor, code := d.GetCudaComputeCapability()
		return pair[int]{major, minor}, code
	}, "nvmlDeviceGetCudaComputeCapability"); c != nil {
		g.ComputeCapability = text(fmt.Sprintf("%d.%d", c.a, c.b))
	}
}

func (s *session) mig(g *fingerprint.GPU, d lib.Device) {
	m := ask(s, func() (pair[int], lib.Return) {
		current, pending, code := d.GetMigMode()
		return pair[int]{current, pending}, code
	}, "nvmlDeviceGetMigMode")
	if m == nil {
		return
	}
	current, pending := m.a == lib.DEVICE_MIG_ENABLE, m.b == lib.DEVICE_MIG_ENABLE
	g.MIG, g.MIGPending = &current, &pending
	if !current {
		return
	}
	n := ask(s, d.GetMaxMigDeviceCount, "nvmlDeviceGetMaxMigDeviceCount")
	if n == nil || !s.has("nvmlDeviceGetMigDeviceHandleByIndex") {
		return
	}
	for i := range *n {
		instance, code := d.GetMigDeviceHandleByIndex(i)
		if code != lib.SUCCESS {
			continue // the slot is free
		}
		x := fingerprint.MIG{
			UUID:        ask(s, instance.GetUUID, "nvmlDeviceGetUUID"),
			Name:        ask(s, instance.GetName, "nvmlDeviceGetName"),
			GPUInstance: number(ask(s, instance.GetGpuInstanceId, "nvmlDeviceGetGpuInstanceId")),
			Compute:     number(ask(s, instance.GetComputeInstanceId, "nvmlDeviceGetComputeInstanceId")),
		}
		if mem := ask(s, instance.GetMemoryInfo, "nvmlDeviceGetMemoryInfo"); mem != nil {
			x.MemoryTotal = number(&mem.Total)
		}
		g.MIGInstances = append(g.MIGInstances, x)
	}
}

func (s *session) ecc(g *fingerprint.GPU, d lib.Device) {
	if m := ask(s, func() (pair[lib.EnableState], lib.Return) {
		current, pending, code := d.GetEccMode()
		return pair[lib.EnableState]{current, pending}, code
	}, "nvmlDeviceGetEccMode"); m != nil {
		g.ECC, g.ECCPending = on(&m.a), on(&m.b)
	}
	errors := func(kind lib.MemoryErrorType, counter lib.EccCounterType) *int64 {
		return number(ask(s, func() (uint64, lib.Return) { return d.GetTotalEccErrors(kind, counter) }, "nvmlDeviceGetTotalEccErrors"))
	}
	g.ECCVolatile = fingerprint.ECCCounts{
		Corrected: errors(lib.MEMORY_ERROR_TYPE_CORRECTED, lib.VOLATILE_ECC), Uncorrected: errors(lib.MEMORY_ERROR_TYPE_UNCORRECTED, lib.VOLATILE_ECC),
	}
	g.ECCAggregate = fingerprint.ECCCounts{
		Corrected: errors(lib.MEMORY_ERROR_TYPE_CORRECTED, lib.AGGREGATE_ECC), Uncorrected: errors(lib.MEMORY_ERROR_TYPE_UNCORRECTED, lib.AGGREGATE_ECC),
	}
	pages := func(cause lib.PageRetirementCause) *int64 {
		list := ask(s, func() ([]uint64, lib.Return) { return d.GetRetiredPages(cause) }, "nvmlDeviceGetRetiredPages")
		if list == nil {
			return nil
		}
		n := int64(len(*list))
		return &n
	}
	single, double := pages(lib.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS), pages(lib.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
	if single != nil && double != nil {
		total := *single + *double
		g.RetiredPages = &total
	}
	g.RetirementPending = on(ask(s, d.GetRetiredPagesPendingStatus, "nvmlDeviceGetRetiredPagesPendingStatus"))
	g.RemappedRows = ask(s, func() (fingerprint.RowRemaps, lib.Return) {
		corrected, uncorrected, pending, failed, code := d.GetRemappedRows()
		return fingerprint.RowRemaps{Corrected: int64(corrected), Uncorrected: int64(uncorrected), Pending: pending, Failed: failed}, code
	}, "nvmlDeviceGetRemappedRows")
}

func (s *session) clocks(g *fingerprint.GPU, d lib.Device) {
	clock := func(call func(lib.ClockType) (uint32, lib.Return), kind lib.ClockType, symbol string) *int64 {
		return number(ask(s, func() (uint32, lib.Return) { return call(kind) }, symbol))
	}
	g.Clocks = fingerprint.Clocks{
		SM: clock(d.GetClockInfo, lib.CLOCK_SM, "nvmlDeviceGetClockInfo"), Mem: clock(d.GetClockInfo, lib.CLOCK_MEM, "nvmlDeviceGetClockInfo"),
		SMMax: clock(d.GetMaxClockInfo, lib.CLOCK_SM, "nvmlDeviceGetMaxClockInfo"), MemMax: clock(d.GetMaxClockInfo, lib.CLOCK_MEM, "nvmlDeviceGetMaxClockInfo"),
		SMTarget:  clock(d.GetApplicationsClock, lib.CLOCK_SM, "nvmlDeviceGetApplicationsClock"),
		MemTarget: clock(d.GetApplicationsClock, lib.CLOCK_MEM, "nvmlDeviceGetApplicationsClock"),
	}
	g.Power = fingerprint.Power{
		Usage:    watts(ask(s, d.GetPowerUsage, "nvmlDeviceGetPowerUsage")),
		Limit:    watts(ask(s, d.GetPowerManagementLimit, "nvmlDeviceGetPowerManagementLimit")),
		Enforced: watts(ask(s, d.GetEnforcedPowerLimit, "nvmlDeviceGetEnforcedPowerLimit")),
		Default:  watts(ask(s, d.GetPowerManagementDefaultLimit, "nvmlDeviceGetPowerManagementDefaultLimit")),
	}
	if bits := s.throttle(d); bits != nil {
		reasons := throttleReasons(*bits)
		g.Throttle = &reasons
	}
	g.PCIe = fingerprint.PCIe{
		Generation:    number(ask(s, d.GetCurrPcieLinkGeneration, "nvmlDeviceGetCurrPcieLinkGeneration")),
		Width:         number(ask(s, d.GetCurrPcieLinkWidth, "nvmlDeviceGetCurrPcieLinkWidth")),
		GenerationMax: number(ask(s, d.GetMaxPcieLinkGeneration, "nvmlDeviceGetMaxPcieLinkGeneration")),
		WidthMax:      number(ask(s, d.GetMaxPcieLinkWidth, "nvmlDeviceGetMaxPcieLinkWidth")),
	}
}

// throttle asks by the function's new name where the driver has it, else by the
// old one.
func (s *session) throttle(d lib.Device) *uint64 {
	if s.has("nvmlDeviceGetCurrentClocksEventReasons") {
		return ask(s, d.GetCurrentClocksEventReasons, "nvmlDeviceGetCurrentClocksEventReasons")
	}
	return ask(s, d.GetCurrentClocksThrottleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons")
}

func throttleReasons(bits uint64) []string {
	names := []struct {
		bit  uint64
		name string
	}{
		{lib.ClocksEventReasonGpuIdle, "gpu_idle"},
		{lib.ClocksEventReasonApplicationsClocksSetting, "applications_clocks_setting"},
		{lib.ClocksEventReasonSwPowerCap, "sw_power_cap"},
		{lib.ClocksThrottleReasonHwSlowdown, "hw_slowdown"},
		{lib.ClocksEventReasonSyncBoost, "sync_boost"},
		{lib.ClocksEventReasonSwThermalSlowdown, "sw_thermal_slowdown"},
		{lib.ClocksThrottleReasonHwThermalSlowdown, "hw_thermal_slowdown"},
		{lib.ClocksThrottleReasonHwPowerBrakeSlowdown, "hw_power_brake_slowdown"},
		{lib.ClocksEventReasonDisplayClockSetting, "display_clock_setting"},
	}
	reasons := []string{}
	for _, n := range names {
		if bits&n.bit != 0 {
			reasons = append(reasons, n.name)
			bits &^= n.bit
		}
	}
	if bits != 0 {
		reasons = append(reasons, fmt.Sprintf("unknown_%#x", bits))
	}
	return reasons
}

func (s *session) links(g *fingerprint.GPU, d lib.Device) {
	if !s.has("nvmlDeviceGetNvLinkState") {
		s.note("nvmlDeviceGetNvLinkState", "not in this driver")
		return
	}
	for i := range lib.NVLINK_MAX_LINKS {
		state, code := d.GetNvLinkState(i)
		if code != lib.SUCCESS {
			break // the device has no such link
		}
		l := fingerprint.NVLink{Link: i, Active: state == lib.FEATURE_ENABLED}
		if l.Active {
			l.Version = number(ask(s, func() (uint32, lib.Return) { return d.GetNvLinkVersion(i) }, "nvmlDeviceGetNvLinkVersion"))
			if pci := ask(s, func() (lib.PciInfo, lib.Return) { return d.GetNvLinkRemotePciInfo(i) },
				"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo"); pci != nil {
				l.RemotePCI = text(busID(*pci))
			}
		}
		g.NVLinks = append(g.NVLinks, l)
	}
}

func (s *session) processes(g *fingerprint.GPU, d lib.Device) {
	none := ^uint64(0) // NVML_VALUE_NOT_AVAILABLE
	add := func(kind string, list *[]lib.ProcessInfo) bool {
		if list == nil {
			return false
		}
		for _, p := range *list {
			x := fingerprint.GPUProcess{PID: int(p.Pid), Kind: kind}
			if p.UsedGpuMemory != none {
				x.Memory = number(&p.UsedGpuMemory)
			}
			g.Processes = append(g.Processes, x)
		}
		return true
	}
	compute := add("compute", ask(s, d.GetComputeRunningProcesses,
		"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"))
	// A device of a data centre may have no graphics at all.
	add("graphics", ask(s, d.GetGraphicsRunningProcesses,
		"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses"))
	g.ProcessesKnown = compute
}

// topology says for every two devices how they reach one another: over NVLink,
// through one PCIe switch, several, a host bridge, a NUMA node or the system.
func (s *session) topology(devices []lib.Device, known []fingerprint.GPU) [][]string {
	ancestors := map[lib.GpuTopologyLevel]string{
		lib.TOPOLOGY_INTERNAL: "internal", lib.TOPOLOGY_SINGLE: "single", lib.TOPOLOGY_MULTIPLE: "multiple",
		lib.TOPOLOGY_HOSTBRIDGE: "hostbridge", lib.TOPOLOGY_NODE: "node", lib.TOPOLOGY_SYSTEM: "system",
	}
	var matrix [][]string
	for i, a := range devices {
		row := make([]string, len(devices))
		for j, b := range devices {
			if i == j {
				row[j] = "self"
				continue
			}
			if status := ask(s, func() (lib.GpuP2PStatus, lib.Return) { return a.GetP2PStatus(b, lib.P2P_CAPS_INDEX_NVLINK) },
				"nvmlDeviceGetP2PStatus"); status != nil && *status == lib.P2P_STATUS_OK {
				row[j] = fmt.Sprintf("nvlink×%d", linksBetween(known[i], known[j]))
				continue
			}
			if level := ask(s, func() (lib.GpuTopologyLevel, lib.Return) { return a.GetTopologyCommonAncestor(b) },
				"nvmlDeviceGetTopologyCommonAncestor"); level != nil {
				row[j] = ancestors[*level]
			}
		}
		matrix = append(matrix, row)
	}
	return matrix
}

// linksBetween counts the links of a that end at b; behind a switch, where the
// remote end is the switch, all active ones lead there.
func linksBetween(a, b fingerprint.GPU) int {
	direct, active := 0, 0
	for _, l := range a.NVLinks {
		if !l.Active {
			continue
		}
		active++
		if l.RemotePCI != nil && b.PCI != nil && *l.RemotePCI == *b.PCI {
			direct++
		}
	}
	if direct > 0 {
		return direct
	}
	return active
}
