package api

import (
	"time"

	"sbench/internal/diag"
)

// SubmitRequest is the body of POST /v1/sweeps. The daemon parses and expands
// File itself; nothing that a client computed is trusted.
type SubmitRequest struct {
	// IdempotencyKey makes a repeated request (a lost answer) return the first
	// one's sweep. It is the client's random text of 16 to 64 characters.
	IdempotencyKey string  `json:"idempotency_key"`
	FileName       string  `json:"file_name"` // for messages only
	File           string  `json:"file"`      // the sweep file's text
	Options        Options `json:"options"`
	// TestOnly plans and answers, and stores nothing.
	TestOnly bool `json:"test_only"`
	// SettingsDigest refuses a file that expands to other settings than those of
	// the plan that named it; "" takes any.
	SettingsDigest string `json:"settings_digest,omitempty"`
}

// Options are what the command line, the environment and #SBENCH lines say, in
// this order of precedence, already merged. They win over the sweep file; nil,
// "" and empty mean "not given".
type Options struct {
	Site string `json:"site,omitempty"`
	// Set holds "axis.path=value" assignments that replace the sweep file's
	// values before anything is expanded or hashed.
	Set     []string `json:"set,omitempty"`
	Repeats *int     `json:"repeats,omitempty"`
	// Only reduces the sweep to one run of one of its settings; nil does not.
	Only *Only `json:"only,omitempty"`

	JobName      string     `json:"job_name,omitempty"`
	Partition    string     `json:"partition,omitempty"`
	Account      string     `json:"account,omitempty"`
	QOS          string     `json:"qos,omitempty"`
	TimeLimitS   *int64     `json:"time_limit_s,omitempty"` // of one task
	Constraint   string     `json:"constraint,omitempty"`   // sets hardware.constraint
	NodeList     string     `json:"nodelist,omitempty"`
	ExcludeNodes string     `json:"exclude_nodes,omitempty"`
	EachNode     bool       `json:"each_node,omitempty"` // every repeat once on each node that can take it
	Gres         string     `json:"gres,omitempty"`      // sets hardware.gpu and hardware.gpus
	Exclusive    bool       `json:"exclusive,omitempty"` // sets hardware.placement: node
	Switches     *int       `json:"switches,omitempty"`  // sets hardware.switches
	Reservation  string     `json:"reservation,omitempty"`
	Nice         *int       `json:"nice,omitempty"`
	Wckey        string     `json:"wckey,omitempty"`
	Comment      string     `json:"comment,omitempty"`
	Hold         bool       `json:"hold,omitempty"`
	Begin        *time.Time `json:"begin,omitempty"`
	Dependency   string     `json:"dependency,omitempty"`
	MailType     []string   `json:"mail_type,omitempty"`
	MailUser     string     `json:"mail_user,omitempty"`

	Priority    string   `json:"priority,omitempty"` // urgent, normal, bulk
	Force       bool     `json:"force,omitempty"`    // run what reuse would skip
	MaxInflight *int     `json:"max_inflight,omitempty"`
	MaxGPUHours *float64 `json:"max_gpu_hours,omitempty"` // refuse a forecast above it
	MaxCost     *float64 `json:"max_cost,omitempty"`      // refuse a forecast above it, in the site's currency
}

// Only names one run of a sweep: what repeats the plan, seeds included, of an
// earlier one.
type Only struct {
	SettingHash string `json:"setting_hash"`
	Repeat      int    `json:"repeat"` // from 0
}

// SubmitResponse answers a submission.
type SubmitResponse struct {
	// SweepID is 0 for a test-only request.
	SweepID int64 `json:"sweep_id"`
	// Repeated says that the idempotency key was known: SweepID is the first one's.
	Repeated bool      `json:"repeated"`
	Plan     Plan      `json:"plan"`
	Warnings diag.List `json:"warnings"`
	Notes    []string  `json:"notes"` // what is accepted and has no effect yet, or is worth knowing
}

// Plan is what a submission will do.
type Plan struct {
	Name          string `json:"name"`
	Site          string `json:"site"`
	Cluster       string `json:"cluster"`
	HardwareClass string `json:"hardware_class"`
	Settings      int    `json:"settings"`
	// SettingsDigest is of the settings' hashes in their order.
	SettingsDigest string `json:"settings_digest"`
	// Runs, Tasks and Arrays are what is planned at once; RunsMax is how many runs
	// there can be where their number depends on what they measure.
	Runs    int `json:"runs"`
	RunsMax int `json:"runs_max"`
	Tasks   int `json:"tasks"`
	Arrays  int `json:"arrays"`
	// GPUHours is the forecast of held GPUs times hours: a setting with
	// placement node holds all GPUs of its nodes. It is of RunsMax runs, and what
	// quotas and limits are held against; GPUHoursMin is of Runs.
	GPUHours    float64 `json:"gpu_hours"`
	GPUHoursMin float64 `json:"gpu_hours_min"`
	// Cost is null where the site has no rate.
	Cost     *float64      `json:"cost"`
	Currency string        `json:"currency"`
	Batches  []PlanArray   `json:"batches"`
	Detail   []PlanSetting `json:"settings_detail"`
	// Skipped are the settings that stand on an older result, and SavedGPUHours
	// what they would have held.
	Skipped       []PlanSkip `json:"skipped"`
	SavedGPUHours float64    `json:"saved_gpu_hours"`
	// Canaries are fresh settings that are run all the same, to see whether the
	// skipped ones still hold.
	Canaries []string `json:"canaries"`
}

// PlanArray is one job array of the plan.
type PlanArray struct {
	Partition  string `json:"partition"`
	Account    string `json:"account"`
	QOS        string `json:"qos"`
	Gres       string `json:"gres"`
	Nodes      int    `json:"nodes"`
	Constraint string `json:"constraint"`
	Switches   int    `json:"switches"`
	Exclusive  bool   `json:"exclusive"`
	TimeLimitS int64  `json:"time_limit_s"`
	Tasks      int    `json:"tasks"`
	Runs       int    `json:"runs"`
}

// PlanSetting is one setting of the plan.
type PlanSetting struct {
	SettingHash string         `json:"setting_hash"`
	Axes        map[string]any `json:"axes"`
	Repeats     int            `json:"repeats"`     // runs that are planned at once
	RepeatsMax  int            `json:"repeats_max"` // and how many there can be
	HeldGPUs    int            `json:"held_gpus"`
	RunSeconds  float64        `json:"run_seconds"` // forecast of one run, start-up included
}

// PlanSkip is a setting that would not be run, and why.
type PlanSkip struct {
	SettingHash string `json:"setting_hash"`
	Reason      string `json:"reason"`
}
