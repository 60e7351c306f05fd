// Package batch is the frozen form of a batch: what the daemon writes into the
// batch's spool folder once, before sbatch, and what every task and step reads
// and verifies. The package is pure.
package batch

import (
	"time"

	"sbench/internal/setting"
)

// Version is the version of the file format.
const Version = 1

// Spec is one batch: one Slurm job array.
type Spec struct {
	Version       int    `json:"version"`
	Token         string `json:"token"` // unique; in the job's name and comment
	Site          string `json:"site"`
	Cluster       string `json:"cluster"`
	HardwareClass string `json:"hardware_class"` // real or emulated, from the site
	UID           int    `json:"uid"`            // who the batch runs as
	// AttemptsDir is the absolute folder under which attempts are sealed:
	// <AttemptsDir>/<run id>/<job id raw>-r<restart count>/.
	AttemptsDir string `json:"attempts_dir"`
	// CacheDir is the node-local cache for artefacts.
	CacheDir string                     `json:"cache_dir"`
	Settings map[string]setting.Setting `json:"settings"` // by setting_hash, normalized, with paths
	Tasks    []Task                     `json:"tasks"`    // index = array index
}

// Task is one array element: an allocation in which its runs are executed in turn.
type Task struct {
	Index int   `json:"index"`
	Runs  []Run `json:"runs"`
}

// Run is one execution of a setting.
type Run struct {
	ID          int64         `json:"id"`
	Sweep       int64         `json:"sweep"`
	SettingHash string        `json:"setting_hash"`
	SeriesHash  string        `json:"series_hash"`
	Repeat      int           `json:"repeat"` // k, from 0; the seed of the repeat derives from it
	TimeLimit   time.Duration `json:"time_limit"`
	// SLO bounds for goodput: metric name as in the sweep file (ttft_p99) to a
	// duration. Not part of the identity.
	SLO map[string]time.Duration `json:"slo,omitempty"`
	// MaxErrorRate is the share of failed requests above which the attempt is
	// labelled `errors`.
	MaxErrorRate float64 `json:"max_error_rate"`
}
