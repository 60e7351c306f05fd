package runner

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"sbench/internal/lifecycle"
	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/runner/audit"
	"sbench/internal/runner/gpu"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
)

// measurement is what the load left behind.
type measurement struct {
	recording *loadgen.Recording
	windows   []result.Window
	findings  []string
}

// errEngineGone is the cause of the load's context when the engine ended.
var errEngineGone = errors.New("the engine ended")

// measure offers the planned load and computes the metrics of every window.
func (a *attempt) measure(ctx context.Context) error {
	config, err := a.loadConfig()
	if err != nil {
		return err
	}
	alive, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-a.engine.tree.Done():
			cancel(errEngineGone)
		case <-alive.Done():
		}
	}()
	// A plan that does not end is a fault of ours: what is given here is far
	// beyond the warm-up, the windows and the drain together.
	const slack = 5 * time.Minute
	loadCtx, stop := context.WithTimeoutCause(alive, time.Duration(a.plan.Length)+slack, errors.New("the load did not end in its time"))
	defer stop()
	if err := a.sampleOthers(ctx); err != nil {
		return err
	}
	sampler := a.startTelemetry(ctx)
	devices := a.startDevices()
	recording, err := loadgen.Run(loadCtx, config, a.clock)
	a.telemetry = sampler.stop()
	samples := a.stopDevices(devices)
	cause := context.Cause(loadCtx)
	cancel(nil)
	<-watched
	switch {
	case errors.Is(cause, errEngineGone), a.engineEnded(err != nil && ctx.Err() == nil):
		return a.died("warm-up or measurement")
	case ctx.Err() != nil:
		return fail(lifecycle.ExitCancelled, "", fmt.Errorf("stopped during the measurement: %w", ctx.Err()))
	case err != nil:
		return fail(lifecycle.ExitInternal, "load", fmt.Errorf("LOAD: %w", errors.Join(err, cause)))
	}
	m := &measurement{recording: recording}
	slo := a.slo()
	for _, w := range recording.Windows {
		w = metrics.Compute(recording.Requests, w, slo)
		a.addEnergy(&w, samples)
		m.windows = append(m.windows, w)
	}
	a.checkDevices(recording.Windows, samples)
	if a.fingerprint.Nodes[0].GPUs != nil {
		a.checks = append(a.checks, gpu.BandwidthCheck(m.windows, a.decode()))
	}
	// A signal that comes now finds the measurement complete.
	if err := a.sampledOthers(context.WithoutCancel(ctx), m.windows); err != nil {
		return err
	}
	a.measured = m
	return nil
}

// engineEnded reports whether the engine has ended. suspected waits a moment: a
// dying engine's connections break before its process is gone.
func (a *attempt) engineEnded(suspected bool) bool {
	patience := time.Duration(0)
	if suspected {
		patience = 2 * time.Second
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-a.engine.tree.Done():
		return true
	default:
	}
	select {
	case <-a.engine.tree.Done():
		return true
	case <-timer.C:
		return false
	}
}

func (a *attempt) loadConfig() (loadgen.Config, error) {
	u, err := url.Parse(a.engine.ready.BaseURL)
	if err != nil {
		return loadgen.Config{}, fail(lifecycle.ExitInternal, "", err)
	}
	c := loadgen.Config{
		Target: loadgen.Target{Network: "tcp", Address: u.Host, Host: u.Host, Base: u.Path},
		Model:  a.engine.ready.Model, Request: a.setting.Workload.Request, Plan: a.plan,
		MaxInFlight: a.setting.Workload.MaxConcurrency, StopWhenSaturated: len(a.setting.Workload.Ladder) > 0,
	}
	if own := a.clientCPUs(); own != nil {
		// Cores of its own: the sender may spin on one of them.
		c.Client.CPUs, c.Client.Spin = own, 200*time.Microsecond
		c.Client.Readers = max(1, len(own)-1)
	}
	if a.setting.Engine.Kind == setting.EngineLlamaCpp {
		c.Client.Preopen = -1 // an idle connection takes a thread of the server
	}
	return c, nil
}

// slo are the limits in seconds, as the metrics want them.
func (a *attempt) slo() metrics.SLO {
	if len(a.run.SLO) == 0 {
		return nil
	}
	slo := metrics.SLO{}
	for name, limit := range a.run.SLO {
		slo[name] = limit.Seconds()
	}
	return slo
}

// judge audits the measurement and decides whether it is valid.
func (a *attempt) judge() {
	m := a.measured
	// Every check made here is one that had to be made: where it could not be,
	// nothing vouches for the number.
	for i := range a.checks {
		if c := &a.checks[i]; c.Kind == result.CheckHarness && c.Verdict == result.VerdictUnknown {
			c.Verdict, c.Reason = result.VerdictFail, "not known: "+c.Reason
		}
	}
	a.checks = audit.Run(audit.Input{
		Workload: a.setting.Workload, Plan: a.plan, Recording: m.recording, Windows: m.windows, Others: a.checks,
		Require: a.required(), ErrorLimit: a.run.MaxErrorRate,
	})
	m.findings = audit.Findings(a.checks)
	a.manifest.EnvVerified = a.verified && !anyRefuses(a.checks)
	a.manifest.Valid = a.manifest.EnvVerified && audit.Valid(a.checks)
	a.manifest.ExitClass = lifecycle.ExitMeasured
	if a.manifest.Valid {
		return
	}
	a.manifest.ExitClass = lifecycle.ExitInvalid
	for _, c := range a.checks {
		if c.Kind != result.CheckFinding && c.Verdict == result.VerdictFail {
			a.manifest.Reasons = append(a.manifest.Reasons, fmt.Sprintf("INVALID: %s: %s", c.Name, c.Reason))
		}
	}
	if len(a.manifest.Reasons) == 0 {
		a.manifest.Reasons = []string{"INVALID: the environment was not verified"}
	}
}

// required are the checks that must have been made here.
func (a *attempt) required() []string {
	names := []string{"artefacts"}
	if a.fingerprint.Nodes[0].GPUs != nil {
		names = append(names, "gpu_devices", "gpu_ecc", "gpu_processes", "gpu_throttle", "gpu_throttle_under_load")
	}
	return names
}

// anyRefuses reports whether anything pinned was wrong or not read, before or
// after.
func anyRefuses(checks []result.Check) bool {
	for _, c := range checks {
		if c.Kind == result.CheckEnvironment && (c.Verdict == result.VerdictFail || c.Verdict == result.VerdictUnknown) {
			return true
		}
	}
	return false
}
