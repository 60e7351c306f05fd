package api

import (
	"encoding/json"
	"fmt"
	"time"

	"sbench/internal/aggregate"
	"sbench/internal/quality"
)

// SweepSummary is one line of the queue.
type SweepSummary struct {
	ID          int64      `json:"id"`
	Name        string     `json:"name"`
	User        string     `json:"user"`
	Account     string     `json:"account"`
	Site        string     `json:"site"`
	State       string     `json:"state"` // held, pending, running, completing, complete, incomplete, cancelled
	Priority    string     `json:"priority"`
	SubmittedAt time.Time  `json:"submitted_at"`
	BeginAt     *time.Time `json:"begin_at"`
	EndedAt     *time.Time `json:"ended_at"`
	GPUHours    *float64   `json:"gpu_hours_forecast"`
	Dependency  string     `json:"dependency"` // as submitted; "" for none
	// Reason says why nothing of the sweep starts; "" where something may.
	Reason string `json:"reason"`

	SettingsTotal    int            `json:"settings_total"`
	SettingsFinal    int            `json:"settings_final"`    // every run terminal and aggregated
	SettingsComplete int            `json:"settings_complete"` // final, and every run valid
	RunsTotal        int            `json:"runs_total"`
	Runs             map[string]int `json:"runs_by_state"`
	// MakespanS is how long it takes from its submission, or from when it may begin,
	// to the end of its last run: known when it has ended, expected by the ETA
	// before; null while nothing is known.
	MakespanS *float64 `json:"makespan_s"`
	// ETA is when the runs still to do would end at the sweep's own pace; null
	// until a run has ended.
	ETA *time.Time `json:"eta"`
}

// Terminal reports whether every run has ended and every setting is final.
func (s SweepSummary) Terminal() bool { return s.EndedAt != nil }

// Complete reports whether every setting is final with all its runs valid.
func (s SweepSummary) Complete() bool {
	return s.Terminal() && s.State == "complete" && s.SettingsComplete >= s.SettingsTotal
}

// RunsOpen is the number of runs that may still change by themselves.
func (s SweepSummary) RunsOpen() int {
	open := 0
	for _, state := range []string{"pending", "submitted", "provisioning", "running"} {
		open += s.Runs[state]
	}
	return open
}

// Sweep is everything about a sweep.
type Sweep struct {
	SweepSummary
	HardwareClass string `json:"hardware_class"`
	// File and Options are what was submitted; null for other people's sweeps.
	File     *string          `json:"file"`
	Options  json.RawMessage  `json:"options"`
	Settings []SettingSummary `json:"settings"`
	Locality Locality         `json:"locality"`
	// Mail is what was or is to be sent about it; empty for other people's sweeps.
	Mail []Mail `json:"mail"`
	// RunList and Transitions are filled where they were asked for.
	RunList     []Run        `json:"runs"`
	Transitions []Transition `json:"transitions"`
}

// Locality says how often tasks found their checkpoint on the node: what sbench
// had run there right before, in another job, was of the same checkpoint. Tasks
// whose runs load no files, or are not sealed yet, are not counted.
type Locality struct {
	TaskStarts     int `json:"task_starts"`
	WarmTaskStarts int `json:"warm_task_starts"`
}

// SettingSummary is a setting within a sweep.
type SettingSummary struct {
	SettingHash string         `json:"setting_hash"`
	Axes        map[string]any `json:"axes"`
	NValid      int            `json:"n_valid"`
	NTotal      int            `json:"n_total"`
	IsFinal     bool           `json:"is_final"`
	Adaptive    *Adaptive      `json:"adaptive,omitempty"`     // nil where the number of runs is fixed
	CarriedFrom *CarriedFrom   `json:"carried_from,omitempty"` // nil where it has runs of its own
	Reasons     []string       `json:"reasons"`                // why runs are missing, most frequent first
	Runs        map[string]int `json:"runs_by_state"`
}

// Adaptive is the state of a number of runs that depends on what they measure.
type Adaptive struct {
	NMax    int    `json:"n_max"`   // n_total is at most this
	State   string `json:"state"`   // open, held, barred (cancelled), cut (by what became of runs), ended
	Decided string `json:"decided"` // why runs were added last, or no more are; "" before the first decision
}

// RepeatDecision is one entry of the log of a setting's number of runs: all its
// runs had ended, and it got more or did not.
type RepeatDecision struct {
	SweepID  int64  `json:"sweep_id"`
	Ordinal  int    `json:"ordinal"` // from 1, within the sweep
	NPlanned int    `json:"n_planned"`
	NValid   int    `json:"n_valid"`
	Added    int    `json:"added"`   // 0 where it stopped
	Outcome  string `json:"outcome"` // open, reached, max, decided, undefined, cancelled, dead, failed
	Reason   string `json:"reason"`
	// Metrics say per metric how precise it was and what the rule wanted.
	Metrics   map[string]aggregate.MetricDecision `json:"metrics"`
	DecidedAt time.Time                           `json:"decided_at"`
}

// SettingResult is the latest summary of a setting in a sweep, without its metrics.
type SettingResult struct {
	SweepID         int64     `json:"sweep_id"`
	Version         int       `json:"version"`
	NValid          int       `json:"n_valid"`
	NTotal          int       `json:"n_total"`
	IsFinal         bool      `json:"is_final"`
	NNodes          int       `json:"n_nodes"`
	Mixed           bool      `json:"mixed"`           // the runs realized different environments
	Reproducibility *float64  `json:"reproducibility"` // null below two runs
	Verdicts        []string  `json:"verdicts"`        // precise, noisy or unknown; node-bound, bimodal
	Findings        []string  `json:"findings"`
	Warnings        []string  `json:"warnings"`
	CreatedAt       time.Time `json:"created_at"`
}

// Setting is everything about a setting, over all sweeps that the caller may see.
type Setting struct {
	SettingHash   string          `json:"setting_hash"`
	SeriesHash    string          `json:"series_hash"`
	Axes          map[string]any  `json:"axes"`
	CanonicalSpec json.RawMessage `json:"canonical_spec"`
	Sweeps        []int64         `json:"sweeps"`
	// Results are the latest summaries, newest first; Decisions the log of adaptive
	// numbers of runs, newest first.
	Results   []SettingResult  `json:"results"`
	Decisions []RepeatDecision `json:"decisions"`
	Runs      []Run            `json:"runs"`
}

// Run is one execution of a setting.
type Run struct {
	ID             int64        `json:"id"`
	SweepID        int64        `json:"sweep_id"`
	SettingHash    string       `json:"setting_hash"`
	Repeat         int          `json:"repeat"` // from 0
	State          string       `json:"state"`
	Reason         string       `json:"reason"`
	User           string       `json:"user"`
	Site           string       `json:"site"`
	BatchToken     *string      `json:"batch_token"`
	TaskIndex      *int         `json:"task_index"`
	SlurmJobID     *string      `json:"slurm_job_id"` // of the task it is in now: 123_4
	UpdatedAt      time.Time    `json:"updated_at"`
	Held           bool         `json:"held"`            // not planned until released
	RefusalReasons []string     `json:"refusal_reasons"` // of the latest attempt
	Attempts       []Attempt    `json:"attempts"`
	Transitions    []Transition `json:"transitions"`
}

// Attempt is one run on one allocation.
type Attempt struct {
	ID           int64           `json:"id"`
	SlurmJobID   string          `json:"slurm_job_id"` // 123_4, or the raw id where the array is unknown
	Cluster      string          `json:"cluster"`
	JobIDRaw     int64           `json:"job_id_raw"`
	RestartCount int             `json:"restart_count"`
	SlurmState   *string         `json:"slurm_state"`
	Nodes        []string        `json:"nodes"`
	ExitClass    *string         `json:"exit_class"`
	Valid        *bool           `json:"valid"`
	Reasons      []string        `json:"reasons"`
	Findings     []string        `json:"findings"`
	StartedAt    *time.Time      `json:"started_at"`
	EndedAt      *time.Time      `json:"ended_at"`
	Checks       json.RawMessage `json:"checks"`
	Sealed       bool            `json:"sealed"` // false: its allocation ended and nothing was sealed
	Directory    string          `json:"directory"`
}

// Transition is one change of state. Nothing is ever overwritten silently.
type Transition struct {
	Entity   string          `json:"entity"` // sweep, run, batch, task, attempt
	EntityID string          `json:"entity_id"`
	From     string          `json:"from"`
	To       string          `json:"to"`
	At       time.Time       `json:"at"`
	Actor    string          `json:"actor"`
	Reason   string          `json:"reason"`
	Evidence json.RawMessage `json:"evidence"`
}

// Results is the answer of GET /v1/sweeps/{id}/results.
type Results struct {
	SweepID  int64  `json:"sweep_id"`
	Name     string `json:"name"`
	Complete bool   `json:"complete"`
	// Quality is what was asked after each measurement, and QualityHash says which
	// scores are scores of the same thing; absent where nothing was.
	Quality     *quality.Definition `json:"quality,omitempty"`
	QualityHash string              `json:"quality_hash,omitempty"`
	Settings    []Result            `json:"settings"`
}

// Result is one setting's row.
type Result struct {
	SettingHash   string         `json:"setting_hash"`
	SeriesHash    string         `json:"series_hash"`
	HardwareClass string         `json:"hardware_class"`
	Axes          map[string]any `json:"axes"`
	NValid        int            `json:"n_valid"`
	NTotal        int            `json:"n_total"`
	IsFinal       bool           `json:"is_final"`
	// CarriedFrom says that the numbers are an older sweep's; absent where they are
	// this one's own. A carried number is no new observation.
	CarriedFrom *CarriedFrom `json:"carried_from,omitempty"`
	Adaptive    *Adaptive    `json:"adaptive,omitempty"` // nil where the number of runs is fixed
	NNodes      int          `json:"n_nodes"`            // that the runs summed up were on; 0 where unknown
	// Mixed says that the runs realized different environments: the numbers are
	// those of one of them.
	Mixed bool `json:"mixed"`
	// Reproducibility is 1 minus the largest coefficient of variation of the gating
	// metrics, within 0 and 1; null below two runs.
	Reproducibility *float64          `json:"reproducibility"`
	Verdicts        []string          `json:"verdicts"` // precise, noisy or unknown; node-bound, bimodal
	Findings        []string          `json:"findings"`
	Reasons         []string          `json:"reasons"`
	Warnings        []string          `json:"warnings"`
	Metrics         map[string]Metric `json:"metrics"`
}

// CarriedFrom is where a result comes from that was not measured again.
type CarriedFrom struct {
	SweepID    int64      `json:"sweep_id"`
	MeasuredAt *time.Time `json:"measured_at"`
}

// Metric is one metric over the valid runs of a setting, in the unit of the
// metrics table. Null is unknown: no valid run, or too few for an interval.
type Metric struct {
	N      int      `json:"n"`
	Mean   *float64 `json:"mean"`
	StdDev *float64 `json:"stddev"`
	CILow  *float64 `json:"ci_low"` // 95 %
	CIHigh *float64 `json:"ci_high"`
	// RelativeCI is half the interval's width by the value.
	RelativeCI *float64 `json:"relative_ci"`
	// Rule says how the interval was made: t (Student's), nodes (wider, because
	// runs share nodes that differ), pooled or stein (of an adaptive number of
	// runs). "" where there is none.
	Rule       string `json:"rule,omitempty"`
	NullReason string `json:"null_reason,omitempty"` // why the mean is null
}

// Site is a cluster as the daemon feeds it.
type Site struct {
	Name          string     `json:"name"`
	Cluster       string     `json:"cluster"`
	HardwareClass string     `json:"hardware_class"`
	Mode          string     `json:"mode"` // active, drain, paused
	Reason        string     `json:"reason"`
	ChangedBy     string     `json:"changed_by"`
	ChangedAt     *time.Time `json:"changed_at"` // null where the mode was never set
}

// SiteRequest is the body of POST /v1/sites/{name}/mode.
type SiteRequest struct {
	Mode   string `json:"mode"`
	Reason string `json:"reason"`
}

// ThrottleRequest is the body of POST /v1/sweeps/{id}/throttle.
type ThrottleRequest struct {
	MaxInflight int `json:"max_inflight"` // tasks at once; 0 is no limit
}

// ThrottleResponse says what a ThrottleRequest did.
type ThrottleResponse struct {
	SweepID     int64 `json:"sweep_id"`
	MaxInflight int   `json:"max_inflight"`
	// Batches is how many arrays in Slurm are told; later ones begin with it.
	Batches int `json:"batches"`
}

// Action is what is done to sweeps, settings or runs.
type Action string

// The actions.
const (
	ActionCancel  Action = "cancel"
	ActionHold    Action = "hold"
	ActionRelease Action = "release"
	ActionRequeue Action = "requeue"
)

// Kind is what an action or a look-up is about.
type Kind string

// The kinds.
const (
	KindSweep   Kind = "sweep"
	KindSetting Kind = "setting"
	KindRun     Kind = "run"
)

// ActionRequest is the body of POST /v1/actions. Either IDs or All is given.
type ActionRequest struct {
	Action Action `json:"action"`
	Kind   Kind   `json:"kind"`
	// IDs are sweep or run numbers, or settings' hashes or unique prefixes of them.
	IDs []string `json:"ids"`
	// Sweep narrows settings to one sweep; 0 for all that the caller may touch.
	Sweep int64 `json:"sweep,omitempty"`
	// All means everything that the caller may touch, narrowed by User and Site.
	All    bool   `json:"all,omitempty"`
	User   string `json:"user,omitempty"`
	Site   string `json:"site,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// ReleaseRequest is the body of POST /v1/dead/release.
type ReleaseRequest struct {
	Runs []int64 `json:"runs"`
}

// ActionResponse says what changed.
type ActionResponse struct {
	Sweeps []int64 `json:"sweeps"` // whose runs were touched
	Runs   int     `json:"runs"`   // runs that changed state
	// Unchanged counts runs whose state did not allow the action.
	Unchanged int `json:"unchanged"`
}

// DeadRun is one entry of the dead-letter list.
type DeadRun struct {
	RunID       int64     `json:"run_id"`
	SweepID     int64     `json:"sweep_id"`
	SettingHash string    `json:"setting_hash"`
	Repeat      int       `json:"repeat"`
	User        string    `json:"user"`
	Reason      string    `json:"reason"`
	Attempts    int       `json:"attempts"`
	DeadSince   time.Time `json:"dead_since"`
}

// LogKind chooses one of the logs of an attempt.
type LogKind string

// The logs.
const (
	LogEngine LogKind = "engine"
	LogRunner LogKind = "runner"
	LogSlurm  LogKind = "slurm"
)

// Version is the answer of GET /v1/version.
type Version struct {
	Version string `json:"version"`
	User    string `json:"user"` // who the daemon takes the caller for
}

// Text says in words what an action changed.
func (r ActionResponse) Text() string {
	s := fmt.Sprintf("%d runs of %d sweeps", r.Runs, len(r.Sweeps))
	if r.Unchanged > 0 {
		s += fmt.Sprintf("; %d runs were in no state for it", r.Unchanged)
	}
	return s
}
