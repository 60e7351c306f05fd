package slurm

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What every captured sbatch has done.
func TestClassify_Captured(t *testing.T) {
	want := map[string]Submission{
		"sbatch-parsable":               {Outcome: Created, JobID: 34},
		"sbatch-array-parsable":         {Outcome: Created, JobID: 36},
		"sbatch-parsable-cluster":       {Outcome: Created, JobID: 109, Cluster: "lab"},
		"sbatch-ctld-stopped-timeout":   {Outcome: Ambiguous},
		"sbatch-ctld-down":              {Outcome: Ambiguous},
		"sbatch-munge-down":             {Outcome: Ambiguous},
		"sbatch-conf-missing":           {Outcome: Ambiguous},
		"sbatch-no-conf":                {Outcome: Ambiguous},
		"sbatch-err-qosmaxsubmit":       {Outcome: Refused, Backpressure: true},
		"sbatch-err-qosmaxsubmit-array": {Outcome: Refused, Backpressure: true},
		"sbatch-err-array-max101":       {Outcome: Refused, TooLong: true},
		"sbatch-err-array-syntax":       {Outcome: Refused, TooLong: true},
		"sbatch-err-array-too-large":    {Outcome: Refused, TooLong: true},
	}
	for name, exit := range exits(t) {
		if !strings.HasPrefix(name, "sbatch-") || exit == 124 {
			continue // 124 is the time limit of the capture
		}
		out := output{stdout: capture(t, name+".out"), stderr: tidy(capture(t, name+".err")), exit: exit}
		var err *Error
		if exit != 0 {
			err = &Error{Program: "sbatch", Exit: exit, Stderr: out.stderr}
		}
		got := classify(out, err)
		expected, listed := want[name]
		switch {
		case listed:
		case exit == 0:
			// Captured without --parsable: no line is an id.
			expected = Submission{Outcome: Ambiguous}
		default:
			expected = Submission{Outcome: Refused}
		}
		if got.Outcome != Created && got.Message == "" {
			t.Errorf("%s: no message", name)
		}
		got.Message = ""
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s (%s): %s", name, out.stderr, diff)
		}
	}
}

func TestClassify(t *testing.T) {
	failed := func(stderr string) *Error { return &Error{Program: "sbatch", Exit: 1, Stderr: stderr} }
	tests := []struct {
		name string
		out  output
		err  *Error
		want Submission
	}{
		{"a wrapper's banner before the id", output{stdout: "Welcome to Stampede3\nsite check 3 ok\n17\n"}, nil, Submission{Outcome: Created, JobID: 17}},
		{"an id with a cluster", output{stdout: "17;alpha\n"}, nil, Submission{Outcome: Created, JobID: 17, Cluster: "alpha"}},
		{"success beside noise on stderr", output{stdout: "17\n", stderr: "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"}, nil, Submission{Outcome: Created, JobID: 17}},
		{"no id", output{stdout: "ok\n"}, nil, Submission{Message: "sbatch ended well but printed no job id"}},
		{"id zero", output{stdout: "0\n"}, nil, Submission{Message: "sbatch ended well but printed no job id"}},
		{"an id that overflows", output{stdout: "99999999999999999999\n"}, nil, Submission{Message: "sbatch ended well but printed no job id"}},
		{"failed after the id", output{stdout: "17\n", exit: 1, stderr: "sbatch: error: x"}, failed("x"), Submission{JobID: 17, Message: "x"}},
		{"an unknown text", output{exit: 1, stderr: "sbatch: error: gremlins"}, failed("gremlins"), Submission{Message: "gremlins"}},
		{"an unspecified error of the controller", output{exit: 1, stderr: "sbatch: error: Batch job submission failed: Unspecified error"}, failed(""), Submission{Message: "Unspecified error"}},
		{"stopped while it waits for room", output{exit: -1, stopped: true, stderr: "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"}, &Error{Exit: -1}, Submission{Backpressure: true, Message: "Slurm temporarily unable to accept job, sleeping and retrying"}},
		{"killed", output{exit: -1}, &Error{Program: "sbatch", Exit: -1, TimedOut: true}, Submission{Message: "sbatch: no answer in time"}},
		{"a refusal in words", output{exit: 1, stderr: "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition name specified"}, failed(""), Submission{Outcome: Refused, Message: "invalid partition specified: x; Invalid partition name specified"}},
	}
	// What the accounting policy refuses: only a number of jobs passes by itself.
	const policy = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
	for reason, full := range map[string]bool{
		"AssocMaxSubmitJobLimit": true, "AssocGrpSubmitJobsLimit": true, "QOSGrpSubmitJobsLimit": true, "QOSMaxSubmitJobPerUserLimit": true,
		"MaxSubmitJobsPerAccount": true, "": true,
		"QOSMaxWallDurationPerJobLimit": false, "QOSMaxGRESPerJob": false, "AssocMaxNodePerJobLimit": false, "QOSGrpGRES": false,
	} {
		got := classify(output{exit: 1, stderr: "sbatch: error: " + reason + "\n" + policy}, failed(""))
		if got.Outcome != Refused || got.Backpressure != full || got.NotNow {
			t.Errorf("%s: %+v", reason, got)
		}
	}
	for _, text := range []string{"Required partition not available (inactive or drain)", "I/O error writing script/environment to file", "Requested operation is presently disabled"} {
		got := classify(output{exit: 1, stderr: "sbatch: error: Batch job submission failed: " + text}, failed(""))
		if got.Outcome != Refused || got.Backpressure || !got.NotNow {
			t.Errorf("%s: %+v", text, got)
		}
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, classify(tt.out, tt.err)); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}
