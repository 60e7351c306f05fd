package result

import (
	"encoding/json"
	"time"

	"sbench/internal/lifecycle"
)

// ManifestName is the file that vouches for the others; it is written last.
// What is not sealed does not exist.
const ManifestName = "manifest.json"

// The files of an attempt. A refusal has only the manifest and logs.
const (
	ResultFile    = "result.parquet"
	WindowFile    = "window.parquet"
	RequestsFile  = "requests.parquet"
	TelemetryFile = "telemetry.parquet"
	// PackagesFile has a line for each package of the image: manager (deb, rpm, apk,
	// python), name and version, with tabs between them, sorted. It is missing where
	// the image has no shell or no such manager, and for image.kind host.
	PackagesFile = "packages.tsv"
	EngineLog    = "engine.log"
	RunnerLog    = "runner.log"
)

// ManifestVersion is the version of the manifest's format.
const ManifestVersion = 1

// Attempt identifies one run on one allocation as the node knows it; the store
// numbers attempts, never the node.
type Attempt struct {
	RunID         int64     `json:"run_id"`
	Sweep         int64     `json:"sweep"`
	SettingHash   string    `json:"setting_hash"`
	SeriesHash    string    `json:"series_hash"`
	Repeat        int       `json:"repeat"`
	Token         string    `json:"token"`
	TaskIndex     int       `json:"task_index"`
	Site          string    `json:"site"`
	Cluster       string    `json:"cluster"`
	JobIDRaw      int64     `json:"job_id_raw"`
	RestartCount  int       `json:"restart_count"`
	StepID        string    `json:"step_id"` // "" outside srun
	Nodes         []string  `json:"nodes"`
	HardwareClass string    `json:"hardware_class"` // real, emulated
	StartedAt     time.Time `json:"started_at"`
	EndedAt       time.Time `json:"ended_at"`
}

// Manifest seals an attempt.
type Manifest struct {
	Version   int                 `json:"version"`
	Attempt   Attempt             `json:"attempt"`
	ExitClass lifecycle.ExitClass `json:"exit_class"`
	// Reasons has one line per difference or failure, the headline first:
	// "ENV_DRIFT: image digest sha256:aaaa… expected, sha256:bbbb… realized".
	Reasons []string `json:"reasons"`
	// Signature is equal for two failures of the same deterministic cause; "" otherwise.
	Signature string `json:"signature"`
	// Blamed are the nodes at fault where they were not as pinned: nil is not
	// said, which blames the first; empty is none.
	Blamed      []string `json:"blamed"`
	Valid       bool     `json:"valid"`
	EnvVerified bool     `json:"env_verified"`
	Checks      []Check  `json:"checks"`
	Quality     *Quality `json:"quality,omitempty"` // nil where no answers were asked for
	Runner      string   `json:"runner"`            // version of sbench-runner
	Files       []File   `json:"files"`
}

// File is one file that the manifest vouches for.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // hex
}

// Metrics maps a metric's name (metrics.Table) to its value; nil is undefined.
type Metrics map[string]*float64

// Result is the row of a measured attempt: all axes, fingerprint, metrics.
type Result struct {
	Attempt        Attempt
	Valid          bool
	EnvVerified    bool
	Findings       []string // names of failed finding checks: saturated, errors, …
	MetricsVersion string
	PlanHash       string
	QualityHash    string         // quality.Definition.Hash; "" where no answers were asked for
	Axes           map[string]any // setting.Axes keys; values as setting.Setting.Axes gives them
	Metrics        Metrics
	NullReasons    map[string]string // metric → why it is null
	Histograms     map[string][]byte // metric → HdrHistogram, V2 compressed encoding
	Checks         []Check
	Fingerprint    json.RawMessage
}

// Window is one load point of an attempt.
type Window struct {
	Index       int
	OfferedRate float64 // requests/s on the schedule
	Start, End  int64   // W0, W1: ns on the attempt's clock
	Metrics     Metrics
	NullReasons map[string]string
	Histograms  map[string][]byte
	Findings    []string
}

// Telemetry is one sample. Value is nil where the source said "not supported".
type Telemetry struct {
	T      int64    `parquet:"t"`           // ns on the attempt's clock
	Source string   `parquet:"source,dict"` // gpu0, host, engine, client
	Name   string   `parquet:"name,dict"`   // unit in the name: power_watts
	Value  *float64 `parquet:"value,optional"`
}
