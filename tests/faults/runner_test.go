package faults

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/runner"
	"sbench/internal/seal"
)

// ledger is where every runner notes, beside what it seals, what it has measured.
const ledger = "ledger"

// killedRunner stands in the ledger for a runner that was killed.
const killedRunner = "killed"

// quickRunner claims like the real one, and takes a fraction of a second to
// "measure". Some of its runs die without a word, some fail.
func quickRunner(ctx context.Context, args []string) int {
	if len(args) > 0 && args[0] != "run" {
		return runner.Main(ctx, args, os.Stdout, os.Stderr)
	}
	flags := map[string]string{}
	for i := 1; i+1 < len(args); i += 2 {
		flags[args[i]] = args[i+1]
	}
	class, err := quickRun(ctx, flags["--batch"], flags["--digest"], flags["--task"], flags["--run"])
	if err != nil {
		fmt.Fprintln(os.Stderr, "quick runner:", err)
		return lifecycle.ExitInternal.Code()
	}
	return class.Code()
}

func quickRun(ctx context.Context, dir, digest, taskText, runText string) (lifecycle.ExitClass, error) {
	data, err := os.ReadFile(filepath.Join(dir, batch.SpecFile))
	if err != nil {
		return "", err
	}
	spec, err := batch.Decode(data, digest)
	if err != nil {
		return "", err
	}
	taskIndex, _ := strconv.Atoi(taskText)
	id, _ := strconv.ParseInt(runText, 10, 64)
	task, _ := spec.Task(taskIndex)
	run, ok := task.Run(id)
	if !ok {
		return "", fmt.Errorf("no run %d in task %d", id, taskIndex)
	}
	job, _ := strconv.ParseInt(os.Getenv("SLURM_JOB_ID"), 10, 64)
	restart, _ := strconv.Atoi(os.Getenv("SLURM_RESTART_COUNT"))
	begin := time.Now()
	class := lifecycle.ExitMeasured
	select {
	case <-ctx.Done():
		class = lifecycle.ExitCancelled
	case <-time.After(time.Duration(100+rand.IntN(500)) * time.Millisecond):
	}
	kill := false
	switch n := rand.IntN(20); {
	case class == lifecycle.ExitCancelled:
	case n == 0:
		kill = true
	case n == 1:
		class = lifecycle.ExitStaging
	}
	m := result.Manifest{
		ExitClass: class, EnvVerified: class == lifecycle.ExitMeasured, Valid: class == lifecycle.ExitMeasured, Runner: "quick", Reasons: []string{string(class)},
		Attempt: result.Attempt{
			RunID: id, Sweep: run.Sweep, SettingHash: run.SettingHash, SeriesHash: run.SeriesHash, Repeat: run.Repeat, Token: spec.Token,
			TaskIndex: taskIndex, Site: spec.Site, Cluster: spec.Cluster, JobIDRaw: job, RestartCount: restart, StepID: os.Getenv("SLURM_STEP_ID"),
			Nodes: []string{os.Getenv("SLURMD_NODENAME")}, HardwareClass: spec.HardwareClass, StartedAt: begin.UTC(), EndedAt: time.Now().UTC(),
		},
	}
	if kill { // in the middle
		m.ExitClass = killedRunner
		_ = note(spec.AttemptsDir, m)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if err := quickSeal(spec, m); err != nil {
		return "", err
	}
	return class, note(spec.AttemptsDir, m)
}

// quickSeal seals what a runner would.
func quickSeal(spec *batch.Spec, m result.Manifest) error {
	w, err := seal.Create(seal.Dir(spec.AttemptsDir, m.Attempt.RunID, m.Attempt.JobIDRaw, m.Attempt.RestartCount))
	if err != nil {
		return err
	}
	if m.ExitClass == lifecycle.ExitMeasured {
		rows := quickRequests(20)
		window := metrics.Compute(rows, result.Window{OfferedRate: 10, End: 2e9}, nil)
		r := result.Result{
			Attempt: m.Attempt, Valid: true, EnvVerified: true, MetricsVersion: result.MetricsVersion, PlanHash: "plan",
			Metrics: window.Metrics, NullReasons: window.NullReasons, Fingerprint: []byte(`{"version":1}`),
		}
		for name, encode := range map[string]func(io.Writer) error{
			result.ResultFile:   func(out io.Writer) error { return resultfile.EncodeResult(out, r) },
			result.WindowFile:   func(out io.Writer) error { return resultfile.EncodeWindows(out, m.Attempt, []result.Window{window}) },
			result.RequestsFile: func(out io.Writer) error { return resultfile.EncodeRequests(out, m.Attempt, rows) },
		} {
			if err := w.WriteFile(name, encode); err != nil {
				return err
			}
		}
	}
	if err := w.WriteFile(result.RunnerLog, func(out io.Writer) error { _, err := io.WriteString(out, "quick\n"); return err }); err != nil {
		return err
	}
	_, err = w.Seal(m)
	return err
}

func quickRequests(n int) []result.Request {
	rows := make([]result.Request, n)
	for i := range rows {
		due := int64(i) * 1e8
		first := due + 40e6
		last, two, one := first+30e6, int32(2), int32(1)
		rows[i] = result.Request{
			Index: int32(i), Phase: result.PhaseMeasure, Outcome: result.OutcomeOK, TIntended: due, TDispatch: &due, TWritten: &due,
			TTok1: &first, TContent1: &first, TTokN: &last, TEnd: &last, OutputTokens: &two, InputTokens: &two, TokensFirst: &one,
			TokenSource: "usage", EventTimes: []int64{first, last}, EventTokens: []int32{1, 1},
		}
	}
	return rows
}

// note appends a line to the ledger, at once.
func note(attempts string, m result.Manifest) error {
	// <dir>/disk/results/attempts; the ledger is not on the disk that gets full.
	dir := filepath.Dir(filepath.Dir(filepath.Dir(attempts)))
	f, err := os.OpenFile(filepath.Join(dir, ledger), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%d %d %d %s\n", m.Attempt.RunID, m.Attempt.JobIDRaw, m.Attempt.RestartCount, m.ExitClass)
	if err != nil {
		return err
	}
	return f.Close()
}
