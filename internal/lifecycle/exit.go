package lifecycle

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

// Retry says what is done after an attempt of a class.
type Retry string

// The kinds of retry.
const (
	RetryNone          Retry = "none"          // there is nothing to repeat
	RetryAnywhere      Retry = "anywhere"      // the infrastructure or the harness was at fault
	RetryElsewhere     Retry = "elsewhere"     // the node was at fault: mark it for this setting
	RetryNever         Retry = "never"         // repeating cannot help: dead at once
	RetryDeterministic Retry = "deterministic" // once more; dead at the second equal signature
)

// Class is a row of the table of exit classes.
type Class struct {
	Exit ExitClass
	// Code is the runner's exit code: below 100, because Slurm before 25.11
	// subtracts 128 from what is above, and -1 where no process can say it.
	Code    int
	Retry   Retry
	Meaning string // for people, lower case
}

var classes = []Class{
	{ExitMeasured, 0, RetryNone, "measured"},
	{ExitDriftArtefact, 10, RetryNever, "refused: an artefact is not the pinned one"},
	{ExitDriftNode, 11, RetryElsewhere, "refused: the node is not as pinned"},
	{ExitStaging, 12, RetryAnywhere, "an artefact could not be brought to the node"},
	{ExitEngineStart, 13, RetryDeterministic, "the engine did not become ready"},
	{ExitEngineDied, 14, RetryDeterministic, "the engine ended by itself"},
	{ExitInvalid, 15, RetryAnywhere, "measured, but the harness was not true enough"},
	{ExitCancelled, 16, RetryAnywhere, "ended by a signal"},
	{ExitSpec, 17, RetryDeterministic, "the frozen spec is missing, damaged or not understood"},
	{ExitInternal, 70, RetryDeterministic, "a fault of the harness"},
	{ExitLost, -1, RetryAnywhere, "nothing was sealed"},
}

// Classes returns the table of exit classes in a fixed order.
func Classes() []Class { return append([]Class(nil), classes...) }

func (c ExitClass) row() (Class, bool) {
	for _, row := range classes {
		if row.Exit == c {
			return row, true
		}
	}
	return Class{}, false
}

// Known reports whether the class is in the table. Manifests are outside input.
func (c ExitClass) Known() bool { _, ok := c.row(); return ok }

// Code is the process exit code of the class; -1 for ExitLost and for a class
// that is not in the table, neither of which a process may end with.
func (c ExitClass) Code() int {
	if row, ok := c.row(); ok {
		return row.Code
	}
	return -1
}

// Retry is what is done after an attempt of the class. An unknown class is
// treated as a deterministic fault, so that it cannot loop.
func (c ExitClass) Retry() Retry {
	if row, ok := c.row(); ok {
		return row.Retry
	}
	return RetryDeterministic
}

// Meaning says the class in words.
func (c ExitClass) Meaning() string {
	if row, ok := c.row(); ok {
		return row.Meaning
	}
	return "unknown exit class " + string(c)
}

// FromCode is the class of a process exit code; false where no class has it
// (137 of a killed process, 1 of a shell): then nothing was sealed.
func FromCode(code int) (ExitClass, bool) {
	for _, row := range classes {
		if row.Code == code && code >= 0 {
			return row.Exit, true
		}
	}
	return ExitLost, false
}
