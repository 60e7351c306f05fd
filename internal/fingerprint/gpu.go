package fingerprint

// GPUs is the snapshot that sbench-gpu prints: one JSON document. A null is "not
// supported", "not permitted" or "this driver has no such function"; it is never 0.
type GPUs struct {
	Version    int        `json:"version"`
	Helper     string     `json:"helper"`      // version of sbench-gpu
	TimeNS     int64      `json:"time_ns"`     // CLOCK_MONOTONIC
	Driver     *string    `json:"driver"`      // 550.54.15
	NVML       *string    `json:"nvml"`        // 12.550.54.15
	CUDADriver *string    `json:"cuda_driver"` // 12.4: the newest CUDA that the driver supports
	Devices    []GPU      `json:"devices"`
	Topology   [][]string `json:"topology"` // [i][j]: nvlink×N, single, multiple, hostbridge, node, system; null where unknown
	// Unsupported names what this driver or device would not say, and why.
	Unsupported []string `json:"unsupported"`
}

// GPUVersion is the version of the snapshot's format.
const GPUVersion = 1

// GPUError is what sbench-gpu prints instead of a snapshot.
type GPUError struct {
	Error string `json:"error"` // one line
	Code  string `json:"code"`  // no_library, no_driver, no_permission, gpu_lost, usage, unknown
}

// GPU is one device.
type GPU struct {
	Index             int          `json:"index"`
	UUID              *string      `json:"uuid"`
	Name              *string      `json:"name"` // as NVML names the product
	PCI               *string      `json:"pci"`
	Serial            *string      `json:"serial"`
	VBIOS             *string      `json:"vbios"`
	Architecture      *string      `json:"architecture"`
	ComputeCapability *string      `json:"compute_capability"` // 9.0
	MemoryTotal       *int64       `json:"memory_total_bytes"`
	MemoryUsed        *int64       `json:"memory_used_bytes"`
	MIG               *bool        `json:"mig"`
	MIGPending        *bool        `json:"mig_pending"`
	MIGInstances      []MIG        `json:"mig_instances"`
	ECC               *bool        `json:"ecc"`
	ECCPending        *bool        `json:"ecc_pending"`
	ECCVolatile       ECCCounts    `json:"ecc_volatile"`  // since the driver was loaded
	ECCAggregate      ECCCounts    `json:"ecc_aggregate"` // ever
	RetiredPages      *int64       `json:"retired_pages"`
	RetirementPending *bool        `json:"retirement_pending"`
	RemappedRows      *RowRemaps   `json:"remapped_rows"`
	Clocks            Clocks       `json:"clocks"`
	Throttle          *[]string    `json:"throttle_reasons"`
	Power             Power        `json:"power"`
	TemperatureC      *int64       `json:"temperature_c"`
	EnergyMillijoules *int64       `json:"energy_mj"` // since the driver was loaded
	Persistence       *bool        `json:"persistence"`
	ComputeMode       *string      `json:"compute_mode"`
	PCIe              PCIe         `json:"pcie"`
	NVLinks           []NVLink     `json:"nvlinks"` // null where the device has none or would not say
	Processes         []GPUProcess `json:"processes"`
	ProcessesKnown    bool         `json:"processes_known"`
}

// MIG is one MIG instance.
type MIG struct {
	UUID        *string `json:"uuid"`
	Name        *string `json:"name"`
	GPUInstance *int64  `json:"gpu_instance"`
	Compute     *int64  `json:"compute_instance"`
	MemoryTotal *int64  `json:"memory_total_bytes"`
}

// ECCCounts are error counts.
type ECCCounts struct {
	Corrected   *int64 `json:"corrected"`
	Uncorrected *int64 `json:"uncorrected"`
}

// RowRemaps counts memory rows that were replaced.
type RowRemaps struct {
	Corrected   int64 `json:"corrected"`
	Uncorrected int64 `json:"uncorrected"`
	Pending     bool  `json:"pending"`
	Failed      bool  `json:"failed"`
}

// Clocks are in MHz. Targets are the application clocks; what a clock is locked at
// is the runner's note of what it did, because NVML does not say.
type Clocks struct {
	SM        *int64 `json:"sm_mhz"`
	Mem       *int64 `json:"mem_mhz"`
	SMMax     *int64 `json:"sm_max_mhz"`
	MemMax    *int64 `json:"mem_max_mhz"`
	SMTarget  *int64 `json:"sm_target_mhz"`
	MemTarget *int64 `json:"mem_target_mhz"`
	SMLocked  *int64 `json:"sm_locked_mhz,omitempty"`
	MemLocked *int64 `json:"mem_locked_mhz,omitempty"`
}

// Power is in watts.
type Power struct {
	Usage    *float64 `json:"usage_watts"`
	Limit    *float64 `json:"limit_watts"`
	Enforced *float64 `json:"enforced_limit_watts"`
	Default  *float64 `json:"default_limit_watts"`
}

// PCIe is the link to the host.
type PCIe struct {
	Generation    *int64 `json:"generation"`
	Width         *int64 `json:"width"`
	GenerationMax *int64 `json:"generation_max"`
	WidthMax      *int64 `json:"width_max"`
}

// NVLink is one link of a device.
type NVLink struct {
	Link      int     `json:"link"`
	Active    bool    `json:"active"`
	Version   *int64  `json:"version"`
	RemotePCI *string `json:"remote_pci"`
}

// GPUProcess is a process on a device.
type GPUProcess struct {
	PID    int    `json:"pid"`
	Kind   string `json:"kind"` // compute, graphics
	Memory *int64 `json:"memory_bytes"`
}

// GPUSample is one line of sbench-gpu's telemetry.
type GPUSample struct {
	TimeNS            int64     `json:"time_ns"` // CLOCK_MONOTONIC
	GPU               int       `json:"gpu"`
	Utilization       *int64    `json:"utilization_percent"`
	MemoryUtilization *int64    `json:"memory_utilization_percent"`
	MemoryUsed        *int64    `json:"memory_used_bytes"`
	SM                *int64    `json:"sm_mhz"`
	Mem               *int64    `json:"mem_mhz"`
	PowerInstant      *float64  `json:"power_instant_watts"`
	PowerAverage      *float64  `json:"power_average_watts"`
	EnergyMillijoules *int64    `json:"energy_mj"`
	TemperatureC      *int64    `json:"temperature_c"`
	Throttle          *[]string `json:"throttle_reasons"`
	// Xids are the errors that the driver reported since the sample before; null
	// where it cannot be listened to.
	Xids *[]int64 `json:"xids"`
}
