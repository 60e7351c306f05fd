// Package lifecycle is the one table of what can become of a run: states, the
// legal transitions between them, exit classes, their process exit codes, and
// what is retried. The package is pure.
package lifecycle

// RunState is the state of a run (DESIGN §4).
type RunState string

// The run states.
const (
	RunPending      RunState = "pending"
	RunSubmitted    RunState = "submitted"
	RunProvisioning RunState = "provisioning"
	RunRunning      RunState = "running"
	RunComplete     RunState = "complete"
	RunFailed       RunState = "failed"
	RunDead         RunState = "dead"
	RunCancelled    RunState = "cancelled"
	RunSkipped      RunState = "skipped"
)

// ExitClass is how an attempt ended. It is sealed in the manifest, stored with
// the attempt, and is the runner's process exit code.
type ExitClass string

// The exit classes.
const (
	ExitMeasured      ExitClass = "measured"
	ExitDriftArtefact ExitClass = "drift_artefact" // digest, flags, build: dead at once, no node is blamed
	ExitDriftNode     ExitClass = "drift_node"     // GPU, ECC, clocks, driver, topology: retried elsewhere
	ExitStaging       ExitClass = "staging"        // checkpoint or image could not be brought to the node
	ExitEngineStart   ExitClass = "engine_start"   // no token within the deadline
	ExitEngineDied    ExitClass = "engine_died"    // ended by itself during warm-up or measurement
	ExitInvalid       ExitClass = "invalid"        // a harness check failed: the number would not be true
	ExitCancelled     ExitClass = "cancelled"      // SIGTERM: scancel, preemption, time limit
	ExitSpec          ExitClass = "spec"           // the frozen spec is missing, damaged or not understood
	ExitInternal      ExitClass = "internal"       // a fault of the harness itself
	ExitLost          ExitClass = "lost"           // nothing sealed: node failure, kill -9; never a process's own exit
)
