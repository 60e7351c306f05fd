package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/proc"
	"sbench/internal/result"
	"sbench/internal/runner/engine"
	"sbench/internal/runner/loadgen"
	"sbench/internal/runner/stage"
	"sbench/internal/seal"
	"sbench/internal/setting"
	"sbench/internal/spool"
	"sbench/internal/version"
	"sbench/internal/workload"
)

// failure ends a run early: it is how the attempt ended and what is said of it.
type failure struct {
	class     lifecycle.ExitClass
	reasons   []string
	signature string
	cause     error
	// blame are the nodes at fault; nil is not said, empty is none.
	blame []string
	// outside says that it was seen from outside: a signal may explain it.
	outside bool
}

func (f *failure) Error() string { return f.reasons[0] }
func (f *failure) Unwrap() error { return f.cause }

func fail(class lifecycle.ExitClass, signature string, err error) *failure {
	return &failure{class: class, reasons: []string{err.Error()}, signature: signature, cause: err}
}

// attempt is one run on one allocation, while it is under way.
type attempt struct {
	spec    *batch.Spec
	task    batch.Task
	run     batch.Run
	setting setting.Setting
	job     job
	dirs    dirs

	place      place
	log        *slog.Logger
	clock      loadgen.Clock
	supervisor *proc.Supervisor
	writer     *seal.Writer
	manifest   result.Manifest

	fingerprint fingerprint.Fingerprint
	checks      []result.Check
	verified    bool // everything pinned was read and equal, before
	told        bool // to stop, when the step that failed did
	plan        *workload.Plan
	artefacts   artefacts
	engine      *running
	clocks      *lockedClocks // nil where this runner has locked none
	telemetry   []result.Telemetry
	measured    *measurement
	evaluated   *evaluation // nil where no answers are asked for
	packages    []string    // of the image, a line each; nil where they are not known

	shared *life // of the run before; nil: this run starts its server
	kept   *life // for the run after; nil: the server ended with this run
	more   bool  // there is a run after this one that may use the server
	cpus   []int // of the step, where an earlier run of this process bound it to some

	gang  *conductor   // rank 0 of several nodes
	order *engine.Gang // where this rank's engine finds the others; nil on one node
	logs  []string     // of other ranks, in the attempt's folder
	// beforeScratch is called when the engine has ended; nil does nothing.
	beforeScratch func()
}

// artefacts are the files that were hashed and must stay what they are.
type artefacts struct {
	image      stage.Image    // of kind sif
	program    stage.Artefact // of kind host
	checkpoint stage.Artefact
	inputs     workload.Options
}

// dirs are this run's node-local folders.
type dirs struct {
	temp  string   // removed at the end
	owner *os.File // says that temp is in use
	cache string
}

// execute executes the runs, one after the other, and returns how they ended. The order of the deferred
// steps is the tear-down: engine, seal, scratch.
func execute(ctx context.Context, p place, j job, stderr io.Writer) lifecycle.ExitClass {
	stop := func(class lifecycle.ExitClass, err error) lifecycle.ExitClass {
		fmt.Fprintf(stderr, "sbench-runner run: %v\n", err)
		return class
	}
	spec, err := readSpec(ctx, p)
	if err != nil {
		return stop(lifecycle.ExitSpec, err)
	}
	task, ok := spec.Task(p.task)
	if !ok {
		return stop(lifecycle.ExitSpec, fmt.Errorf("the batch has no task %d", p.task))
	}
	var runs []batch.Run
	for _, id := range p.runs {
		run, ok := task.Run(id)
		if !ok {
			return stop(lifecycle.ExitSpec, fmt.Errorf("task %d has no run %d", p.task, id))
		}
		runs = append(runs, run)
	}
	if j.rank > 0 {
		return newAttempt(spec, task, runs[0], p, j).follow(ctx, stderr)
	}
	t := turnFromEnv(os.Getenv)
	var server *attempt // whose server lives on
	var cpus []int
	class := lifecycle.ExitMeasured
	for i, run := range runs {
		if i > 0 {
			if why := t.skip(ctx, p, j, run); why != "" {
				t.note("skip %d %s", run.ID, why)
				continue
			}
			t.note("start %d", run.ID)
		}
		a := newAttempt(spec, task, run, p, j)
		a.more, a.cpus = i+1 < len(runs), cpus
		if server != nil {
			a.shared, server = server.kept, nil
		}
		ended := a.execute(ctx, stop, stderr)
		if len(runs) > 1 {
			t.note("end %d %d", run.ID, ended.Code())
		}
		// A signal ends what would come after; else the first that failed is told.
		if ended == lifecycle.ExitCancelled || class == lifecycle.ExitMeasured {
			class = ended
		}
		if a.kept != nil {
			server = a
		}
		if cpus == nil && len(a.fingerprint.Nodes) > 0 {
			cpus = a.fingerprint.Nodes[0].CPUsAllowed
		}
	}
	if server != nil {
		if err := server.tearDown(); err != nil { //nolint:contextcheck // it must be done whatever was cancelled
			fmt.Fprintf(stderr, "sbench-runner run: tear-down: %v\n", err)
			class = lifecycle.ExitInternal
		}
	}
	return class
}

func newAttempt(spec *batch.Spec, task batch.Task, run batch.Run, p place, j job) *attempt {
	return &attempt{spec: spec, task: task, run: run, setting: spec.Settings[run.SettingHash], job: j, clock: loadgen.NewClock(), place: p}
}

// execute executes the run, on rank 0.
func (a *attempt) execute(ctx context.Context, stop func(lifecycle.ExitClass, error) lifecycle.ExitClass, stderr io.Writer) lifecycle.ExitClass {
	spec, run, j := a.spec, a.run, a.job
	var err error
	if a.writer, err = seal.Create(batch.AttemptDir(spec.AttemptsDir, run.ID, j.id, j.restart)); err != nil {
		a.abandonServer(stderr) //nolint:contextcheck // it must be done whatever was cancelled
		if errors.Is(err, seal.ErrSealed) {
			return stop(sealedAs(spec.AttemptsDir, run.ID, j), err)
		}
		return stop(lifecycle.ExitInternal, err)
	}
	a.manifest = result.Manifest{Attempt: a.identity(), Runner: version.String(), Reasons: []string{}, Checks: []result.Check{}}
	closeLog := a.openLog(stderr)
	err = a.perform(ctx)
	a.conclude(err)
	return a.seal(closeLog)
}

// giveUp seals no numbers, and says why.
func (a *attempt) giveUp(class lifecycle.ExitClass, why string) {
	for _, name := range []string{result.ResultFile, result.WindowFile, result.RequestsFile, result.TelemetryFile, result.QualityFile} {
		_ = a.writer.Drop(name)
	}
	m := &a.manifest
	m.ExitClass, m.Valid, m.EnvVerified, m.Signature = class, false, false, ""
	m.Reasons = append([]string{why}, m.Reasons...)
}

// finish sees to it that of two starts of the job one has a result. Slurm starts a
// job again whose node it believes lost, while this runner may be alive.
func (a *attempt) finish() {
	if a.manifest.ExitClass == lifecycle.ExitCancelled {
		return // others may begin the run
	}
	switch last, err := spool.Finish(a.place.batch, a.run.ID, a.job.start("")); {
	case err != nil:
		a.log.Warn("another start may measure the run again", "error", err)
	case !last:
		a.log.Warn("another start of the job has begun the run: this one gives its numbers up")
		a.giveUp(lifecycle.ExitCancelled, "Slurm has started the job again, and that start has begun the run")
		a.manifest.Blamed = nil
	}
}

func sealedAs(attempts string, run int64, j job) lifecycle.ExitClass {
	m, err := seal.Verify(batch.AttemptDir(attempts, run, j.id, j.restart), seal.DefaultLimits())
	if err != nil || !m.ExitClass.Known() {
		return lifecycle.ExitInternal
	}
	return m.ExitClass
}

func (a *attempt) identity() result.Attempt {
	return result.Attempt{
		RunID: a.run.ID, Sweep: a.run.Sweep, SettingHash: a.run.SettingHash, SeriesHash: a.run.SeriesHash, Repeat: a.run.Repeat,
		Token: a.spec.Token, TaskIndex: a.task.Index, Site: a.spec.Site, Cluster: a.spec.Cluster,
		JobIDRaw: a.job.id, RestartCount: a.job.restart, StepID: a.job.step, Nodes: []string{a.job.node},
		HardwareClass: a.spec.HardwareClass, StartedAt: a.clock.Wall().UTC(),
	}
}

// openLog logs to the attempt's own file and to the step's output.
func (a *attempt) openLog(stderr io.Writer) (closeLog func() error) {
	out, closeLog := stderr, func() error { return nil }
	if f, err := os.OpenFile(a.writer.Path(result.RunnerLog), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err == nil {
		out, closeLog = io.MultiWriter(stderr, f), f.Close
	}
	a.log = slog.New(slog.NewTextHandler(out, nil)).With("run", a.run.ID)
	return closeLog
}

// perform does everything up to the measurement's last number. Whatever way it
// returns, no process is left.
func (a *attempt) perform(ctx context.Context) (err error) {
	if a.shared != nil {
		a.takeOver()
	} else if a.supervisor, err = proc.New(); err != nil {
		return fail(lifecycle.ExitInternal, "", err)
	}
	defer func() { //nolint:contextcheck // it must be done whatever was cancelled
		if p := recover(); p != nil {
			a.log.Error("panic", "value", p, "stack", string(debug.Stack()))
			err = fail(lifecycle.ExitInternal, "panic", fmt.Errorf("panic: %v", p))
		}
		if err == nil {
			if a.kept = a.keep(); a.kept != nil {
				return
			}
		}
		if stopErr := a.tearDown(); stopErr != nil {
			a.log.Error("tear-down", "error", stopErr)
			a.checks = append(a.checks, result.Check{
				Name: "tear_down", Kind: result.CheckHarness, Verdict: result.VerdictFail, Reason: stopErr.Error(),
			})
		}
	}()
	// Whatever becomes of another rank ends the step that is under way.
	together, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"assemble", func(ctx context.Context) error { return a.assemble(ctx, lose) }},
		// Only now: the other ranks wait for this one, whatever it has to say.
		{"prepare", a.prepare},
		{"verify", a.verify},
		{"start", a.start},
		{"identify", a.identify},
		{"cache", a.settleCache},
		{"measure", a.measure},
		// A signal that comes now finds the measurement complete.
		{"verify again", func(ctx context.Context) error { return a.verifyAgain(context.WithoutCancel(ctx)) }},
		// The measurement is over, and nothing that comes now can touch it.
		{"evaluate", func(ctx context.Context) error { a.evaluate(ctx); return nil }},
		{"list packages", func(ctx context.Context) error { a.listPackages(ctx); return nil }},
	}
	for _, s := range steps {
		began := time.Now()
		if err := s.do(together); err != nil {
			err = otherRank(together, s.name, err)
			a.told = toldToStop(ctx, err)
			return err
		}
		a.log.Info(s.name, "seconds", time.Since(began).Seconds())
	}
	return nil
}

// toldToStop reports whether a signal explains the error. Slurm signals every
// process of a step: the engine may end of it before this process has heard.
func toldToStop(ctx context.Context, err error) bool {
	var f *failure
	if errors.As(err, &f) {
		switch {
		case f.outside, f.class == lifecycle.ExitEngineDied, f.class == lifecycle.ExitEngineStart, f.class == lifecycle.ExitInternal:
			timer := time.NewTimer(time.Second)
			defer timer.Stop()
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
		default:
		}
	}
	return ctx.Err() != nil
}

// prepare checks the setting and plans the load before anything is touched.
func (a *attempt) prepare(ctx context.Context) error {
	if a.spec.UID != os.Getuid() {
		return fail(lifecycle.ExitSpec, "", fmt.Errorf("the batch is of user %d, this is user %d", a.spec.UID, os.Getuid()))
	}
	for what, path := range map[string]string{
		"image.path": a.setting.Image.Path, "model.checkpoint.path": a.setting.Model.Checkpoint.Path,
		"workload.arrival.trace_path": a.setting.Workload.Arrival.TracePath, "workload.prompts.file_path": a.setting.Workload.Prompts.FilePath,
	} {
		if path != "" && !filepath.IsAbs(path) {
			return fail(lifecycle.ExitSpec, "path", fmt.Errorf("%s %q is not absolute in the frozen batch", what, path))
		}
	}
	// The command line is made again when the port is known; what is wrong with it
	// is known now, before anything was hashed.
	if adapter, err := engine.New(a.setting.Engine.Kind); err != nil {
		return fail(lifecycle.ExitSpec, "engine kind", err)
	} else if _, err := adapter.Argv(engine.Params{Setting: a.setting, Host: loopback, Port: 1, Program: a.setting.Image.Path}); err != nil {
		return fail(lifecycle.ExitSpec, "engine argv", err)
	} else if a.setting.Hardware.Nodes > 1 {
		if _, err := adapter.Spans(a.setting); err != nil {
			return fail(lifecycle.ExitSpec, "gang", err)
		}
	}
	if a.shared != nil {
		return nil // it has the folders of the run before
	}
	scratch, cache := nodeFolders(a.spec)
	a.dirs = dirs{cache: cache}
	// A runner that was killed could leave nothing in order.
	if removed, err := cleanUp(ctx, []string{scratch}, []string{cache}, os.Getuid()); err != nil || len(removed) > 0 {
		a.log.Warn("cleaned up after a runner that was killed", "removed", removed, "error", err)
	}
	var err error
	if a.dirs.temp, a.dirs.owner, err = makeScratch(scratch, a.run.ID); err != nil {
		return fail(lifecycle.ExitStaging, "", err)
	}
	return nil
}

// tearDown leaves no process and no file of this run on the node.
func (a *attempt) tearDown() error {
	var errs []error
	dismissed := a.dismiss()
	ended := a.engine
	if ended != nil {
		errs = append(errs, a.endEngine())
	}
	errs = append(errs, a.resetClocks(), a.supervisor.Close())
	if ended != nil {
		// What the supervisor had to kill may have had some, too.
		_, err := removeSharedMemory(ended.shm)
		errs = append(errs, err)
	}
	if a.kept == nil {
		a.copyLog()
	}
	if a.beforeScratch != nil {
		a.beforeScratch()
	}
	if a.dirs.temp != "" {
		errs = append(errs, removeScratch(a.dirs.temp), a.dirs.owner.Close())
	}
	return errors.Join(append(errs, (<-dismissed)...)...)
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

func (a *attempt) stopGrace() time.Duration {
	return orDefault(a.spec.Node.Deadlines.Stop, 10*time.Second)
}

// conclude turns how perform ended into the manifest.
func (a *attempt) conclude(err error) {
	m := &a.manifest
	defer func() {
		if p := recover(); p != nil {
			a.log.Error("panic", "value", p, "stack", string(debug.Stack()))
			m.ExitClass, m.Valid, m.EnvVerified, m.Signature = lifecycle.ExitInternal, false, false, "panic"
			m.Reasons = []string{fmt.Sprintf("panic: %v", p)}
			a.measured = nil
		}
	}()
	var f *failure
	switch {
	case errors.As(err, &f):
		m.ExitClass, m.Reasons, m.Signature, m.Blamed = f.class, f.reasons, f.signature, f.blame
	case err != nil:
		m.ExitClass, m.Reasons = lifecycle.ExitInternal, []string{err.Error()}
	}
	// A signal explains whatever else went wrong after it, except what was found
	// out before: a drift stays a drift.
	drifted := (m.ExitClass == lifecycle.ExitDriftArtefact || m.ExitClass == lifecycle.ExitDriftNode) && !f.outside
	if a.told && !drifted {
		m.ExitClass, m.Signature, m.Blamed = lifecycle.ExitCancelled, "", nil
		m.Reasons = append([]string{"CANCELLED: told to stop"}, m.Reasons...)
	}
	if err == nil {
		a.judge()
	}
	m.Checks = append(m.Checks, a.checks...)
	for _, r := range m.Reasons {
		a.log.Error(r)
	}
}

// seal writes and seals what there is. If the disk takes less than everything,
// the numbers are given up first, and the attempt says so.
func (a *attempt) seal(closeLog func() error) lifecycle.ExitClass {
	m := &a.manifest
	m.Attempt.EndedAt = time.Now().UTC()
	if a.measured != nil {
		if err := a.writeFiles(); err != nil {
			a.log.Error("write results", "error", err)
			a.giveUp(lifecycle.ExitInternal, "the results could not be written: "+err.Error())
		}
	}
	a.writePackages()
	a.finish()
	a.log.Info("end", "class", string(m.ExitClass), "valid", m.Valid)
	_ = closeLog()
	for _, name := range append([]string{result.EngineLog, result.RunnerLog}, a.logs...) {
		if info, err := os.Lstat(a.writer.Path(name)); err == nil && info.Mode().IsRegular() {
			_ = a.writer.Adopt(name)
		}
	}
	_, err := a.writer.Seal(*m)
	if err != nil && !errors.Is(err, seal.ErrSealed) {
		// Without the logs there may be room for the manifest.
		for _, name := range append([]string{result.EngineLog, result.RunnerLog, result.PackagesFile}, a.logs...) {
			_ = a.writer.Drop(name)
		}
		_, err = a.writer.Seal(*m)
	}
	if err != nil {
		a.log.Error("seal", "error", errors.Join(err, a.writer.Abort()))
		return lifecycle.ExitInternal
	}
	return m.ExitClass
}
