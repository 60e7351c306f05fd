package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/proc"
	"sbench/internal/result"
	"sbench/internal/runner/engine"
	"sbench/internal/runner/gang"
	"sbench/internal/runner/gpu"
	"sbench/internal/runner/port"
	"sbench/internal/seal"
	"sbench/internal/setting"
	"sbench/internal/version"
)

// follow is a further rank: it does what rank 0 asks and tears down. It seals
// nothing. Its exit status is 0 where rank 0 ended it: how the attempt ended is
// rank 0's to say.
func (a *attempt) follow(ctx context.Context, stderr io.Writer) lifecycle.ExitClass {
	a.log = slog.New(slog.NewTextHandler(stderr, nil)).With("run", a.run.ID, "rank", a.job.rank)
	if a.setting.Hardware.Nodes <= 1 {
		return lifecycle.ExitMeasured // rank 0 refuses or measures without this one
	}
	if dir := batch.AttemptDir(a.spec.AttemptsDir, a.run.ID, a.job.id, a.job.restart); seal.IsSealed(dir) {
		return sealedAs(a.spec.AttemptsDir, a.run.ID, a.job)
	}
	var err error
	if a.supervisor, err = proc.New(); err != nil {
		a.log.Error("follow", "error", err)
		return lifecycle.ExitInternal
	}
	w := &follower{attempt: a, prepared: a.prepare(ctx)}
	defer func() { //nolint:contextcheck // it must be done whatever was cancelled
		if err := w.tearDown(); err != nil {
			a.log.Error("tear-down", "error", err)
		}
	}()
	me := gang.Member{Rank: a.job.rank, Node: a.job.node}
	w.link, err = gang.Join(ctx, a.meeting(), me, gang.Timing{Meet: a.spec.Node.Deadlines.Gang})
	if err != nil {
		a.log.Error("follow", "error", err)
		return lifecycle.ExitInternal
	}
	stop := context.AfterFunc(ctx, func() {
		_ = w.link.Tell(eventSignal, told{Class: lifecycle.ExitCancelled, Reasons: []string{"told to stop"}})
	})
	defer stop()
	// A signal comes to rank 0 too, which then ends this one; until then it is of use.
	if err := w.link.Serve(context.WithoutCancel(ctx), w.do); err != nil {
		a.log.Error("follow", "error", err)
		return lifecycle.ExitInternal
	}
	return lifecycle.ExitMeasured
}

// follower does one thing at a time, as gang.Follower promises.
type follower struct {
	*attempt
	link     *gang.Follower
	prepared error
	sampler  *gpu.Sampler
	stopping chan struct{} // closed before the engine is stopped on purpose
	down     bool
}

func (w *follower) do(ctx context.Context, verb string, in json.RawMessage) (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("panic", "value", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	w.log.Info(verb)
	switch verb {
	case verbVerify:
		return w.report(ctx, w.verifyOwn), nil
	case verbStart:
		var order startOrder
		if err := json.Unmarshal(in, &order); err != nil {
			return nil, err
		}
		return w.report(ctx, func(ctx context.Context) error { return w.startOwn(ctx, order) }), nil
	case verbIdentify:
		return w.report(ctx, w.identifyOwn), nil
	case verbClock:
		return monotonic(), nil
	case verbSample:
		w.sampler = w.startDevices()
		return struct{}{}, nil
	case verbSampled:
		var order sampledOrder
		if err := json.Unmarshal(in, &order); err != nil {
			return nil, err
		}
		return w.sampled(order), nil
	case verbAgain:
		return w.report(ctx, w.readAgain), nil
	case verbStop:
		return w.stop(), nil //nolint:contextcheck // it must be done whatever was cancelled
	}
	return nil, fmt.Errorf("%q is not understood", verb)
}

// report does a part and says what is known of the node now.
func (w *follower) report(ctx context.Context, part func(context.Context) error) report {
	if err := part(ctx); err != nil {
		w.log.Error("failed", "error", err)
		return report{Fail: tell(err)}
	}
	node := w.fingerprint.Nodes[0]
	node.Software = &fingerprint.Software{
		Image: w.fingerprint.Image, Checkpoint: w.fingerprint.Checkpoint, Container: w.fingerprint.Container, Engine: w.fingerprint.Engine,
	}
	return report{Node: node}
}

func tell(err error) *told {
	var f *failure
	if errors.As(err, &f) {
		return &told{Class: f.class, Reasons: f.reasons, Signature: f.signature}
	}
	return &told{Class: lifecycle.ExitInternal, Reasons: []string{err.Error()}}
}

func (w *follower) verifyOwn(ctx context.Context) error {
	if w.prepared != nil {
		return w.prepared
	}
	w.fingerprint = fingerprint.Fingerprint{Version: fingerprint.Version, Runner: version.String()}
	if err := w.hash(ctx); err != nil {
		return err
	}
	w.fingerprint.Nodes = []fingerprint.Node{w.readNode(ctx)}
	return nil
}

func (w *follower) startOwn(ctx context.Context, order startOrder) error {
	if len(w.fingerprint.Nodes) == 0 {
		return errors.New("asked to start before it verified")
	}
	if !order.Spans {
		return nil
	}
	w.order = &order.Gang
	adapter, err := w.describeEngine(ctx)
	if err != nil {
		return err
	}
	port, err := port.Free(loopback)
	if err != nil {
		return fail(lifecycle.ExitInternal, "", err)
	}
	if err := w.launch(adapter, port); err != nil {
		return err
	}
	w.stopping = make(chan struct{})
	go w.watchEngine(w.engine.tree, w.stopping)
	return nil
}

// watchEngine tells rank 0 when this rank's engine ends by itself.
func (w *follower) watchEngine(tree *proc.Tree, stopping <-chan struct{}) {
	select {
	case <-stopping:
	case <-tree.Done():
		select {
		case <-stopping:
			return
		default:
		}
		// What it wrote last may be on its way still.
		if err := tree.Stop(w.stopGrace()); err != nil {
			w.log.Warn("clean up after the engine", "error", err)
		}
		exit := tree.Exit()
		f := engine.ReadFailure(tree.Tail(16<<10), exit.String())
		t := told{Class: lifecycle.ExitEngineDied, Signature: "rank " + f.Signature}
		t.Reasons = append([]string{fmt.Sprintf("ENGINE_DIED: %v: %s", exit, f.Line)}, tailLines(tree.Tail(4<<10))...)
		_ = w.link.Tell(eventEngine, t)
	}
}

func (w *follower) identifyOwn(ctx context.Context) error {
	if w.engine != nil {
		w.noteSharedMemory()
	}
	return w.identifyFiles(ctx)
}

// readAgain reads the node after the measurement, while the engine still runs.
func (w *follower) readAgain(ctx context.Context) error {
	node, err := w.nodeAgain(ctx)
	if err != nil {
		return err
	}
	if err := w.unchanged(); err != nil {
		return &failure{class: lifecycle.ExitInvalid, signature: "", reasons: []string{"INVALID: artefacts: " + err.Error()}}
	}
	w.fingerprint.Nodes = []fingerprint.Node{node}
	return nil
}

// sampled ends the sampling and judges this node's devices under load.
func (w *follower) sampled(order sampledOrder) samples {
	out := samples{Telemetry: []result.Telemetry{}, Checks: []result.Check{}}
	w.telemetry, w.checks = nil, nil
	d := w.stopDevices(w.sampler)
	w.sampler = nil
	// On rank 0's clock from here on.
	for i := range w.telemetry {
		w.telemetry[i].T += d.origin - order.Origin
	}
	d.origin = order.Origin
	windows := make([]result.Window, len(order.Spans))
	for i, s := range order.Spans {
		windows[i] = result.Window{Index: i, Start: s.Start, End: s.End}
		joules, why := w.energy(windows[i], d)
		out.Joules, out.Why = append(out.Joules, joules), append(out.Why, why)
	}
	w.checkDevices(windows, d)
	out.Telemetry, out.Checks = append(out.Telemetry, w.telemetry...), append(out.Checks, w.checks...)
	return out
}

// stop tears down and returns the end of the engine's log.
func (w *follower) stop() stopped {
	var s stopped
	if err := w.tearDownAll(func() { s.Log = logEnd(w.logPath()) }); err != nil {
		s.Fault = err.Error()
	}
	return s
}

func (w *follower) tearDown() error { return w.tearDownAll(func() {}) }

// tearDownAll tears down once; last looks at the scratch folder before it goes.
func (w *follower) tearDownAll(last func()) error {
	if w.down {
		return nil
	}
	w.down = true
	if w.stopping != nil {
		close(w.stopping)
	}
	if w.sampler != nil {
		_, _ = w.sampler.Stop()
	}
	w.beforeScratch = last
	return w.attempt.tearDown()
}

func logEnd(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil // this rank had no engine
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxRankLog {
		_, _ = f.Seek(-maxRankLog, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, maxRankLog))
	return text
}

// logPath is where the engine's log goes: into the attempt, or on a further rank,
// and where runs share a server, into the scratch folder.
func (a *attempt) logPath() string {
	if a.writer == nil || a.setting.Engine.ServerLife == setting.ServerLifeShared {
		return filepath.Join(a.dirs.temp, result.EngineLog)
	}
	return a.writer.Path(result.EngineLog)
}
