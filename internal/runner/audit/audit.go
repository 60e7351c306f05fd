package audit

import (
	"cmp"
	"slices"

	"sbench/internal/result"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// Input is everything that a check may look at.
type Input struct {
	Workload  setting.Workload
	Plan      *workload.Plan // nil where it is not known: what needs it is unknown
	Recording *loadgen.Recording
	// Windows are the recording's with their metrics computed. The findings of
	// each load point are noted in them.
	Windows []result.Window
	// Others are checks that were made elsewhere (clocks, ECC, neighbours): they
	// are judged together with ours.
	Others []result.Check
	// Require names checks that are mandatory beyond those of the workload's kind:
	// the clocks where they are pinned, for example.
	Require []string
	// ErrorLimit is the share of failed requests above which the engine's errors
	// are a finding; 0 takes DefaultErrorLimit.
	ErrorLimit float64
}

// DefaultErrorLimit is the share of failed requests that is not yet a finding.
const DefaultErrorLimit = 0.001

// The names of the checks.
const (
	SendLateness    = "send_lateness"
	NotSent         = "requests_not_sent"
	Accounted       = "requests_accounted"
	ClientCPU       = "client_cpu"
	ThreadDelay     = "client_run_queue"
	GCPause         = "client_gc_pause"
	Stall           = "client_stall"
	Throttled       = "client_throttled"
	Steal           = "cpu_steal"
	Descriptors     = "descriptor_headroom"
	Ports           = "port_headroom"
	Clock           = "clock_consistency"
	TokenCount      = "token_count_agreement"
	HiddenCache     = "hidden_cache"
	Saturated       = "saturated"
	Unstable        = "unstable"
	Errors          = "errors"
	LengthMismatch  = "length_mismatch"
	Little          = "littles_law"
	ConcurrencyHeld = "concurrency_limit"
)

// Mandatory lists the harness checks without which a measurement of that arrival
// process is not believed: one that is unknown fails.
func Mandatory(p setting.Process) []string {
	all := []string{SendLateness, NotSent, Accounted, ClientCPU, Stall, Descriptors, Clock}
	if p == setting.ProcessClosed {
		// A closed loop has no schedule that it could lose requests of.
		return slices.DeleteFunc(all, func(n string) bool { return n == Accounted })
	}
	return all
}

// Valid says whether no harness or environment check failed.
func Valid(checks []result.Check) bool {
	for _, c := range checks {
		if c.Verdict == result.VerdictFail && c.Kind != result.CheckFinding {
			return false
		}
	}
	return true
}

// Findings are the names of the findings about the engine.
func Findings(checks []result.Check) []string {
	var names []string
	for _, c := range checks {
		if c.Verdict == result.VerdictFail && c.Kind == result.CheckFinding {
			names = append(names, c.Name)
		}
	}
	return names
}

// Run makes every check that the client can make, judges what was mandatory, and
// returns all checks with in.Others, the failed ones first.
func Run(in Input) []result.Check {
	client := harness(in)
	checks := slices.Concat(client, findings(in, unpunctual(client)), in.Others)
	mandatory := slices.Concat(Mandatory(in.Workload.Arrival.Process), in.Require)
	for _, name := range mandatory {
		i := slices.IndexFunc(checks, func(c result.Check) bool { return c.Name == name })
		if i < 0 {
			checks = append(checks, result.Check{
				Name: name, Kind: result.CheckHarness, Verdict: result.VerdictFail,
				Reason: "the check is mandatory for this workload and was not made",
			})
			continue
		}
		if c := &checks[i]; c.Verdict == result.VerdictUnknown {
			c.Verdict = result.VerdictFail
			c.Reason = "mandatory for this workload, but unknown: " + c.Reason
		}
	}
	slices.SortStableFunc(checks, func(a, b result.Check) int {
		return cmp.Compare(rank(a), rank(b))
	})
	return checks
}

// unpunctual says why the client cannot blame the engine for a rate that was not
// reached; "" where it was punctual.
func unpunctual(client []result.Check) string {
	for _, c := range client {
		if (c.Name == SendLateness || c.Name == NotSent) && c.Verdict == result.VerdictFail {
			return c.Reason
		}
	}
	return ""
}

// rank orders failures of the harness before findings before the rest.
func rank(c result.Check) int {
	switch {
	case c.Verdict == result.VerdictFail && c.Kind != result.CheckFinding:
		return 0
	case c.Verdict == result.VerdictFail:
		return 1
	case c.Verdict == result.VerdictUnknown:
		return 2
	}
	return 3
}

// check is a check with its threshold; it passes where value <= threshold.
func check(name string, kind result.CheckKind, value, threshold float64, unit, reason string) result.Check {
	verdict := result.VerdictPass
	if !(value <= threshold) {
		verdict = result.VerdictFail
	}
	return result.Check{Name: name, Kind: kind, Verdict: verdict, Value: &value, Threshold: &threshold, Unit: unit, Reason: reason}
}

func unknown(name string, kind result.CheckKind, why string) result.Check {
	return result.Check{Name: name, Kind: kind, Verdict: result.VerdictUnknown, Reason: why}
}

func notApplicable(name string, kind result.CheckKind, why string) result.Check {
	return result.Check{Name: name, Kind: kind, Verdict: result.VerdictNotApplicable, Reason: why}
}
