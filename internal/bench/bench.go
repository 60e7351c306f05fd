// Package bench runs the load generator alone: a workload against a server that
// is already running, without Slurm or a database. It promises the same plan,
// metrics and audit as a run inside a sweep, on any server; it refuses nothing
// but what cannot be measured, and says when the numbers are not to be believed.
package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/runner/audit"
	"sbench/internal/runner/loadgen"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// Options are what to offer to whom.
type Options struct {
	URL      string // http://host:port, https://…, unix:///path/to/socket
	Model    string // "" asks the server
	Workload setting.Workload
	Repeat   int
	SLO      map[string]time.Duration
	// MaxErrorRate is the share of failed requests above which errors are a
	// finding; 0 takes the audit's default.
	MaxErrorRate float64
	// Authorization is the value of that header, "" for none. It is a secret.
	Authorization string
	Trace         []byte // content of the trace, where the workload replays one
	Prompts       []byte // content of the prompt file, where the workload has one
	// StopWhenSaturated ends a ladder behind the first load point that was too much.
	StopWhenSaturated bool
	Client            loadgen.Client
	Progress          func(loadgen.Progress)
}

// Report is what a load run measured.
type Report struct {
	StartedAt time.Time // wall-clock anchor of the rows' times
	PlanHash  string
	Served    loadgen.Served
	Windows   []result.Window
	Checks    []result.Check
	Valid     bool // the client did nothing to the numbers
	Findings  []string
	Harness   loadgen.Harness
	Stopped   string // why a ladder ended early; "" where it did not
	Requests  []result.Request
	SLO       metrics.SLO
}

// Run probes the server, offers the load, and judges what came back. An error
// means that nothing was measured.
func Run(ctx context.Context, o Options) (Report, error) {
	target, err := loadgen.ParseTarget(o.URL)
	if err != nil {
		return Report{}, err
	}
	target.Authorization = o.Authorization
	for _, file := range []struct {
		what, digest string
		content      []byte
	}{
		{"trace", o.Workload.Arrival.TraceDigest, o.Trace},
		{"prompt file", o.Workload.Prompts.FileDigest, o.Prompts},
	} {
		if err := checkDigest(file.what, file.digest, file.content); err != nil {
			return Report{}, err
		}
	}
	plan, err := workload.New(o.Workload, o.Repeat, workload.Options{Trace: o.Trace, Prompts: o.Prompts})
	if err != nil {
		return Report{}, fmt.Errorf("plan the workload: %w", err)
	}
	c := loadgen.Config{
		Target: target, Model: o.Model, Request: o.Workload.Request, Plan: plan,
		StopWhenSaturated: o.StopWhenSaturated, Client: o.Client, Progress: o.Progress,
	}
	if c.Served, err = loadgen.Probe(ctx, c); err != nil {
		return Report{}, err
	}
	clock := loadgen.NewClock()
	rec, err := loadgen.Run(ctx, c, clock)
	if err != nil {
		return Report{}, err
	}
	slo := metrics.SLO{}
	for name, limit := range o.SLO {
		slo[name] = limit.Seconds()
	}
	windows := make([]result.Window, len(rec.Windows))
	for i, w := range rec.Windows {
		windows[i] = metrics.Compute(rec.Requests, w, slo)
	}
	checks := audit.Run(audit.Input{
		Workload: o.Workload, Plan: plan, Recording: rec, Windows: windows, ErrorLimit: o.MaxErrorRate,
	})
	return Report{
		StartedAt: clock.Wall(), PlanHash: rec.PlanHash, Served: rec.Served, Windows: windows,
		Checks: checks, Valid: audit.Valid(checks), Findings: audit.Findings(checks),
		Harness: rec.Harness, Stopped: rec.Stopped, Requests: rec.Requests, SLO: slo,
	}, nil
}

// checkDigest holds a file against the digest that pins it; without one, any
// content will do.
func checkDigest(what, digest string, content []byte) error {
	want, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || len(content) == 0 {
		return nil
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != want {
		return fmt.Errorf("%s: sha256:%s expected, sha256:%x found", what, want, sum)
	}
	return nil
}
