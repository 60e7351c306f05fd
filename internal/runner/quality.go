package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"sbench/internal/batch"
	"sbench/internal/metrics"
	"sbench/internal/quality"
	"sbench/internal/result"
	"sbench/internal/runner/engine"
	"sbench/internal/runner/evaluate"
	"sbench/internal/setting"
)

// evaluation is what became of the questions after the measurement.
type evaluation struct {
	hash   string
	items  []result.QualityItem
	report result.Quality
}

// itemsFile is what a command finds its items by, in a container.
const itemsFile = "/sbench/quality/items.jsonl"

// evaluate asks the engine that was measured for answers, where the run wants it.
// Everything that the measurement is judged by was read before, and whatever goes
// wrong here is a reason for having no score, and nothing else: it has no error.
func (a *attempt) evaluate(ctx context.Context) {
	d := a.run.Quality
	if d == nil {
		return
	}
	began := time.Now()
	e := &evaluation{hash: d.Hash(), report: result.Quality{Definition: d.Hash(), Method: string(d.Method)}}
	a.evaluated = e
	defer func() {
		if p := recover(); p != nil {
			a.log.Error("panic in the evaluation", "value", p, "stack", string(debug.Stack()))
			e.items = nil
			e.report = result.Quality{Definition: e.hash, Method: string(d.Method), Reason: fmt.Sprintf("panic: %v", p)}
		}
		e.report.Seconds = time.Since(began).Seconds()
		a.manifest.Quality = &e.report
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, d.TimeLimit, fmt.Errorf("the time limit of %v was over", d.TimeLimit))
	defer cancel()
	alive, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-a.engine.tree.Done():
			lost(errEngineGone)
		case <-alive.Done():
		}
	}()
	items, err := a.score(alive, d)
	lost(nil)
	<-watched
	if err != nil {
		e.report.Reason = err.Error()
		a.log.Warn("the answers have no score", "error", err)
		return
	}
	e.items = items
	e.sum(d, quality.Summarize(items))
	a.log.Info("answers", "items", *e.report.Items, "scored", *e.report.Scored, "reason", e.report.Reason)
}

// sum puts the totals into the report.
func (e *evaluation) sum(d *quality.Definition, s quality.Summary) {
	r := &e.report
	failed := s.Items - s.Scored
	r.Items, r.Scored, r.Failed, r.Score, r.StdDev, r.Reason = &s.Items, &s.Scored, &failed, s.Score, s.StdDev, s.Reason
	if d.Method != quality.Command {
		r.Truncated = &s.Truncated
	}
}

// score asks the items, or lets the command do it. The error says why it could not
// even begin, or why nothing that came of it can be used.
func (a *attempt) score(ctx context.Context, d *quality.Definition) ([]result.QualityItem, error) {
	var content []byte
	var items []quality.Item
	if d.ItemsPath != "" {
		var lines []string
		var err error
		if content, err = readInput(d.ItemsPath, "quality.items.digest", d.ItemsDigest, &lines); err != nil {
			return nil, fmt.Errorf("read the items: %w", err)
		}
		if len(lines) > 0 {
			return nil, errors.New(lines[0])
		}
		if items, err = quality.ParseItems(content, d.Method); err != nil {
			return nil, fmt.Errorf("%s: %w", d.ItemsPath, err)
		}
	}
	if d.Method != quality.Command {
		return evaluate.Ask(ctx, evaluate.Target{BaseURL: a.engine.ready.BaseURL, Model: a.engine.ready.Model}, d, items), nil
	}
	count := d.Count
	if items != nil {
		count = len(items)
	}
	return a.scoreByCommand(ctx, d, content, count)
}

// scoreByCommand runs the command where the engine runs, and reads what it prints.
func (a *attempt) scoreByCommand(ctx context.Context, d *quality.Definition, items []byte, count int) ([]result.QualityItem, error) {
	place := quality.Place{URL: a.engine.ready.BaseURL + "/v1", Model: a.engine.ready.Model}
	var binds []batch.Bind
	if items != nil {
		// The bytes that were digested, not what may lie there by then.
		path := filepath.Join(a.dirs.temp, "quality-items.jsonl")
		if err := os.WriteFile(path, items, 0o444); err != nil {
			return nil, fmt.Errorf("write the items: %w", err)
		}
		place.Items = path
		if a.setting.Image.Kind == setting.ImageSIF {
			place.Items, binds = itemsFile, []batch.Bind{{Source: path, Target: itemsFile, ReadOnly: true}}
		}
	}
	spec, err := a.command(d.Argv(place), binds...)
	if err != nil {
		return nil, err
	}
	out, stderr, exit, err := a.supervisor.Output(ctx, spec, quality.MaxOutput)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the command did not end: %w", context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("the command: %w", err)
	case exit.Code != 0 || exit.Signal != 0:
		return nil, fmt.Errorf("the command ended with %v: %.300s", exit, engine.LastLine(stderr))
	}
	return quality.ParseScores(out, count)
}

// addTo puts the evaluation's numbers into the attempt's own.
func (e *evaluation) addTo(row *result.Result) {
	r := &e.report
	row.QualityHash = e.hash
	count := func(n *int) *float64 {
		if n == nil {
			return nil
		}
		v := float64(*n)
		return &v
	}
	values := result.Metrics{
		metrics.QualityScore: r.Score, metrics.QualityStdDev: r.StdDev, metrics.QualityItems: count(r.Items), metrics.QualityScored: count(r.Scored),
		metrics.QualityFailed: count(r.Failed), metrics.QualityTruncated: count(r.Truncated), metrics.QualitySeconds: &r.Seconds,
	}
	for name, v := range values {
		row.Metrics[name] = v
		switch {
		case v != nil:
		case r.Reason != "":
			row.NullReasons[name] = r.Reason
		case name == metrics.QualityTruncated:
			row.NullReasons[name] = "a command does not say which answers were cut off"
		case name == metrics.QualityStdDev:
			row.NullReasons[name] = "one item has no spread"
		}
	}
}
